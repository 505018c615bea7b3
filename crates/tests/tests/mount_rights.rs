//! What others may on a mount for all, where the kernel alone does not decide it.
//!
//! Needs root, to become somebody else, `/dev/fuse` and setpriv; where one is missing each test says so.

mod support;

use rustix::process::{Pid, Signal, geteuid, kill_process};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use support::mounted::{Mounted, has_fuse};
use support::{Instance, text};

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

/// From within the directory: a kernel keeps no access control lists of a file system's root.
const MAKER: &str = "
import os, sys
directory, name = os.path.split(sys.argv[1])
os.chdir(directory)
for line in sys.stdin:
    try:
        if line == 'look\\n': print(os.path.exists(name))
        else: print(os.read(os.open(name, os.O_CREAT | os.O_RDWR, 0o600), 9))
    except OSError as error: print(error.strerror)";

/// Stops the program that serves the mount at a moment when the kernel remembers what others look at.
fn stop_when_remembered(mount: &Mounted<'_>, others: &mut [Other]) {
    let pid = Pid::from_raw(mount.pid).expect("a pid");
    let since = Instant::now();
    loop {
        assert!(since.elapsed() < support::PATIENCE, "it is not remembered");
        let mut is_remembered = true;
        kill_process(pid, Signal::STOP).expect("sent");
        for other in &mut *others {
            other.goes("look");
            let said = other.says.recv_timeout(Duration::from_millis(200));
            if said.is_err() {
                kill_process(pid, Signal::CONT).expect("sent");
            }
            is_remembered &= said.is_ok();
            assert_eq!(said.unwrap_or_else(|_| other.says()), "False");
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
    stop_when_remembered(&mount, &mut others);
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

#[test]
fn what_is_kept_in_attributes_of_the_users_is_set_by_owners_alone() {
    const SCRIPT: &str = "
import os, sys
def kept(name, key, value):
    try: return os.setxattr(os.path.join(sys.argv[1], name), 'user.forebay.' + key, value)
    except OSError as error: return error.errno
print(kept('file', 'project', b'7'), kept('all', 'project', b'7'), kept('all', 'consistency', b'posix'))
print(kept('own', 'project', b'7'), kept('own', 'consistency', b'posix'))";
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
    assert_eq!((other.says(), other.says()), ("1 1 1".to_owned(), "None None".to_owned()));
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
