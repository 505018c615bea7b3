//! Endpoints in two processes: addresses and grants go over pipes as they go over a daemon's
//! connections; bytes are moved both ways; transfers of a peer that is killed in the middle end in
//! an error.

use crate::support::{TIMEOUT, bytes, library, memory, open, pattern, providers};
use fabric::{Completion, Endpoint, Grant, Library, Peer, Place, Reach, Region, RemotePlace};
use shm::segment::Segment;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::hash::mix;

const PROVIDER: &str = "FABRIC_TEST_PROVIDER";
const LENGTH: usize = 4 << 20;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Vec<u8> {
    let pair = |place| u8::from_str_radix(&text[2 * place..2 * place + 2], 16).expect("hex");
    (0..text.len() / 2).map(pair).collect()
}

/// Not a test by itself: the process that serves its memory until its input ends. A line requests
/// the contents of its memory.
#[test]
fn the_other_process() {
    let Ok(provider) = std::env::var(PROVIDER) else { return };
    let mut own = open(Library::load().expect("loaded by the parent"), &provider, u64::MAX);
    let memory = memory(LENGTH, 2);
    let region = own.register(Arc::clone(&memory), 0, LENGTH as u64, Reach::ReadWrite);
    let grant = own.grant(region.expect("a region")).expect("a region");
    println!("\nother {} {}", hex(own.address()), hex(&grant.encode()));
    let (arguments, questions) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines() {
            let Ok(line) = line else { return };
            let _ = arguments.send(line);
        }
    });
    loop {
        assert_eq!(own.wait(Instant::now() + Duration::from_millis(5)), Ok(None), "nothing begun");
        match questions.try_recv() {
            Ok(_) => println!("holds {}", digest(&memory)),
            Err(std::sync::mpsc::TryRecvError::Empty) => {}
            Err(std::sync::mpsc::TryRecvError::Disconnected) => return,
        }
    }
}

fn digest(memory: &Segment) -> u64 {
    let words = bytes(memory);
    words.chunks(8).fold(0, |all, part| {
        let mut eight = [0; 8];
        eight[..part.len()].copy_from_slice(part);
        mix(all, u64::from_le_bytes(eight))
    })
}

struct Other {
    child: Child,
    input: ChildStdin,
    output: std::io::Lines<BufReader<std::process::ChildStdout>>,
    address: Vec<u8>,
    grant: Grant,
}

impl Other {
    fn start(provider: &str) -> Other {
        let mut child = Command::new(std::env::current_exe().expect("our own program"))
            .args(["--exact", "two_processes::the_other_process", "--nocapture"])
            .env(PROVIDER, provider)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let mut output = BufReader::new(child.stdout.take().expect("piped")).lines();
        let input = child.stdin.take().expect("piped");
        let line = answer(&mut output, "other ");
        let (address, grant) = line.split_once(' ').expect("two words");
        let address = from_hex(address);
        let grant = Grant::decode(from_hex(grant)[..].try_into().expect("a grant"));
        Other { child, input, output, address, grant }
    }

    fn holds(&mut self) -> u64 {
        writeln!(self.input, "?").expect("it lives");
        answer(&mut self.output, "holds ").parse().expect("a number")
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn answer(output: &mut std::io::Lines<BufReader<std::process::ChildStdout>>, what: &str) -> String {
    let mut found = output.filter_map(|line| line.ok()?.strip_prefix(what).map(str::to_owned));
    found.next().expect("the other process ended")
}

struct Own {
    endpoint: Endpoint,
    memory: Arc<Segment>,
    region: Region,
    peer: Peer,
}

fn reaching(library: Library, provider: &str, other: &Other) -> Own {
    let mut endpoint = open(library, provider, u64::MAX);
    let memory = memory(LENGTH, 1);
    let region = endpoint.register(Arc::clone(&memory), 0, LENGTH as u64, Reach::Own);
    let peer = endpoint.add_peer(&other.address).expect("an address");
    Own { region: region.expect("a region"), endpoint, memory, peer }
}

fn end(endpoint: &mut Endpoint) -> Completion {
    endpoint.wait(Instant::now() + TIMEOUT).expect("a good queue").expect("it ends")
}

#[test]
fn bytes_of_random_places_are_read_and_written() {
    let Some(library) = library() else { return };
    for name in providers(library) {
        let mut other = Other::start(name);
        let mut own = reaching(library, name, &other);
        let (mut here, mut there) = (pattern(LENGTH, 1), pattern(LENGTH, 2));
        for step in 0..60_u64 {
            let number = |what| mix(step, what) as usize;
            let length = number(1) % [100, 5000, 200_000, LENGTH][number(2) % 4];
            let (a, b) = (number(3) % (LENGTH - length), number(4) % (LENGTH - length));
            let place = Place { region: own.region, offset: a as u64 };
            let remote = RemotePlace { peer: own.peer, grant: other.grant, offset: b as u64 };
            if number(5) % 2 == 0 {
                own.endpoint.read(place, remote, length as u64, step).expect("begun");
                here[a..a + length].copy_from_slice(&there[b..b + length]);
            } else {
                own.endpoint.write(place, remote, length as u64, step).expect("begun");
                there[b..b + length].copy_from_slice(&here[a..a + length]);
            }
            assert_eq!(end(&mut own.endpoint), Completion { token: step, outcome: Ok(()) });
        }
        assert!(bytes(&own.memory) == here, "{name}: own memory");
        let model = memory(LENGTH, 0);
        model.copy_in(0, &there).expect("in range");
        assert_eq!(other.holds(), digest(&model), "{name}: the other's memory");
    }
}

/// `shm` is not among them: in 1.17 it waits for ever for a process that was killed, and it is for
/// one host, whose daemon learns of the death by its socket and drops the endpoint.
#[test]
fn a_killed_peer_ends_in_errors_and_another_is_reached() {
    let Some(library) = library() else { return };
    for name in providers(library).into_iter().filter(|&name| name != "shm") {
        let mut other = Other::start(name);
        let mut own = reaching(library, name, &other);
        let place = Place { region: own.region, offset: 0 };
        let mut remote = RemotePlace { peer: own.peer, grant: other.grant, offset: 0 };
        own.endpoint.read(place, remote, LENGTH as u64, 0).expect("begun");
        assert_eq!(end(&mut own.endpoint).outcome, Ok(()), "{name}");
        for token in 0..32 {
            own.endpoint.read(place, remote, LENGTH as u64, token).expect("begun");
        }
        let first = end(&mut own.endpoint);
        assert_eq!(first.outcome, Ok(()), "{name}: still alive");
        other.child.kill().expect("killed");
        other.child.wait().expect("reaped");
        let failed = (1..32).filter(|_| end(&mut own.endpoint).outcome.is_err()).count();
        assert!(failed > 0, "{name}: 128 MiB were read of a dead process");
        // A transfer that begins after the death fails as well.
        own.endpoint.write(place, remote, 100, 99).expect("begun");
        assert!(end(&mut own.endpoint).outcome.is_err(), "{name}");
        let again = Other::start(name);
        remote.peer = own.endpoint.add_peer(&again.address).expect("an address");
        remote.grant = again.grant;
        own.endpoint.read(place, remote, LENGTH as u64, 100).expect("begun");
        assert_eq!(end(&mut own.endpoint), Completion { token: 100, outcome: Ok(()) }, "{name}");
        assert!(bytes(&own.memory) == pattern(LENGTH, 2), "{name}");
    }
}

/// A peer that is stopped answers nothing: the wait ends at its deadline, and the endpoint can be
/// dropped and another opened, whatever is in flight.
#[test]
fn a_stopped_peer_blocks_nobody() {
    let Some(library) = library() else { return };
    for name in providers(library).into_iter().filter(|&name| name != "shm") {
        let other = Other::start(name);
        let mut own = reaching(library, name, &other);
        let place = Place { region: own.region, offset: 0 };
        let remote = RemotePlace { peer: own.peer, grant: other.grant, offset: 0 };
        own.endpoint.read(place, remote, 1000, 1).expect("begun");
        assert_eq!(end(&mut own.endpoint).outcome, Ok(()), "{name}");
        let process = rustix::process::Pid::from_child(&other.child);
        rustix::process::kill_process(process, rustix::process::Signal::STOP).expect("stopped");
        // It stops when it next leaves the kernel.
        let state = format!("/proc/{}/stat", other.child.id());
        let is_stopped = || std::fs::read_to_string(&state).expect("it lives").contains(") T ");
        let deadline = Instant::now() + TIMEOUT;
        while !is_stopped() {
            assert!(Instant::now() < deadline, "it does not stop");
            std::thread::yield_now();
        }
        own.endpoint.read(place, remote, LENGTH as u64, 2).expect("begun");
        let waited = own.endpoint.wait(Instant::now() + Duration::from_millis(200));
        assert_eq!(waited, Ok(None), "{name}");
        drop(own.endpoint);
        assert_eq!(Arc::strong_count(&own.memory), 2, "{name}: transfers in flight need it");
        rustix::process::kill_process(process, rustix::process::Signal::CONT).expect("it goes on");
        let mut own = reaching(library, name, &other);
        let (place, remote) =
            (Place { region: own.region, ..place }, RemotePlace { peer: own.peer, ..remote });
        own.endpoint.read(place, remote, LENGTH as u64, 3).expect("begun");
        assert_eq!(end(&mut own.endpoint), Completion { token: 3, outcome: Ok(()) }, "{name}");
        assert!(bytes(&own.memory) == pattern(LENGTH, 2), "{name}");
    }
}
