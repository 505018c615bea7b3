//! Images that come and go while the program runs: those of `dlopen`.
//!
//! The loader calls a function that does nothing whenever its list of images has changed, for
//! debuggers to stop at (`r_brk` in `struct r_debug` of <link.h>): of a new image, after it was mapped
//! and before it is relocated and any code of it runs. This module makes that function jump here. So it
//! runs within `dlopen` and `dlclose`, as ordinary code on the program's stack, under the loader's
//! lock; it may allocate, as these do.
//!
//! Without that function, or with other threads at the start, images of `dlopen` are left as they are.

use core::ffi::{CStr, c_char};
use std::sync::Mutex;

use crate::entry::process::is_vfork_child;
use crate::rewrite::image::{self, Image};
use crate::rewrite::patch::{self, Patched};

/// `struct r_debug`, its fields up to the state.
#[repr(C)]
struct LoaderState {
    version: i32,
    images: u64,
    function: u64,
    state: i32,
}

/// The list of images is complete.
const CONSISTENT: i32 = 0;

/// An image that was there at the last look.
struct KnownImage {
    base: u64,
    /// Address of its name, which tells it from others that were there; never read.
    name: *const c_char,
    patched: Option<Patched>,
    is_there: bool,
}

// SAFETY: the pointer is only compared.
unsafe impl Send for KnownImage {}

struct Images {
    known: Vec<KnownImage>,
    /// Where the tables of sites are; empty for none.
    directory: Vec<u8>,
}

/// Nobody waits for it: the loader calls one thread at a time, and a handler that interrupts may not.
static IMAGES: Mutex<Images> = Mutex::new(Images { known: Vec::new(), directory: Vec::new() });

/// Patches the program and its libraries that have system calls of their own, and from now on those
/// that it opens. Called once, by the constructor. `directory` holds tables of sites.
pub fn install(directory: Option<&[u8]>) {
    if let Ok(mut images) = IMAGES.try_lock() {
        images.directory = directory.unwrap_or(&[]).to_vec();
        images.look();
    }
    if let Some(loader) = loader_state() {
        image::loaded(&mut |image| {
            if image.is_loader() && does_nothing(image, loader.function) {
                let _ = patch::redirect(image, loader.function, changed as *const () as u64);
            }
        });
    }
}

/// The loader's state for debuggers.
fn loader_state() -> Option<&'static LoaderState> {
    const NAME: &CStr = c"_r_debug";
    // SAFETY: the name ends in zero. The loader keeps the structure of this form for the life of the
    // process, and changes it only in the calls within which it is read.
    // WHY: only the loader knows it.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, NAME.as_ptr()).cast::<LoaderState>().as_ref() }
}

/// True if the function at an address only returns, and there is room for a jump.
fn does_nothing(image: &Image<'_>, function: u64) -> bool {
    const MARK: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
    const RETURN: u8 = 0xc3;
    /// How no-ops between functions begin.
    const PADDING: [&[u8]; 5] = [
        &[0x66, 0x66, 0x2e, 0x0f],
        &[0x66, 0x2e, 0x0f, 0x1f],
        &[0x0f, 0x1f],
        &[0x90; 4],
        &[0xcc; 4],
    ];
    let code = function.checked_sub(image.base).and_then(|address| image.bytes(address, 5));
    code.is_some_and(|code| match code.split_first() {
        Some((&RETURN, rest)) => PADDING.iter().any(|padding| rest.starts_with(padding)),
        _ => code.strip_prefix(&MARK) == Some(&[RETURN]),
    })
}

/// The list of images has changed, or is about to.
extern "C" fn changed() {
    if loader_state().is_some_and(|loader| loader.state == CONSISTENT)
        && !is_vfork_child()
        && let Ok(mut images) = IMAGES.try_lock()
    {
        images.look();
    }
}

impl Images {
    /// Patches images that are new, and forgets those that are gone.
    fn look(&mut self) {
        let Images { known, directory } = self;
        let directory = Some(directory.as_slice()).filter(|directory| !directory.is_empty());
        known.iter_mut().for_each(|known| known.is_there = false);
        let mut next = 0;
        image::others(&mut |loaded| {
            let is_it = |it: &KnownImage| it.base == loaded.base && it.name == loaded.path.as_ptr();
            // The loader keeps the order of the list.
            let place = match known.get(next) {
                Some(it) if is_it(it) => Some(next),
                _ => known.iter().position(is_it),
            };
            if let Some((place, known)) = place.and_then(|at| Some((at, known.get_mut(at)?))) {
                known.is_there = true;
                next = place + 1;
            } else if known.try_reserve(1).is_ok() {
                let patched = install_in(&loaded.image(), directory);
                let (base, name) = (loaded.base, loaded.path.as_ptr());
                known.push(KnownImage { base, name, patched, is_there: true });
            }
        });
        known.retain(|known| {
            if let Some(patched) = known.patched.filter(|_| !known.is_there) {
                patched.forget();
            }
            known.is_there
        });
    }
}

fn install_in(image: &Image<'_>, directory: Option<&[u8]>) -> Option<Patched> {
    // The loader would change instructions that have moved.
    if image.has_text_relocations { None } else { patch::install_in_other(image, directory) }
}
