//! Starting a program that is, or whose libraries are, in the instance.
//!
//! The kernel runs programs only from its own files, and the dynamic loader looks for libraries
//! long before this library is loaded. `launch` therefore executes the small program
//! `forebay-program` in place of the real one, with this library loaded. Here, in the constructor,
//! the real program is set up as the kernel would: its image and a fresh loader are mapped, the
//! loader's own system calls are rewritten, a stack is built, and the loader is started. It then
//! finds everything below the prefix, `$ORIGIN` and `/proc/self/exe` included.
//!
//! Such a process has two copies of this library: the first, here, serves the loader's calls until
//! the second, which the loader loads as usual, replaces the first one's hooks by its own
//! (`take_over`). They communicate through an entry of the auxiliary vector, which no child
//! inherits.
//!
//! This file has the order of the steps; `load` maps images, `stack` builds what a program finds at
//! its start.

mod load;
mod stack;

use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::arch;
use crate::calls::native;
use crate::calls::process::state;
use crate::calls::process::static_client::CLIENT;
use crate::decimal::{DIGITS_MAX, decimal};
use crate::entry::dispatch;
use crate::rewrite::image::Image;
use crate::rewrite::patch;
use client::{OfdIndex, Position};
use wire::errno::{Errno, Result};

/// The variable that names the program, as it was passed to exec.
pub const VARIABLE: &[u8] = b"FOREBAY_PROGRAM";
/// Prefix of the names of variables that are for the real program's loader.
pub const HIDDEN: &[u8] = b"FOREBAY_";
/// Our entries of the auxiliary vector: the address of the first copy's hooks, and the target of
/// `/proc/self/exe` for a native program.
const AT_HOOKS: u64 = 0x4642_4159;
const AT_EXE: u64 = 0x4642_415a;

/// Where an image's bytes come from.
#[derive(Clone, Copy)]
enum Source {
    /// The kernel.
    Native(i32),
    /// The instance.
    Ours(OfdIndex),
}

impl Source {
    /// Fills `to` from `offset` on.
    fn read(self, mut offset: u64, mut to: &mut [u8]) -> Result<()> {
        while !to.is_empty() {
            let count = match self {
                Source::Ours(file) => state::client()?.read(file, to, Position::At(offset))?,
                Source::Native(fd) => {
                    let (at, length) = (to.as_mut_ptr() as u64, to.len() as u64);
                    let args = [fd as u64, at, length, offset, 0, 0];
                    state::kernel(native::call(libc::SYS_pread64, args))? as usize
                }
            };
            if count == 0 {
                return Err(Errno::ENOEXEC);
            }
            to = to.get_mut(count..).unwrap_or(&mut []);
            offset += count as u64;
        }
        Ok(())
    }

    fn open(path: &CStr) -> Result<Source> {
        if let Some(rest) = state::strip_instance_prefix(path.to_bytes()) {
            let mut buffer = client::PathBuffer::new();
            let (at, root) = (client::At::root(rest), wire::Credentials::ROOT);
            let flags = libc::O_RDONLY as u32;
            return match state::client()?.open(at, flags, 0, &root, &mut buffer)? {
                client::Outcome::Done(opened) => Ok(Source::Ours(opened.ofd)),
                _ => Err(Errno::EACCES),
            };
        }
        let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as u64;
        let args = [path.as_ptr() as u64, flags, 0, 0, 0, 0];
        Ok(Source::Native(state::kernel(native::call(libc::SYS_open, args))? as i32))
    }

    fn close(self) {
        match self {
            Source::Native(fd) => native::close(fd),
            Source::Ours(file) => {
                if let Some(table) = state::table() {
                    let _ = CLIENT.close(file, table);
                }
            }
        }
    }
}

/// Starts the program that `VARIABLE` names; never returns. If it cannot be started, the process
/// exits with 126, as in a shell, after one line.
///
/// # Safety
/// `count`, `arguments` and `environment` are what the loader passed to the constructor.
pub unsafe fn start(
    path: &'static CStr,
    count: usize,
    arguments: *const *const c_char,
    environment: *const *const c_char,
) -> ! {
    // SAFETY: the caller's promise, passed on.
    let error = match unsafe { prepare(path, count, arguments, environment) } {
        // SAFETY: the stack was built for this entry; nothing of this thread is used any more.
        Ok((stack, entry)) => unsafe { arch::begin(stack, entry) },
        Err(errno) => errno,
    };
    native::say(b"forebay: ");
    native::say(path.to_bytes());
    native::say(match error {
        Errno::ENOENT => b": its dynamic loader is missing\n".as_slice(),
        Errno::ENOMEM => b": not enough memory to start it\n",
        _ => b": cannot be started from here\n",
    });
    loop {
        let _ = native::call(libc::SYS_exit_group, [126, 0, 0, 0, 0, 0]);
    }
}

/// Maps what the kernel would map for `path`, and builds its stack; returns the top of the stack
/// and the entry address.
///
/// # Safety
/// `arguments` holds `count` C strings, `environment` ends with null; both stay as they are.
unsafe fn prepare(
    path: &'static CStr,
    count: usize,
    arguments: *const *const c_char,
    environment: *const *const c_char,
) -> Result<(u64, u64)> {
    let used = state::program();
    let source = match &used {
        Some(used) => Source::Ours(used.file()),
        None => Source::open(path)?,
    };
    let program = load::map(source)?;
    let mut interpreter = [0; load::INTERPRETER_BYTES_MAX];
    let loader = match program.interpreter(source, &mut interpreter)? {
        Some(path) => {
            let source = Source::open(path)?;
            let image = load::map(source)?;
            source.close();
            Some(image)
        }
        None => None,
    };
    let mut exe = 0;
    if let Source::Native(fd) = source {
        exe = canonical(fd)?;
        source.close();
    }
    // The loader is the program itself if it is run by name (`ldd`).
    let rewritten = loader.as_ref().unwrap_or(&program);
    let name = if loader.is_some() { c"the dynamic loader" } else { path };
    let image = Image::from_memory(name, rewritten.base).ok_or(Errno::ENOEXEC)?;
    patch::install_in(&image).map_err(|_| Errno::ENOEXEC)?;
    name_thread(path);
    let entries = stack::Entries {
        headers: program.headers_at,
        header_count: program.header_count,
        base: loader.as_ref().map_or(0, |image| image.base),
        entry: program.entry,
        path: path.as_ptr() as u64,
        own: [(AT_HOOKS, dispatch::hooks_address() as u64), (AT_EXE, exe)],
    };
    // SAFETY: the caller's promise, handed on.
    let stack = unsafe { stack::build(&entries, count, arguments, environment)? };
    Ok((stack, loader.map_or(program.entry, |image| image.entry)))
}

/// The path of an open native file, in memory that is never freed.
fn canonical(fd: i32) -> Result<u64> {
    let mut link = *b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0";
    let mut digits = [0; DIGITS_MAX];
    let number = decimal(u64::from(fd.unsigned_abs()), &mut digits);
    for (to, from) in link.iter_mut().skip(14).zip(number) {
        *to = *from;
    }
    let size = wire::limits::PATH_BYTES_MAX as u64 + 1;
    let to = stack::memory(size)?;
    let args = [link.as_ptr() as u64, to, size - 1, 0, 0, 0];
    state::kernel(native::call(libc::SYS_readlink, args)).map(|_| to)
}

/// Target of `/proc/self/exe` for a native program that was started here.
#[must_use]
pub fn exe() -> Option<&'static CStr> {
    // SAFETY: reads the auxiliary vector.
    let at = unsafe { libc::getauxval(AT_EXE) };
    if at == 0 {
        return None;
    }
    // SAFETY: `canonical` made the string, with its NUL, in memory that stays mapped.
    Some(unsafe { CStr::from_ptr(at as *const c_char) })
}

/// Sets the name that `ps` and `top` show.
fn name_thread(path: &CStr) {
    let bytes = path.to_bytes();
    let start = bytes.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    let name = path.to_bytes_with_nul().get(start..).unwrap_or(b"\0");
    let option = libc::PR_SET_NAME as u64;
    let _ = native::call(libc::SYS_prctl, [option, name.as_ptr() as u64, 0, 0, 0, 0]);
}

/// In the second copy: serves the loader from now on. Returns true if there is a first copy, whose
/// loader is already rewritten.
#[must_use]
pub fn take_over() -> bool {
    // SAFETY: reads the auxiliary vector.
    let hooks_address = unsafe { libc::getauxval(AT_HOOKS) };
    if hooks_address == 0 {
        return false;
    }
    let hooks_address = hooks_address as *const AtomicPtr<dispatch::Hooks>;
    let own = core::ptr::from_ref(&crate::calls::process::hooks::HOOKS).cast_mut();
    // SAFETY: only `stack::build` of the same library file makes this entry, with the address of a
    // static that stays mapped.
    // WHY: the two copies share nothing else.
    unsafe { &*hooks_address }.store(own, Ordering::Release);
    true
}
