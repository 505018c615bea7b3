//! Which open files calls of this process work with right now: the reference that the kernel takes for
//! a call (`fget`), for next to nothing.
//!
//! A call finds an open file by its descriptor. Meanwhile another thread may close the descriptor, or
//! put another file there: then the rows of the open file and of its file would be given back, and be
//! another file's when the call moves the offset there and notes the size that it wrote. So a call says
//! first with which open file it works, in a word of this process, and looks at the descriptor again.
//! Who closes takes the descriptor's word away and then looks for such words. One of the two sees the
//! other. Who closes and finds a call leaves the reference to it: the call closes what it was left with
//! when it ends (`Use`'s drop), unless another call works with the file, to which it leaves that.
//!
//! Nothing outside the process knows of it. A process that is killed meanwhile leaves at worst a
//! reference that was handed over: a count too high, as with other kills. A call that never comes back,
//! since a signal handler left it by `siglongjmp`, keeps its file open until the process ends.
//!
//! Words:
//!
//!   63..32 thread, 31 a reference was left to the call, 30..0 open file plus one; 0: none
//!
//! As long as a process has one thread, only its signal handlers can come between, which are over before
//! it goes on: then there is one word for the outermost call, plain stores, and no step that other
//! processors have to see. Where all words are taken, a call counts as a reference of the open file.
//!
//! Invariants:
//!  1. A word is taken by compare and exchange from 0 and freed by who took it, or by anybody when its
//!     thread is dead. `FIRST` is taken while there is one thread.
//!  2. Who works with an open file that he found by a descriptor holds a `Use` of it.
//!  3. Who gives a reference back that a descriptor stood for has taken it out of the table before, and
//!     then goes through `close`.

use crate::calls::state::CLIENT;
use client::{Descriptor, OfdIndex, ProcessIndex};
use core::num::NonZeroU32;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, compiler_fence};
use wire::errno::Result;

/// Calls at a time that need not count as references.
const WORDS: usize = 32;

/// A cache line each: threads work side by side.
#[repr(align(64))]
struct Word(AtomicU64);

static USED: [Word; WORDS] = [const { Word(AtomicU64::new(0)) }; WORDS];

/// The call of the only thread.
#[repr(align(64))]
struct First {
    /// Open file plus one; 0: none.
    file: AtomicU32,
    /// 1: a reference was left to it.
    is_left: AtomicU32,
    /// The process had a second thread since it began, or since it was forked.
    has_threads: AtomicBool,
}

static FIRST: First = First {
    file: AtomicU32::new(0),
    is_left: AtomicU32::new(0),
    has_threads: AtomicBool::new(false),
};

const LEFT: u64 = 1 << 31;

/// Of `Use::word`: `FIRST`, and none of them.
const IS_FIRST: u32 = WORDS as u32;
const IS_COUNTED: u32 = IS_FIRST + 1;

/// An open file that a call works with. It stays open as long as this lives.
pub struct Use {
    /// The open file plus one.
    number: NonZeroU32,
    word: u32,
}

impl Use {
    /// The open file.
    #[must_use]
    #[inline]
    pub const fn file(&self) -> OfdIndex {
        OfdIndex(self.number.get() - 1)
    }
}

#[inline]
const fn number(file: OfdIndex) -> u32 {
    file.0.wrapping_add(1)
}

/// From now on, calls of several threads are told apart.
pub fn note_threads() {
    FIRST.has_threads.store(true, SeqCst);
}

/// In a forked child, which has one thread, and none of the calls of its parent's.
pub fn begin_anew() {
    for Word(word) in &USED {
        word.store(0, Relaxed);
    }
    FIRST.file.store(0, Relaxed);
    FIRST.is_left.store(0, Relaxed);
    FIRST.has_threads.store(false, SeqCst);
}

/// The open file that a descriptor stands for. Inlined, since each read and write comes here.
#[inline(always)]
#[must_use]
pub fn begin(descriptor: Descriptor<'_>) -> Option<Use> {
    let number = descriptor.number()?;
    if FIRST.has_threads.load(Relaxed) || FIRST.file.load(Relaxed) != 0 {
        return begin_beside(descriptor);
    }
    FIRST.file.store(number.get(), Relaxed);
    // A signal handler that closes sees the word, or what it closed is seen below.
    compiler_fence(SeqCst);
    let used = Use { number, word: IS_FIRST };
    if descriptor.is(number) { Some(used) } else { again(used, descriptor) }
}

/// The descriptor stands for something else by now.
#[cold]
fn again(used: Use, descriptor: Descriptor<'_>) -> Option<Use> {
    drop(used);
    begin_beside(descriptor)
}

/// As `begin`, beside other threads or inside of another call. Whoever goes round met a close.
#[inline(never)]
fn begin_beside(descriptor: Descriptor<'_>) -> Option<Use> {
    loop {
        let number = descriptor.number()?;
        let Some(used) = take(number) else { continue };
        if descriptor.is(number) {
            return Some(used);
        }
    }
}

/// Says that the calling thread works with an open file. `None`: it is open no more.
fn take(number: NonZeroU32) -> Option<Use> {
    let thread = shm::wait::thread_id();
    let value = u64::from(thread) << 32 | u64::from(number.get());
    for step in 0..WORDS {
        // Neighbouring threads have neighbouring numbers.
        let word = (thread as usize + step) % WORDS;
        if let Some(Word(place)) = USED.get(word)
            && place.compare_exchange(0, value, SeqCst, Relaxed).is_ok()
        {
            return Some(Use { number, word: word as u32 });
        }
    }
    let is_open = CLIENT.retain_open(OfdIndex(number.get() - 1));
    is_open.then_some(Use { number, word: IS_COUNTED })
}

impl Drop for Use {
    #[inline(always)]
    fn drop(&mut self) {
        if self.word == IS_FIRST {
            FIRST.file.store(0, Relaxed);
            compiler_fence(SeqCst);
            if FIRST.is_left.load(Relaxed) != 0 {
                FIRST.is_left.store(0, Relaxed);
                give_back(self.file());
            }
        } else {
            end_beside(self.word, self.file());
        }
    }
}

/// The end of what `begin_beside` began.
#[inline(never)]
fn end_beside(word: u32, file: OfdIndex) {
    // No word: it counted as a reference.
    let is_left = USED.get(word as usize).is_none_or(|Word(word)| word.swap(0, SeqCst) & LEFT != 0);
    if is_left {
        give_back(file);
    }
}

/// Ends a reference that a call was left with, or counted as.
#[cold]
fn give_back(file: OfdIndex) {
    if !leave_to_call(file) {
        CLIENT.let_go(file);
    }
}

/// Calls `each` with the words of the calls that work with `file`, until it says true. Those of threads
/// that are dead are freed.
fn any_call(file: OfdIndex, each: &mut dyn FnMut(&AtomicU64, u64) -> bool) -> bool {
    for Word(place) in &USED {
        let seen = place.load(SeqCst);
        if seen as u32 & !(LEFT as u32) != number(file) {
            continue;
        }
        if !shm::wait::is_dead((seen >> 32) as u32) {
            if each(place, seen) {
                return true;
            }
        } else if place.compare_exchange(seen, 0, SeqCst, Relaxed).is_ok() && seen & LEFT != 0 {
            // The caller has one of its own.
            CLIENT.let_go(file);
        }
    }
    false
}

/// Leaves the caller's reference of `file` to a call that works with it, if there is one. Where one was
/// left already, the file stays open by that.
fn leave_to_call(file: OfdIndex) -> bool {
    if FIRST.file.load(SeqCst) == number(file) && FIRST.is_left.swap(1, SeqCst) == 0 {
        return true;
    }
    any_call(file, &mut |place, seen| {
        seen & LEFT == 0 && place.compare_exchange(seen, seen | LEFT, SeqCst, Relaxed).is_ok()
    })
}

/// True if a call of this process works with `file`.
fn is_used(file: OfdIndex) -> bool {
    if FIRST.file.load(SeqCst) == number(file) {
        return true;
    }
    FIRST.has_threads.load(Relaxed) && any_call(file, &mut |_, _| true)
}

/// Closes an open file of the descriptor table `table`, whose descriptor stands for it no more: at
/// once, or when the calls end that work with it.
///
/// # Errors
/// As `Client::close`.
pub fn close(file: OfdIndex, table: ProcessIndex) -> Result<()> {
    if is_used(file) {
        CLIENT.close_unless(file, table, || leave_to_call(file))
    } else {
        CLIENT.close(file, table)
    }
}

/// Closes all of a table, at the end of the process. What calls of other threads work with is left to
/// the daemon, which closes it as it does for a process that is killed: those threads are about to be.
///
/// # Errors
/// As `Client::release_process`.
pub fn close_all(table: ProcessIndex) -> Result<()> {
    CLIENT.release_process_but(table, &is_used)
}
