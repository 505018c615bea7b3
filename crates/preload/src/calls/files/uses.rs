//! References that calls of this process hold on open files while they use them: what `fget` is in
//! the kernel, at almost no cost.
//!
//! A call finds an open file by its descriptor. Meanwhile another thread may close the descriptor
//! or put another file there. Open file and vnode would then be freed, and could belong to another
//! file by the time the call moves the offset and records the size that it wrote. So a call first
//! announces the open file in a word of this process, and then reads the descriptor again. A close
//! first removes the descriptor's entry and then searches for such words, so one of the two sees
//! the other. A close that finds a call hands its reference over: the call closes the file when it
//! ends (`FileUse`'s drop), unless another call uses the file, to which it hands the reference on.
//!
//! Nothing outside the process knows of it. A process that is killed meanwhile leaves at worst a
//! reference that was handed over: a count that is too high, as with other kills. The use by a call
//! that a signal handler left by `siglongjmp` ends at the thread's next call (`end_abandoned`).
//!
//! Words:
//!
//!   63..32 thread, 31 a reference was handed over to the call, 30..0 open file plus one; 0: none
//!
//! While a process has one thread, only its signal handlers can intervene, and they finish before
//! it continues. The outermost call then uses a single word with plain stores, and needs no
//! operation that is visible to other processors. If all words are in use, a call takes a reference
//! of the open file instead.
//!
//! Invariants:
//!  1. A word is claimed by compare and exchange from 0, and freed by the call that claimed it, or
//!     by any thread when its owner is dead. `SINGLE` is used while there is one thread.
//!  2. Code that works with an open file found by a descriptor holds a `FileUse` of it.
//!  3. A reference that stood for a descriptor is dropped only after it was taken out of the
//!     table, and through `close`.

use crate::calls::process::static_client::CLIENT;
use client::{Descriptor, OfdIndex, ProcessIndex};
use core::num::NonZeroU32;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, compiler_fence};
use wire::errno::Result;

/// Concurrent calls that need not take references.
const WORDS: usize = 32;

/// One per cache line, because threads work concurrently.
#[repr(align(64))]
struct UseWord(AtomicU64);

static USED: [UseWord; WORDS] = [const { UseWord(AtomicU64::new(0)) }; WORDS];

/// The call of the only thread.
#[repr(align(64))]
struct SingleThreadUse {
    /// Open file plus one; 0: none.
    file: AtomicU32,
    /// 1: a reference was handed over to it.
    is_handed_over: AtomicU32,
    /// The process has had a second thread since it started or was forked.
    has_threads: AtomicBool,
}

static SINGLE: SingleThreadUse = SingleThreadUse {
    file: AtomicU32::new(0),
    is_handed_over: AtomicU32::new(0),
    has_threads: AtomicBool::new(false),
};

const HANDED_OVER: u64 = 1 << 31;

/// Values of `FileUse::word` besides the index of a word: `SINGLE`, and a counted reference.
const IS_SINGLE: u32 = WORDS as u32;
const IS_COUNTED: u32 = IS_SINGLE + 1;

/// An open file that a call works with. It stays open while this lives.
pub struct FileUse {
    /// The open file plus one.
    number: NonZeroU32,
    word: u32,
}

impl FileUse {
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

/// Switches to one word per call, because the process has several threads.
pub fn note_threads() {
    SINGLE.has_threads.store(true, SeqCst);
    CLIENT.note_threads();
}

/// True if the process has had a second thread since it started or was forked.
#[must_use]
pub fn has_threads() -> bool {
    SINGLE.has_threads.load(Relaxed)
}

/// Resets the words in a forked child, which has one thread and none of its parent's calls.
pub fn reset_after_fork() {
    for UseWord(word) in &USED {
        word.store(0, Relaxed);
    }
    SINGLE.file.store(0, Relaxed);
    SINGLE.is_handed_over.store(0, Relaxed);
    SINGLE.has_threads.store(false, SeqCst);
}

/// The open file of a descriptor. Inlined, because each read and write calls it.
#[inline(always)]
#[must_use]
pub fn begin(descriptor: Descriptor<'_>) -> Option<FileUse> {
    let number = descriptor.number()?;
    if SINGLE.has_threads.load(Relaxed) || SINGLE.file.load(Relaxed) != 0 {
        return begin_beside(descriptor);
    }
    SINGLE.file.store(number.get(), Relaxed);
    // A signal handler that closes the file sees the word, or its close is seen below.
    compiler_fence(SeqCst);
    let used = FileUse { number, word: IS_SINGLE };
    if descriptor.is(number) { Some(used) } else { retry(used, descriptor) }
}

/// The descriptor refers to another file by now.
#[cold]
fn retry(used: FileUse, descriptor: Descriptor<'_>) -> Option<FileUse> {
    drop(used);
    begin_beside(descriptor)
}

/// As `begin`, beside other threads or inside another call. Each retry means that a close
/// intervened.
#[inline(never)]
fn begin_beside(descriptor: Descriptor<'_>) -> Option<FileUse> {
    loop {
        let number = descriptor.number()?;
        let Some(used) = take(number) else { continue };
        if descriptor.is(number) {
            return Some(used);
        }
    }
}

/// Announces that the calling thread uses an open file. `None`: it is no longer open.
fn take(number: NonZeroU32) -> Option<FileUse> {
    let thread = shm::wait::thread_id();
    let value = u64::from(thread) << 32 | u64::from(number.get());
    for step in 0..WORDS {
        // Threads with neighbouring ids start at neighbouring words.
        let word = (thread as usize + step) % WORDS;
        if let Some(UseWord(cell)) = USED.get(word)
            && cell.compare_exchange(0, value, SeqCst, Relaxed).is_ok()
        {
            return Some(FileUse { number, word: word as u32 });
        }
    }
    let is_open = CLIENT.retain_open(OfdIndex(number.get() - 1));
    is_open.then_some(FileUse { number, word: IS_COUNTED })
}

impl Drop for FileUse {
    #[inline(always)]
    fn drop(&mut self) {
        if self.word == IS_SINGLE {
            SINGLE.file.store(0, Relaxed);
            compiler_fence(SeqCst);
            if SINGLE.is_handed_over.load(Relaxed) != 0 {
                SINGLE.is_handed_over.store(0, Relaxed);
                end_reference(self.file());
            }
        } else {
            end_beside(self.word, self.file());
        }
    }
}

/// Ends a use that `begin_beside` began.
#[inline(never)]
fn end_beside(word: u32, file: OfdIndex) {
    // Without a word it was counted as a reference.
    let is_handed_over =
        USED.get(word as usize).is_none_or(|UseWord(word)| word.swap(0, SeqCst) & HANDED_OVER != 0);
    if is_handed_over {
        end_reference(file);
    }
}

/// Drops a reference that was handed over, or that the call took.
#[cold]
fn end_reference(file: OfdIndex) {
    if !hand_over_to_call(file) {
        CLIENT.release(file);
    }
}

/// Ends the uses of calls of the calling thread, none of which will return.
pub fn end_abandoned() {
    let me = shm::wait::thread_id();
    for UseWord(cell) in &USED {
        let value = cell.load(SeqCst);
        if (value >> 32) as u32 != me {
            continue;
        }
        let file = OfdIndex((value as u32 & !(HANDED_OVER as u32)).wrapping_sub(1));
        CLIENT.end_abandoned_use(file);
        if cell.swap(0, SeqCst) & HANDED_OVER != 0 {
            end_reference(file);
        }
    }
    let file = SINGLE.file.load(Relaxed);
    if file != 0 && !SINGLE.has_threads.load(Relaxed) {
        CLIENT.end_abandoned_use(OfdIndex(file.wrapping_sub(1)));
        drop(NonZeroU32::new(file).map(|number| FileUse { number, word: IS_SINGLE }));
    }
}

/// Calls `each` with the words of the calls that use `file`, until it returns true. Frees words of
/// dead threads.
fn any_call(file: OfdIndex, each: &mut dyn FnMut(&AtomicU64, u64) -> bool) -> bool {
    for UseWord(cell) in &USED {
        let value = cell.load(SeqCst);
        if value as u32 & !(HANDED_OVER as u32) != number(file) {
            continue;
        }
        if !shm::wait::is_absent((value >> 32) as u32) {
            if each(cell, value) {
                return true;
            }
        } else if cell.compare_exchange(value, 0, SeqCst, Relaxed).is_ok()
            && value & HANDED_OVER != 0
        {
            // The caller holds a reference of its own.
            CLIENT.release(file);
        }
    }
    false
}

/// Hands the caller's reference of `file` over to a call that uses it. Returns false if there is
/// none. If the call already has one, the file stays open by that.
fn hand_over_to_call(file: OfdIndex) -> bool {
    if SINGLE.file.load(SeqCst) == number(file) && SINGLE.is_handed_over.swap(1, SeqCst) == 0 {
        return true;
    }
    any_call(file, &mut |cell, value| {
        value & HANDED_OVER == 0
            && cell.compare_exchange(value, value | HANDED_OVER, SeqCst, Relaxed).is_ok()
    })
}

/// True if a call of this process uses `file`.
fn is_used(file: OfdIndex) -> bool {
    if SINGLE.file.load(SeqCst) == number(file) {
        return true;
    }
    SINGLE.has_threads.load(Relaxed) && any_call(file, &mut |_, _| true)
}

/// Closes an open file whose descriptor in `table` no longer refers to it: at once, or at the end
/// of the calls that use it.
///
/// # Errors
/// As `Client::close`.
pub fn close(file: OfdIndex, table: ProcessIndex) -> Result<()> {
    if is_used(file) {
        CLIENT.close_unless(file, table, || hand_over_to_call(file))
    } else {
        CLIENT.close(file, table)
    }
}

/// Closes all files of a table at the end of the process. Files that calls of other threads use are
/// left to the daemon, which closes them as for a killed process, because those threads are about
/// to be killed.
///
/// # Errors
/// As `Client::release_process`.
pub fn close_all(table: ProcessIndex) -> Result<()> {
    CLIENT.release_process_but(table, &is_used)
}
