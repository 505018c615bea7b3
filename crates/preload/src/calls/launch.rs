//! Other programs and other processes: exec, and the hooks around fork and vfork.
//!
//! A program that is exec'ed finds its descriptor table by its process number and start time. It
//! must have this library loaded, so the environment is made to say so even if the program cleared
//! it. A program that can not have it (static, set-id) would write into placeholders: with open
//! files of the instance it is refused with one line instead of losing data.

use crate::calls::credentials::who;
use crate::calls::paths::{Place, Text, place};
use crate::calls::state::{self, PROGRAM, SETTING_BYTES_MAX, client, kernel};
use crate::calls::{Answer, directories, failed, native, user};
use client::{At, Client, Follow, Outcome, PathBuffer, Position};
use core::sync::atomic::AtomicU8;
use core::sync::atomic::Ordering::Relaxed;
use wire::attributes::want;
use wire::errno::{Errno, Result};

/// Scripts that name scripts as their interpreters: as deep as the kernel goes.
const INTERPRETERS_MAX: u32 = 5;
/// Most arguments and variables that we count before we call it too long.
const STRINGS_MAX: usize = 1 << 20;

/// `execveat`: directory, path, arguments, environment, flags.
#[must_use]
pub fn execute(a: [u64; 6]) -> Answer {
    let failure = run(a, 0).err()?;
    Some(failed(failure))
}

/// Runs the program; comes back only with an error.
fn run(a: [u64; 6], depth: u32) -> Result<()> {
    if depth > INTERPRETERS_MAX {
        return Err(Errno::ELOOP);
    }
    let path = user::path(a[1])?;
    let environment = environment(a[3])?;
    match place(a[0], path)? {
        Place::Ours(at) => run_ours(at, path, a, environment, depth),
        Place::Open(_) => Err(Errno::EACCES),
        Place::Native => {
            if needs_our_loader(a, path, environment) {
                let error = through_helper(path, a, environment);
                if error != Errno::ENOENT {
                    return Err(error);
                }
            }
            check_native(a, path)?;
            let b = [a[0], a[1], a[2], environment, a[4], 0];
            kernel(native::call(libc::SYS_execveat, b)).map(|_| ())
        }
    }
}

// ---- the environment ----

/// The variables that a child needs, as `NAME=`.
const NAMES: [&[u8]; 5] =
    [b"LD_PRELOAD=", b"FOREBAY_RUN=", b"FOREBAY_AT=", b"FOREBAY_HOME=", b"FOREBAY_SITES="];
const INHERIT: &[u8] = b"FOREBAY_INHERIT=";
const INHERIT_TEXT: &core::ffi::CStr = c"FOREBAY_INHERIT=1";

struct Kept {
    bytes: [AtomicU8; SETTING_BYTES_MAX],
}

static KEPT: [Kept; NAMES.len()] = [const { Kept { bytes: [const { AtomicU8::new(0) }; _] } }; _];

/// Remembers a variable that children need, at load time.
pub fn remember(name: &[u8], value: &[u8]) {
    let is_it = |known: &&[u8]| known.strip_suffix(b"=") == Some(name);
    let Some(index) = NAMES.iter().position(is_it) else { return };
    let Some(kept) = KEPT.get(index) else { return };
    if name.len() + 1 + value.len() < SETTING_BYTES_MAX {
        let entry = name.iter().chain(b"=").chain(value).chain(b"\0");
        for (to, from) in kept.bytes.iter().zip(entry) {
            to.store(*from, Relaxed);
        }
    }
}

fn count(list: u64) -> Result<usize> {
    let mut length = 0;
    while list != 0 && user::get::<u64>(list + 8 * length as u64)? != 0 {
        length += 1;
        if length > STRINGS_MAX {
            return Err(Errno::E2BIG);
        }
    }
    Ok(length)
}

fn entry_at<'a>(list: u64, index: usize) -> Result<(u64, &'a [u8])> {
    let address = user::get(list + 8 * index as u64)?;
    Ok((address, user::text(address, 1 << 17, Errno::E2BIG)?))
}

/// The environment for the program: as given if it says all that is needed, else a copy with it.
fn environment(given: u64) -> Result<u64> {
    let length = count(given)?;
    let inherits = directories::holds_anything();
    let mut present = [false; NAMES.len()];
    let mut says_inherit = false;
    for index in 0..length {
        let (_, entry) = entry_at(given, index)?;
        says_inherit |= entry.starts_with(INHERIT);
        for (name, present) in NAMES.iter().zip(&mut present) {
            *present |= entry.starts_with(name);
        }
    }
    let missing = NAMES.len() - present.iter().filter(|&&present| present).count();
    if missing == 0 && inherits == says_inherit {
        return Ok(given);
    }
    let list = scratch(8 * (length + NAMES.len() + 2))?;
    let mut used = 0;
    for index in 0..length {
        let (address, entry) = entry_at(given, index)?;
        if !entry.starts_with(INHERIT) {
            user::put(list + 8 * used, address)?;
            used += 1;
        }
    }
    for (kept, present) in KEPT.iter().zip(present) {
        let is_set = kept.bytes.first().is_some_and(|byte| byte.load(Relaxed) != 0);
        if !present && is_set {
            user::put(list + 8 * used, kept.bytes.as_ptr() as u64)?;
            used += 1;
        }
    }
    if inherits {
        user::put(list + 8 * used, INHERIT_TEXT.as_ptr() as u64)?;
        used += 1;
    }
    user::put(list + 8 * used, 0u64)?;
    Ok(list)
}

/// Zeroed memory until the program runs. A failed exec, and one in a child of vfork, leaves it
/// behind in the parent: a few pages each time that the environment lacked what is needed.
fn scratch(length: usize) -> Result<u64> {
    let length = (length as u64).next_multiple_of(4096);
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let none = u64::from(u32::MAX);
    let address =
        kernel(native::call(libc::SYS_mmap, [0, length, protection, flags, none, 0]))? as u64;
    Ok(address)
}

// ---- programs of the kernel's file systems ----

/// A program that we are not loaded into may not get open files of the instance.
fn check_native(a: [u64; 6], path: &[u8]) -> Result<()> {
    if !directories::hands_something_on() {
        return Ok(());
    }
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as u64;
    let Ok(fd) = kernel(native::call(libc::SYS_openat, [a[0], a[1], flags, 0, 0, 0])) else {
        // Not readable: the kernel says what else is wrong with it.
        return Ok(());
    };
    let mut head = [0u8; 1024];
    let to = [fd as u64, head.as_mut_ptr() as u64, head.len() as u64, 0, 0, 0];
    let length = native::call(libc::SYS_pread64, to);
    native::close(fd as i32);
    let head = head.get(..usize::try_from(length).unwrap_or(0)).unwrap_or(&[]);
    if !is_static(head) {
        return Ok(());
    }
    native::say(b"forebay: ");
    native::say(path);
    native::say(b": statically linked, can not use open files of the instance: not started\n");
    Err(Errno::EACCES)
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let field = bytes.get(at..at + N)?;
    Some(field.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte)))
}

/// True for an ELF program that no interpreter loads.
fn is_static(head: &[u8]) -> bool {
    const INTERPRETER: u64 = 3;
    if !head.starts_with(b"\x7fELF") {
        return false;
    }
    let table = (number::<8>(head, 32), number::<2>(head, 54), number::<2>(head, 56));
    let (Some(start), Some(size), Some(count)) = table else { return false };
    let named = (0..count as usize).any(|index| {
        let at = (start as usize).checked_add(index * size as usize);
        at.and_then(|at| number::<4>(head, at)) == Some(INTERPRETER)
    });
    // A table that lies beyond what was read says nothing.
    let end = (start as usize).saturating_add(count as usize * size as usize);
    !named && end <= head.len()
}

/// True for a native program whose loader must see the instance: the loader itself, run by name,
/// or one with libraries of the instance on its search path.
fn needs_our_loader(a: [u64; 6], path: &[u8], environment: u64) -> bool {
    if a[4] as u32 != 0 || (a[0] as u32 != super::paths::HERE as u32 && path.first() != Some(&b'/'))
    {
        return false;
    }
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
    name.starts_with(b"ld-linux") || (searches_ours(environment) && is_plain_program(path))
}

/// True if `LD_LIBRARY_PATH` names a directory of the instance.
fn searches_ours(environment: u64) -> bool {
    let Ok(length) = count(environment) else { return false };
    (0..length).any(|index| {
        let entry = entry_at(environment, index).map_or(&[][..], |(_, entry)| entry);
        entry.strip_prefix(b"LD_LIBRARY_PATH=").is_some_and(|path| {
            path.split(|byte| matches!(byte, b':' | b';'))
                .any(|directory| state::below_prefix(directory).is_some())
        })
    })
}

/// True for a program that a loader runs and that brings no rights with it.
fn is_plain_program(path: &[u8]) -> bool {
    let text = Text::new(path);
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as u64;
    let fd = native::call(libc::SYS_open, [text.address(), flags, 0, 0, 0, 0]);
    let Ok(fd) = kernel(fd) else { return false };
    let mut head = [0u8; 1024];
    let to = [fd as u64, head.as_mut_ptr() as u64, head.len() as u64, 0, 0, 0];
    let length = native::call(libc::SYS_pread64, to);
    let mut stat = [0u64; 18];
    let found = native::call(libc::SYS_fstat, [fd as u64, stat.as_mut_ptr() as u64, 0, 0, 0, 0]);
    native::close(fd as i32);
    // The mode is in the lower half of the fourth word of `struct stat`.
    let mode = stat.get(3).map_or(0, |word| *word as u32);
    let head = head.get(..usize::try_from(length).unwrap_or(0)).unwrap_or(&[]);
    found == 0
        && mode & (libc::S_ISUID | libc::S_ISGID) == 0
        && mode & 0o111 != 0
        && head.starts_with(b"\x7fELF")
        && !is_static(head)
}

// ---- programs that lie in the instance ----

/// Executes the helper in place of `path`; see `program`. Comes back only with an error, `ENOENT`
/// if there is no helper.
fn through_helper(path: &[u8], a: [u64; 6], environment: u64) -> Errno {
    let outcome = (|| {
        let helper = helper()?;
        let text = scratch(crate::program::VARIABLE.len() + path.len() + 2)?;
        let parts = crate::program::VARIABLE.iter().chain(b"=").chain(path).chain(b"\0");
        for (at, byte) in (text..).zip(parts) {
            user::put(at, *byte)?;
        }
        let length = count(environment)?;
        let list = scratch(8 * (length + 2))?;
        for index in 0..length {
            let (address, entry) = entry_at(environment, index)?;
            // What the wanted program's loader is told must not reach the helper's.
            let is_loaders = entry.starts_with(b"LD_") && !entry.starts_with(b"LD_PRELOAD=");
            let address = if is_loaders { hidden(entry)? } else { address };
            user::put(list + 8 * index as u64, address)?;
        }
        user::put(list + 8 * length as u64, text)?;
        user::put(list + 8 * (length as u64 + 1), 0u64)?;
        let b = [super::paths::HERE, helper.address(), a[2], list, 0, 0];
        kernel(native::call(libc::SYS_execveat, b))
    })();
    outcome.err().unwrap_or(Errno::ENOENT)
}

/// The entry under a name that no loader knows; `program` turns it back.
fn hidden(entry: &[u8]) -> Result<u64> {
    let text = scratch(crate::program::HIDDEN.len() + entry.len() + 1)?;
    for (at, byte) in (text..).zip(crate::program::HIDDEN.iter().chain(entry)) {
        user::put(at, *byte)?;
    }
    Ok(text)
}

/// `forebay-program`, beside this library.
fn helper() -> Result<Text> {
    let kept = KEPT.first().ok_or(Errno::ENOENT)?;
    let mut list = [0; SETTING_BYTES_MAX];
    for (to, from) in list.iter_mut().zip(&kept.bytes) {
        *to = from.load(Relaxed);
    }
    let list = list.strip_prefix(b"LD_PRELOAD=").ok_or(Errno::ENOENT)?;
    let list = list.split(|&byte| byte == 0).next().unwrap_or(&[]);
    let own = list
        .split(|byte| matches!(byte, b':' | b' '))
        .find_map(|entry| entry.strip_suffix(b"libforebay_preload.so"))
        .ok_or(Errno::ENOENT)?;
    let mut path = [0; SETTING_BYTES_MAX + 16];
    let parts = own.iter().chain(b"forebay-program");
    for (to, from) in path.iter_mut().zip(parts) {
        *to = *from;
    }
    let length = own.len() + b"forebay-program".len();
    Ok(Text::new(path.get(..length).ok_or(Errno::ENOENT)?))
}

fn run_ours(at: At<'_>, path: &[u8], a: [u64; 6], environment: u64, depth: u32) -> Result<()> {
    let client = client()?;
    let mut buffer = PathBuffer::new();
    let who = who();
    let attributes = match client.stat(at, Follow::Yes, &who, &mut buffer)? {
        Outcome::Done(attributes) => attributes,
        Outcome::Outside => {
            let text = Text::new(buffer.outside());
            let b = [super::paths::HERE, text.address(), a[2], environment, 0, 0];
            return kernel(native::call(libc::SYS_execveat, b)).map(|_| ());
        }
        Outcome::Special(_) => return Err(Errno::EACCES),
    };
    if !attributes.is_regular() {
        return Err(Errno::EACCES);
    }
    client.permits(&attributes, &who, want::EXECUTE)?;
    // Executing needs no right to read; the kernel reads for itself, and so do we.
    let root = wire::Credentials::ROOT;
    let file = match client.open(at, libc::O_RDONLY as u32, 0, &root, &mut buffer)? {
        Outcome::Done(opened) => opened.ofd,
        _ => return Err(Errno::EACCES),
    };
    let outcome = run_open(client, file, path, a, environment, depth);
    if let Some(table) = state::table() {
        let _ = client.close(file, table);
    }
    outcome
}

fn run_open(
    client: &Client,
    file: client::OfdIndex,
    path: &[u8],
    a: [u64; 6],
    environment: u64,
    depth: u32,
) -> Result<()> {
    let mut head = [0u8; 1024];
    let length = client.read(file, &mut head, Position::At(0))?;
    let head = head.get(..length).unwrap_or(&[]);
    if let Some(line) = head.strip_prefix(b"#!") {
        return run_script(line, path, a, environment, depth);
    }
    if is_static(head) {
        native::say(b"forebay: ");
        native::say(path);
        native::say(b": statically linked: it will not see the instance\n");
    } else if head.starts_with(b"\x7fELF") {
        let table = state::table().ok_or(Errno::EIO)?;
        client.retain(file);
        client.fd_set(table, PROGRAM, Some((file, true)))?;
        let error = through_helper(path, a, environment);
        let _ = client.fd_set(table, PROGRAM, None);
        let _ = client.close(file, table);
        if error != Errno::ENOENT {
            return Err(error);
        }
    }
    let copy = copy_to_memory(client, file)?;
    let empty = c"".as_ptr() as u64;
    let flags = libc::AT_EMPTY_PATH as u64;
    let outcome =
        kernel(native::call(libc::SYS_execveat, [copy as u64, empty, a[2], environment, flags, 0]));
    native::close(copy);
    outcome.map(|_| ())
}

/// The kernel runs programs only from its own files: from memory that has the program's bytes.
fn copy_to_memory(client: &Client, file: client::OfdIndex) -> Result<i32> {
    let name = c"forebay-program".as_ptr() as u64;
    let flags = u64::from(libc::MFD_CLOEXEC);
    let fd = kernel(native::call(libc::SYS_memfd_create, [name, flags, 0, 0, 0, 0]))? as i32;
    let mut part = [0u8; 16 * 1024];
    let mut offset = 0;
    loop {
        let count = client.read(file, &mut part, Position::At(offset))?;
        if count == 0 {
            return Ok(fd);
        }
        let from = [fd as u64, part.as_ptr() as u64, count as u64, offset, 0, 0];
        if kernel(native::call(libc::SYS_pwrite64, from))? != count as i64 {
            native::close(fd);
            return Err(Errno::ENOMEM);
        }
        offset += count as u64;
    }
}

/// `#! interpreter argument`: the interpreter runs with the argument, the path, and the arguments.
fn run_script(line: &[u8], path: &[u8], a: [u64; 6], environment: u64, depth: u32) -> Result<()> {
    let end = line.iter().position(|&byte| byte == b'\n').ok_or(Errno::ENOEXEC)?;
    let line = line.get(..end).unwrap_or(&[]).trim_ascii();
    let split = line.iter().position(|byte| byte.is_ascii_whitespace()).unwrap_or(line.len());
    let (interpreter, argument) = line.split_at_checked(split).ok_or(Errno::ENOEXEC)?;
    let argument = argument.trim_ascii();
    if interpreter.is_empty() {
        return Err(Errno::ENOEXEC);
    }
    let (interpreter, argument, script) =
        (Text::new(interpreter), Text::new(argument), Text::new(path));
    let given = count(a[2])?;
    let list = scratch(8 * (given + 4))?;
    let mut used = 0;
    let mut push = |address: u64| {
        let outcome = user::put(list + 8 * used, address);
        used += 1;
        outcome
    };
    push(interpreter.address())?;
    if split < line.len() {
        push(argument.address())?;
    }
    push(script.address())?;
    for index in 1..given {
        push(user::get(a[2] + 8 * index as u64)?)?;
    }
    push(0)?;
    run([super::paths::HERE, interpreter.address(), list, environment, 0, 0], depth + 1)
}

// ---- the end of the process ----

/// Before the process ends by itself: closes all that it has open, as the kernel does, so that
/// whoever waits for its end finds its locks free and its sizes told. The daemon does the same,
/// a little later, for a process that is killed.
pub fn leave() {
    if let Some(table) = state::give_up_table() {
        let _ = super::uses::close_all(table);
    }
}

// ---- fork and vfork ----

/// Before a fork or vfork, in the parent: the number of the child's table plus one, 0 for none.
#[must_use]
pub fn before_fork() -> u64 {
    if !state::is_prepared() {
        return 0;
    }
    state::prepare_child().map_or(0, |copy| u64::from(copy.0) + 1)
}

/// In a forked child.
pub fn in_forked_child(token: u64) {
    if let Some(copy) = copy_of(token) {
        state::become_child(copy);
    }
}

/// In a child of vfork.
pub fn in_vfork_child(token: u64) {
    if let Some(copy) = copy_of(token) {
        state::become_vfork_child(copy);
    }
}

/// In the parent afterwards: `failed` if there is no child; `shared` if it was a vfork.
pub fn in_parent(token: u64, child_failed: bool, shared: bool) {
    if shared {
        state::end_vfork();
    }
    if child_failed && let Some(copy) = copy_of(token) {
        let _ = state::CLIENT.release_process(copy);
    }
}

fn copy_of(token: u64) -> Option<client::ProcessIndex> {
    u32::try_from(token.checked_sub(1)?).ok().map(client::ProcessIndex)
}
