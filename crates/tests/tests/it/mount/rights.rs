//! Rights of other users on a mount for all users, where the kernel alone does not decide.
//!
//! Needs root, to become another user, `/dev/fuse` and setpriv; without one of them the tests are
//! skipped.

use crate::support::mounted::{Mounted, UringEnabled, has_epochs, has_fuse, is_stopped};
use crate::support::{Instance, skip, text, wait_for};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const NOBODY: [&str; 6] =
    ["--reuid", "65534", "--regid", "65534", "--clear-groups", "/usr/bin/python3"];

fn can_change_user() -> bool {
    let can = geteuid().is_root() && Path::new("/usr/bin/setpriv").exists();
    if !can {
        skip("root and setpriv are needed");
    }
    can && has_fuse()
}

fn allow(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("chmod");
}

/// An instance whose directory other users can pass through.
fn instance(name: &str) -> Instance {
    let instance = Instance::start(name, &["--memory", "64MiB", "--ssd", "0"]);
    allow(instance.dir.path(), 0o755);
    instance
}

/// A program of another user that performs one step at a time and reports its result.
struct Other {
    child: Child,
    go: ChildStdin,
    receive: Receiver<String>,
}

impl Other {
    fn new(script: &str, path: &Path) -> Other {
        let mut command = Command::new("setpriv");
        command.args(NOBODY).args(["-uc", script]).arg(path);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("setpriv runs");
        let go = child.stdin.take().expect("piped");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let (sender, receive) = channel();
        std::thread::spawn(move || {
            lines.map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Other { child, go, receive }
    }

    /// Sends it a line.
    fn send(&mut self, line: &str) {
        writeln!(self.go, "{line}").expect("it reads");
    }

    fn receive(&self) -> String {
        self.receive.recv_timeout(crate::support::TIMEOUT).expect("a line")
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

/// Stops the server of the mount at a moment when the kernel caches what the other users look up,
/// which report `seen` then.
fn stop_when_cached(mount: &Mounted<'_>, others: &mut [Other], seen: &str) {
    let pid = Pid::from_raw(mount.pid).expect("a pid");
    let since = Instant::now();
    loop {
        assert!(since.elapsed() < crate::support::TIMEOUT, "it is not cached");
        let mut is_remembered = true;
        kill_process(pid, Signal::STOP).expect("sent");
        wait_for("the server to be stopped", || is_stopped(mount.pid));
        for other in &mut *others {
            other.send("look");
            let sender = other.receive.recv_timeout(Duration::from_millis(200));
            if sender.is_err() {
                kill_process(pid, Signal::CONT).expect("sent");
            }
            is_remembered &= sender.is_ok();
            assert_eq!(sender.unwrap_or_else(|_| other.receive()), seen);
        }
        if is_remembered {
            return;
        }
        kill_process(pid, Signal::CONT).expect("sent");
    }
}

#[test]
fn creating_a_file_that_another_user_just_created_checks_the_rights_of_an_open() {
    if !can_change_user() {
        return;
    }
    let instance = instance("met");
    let mount = Mounted::by(&instance, "m", "classic");
    std::fs::create_dir(mount.path("d")).expect("made");
    allow(&mount.path("d"), 0o777);
    let mut others = ["private", "open"].map(|name| Other::new(MAKER, &mount.path("d").join(name)));
    stop_when_cached(&mount, &mut others, "False");
    // The kernel does not check again whether the names exist.
    others.iter_mut().for_each(|other| other.send("make"));
    let script =
        "umask 0; echo secret > /forebay/d/open; umask 077; echo secret > /forebay/d/private";
    let made = instance.program(&["sh", "-c", script]).output();
    kill_process(Pid::from_raw(mount.pid).expect("a pid"), Signal::CONT).expect("sent");
    let made = made.expect("sh runs");
    assert!(made.status.success(), "{}", text(&made.stderr));
    assert_eq!(others.map(|other| other.receive()), ["Permission denied", "b'secret\\n'"]);
}

/// Looks up a path a thousand times.
const LOOKER: &str = "
import os, sys
for line in sys.stdin:
    try: print(sum(os.stat(sys.argv[1]).st_size for _ in range(1000)))
    except OSError as error: print(error.strerror)";

/// Sets the rights of the user `nobody` on a directory by an access control list.
const GATE: &str = "
import os, struct, sys
path, perm = sys.argv[1], int(sys.argv[2])
rows = (1, 7, -1), (2, perm, 65534), (4, 5, -1), (16, 5, -1), (32, 5, -1)
rows = b''.join(struct.pack('<HHi', *row) for row in rows)
os.setxattr(path, 'system.posix_acl_access', struct.pack('<I', 2) + rows)";

#[test]
fn all_users_walk_from_the_root_without_requests_and_acls_apply() {
    if !can_change_user() {
        return;
    }
    let transports: &[&str] =
        if UringEnabled::is_available() { &["classic", "rings"] } else { &["classic"] };
    for transport in transports {
        let instance = instance(&format!("looks-{transport}"));
        let mount = Mounted::by(&instance, "m", transport);
        let second = Mounted::by(&instance, "n", transport);
        std::fs::create_dir(mount.path("d")).expect("made");
        std::fs::write(mount.path("d/f"), b"abc").expect("written");
        let mut others = [Other::new(LOOKER, &mount.path("d/f"))];
        // A stopped server answers no request.
        stop_when_cached(&mount, &mut others, "3000");
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
            others[0].send("look");
            others[0].receive()
        };
        for gate in [&by_mount as &dyn Fn(&str) -> Output, &by_preload] {
            assert_eq!(looks(gate("0"), &mut others), "Permission denied", "{transport}");
            assert_eq!(looks(gate("5"), &mut others), "3000", "{transport}");
            // With an access control list, too.
            stop_when_cached(&mount, &mut others, "3000");
            kill_process(Pid::from_raw(mount.pid).expect("a pid"), Signal::CONT).expect("sent");
        }
    }
}

/// Makes files and does what their owner may do.
const OWNER: &str = "
import os, struct, sys
rows = (1, 6, -1), (2, 6, 65534), (4, 4, -1), (16, 6, -1), (32, 4, -1)
rows = b''.join(struct.pack('<HHi', *row) for row in rows)
acts = {
    'mode': lambda path: os.chmod(path, 0o666),
    'times': lambda path: os.utime(path, (1, 1)),
    'group': lambda path: os.chown(path, -1, 65534),
    'list': lambda path: os.setxattr(path, 'system.posix_acl_access', struct.pack('<I', 2) + rows),
}
for line in sys.stdin:
    verb, name = line.split()
    path = os.path.join(sys.argv[1], name)
    try:
        if verb == 'make': os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
        else: acts[name](path)
        print('done')
    except OSError as error: print(error.strerror)";

/// The kernel of a mount compares the owner that it remembers of a file.
#[test]
fn a_former_owner_of_a_file_changes_nothing_through_a_mount() {
    if !can_change_user() {
        return;
    }
    let instance = instance("former");
    let mount = Mounted::by(&instance, "m", "classic");
    std::fs::create_dir(mount.path("d")).expect("made");
    allow(&mount.path("d"), 0o777);
    let mut other = Other::new(OWNER, &mount.path("d"));
    let mut says = |line: &str| {
        other.send(line);
        other.receive()
    };
    for act in ["mode", "times", "group", "list"] {
        assert_eq!(says(&format!("make {act}")), "done");
        assert_eq!(says(&format!("do {act}")), "done", "{act} by the owner");
        let path = format!("/forebay/d/{act}");
        let given = instance.program(&["chown", "0:0", &path]).output().expect("chown runs");
        assert!(given.status.success(), "{}", text(&given.stderr));
        assert_eq!(says(&format!("do {act}")), "Operation not permitted", "{act}");
        let returned = instance.program(&["chown", "65534", &path]).output().expect("chown runs");
        assert!(returned.status.success(), "{}", text(&returned.stderr));
        if has_epochs() {
            assert_eq!(says(&format!("do {act}")), "done", "{act} by the owner again");
        }
    }
}

#[test]
fn settings_in_user_attributes_are_changed_by_owners_only() {
    const SCRIPT: &str = "
import os, sys
def set_setting(name, key, value):
    try: return os.setxattr(os.path.join(sys.argv[1], name), 'user.forebay.' + key, value)
    except OSError as error: return error.errno
values = dict(project=b'7', consistency=b'posix', stripe_count=b'1', stripe_size=b'65536')
print(set_setting('file', 'project', b'7'),
    *[set_setting('all', key, value) for key, value in values.items()])
print(*[set_setting('own', key, value) for key, value in values.items()])";
    if !can_change_user() {
        return;
    }
    let instance = instance("settings");
    let mount = Mounted::by(&instance, "m", "classic");
    std::fs::write(mount.path("file"), b"x").expect("written");
    std::fs::create_dir(mount.path("all")).expect("made");
    std::fs::create_dir(mount.path("own")).expect("made");
    allow(&mount.path("file"), 0o666);
    allow(&mount.path("all"), 0o777);
    std::os::unix::fs::chown(mount.path("own"), Some(65_534), Some(65_534)).expect("chown");
    let other = Other::new(SCRIPT, &mount.at);
    assert_eq!((other.receive(), other.receive()), ("1 1 1 1 1".to_owned(), ["None"; 4].join(" ")));
}

#[test]
fn timestamps_beyond_the_range_are_clamped() {
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
