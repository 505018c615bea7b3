//! Bad input: impossible options and paths, bytes that are no messages, offsets and names beyond
//! every limit. Each gives one clear line or the errno of a local file system, in bounded time, and
//! leaves nothing behind.

use crate::support::in_time;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

struct World {
    root: tempfile::TempDir,
    name: String,
}

impl World {
    fn new(name: &str) -> World {
        let root = tempfile::tempdir().expect("a directory");
        for dir in ["run", "data", "home"] {
            fs::create_dir(root.path().join(dir)).expect("a directory");
        }
        World { root, name: format!("bad-{}-{name}", std::process::id()) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn forebay(&self, words: &[&str]) -> Output {
        let own = std::env::current_exe().expect("the path of this test");
        let profile = own.parent().and_then(Path::parent).expect("target/<profile>/deps");
        Command::new(profile.join("forebay"))
            .args(words)
            .env("XDG_RUNTIME_DIR", self.path("run"))
            .env("XDG_CONFIG_HOME", self.path("home"))
            .env("FOREBAY_NAME", &self.name)
            .env("FOREBAY_DIR", self.path("data"))
            .env("FOREBAY_MEMORY", "32MiB")
            .env("FOREBAY_SSD", "0")
            .env("FOREBAY_TIMEOUT", "3s")
            .output()
            .expect("forebay runs")
    }

    fn assert_nothing_left(&self) {
        for dir in ["run", "data"] {
            let left = fs::read_dir(self.path(dir)).expect("a listing").flatten();
            let left: Vec<_> = left.map(|entry| entry.path()).collect();
            assert!(left.is_empty(), "{left:?}");
        }
        let shared = fs::read_dir("/dev/shm").expect("a listing").flatten();
        let left = shared.filter(|entry| entry.file_name().to_string_lossy().contains(&self.name));
        assert_eq!(left.count(), 0);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.forebay(&["stop"]);
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn an_impossible_start_is_one_clear_failure() {
    let world = World::new("start");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut port = taken.local_addr().expect("an address").port();
    if port > 64_000 {
        port = 64_000; // Out of what may be asked for: refused as well, by its range.
    }
    let port = port.to_string();
    for (words, code, expected) in [
        (&["start", "--bogus"][..], 2, "unexpected argument '--bogus'"),
        (&["start", "--memory", "4Q"], 2, "memory cannot be \"4Q\": option --memory"),
        (&["start", "--dir", "/no/such/place"], 1, "no such directory: /no/such/place"),
        (&["start", "--dir", "/proc"], 1, "/proc"),
        (
            &["start", "--backing", "/no/such/place"],
            1,
            "no such directory: /no/such/place: create it",
        ),
        (&["start", "--backing", "/etc/passwd"], 1, "not a directory: /etc/passwd"),
        (&["start", "--memory", "900T"], 1, "too much memory: 900 TiB for 1 daemon"),
        (&["start", "--ssd", "900T"], 1, "too little space for the SSD tier: 900 TiB for 1 daemon"),
        (&["run", "--", "true"], 3, "no such instance: "),
        (
            &["start", "--dir", "/tmp:/var/tmp"],
            2,
            "2 directories in --dir for 1 daemon on a host: start",
        ),
        (&["start", "--local", "2", "--dir", "/tmp:/tmp"], 1, "duplicate directory: /tmp"),
        (&["start", "--local", "2", "--dir", "/tmp:/no/such"], 1, "no such directory: /no/such"),
        (&["start", "--dir", "/tmp:"], 2, "give a path, or several separated by ':'"),
        (&["start", "--hosts", "/no/such/file"], 2, "cannot read the hosts file: /no/such/file"),
        (&["start", "--port", &port], 1, "Address already in use"),
        (&["status"], 3, "no such instance"),
    ] {
        if expected.starts_with("Address") && port == "64000" {
            continue;
        }
        let output = in_time(expected, || world.forebay(words));
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {errors}");
        assert!(errors.contains(expected), "{words:?}: {errors}");
        world.assert_nothing_left();
    }
}

/// Pseudo-random bytes that follow from the seed.
fn noise(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..4096).map(|_| next()).collect()
}

#[test]
fn malformed_messages_end_only_their_own_connection() {
    let world = World::new("noise");
    assert!(world.forebay(&["start", "--local", "2"]).status.success());
    let status = text(&world.forebay(&["status"]).stdout);
    let addresses: Vec<&str> =
        status.split_whitespace().filter(|word| word.starts_with("127.0.0.1:")).collect();
    assert_eq!(addresses.len(), 2, "{status}");
    let limit = Some(Duration::from_secs(20));
    for seed in 1..20 {
        let user = fs::read_dir(world.path("run")).expect("a listing").flatten().next();
        let dir = user.expect("the user's directory").path().join(&world.name);
        for (daemon, address) in addresses.iter().enumerate() {
            let socket = dir.join(format!("d{daemon}.sock"));
            let mut stream = UnixStream::connect(socket).expect("the gateway answers");
            stream.set_read_timeout(limit).expect("a limit");
            let _ = stream.write_all(&noise(seed));
            assert!(ends(stream.read_to_end(&mut Vec::new())), "unix, seed {seed}");
            let mut stream = TcpStream::connect(address).expect("the daemon answers");
            stream.set_read_timeout(limit).expect("a limit");
            let _ = stream.write_all(&noise(seed));
            assert!(ends(stream.read_to_end(&mut Vec::new())), "tcp, seed {seed}");
        }
    }
    let script = "echo x >/forebay/f && cat /forebay/f";
    let output = world.forebay(&["run", "--", "sh", "-c", script]);
    assert_eq!(text(&output.stdout), "x\n", "{}", text(&output.stderr));
    assert!(world.forebay(&["stop"]).status.success());
    world.assert_nothing_left();
}

/// False if the read timed out, which means that the other side kept the connection open.
fn ends(read: std::io::Result<usize>) -> bool {
    use std::io::ErrorKind::{TimedOut, WouldBlock};
    read.map_or_else(|error| !matches!(error.kind(), WouldBlock | TimedOut), |_| true)
}

/// Prints an errno for each call; run in a directory of tmpfs and in one of the instance.
const LIMITS: &str = r#"
import os, sys
top = sys.argv[1]
def call(name, work):
    try: print(name, work())
    except OSError as error: print(name, error.errno)
    except ValueError as error: print(name, error)
file = os.open(top + '/f', os.O_RDWR | os.O_CREAT)
call('long name', lambda: os.mkdir(top + '/' + 'n' * 256))
call('name at the limit', lambda: os.mkdir(top + '/' + 'n' * 255))
call('long path', lambda: os.stat(top + '/' + 'd/' * 2100))
call('nul', lambda: os.stat(top + '/a\0b'))
call('write', lambda: os.pwrite(file, b'xy', -1))
call('read', lambda: os.pread(file, 2, -1))
for offset in (-1, 2**63 - 1, 2**63 - 4096):
    call('truncate', lambda: os.ftruncate(file, offset))
    call('seek', lambda: os.lseek(file, offset, 0))
call('size', lambda: os.fstat(file).st_size)
"#;

#[test]
fn limits_are_those_of_tmpfs() {
    let world = World::new("limits");
    let local = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let local = local.path().to_string_lossy().into_owned();
    let python = Command::new("python3").args(["-c", LIMITS, &local]).output().expect("python3");
    assert!(python.status.success(), "{}", text(&python.stderr));
    let ours = world.forebay(&["run", "-l1", "--", "python3", "-c", LIMITS, "/forebay"]);
    assert!(ours.status.success(), "{}", text(&ours.stderr));
    assert_eq!(text(&ours.stdout), text(&python.stdout));
    world.assert_nothing_left();
}
