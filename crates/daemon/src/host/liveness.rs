//! Which processes of the host live.
//!
//! A process is identified by its number and start time. Linux shows a start time only when no exec of
//! the process is under way, and an exec closes files, which may need this daemon. So a thread that
//! serves nothing reads start times; the others learn its result at their next look. The state of a
//! process is shown at any time.

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use std::collections::BTreeSet;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Lists of processes that wait for the thread. Others are identified at the next scan.
const WAITING_MAX: usize = 2;
/// Ended processes with reused numbers that are remembered.
const REPLACED_MAX: usize = 4096;

/// Number and start time of a process, in clock ticks since the boot, as in `/proc`.
pub(crate) type ProcessIdentity = (u32, u64);

/// Processes whose numbers belong to others, and the thread that finds them.
#[derive(Default)]
pub(crate) struct Liveness {
    replaced: Mutex<BTreeSet<ProcessIdentity>>,
    thread: OnceLock<Option<SyncSender<Vec<ProcessIdentity>>>>,
}

impl Liveness {
    /// True unless the process is known not to run, or not to be the one that started then.
    pub(crate) fn is_alive(&self, process: ProcessIdentity) -> bool {
        !self.replaced().contains(&process) && !is_gone(process.0)
    }

    fn replaced(&self) -> MutexGuard<'_, BTreeSet<ProcessIdentity>> {
        self.replaced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the thread compare start times, for later calls of `is_alive`. If it is busy, it does not.
    pub(crate) fn identify(self: &Arc<Liveness>, processes: Vec<ProcessIdentity>) {
        let thread = self.thread.get_or_init(|| {
            let (to, lists) = sync_channel::<Vec<_>>(WAITING_MAX);
            let liveness = Arc::downgrade(self);
            let thread = std::thread::Builder::new().name("liveness".to_owned());
            let run = move || {
                for list in lists {
                    let Some(liveness) = liveness.upgrade() else { return };
                    liveness.compare(list);
                }
            };
            thread.spawn(run).ok().map(|_| to)
        });
        if let Some(to) = thread {
            let _ = to.try_send(processes);
        }
    }

    /// Compares start times. It may wait for an exec.
    fn compare(&self, processes: Vec<ProcessIdentity>) {
        for (pid, started) in processes {
            if start_time(pid).is_some_and(|began| began != started) {
                let mut replaced = self.replaced();
                if replaced.len() >= REPLACED_MAX {
                    // Those that still matter are found again.
                    replaced.clear();
                }
                replaced.insert((pid, started));
            }
        }
    }
}

/// True if a process is known not to run, including one that its parent has not waited for. An
/// unreadable file proves nothing: this daemon may have no free descriptor, and `/proc` may hide other
/// users' processes.
fn is_gone(pid: u32) -> bool {
    // A leader that ended before its threads is a zombie with more than one thread.
    status(pid).map_or_else(|| !exists(pid), |(state, threads)| is_ended(state) && threads <= 1)
}

/// True if a thread is known not to run, including one of a process that its parent has not waited for.
pub(crate) fn is_thread_gone(thread: u32) -> bool {
    status(thread).map_or_else(|| !exists(thread), |(state, _)| is_ended(state))
}

/// True if a process with this number exists, even if this daemon may not signal it.
pub(crate) fn exists(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| test_kill_process(pid) != Err(Errno::SRCH))
}

const fn is_ended(state: u8) -> bool {
    matches!(state, b'Z' | b'X')
}

/// State and number of threads of a process. The kernel escapes line ends in its name.
fn status(pid: u32) -> Option<(u8, u32)> {
    let text = std::fs::read(format!("/proc/{pid}/status")).ok()?;
    let field = |name: &[u8]| {
        text.split(|&byte| byte == b'\n')
            .find_map(|line| line.strip_prefix(name))
            .map(<[u8]>::trim_ascii)
    };
    let state = *field(b"State:")?.first()?;
    let threads = std::str::from_utf8(field(b"Threads:")?).ok()?.parse().ok()?;
    Some((state, threads))
}

/// Start time of a process. Its name may contain any bytes; only numbers follow the last parenthesis.
fn start_time(pid: u32) -> Option<u64> {
    let text = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let name_end = text.iter().rposition(|byte| *byte == b')')?;
    let mut fields = std::str::from_utf8(text.get(name_end + 1..)?).ok()?.split_whitespace();
    fields.nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Resource, Rlimit, setrlimit};
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;
    use std::process::{Child, Command, Stdio};

    /// A separate process, whose limits and name the test may choose.
    struct TestProcess(Child);

    impl TestProcess {
        fn of(program: &OsStr) -> TestProcess {
            let mut command = Command::new(program);
            // It ends when its input ends.
            let command = command.args(["-c", "read line; true"]).stdin(Stdio::piped());
            TestProcess(command.spawn().expect("a process"))
        }

        fn identity(&self) -> ProcessIdentity {
            (self.0.id(), start_time(self.0.id()).expect("it runs"))
        }
    }

    impl Drop for TestProcess {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_process_is_identified_by_its_start_time() {
        let liveness = Arc::new(Liveness::default());
        let mut waiting = TestProcess::of(OsStr::new("sh"));
        let (pid, started) = waiting.identity();
        let earlier = (pid, started - 1);
        assert!(
            liveness.is_alive((pid, started)) && liveness.is_alive(earlier),
            "the number exists"
        );
        liveness.identify(vec![(pid, started), earlier]);
        while liveness.is_alive(earlier) {
            std::thread::yield_now();
        }
        assert!(liveness.is_alive((pid, started)));
        assert!(!liveness.is_alive((u32::MAX, started)) && !liveness.is_alive((0, started)));
        waiting.0.kill().expect("killed");
        while liveness.is_alive((pid, started)) {
            std::thread::yield_now();
        }
        assert!(exists(pid) && is_thread_gone(pid), "nobody has waited for it");
        waiting.0.wait().expect("ended");
        assert!(!exists(pid) && is_thread_gone(pid));
    }

    #[test]
    fn nobody_waits_for_a_process_that_is_not_identified() {
        let liveness = Arc::new(Liveness::default());
        let (to, lists) = sync_channel(WAITING_MAX);
        assert!(liveness.thread.set(Some(to)).is_ok(), "a thread that never takes a list");
        let waiting = TestProcess::of(OsStr::new("sh"));
        for _ in 0..3 * WAITING_MAX {
            liveness.identify(vec![waiting.identity()]);
            assert!(liveness.is_alive(waiting.identity()));
        }
        assert_eq!(lists.try_iter().count(), WAITING_MAX);
    }

    #[test]
    fn replaced_processes_are_remembered_up_to_a_maximum() {
        let liveness = Liveness::default();
        let (pid, started) = (std::process::id(), start_time(std::process::id()).expect("it runs"));
        liveness.compare((1..=REPLACED_MAX as u64 + 1).map(|by| (pid, started + by)).collect());
        assert_eq!(liveness.replaced().len(), 1);
        assert!(liveness.is_alive((pid, started)));
    }

    #[test]
    fn a_process_whose_name_is_not_text_is_recognised() {
        let dir = tempfile::tempdir().expect("a directory");
        let program = dir.path().join(OsStr::from_bytes(b"\xff) Z 1\nState:\tZ \xfe"));
        std::os::unix::fs::symlink("/bin/sh", &program).expect("a name for it");
        let waiting = TestProcess::of(program.as_os_str());
        assert!(!is_gone(waiting.0.id()) && !is_thread_gone(waiting.0.id()));
        assert!(start_time(waiting.0.id()) >= start_time(std::process::id()));
    }

    #[test]
    fn a_process_counts_as_alive_if_no_descriptor_is_free() {
        const IN_CHILD: &str = "LIVENESS_TEST_WITHOUT_DESCRIPTORS";
        if let Some(parent) = std::env::var_os(IN_CHILD) {
            let parent: u32 = parent.to_str().and_then(|pid| pid.parse().ok()).expect("a number");
            let none = Rlimit { current: Some(0), maximum: Some(0) };
            setrlimit(Resource::Nofile, none).expect("a limit");
            let read = std::fs::read(format!("/proc/{parent}/status"));
            assert_eq!(read.map_err(|error| error.raw_os_error()), Err(Some(24)), "EMFILE");
            assert!(!is_gone(parent) && !is_thread_gone(parent));
            assert!(is_gone(u32::MAX));
            return;
        }
        // In a process of its own, because the limit applies to all tests of a process.
        let name = "host::liveness::tests::a_process_counts_as_alive_if_no_descriptor_is_free";
        let output = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", name])
            .env(IN_CHILD, std::process::id().to_string())
            .output()
            .expect("a process");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }
}
