//! The last words of a daemon that a signal kills: one line on standard error, which is its log.
//! Without it the log ends in the middle of ordinary work, and the process that could be told the
//! signal is the one that adopts orphans.

use core::ffi::c_int;

/// Signals that end a process unless it handles them, except those that a daemon handles (SIGTERM,
/// SIGINT), those that nothing handles (SIGKILL), and SIGABRT, before which a daemon has told the
/// reason.
const DEADLY: [(c_int, &str, &str); 17] = [
    (
        libc::SIGBUS,
        "SIGBUS (signal 7)",
        ": a file of the instance in /dev/shm was cut or has no memory, or a device failed",
    ),
    (libc::SIGSEGV, "SIGSEGV (signal 11)", ""),
    (libc::SIGILL, "SIGILL (signal 4)", ": the processor lacks an instruction"),
    (libc::SIGFPE, "SIGFPE (signal 8)", ""),
    (libc::SIGTRAP, "SIGTRAP (signal 5)", ""),
    (libc::SIGSYS, "SIGSYS (signal 31)", ": a filter of system calls is in force"),
    (libc::SIGHUP, "SIGHUP (signal 1)", ""),
    (libc::SIGQUIT, "SIGQUIT (signal 3)", ""),
    (libc::SIGUSR1, "SIGUSR1 (signal 10)", ""),
    (libc::SIGUSR2, "SIGUSR2 (signal 12)", ""),
    (libc::SIGALRM, "SIGALRM (signal 14)", ""),
    (libc::SIGVTALRM, "SIGVTALRM (signal 26)", ""),
    (libc::SIGPROF, "SIGPROF (signal 27)", ""),
    (libc::SIGIO, "SIGIO (signal 29)", ""),
    (libc::SIGPWR, "SIGPWR (signal 30)", ""),
    (libc::SIGSTKFLT, "SIGSTKFLT (signal 16)", ""),
    (libc::SIGXCPU, "SIGXCPU (signal 24)", ": its limit of processor time is reached (ulimit -t)"),
];

/// The words before the signal in the line. `forebay` searches the log for them.
pub const LAST_WORDS: &str = "the daemon is killed by ";

/// Makes this process write a line on standard error when a signal kills it.
pub fn report() {
    for (signal, ..) in DEADLY {
        // WHY: no safe call installs a handler for faults.
        // SAFETY: the action is valid: zeros are an empty mask and no flags, and the handler is a
        // function of the signature that its flags ask for.
        unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            action.sa_sigaction = last_words as *const () as usize;
            // Once; on the stack for handlers, if the thread has one.
            action.sa_flags = libc::SA_RESETHAND | libc::SA_ONSTACK;
            libc::sigaction(signal, &raw const action, core::ptr::null_mut());
        }
    }
}

/// Calls only functions that a signal handler may call, and allocates nothing.
extern "C" fn last_words(signal: c_int) {
    let known = DEADLY.iter().find(|(number, ..)| *number == signal);
    let (name, why) = known.map_or(("a signal", ""), |(_, name, why)| (*name, *why));
    let mut line = [0u8; 256];
    let mut length = 0;
    for part in ["ERROR ", LAST_WORDS, name, why, "\n"] {
        for (to, from) in line.iter_mut().skip(length).zip(part.bytes()) {
            *to = from;
            length += 1;
        }
    }
    // WHY: nothing else may be called here.
    // SAFETY: the line has that length. The second call ends the process, or lets a fault do so when
    // this returns: the handler is no longer installed.
    unsafe {
        libc::write(2, line.as_ptr().cast(), length);
        libc::raise(signal);
    }
}
