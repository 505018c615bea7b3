//! Instances for end-to-end tests: started, killed, restarted and stopped by the command that users
//! have; and the tests' own worker program, run on them. Each test's claims are in its file.

pub(crate) mod agent;
pub(crate) mod backing;
pub(crate) mod browser;
pub(crate) mod cases;
pub(crate) mod damage;
pub(crate) mod device;
pub(crate) mod group;
pub(crate) mod left;
pub(crate) mod middle;
pub(crate) mod mounted;
pub(crate) mod reported;
pub(crate) mod suites;
pub(crate) mod tier;
pub(crate) mod world;

use rustix::process::{Pid, Signal, kill_process};
pub(crate) use testkit::{Random, skip};

use serde_json::Value;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Nothing that a test waits for takes this long, unless it hangs.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(120);

/// Longer than any bounded operation takes on a busy machine.
const HANG: Duration = Duration::from_secs(120);

/// Runs work whose duration the product bounds, and aborts the whole test process if it hangs, as
/// nothing else is possible. No test asserts a shorter time: a busy machine may be slow at
/// anything.
pub(crate) fn in_time<T: Send>(what: &str, work: impl FnOnce() -> T + Send) -> T {
    let (sender, receiver) = channel();
    std::thread::scope(|scope| {
        scope.spawn(move || sender.send(work()));
        receiver.recv_timeout(HANG).unwrap_or_else(|_| {
            eprintln!("{what} hangs");
            std::process::abort();
        })
    })
}

/// `target/<profile>`, two directories above the test's own program.
pub(crate) fn profile() -> PathBuf {
    let own = std::env::current_exe().expect("the path of this test");
    own.ancestors().nth(2).expect("target/<profile>/deps").to_owned()
}

/// An instance of this test; stopped and removed when dropped.
pub(crate) struct Instance {
    pub(crate) name: String,
    /// Holds the run directory and the data.
    pub(crate) dir: tempfile::TempDir,
    options: Vec<String>,
    /// Environment variables of its commands.
    variables: Vec<(&'static str, String)>,
    /// User and group that own it, if not those of the test.
    pub(crate) owner: Option<(u32, u32)>,
}

impl Instance {
    pub(crate) fn start(name: &str, options: &[&str]) -> Instance {
        Instance::start_as(name, options, None)
    }

    /// An instance whose commands have these variables, to be started by `start_again`.
    pub(crate) fn unstarted(
        name: &str,
        options: &[&str],
        variables: &[(&'static str, String)],
    ) -> Instance {
        /// Distinguishes instances of tests that use the same name.
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Instance {
            name: format!("t{}.{number}-{name}", std::process::id()),
            dir: tempfile::tempdir().expect("a directory"),
            options: options.iter().map(|&option| option.to_owned()).collect(),
            variables: variables.to_vec(),
            owner: None,
        }
    }

    /// An instance of another user, which root can start; every user may enter its directory.
    pub(crate) fn start_as(name: &str, options: &[&str], owner: Option<(u32, u32)>) -> Instance {
        let mut instance = Instance::unstarted(name, options, &[]);
        instance.owner = owner;
        let dir = instance.dir.path();
        if let Some((user, group)) = owner {
            std::os::unix::fs::chown(dir, Some(user), Some(group)).expect("root may");
        }
        instance.start_again();
        instance
    }

    /// An instance that programs see below its own directory.
    pub(crate) fn start_to_mount(name: &str, options: &[&str]) -> Instance {
        let mut instance = Instance::unstarted(name, options, &[]);
        let at = text(instance.prefix().as_os_str().as_encoded_bytes());
        instance.options.extend(["--at".to_owned(), at]);
        instance.start_again();
        instance
    }

    /// Where programs see an instance of `start_to_mount`.
    pub(crate) fn prefix(&self) -> PathBuf {
        self.dir.path().join("prefix")
    }

    /// Starts its daemons that are not running.
    pub(crate) fn start_again(&self) {
        let since = Instant::now();
        loop {
            let output = self.try_start();
            let errors = text(&output.stderr);
            // A short --timeout holds for the start, too.
            if !errors.contains("not ready in time") || since.elapsed() >= TIMEOUT {
                assert!(output.status.success(), "start: {errors}");
                return;
            }
        }
    }

    pub(crate) fn try_start(&self) -> Output {
        let mut command = self.command("start");
        command.args(&self.options).output().expect("forebay runs")
    }

    /// `forebay WORD --name NAME`, in this instance's directories.
    pub(crate) fn command(&self, word: &str) -> Command {
        let program = profile().join("forebay");
        assert!(program.exists(), "{} is missing: build the workspace", program.display());
        let mut command = Command::new(program);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("FOREBAY_")) {
            command.env_remove(name);
        }
        command
            .args([word, "--name", &*self.name])
            .env("XDG_RUNTIME_DIR", self.dir.path())
            .env("FOREBAY_DIR", self.dir.path())
            // Reports of jobs.
            .env("XDG_DATA_HOME", self.dir.path())
            .env("XDG_STATE_HOME", self.dir.path())
            // A test that is about mounts, or about the history, says so.
            .env("FOREBAY_ACCESS", "preload")
            .env("FOREBAY_MONITOR", "off")
            .envs(self.variables.iter().cloned());
        if let Some((user, group)) = self.owner {
            command.uid(user).gid(group).current_dir(self.dir.path());
            command.env("HOME", self.dir.path()).env_remove("XDG_CONFIG_HOME");
        }
        command
    }

    /// A program on the instance, by the way that is the default for users.
    pub(crate) fn program_by_default(&self, words: &[&str]) -> Command {
        let mut command = self.program(words);
        command.env_remove("FOREBAY_ACCESS");
        command
    }

    /// A preloaded program on the instance.
    pub(crate) fn program(&self, words: &[&str]) -> Command {
        let mut command = self.command("run");
        command.arg("--").args(words);
        command
    }

    pub(crate) fn worker(&self) -> Worker {
        Worker::start(self)
    }

    pub(crate) fn status(&self) -> Value {
        let output = self.command("status").arg("--json").output().expect("forebay runs");
        assert!(output.status.success(), "status: {}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// A counter of its first daemon's status.
    pub(crate) fn figure(&self, name: &str) -> u64 {
        let state = &self.status()["daemons"][0]["state"];
        state[name].as_u64().unwrap_or_else(|| panic!("{name} of {state}"))
    }

    /// Bytes in use, as programs see it.
    pub(crate) fn used(&self) -> u64 {
        let output = self
            .program(&["stat", "-f", "-c", "%S %b %f", "/forebay"])
            .output()
            .expect("forebay runs");
        let printed = text(&output.stdout);
        let numbers: Vec<u64> = printed.split_whitespace().flat_map(str::parse).collect();
        let [unit, blocks, free] = numbers[..] else {
            panic!("stat: {printed}{}", text(&output.stderr))
        };
        (blocks - free) * unit
    }

    pub(crate) fn daemon(&self, index: usize) -> Daemon {
        let pid = self.status()["daemons"][index]["pid"].as_i64().expect("a pid");
        let pid = Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("a pid");
        Daemon { pid }
    }

    /// Data directory of daemon `index`: its log and SSD file.
    pub(crate) fn data(&self, index: usize) -> PathBuf {
        let user = rustix::process::geteuid().as_raw();
        self.dir.path().join(format!("forebay-{user}-{}/d{index}", self.name))
    }

    /// A file in its run directory.
    pub(crate) fn run_file(&self, name: &str) -> PathBuf {
        let user = rustix::process::geteuid().as_raw();
        self.dir.path().join(format!("forebay-{user}/{}/{name}", self.name))
    }

    pub(crate) fn daemon_log(&self, index: usize) -> String {
        std::fs::read_to_string(self.run_file(&format!("d{index}.log"))).unwrap_or_default()
    }
}

/// Kills a process.
pub(crate) fn kill(pid: i32) {
    let pid = Pid::from_raw(pid).expect("a pid");
    kill_process(pid, Signal::KILL).expect("the process can be killed");
}

/// A daemon's process.
pub(crate) struct Daemon {
    pid: Pid,
}

impl Daemon {
    /// Kills it; it may still exist for a moment.
    pub(crate) fn kill(&self) {
        self.signal(Signal::KILL);
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid, signal).expect("the daemon takes a signal");
    }

    /// Stops it by a signal; it answers nothing until it continues.
    pub(crate) fn stop(&self) {
        kill_process(self.pid, Signal::STOP).expect("the daemon can be stopped");
    }

    pub(crate) fn go_on(&self) {
        kill_process(self.pid, Signal::CONT).expect("the daemon can continue");
    }

    /// True if a thread of this name waits in the kernel for a device.
    pub(crate) fn has_blocked_thread(&self, name: &str) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid.as_raw_nonzero()));
        let stats = tasks.into_iter().flatten().flatten().map(|task| task.path().join("stat"));
        let is_it = |stat: String| stat.contains(&format!("({name}) D"));
        stats.flat_map(std::fs::read_to_string).any(is_it)
    }

    /// Waits until the kernel has ended it.
    pub(crate) fn wait(&self) {
        wait_for("the daemon's end", || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid.as_raw_nonzero()));
            let state = stat.as_deref().unwrap_or(") Z").rsplit(") ").next().unwrap_or("Z");
            state.starts_with('Z')
        });
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let is_failing = std::thread::panicking();
        if is_failing {
            // Shows the logs before they are removed.
            for index in 0..8 {
                let log = self.daemon_log(index);
                if !log.is_empty() {
                    eprintln!("log of daemon {index}:\n{log}");
                }
            }
        }
        let output = self.command("stop").output().expect("forebay runs");
        if !is_failing {
            assert!(output.status.success(), "stop: {}", text(&output.stderr));
        }
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Waits until `condition` holds.
pub(crate) fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < TIMEOUT, "timeout: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub(crate) const WORKER: &str = env!("CARGO_BIN_EXE_forebay-test-worker");

/// The worker program on an instance: takes a line, does it, answers with a line.
pub(crate) struct Worker {
    child: Child,
    input: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl Worker {
    fn start(instance: &Instance) -> Worker {
        Worker::spawn(instance.program(&[WORKER]))
    }

    /// A worker outside the instance, on the ordinary file systems.
    pub(crate) fn outside() -> Worker {
        Worker::spawn(Command::new(WORKER))
    }

    pub(crate) fn spawn(mut command: Command) -> Worker {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the worker starts");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let input = child.stdin.take();
        let mut worker = Worker { child, input, answers };
        // `forebay run` is another process; the worker reports its own process id.
        assert_eq!(worker.ask("hello"), "ok");
        worker
    }

    pub(crate) fn send(&mut self, line: &str) {
        let input = self.input.as_mut().expect("a pipe");
        // A killed worker does not read; its missing answer shows that.
        let _ = writeln!(input, "{line}").and_then(|()| input.flush());
    }

    /// The next answer; `None` when the worker ended.
    pub(crate) fn answer(&mut self) -> Option<String> {
        match self.answers.recv_timeout(TIMEOUT) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("the worker hangs"),
        }
    }

    pub(crate) fn ask(&mut self, line: &str) -> String {
        self.send(line);
        self.answer().unwrap_or_else(|| panic!("the worker ended at: {line}"))
    }

    /// Process id of the worker itself, not that of the command that started it.
    pub(crate) fn pid(&mut self) -> i32 {
        self.ask("pid").parse().expect("a number")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
