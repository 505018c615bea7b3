//! The library that is loaded into applications (LD_PRELOAD) and intercepts their file system
//! calls.
//!
//! Contract: its constructor rewrites the `syscall` sites of file system calls in libc and the
//! dynamic loader, so that each goes through a stub to the handler (`dispatch`), which answers it
//! or passes it to the kernel unchanged. Everything that the kernel preserves is preserved:
//! registers, flags, red zone, vectors, stack. A program whose code cannot be rewritten runs as
//! without this library, after one line on standard error.
//!
//! Not covered: static programs, and system calls that are not recognised in other images. They
//! reach the mount at the prefix, if there is one; without one, static programs are refused.
//!
//! Known limits: with glibc 2.41 and later a cancellation (pthread_cancel) that arrives between
//! libc's own check and the end of the call is seen only at the next call.
//!
//! Environment: `FOREBAY_SITES`, the directory of prepared tables (see `rewrite::sites`).
//!
//! Reading order: `arch`, `entry`, `rewrite`, `calls`, `program`.
#![expect(unsafe_code, reason = "it rewrites code and takes over system calls")]
#![warn(
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::expect_used,
    clippy::panic,
    clippy::unreachable
)]

pub mod arch;

pub mod entry;

pub mod rewrite;

pub use rewrite::sites;

pub mod environment;

pub mod decimal;

pub mod starter;

pub mod calls;

pub mod program;

#[cfg(debug_assertions)]
pub mod trace;

/// The constructor of the shared library; it does nothing in a program that links the rlib.
mod start {
    use core::ffi::{c_char, c_int};

    use crate::calls::process::{hooks, mount};
    use crate::entry::dispatch;
    use crate::entry::process;
    use crate::entry::signals;
    use crate::environment::Environment;
    use crate::program;
    use crate::rewrite::{opened, patch};

    type Constructor = extern "C" fn(c_int, *const *const c_char, *const *const c_char);

    /// ld.so calls the entries of `.init_array` with argc, argv and envp.
    #[used]
    #[unsafe(link_section = ".init_array")]
    static CONSTRUCTOR: Constructor = construct;

    extern "C" fn construct(
        count: c_int,
        arguments: *const *const c_char,
        strings: *const *const c_char,
    ) {
        if !is_shared_library() {
            return;
        }
        // SAFETY: the loader passes the process's environment, which ends with a null pointer.
        let environment = unsafe { Environment::new(strings) };
        process::note_owner();
        let is_traced = is_traced(&environment);
        // Without an instance there is nothing to intercept, and the program stays unmodified.
        let is_prepared = hooks::prepare(&environment);
        if !is_prepared && !is_traced {
            return;
        }
        if is_prepared {
            dispatch::install(&hooks::HOOKS);
            signals::prepare();
        }
        let directory = environment.get(b"FOREBAY_SITES").filter(|path| !path.is_empty());
        let has_loader = is_prepared && program::take_over();
        let directory = directory.map(core::ffi::CStr::to_bytes);
        patch::install(directory, has_loader, mount::is_there());
        if is_prepared {
            opened::install(directory);
        }
        let program_path =
            environment.get(program::VARIABLE).filter(|_| is_prepared && !has_loader);
        hooks::resume(&environment, program_path.is_some() || has_loader);
        if let Some(path) = program_path {
            // SAFETY: the loader's own arguments, passed on.
            unsafe { program::start(path, count.unsigned_abs() as usize, arguments, strings) }
        }
    }

    /// True for a test that counts calls, of which most need no instance.
    #[cfg(debug_assertions)]
    fn is_traced(environment: &Environment) -> bool {
        let Some(path) = environment.get(b"FOREBAY_TRACE") else { return false };
        crate::trace::open(path.to_bytes_with_nul());
        true
    }

    /// Only builds for tests count calls.
    #[cfg(not(debug_assertions))]
    const fn is_traced(_: &Environment) -> bool {
        false
    }

    /// True if this code is in an object other than the program itself.
    fn is_shared_library() -> bool {
        // SAFETY: queries the object of our own address, and the auxiliary vector.
        unsafe {
            let mut info = core::mem::zeroed::<libc::Dl_info>();
            let own = (construct as *const ()).cast::<core::ffi::c_void>();
            let headers = libc::getauxval(libc::AT_PHDR);
            libc::dladdr(own, &raw mut info) != 0
                && (headers & !0xfff) != info.dli_fbase.addr() as u64
        }
    }
}
