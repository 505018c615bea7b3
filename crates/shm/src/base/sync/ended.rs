//! Whether a thread runs any more. A process that ended keeps its number until its parent waits for
//! it, so a signal of number zero alone does not tell.
//!
//! `/proc` shows it by a link: a thread that ended has no working directory. A link is read without a
//! descriptor: one that is opened for a moment in an application may be what another thread of it
//! replaces by `dup2`, and what a child that it forks inherits. Without permission, without `/proc`,
//! or with that of another process namespace, a thread that exists counts as alive.

use rustix::fs::{Access, AtFlags, CWD, accessat, readlinkat_raw};
use rustix::io::Errno;
use rustix::path::DecInt;

use super::real::is_absent;

/// Length of the longest path: `/proc/`, ten digits, `/cwd`, and a NUL.
const PATH_BYTES: usize = 21;

/// Longest `PID/task/TID`.
const SELF_BYTES: usize = 26;

/// A path in `/proc`.
struct ProcPath([u8; PATH_BYTES]);

impl ProcPath {
    /// `name` of a thread.
    fn of(thread: u32, name: &[u8]) -> ProcPath {
        let number = DecInt::new(thread);
        let parts = [b"/proc/".as_slice(), number.as_bytes(), name];
        let mut path = [0; PATH_BYTES];
        path.iter_mut().zip(parts.into_iter().flatten()).for_each(|(to, from)| *to = *from);
        ProcPath(path)
    }

    /// The path, which ends with the first NUL.
    fn text(&self) -> Result<&core::ffi::CStr, Errno> {
        core::ffi::CStr::from_bytes_until_nul(&self.0).map_err(|_| Errno::INVAL)
    }

    fn is_there(&self) -> bool {
        self.text().is_ok_and(|path| accessat(CWD, path, Access::EXISTS, AtFlags::empty()).is_ok())
    }
}

/// True if no thread with this number runs any more, including one that nobody has waited for yet.
/// For slow paths: it reads a link of `/proc`.
#[must_use]
pub fn is_dead(thread: u32) -> bool {
    is_absent(thread) || has_no_directory(thread) && is_our_proc()
}

/// True if `/proc` shows the thread, and no working directory of it.
fn has_no_directory(thread: u32) -> bool {
    let path = ProcPath::of(thread, b"/cwd");
    let mut start = [0; 1];
    let read = path.text().and_then(|path| readlinkat_raw(CWD, path, &mut start).map(drop));
    // A `/proc` that hides the processes of others shows nothing of the thread at all.
    read == Err(Errno::NOENT) && ProcPath::of(thread, b"").is_there()
}

/// True if `/proc` has this thread under the numbers by which it knows itself.
fn is_our_proc() -> bool {
    let mut shown = [0; SELF_BYTES];
    let Ok(length) = readlinkat_raw(CWD, c"/proc/thread-self", &mut shown) else { return false };
    let process = DecInt::new(rustix::process::getpid().as_raw_nonzero().get());
    let thread = DecInt::new(rustix::thread::gettid().as_raw_nonzero().get());
    let ours = [process.as_bytes(), b"/task/", thread.as_bytes()];
    shown.get(..length).is_some_and(|shown| shown.iter().eq(ours.into_iter().flatten()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};
    use std::string::String;

    /// A child that waits for input, and its number.
    fn waiting_child() -> (std::process::Child, u32) {
        let child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("a child");
        let number = child.id();
        (child, number)
    }

    #[test]
    fn a_process_is_dead_before_and_after_its_parent_waits_for_it() {
        let (mut child, number) = waiting_child();
        assert!(!is_dead(number) && !is_absent(number));
        child.kill().expect("killed");
        while !is_dead(number) {
            std::thread::yield_now();
        }
        assert!(!is_absent(number), "nobody has waited for it");
        child.wait().expect("waited for");
        assert!(is_dead(number) && is_absent(number));
    }

    /// Its first thread holds nothing any more, its other one does.
    #[test]
    fn a_first_thread_that_ended_is_dead_and_the_others_live() {
        let program = "import ctypes, os, threading, time\n\
            def other():\n    print(threading.get_native_id(), flush=True)\n    time.sleep(1000)\n\
            threading.Thread(target=other, daemon=True).start()\n\
            ctypes.CDLL(None).syscall(60 if os.uname().machine == 'x86_64' else 93, 0)\n";
        let mut command = Command::new("python3");
        let child = command.args(["-c", program]).stdout(Stdio::piped()).spawn();
        let mut child = child.expect("a child");
        let mut line = String::new();
        let mut output = std::io::BufReader::new(child.stdout.take().expect("piped"));
        std::io::BufRead::read_line(&mut output, &mut line).expect("a line");
        let other: u32 = line.trim().parse().expect("a number");
        while !is_dead(child.id()) {
            std::thread::yield_now();
        }
        assert!(!is_dead(other), "it runs");
        child.kill().expect("killed");
        child.wait().expect("waited for");
        assert!(is_dead(other));
    }

    #[test]
    fn the_longest_path_fits() {
        let path = ProcPath::of(u32::MAX, b"/cwd");
        assert_eq!(path.text(), Ok(c"/proc/4294967295/cwd"));
        assert!(is_our_proc() && !is_dead(rustix::thread::gettid().as_raw_nonzero().get() as u32));
    }
}
