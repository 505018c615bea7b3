//! Programs on hosts of a `World` that execute one command after the other, preloaded or on a mount
//! of the host.

use super::mounted::UringEnabled;
use super::world::World;
use super::{Instance, skip};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Reads commands, one a line, and answers each with a line: its result, or `!` and the errno.
/// Files stay open under the name that the command gives, until they are closed.
const SCRIPT: &str = r#"
import os, sys, zlib, fcntl, ctypes, struct, time, traceback, mmap
os.chdir(sys.argv[1])
fds, maps = {}, {}
def fd(key, path):
    if key not in fds: fds[key] = os.open(path, os.O_RDWR)
    return fds[key]
def all(call, fd, data, *at):
    done = 0
    while done < len(data):
        more = call(fd, data[done:], *[x + done for x in at])
        assert more > 0
        done += more
def read(f, offset, length):
    parts, at = [], offset
    while at < offset + length:
        part = os.pread(f, offset + length - at, at)
        if not part: break
        parts.append(part)
        at += len(part)
    return b''.join(parts)
KINDS = {'r': fcntl.F_RDLCK, 'w': fcntl.F_WRLCK, 'u': fcntl.F_UNLCK}
def lock(command, key, path, kind, start, length):
    f = fd(key, path)
    words = struct.pack('hhqqi4x', KINDS[kind], 0, int(start), int(length), 0)
    return fcntl.fcntl(f, command, words)
def do(w):
    c = w[0]
    if c == 'open':
        flags = os.O_RDWR
        if 'c' in w[3]: flags |= os.O_CREAT
        if 't' in w[3]: flags |= os.O_TRUNC
        if 'a' in w[3]: flags |= os.O_APPEND
        fds[w[1]] = os.open(w[2], flags)
    elif c == 'close':
        for key in [key for key in fds if key.rstrip('a') == w[1]]: os.close(fds.pop(key))
    elif c == 'look': fds[w[1]] = os.open(w[2], os.O_RDONLY)
    elif c == 'map':
        may = mmap.PROT_READ | (mmap.PROT_WRITE if w[3] == 'w' else 0)
        maps[w[1]] = mmap.mmap(fds[w[1]], int(w[2]), mmap.MAP_SHARED, may)
    elif c == 'peek': return str(maps[w[1]][int(w[2])])
    elif c == 'poke':
        maps[w[1]][int(w[2])] = int(w[3])
        maps[w[1]].flush()
    elif c == 'unmap': maps.pop(w[1]).close()
    elif c == 'byte': return str(os.pread(fds[w[1]], 1, int(w[2]))[0])
    elif c == 'read':
        data = read(fd(w[1], w[2]), int(w[3]), int(w[4]))
        return f'{len(data)} {zlib.crc32(data)}'
    elif c == 'write':
        all(os.pwrite, fd(w[1], w[2]), bytes([int(w[5])]) * int(w[4]), int(w[3]))
    elif c == 'append':
        key = w[1] + 'a'
        if key not in fds: fds[key] = os.open(w[2], os.O_WRONLY | os.O_APPEND)
        data = bytes([int(w[4])]) * int(w[3])
        assert os.write(fds[key], data) == len(data)
    elif c == 'ftruncate': os.ftruncate(fd(w[1], w[2]), int(w[3]))
    elif c == 'punch':
        libc = ctypes.CDLL(None, use_errno=True)
        at, length = ctypes.c_int64(int(w[3])), ctypes.c_int64(int(w[4]))
        # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
        if libc.fallocate(fd(w[1], w[2]), 3, at, length): raise OSError(ctypes.get_errno(), '')
    elif c == 'truncate': os.truncate(w[1], int(w[2]))
    elif c == 'empty': os.close(os.open(w[1], os.O_WRONLY | os.O_TRUNC))
    elif c == 'stat': return str(os.stat(w[1]).st_size)
    elif c == 'mtime': return str(os.stat(w[1]).st_mtime_ns)
    elif c == 'fstat': return str(os.fstat(fd(w[1], w[2])).st_size)
    elif c == 'end': return str(os.lseek(fd(w[1], w[2]), 0, os.SEEK_END))
    elif c == 'mkdir': os.mkdir(w[1])
    elif c == 'rename': os.rename(w[1], w[2])
    elif c == 'unlink': os.unlink(w[1])
    elif c == 'symlink': os.symlink(w[1], w[2])
    elif c == 'readlink': return os.readlink(w[1])
    elif c == 'link': os.link(w[1], w[2], follow_symlinks=False)
    elif c == 'fsync': os.fsync(fd(w[1], w[2]))
    elif c == 'list': return ' '.join(sorted(os.listdir(w[1])))
    elif c == 'setxattr': os.setxattr(w[1], w[2], w[3].encode())
    elif c == 'getxattr': return os.getxattr(w[1], w[2]).decode()
    elif c == 'lock': lock(fcntl.F_SETLK, *w[1:])
    elif c == 'lockw': lock(fcntl.F_SETLKW, *w[1:])
    elif c == 'ofd': lock(fcntl.F_OFD_SETLK, *w[1:])
    elif c == 'ofdw': lock(fcntl.F_OFD_SETLKW, *w[1:])
    elif c == 'test':
        kind, _, start, length, pid = struct.unpack('hhqqi4x', lock(fcntl.F_GETLK, *w[1:]))
        return 'free' if kind == fcntl.F_UNLCK else f'{"rw"[kind == fcntl.F_WRLCK]} {start} {length}'
    elif c == 'flock':
        how = {'r': fcntl.LOCK_SH, 'w': fcntl.LOCK_EX, 'u': fcntl.LOCK_UN}[w[3]]
        fcntl.flock(fd(w[1], w[2]), how | fcntl.LOCK_NB)
    elif c == 'flockw':
        fcntl.flock(fd(w[1], w[2]), {'r': fcntl.LOCK_SH, 'w': fcntl.LOCK_EX}[w[3]])
    elif c == 'exec':
        scope = dict(globals())
        try: exec(open(w[1]).read(), scope)
        except BaseException: traceback.print_exc(); raise
        return scope.get('result', 'ok')
    else: raise AssertionError(c)
    return 'ok'
print('ready', os.getpid(), flush=True)
for line in sys.stdin:
    try: result = do(line.split())
    except OSError as error: result = f'!{error.errno}'
    print(result, flush=True)
"#;

/// No command of an agent takes this long, unless it hangs.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A program that waits for commands. It ends when this is dropped.
pub(crate) struct Agent {
    /// Name for messages.
    pub(crate) name: String,
    child: Child,
    /// Process id of the program itself.
    pub(crate) pid: u32,
    to: Option<ChildStdin>,
    receiver: Receiver<String>,
}

impl Agent {
    /// An agent under `forebay run` on a host, in directory `at`.
    pub(crate) fn preloaded(world: &World, host: &str, at: &str) -> Agent {
        let words = ["run", "--", "python3", "-c", SCRIPT, at];
        Agent::new(format!("preloaded on {host}"), world.command(host, &words))
    }

    /// An agent under `forebay run` on an instance of one host.
    pub(crate) fn of(instance: &Instance, name: &str) -> Agent {
        Agent::new(name.to_owned(), instance.program(&["python3", "-c", SCRIPT, "/forebay"]))
    }

    /// An agent that works on a mount.
    pub(crate) fn on(mount: &Mount) -> Agent {
        Agent::new(mount.name(), mount.command(&["python3", "-c", SCRIPT, &mount.at]))
    }

    /// An agent whose program first prints `ready` and its process id, and then a line for each
    /// line that it reads.
    pub(crate) fn new(name: String, mut command: Command) -> Agent {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.expect("the agent runs");
        let to = child.stdin.take();
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            lines.map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let mut agent = Agent { name, child, pid: 0, to, receiver };
        let reply = agent.reply();
        let pid = reply.strip_prefix("ready ").and_then(|pid| pid.parse().ok());
        agent.pid = pid.unwrap_or_else(|| panic!("{}: {reply}", agent.name));
        agent
    }

    /// Sends a command.
    pub(crate) fn begin(&mut self, command: &str) {
        let to = self.to.as_mut().expect("it was not killed");
        writeln!(to, "{command}").expect("it listens");
    }

    /// The reply to a command; empty if the program ended.
    pub(crate) fn reply(&mut self) -> String {
        match self.receiver.recv_timeout(TIMEOUT) {
            Ok(line) => line.trim_end().to_owned(),
            Err(RecvTimeoutError::Disconnected) => String::new(),
            Err(RecvTimeoutError::Timeout) => panic!("{} hangs", self.name),
        }
    }

    /// Sends a command and returns its reply.
    pub(crate) fn ask(&mut self, command: &str) -> String {
        self.begin(command);
        self.reply()
    }

    /// As `ask`; the command must succeed.
    pub(crate) fn ok(&mut self, command: &str) -> String {
        let reply = self.ask(command);
        let failed = reply.is_empty() || reply.starts_with('!');
        assert!(!failed, "{}: {command}: {reply:?}", self.name);
        reply
    }

    /// Kills it.
    pub(crate) fn kill(&mut self) {
        signal(self.pid, "-KILL");
        let _ = self.child.wait();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // It ends at the end of its input.
        self.to = None;
        // Process id 0 would be this process's own group.
        if std::thread::panicking() && self.pid != 0 {
            signal(self.pid, "-KILL");
        }
        let _ = self.child.wait();
    }
}

/// Sends a signal.
pub(crate) fn signal(pid: u32, name: &str) {
    let _ = Command::new("kill").args([name, &pid.to_string()]).status();
    if name == "-KILL" {
        // Until then it counts as alive for a start.
        super::wait_for("the end of a killed process", || {
            super::mounted::has_ended(pid.cast_signed())
        });
    }
}

/// An instance mounted on a host, in a mount namespace of that host's own.
pub(crate) struct Mount {
    host: String,
    pub(crate) at: String,
    /// Process id of its server.
    pub(crate) pid: u32,
}

impl Mount {
    /// `None` if mounts are impossible here.
    pub(crate) fn new(world: &World, host: &str) -> Option<Mount> {
        Mount::by(world, host, "auto")
    }

    /// With this request transport; `rings` where the kernel can offer FUSE over io_uring.
    pub(crate) fn by(world: &World, host: &str, transport: &str) -> Option<Mount> {
        if !Path::new("/dev/fuse").exists() {
            skip("/dev/fuse is missing: mounts of hosts");
            return None;
        }
        let offered = (transport == "rings").then(UringEnabled::new);
        let at = world.path(&format!("mount-{host}"));
        let mount = Mount::with(world, host, &["--requests", transport], &at);
        drop(offered);
        Some(mount)
    }

    /// With these options, on a directory that is made.
    pub(crate) fn with(world: &World, host: &str, options: &[&str], at: &Path) -> Mount {
        std::fs::create_dir_all(at).expect("a directory");
        let at = at.to_string_lossy().into_owned();
        let words = [&["mount", "--json", "--for-all"], options, &[&at]].concat();
        let reply = world.ok(host, &words);
        let reply: serde_json::Value = serde_json::from_str(&reply).expect("JSON");
        let pid = reply["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("a pid");
        Mount { host: host.to_owned(), at, pid }
    }

    /// Name for messages.
    pub(crate) fn name(&self) -> String {
        format!("mount on {}", self.host)
    }

    /// A program that sees the mount.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-m", "-t", &self.pid.to_string()]).args(words);
        command
    }

    /// Kills its server.
    pub(crate) fn kill(&self) {
        signal(self.pid, "-KILL");
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // It is unmounted from inside: no other process sees that mount namespace.
        let entered = ["-m", "-t", &self.pid.to_string(), "umount", "--lazy", &self.at];
        let _ = Command::new("nsenter").args(entered).stderr(Stdio::null()).status();
        let until = Instant::now() + Duration::from_secs(10);
        while Path::new(&format!("/proc/{}/fd", self.pid)).exists() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// The checksum that programs of the agents print (IEEE, as zlib has it).
pub(crate) fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |sum, &byte| {
        (0..8).fold(sum ^ u32::from(byte), |sum, _| {
            if sum & 1 != 0 { sum >> 1 ^ 0xedb8_8320 } else { sum >> 1 }
        })
    })
}
