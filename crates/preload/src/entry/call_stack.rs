//! Stacks of this library: each call in progress has one, because an application may have little of
//! its own left (a thread of the smallest size, a coroutine, a handler on an alternate stack).
//!
//! A slot says whose call uses its stack. `arch::enter` claims the slot that belongs to the number
//! of the thread and switches to its stack; `claim` does what that cannot: it maps a stack at its
//! first use, finds another slot where the first choice is taken, and detects calls that ended
//! without returning. If no stack is to be had, a call stays on the application's.
//!
//! An owner is the thread's number plus one, as libc keeps it. A child of vfork has its parent's.
//!
//!   UNMAPPED --claim--> owner --end of the call--> FREE --claim--> owner ..
//!
//! Invariants:
//!  1. A slot leaves UNMAPPED and FREE by compare and exchange only. Its memory belongs to the
//!     owner.
//!  2. A slot whose owner is the calling thread, while that runs elsewhere than on a stack of this
//!     library and than on its alternate signal stack, belongs to a call that was left by a jump.
//!  3. A call that is made on an alternate signal stack runs with signals blocked: the kernel, which
//!     sees the thread elsewhere, would begin the next handler at that stack's top and overwrite
//!     the one in progress. `mark_alternate` takes the slot of first choice, so such a call cannot
//!     pass `claim` by.
//!  4. A call that waits for something that need not come, and an exec, let in what was deferred:
//!     `deliver`, `call_waiting`, `call_exec`. A call of 3 has no alternate stack meanwhile.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use crate::arch::raw;
use crate::entry::dispatch;
use crate::entry::process::is_vfork_child;
use shm::signals::{self, Arrived};

/// Slots: calls at a time that have a stack. A power of two; `arch::enter` masks with it.
pub const SLOTS: usize = 128;
/// Length of a slot; `arch::enter` depends on it and on five fields.
pub const SLOT_BYTES: usize = 64;

/// Four times what the deepest call was measured to need. Pages are taken as they are used.
const STACK_BYTES: u64 = 256 * 1024;
const GUARD_BYTES: u64 = 4096;

const FREE: u32 = 0;
const UNMAPPED: u32 = u32::MAX;

/// A stack and the call that uses it.
#[repr(C, align(64))]
pub struct CallSlot {
    /// The thread that works on it, plus one.
    owner: AtomicU32,
    /// 1: the mask below is restored at the end of the call.
    has_deferred: AtomicU32,
    /// The end of the memory, where its use begins.
    top: AtomicU64,
    /// The signals that were blocked before this library blocked all.
    mask: AtomicU64,
    /// 1: signals are delivered at once, in the middle of the call.
    delivers: AtomicU32,
    /// 1: no call; the thread runs a signal handler on its alternate stack.
    is_mark: AtomicU32,
    /// 1: the call was made on the alternate stack, and runs with signals blocked from its start.
    on_alternate: AtomicU32,
    /// The alternate stack, while signals are let in that must not use it; its address is 0 otherwise.
    alternate: [AtomicU64; 2],
}

const _: () = assert!(size_of::<CallSlot>() == SLOT_BYTES && SLOTS.is_power_of_two());
const _: () = assert!(core::mem::offset_of!(CallSlot, has_deferred) == 4);
const _: () = assert!(core::mem::offset_of!(CallSlot, top) == 8);
const _: () = assert!(core::mem::offset_of!(CallSlot, mask) == 16);
const _: () = assert!(core::mem::offset_of!(CallSlot, on_alternate) == 32);

impl CallSlot {
    const fn new(owner: u32) -> CallSlot {
        CallSlot {
            owner: AtomicU32::new(owner),
            has_deferred: AtomicU32::new(0),
            top: AtomicU64::new(0),
            mask: AtomicU64::new(0),
            delivers: AtomicU32::new(0),
            is_mark: AtomicU32::new(0),
            on_alternate: AtomicU32::new(0),
            alternate: [const { AtomicU64::new(0) }; 2],
        }
    }

    fn contains(&self, address: u64) -> bool {
        let top = self.top.load(Relaxed);
        address <= top && address >= top.saturating_sub(STACK_BYTES) && top != 0
    }

    fn is_mapped(&self) -> bool {
        self.top.load(Acquire) != 0
    }

    /// Maps the stack. False if there is no memory.
    fn map(&self) -> bool {
        let bytes = STACK_BYTES + GUARD_BYTES;
        let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as u64;
        // SAFETY: new memory at an address of the kernel's choice, and the protection of its first
        // page. WHY: the heap is libc's.
        let start = unsafe {
            let start = raw::call6(libc::SYS_mmap, 0, bytes, protection, flags, u64::MAX, 0);
            if start > 0 {
                let _ = raw::call3(libc::SYS_mprotect, start.cast_unsigned(), GUARD_BYTES, 0);
            }
            start
        };
        if start > 0 {
            self.top.store(start.cast_unsigned() + bytes, Release);
        }
        start > 0
    }

    /// Gives the slot back, for its owner or for one that is gone.
    fn free(&self) {
        self.clear();
        self.owner.store(if self.is_mapped() { FREE } else { UNMAPPED }, Release);
    }

    fn clear(&self) {
        for flag in [&self.has_deferred, &self.delivers, &self.is_mark, &self.on_alternate] {
            flag.store(0, Relaxed);
        }
        let [start, _] = &self.alternate;
        start.store(0, Relaxed);
    }

    /// Keeps a signal for the end of the call, which runs with all blocked from now on. `mask`: the
    /// signals that were blocked before.
    pub(crate) fn defer(&self, mask: u64) {
        if self.has_deferred.load(Relaxed) == 0 {
            self.mask.store(mask, Relaxed);
            self.has_deferred.store(1, Relaxed);
        }
    }

    /// True if a signal is delivered in the middle of the call. Cancellation would end it there, so it
    /// ends waits instead; before an exec it does nothing.
    pub(crate) fn delivers(&self, is_cancellation: bool) -> bool {
        match self.delivers.load(Relaxed) {
            0 => false,
            IN_WAIT => !is_cancellation,
            _ => true,
        }
    }

    /// Lets signals in that wait for the end of the call: the program's handlers run here and now. They
    /// keep away from the alternate stack if the call was made there.
    fn let_in(&self) {
        let mask = self.mask.load(Relaxed);
        if self.on_alternate.load(Relaxed) != 0 {
            self.leave_alternate();
        }
        self.has_deferred.store(0, Relaxed);
        restore_mask(mask);
    }

    /// After `let_in`: a call that was made on the alternate stack goes on with signals blocked.
    fn shut_out(&self) {
        if self.on_alternate.load(Relaxed) != 0 {
            self.defer(block_signals());
            self.enter_alternate();
        }
    }

    fn leave_alternate(&self) {
        let mut stack = NO_STACK;
        let none = libc::stack_t { ss_flags: libc::SS_DISABLE, ..NO_STACK };
        if set_alternate(&none, &mut stack) == 0 && stack.ss_flags & libc::SS_DISABLE == 0 {
            let [start, bytes] = &self.alternate;
            bytes.store(stack.ss_size as u64, Relaxed);
            start.store(stack.ss_sp.addr() as u64, Relaxed);
        }
    }

    fn enter_alternate(&self) {
        let [start, bytes] = &self.alternate;
        let ss_sp = start.swap(0, Relaxed) as *mut core::ffi::c_void;
        let ss_size = bytes.load(Relaxed) as usize;
        if !ss_sp.is_null() {
            set_alternate(&libc::stack_t { ss_sp, ss_flags: 0, ss_size }, &mut { NO_STACK });
        }
    }
}

const NO_STACK: libc::stack_t =
    libc::stack_t { ss_sp: core::ptr::null_mut(), ss_flags: 0, ss_size: 0 };

fn set_alternate(new: &libc::stack_t, old: &mut libc::stack_t) -> i64 {
    let (new, old) = ((&raw const *new).addr() as u64, (&raw mut *old).addr() as u64);
    // SAFETY: structures of the kernel's form that live across the call.
    unsafe { raw::call2(libc::SYS_sigaltstack, new, old) }
}

/// Values of `CallSlot::delivers`.
const IN_WAIT: u32 = 1;
const BEFORE_EXEC: u32 = 2;

/// The slots. Used by `arch::enter`, too.
pub static CALLS: [CallSlot; SLOTS] = [const { CallSlot::new(UNMAPPED) }; SLOTS];

/// Takes part in the release of a call without a slot.
pub static NO_SLOT: CallSlot = CallSlot::new(FREE);

/// 1: libc keeps the number of the thread where it is expected; 2: it does not. 0: not known yet.
static TRUST: AtomicU32 = AtomicU32::new(0);
/// A thread was made that shares the number which libc keeps with the thread that made it.
static SHARES_NUMBERS: AtomicBool = AtomicBool::new(false);
/// Slots of the forking thread before it made a child that shares its memory.
static HELD_BEFORE: [AtomicU64; SLOTS / 64] = [const { AtomicU64::new(0) }; SLOTS / 64];

/// The calling thread as owner.
fn me() -> u32 {
    crate::arch::libc_thread().wrapping_add(1)
}

fn is_trusted() -> bool {
    if TRUST.load(Relaxed) == 0 {
        // SAFETY: a call without memory.
        let number = unsafe { raw::call0(libc::SYS_gettid) } as u32;
        let is_same = number == crate::arch::libc_thread();
        // A child of vfork has its parent's number, which says nothing.
        if is_vfork_child() {
            return is_same;
        }
        TRUST.store(if is_same { 1 } else { 2 }, Relaxed);
    }
    TRUST.load(Relaxed) == 1
}

/// The slot on whose stack `address` is.
pub(crate) fn slot_of(address: u64) -> Option<&'static CallSlot> {
    CALLS.iter().find(|slot| slot.contains(address))
}

fn here() -> u64 {
    let here = 0u8;
    (&raw const here).addr() as u64
}

/// True if the calling thread runs on its alternate signal stack.
fn is_on_alternate_stack() -> bool {
    let mut stack = NO_STACK;
    let to = (&raw mut stack).addr() as u64;
    // SAFETY: the kernel fills the structure, which is ours.
    let asked = unsafe { raw::call2(libc::SYS_sigaltstack, 0, to) };
    asked == 0 && stack.ss_flags & libc::SS_ONSTACK != 0
}

/// A stack for a call that begins, where the thread's first choice was not free. Null: there is
/// none. All signals are blocked; `mask` is what the caller restores.
pub(crate) extern "C" fn claim(mask: &mut u64) -> *const CallSlot {
    let me = me();
    let mut blocks = false;
    if is_trusted() && CALLS.iter().any(|slot| slot.owner.load(Relaxed) == me) {
        blocks = end_abandoned(me, mask);
    }
    let Some(slot) = find(me) else { return core::ptr::null() };
    if blocks {
        slot.defer(*mask);
        slot.on_alternate.store(1, Relaxed);
        *mask = blocked_with(*mask);
    }
    slot
}

/// Frees the slots of calls that the calling thread left by jumps. True if it runs a handler on its
/// alternate stack.
fn end_abandoned(me: u32, mask: &mut u64) -> bool {
    let here = here();
    let mine = || CALLS.iter().filter(|slot| slot.owner.load(Relaxed) == me);
    let is_shared = SHARES_NUMBERS.load(Relaxed) || is_vfork_child();
    if is_shared || slot_of(here).is_some() {
        return false;
    }
    if is_on_alternate_stack() {
        return true;
    }
    let has_calls = mine().any(|slot| slot.is_mark.load(Relaxed) == 0);
    if has_calls && let Some(hooks) = dispatch::hooks() {
        (hooks.abandoned)();
    }
    for slot in mine() {
        if slot.has_deferred.load(Relaxed) != 0 {
            *mask = slot.mask.load(Relaxed);
        }
        slot.enter_alternate();
        slot.free();
    }
    false
}

/// Claims a slot, the first choice first.
fn find(me: u32) -> Option<&'static CallSlot> {
    let first = crate::arch::libc_thread() as usize;
    let claims = |slot: &'static CallSlot, from: u32| {
        slot.owner.compare_exchange(from, me, AcqRel, Relaxed).is_ok()
    };
    let slots = || (0..SLOTS).filter_map(move |step| CALLS.get((first + step) % SLOTS));
    for slot in slots() {
        if slot.owner.load(Relaxed) == FREE && claims(slot, FREE) {
            return Some(slot);
        }
        if slot.owner.load(Relaxed) == UNMAPPED && claims(slot, UNMAPPED) {
            let is_mapped = slot.map();
            if !is_mapped {
                slot.free();
            }
            return is_mapped.then_some(slot);
        }
    }
    if !is_trusted() {
        return None;
    }
    slots().find(|slot| {
        let owner = slot.owner.load(Relaxed);
        let is_dead = owner != me && owner != FREE && shm::wait::is_absent(owner.wrapping_sub(1));
        let is_mine = is_dead && claims(slot, owner);
        if is_mine {
            slot.clear();
        }
        is_mine
            && (slot.is_mapped() || slot.map() || {
                slot.free();
                false
            })
    })
}

/// All signals but those that a fault of the thread raises.
pub(crate) static ALL: u64 = !(bit(libc::SIGSEGV)
    | bit(libc::SIGBUS)
    | bit(libc::SIGILL)
    | bit(libc::SIGFPE)
    | bit(libc::SIGTRAP)
    | bit(libc::SIGSYS)
    | bit(SET_IDS));
/// The signal by which libc changes the ids of all threads: its sender waits.
const SET_IDS: i32 = 33;

const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// Blocks all signals that wait for the end of a call; returns those that were blocked.
pub(crate) fn block_signals() -> u64 {
    set_mask(libc::SIG_BLOCK, ALL)
}

/// The mask during a call that has a deferred signal.
pub(crate) fn blocked_with(mask: u64) -> u64 {
    mask | ALL
}

pub(crate) fn restore_mask(mask: u64) {
    set_mask(libc::SIG_SETMASK, mask);
}

fn set_mask(how: i32, set: u64) -> u64 {
    let mut before = 0u64;
    let (from, to) = ((&raw const set).addr() as u64, (&raw mut before).addr() as u64);
    // SAFETY: two masks of 8 bytes, as the size says.
    let _ = unsafe { raw::call4(libc::SYS_rt_sigprocmask, how as u64, from, to, 8) };
    before
}

/// Delivers pending signals in the middle of the calling thread's call, with `mask` blocked, for a
/// wait that goes on.
pub(crate) fn deliver(mask: u64) {
    let Some(slot) = slot_of(here()) else { return restore_mask(mask) };
    let has_deferred = slot.has_deferred.load(Relaxed);
    slot.delivers.store(IN_WAIT, SeqCst);
    slot.mask.store(mask, Relaxed);
    slot.let_in();
    slot.delivers.store(0, SeqCst);
    slot.shut_out();
    if has_deferred != 0 {
        slot.defer(mask);
    }
}

/// The signals that the program has blocked, from those that the kernel has: others wait for the end
/// of the calling thread's call.
pub(crate) fn asked_mask(kernels: u64) -> u64 {
    let slot = slot_of(here()).filter(|slot| slot.has_deferred.load(Relaxed) != 0);
    slot.map_or(kernels, |slot| slot.mask.load(Relaxed))
}

const INTERRUPTED: i64 = -(libc::EINTR as i64);

/// A system call that may wait for something that need not come, as for the other end of a pipe. A
/// signal that has arrived during the call ends the wait, or is handled before it, as its handler was
/// set up; later ones are the kernel's.
pub(crate) fn call_waiting(number: i64, a: &[u64; 6]) -> i64 {
    let slot = slot_of(here());
    let mut is_let_in = false;
    let answer = loop {
        let deferred = &slot.unwrap_or(&NO_SLOT).has_deferred;
        // SAFETY: the caller's arguments, as for `native::call`.
        match (unsafe { crate::arch::call_waiting(number, a, deferred) }, slot) {
            (crate::arch::signal::DEFERRED, Some(slot)) => {
                if signals::arrived(slot.mask.load(Relaxed)) == Arrived::Ending {
                    break INTERRUPTED;
                }
                slot.delivers.store(IN_WAIT, SeqCst);
                slot.let_in();
                slot.delivers.store(0, SeqCst);
                is_let_in = true;
            }
            (answer, _) => break answer,
        }
    };
    if let Some(slot) = slot.filter(|_| is_let_in) {
        slot.shut_out();
    }
    answer
}

/// An exec: signals that have arrived during the call are handled before it, and the program begins
/// with those blocked that the caller has blocked.
pub(crate) fn call_exec(number: i64, a: &[u64; 6]) -> i64 {
    let [b, c, d, e, f, g] = *a;
    // SAFETY: the caller's arguments, as for `native::call`.
    let call = || unsafe { raw::call6(number, b, c, d, e, f, g) };
    let Some(slot) = slot_of(here()) else { return call() };
    slot.delivers.store(BEFORE_EXEC, SeqCst);
    let is_let_in = slot.has_deferred.load(SeqCst) != 0;
    if is_let_in {
        slot.let_in();
    }
    let answer = call();
    slot.delivers.store(0, SeqCst);
    if is_let_in {
        slot.shut_out();
    }
    answer
}

/// Before a handler that runs on the alternate stack: its calls go through `claim`.
pub(crate) fn mark_alternate() -> Option<&'static CallSlot> {
    let slot = CALLS.get(crate::arch::libc_thread() as usize % SLOTS)?;
    let owner = slot.owner.load(Relaxed);
    let is_ours = (owner == FREE || owner == UNMAPPED)
        && slot.owner.compare_exchange(owner, me(), AcqRel, Relaxed).is_ok();
    if is_ours {
        slot.is_mark.store(1, Relaxed);
    }
    is_ours.then_some(slot)
}

/// After such a handler, with the slot that `mark_alternate` returned.
pub(crate) fn unmark_alternate(slot: *const CallSlot) {
    let is_it = |one: &&CallSlot| core::ptr::eq(*one, slot);
    if let Some(slot) = CALLS.iter().find(is_it) {
        slot.free();
    }
}

/// A thread was made that shares libc's data of the calling thread.
pub(crate) fn note_shared_number() {
    SHARES_NUMBERS.store(true, Relaxed);
}

/// Before a child is made.
pub(crate) fn note_before_child() {
    let (me, here) = (me(), here());
    for (word, slots) in HELD_BEFORE.iter().zip(CALLS.chunks(64)) {
        let held = slots.iter().enumerate().fold(0, |held, (index, slot)| {
            let is_held = slot.owner.load(Relaxed) == me && !slot.contains(here);
            held | u64::from(is_held) << index
        });
        word.store(held, Relaxed);
    }
}

/// After the end or the exec of a child that shared this memory: frees the slot of the call that it
/// did not return from.
pub(crate) fn release_of_vfork_child() {
    if SHARES_NUMBERS.load(Relaxed) {
        return;
    }
    let (me, here) = (me(), here());
    each_with_held(&mut |slot, is_held| {
        if !is_held && !slot.contains(here) && slot.owner.load(Relaxed) == me {
            slot.free();
        }
    });
}

/// In a forked child, which has one thread: that which forked, in a call or in a handler that
/// interrupted calls.
pub(crate) fn reset_after_fork() {
    let (me, here) = (me(), here());
    SHARES_NUMBERS.store(false, Relaxed);
    each_with_held(&mut |slot, is_held| {
        if is_held {
            slot.owner.store(me, Relaxed);
        } else if slot.owner.load(Relaxed) != UNMAPPED && !slot.contains(here) {
            slot.free();
        }
    });
}

/// Calls `each` with every slot, and whether the forking thread had it.
fn each_with_held(each: &mut dyn FnMut(&CallSlot, bool)) {
    for (word, slots) in HELD_BEFORE.iter().zip(CALLS.chunks(64)) {
        let held = word.load(Relaxed);
        for (index, slot) in slots.iter().enumerate() {
            each(slot, held >> index & 1 != 0);
        }
    }
}
