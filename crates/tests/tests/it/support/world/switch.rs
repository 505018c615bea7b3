//! A switch in user space between the hosts of a `World`: it loses and delays frames as a test says, in
//! each direction between two hosts on its own. The kernel's own means for that are modules that most
//! machines of tests lack.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use super::{HOSTS, SPARE};

/// The hosts, and the spare one behind them.
const PORTS: usize = HOSTS.len() + 1;

/// Opens `eth0` in each of the namespaces, and passes frames between them. A line `FROM TO LOST DELAY`
/// is a rule for the frames of one direction, the latter two in percent and in milliseconds.
const PROGRAM: &str = r"
import ctypes, fcntl, heapq, os, random, select, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNET, TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x40000000, 0x400454ca, 2, 0x1000
ports = []
for space in sys.argv[1:]:
    with open('/run/netns/' + space) as file:
        if libc.setns(file.fileno(), CLONE_NEWNET): sys.exit('setns')
    port = os.open('/dev/net/tun', os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(port, TUNSETIFF, struct.pack('16sH22x', b'eth0', IFF_TAP | IFF_NO_PI))
    ports.append(port)
print('ready', flush=True)
rules, places, delayed, count = {}, {}, [], 0
def deliver(to, frame):
    # The host may be gone, or its queue full: a frame that is lost.
    try: os.write(ports[to], frame)
    except OSError: pass
while True:
    until = max(0, delayed[0][0] - time.monotonic()) if delayed else None
    for ready in select.select([0] + ports, [], [], until)[0]:
        if ready == 0:
            line = sys.stdin.readline()
            if not line: sys.exit()
            source, to, lost, delay = map(int, line.split())
            rules[source, to] = lost, delay / 1000
            print('ok', flush=True)
            continue
        try: frame = os.read(ready, 65536)
        except OSError: continue
        source = ports.index(ready)
        places[frame[6:12]] = source
        known = places.get(frame[:6])
        for to in [known] if known is not None else range(len(ports)):
            lost, delay = rules.get((source, to), (0, 0))
            if to == source or random.randrange(100) < lost: continue
            count += 1
            if delay: heapq.heappush(delayed, (time.monotonic() + delay, count, to, frame))
            else: deliver(to, frame)
    while delayed and delayed[0][0] <= time.monotonic(): deliver(*heapq.heappop(delayed)[2:])
";

/// The switch. It ends when this is dropped.
pub(crate) struct Switch {
    child: Child,
    pipes: Mutex<(ChildStdin, BufReader<ChildStdout>)>,
}

impl Switch {
    /// A switch with `eth0` of each host; these have no address yet. `None` where devices of the kind
    /// cannot be made.
    pub(super) fn new(prefix: &str) -> Option<Switch> {
        let hosts = HOSTS.into_iter().chain([SPARE]);
        let spaces = hosts.map(|host| format!("{prefix}{host}"));
        let mut command = Command::new("python3");
        command.args(["-c", PROGRAM]).args(spaces).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().ok()?;
        let to = child.stdin.take().expect("a pipe");
        let from = BufReader::new(child.stdout.take().expect("a pipe"));
        let switch = Switch { child, pipes: Mutex::new((to, from)) };
        (switch.ask("") == "ready\n").then_some(switch)
    }

    /// Writes a line, if it is one, and reads the next one.
    fn ask(&self, line: &str) -> String {
        let mut pipes = self.pipes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut answer = String::new();
        let is_written = pipes.0.write_all(line.as_bytes()).is_ok();
        let _ = is_written.then(|| pipes.1.read_line(&mut answer));
        answer
    }

    fn rule(&self, from: usize, to: usize, lost_percent: u8, delay_millis: u32) {
        let answer = self.ask(&format!("{from} {to} {lost_percent} {delay_millis}\n"));
        assert_eq!(answer, "ok\n", "the switch has ended");
    }

    /// From now on this part of the frames between all hosts is lost, and others come this late.
    pub(crate) fn disturb(&self, lost_percent: u8, delay_millis: u32) {
        for from in 0..PORTS {
            for to in (0..PORTS).filter(|&to| to != from) {
                self.rule(from, to, lost_percent, delay_millis);
            }
        }
    }

    /// Nothing from a host reaches another one.
    pub(crate) fn mute(&self, host: usize) {
        (0..PORTS).filter(|&to| to != host).for_each(|to| self.rule(host, to, 100, 0));
    }

    /// Nothing from a host reaches another one, nor the other way round.
    pub(crate) fn cut_off(&self, host: usize) {
        self.mute(host);
        (0..PORTS).filter(|&from| from != host).for_each(|from| self.rule(from, host, 100, 0));
    }

    /// Every frame arrives at once.
    pub(crate) fn heal(&self) {
        self.disturb(0, 0);
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
