//! The hooks installed into `dispatch`: every intercepted call, and the stages of a fork.
//!
//! The copy of the descriptor table for a child is made before the fork, and must be found again on
//! both sides of it, where neither the stack nor a register can carry it. A process therefore runs
//! one fork at a time; a second thread waits, as it does in libc's own fork.

use crate::arch::Frame;
use crate::calls::files::{kernel_io, uses};
use crate::calls::process::static_client::CLIENT;
use crate::calls::process::{
    activity, credentials, cut_off, launch, mount, runnable, state, working_directory,
};
use crate::calls::{self, Answer, native};
use crate::entry::call_stack;
use crate::entry::dispatch::{Hooks, Verdict};
use crate::entry::process::is_vfork_child;
use crate::environment::Environment;
use client::OpClass;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicU32, AtomicU64};

/// The hooks of the file system.
pub static HOOKS: Hooks = Hooks { call, thread, prefork, child, parent, abandoned };

const VM: u64 = libc::CLONE_VM as u64;
const FS: u64 = libc::CLONE_FS as u64;

/// The thread that is forking; 0: none.
static FORKING: AtomicU32 = AtomicU32::new(0);
static TOKEN: AtomicU64 = AtomicU64::new(0);

/// Reads the environment, in the constructor. Returns false if no instance is set up.
#[must_use]
pub fn prepare(environment: &Environment) -> bool {
    let (Some(run), Some(at)) = (environment.get(b"FOREBAY_RUN"), environment.get(b"FOREBAY_AT"))
    else {
        return false;
    };
    let home = environment.get(b"FOREBAY_HOME").and_then(|home| home.to_str().ok());
    let home = home.and_then(|home| home.parse().ok()).unwrap_or(0);
    state::prepare(run.to_bytes(), at.to_bytes(), home);
    activity::prepare(environment);
    for name in launch::variable_names() {
        if let Some(value) = environment.get(name) {
            launch::save_variable(name, value.to_bytes());
        }
    }
    if state::is_prepared() && environment.get(mount::VARIABLE).is_some_and(|value| value == c"1") {
        mount::prepare();
        if mount::is_there() {
            if runnable::has_tight_limits() {
                // All of the instance's memory would be mapped, at the program's expense.
                mount::note_only_way();
            }
            working_directory::ask();
        }
    }
    shm::signals::set_delivery(shm::signals::Delivery {
        deliver: call_stack::deliver,
        asked: call_stack::asked_mask,
    });
    state::is_prepared()
}

/// After the sites are patched: takes over what the program before exec left open. With
/// `runs_instance_program` the process runs a program of the instance, whose entry stays.
pub fn resume(environment: &Environment, runs_instance_program: bool) {
    if runs_instance_program {
        state::keep_program();
    }
    let Some(inherited) = environment.get(b"FOREBAY_INHERIT").and_then(launch::inheritance) else {
        return;
    };
    if inherited & launch::UNREACHABLE != 0 {
        CLIENT.note_gone();
    }
    let resumed = if mount::is_there() {
        state::client().map(drop)
    } else {
        calls::names::directories::resume()
    };
    if resumed.is_err() && !mount::is_there() && inherited & launch::DIRECTORY != 0 {
        working_directory::note_unknown();
    }
    if resumed.is_err() || inherited & launch::UNREACHABLE != 0 {
        cut_off::note_unreachable();
    }
}

fn call(frame: &mut Frame) -> Verdict {
    let number = frame.number().cast_signed();
    match activity::class_of(number) {
        Some(class) => counted(frame, number, class),
        None => verdict(calls::handle(number, frame.args)),
    }
}

const fn verdict(answer: Answer) -> Verdict {
    match answer {
        Some(result) => Verdict::Done(result),
        None => Verdict::Pass,
    }
}

/// A call that is counted if it concerns the instance. Separate, because reads and writes, which count
/// themselves, need no registers here.
#[inline(never)]
fn counted(frame: &mut Frame, number: i64, class: OpClass) -> Verdict {
    let Some(calls) = CLIENT.untimed_calls() else { return timed(frame, number, class) };
    let answer = calls::handle(number, frame.args);
    if let Some(result) = answer {
        let class = activity::with_creation(class, number, &frame.args);
        if result >= 0 {
            calls.count(class);
        } else {
            activity::count_failure(class, result);
        }
    }
    verdict(answer)
}

/// As `counted`, for a call that is timed, and for the first one.
#[cold]
#[inline(never)]
fn timed(frame: &mut Frame, number: i64, class: OpClass) -> Verdict {
    let timer = CLIENT.begin_call();
    let answer = calls::handle(number, frame.args);
    if let Some(result) = answer {
        let class = activity::with_creation(class, number, &frame.args);
        if CLIENT.end_call(timer, class, result) {
            calls::names::paths::note_directory(number, &frame.args);
        }
    }
    verdict(answer)
}

/// True while another thread of this process forks. A child of vfork waits for nobody.
#[must_use]
pub fn is_forking_elsewhere() -> bool {
    let holder = FORKING.load(SeqCst);
    holder != 0 && holder != native::call(libc::SYS_gettid, [0; 6]) as u32 && !is_vfork_child()
}

fn thread(flags: u64) {
    uses::note_threads();
    if flags & FS == 0 {
        working_directory::note_private();
    }
}

fn prefork(flags: u64) -> i64 {
    if flags & FS != 0 {
        // The child's changes of the working directory are those of this process.
        working_directory::note_private();
    }
    if flags & VM != 0 && state::is_prepared() && !mount::is_there() {
        // The child may not attach. With a mount it uses that instead.
        state::attach_at_once();
    }
    let me = native::call(libc::SYS_gettid, [0; 6]) as u32;
    let mut yields_left = state::YIELDS_MAX;
    while let Err(holder) = FORKING.compare_exchange(0, me, SeqCst, Acquire) {
        if holder == me || yields_left == 0 {
            break;
        }
        yields_left -= 1;
        let _ = native::call(libc::SYS_sched_yield, [0; 6]);
    }
    state::await_attach();
    let token = launch::before_fork();
    TOKEN.store(token.unwrap_or(0), Release);
    let Err(errno) = token else { return 0 };
    FORKING.store(0, Release);
    -i64::from(errno.0)
}

fn child(flags: u64) {
    let token = TOKEN.load(Acquire);
    if flags & VM == 0 {
        FORKING.store(0, Relaxed);
        uses::reset_after_fork();
        state::reset_after_fork();
        kernel_io::reset_after_fork();
        launch::in_forked_child(token);
    } else {
        working_directory::begin_vfork_child();
        credentials::begin_vfork_child();
        launch::in_vfork_child(token);
    }
}

fn parent(flags: u64, result: i64) {
    let token = TOKEN.swap(0, AcqRel);
    launch::in_parent(token, result < 0, flags & VM != 0);
    FORKING.store(0, Release);
}

fn abandoned() {
    if state::is_prepared() {
        state::end_abandoned_calls();
    }
}
