//! What others may on a mount for all, where the kernel alone does not decide it.
//!
//! Needs root, to become somebody else, `/dev/fuse` and setpriv; where one is missing each test says so.

mod support;

use rustix::process::{Pid, Signal, geteuid, kill_process};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use support::mounted::{Mounted, Offered, has_fuse, stands_still};
use support::{Instance, text, wait_for};

const NOBODY: [&str; 6] =
    ["--reuid", "65534", "--regid", "65534", "--clear-groups", "/usr/bin/python3"];

fn can_be_others() -> bool {
    let can = geteuid().is_root() && Path::new("/usr/bin/setpriv").exists();
    if !can {
        eprintln!("there is no root, or no setpriv: nothing was tested");
    }
    can && has_fuse()
}

fn allow(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("chmod");
}

/// An instance whose directory others can pass through.
fn instance(name: &str) -> Instance {
    let instance = Instance::start(name, &["--memory", "64MiB", "--ssd", "0"]);
    allow(instance.place.path(), 0o755);
    instance
}

/// A program of somebody else, that does a step at a time and says how it went.
struct Other {
    child: Child,
    go: ChildStdin,
    says: Receiver<String>,
}

impl Other {
    fn new(script: &str, path: &Path) -> Other {
        let mut command = Command::new("setpriv");
        command.args(NOBODY).args(["-uc", script]).arg(path);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("setpriv runs");
        let go = child.stdin.take().expect("piped");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let (said, says) = channel();
        std::thread::spawn(move || {
            lines.map_while(Result::ok).try_for_each(|line| said.send(line))
        });
        Other { child, go, says }
    }

    /// A line of its standard input.
    fn goes(&mut self, line: &str) {
        writeln!(self.go, "{line}").expect("it reads");
    }

    fn says(&self) -> String {
        self.says.recv_timeout(support::PATIENCE).expect("a line")
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const MAKER: &str = "
import os, sys
for line in sys.stdin:
    try:
        if line == 'look\\n': print(os.path.exists(sys.argv[1]))
        else: print(os.read(os.open(sys.argv[1], os.O_CREAT | os.O_RDWR, 0o600), 9))
    except OSError as error: print(error.strerror)";

/// Stops the program that serves the mount at a moment when the kernel remembers what others look at, who
/// say `seen` then.
fn stop_when_remembered(mount: &Mounted<'_>, others: &mut [Other], seen: &str) {
    let pid = Pid::from_raw(mount.pid).expect("a pid");
    let since = Instant::now();
    loop {
        assert!(since.elapsed() < support::PATIENCE, "it is not remembered");
        let mut is_remembered = true;
        kill_process(pid, Signal::STOP).expect("sent");
        wait_for("who serves to stand still", || stands_still(mount.pid));
        for other in &mut *others {
            other.goes("look");
            let said = other.says.recv_timeout(Duration::from_millis(200));
            if said.is_err() {
                kill_process(pid, Signal::CONT).expect("sent");
            }
            is_remembered &= said.is_ok();
            assert_eq!(said.unwrap_or_else(|_| other.says()), seen);
        }
        if is_remembered {
            return;
        }
        kill_process(pid, Signal::CONT).expect("sent");
    }
}

#[test]
fn who_makes_a_file_that_another_made_meanwhile_has_the_rights_of_who_opens_it() {
    if !can_be_others() {
        return;
    }
    let instance = instance("met");
    let mount = Mounted::by(&instance, "m", "classic");
    std::fs::create_dir(mount.path("d")).expect("made");
    allow(&mount.path("d"), 0o777);
    let mut others = ["private", "open"].map(|name| Other::new(MAKER, &mount.path("d").join(name)));
    stop_when_remembered(&mount, &mut others, "False");
    // The kernel does not ask whether they are there now.
    others.iter_mut().for_each(|other| other.goes("make"));
    let script =
        "umask 0; echo secret > /forebay/d/open; umask 077; echo secret > /forebay/d/private";
    let made = instance.program(&["sh", "-c", script]).output();
    kill_process(Pid::from_raw(mount.pid).expect("a pid"), Signal::CONT).expect("sent");
    let made = made.expect("sh runs");
    assert!(made.status.success(), "{}", text(&made.stderr));
    assert_eq!(others.map(|other| other.says()), ["Permission denied", "b'secret\\n'"]);
}

/// Looks at a path a thousand times.
const LOOKER: &str = "
import os, sys
for line in sys.stdin:
    try: print(sum(os.stat(sys.argv[1]).st_size for _ in range(1000)))
    except OSError as error: print(error.strerror)";

/// Closes a directory to nobody, by an access control list, or opens it again.
const GATE: &str = "
import os, struct, sys
path, perm = sys.argv[1], int(sys.argv[2])
rows = (1, 7, -1), (2, perm, 65534), (4, 5, -1), (16, 5, -1), (32, 5, -1)
rows = b''.join(struct.pack('<HHi', *row) for row in rows)
os.setxattr(path, 'system.posix_acl_access', struct.pack('<I', 2) + rows)";

#[test]
fn everybody_looks_from_the_root_on_without_a_request_and_its_list_counts() {
    if !can_be_others() {
        return;
    }
    let transports: &[&str] = if Offered::can_be() { &["classic", "rings"] } else { &["classic"] };
    for transport in transports {
        let instance = instance(&format!("looks-{transport}"));
        let mount = Mounted::by(&instance, "m", transport);
        let second = Mounted::by(&instance, "n", transport);
        std::fs::create_dir(mount.path("d")).expect("made");
        std::fs::write(mount.path("d/f"), b"abc").expect("written");
        let mut others = [Other::new(LOOKER, &mount.path("d/f"))];
        // Who stands still serves nothing.
        stop_when_remembered(&mount, &mut others, "3000");
        kill_process(Pid::from_raw(mount.pid).expect("a pid"), Signal::CONT).expect("sent");
        let by_mount = |perm: &str| {
            let words = ["-c", GATE, &second.at.to_string_lossy(), perm];
            Command::new("python3").args(words).output().expect("python3 runs")
        };
        let by_preload = |perm: &str| {
            let output = instance.program(&["python3", "-c", GATE, "/forebay", perm]).output();
            output.expect("python3 runs")
        };
        let looks = |output: Output, others: &mut [Other; 1]| {
            assert!(output.status.success(), "{transport}: {}", text(&output.stderr));
            others[0].goes("look");
            others[0].says()
        };
        for gate in [&by_mount as &dyn Fn(&str) -> Output, &by_preload] {
            assert_eq!(looks(gate("0"), &mut others), "Permission denied", "{transport}");
            assert_eq!(looks(gate("5"), &mut others), "3000", "{transport}");
            // With a list, too.
            stop_when_remembered(&mount, &mut others, "3000");
            kill_process(Pid::from_raw(mount.pid).expect("a pid"), Signal::CONT).expect("sent");
        }
    }
}

#[test]
fn what_is_kept_in_attributes_of_the_users_is_set_by_owners_alone() {
    const SCRIPT: &str = "
import os, sys
def kept(name, key, value):
    try: return os.setxattr(os.path.join(sys.argv[1], name), 'user.forebay.' + key, value)
    except OSError as error: return error.errno
values = dict(project=b'7', consistency=b'posix', stripe_count=b'1', stripe_size=b'65536')
print(kept('file', 'project', b'7'), *[kept('all', key, value) for key, value in values.items()])
print(*[kept('own', key, value) for key, value in values.items()])";
    if !can_be_others() {
        return;
    }
    let instance = instance("kept");
    let mount = Mounted::by(&instance, "m", "classic");
    std::fs::write(mount.path("file"), b"x").expect("written");
    std::fs::create_dir(mount.path("all")).expect("made");
    std::fs::create_dir(mount.path("own")).expect("made");
    allow(&mount.path("file"), 0o666);
    allow(&mount.path("all"), 0o777);
    std::os::unix::fs::chown(mount.path("own"), Some(65_534), Some(65_534)).expect("chown");
    let other = Other::new(SCRIPT, &mount.at);
    assert_eq!((other.says(), other.says()), ("1 1 1 1 1".to_owned(), ["None"; 4].join(" ")));
}

#[test]
fn times_are_as_near_to_what_was_asked_as_they_can_be() {
    if !has_fuse() {
        return;
    }
    let script = "
import os, sys
open(sys.argv[1], 'w').close()
os.utime(sys.argv[1], ns=(0, 9223372037 * 10**9 - 1))
print(os.stat(sys.argv[1]).st_mtime > 9.2e9)";
    let instance = instance("times");
    let mount = Mounted::by(&instance, "m", "classic");
    let output = Command::new("python3").args(["-c", script]).arg(mount.path("f")).output();
    let output = output.expect("python3 runs");
    assert_eq!(text(&output.stdout), "True\n", "{}", text(&output.stderr));
}
