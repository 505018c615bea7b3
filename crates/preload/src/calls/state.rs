//! What this process knows: the client, the prefix, which descriptors are ours, where it stands.
//!
//! Everything is in statics of atomics: calls come from any thread, from signal handlers, and from
//! both sides of a fork. The descriptor table itself is in the host's shared memory (it must
//! survive exec and be found when the process is killed); here is a bitmap of it, so that a call on
//! a descriptor of the kernel costs one load.
//!
//! Life: the constructor calls `prepare`; the first call that concerns the instance attaches.

use crate::calls::hooks;
use crate::calls::native;
use crate::calls::uses::{self, Use};
use client::{Client, ProcessIndex};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicI32, AtomicU8, AtomicU16, AtomicU32, AtomicU64};
use wire::errno::{Errno, Result};

/// The client of this process.
pub static CLIENT: Client = Client::new();

/// Descriptors that we can know: the table in shared memory has as many rows.
pub const DESCRIPTOR_COUNT: usize = 65_536;
/// Rows at the end of the table that are no descriptors: the working directory, and mappings.
pub const WORKING_DIRECTORY: u32 = DESCRIPTOR_COUNT as u32 - 1;
/// First row of a mapping. See `mapping`.
pub const MAPPING_FIRST: u32 = DESCRIPTOR_COUNT as u32 - 1024;
/// The row of the file that the process runs, if it lies in the instance.
pub const PROGRAM: u32 = DESCRIPTOR_COUNT as u32 - 2;
/// True if the process runs a program of the instance, so that its row stays.
static KEEPS_PROGRAM: AtomicU8 = AtomicU8::new(0);

const NONE: u32 = u32::MAX;

static OURS: [AtomicU64; DESCRIPTOR_COUNT / 64] = [const { AtomicU64::new(0) }; _];
static TABLE: AtomicU32 = AtomicU32::new(NONE);
static CHILD_TABLE: AtomicU32 = AtomicU32::new(NONE);
static PLACEHOLDER: AtomicI32 = AtomicI32::new(-1);

const UNPREPARED: u8 = 0;
const PREPARED: u8 = 1;
const ATTACHING: u8 = 2;
const ATTACHED: u8 = 3;
static STAGE: AtomicU8 = AtomicU8::new(UNPREPARED);
static ATTACHER: AtomicU32 = AtomicU32::new(0);

/// Longest run directory and prefix.
pub const SETTING_BYTES_MAX: usize = 1024;

/// Eight bytes in a word, so that a path is compared quickly; zeros behind the end.
struct Setting {
    words: [AtomicU64; SETTING_BYTES_MAX / 8],
    length: AtomicU32,
}

impl Setting {
    const fn new() -> Setting {
        Setting {
            words: [const { AtomicU64::new(0) }; SETTING_BYTES_MAX / 8],
            length: AtomicU32::new(0),
        }
    }

    fn set(&self, value: &[u8]) {
        let value = value.get(..value.len().min(SETTING_BYTES_MAX - 1)).unwrap_or(&[]);
        for (word, bytes) in self.words.iter().zip(value.chunks(8)) {
            word.store(word_of(bytes), Relaxed);
        }
        self.length.store(value.len() as u32, Release);
    }

    fn len(&self) -> usize {
        self.length.load(Acquire) as usize
    }

    fn byte(&self, at: usize) -> Option<u8> {
        let word = self.words.get(at / 8).filter(|_| at < self.len())?.load(Relaxed);
        word.to_le_bytes().get(at % 8).copied()
    }

    /// What follows in `path` if it begins with this setting.
    #[inline]
    fn strip_from<'a>(&self, path: &'a [u8]) -> Option<&'a [u8]> {
        let (front, rest) = path.split_at_checked(self.len())?;
        let (chunks, tail) = front.as_chunks::<8>();
        let mut words = self.words.iter();
        for (chunk, word) in chunks.iter().zip(&mut words) {
            if u64::from_le_bytes(*chunk) != word.load(Relaxed) {
                return None;
            }
        }
        let last = words.next().map_or(0, |word| word.load(Relaxed));
        (tail.is_empty() || word_of(tail) == last).then_some(rest)
    }

    fn get(&self, to: &mut [u8; SETTING_BYTES_MAX]) -> usize {
        let length = self.length.load(Acquire) as usize;
        for (bytes, word) in to.chunks_mut(8).zip(&self.words).take(length.div_ceil(8)) {
            for (byte, from) in bytes.iter_mut().zip(word.load(Relaxed).to_le_bytes()) {
                *byte = from;
            }
        }
        length
    }
}

/// Up to eight bytes as a word, the first in its lowest bits.
fn word_of(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}

static RUN: Setting = Setting::new();
static PREFIX: Setting = Setting::new();
/// The first daemon of this host: the numbers of a host's daemons begin anywhere.
static HOME: AtomicU16 = AtomicU16::new(0);
/// Where the last component of the prefix begins.
static NAME_AT: AtomicU32 = AtomicU32::new(0);

/// Takes the settings from the environment, at load time. Without both, nothing is ever ours.
pub fn prepare(run: &[u8], prefix: &[u8], home: u16) {
    if run.is_empty() || prefix.first() != Some(&b'/') || prefix.len() < 2 {
        return;
    }
    let mut end = prefix.len();
    while end > 1 && prefix.get(end - 1) == Some(&b'/') {
        end -= 1;
    }
    let prefix = prefix.get(..end).unwrap_or(prefix);
    let name_at = prefix.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    RUN.set(run);
    PREFIX.set(prefix);
    HOME.store(home, Relaxed);
    NAME_AT.store(name_at as u32, Relaxed);
    STAGE.store(PREPARED, Release);
}

/// True if an instance is set up for this process.
#[must_use]
pub fn is_prepared() -> bool {
    STAGE.load(Acquire) != UNPREPARED
}

/// If `path`, absolute, is below the prefix: what follows the prefix (`.` for the prefix itself).
///
/// Components are compared, so `//forebay/./x` is ours as well. `..` is not resolved here: a path
/// that reaches the prefix through it is rare and would need the kernel's word on every component.
#[must_use]
pub fn below_prefix(path: &[u8]) -> Option<&[u8]> {
    if !is_prepared() {
        return None;
    }
    // Most paths name it as it is.
    match PREFIX.strip_from(path) {
        Some([]) => Some(b"."),
        Some([b'/', rest @ ..]) => Some(unless_empty(skip_dots(rest))),
        _ => below_spelled(path),
    }
}

fn unless_empty(rest: &[u8]) -> &[u8] {
    if rest.is_empty() { b"." } else { rest }
}

/// As `below_prefix`, for a prefix that is spelled in another way.
fn below_spelled(path: &[u8]) -> Option<&[u8]> {
    let length = PREFIX.len();
    let mut rest = path;
    let mut at = 0;
    loop {
        while PREFIX.byte(at) == Some(b'/') {
            at += 1;
        }
        rest = skip_dots(rest);
        if at >= length {
            return Some(unless_empty(rest));
        }
        while let Some(wanted) = PREFIX.byte(at) {
            if wanted == b'/' {
                break;
            }
            let (&got, next) = rest.split_first()?;
            if got != wanted {
                return None;
            }
            rest = next;
            at += 1;
        }
        if rest.first().is_some_and(|&byte| byte != b'/') {
            return None;
        }
    }
}

/// The next component of `path`, from offset `from` on, that is named like the last one of the
/// prefix: where it begins and ends.
#[must_use]
pub fn find_name(path: &[u8], from: usize) -> Option<(usize, usize)> {
    let name_at = NAME_AT.load(Relaxed) as usize;
    let name_length = PREFIX.len().checked_sub(name_at)?;
    let mut start = from;
    while start < path.len() {
        let rest = path.get(start..)?;
        let length = rest.iter().position(|&byte| byte == b'/').unwrap_or(rest.len());
        let name = rest.iter().take(length).enumerate();
        let is_it = length == name_length
            && name.into_iter().all(|(at, byte)| PREFIX.byte(name_at + at) == Some(*byte));
        if is_it {
            return Some((start, start + length));
        }
        start += length + 1;
    }
    None
}

/// The instance's directory on this host. Returns its length.
pub fn run_directory(to: &mut [u8]) -> usize {
    let mut text = [0; SETTING_BYTES_MAX];
    let length = RUN.get(&mut text);
    for (to, from) in to.iter_mut().zip(text.iter().take(length)) {
        *to = *from;
    }
    length.min(to.len())
}

/// The directory that the prefix lies in, as a path.
pub fn prefix_parent(to: &mut [u8; SETTING_BYTES_MAX]) -> usize {
    PREFIX.get(to);
    NAME_AT.load(Relaxed) as usize
}

/// Skips slashes and components that are `.`, but leaves a last slash as a sign of a directory.
#[must_use]
pub fn skip_dots(path: &[u8]) -> &[u8] {
    let mut rest = path;
    loop {
        match rest {
            [b'/', next @ ..] => rest = next,
            [b'.', b'/', next @ ..] => rest = next,
            [b'.'] => return &[],
            _ => return rest,
        }
    }
}

/// The client, attached. The first caller attaches; others wait for it.
///
/// # Errors
/// `EIO` if the instance is gone; what `register` says.
pub fn client() -> Result<&'static Client> {
    if STAGE.load(Acquire) == ATTACHED {
        return Ok(&CLIENT);
    }
    attach()
}

#[cold]
fn attach() -> Result<&'static Client> {
    loop {
        match STAGE.compare_exchange(PREPARED, ATTACHING, AcqRel, Acquire) {
            Ok(_) => break,
            Err(ATTACHED) => return Ok(&CLIENT),
            Err(ATTACHING) => {
                // A signal handler in the middle of our own attaching can not wait for itself.
                if ATTACHER.load(Relaxed) == thread() {
                    return Err(Errno::EIO);
                }
                let _ = native::call(libc::SYS_sched_yield, [0; 6]);
            }
            Err(_) => return Err(Errno::EIO),
        }
    }
    ATTACHER.store(thread(), Relaxed);
    let outcome = attach_once();
    STAGE.store(if outcome.is_ok() { ATTACHED } else { PREPARED }, Release);
    outcome.map(|()| &CLIENT)
}

fn attach_once() -> Result<()> {
    let (mut run, mut prefix) = ([0; SETTING_BYTES_MAX], [0; SETTING_BYTES_MAX]);
    let run_length = RUN.get(&mut run);
    let prefix_length = PREFIX.get(&mut prefix);
    // `Setting::set` leaves room for the NUL, which the zeroed buffer provides.
    let run = run.get(..=run_length).and_then(|run| core::ffi::CStr::from_bytes_with_nul(run).ok());
    let prefix = prefix.get(..prefix_length).unwrap_or(&[]);
    if !CLIENT.is_attached() {
        let attached = CLIENT.attach(run.ok_or(Errno::EINVAL)?, prefix, HOME.load(Relaxed));
        // An instance that is gone is no file that is missing: a program would go on without it.
        attached.map_err(|why| if is_gone(why) { Errno::EIO } else { why })?;
    }
    if PLACEHOLDER.load(Relaxed) < 0 {
        PLACEHOLDER.store(make_placeholder()?, Relaxed);
    }
    let (pid, started) = hooks::identity();
    let table = match CLIENT.find_process(pid, started) {
        Some(table) => {
            drop_what_exec_closed(table);
            table
        }
        None => CLIENT.register(pid, started)?,
    };
    CLIENT.for_each_fd(table, &mut |fd, _, _| mark(fd, true));
    TABLE.store(table.0, Release);
    Ok(())
}

fn is_gone(why: Errno) -> bool {
    matches!(why, Errno::ENOENT | Errno::ECONNREFUSED)
}

/// A table found at the first use was that of the program before exec. The kernel closed the
/// placeholders that were marked so, and its numbers may stand for other files by now; mappings
/// ended as well.
fn drop_what_exec_closed(table: ProcessIndex) {
    CLIENT.for_each_fd(table, &mut |fd, file, close_on_exec| {
        let is_mapping = (MAPPING_FIRST..PROGRAM).contains(&fd);
        let is_kept = fd == PROGRAM && KEEPS_PROGRAM.load(Relaxed) != 0;
        if !is_kept && (close_on_exec || is_mapping) && CLIENT.fd_set(table, fd, None).is_ok() {
            let _ = uses::close(file, table);
        }
    });
}

/// An empty regular file that nobody can write: what the kernel knows of our descriptors. A
/// program that we did not catch gets EPERM from a write to it, and never loses data silently.
fn make_placeholder() -> Result<i32> {
    let name = c"forebay".as_ptr() as u64;
    let flags = u64::from(libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
    let fd = kernel(native::call(libc::SYS_memfd_create, [name, flags, 0, 0, 0, 0]))? as i32;
    let seals = libc::F_SEAL_SEAL | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_WRITE;
    let _ =
        native::call(libc::SYS_fcntl, [fd as u64, libc::F_ADD_SEALS as u64, seals as u64, 0, 0, 0]);
    // Programs count on low numbers for what they open themselves.
    let high = native::duplicate(fd, 900, true);
    if high < 0 {
        return Ok(fd);
    }
    native::close(fd);
    Ok(high as i32)
}

/// The kernel's answer as a result.
///
/// # Errors
/// The errno that it holds.
pub fn kernel(answer: i64) -> Result<i64> {
    if (-4095..0).contains(&answer) { Err(Errno((-answer) as u16)) } else { Ok(answer) }
}

fn thread() -> u32 {
    native::call(libc::SYS_gettid, [0; 6]) as u32
}

/// The descriptor table of the calling process; of the child, between vfork and exec.
#[must_use]
#[inline]
pub fn table() -> Option<ProcessIndex> {
    let child = CHILD_TABLE.load(Acquire);
    if child != NONE && hooks::is_vfork_child() {
        return Some(ProcessIndex(child));
    }
    let table = TABLE.load(Acquire);
    (table != NONE).then_some(ProcessIndex(table))
}

/// Says that the process runs a program of the instance, before it attaches.
pub fn keep_program() {
    KEEPS_PROGRAM.store(1, Relaxed);
}

/// The file that the process runs, if it lies in the instance.
#[must_use]
pub fn program() -> Option<Use> {
    if KEEPS_PROGRAM.load(Relaxed) == 0 || client().is_err() {
        return None;
    }
    used_by_row(PROGRAM)
}

/// The open file behind a row of the table that is no descriptor.
#[must_use]
pub fn used_by_row(row: u32) -> Option<Use> {
    uses::begin(CLIENT.fd_word(table()?, row)?)
}

/// The descriptor table of a process that ends, or of the child between vfork and exec; from now
/// on it has none.
#[must_use]
pub fn give_up_table() -> Option<ProcessIndex> {
    if hooks::is_vfork_child() {
        let child = CHILD_TABLE.swap(NONE, AcqRel);
        return (child != NONE).then_some(ProcessIndex(child));
    }
    let table = TABLE.swap(NONE, AcqRel);
    (table != NONE).then_some(ProcessIndex(table))
}

/// The table that a process made by fork or vfork will use. Called before, in the parent.
#[must_use]
pub fn prepare_child() -> Option<ProcessIndex> {
    CLIENT.fork_copy(table()?).ok()
}

/// In a forked child: its table is the copy.
pub fn become_child(copy: ProcessIndex) {
    let (pid, started) = hooks::identity();
    let _ = CLIENT.adopt(copy, pid, started);
    TABLE.store(copy.0, Release);
    CHILD_TABLE.store(NONE, Release);
}

/// In a child of vfork, which shares this memory with its waiting parent.
pub fn become_vfork_child(copy: ProcessIndex) {
    let (pid, started) = hooks::identity();
    let _ = CLIENT.adopt(copy, pid, started);
    CHILD_TABLE.store(copy.0, SeqCst);
}

/// In the parent, when the child of vfork runs another program or is gone.
pub fn end_vfork() {
    CHILD_TABLE.store(NONE, SeqCst);
}

/// Notes in the bitmap whether `fd` is ours.
pub fn mark(fd: u32, ours: bool) {
    let Some(word) = OURS.get(fd as usize / 64) else { return };
    let bit = 1 << (fd % 64);
    if ours {
        word.fetch_or(bit, SeqCst);
    } else {
        word.fetch_and(!bit, SeqCst);
    }
}

/// False if `fd` is none of ours, by the bitmap.
#[must_use]
#[inline]
pub fn may_be_ours(fd: u32) -> bool {
    let word = OURS.get(fd as usize / 64).map_or(0, |word| word.load(Acquire));
    word & (1 << (fd % 64)) != 0 && fd < MAPPING_FIRST
}

/// The open file behind `fd`, if it is ours. It stays open while the result lives.
#[must_use]
#[inline(always)]
pub fn ours(fd: u64) -> Option<Use> {
    // The kernel looks at the lower 32 bits of a descriptor.
    let fd = fd as u32;
    if !may_be_ours(fd) {
        return None;
    }
    // A process that was exec'ed with descriptors of ours attaches at its first call on one.
    uses::begin(CLIENT.fd_word(table()?, fd)?)
}

/// True if exec closes `fd`.
#[must_use]
pub fn closes_on_exec(fd: u64) -> bool {
    let entry = table().and_then(|table| CLIENT.fd_get(table, fd as u32));
    entry.is_some_and(|(_, close_on_exec)| close_on_exec)
}

/// The kernel's placeholder.
#[must_use]
pub fn placeholder() -> i32 {
    PLACEHOLDER.load(Relaxed)
}

/// True for a descriptor that belongs to this library and that no program may see or close.
#[must_use]
pub fn is_private(fd: u64) -> bool {
    let fd = fd as u32 as i32;
    STAGE.load(Acquire) == ATTACHED
        && (fd == placeholder() || CLIENT.is_own_descriptor(fd) || crate::calls::aio::is_null(fd))
}
