//! What is installed into `dispatch`: every intercepted call, and the moments of a fork.
//!
//! The copy of the descriptor table that a child will use is made before the fork, and must be
//! found again on both sides of it, where neither the stack nor a register can carry it. So one
//! fork is under way at a time in a process; a second thread waits, as it does in libc's own fork.

use crate::arch::Frame;
use crate::calls::{self, launch, native, state, uses};
use crate::dispatch::{Hooks, Verdict};
use crate::environment::Environment;
use crate::process;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};

/// The hooks of the file system.
pub static HOOKS: Hooks = Hooks { call, thread: uses::note_threads, prefork, child, parent };

const VM: u64 = libc::CLONE_VM as u64;

/// The thread whose fork is under way, 0: none.
static FORKING: AtomicU32 = AtomicU32::new(0);
static TOKEN: AtomicU64 = AtomicU64::new(0);

/// How often a thread lets others run before it goes on without waiting for their forks: then a
/// signal handler must have left one by siglongjmp.
const PATIENCE: u32 = 100_000;

/// Takes what the environment says, in the constructor. False: no instance is set up.
#[must_use]
pub fn prepare(environment: &Environment) -> bool {
    let (Some(run), Some(at)) = (environment.get(b"FOREBAY_RUN"), environment.get(b"FOREBAY_AT"))
    else {
        return false;
    };
    let home = environment.get(b"FOREBAY_HOME").and_then(|home| home.to_str().ok());
    let home = home.and_then(|home| home.parse().ok()).unwrap_or(0);
    state::prepare(run.to_bytes(), at.to_bytes(), home);
    let names = [&b"LD_PRELOAD"[..], b"FOREBAY_RUN", b"FOREBAY_AT", b"FOREBAY_HOME"];
    for name in names.into_iter().chain([&b"FOREBAY_SITES"[..]]) {
        if let Some(value) = environment.get(name) {
            launch::remember(name, value.to_bytes());
        }
    }
    state::is_prepared()
}

/// After the sites are patched: takes over what the program before exec left open. `keeps`: the
/// program is one of the instance, and the row that holds its file stays.
pub fn resume(environment: &Environment, keeps: bool) {
    if keeps {
        state::keep_program();
    }
    if environment.get(b"FOREBAY_INHERIT").is_some() {
        let _ = calls::directories::resume();
    }
}

fn call(frame: &mut Frame) -> Verdict {
    match calls::handle(frame.number().cast_signed(), frame.args) {
        Some(result) => Verdict::Done(result),
        None => Verdict::Pass,
    }
}

fn prefork(_flags: u64) {
    let me = native::call(libc::SYS_gettid, [0; 6]) as u32;
    let mut patience = PATIENCE;
    while let Err(holder) = FORKING.compare_exchange(0, me, AcqRel, Acquire) {
        if holder == me || patience == 0 {
            break;
        }
        patience -= 1;
        let _ = native::call(libc::SYS_sched_yield, [0; 6]);
    }
    TOKEN.store(launch::before_fork(), Release);
}

fn child(flags: u64) {
    let token = TOKEN.load(Acquire);
    if flags & VM == 0 {
        FORKING.store(0, Relaxed);
        uses::begin_anew();
        launch::in_forked_child(token);
    } else {
        launch::in_vfork_child(token);
    }
}

fn parent(flags: u64, result: i64) {
    let token = TOKEN.swap(0, AcqRel);
    launch::in_parent(token, result < 0, flags & VM != 0);
    FORKING.store(0, Release);
}

/// Number and start time of the calling process, which name its descriptor table.
#[must_use]
pub fn identity() -> (u32, u64) {
    let pid = native::call(libc::SYS_getpid, [0; 6]) as u32;
    let path = c"/proc/self/stat".as_ptr() as u64;
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as u64;
    let here = super::paths::HERE;
    let fd = native::call(libc::SYS_openat, [here, path, flags, 0, 0, 0]);
    if fd < 0 {
        return (pid, 0);
    }
    let mut text = [0u8; 1024];
    let to = [fd as u64, text.as_mut_ptr() as u64, text.len() as u64, 0, 0, 0];
    let length = native::call(libc::SYS_read, to);
    native::close(fd as i32);
    let text = text.get(..usize::try_from(length).unwrap_or(0)).unwrap_or(&[]);
    if field(text, THREADS) != Some(1) {
        // Made before our constructor ran, or where we do not see it.
        uses::note_threads();
    }
    (pid, field(text, START_TIME).unwrap_or(0))
}

/// Fields of `/proc/<pid>/stat`, counted from the one behind the name: how many threads there are, and
/// when the process began.
const THREADS: usize = 17;
const START_TIME: usize = 19;

/// A field behind the name, which may hold spaces, so we count from its last bracket.
fn field(text: &[u8], index: usize) -> Option<u64> {
    let behind = text.iter().rposition(|&byte| byte == b')')?;
    let field = text.get(behind + 2..)?.split(|&byte| byte == b' ').nth(index)?;
    field.iter().try_fold(0u64, |sum, &digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        sum.checked_mul(10)?.checked_add(digit)
    })
}

/// True between vfork and exec, in the child.
#[must_use]
pub fn is_vfork_child() -> bool {
    process::is_vfork_child()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_time_is_found_behind_any_name() {
        let text = b"12 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21";
        assert_eq!(field(text, START_TIME), Some(4711));
        assert_eq!(field(text, THREADS), Some(17));
        assert_eq!(field(b"12 (a", START_TIME), None);
    }
}
