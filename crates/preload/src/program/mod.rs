//! Starting a program whose file, or whose libraries, lie in the instance.
//!
//! The kernel runs programs only from its own files, and the dynamic loader looks for libraries
//! long before this library is loaded. So `launch` executes the small program `forebay-program` in
//! place of the wanted one, with this library in it, and here, in the constructor, the wanted
//! program is put together as the kernel would: its image and a fresh loader are mapped, the
//! loader's own system calls are rewritten, a stack is built, and the loader begins. It then finds
//! everything below the prefix, `$ORIGIN` and `/proc/self/exe` included.
//!
//! There are two copies of this library in such a process: the first, here, serves the loader's
//! calls until the second, which the loader loads as everywhere, puts its hooks in place of the
//! first one's (`take_over`). They meet through an entry of the auxiliary vector, which no child
//! inherits.
//!
//! Here: the order of the steps. `load`: images; `stack`: what a program finds at its start.

mod load;
mod stack;

use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::arch;
use crate::calls::{native, state};
use crate::decimal::{DIGITS_MAX, decimal};
use crate::dispatch;
use crate::image::Image;
use crate::patch;
use client::{OfdIndex, Position};
use wire::errno::{Errno, Result};

/// The variable that names the program, as it was given to exec.
pub const VARIABLE: &[u8] = b"FOREBAY_PROGRAM";
/// Put before the names of variables that are for the wanted program's loader.
pub const HIDDEN: &[u8] = b"FOREBAY_";
/// Our entries of the auxiliary vector: where the first copy keeps its hooks, and what
/// `/proc/self/exe` would say of a program of the kernel's.
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
        if let Some(rest) = state::below_prefix(path.to_bytes()) {
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
                    let _ = state::CLIENT.close(file, table);
                }
            }
        }
    }
}

/// Starts the program that `VARIABLE` names; comes back never. If it can not be started the
/// process ends as a shell ends for it: 126, with one line.
///
/// # Safety
/// `count`, `arguments` and `environment` are what the loader passed to the constructor.
pub unsafe fn start(
    path: &'static CStr,
    count: usize,
    arguments: *const *const c_char,
    environment: *const *const c_char,
) -> ! {
    // SAFETY: the caller's promise, handed on.
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
        _ => b": can not be started from here\n",
    });
    loop {
        let _ = native::call(libc::SYS_exit_group, [126, 0, 0, 0, 0, 0]);
    }
}

/// Maps what the kernel would map for `path`, and builds its stack; answers the stack's top and the
/// address at which to begin.
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
    // The loader is the program itself when it is run by name (`ldd`).
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
        own: [(AT_HOOKS, dispatch::place() as u64), (AT_EXE, exe)],
    };
    // SAFETY: the caller's promise, handed on.
    let stack = unsafe { stack::build(&entries, count, arguments, environment)? };
    Ok((stack, loader.map_or(program.entry, |image| image.entry)))
}

/// The path of an open file of the kernel's, in memory that stays.
fn canonical(fd: i32) -> Result<u64> {
    let mut link = *b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0";
    let mut digits = [0; DIGITS_MAX];
    let number = decimal(u64::from(fd.unsigned_abs()), &mut digits);
    for (to, from) in link.iter_mut().skip(14).zip(number) {
        *to = *from;
    }
    let room = wire::limits::PATH_BYTES_MAX as u64 + 1;
    let to = stack::memory(room)?;
    let args = [link.as_ptr() as u64, to, room - 1, 0, 0, 0];
    state::kernel(native::call(libc::SYS_readlink, args)).map(|_| to)
}

/// What `/proc/self/exe` says of a program of the kernel's that was started here.
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

/// What `ps` and `top` show.
fn name_thread(path: &CStr) {
    let bytes = path.to_bytes();
    let start = bytes.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    let name = path.to_bytes_with_nul().get(start..).unwrap_or(b"\0");
    let option = libc::PR_SET_NAME as u64;
    let _ = native::call(libc::SYS_prctl, [option, name.as_ptr() as u64, 0, 0, 0, 0]);
}

/// In the second copy: serves the loader from now on. True if there is a first copy, whose loader
/// is rewritten already.
#[must_use]
pub fn take_over() -> bool {
    // SAFETY: reads the auxiliary vector.
    let place = unsafe { libc::getauxval(AT_HOOKS) };
    if place == 0 {
        return false;
    }
    let place = place as *const AtomicPtr<dispatch::Hooks>;
    let own = core::ptr::from_ref(&crate::calls::hooks::HOOKS).cast_mut();
    // SAFETY: only `stack::build` of the same library file makes this entry, with the address of a
    // static that stays mapped. WHY: the two copies share nothing else.
    unsafe { &*place }.store(own, Ordering::Release);
    true
}
