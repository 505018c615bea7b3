//! The processes that `forebay` leaves behind have nothing of their starter's: no descriptor, no
//! working directory, no umask, no signal that is ignored or blocked. Where one had, a lock would
//! be held and a pipe would not end before the instance does.

use crate::support::backing::Backing;
use crate::support::mounted::has_fuse;
use crate::support::{Instance, in_time, text};
use std::collections::BTreeMap;
use std::process::Command;

/// Runs its arguments with all that a process can inherit set to other values than usual, and then
/// tells about the lock, the pipe, and each process whose command line names a directory.
const STARTER: &str = r#"
import fcntl, os, signal, sys, time
place, words = sys.argv[1], sys.argv[2:]
lock = os.open(place + "/lock", os.O_CREAT | os.O_RDWR)
fcntl.flock(lock, fcntl.LOCK_EX)
reader, writer = os.pipe()
pid = os.fork()
if pid == 0:
    for number in (3, 17, 300):
        os.dup2(writer, number, inheritable=True)
    os.dup2(lock, 40, inheritable=True)
    os.mkdir(place + "/here"); os.chdir(place + "/here")
    os.umask(0o123)
    for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}:
        if number < 32: signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD, 40])
    os.execv(words[0], words)
os.close(writer); os.close(lock)
print("start", os.waitpid(pid, 0)[1])
print("pipe", os.read(reader, 1))
again = os.open(place + "/lock", os.O_RDWR)
fcntl.flock(again, fcntl.LOCK_EX)
print("lock free")
def of_process(number): return [os.readlink(f"/proc/{number}/fd/{fd}") for fd in ("0", "1", "2")]
for number in filter(str.isdigit, os.listdir("/proc")):
    try:
        line = open(f"/proc/{number}/cmdline", errors="replace").read().split("\0")
        if not any(place in word for word in line[1:]) or int(number) == os.getpid(): continue
        rows = open(f"/proc/{number}/status").read().splitlines()
        status = dict(row.split(":\t", 1) for row in rows if ":\t" in row)
        links = of_process(number)
        # It said that it is ready, and is about to close the pipe to its starter.
        since = time.monotonic()
        while links[0].startswith("pipe:") and time.monotonic() < since + 60: links = of_process(number)
    except (FileNotFoundError, ProcessLookupError): continue
    cwd, links = os.readlink(f"/proc/{number}/cwd"), [link.replace(place, "") for link in links]
    print("process", os.path.basename(line[0]), cwd, status["Umask"].strip(),
          status["SigIgn"], status["SigBlk"], *links)
"#;

/// Ignored by every program of Rust: SIGPIPE. By a daemon, so that a write fails: SIGXFSZ. In a child
/// that the C library spawned, such as the guard of a mount: the library's own two.
const IGNORED: u64 = 1 << 12 | 1 << 24 | 1 << 31 | 1 << 32;

#[test]
fn processes_left_behind_keep_nothing_of_their_starter() {
    let backing = Backing::new();
    let recorded = ("FOREBAY_MONITOR", "on".to_owned());
    let instance = Instance::unstarted("starter", &[], &[recorded]);
    let place = instance.dir.path().canonicalize().expect("a path");
    let at = place.join("mnt");
    std::fs::create_dir(&at).expect("a directory");
    let forebay = instance.command("start");
    let mut command = Command::new("python3");
    command.args(["-c", STARTER]).arg(&place).arg(forebay.get_program()).args(forebay.get_args());
    command.args(["--local", "2", "--backing", &backing.text()]);
    if has_fuse() {
        command.arg("--mount").arg(&at);
    }
    for (name, value) in forebay.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let output = in_time("a start that leaves nothing open", || command.output().expect("python3"));
    let lines = text(&output.stdout);
    let errors = text(&output.stderr);
    assert!(lines.contains("start 0\npipe b''\nlock free\n"), "{lines}{errors}");
    let mut counts = BTreeMap::new();
    for line in lines.lines().filter(|line| line.starts_with("process ")) {
        let words: Vec<&str> = line.split(' ').skip(1).collect();
        let [program, directory, umask, ignored, blocked, input, output, log] = words[..] else {
            panic!("{line}");
        };
        *counts.entry(program.to_owned()).or_insert(0) += 1;
        // The writeback daemon makes files with the modes that they have in the instance.
        let expected = if program == "forebay-writeback" { "0000" } else { "0077" };
        assert_eq!((directory, umask), ("/", expected), "{line}");
        let ignored = u64::from_str_radix(ignored, 16).expect("a number");
        assert_eq!((ignored & !IGNORED, blocked), (0, "0000000000000000"), "{line}");
        assert!(input == "/dev/null" && [input, log].contains(&output), "{line}");
        assert!(log.ends_with(".log") && log.contains(&instance.name), "{line}");
    }
    let counts: Vec<_> = counts.iter().map(|(name, count)| (name.as_str(), *count)).collect();
    // `forebay` is the recorder.
    let mut expected = vec![("forebay", 1), ("forebay-writeback", 1), ("forebayd", 2)];
    if has_fuse() {
        let mounts = counts.iter().find(|(name, _)| *name == "forebay-mount");
        // That of `--mount`; where commands share one on the host, another.
        expected.insert(1, ("forebay-mount", mounts.map_or(1, |(_, count)| *count)));
    }
    assert_eq!(counts, expected, "{lines}");
}

/// `forebay run ... 2>&1 | head -n 1`: the exit code is that of the command, and the instance that it
/// made is gone, or kept because not everything was staged out.
#[test]
fn a_run_whose_output_nobody_takes_ends_like_any_other() {
    let instance = Instance::unstarted("unread", &[], &[]);
    let run = |options: &[&str], own: &str| {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut run = instance.command("run");
        run.args(["--memory", "16MiB", "--ssd", "0"]).args(options).args(["--", "sh", "-c", own]);
        let status = run.stdout(writer.try_clone().expect("a descriptor")).stderr(writer).status();
        status.expect("forebay runs").code()
    };
    let code = |word: &str| instance.command(word).output().expect("forebay runs").status.code();
    assert_eq!((run(&[], "exit 7"), code("status")), (Some(7), Some(3)));
    let paths = format!("/forebay/none:{}/out", instance.dir.path().display());
    let stage_out = ["--stage-out", &*paths];
    assert_eq!((run(&stage_out, "true"), code("status")), (Some(1), Some(0)));
}
