//! An instance that disappears under a program: operations in shared memory continue, the first
//! other call ends with EIO within the instance's timeout, later ones at once, and the program
//! continues with everything acknowledged when its daemon is back. Children that do not use the instance
//! are not held up.

use std::path::Path;
use std::process::{Command, Output};

/// Kills the daemon, then tries calls; prints a line for each: name, errno, seconds.
const PROGRAM: &str = r#"
import os, signal, sys, time
forebay, name, pid = sys.argv[1:]
held = os.open('/forebay/held', os.O_CREAT | os.O_RDWR)
os.write(held, b'a' * 3000000)
os.kill(int(pid), signal.SIGKILL)
calls = [
    ('stat', lambda: os.stat('/forebay/other')),
    ('open', lambda: os.open('/forebay/new', os.O_CREAT | os.O_RDWR)),
    ('write', lambda: os.pwrite(held, b'b', 9000000)),
    ('truncate', lambda: os.ftruncate(held, 10)),
    ('list', lambda: os.listdir('/forebay')),
]
for call, run in calls:
    before = time.time()
    try: run(); number = 0
    except OSError as error: number = error.errno
    print(call, number, int(time.time() - before))
os.spawnv(os.P_WAIT, forebay, [forebay, 'start', '--name', name])
print('back', os.pread(held, 3, 2999997), sorted(os.listdir('/forebay')))
"#;

fn forebay(arguments: &[&str]) -> (std::path::PathBuf, Output) {
    let own = std::env::current_exe().expect("the path of this test");
    let profile = own.parent().and_then(Path::parent).expect("target/<profile>/deps");
    let program = profile.join("forebay");
    let output = Command::new(&program)
        .args(arguments)
        .env("FOREBAY_TIMEOUT", "2s")
        .output()
        .expect("forebay runs: build the workspace before");
    (program, output)
}

/// Starts an instance of one daemon; returns the program and the daemon's process.
fn start(name: &str) -> (String, String) {
    let start = ["start", "--name", name, "--local", "1", "--memory", "64MiB"];
    let (program, started) = forebay(&start);
    assert!(started.status.success(), "{}", String::from_utf8_lossy(&started.stderr));
    let (_, status) = forebay(&["status", "--name", name, "--json"]);
    let status = String::from_utf8_lossy(&status.stdout).into_owned();
    let pid = status.split("\"pid\":").nth(1).expect("a daemon");
    let pid: String = pid.trim_start().chars().take_while(char::is_ascii_digit).collect();
    (program.display().to_string(), pid)
}

/// "Every wait has a bound" (docs/semantics/durability.md).
#[test]
fn calls_end_in_bounded_time_and_continue_when_the_daemon_restarts() {
    let name = format!("gone-{}", std::process::id());
    let (program, pid) = start(&name);
    let words = ["run", "--name", &name, "--", "python3", "-c", PROGRAM, &program, &name, &pid];
    let (_, ran) = forebay(&words);
    let (_, stopped) = forebay(&["stop", "--name", &name]);
    let text = String::from_utf8_lossy(&ran.stdout);
    let reported = format!("{text}{}", String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success() && stopped.status.success(), "{reported}");
    let mut rows = text.lines().filter(|line| !line.contains("instance "));
    let calls = [("stat", "2"), ("open", "0"), ("write", "5"), ("truncate", "5"), ("list", "5")];
    for (index, call) in calls.into_iter().enumerate() {
        let row: Vec<&str> = rows.next().expect("an entry").split(' ').collect();
        let seconds: u64 = row[2].parse().expect("seconds");
        assert_eq!((row[0], row[1]), call, "{reported}");
        // The first call that needs the daemon waits for it; later ones only check.
        assert!(seconds <= if index == 2 { 20 } else { 10 }, "{reported}");
    }
    assert_eq!(rows.next(), Some("back b'aaa' ['held', 'new']"), "{reported}");
}

/// Kills the daemon before the first call, and starts children by vfork. A wait for the daemon, which
/// lasts ten seconds, would end it by SIGALRM.
const PARENT: &str = r#"
import os, signal, subprocess, sys
os.kill(int(sys.argv[1]), signal.SIGKILL)
signal.alarm(8)
for _ in range(3):
    subprocess.run(['/bin/true'], check=True, close_fds=False)
    pid = os.posix_spawn('/bin/true', ['true'], {})
    assert os.waitpid(pid, 0)[1] == 0
print('done')
"#;

#[test]
fn a_child_by_vfork_does_not_wait_for_a_dead_daemon() {
    let name = format!("gone-child-{}", std::process::id());
    let (_, pid) = start(&name);
    let words =
        ["run", "--name", &name, "--access", "preload", "--", "python3", "-c", PARENT, &pid];
    let (_, ran) = forebay(&words);
    let (_, stopped) = forebay(&["stop", "--name", &name]);
    let reported = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "done\n", "{reported}");
    assert!(ran.status.success() && stopped.status.success(), "{reported}");
}
