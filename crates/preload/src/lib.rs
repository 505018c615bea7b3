//! The library that is loaded into applications (LD_PRELOAD) and takes their file system calls.
//!
//! Contract: in its constructor it rewrites the `syscall` sites of file system calls inside libc
//! and the dynamic loader, so that each goes through a stub to the handler (`dispatch`), which
//! answers it or lets the kernel do so with nothing changed. All that the kernel preserves is
//! preserved: registers, flags, red zone, vectors, stack. A program whose code can't be rewritten
//! runs as without us, after one line on standard error.
//!
//! Not here: static programs and those that make system calls without libc; `forebay run`
//! refuses those that it knows.
//!
//! Limits that are known: a cancellation (pthread_cancel) that arrives while the handler itself
//! runs acts as a siglongjmp out of it. With glibc 2.41 and later one that arrives in the few
//! instructions between libc's own check and its `syscall` is seen only at the next call.
//!
//! Environment: `FOREBAY_SITES`, the directory of prepared tables (see `sites`).
//!
//! Reading order: `arch`, `select`, `dispatch`, `process`; `image`, `scan`, `sites`, `patch`;
//! `calls`, `program`.

pub mod arch;

pub mod select;

pub mod dispatch;

pub mod process;

pub mod image;

pub mod scan;

pub mod sites;

pub mod patch;

pub mod environment;

pub mod decimal;

pub mod calls;

pub mod program;

#[cfg(feature = "trace")]
pub mod trace;

/// Marks the shared library: the constructor does nothing in a program that links the rlib.
mod start {
    use core::ffi::{c_char, c_int};

    use crate::calls::hooks;
    use crate::environment::Environment;
    use crate::{dispatch, patch, process, program};

    type Constructor = extern "C" fn(c_int, *const *const c_char, *const *const c_char);

    /// ld.so calls what lies in `.init_array` with argc, argv and envp.
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
        process::remember();
        #[cfg(feature = "trace")]
        if let Some(path) = environment.get(b"FOREBAY_TRACE") {
            crate::trace::open(path.to_bytes_with_nul());
        }
        // Without an instance there is nothing to catch, and the program stays as it is.
        let is_prepared = hooks::prepare(&environment);
        if !is_prepared && !cfg!(feature = "trace") {
            return;
        }
        if is_prepared {
            dispatch::install(&hooks::HOOKS);
        }
        let directory = environment.get(b"FOREBAY_SITES").filter(|path| !path.is_empty());
        let has_loader = is_prepared && program::take_over();
        patch::install(directory.map(core::ffi::CStr::to_bytes), has_loader);
        let wanted = environment.get(program::VARIABLE).filter(|_| is_prepared && !has_loader);
        hooks::resume(&environment, wanted.is_some() || has_loader);
        if let Some(path) = wanted {
            // SAFETY: the loader's own arguments, handed on.
            unsafe { program::start(path, count.unsigned_abs() as usize, arguments, strings) }
        }
    }

    /// Whether this code lies in an object other than the program itself.
    fn is_shared_library() -> bool {
        // SAFETY: asks for the object of our own address, and gets the auxiliary vector's entry.
        unsafe {
            let mut info = core::mem::zeroed::<libc::Dl_info>();
            let own = construct as *const () as *const core::ffi::c_void;
            let headers = libc::getauxval(libc::AT_PHDR);
            libc::dladdr(own, &raw mut info) != 0
                && (headers & !0xfff) != info.dli_fbase.addr() as u64
        }
    }
}
