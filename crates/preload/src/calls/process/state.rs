//! State of this process: the client, the prefix, which descriptors are ours, and the descriptor
//! table.
//!
//! Everything is in statics of atomics, because calls come from any thread, from signal handlers,
//! and from both sides of a fork. The descriptor table itself is in the host's shared memory (it
//! must survive exec and be found when the process is killed). A bitmap of it is here, so that a
//! call on a descriptor of the kernel costs one load.
//!
//! Life cycle: the constructor calls `prepare`; the first call that concerns the instance attaches. A
//! process that gives up root leaves, and does not attach again (`credentials`).

use crate::calls::files::kernel_io;
use crate::calls::files::uses::{self, FileUse};
use crate::calls::native;
use crate::calls::process::activity;
use crate::calls::process::cut_off;
use crate::calls::process::hooks;
use crate::calls::process::identity::{ProcessIdentity, identity};
use crate::calls::process::limits;
use crate::calls::process::mount;
use crate::calls::process::static_client::CLIENT;
use crate::entry::process::is_vfork_child;
use client::{Client, ProcessIndex};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicI32, AtomicU8, AtomicU16, AtomicU32, AtomicU64};
use wire::errno::{Errno, Result};

/// This library's descriptor of `/dev/null`, or -1; opened by `files::aio`.
pub static NULL_DEVICE: AtomicI32 = AtomicI32::new(-1);

fn is_null_device(fd: i32) -> bool {
    fd >= 0 && fd == NULL_DEVICE.load(Acquire)
}

/// Descriptors that can be ours: the size of the table in shared memory.
pub const DESCRIPTOR_COUNT: usize = 65_536;
/// Entries at the end of the table that are no descriptors: the working directory, and mappings.
pub const WORKING_DIRECTORY: u32 = DESCRIPTOR_COUNT as u32 - 1;
/// First entry of a mapping. See `mapping`.
pub const MAPPING_FIRST: u32 = DESCRIPTOR_COUNT as u32 - 1024;
/// The entry of the file that the process runs, if it is a file of the instance.
pub const PROGRAM: u32 = DESCRIPTOR_COUNT as u32 - 2;
/// 1 if the process runs a program of the instance, so that its entry stays.
static RUNS_INSTANCE_PROGRAM: AtomicU8 = AtomicU8::new(0);

const NONE: u32 = u32::MAX;

static OURS: [AtomicU64; DESCRIPTOR_COUNT / 64] = [const { AtomicU64::new(0) }; _];
static TABLE: AtomicU32 = AtomicU32::new(NONE);
static CHILD_TABLE: AtomicU32 = AtomicU32::new(NONE);
static PLACEHOLDER: AtomicI32 = AtomicI32::new(-1);

const UNPREPARED: u8 = 0;
const PREPARED: u8 = 1;
const ATTACHING: u8 = 2;
const ATTACHED: u8 = 3;
/// The process gave up the right to attach.
const LEFT: u8 = 4;
static STAGE: AtomicU8 = AtomicU8::new(UNPREPARED);
static ATTACHER: AtomicU32 = AtomicU32::new(0);

/// Size limit of the run directory and of the prefix.
pub const SETTING_BYTES_MAX: usize = 1024;

/// A string in words of eight bytes, so that a path is compared quickly; zeros after the end.
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

    /// The rest of `path` if it begins with this setting.
    #[inline]
    fn strip_from<'a>(&self, path: &'a [u8]) -> Option<&'a [u8]> {
        let (front, rest) = path.split_at_checked(self.len())?;
        let (blocks, tail) = front.as_chunks::<8>();
        let mut words = self.words.iter();
        for (block, word) in blocks.iter().zip(&mut words) {
            if u64::from_le_bytes(*block) != word.load(Relaxed) {
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
/// The first daemon of this host: the numbers of a host's daemons start anywhere.
static HOME: AtomicU16 = AtomicU16::new(0);
/// Offset of the last component of the prefix.
static NAME_AT: AtomicU32 = AtomicU32::new(0);

/// Takes the settings from the environment, at load time. Without both paths nothing is ever ours.
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

/// True if this process is attached, or may attach. A child of vfork may not attach for its parent,
/// which would miss the descriptors.
#[must_use]
pub fn may_attach() -> bool {
    STAGE.load(Acquire) == ATTACHED || !is_vfork_child()
}

/// True if an instance is set up for this process.
#[must_use]
pub fn is_prepared() -> bool {
    STAGE.load(Acquire) != UNPREPARED
}

/// The part of an absolute `path` after the prefix, if it is below it (`.` for the prefix itself).
///
/// Components are compared, so `//forebay/./x` is ours as well. `..` is not resolved here: a path
/// that reaches the prefix through it is rare, and each component would have to be checked with the
/// kernel.
#[must_use]
pub fn strip_instance_prefix(path: &[u8]) -> Option<&[u8]> {
    if !is_prepared() {
        return None;
    }
    // Most paths spell the prefix exactly.
    match PREFIX.strip_from(path) {
        Some([]) => Some(b"."),
        Some([b'/', rest @ ..]) => Some(unless_empty(skip_dots(rest))),
        _ => strip_spelled_prefix(path),
    }
}

fn unless_empty(rest: &[u8]) -> &[u8] {
    if rest.is_empty() { b"." } else { rest }
}

/// As `strip_instance_prefix`, for a prefix that is spelled differently.
fn strip_spelled_prefix(path: &[u8]) -> Option<&[u8]> {
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
        while let Some(expected) = PREFIX.byte(at) {
            if expected == b'/' {
                break;
            }
            let (&got, next) = rest.split_first()?;
            if got != expected {
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

/// Start and end of the next component of `path`, from `from` on, that is named like the last one
/// of the prefix.
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

/// Copies the instance's run directory on this host. Returns its length.
pub fn run_directory(to: &mut [u8]) -> usize {
    let mut text = [0; SETTING_BYTES_MAX];
    let length = RUN.get(&mut text);
    for (to, from) in to.iter_mut().zip(text.iter().take(length)) {
        *to = *from;
    }
    length.min(to.len())
}

/// Copies the prefix. Returns its length.
pub fn instance_prefix(to: &mut [u8; SETTING_BYTES_MAX]) -> usize {
    PREFIX.get(to)
}

/// Makes no path lead into the instance by its name: after `chroot` the prefix is another place.
pub fn forget_prefix() {
    // No path of a call contains a NUL.
    PREFIX.set(b"/\0");
}

/// Copies the path of the directory that contains the prefix. Returns its length.
pub fn prefix_parent(to: &mut [u8; SETTING_BYTES_MAX]) -> usize {
    PREFIX.get(to);
    NAME_AT.load(Relaxed) as usize
}

/// Skips slashes and `.` components, but keeps a last slash as the mark of a directory.
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
/// `EIO` if the instance is gone; those of `register`.
pub fn client() -> Result<&'static Client> {
    if STAGE.load(Acquire) == ATTACHED {
        return Ok(&CLIENT);
    }
    attach(AttachTimeout::ForRestart)
}

/// Attaches if a daemon answers at once.
pub fn attach_at_once() {
    if STAGE.load(Acquire) == PREPARED {
        let _ = attach(AttachTimeout::None);
    }
}

/// Whether to wait for a daemon that restarts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AttachTimeout {
    ForRestart,
    None,
}

#[cold]
fn attach(timeout: AttachTimeout) -> Result<&'static Client> {
    // Its descriptors of the instance would be left in its parent's memory.
    if is_vfork_child() {
        return Err(Errno::EIO);
    }
    let mut yields_left = YIELDS_MAX;
    loop {
        match STAGE.compare_exchange(PREPARED, ATTACHING, SeqCst, Acquire) {
            // The child of a fork in the meantime would be neither attached nor able to attach.
            Ok(_) if yields_left > 0 && hooks::is_forking_elsewhere() => {
                STAGE.store(PREPARED, SeqCst);
                yields_left -= 1;
                let _ = native::call(libc::SYS_sched_yield, [0; 6]);
            }
            Ok(_) => break,
            Err(ATTACHED) => return Ok(&CLIENT),
            Err(ATTACHING) => {
                // A signal handler that interrupted this thread's own attach cannot wait for it.
                if ATTACHER.load(Relaxed) == thread() {
                    return Err(Errno::EIO);
                }
                let _ = native::call(libc::SYS_sched_yield, [0; 6]);
            }
            Err(LEFT) => return Err(Errno::EACCES),
            Err(_) => return Err(Errno::EIO),
        }
    }
    ATTACHER.store(thread(), Relaxed);
    let outcome = attach_once(timeout);
    STAGE.store(if outcome.is_ok() { ATTACHED } else { PREPARED }, Release);
    outcome.map(|()| &CLIENT)
}

/// How often a thread yields before it continues without waiting for another one, which a signal
/// handler must then have taken out of its call by siglongjmp.
pub const YIELDS_MAX: u32 = 100_000;

/// Waits, before a fork, for the end of another thread's attach.
pub fn await_attach() {
    let mut yields_left = YIELDS_MAX;
    while STAGE.load(SeqCst) == ATTACHING && ATTACHER.load(Relaxed) != thread() && yields_left > 0 {
        yields_left -= 1;
        let _ = native::call(libc::SYS_sched_yield, [0; 6]);
    }
}

/// In a forked child: another thread's attach does not go on here.
pub fn reset_after_fork() {
    CLIENT.reset_after_fork();
    let _ = STAGE.compare_exchange(ATTACHING, PREPARED, SeqCst, Relaxed);
}

/// Ends what calls of this thread hold that a signal handler left by a jump.
pub fn end_abandoned_calls() {
    if STAGE.load(SeqCst) == ATTACHING && ATTACHER.load(Relaxed) == thread() {
        let _ = STAGE.compare_exchange(ATTACHING, PREPARED, SeqCst, Relaxed);
    }
    CLIENT.end_abandoned_calls();
    uses::end_abandoned();
}

fn attach_once(timeout: AttachTimeout) -> Result<()> {
    let (mut run, mut prefix) = ([0; SETTING_BYTES_MAX], [0; SETTING_BYTES_MAX]);
    let run_length = RUN.get(&mut run);
    let prefix_length = PREFIX.get(&mut prefix);
    // `Setting::set` leaves room for the NUL, which the zeroed buffer provides.
    let run = run.get(..=run_length).and_then(|run| core::ffi::CStr::from_bytes_with_nul(run).ok());
    let prefix = prefix.get(..prefix_length).unwrap_or(&[]);
    limits::obey();
    CLIENT.be_a_guest();
    if !CLIENT.is_attached() {
        let (run, home) = (run.ok_or(Errno::EINVAL)?, HOME.load(Relaxed));
        let attached = match timeout {
            AttachTimeout::ForRestart => CLIENT.attach(run, prefix, home),
            AttachTimeout::None => CLIENT.attach_at_once(run, prefix, home),
        };
        // Not reported as a missing file, because a program would continue without the instance.
        attached.map_err(|why| if is_gone(why) { Errno::EIO } else { why })?;
    }
    if mount::is_there() {
        CLIENT.obey_kernel_maps();
    }
    if PLACEHOLDER.load(Relaxed) < 0 {
        let placeholder = make_placeholder()?;
        note_private(placeholder);
        PLACEHOLDER.store(placeholder, Relaxed);
    }
    let ProcessIdentity { pid, started, program } = identity();
    let table = match CLIENT.find_process(pid, started) {
        Some(table) => {
            drop_closed_by_exec(table);
            table
        }
        None => CLIENT.register(pid, started)?,
    };
    CLIENT.for_each_fd(table, &mut |fd, _, _| mark(fd, true));
    TABLE.store(table.0, Release);
    CLIENT.begin_activity((pid, started), activity::tags(program));
    Ok(())
}

fn is_gone(why: Errno) -> bool {
    matches!(why, Errno::ENOENT | Errno::ECONNREFUSED)
}

/// Cleans a table that was found at the first use and belongs to the program before exec: the
/// kernel closed the placeholders marked close-on-exec, and its numbers may refer to other files by
/// now; mappings ended as well. So may those that this program closed before it could attach.
fn drop_closed_by_exec(table: ProcessIndex) {
    CLIENT.for_each_fd(table, &mut |fd, file, close_on_exec| {
        let is_mapping = (MAPPING_FIRST..PROGRAM).contains(&fd);
        let is_running_program = fd == PROGRAM && RUNS_INSTANCE_PROGRAM.load(Relaxed) != 0;
        if !is_running_program
            && (close_on_exec || is_mapping || cut_off::is_stale(fd, file))
            && CLIENT.fd_set(table, fd, None).is_ok()
        {
            let _ = uses::close(file, table);
        }
    });
}

/// Opens what the kernel has behind descriptors of files: a file that fails loudly if it is used by
/// a call that was not intercepted. The name of a namespace is one: it has no operations, so reads
/// and maps fail (EINVAL, ENODEV), also those of another descriptor that is opened by
/// `/proc/PID/fd`; it is not open for writing (EBADF); and it polls as ready, as a regular file
/// does. Only the owner of a user namespace could join it.
fn make_placeholder() -> Result<i32> {
    let path = c"/proc/self/ns/uts".as_ptr() as u64;
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as u64;
    let fd = native::call(libc::SYS_openat, [libc::AT_FDCWD as u64, path, flags, 0, 0, 0]);
    let fd = if fd >= 0 { fd as i32 } else { make_empty_file()? };
    // Programs rely on low numbers for what they open themselves.
    let high = native::duplicate(fd, 900, true);
    if high < 0 {
        return Ok(fd);
    }
    native::close(fd);
    Ok(high as i32)
}

/// The seals of an empty file in memory that is a placeholder.
pub const PLACEHOLDER_SEALS: i32 =
    libc::F_SEAL_SEAL | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_WRITE;

/// Creates an empty regular file that nobody can write: the placeholder where `/proc` is missing, and
/// what is mapped where a file has no bytes.
///
/// # Errors
/// Those of the kernel.
pub fn make_empty_file() -> Result<i32> {
    let name = c"forebay".as_ptr() as u64;
    let flags = u64::from(libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
    let fd = kernel(native::call(libc::SYS_memfd_create, [name, flags, 0, 0, 0, 0]))? as i32;
    let seal = [fd as u64, libc::F_ADD_SEALS as u64, PLACEHOLDER_SEALS as u64, 0, 0, 0];
    let _ = native::call(libc::SYS_fcntl, seal);
    Ok(fd)
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

/// The descriptor table of the calling process; between vfork and exec, that of the child.
#[must_use]
#[inline]
pub fn table() -> Option<ProcessIndex> {
    let child = CHILD_TABLE.load(Acquire);
    if child != NONE && is_vfork_child() {
        return Some(ProcessIndex(child));
    }
    let table = TABLE.load(Acquire);
    (table != NONE).then_some(ProcessIndex(table))
}

/// Records, before attaching, that the process runs a program of the instance.
pub fn keep_program() {
    RUNS_INSTANCE_PROGRAM.store(1, Relaxed);
}

/// The file that the process runs, if it is a file of the instance.
#[must_use]
pub fn program() -> Option<FileUse> {
    if RUNS_INSTANCE_PROGRAM.load(Relaxed) == 0 || client().is_err() {
        return None;
    }
    use_entry(PROGRAM)
}

/// The open file of a table entry that is no descriptor.
#[must_use]
pub fn use_entry(row: u32) -> Option<FileUse> {
    uses::begin(CLIENT.fd_word(table()?, row)?)
}

/// Takes the descriptor table from a process that ends, or from the child between vfork and exec,
/// which then has none.
#[must_use]
pub fn take_table() -> Option<ProcessIndex> {
    if is_vfork_child() {
        let child = CHILD_TABLE.swap(NONE, AcqRel);
        return (child != NONE).then_some(ProcessIndex(child));
    }
    let table = TABLE.swap(NONE, AcqRel);
    (table != NONE).then_some(ProcessIndex(table))
}

/// True if this process has attached.
#[must_use]
pub fn is_attached() -> bool {
    STAGE.load(Acquire) == ATTACHED
}

/// Leaves the instance for good: closes what is still open there, and keeps nothing of its memory. Files
/// are then reached through the mount alone, if there is one. The process has one thread.
pub fn leave() {
    if STAGE.compare_exchange(ATTACHED, LEFT, SeqCst, Relaxed).is_err() {
        return;
    }
    if mount::is_there() {
        mount::note_only_way();
    }
    if let Some(table) = take_table() {
        let _ = CLIENT.release_process(table);
    }
    CLIENT.detach(&native::close);
}

/// Prepares the table of a process that fork or vfork will create. Called in the parent. `None`: it
/// has none itself.
#[must_use]
pub fn prepare_child() -> Option<Result<ProcessIndex>> {
    Some(CLIENT.fork_copy(table()?))
}

/// In a forked child: adopts the copy as its table.
pub fn become_child(copy: ProcessIndex) {
    let ProcessIdentity { pid, started, .. } = identity();
    let _ = CLIENT.adopt(copy, pid, started);
    TABLE.store(copy.0, Release);
    CHILD_TABLE.store(NONE, Release);
    CLIENT.begin_child_activity(pid, started);
}

/// In a child of vfork, which shares this memory with its waiting parent.
pub fn become_vfork_child(copy: ProcessIndex) {
    let ProcessIdentity { pid, started, .. } = identity();
    let _ = CLIENT.adopt(copy, pid, started);
    CHILD_TABLE.store(copy.0, SeqCst);
}

/// In the parent, when the vfork child has called exec or ended.
pub fn end_vfork() {
    CHILD_TABLE.store(NONE, SeqCst);
}

/// Records in the bitmap whether `fd` is ours.
pub fn mark(fd: u32, ours: bool) {
    let Some(word) = OURS.get(fd as usize / 64) else { return };
    let bit = 1 << (fd % 64);
    if ours {
        word.fetch_or(bit, SeqCst);
    } else {
        word.fetch_and(!bit, SeqCst);
    }
}

/// Records in the bitmap that each descriptor may be ours.
pub fn mark_all() {
    for word in &OURS {
        word.store(u64::MAX, SeqCst);
    }
}

/// False if, by the bitmap, `fd` is not ours.
#[must_use]
#[inline]
pub fn may_be_ours(fd: u32) -> bool {
    let word = OURS.get(fd as usize / 64).map_or(0, |word| word.load(Acquire));
    word & (1 << (fd % 64)) != 0 && fd < MAPPING_FIRST
}

/// The open file behind `fd`, if it is ours. It stays open while the result lives.
#[must_use]
#[inline(always)]
pub fn ours(fd: u64) -> Option<FileUse> {
    // The kernel uses the lower 32 bits of a descriptor.
    let fd = fd as u32;
    if !may_be_ours(fd) {
        return None;
    }
    let Some(table) = table() else { return cut_off::reach(fd) };
    uses::begin(CLIENT.fd_word(table, fd)?)
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

/// Records that `fd` is about to be one for which `is_private` is true.
pub fn note_private(fd: i32) {
    CLIENT.note_own_descriptor(fd);
}

/// False if `fd` is below all descriptors for which `is_private` is or was true.
#[must_use]
#[inline]
pub fn may_be_private(fd: u64) -> bool {
    CLIENT.may_be_own_descriptor(fd as u32 as i32)
}

/// True for a descriptor of this library that no program may see or close.
#[must_use]
pub fn is_private(fd: u64) -> bool {
    let fd = fd as u32 as i32;
    STAGE.load(Acquire) == ATTACHED
        && (fd == placeholder()
            || CLIENT.is_own_descriptor(fd)
            || is_null_device(fd)
            || kernel_io::is_kept(fd))
}
