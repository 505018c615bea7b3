//! Signals that the program handles. The kernel enters this library first, for one reason: a call in
//! progress ends before the program's handler runs, as a call on a local file does in the kernel.
//! So no handler runs in the middle of a call, looks at a stack that is not the program's, or leaves
//! a call half done by `siglongjmp` or by the cancellation of its thread.
//!
//! A signal that finds its thread on one of our stacks is queued again, and the call goes on with
//! all signals blocked. At its end `arch::enter` restores the mask, and the kernel delivers what is
//! pending, on the stack and in the way that the program asked for.
//!
//! Not deferred: faults of the thread itself; the signal by which libc changes the ids of all
//! threads, whose sender waits; and what arrives while a call waits in the kernel for something that
//! need not come (`arch::call_waiting`) or for a lock (`call_stack::deliver`). Cancellation ends
//! such a wait with `EINTR` and takes effect at the end of the call.
//!
//! Handlers that were set past the library are entered by the kernel directly, in the middle of
//! calls.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::arch::{self, Interrupted, raw};
use crate::entry::call_stack::{self, CallSlot};
use crate::entry::stubs;

/// Signals, and the unused number 0.
const SIGNALS: usize = 65;
/// libc's signals for `pthread_cancel` and for changes of ids.
const CANCEL: u32 = 32;
const SET_IDS: u32 = 33;

/// Values below are SIG_DFL and SIG_IGN.
const HANDLER_LOWEST: u64 = 2;
const RESET: u64 = libc::SA_RESETHAND as u32 as u64;
const SET_BYTES: u64 = 8;
/// Length of `siginfo_t`, and of what the kernel keeps of it.
const INFORMATION_BYTES: usize = 128;
const INFORMATION_USED_BYTES: usize = 48;

/// An action as the kernel has it.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Action {
    /// Address of the handler.
    pub handler: u64,
    /// `SA_*`.
    pub flags: u64,
    /// Where the handler returns to.
    pub restorer: u64,
    /// Signals that are blocked meanwhile.
    pub mask: u64,
}

/// The action that the program asked for.
struct Entry {
    handler: AtomicU64,
    flags: AtomicU64,
}

static ENTRIES: [Entry; SIGNALS] =
    [const { Entry { handler: AtomicU64::new(0), flags: AtomicU64::new(0) } }; SIGNALS];

fn kernel_action(signal: u64, new: Option<&Action>, old: &mut Action) -> i64 {
    let new = new.map_or(0, |new| core::ptr::from_ref(new).addr() as u64);
    let old = core::ptr::from_mut(old).addr() as u64;
    // SAFETY: structures of the kernel's form that live across the call.
    unsafe { raw::call4(libc::SYS_rt_sigaction, signal, new, old, SET_BYTES) }
}

/// Takes over a handler that libc set before this library was loaded.
pub fn prepare() {
    let mut now = Action::default();
    let signal = u64::from(CANCEL);
    if kernel_action(signal, None, &mut now) == 0 && now.handler >= HANDLER_LOWEST {
        let _ = set_action(signal, Some(now), &mut Action::default());
    }
}

/// `rt_sigaction`, for a process with the memory that the entries belong to. Returns what the kernel
/// answers.
pub fn set_action(signal: u64, new: Option<Action>, old: &mut Action) -> i64 {
    let Some(entry) = usize::try_from(signal).ok().and_then(|signal| ENTRIES.get(signal)) else {
        return -i64::from(libc::EINVAL);
    };
    let before = (entry.handler.load(Acquire), entry.flags.load(Relaxed));
    let is_handler = new.is_some_and(|new| new.handler >= HANDLER_LOWEST);
    let installed = new.map(|new| match is_handler {
        true => Action { handler: arch::signal_entry(), flags: new.flags & !RESET, ..new },
        false => new,
    });
    if let Some(new) = new.filter(|_| is_handler) {
        // First: the kernel may enter at once, and until then it enters for the old one.
        entry.flags.store(new.flags, Relaxed);
        entry.handler.store(new.handler, Release);
    }
    let answer = kernel_action(signal, installed.as_ref(), old);
    if answer != 0 {
        entry.flags.store(before.1, Relaxed);
        entry.handler.store(before.0, Release);
    }
    if old.handler == arch::signal_entry() {
        (old.handler, old.flags) = before;
    }
    answer
}

/// Puts back the action that the program asked for, if the kernel has our entry.
pub fn as_asked(signal: u64, action: &mut Action) {
    let entry = usize::try_from(signal).ok().and_then(|signal| ENTRIES.get(signal));
    if let Some(entry) = entry.filter(|_| action.handler == arch::signal_entry()) {
        action.handler = entry.handler.load(Acquire);
        action.flags = entry.flags.load(Relaxed);
    }
}

/// Answer to `arch`.
#[derive(Debug)]
#[repr(C)]
pub struct Delivery {
    /// The handler to enter; 0: none now.
    handler: u64,
    /// To be given back after it, if it is not null.
    mark: *const CallSlot,
}

/// Stands for a mark where the handler was shown another place.
const IN_STUB: *const CallSlot = &raw const call_stack::NO_SLOT;

const LATER: Delivery = Delivery { handler: 0, mark: core::ptr::null() };

/// A signal has arrived.
pub(crate) extern "C" fn arrived(
    signal: u32,
    information: *mut libc::siginfo_t,
    context: *mut libc::ucontext_t,
) -> Delivery {
    let Some(entry) = ENTRIES.get(signal as usize) else { return LATER };
    let handler = entry.handler.load(Acquire);
    if handler < HANDLER_LOWEST {
        return LATER;
    }
    // SAFETY: the kernel's third argument of a handler that is running.
    let mut interrupted = unsafe { Interrupted::new(context) };
    if may_wait(signal) {
        interrupted.put_on_stack();
    }
    let slot = call_stack::slot_of(interrupted.stack());
    if let Some(slot) = slot
        && may_wait(signal)
        && !slot.delivers(signal == CANCEL)
        && (!interrupted.waits() || signal == CANCEL)
        && queue_again(signal, information)
    {
        if interrupted.waits() {
            interrupted.end_wait();
        }
        slot.defer(interrupted.mask());
        interrupted.set_mask(call_stack::blocked_with(interrupted.mask()));
        return LATER;
    }
    let flags = entry.flags.load(Relaxed);
    if flags & RESET != 0 {
        let default = Action::default();
        let _ = kernel_action(u64::from(signal), Some(&default), &mut Action::default());
    }
    let here = (&raw const flags).addr() as u64;
    let is_alternate = flags & libc::SA_ONSTACK as u64 != 0 && interrupted.is_on_alternate(here);
    let mark = if is_alternate { call_stack::mark_alternate() } else { None };
    let mark = mark.map_or(core::ptr::null(), core::ptr::from_ref);
    // It may unwind from here, and no unwinder knows our stubs.
    if signal == CANCEL
        && let Some((stub, is_skipped)) = stubs::find(interrupted.address())
    {
        let skipped = if is_skipped { arch::stub::SKIPS } else { 0 };
        interrupted.show(stub.resume, interrupted.stack() + skipped);
        return Delivery { handler, mark: IN_STUB };
    }
    Delivery { handler, mark }
}

/// A handler that was entered with something to undo has returned.
pub(crate) extern "C" fn handled(mark: *const CallSlot, context: *mut libc::ucontext_t) {
    if core::ptr::eq(mark, IN_STUB) {
        // SAFETY: as in `arrived`, which made this mark for the same context.
        unsafe { Interrupted::new(context) }.show_own();
    } else {
        call_stack::unmark_alternate(mark);
    }
}

const fn may_wait(signal: u32) -> bool {
    !matches!(
        signal.cast_signed(),
        libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGFPE | libc::SIGTRAP | libc::SIGSYS
    ) && signal != SET_IDS
}

/// Makes the signal pending again, and blocks it. False if the kernel has no room for it.
fn queue_again(signal: u32, information: *mut libc::siginfo_t) -> bool {
    let mut copy = [0u64; INFORMATION_BYTES / 8];
    let before = call_stack::block_signals();
    // SAFETY: the kernel wrote the information, of which it wants the rest to be zero.
    let queued = unsafe {
        let used = information.cast::<[u64; INFORMATION_USED_BYTES / 8]>().read();
        copy.iter_mut().zip(used).for_each(|(to, from)| *to = from);
        let process = raw::getpid().cast_unsigned();
        let thread = raw::call0(libc::SYS_gettid).cast_unsigned();
        let information = (&raw const copy).addr() as u64;
        let number = libc::SYS_rt_tgsigqueueinfo;
        raw::call4(number, process, thread, u64::from(signal), information)
    };
    if queued != 0 {
        call_stack::restore_mask(before);
    }
    queued == 0
}
