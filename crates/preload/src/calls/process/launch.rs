//! Exec, the end of the process, and the parts of fork and vfork that concern the descriptor table.
//!
//! An exec'ed program finds its descriptor table by its process id and start time. It must have
//! this library loaded, so the environment is completed even if the program cleared it. A program
//! that cannot load it (`runnable`: static, set-id, another C library) gets descriptors of the
//! kernel and uses the mount; without a mount it is refused with one line.

use crate::calls::files::{handover, transfer};
use crate::calls::names::directories;
use crate::calls::names::paths::{Place, Text, place};
use crate::calls::process::credentials::{self, caller};
use crate::calls::process::cut_off;
use crate::calls::process::mount;
use crate::calls::process::runnable::{self, Loading};
use crate::calls::process::state::{self, PROGRAM, SETTING_BYTES_MAX, client, kernel};
use crate::calls::process::static_client::CLIENT;
use crate::calls::process::working_directory;
use crate::calls::{Answer, failed, native, user};
use client::{At, Client, Follow, Outcome, PathBuffer, Position};
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU8, AtomicUsize};
use wire::attributes::want;
use wire::errno::{Errno, Result};

/// Nesting of scripts whose interpreters are scripts, as in the kernel.
const INTERPRETERS_MAX: u32 = 5;
/// Most arguments or variables, beyond which a list is too long.
const STRINGS_MAX: usize = 1 << 20;

/// `execveat`: directory, path, arguments, environment, flags.
#[must_use]
pub fn execute(a: [u64; 6]) -> Answer {
    let failure = run(a, 0).err()?;
    SPARE.used.store(0, Relaxed);
    Some(failed(failure))
}

/// Runs the program; returns only with an error.
fn run(a: [u64; 6], depth: u32) -> Result<()> {
    if depth > INTERPRETERS_MAX {
        return Err(Errno::ELOOP);
    }
    let path = user::path(a[1])?;
    let environment = environment(a[3])?;
    if mount::is_there() {
        return run_on_mount(a, path, environment);
    }
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
            refuse_alone(a, path, environment)?;
            let b = [a[0], a[1], a[2], environment, a[4], 0];
            kernel(native::call_exec(b)).map(|_| ())
        }
    }
}

// ---- the environment ----

/// The variables that a child needs, as `NAME=`.
const VARIABLES: [&[u8]; 8] = [
    b"LD_PRELOAD=",
    b"FOREBAY_RUN=",
    b"FOREBAY_AT=",
    b"FOREBAY_HOME=",
    b"FOREBAY_SITES=",
    b"FOREBAY_MOUNTED=",
    b"FOREBAY_JOB=",
    b"FOREBAY_TAG=",
];
/// Says that the program inherits open files of the instance, or a working directory in it: the sum
/// of these, a digit.
const INHERIT: &[u8] = b"FOREBAY_INHERIT=";
const INHERITANCES: [&core::ffi::CStr; 8] = [
    c"FOREBAY_INHERIT=0",
    c"FOREBAY_INHERIT=1",
    c"FOREBAY_INHERIT=2",
    c"FOREBAY_INHERIT=3",
    c"FOREBAY_INHERIT=4",
    c"FOREBAY_INHERIT=5",
    c"FOREBAY_INHERIT=6",
    c"FOREBAY_INHERIT=7",
];
const FILES: usize = 1;
/// The working directory is in the instance and the kernel does not know it.
pub const DIRECTORY: usize = 2;
/// Open files that this process cannot reach (`cut_off`).
pub const UNREACHABLE: usize = 4;

/// The sum that the variable's value says.
#[must_use]
pub fn inheritance(value: &core::ffi::CStr) -> Option<usize> {
    match value.to_bytes() {
        [digit @ b'1'..=b'7'] => Some(usize::from(digit - b'0')),
        _ => None,
    }
}

struct SavedVariable {
    bytes: [AtomicU8; SETTING_BYTES_MAX],
}

impl SavedVariable {
    fn is_set(&self) -> bool {
        self.bytes.first().is_some_and(|byte| byte.load(Relaxed) != 0)
    }
}

static SAVED: [SavedVariable; VARIABLES.len()] =
    [const { SavedVariable { bytes: [const { AtomicU8::new(0) }; _] } }; _];

/// The names of the variables that children need.
pub fn variable_names() -> impl Iterator<Item = &'static [u8]> {
    VARIABLES.iter().filter_map(|name| name.strip_suffix(b"="))
}

/// Saves a variable that children need, at load time.
pub fn save_variable(name: &[u8], value: &[u8]) {
    let is_it = |known: &&[u8]| known.strip_suffix(b"=") == Some(name);
    let Some(index) = VARIABLES.iter().position(is_it) else { return };
    let Some(saved) = SAVED.get(index) else { return };
    if name.len() + 1 + value.len() < SETTING_BYTES_MAX {
        let entry = name.iter().chain(b"=").chain(value).chain(b"\0");
        for (to, from) in saved.bytes.iter().zip(entry) {
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

/// The environment for the program: the given one if it is complete, else an extended copy.
fn environment(given: u64) -> Result<u64> {
    let length = count(given)?;
    let inherits = inherited();
    let mut present = [false; VARIABLES.len()];
    let mut said = None;
    let mut has_other_preload = false;
    for index in 0..length {
        let (_, entry) = entry_at(given, index)?;
        if entry.starts_with(INHERIT) {
            said = Some(entry);
        }
        has_other_preload |= lacks_own_library(entry);
        for (name, present) in VARIABLES.iter().zip(&mut present) {
            *present |= entry.starts_with(name);
        }
    }
    let is_missing = |(saved, present): (&SavedVariable, &bool)| !present && saved.is_set();
    let is_incomplete = SAVED.iter().zip(&present).any(is_missing);
    if !is_incomplete && !has_other_preload && inherits.map(core::ffi::CStr::to_bytes) == said {
        return Ok(given);
    }
    let list = scratch(8 * (length + VARIABLES.len() + 2))?;
    let mut used = 0;
    for index in 0..length {
        let (address, entry) = entry_at(given, index)?;
        if !entry.starts_with(INHERIT) {
            let address = if lacks_own_library(entry) { with_own_library(entry)? } else { address };
            user::put(list + 8 * used, address)?;
            used += 1;
        }
    }
    for (saved, present) in SAVED.iter().zip(present) {
        if !present && saved.is_set() {
            user::put(list + 8 * used, saved.bytes.as_ptr() as u64)?;
            used += 1;
        }
    }
    if let Some(inherits) = inherits {
        user::put(list + 8 * used, inherits.as_ptr() as u64)?;
        used += 1;
    }
    user::put(list + 8 * used, 0u64)?;
    Ok(list)
}

/// The variable that says what the program inherits.
fn inherited() -> Option<&'static core::ffi::CStr> {
    // Also where this process could not learn which directory it is.
    let has_directory = !mount::is_there() && working_directory::get().is_some();
    let sum = FILES * usize::from(directories::has_entries())
        + DIRECTORY * usize::from(has_directory)
        + UNREACHABLE * usize::from(cut_off::is_inherited());
    INHERITANCES.get(sum).filter(|_| sum != 0).copied()
}

const PRELOAD: &[u8] = b"LD_PRELOAD=";
const LIBRARY: &[u8] = b"libforebay_preload.so";

/// True for a variable of libraries to be preloaded that does not name this one.
fn lacks_own_library(entry: &[u8]) -> bool {
    let Some(list) = entry.strip_prefix(PRELOAD) else { return false };
    !list.split(|byte| matches!(byte, b':' | b' ')).any(|library| library.ends_with(LIBRARY))
}

/// The variable with this library in front: the program's own libraries stay.
fn with_own_library(entry: &[u8]) -> Result<u64> {
    let mut saved = [0; SETTING_BYTES_MAX];
    let own = own_library(&mut saved)?;
    let others = entry.strip_prefix(PRELOAD).unwrap_or(&[]);
    let text = scratch(PRELOAD.len() + own.len() + others.len() + 2)?;
    let parts = PRELOAD.iter().chain(own).chain(b":").chain(others).chain(b"\0");
    for (at, byte) in (text..).zip(parts) {
        user::put(at, *byte)?;
    }
    Ok(text)
}

/// Path of this library, from the variable by which it was loaded.
fn own_library(saved: &mut [u8; SETTING_BYTES_MAX]) -> Result<&[u8]> {
    let first = SAVED.first().ok_or(Errno::ENOENT)?;
    for (to, from) in saved.iter_mut().zip(&first.bytes) {
        *to = from.load(Relaxed);
    }
    let list = saved.strip_prefix(PRELOAD).ok_or(Errno::ENOENT)?;
    let list = list.split(|&byte| byte == 0).next().unwrap_or(&[]);
    let mut libraries = list.split(|byte| matches!(byte, b':' | b' '));
    libraries.find(|library| library.ends_with(LIBRARY)).ok_or(Errno::ENOENT)
}

/// Memory that lives until the program runs. A failed exec, and one in a child of vfork,
/// leaks it in the parent: a few pages each time the environment was incomplete.
fn scratch(length: usize) -> Result<u64> {
    let length = (length as u64).next_multiple_of(4096);
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let none = u64::from(u32::MAX);
    let mapped = kernel(native::call(libc::SYS_mmap, [0, length, protection, flags, none, 0]));
    match mapped {
        Ok(address) => Ok(address as u64),
        Err(_) => SPARE.take(length as usize).ok_or(Errno::ENOMEM),
    }
}

/// Memory for an exec where no more can be mapped: a limit of address space was set below what the
/// process has, and the next program needs less.
struct SpareMemory {
    bytes: [AtomicU8; SPARE_BYTES],
    used: AtomicUsize,
}

/// Environment lists and texts of some thousand variables.
const SPARE_BYTES: usize = 128 * 1024;

static SPARE: SpareMemory =
    SpareMemory { bytes: [const { AtomicU8::new(0) }; SPARE_BYTES], used: AtomicUsize::new(0) };

impl SpareMemory {
    /// The next `length` bytes, which may hold what a failed exec left.
    fn take(&self, length: usize) -> Option<u64> {
        let start = self.used.fetch_add(length, Relaxed);
        let bytes = self.bytes.get(start..start.checked_add(length)?)?;
        Some(bytes.as_ptr() as u64)
    }
}

// ---- programs of the kernel's file systems ----

/// Refuses a program into which this library cannot be loaded, because there is no mount for it.
fn refuse_alone(a: [u64; 6], path: &[u8], environment: u64) -> Result<()> {
    match runnable::loading(a[0], a[1], a[4]) {
        Loading::Preloaded => Ok(()),
        // The tools of valgrind are static, and load the program with its libraries themselves.
        Loading::Alone(_) if names(environment, b"VALGRIND_LAUNCHER=") => Ok(()),
        // Such programs are often started for what they do elsewhere.
        Loading::Privileged(_) if !directories::passes_files_on() => Ok(()),
        Loading::Alone(reason) | Loading::Privileged(reason) | Loading::Foreign(reason) => {
            refuse(path, reason)
        }
    }
}

/// True if a variable is in the environment.
fn names(environment: u64, variable: &[u8]) -> bool {
    let length = count(environment).unwrap_or(0);
    (0..length).any(|index| {
        entry_at(environment, index).is_ok_and(|(_, entry)| entry.starts_with(variable))
    })
}

fn refuse(path: &[u8], reason: &[u8]) -> Result<()> {
    tell(&[
        path,
        b" ",
        reason,
        b": the preload library cannot be loaded into it, so it would not see the instance: not started; \
          use 'forebay run --access auto'",
    ]);
    Err(Errno::EACCES)
}

/// Writes a line to standard error, which may be a file of the instance.
fn tell(parts: &[&[u8]]) {
    let mut line = [0; 1024];
    let start: &[u8] = b"forebay: ";
    let bytes = core::iter::once(&start).chain(parts).flat_map(|part| part.iter());
    let mut length = 0;
    for (to, from) in line.iter_mut().zip(bytes.take(1023)) {
        // A name must not act on the terminal.
        *to = if from.is_ascii_control() { b'?' } else { *from };
        length += 1;
    }
    if let Some(to) = line.get_mut(length as usize) {
        *to = b'\n';
        length += 1;
    }
    let write = [2, line.as_ptr() as u64, length, 0, 0, 0];
    if transfer::write(write).is_none() {
        let _ = native::call(libc::SYS_write, write);
    }
}

// ---- programs over a mount ----

/// Runs a program as the kernel finds it, on the mount or elsewhere. One that runs without this
/// library gets descriptors of the kernel for the open files that it inherits.
fn run_on_mount(a: [u64; 6], path: &[u8], environment: u64) -> Result<()> {
    let itself = if path.is_empty() && a[4] & libc::AT_EMPTY_PATH as u64 != 0 {
        state::ours(a[0])
    } else {
        match place(a[0], path) {
            Ok(Place::Open(used)) => Some(used),
            _ => None,
        }
    };
    let Some(used) = itself else { return run_native(a, path, environment) };
    // An open file of ours as the program: its descriptor may be a placeholder.
    let real = handover::open(used.file(), libc::O_RDONLY as u32)?;
    let empty = c"".as_ptr() as u64;
    let flags = a[4] | libc::AT_EMPTY_PATH as u64;
    let outcome = run_native([real as u64, empty, a[2], a[3], flags, 0], path, environment);
    native::close(real);
    outcome
}

fn run_native(a: [u64; 6], path: &[u8], environment: u64) -> Result<()> {
    let loading = runnable::loading(a[0], a[1], a[4]);
    let needs_kernels = loading != Loading::Preloaded || runnable::has_tight_limits();
    if !needs_kernels && credentials::has_changed_user() {
        // As far as its new user may open them: what was open before is handed over already.
        let _ = handover::hand_over_inherited();
    }
    if needs_kernels && let Err(errno) = handover::hand_over_inherited() {
        tell(&[path, b": an open file of the instance cannot be passed on to it: not started"]);
        return Err(errno);
    }
    let environment = match loading {
        Loading::Foreign(_) => without_own_library(environment)?,
        _ => environment,
    };
    let b = [a[0], a[1], a[2], environment, a[4], 0];
    kernel(native::call_exec(b)).map(|_| ())
}

/// The environment for a program whose loader would fail on this library.
fn without_own_library(given: u64) -> Result<u64> {
    let length = count(given)?;
    let list = scratch(8 * (length + 1))?;
    for index in 0..length {
        let (mut address, entry) = entry_at(given, index)?;
        if let Some(libraries) = entry.strip_prefix(PRELOAD) {
            address = scratch(entry.len() + 2)?;
            let libraries = libraries.split(|byte| matches!(byte, b':' | b' '));
            let others = libraries.filter(|library| !library.ends_with(LIBRARY));
            let text = others.flat_map(|library| library.iter().chain(b":"));
            for (at, byte) in (address..).zip(PRELOAD.iter().chain(text).chain(b"\0")) {
                user::put(at, *byte)?;
            }
        }
        user::put(list + 8 * index as u64, address)?;
    }
    user::put(list + 8 * length as u64, 0u64)?;
    Ok(list)
}

/// True for a native program whose loader must see the instance: the loader itself, run by name, or
/// a program with a directory of the instance on its library search path.
fn needs_our_loader(a: [u64; 6], path: &[u8], environment: u64) -> bool {
    if a[4] as u32 != 0
        || (a[0] as u32 != crate::calls::names::paths::AT_CWD as u32 && path.first() != Some(&b'/'))
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
                .any(|directory| state::strip_instance_prefix(directory).is_some())
        })
    })
}

/// True for an executable program into which this library can be loaded.
fn is_plain_program(path: &[u8]) -> bool {
    let text = Text::new(path);
    let directory = crate::calls::names::paths::AT_CWD;
    runnable::is_program(directory, text.address())
        && runnable::loading(directory, text.address(), 0) == Loading::Preloaded
}

// ---- programs that lie in the instance ----

/// Executes the helper in place of `path`; see `program`. Returns only with an error, `ENOENT` if
/// there is no helper.
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
            // Variables for the real program's loader must not reach the helper's loader.
            let is_loaders = entry.starts_with(b"LD_") && !entry.starts_with(b"LD_PRELOAD=");
            let address = if is_loaders { hidden(entry)? } else { address };
            user::put(list + 8 * index as u64, address)?;
        }
        user::put(list + 8 * length as u64, text)?;
        user::put(list + 8 * (length as u64 + 1), 0u64)?;
        let b = [crate::calls::names::paths::AT_CWD, helper.address(), a[2], list, 0, 0];
        kernel(native::call_exec(b))
    })();
    outcome.err().unwrap_or(Errno::ENOENT)
}

/// The variable under a name that no loader knows; `program` restores it.
fn hidden(entry: &[u8]) -> Result<u64> {
    let text = scratch(crate::program::HIDDEN.len() + entry.len() + 1)?;
    for (at, byte) in (text..).zip(crate::program::HIDDEN.iter().chain(entry)) {
        user::put(at, *byte)?;
    }
    Ok(text)
}

/// Path of `forebay-program`, in the directory of this library.
fn helper() -> Result<Text> {
    let mut saved = [0; SETTING_BYTES_MAX];
    let own = own_library(&mut saved)?.strip_suffix(LIBRARY).ok_or(Errno::ENOENT)?;
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
    let caller = caller();
    let attributes = match client.stat(at, Follow::Yes, &caller, &mut buffer)? {
        Outcome::Done(attributes) => attributes,
        Outcome::Outside => {
            let text = Text::new(buffer.outside());
            let b = [crate::calls::names::paths::AT_CWD, text.address(), a[2], environment, 0, 0];
            return kernel(native::call_exec(b)).map(|_| ());
        }
        Outcome::Special(_) => return Err(Errno::EACCES),
    };
    if !attributes.is_regular() {
        return Err(Errno::EACCES);
    }
    client.permits(&attributes, &caller, want::EXECUTE)?;
    // Executing needs no read permission: the kernel reads on its own authority, and so does this.
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
    let mut head = [0u8; 4096];
    let length = client.read(file, &mut head, Position::At(0))?;
    let head = head.get(..length).unwrap_or(&[]);
    if let Some(line) = head.strip_prefix(b"#!") {
        return run_script(line, path, a, environment, depth);
    }
    if let Loading::Alone(reason) | Loading::Foreign(reason) = runnable::loading_of(head) {
        return refuse(path, reason);
    }
    if head.starts_with(b"\x7fELF") {
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
    let outcome = kernel(native::call_exec([copy as u64, empty, a[2], environment, flags, 0]));
    native::close(copy);
    outcome.map(|_| ())
}

/// Copies the program to a memory file, because the kernel runs programs only from its own files.
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

/// `#! interpreter argument`: runs the interpreter with the argument, the path, and the arguments.
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
    run(
        [crate::calls::names::paths::AT_CWD, interpreter.address(), list, environment, 0, 0],
        depth + 1,
    )
}

// ---- the end of the process ----

/// Before the process ends itself: closes all its open files, as the kernel does, so that a waiting
/// parent finds its locks free and its sizes reported. For a killed process the daemon does the
/// same, a little later.
pub fn leave() {
    if let Some(table) = state::take_table() {
        let _ = crate::calls::files::uses::close_all(table);
    }
}

// ---- fork and vfork ----

/// In the parent, before a fork or vfork: the number of the child's table plus one, 0 for none.
///
/// # Errors
/// Those with which the fork fails, because the child would go on with the table of its parent:
/// `EAGAIN` if there are too many processes or descriptors, `ENOMEM` if there is no memory for it.
pub fn before_fork() -> Result<u64> {
    if !state::is_prepared() {
        return Ok(0);
    }
    match state::prepare_child() {
        Some(Ok(copy)) => Ok(u64::from(copy.0) + 1),
        Some(Err(Errno::ENFILE)) => Err(Errno::EAGAIN),
        Some(Err(Errno::ENOSPC)) => Err(Errno::ENOMEM),
        // The process has no table, or none any more.
        Some(Err(_)) | None => Ok(0),
    }
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

/// In the parent, afterwards. `child_failed`: there is no child; `shared`: it was a vfork.
pub fn in_parent(token: u64, child_failed: bool, shared: bool) {
    if shared {
        state::end_vfork();
    }
    if child_failed && let Some(copy) = copy_of(token) {
        let _ = CLIENT.release_process(copy);
    }
}

fn copy_of(token: u64) -> Option<client::ProcessIndex> {
    u32::try_from(token.checked_sub(1)?).ok().map(client::ProcessIndex)
}
