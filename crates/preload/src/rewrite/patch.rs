//! Rewrites libc and the loader of this process: stubs in new memory near each, jumps in the
//! windows.
//!
//! Invariants:
//! 1. No memory is ever writable and executable at once. While text is writable it cannot run, so
//!    signals are blocked and only this library's own code runs, without libc.
//! 2. With other threads alive (an earlier constructor started them) text stays executable:
//!    windows are written through /proc/self/mem, and only those whose `syscall` stays in place,
//!    because no thread can be about to return into one of these.
//! 3. A library is patched at all its selected sites, or not at all, and one line says why.

use core::ffi::CStr;
use core::slice;
use std::os::unix::ffi::OsStrExt as _;

use crate::arch::stub::{self, JUMP_BYTES, Unfit};
use crate::arch::{enter, raw};
use crate::entry::select;
use crate::entry::stubs::{self, Stub};
use crate::rewrite::image::{self, Image};
use crate::rewrite::site::Site;
use crate::rewrite::sites::{self, Table};

const PAGE_BYTES: u64 = 4096;
/// Length of the instruction that enters the kernel.
const CALL_BYTES: u64 = 2;

/// Step and number of probes for free memory near a library: 1.5 GiB leaves space for the library
/// and the area itself within a jump's 2 GiB.
const PROBE_STEP_BYTES: u64 = 1 << 20;
const PROBE_STEPS_MAX: u64 = 1536;

/// Why a library was left unmodified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No site that can be patched: not a known library.
    NoSites,
    /// No free memory within reach.
    NoSpace,
    /// The system forbids changing code (mprotect).
    Forbidden,
    /// A stub could not be written.
    Unfit(Unfit),
}

impl Refusal {
    fn text(self) -> &'static [u8] {
        match self {
            Self::NoSites => b"no system call sites found",
            Self::NoSpace => b"no free memory near the library",
            Self::Forbidden => b"the system forbids changing code (SELinux execmod?)",
            Self::Unfit(_) => b"a call site does not fit",
        }
    }
}

/// Result over both libraries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Installed {
    /// Libraries patched.
    pub libraries: u32,
    /// Sites that now lead to the handler.
    pub sites: u32,
    /// Tables that were read from the cache.
    pub cached: u32,
}

/// Patches libc and the loader. `directory` holds the tables of sites, if there are any.
///
/// Called once, by the constructor. The first refusal is reported on standard error, unless the
/// program `sees_mount`, which serves what is not intercepted. With `has_loader` the loader was
/// rewritten before it started (`program`).
pub fn install(directory: Option<&[u8]>, has_loader: bool, sees_mount: bool) -> Installed {
    let mut installed = Installed::default();
    let mut is_reported = sees_mount;
    image::loaded(&mut |image| {
        if has_loader && image.is_loader() {
            return;
        }
        let cached = directory.and_then(|directory| sites::load(directory, image));
        installed.cached += u32::from(cached.is_some());
        let table = cached.unwrap_or_else(|| sites::sweep(image));
        match library(image, &table) {
            Ok(patched) => {
                installed.libraries += 1;
                installed.sites += patched.sites;
            }
            Err(_) if is_reported => {}
            Err(refusal) => {
                is_reported = true;
                raw::complain(&[
                    b"forebay: calls of this program are not intercepted: ",
                    refusal.text(),
                    b", library=",
                    image.path.to_bytes(),
                    b"; it does not see the instance\n",
                ]);
            }
        }
    });
    installed
}

/// The stubs of an image.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patched {
    sites: u32,
    /// Where they are.
    area: u64,
    area_bytes: u64,
}

impl Patched {
    /// Unmaps the stubs of an image that is not mapped any more.
    pub(super) fn forget(self) {
        stubs::forget(self.area);
        // SAFETY: our own mapping, and the code that led there is gone.
        let _ = unsafe { raw::call2(libc::SYS_munmap, self.area, self.area_bytes) };
    }
}

/// Patches an image other than libc and the loader where it has `syscall` instructions of its own.
///
/// Most have none, and an empty table in `directory` says so to the next program. Only calls whose
/// number the code sets just before, and whose `syscall` stays in place, are taken: what a compiler
/// made of them is known. Others reach the kernel, as do those of images that cannot be changed.
pub(super) fn install_in_other(image: &Image<'_>, directory: Option<&[u8]>) -> Option<Patched> {
    if image.is_go {
        return None;
    }
    let cached = directory.and_then(|directory| sites::load(directory, image));
    let table = match cached {
        Some(table) => table,
        None => {
            let table = sites::sweep_foreign(image)?;
            if let Some(directory) = directory {
                let directory = std::ffi::OsStr::from_bytes(directory);
                let _ = sites::store(std::path::Path::new(directory), image, &table);
            }
            table
        }
    };
    library(image, &table).ok()
}

/// Patches one image that no code runs in yet.
///
/// # Errors
/// Why it was left unmodified.
pub fn install_in(image: &Image<'_>) -> Result<u32, Refusal> {
    library(image, &sites::sweep(image)).map(|patched| patched.sites)
}

/// Makes a function of the loader that does nothing, and has room for a jump, jump to another one.
///
/// # Errors
/// Why it was left unmodified.
pub(super) fn redirect(image: &Image<'_>, function: u64, to: u64) -> Result<(), Refusal> {
    /// `jmp [rip]`, and the address behind it.
    const FAR_JUMP: [u8; 6] = [0xff, 0x25, 0, 0, 0, 0];
    if has_threads() {
        return Err(Refusal::Forbidden);
    }
    let mut area = Area::map_within_reach(image, FAR_JUMP.len() + size_of::<u64>())?;
    let code = FAR_JUMP.into_iter().chain(to.to_le_bytes());
    area.memory.bytes().iter_mut().zip(code).for_each(|(to, from)| *to = from);
    area.seal()?;
    let mut jumps = Jumps::new(1)?;
    let bytes = stub::jump(function, area.memory.address).map_err(Refusal::Unfit)?;
    jumps.push(Jump { address: function, bytes });
    write_with_mprotect(image, jumps.made())?;
    area.memory.is_permanent = true;
    Ok(())
}

fn is_selected(site: &Site) -> bool {
    site.number == Site::UNKNOWN || select::selected(site.number)
}

fn library(image: &Image<'_>, table: &Table) -> Result<Patched, Refusal> {
    let threads = has_threads();
    let sites = || table.sites().filter(|site| is_selected(site) && (!threads || site.stays()));
    let count = sites().count();
    if count == 0 {
        return Err(Refusal::NoSites);
    }
    let bytes = stub::HEADER_BYTES + count * (stub::STUB_BYTES_MAX + size_of::<Stub>());
    let mut area = Area::map_within_reach(image, bytes)?;
    let mut jumps = Jumps::new(count)?;
    area.fill(image, sites(), count, &mut jumps)?;
    area.seal()?;
    if threads {
        write_through_memory_file(jumps.made())?;
    } else {
        write_with_mprotect(image, jumps.made())?;
    }
    let (area, area_bytes) = area.keep(count);
    Ok(Patched { sites: jumps.used as u32, area, area_bytes })
}

/// True if other threads already run. An older libc does not tell; then there are none, as a rule.
fn has_threads() -> bool {
    // SAFETY: the name ends in zero; the symbol is a `char` of libc's.
    // WHY: a weak symbol cannot be declared in stable Rust.
    unsafe {
        let single = libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr());
        !single.is_null() && single.cast::<u8>().read_volatile() == 0
    }
}

/// New anonymous memory, unmapped on drop unless made permanent.
struct Memory {
    address: u64,
    bytes: u64,
    is_permanent: bool,
}

impl Memory {
    fn map(hint: u64, bytes: usize, fixed: bool) -> Option<Self> {
        let bytes = (bytes as u64).next_multiple_of(PAGE_BYTES);
        let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let place = if fixed { libc::MAP_FIXED_NOREPLACE } else { 0 };
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | place) as u64;
        // SAFETY: NOREPLACE or no hint: the kernel touches no mapping that exists.
        let mapped =
            unsafe { raw::call6(libc::SYS_mmap, hint, bytes, protection, flags, u64::MAX, 0) };
        if mapped <= 0 {
            return None;
        }
        let memory = Self { address: mapped.cast_unsigned(), bytes, is_permanent: false };
        // A kernel before 4.17 treats NOREPLACE as a hint.
        (!fixed || memory.address == hint).then_some(memory)
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: our own mapping, writable until sealed, borrowed through us alone.
        unsafe { slice::from_raw_parts_mut(self.address as *mut u8, self.bytes as usize) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if !self.is_permanent {
            // SAFETY: our own mapping, to which nothing leads.
            let _ = unsafe { raw::call2(libc::SYS_munmap, self.address, self.bytes) };
        }
    }
}

/// The jumps to be written, in memory of our own, because the heap is libc's.
struct Jumps {
    memory: Memory,
    used: usize,
}

/// One jump: its address and bytes.
#[derive(Clone, Copy)]
struct Jump {
    address: u64,
    bytes: [u8; JUMP_BYTES],
}

impl Jumps {
    fn new(count: usize) -> Result<Self, Refusal> {
        let memory = Memory::map(0, count * size_of::<Jump>(), false).ok_or(Refusal::NoSpace)?;
        Ok(Self { memory, used: 0 })
    }

    fn push(&mut self, jump: Jump) {
        let at = self.used * size_of::<Jump>();
        if (at + size_of::<Jump>()) as u64 <= self.memory.bytes {
            // SAFETY: inside the mapping (checked), aligned (a page begins it).
            unsafe { ((self.memory.address as *mut Jump).add(self.used)).write(jump) };
            self.used += 1;
        }
    }

    fn made(&self) -> &[Jump] {
        // SAFETY: the first `used` were written by `push`.
        unsafe { slice::from_raw_parts(self.memory.address as *const Jump, self.used) }
    }
}

/// The stubs of one library.
struct Area {
    memory: Memory,
}

impl Area {
    /// Maps free memory below the library, else above it.
    fn map_within_reach(image: &Image<'_>, bytes: usize) -> Result<Self, Refusal> {
        let low = image.base & !(PROBE_STEP_BYTES - 1);
        let size = (bytes as u64).next_multiple_of(PROBE_STEP_BYTES);
        let lower =
            (0..PROBE_STEPS_MAX).filter_map(|step| low.checked_sub(size + step * PROBE_STEP_BYTES));
        let higher =
            (1..PROBE_STEPS_MAX).filter_map(|step| low.checked_add(step * PROBE_STEP_BYTES));
        lower
            .chain(higher)
            .filter(|hint| *hint != 0)
            .find_map(|hint| Memory::map(hint, bytes, true))
            .map(|memory| Self { memory })
            .ok_or(Refusal::NoSpace)
    }

    fn fill(
        &mut self,
        image: &Image<'_>,
        sites: impl Iterator<Item = Site>,
        count: usize,
        jumps: &mut Jumps,
    ) -> Result<(), Refusal> {
        let area_at = self.memory.address;
        let all = self.memory.bytes();
        let table_at = all.len().checked_sub(count * size_of::<Stub>());
        let (area, table) = all.split_at_mut(table_at.ok_or(Refusal::NoSpace)?);
        let mut entries = table.chunks_exact_mut(size_of::<Stub>());
        stub::begin(area, [enter::entry(), enter::after(), enter::entry_selected()]);
        let mut offset = stub::HEADER_BYTES;
        for site in sites {
            let address = u64::from(site.address);
            let window = image.bytes(address, usize::from(site.length));
            let window = window.ok_or(Refusal::Unfit(Unfit::Malformed))?;
            let window_at = image.base + address;
            let length = stub::emit(area, area_at, offset, &site, window, window_at)
                .map_err(Refusal::Unfit)?;
            let bytes = stub::jump(window_at, area_at + offset as u64).map_err(Refusal::Unfit)?;
            jumps.push(Jump { address: window_at, bytes });
            if let Some(entry) = entries.next() {
                let call = offset + usize::from(site.call.min(site.length));
                let resume = window_at + u64::from(site.call) + CALL_BYTES;
                let words = [offset as u64 | (call as u64) << 32, resume];
                for (to, word) in entry.chunks_exact_mut(8).zip(words) {
                    to.copy_from_slice(&word.to_le_bytes());
                }
            }
            offset += length;
        }
        Ok(())
    }

    /// Makes the stubs executable.
    fn seal(&self) -> Result<(), Refusal> {
        protect(self.memory.address, self.memory.bytes, libc::PROT_READ | libc::PROT_EXEC)
    }

    /// Where it is, for good.
    fn keep(mut self, count: usize) -> (u64, u64) {
        self.memory.is_permanent = true;
        stubs::note(self.memory.address, self.memory.bytes, count);
        (self.memory.address, self.memory.bytes)
    }
}

fn protect(address: u64, bytes: u64, protection: i32) -> Result<(), Refusal> {
    // SAFETY: callers pass memory of their own or the text that they are about to patch.
    match unsafe { raw::call3(libc::SYS_mprotect, address, bytes, protection as u64) } {
        0 => Ok(()),
        _ => Err(Refusal::Forbidden),
    }
}

/// Sets the signal mask; returns the previous one.
fn block_signals(set: u64) -> u64 {
    let (new, mut old) = (set, 0_u64);
    let (new_at, old_at) = ((&raw const new).addr() as u64, (&raw mut old).addr() as u64);
    // SAFETY: two masks of 8 bytes, as the size says.
    let _ = unsafe {
        let how = libc::SIG_SETMASK as u64;
        raw::call4(libc::SYS_rt_sigprocmask, how, new_at, old_at, size_of::<u64>() as u64)
    };
    old
}

/// Writes the jumps while no other thread exists.
fn write_with_mprotect(image: &Image<'_>, jumps: &[Jump]) -> Result<(), Refusal> {
    let (Some(first), Some(last)) = (jumps.first(), jumps.last()) else {
        return Ok(());
    };
    let from = first.address & !(PAGE_BYTES - 1);
    let bytes = (last.address + JUMP_BYTES as u64).next_multiple_of(PAGE_BYTES) - from;
    let mask = block_signals(u64::MAX);
    let result = protect(from, bytes, libc::PROT_READ | libc::PROT_WRITE).and_then(|()| {
        for jump in jumps {
            // SAFETY: the window is in text that is writable now and executed by nobody: one
            // thread, no signals, and this code is not in that text.
            unsafe { (jump.address as *mut [u8; JUMP_BYTES]).write_volatile(jump.bytes) };
        }
        protect(from, bytes, libc::PROT_READ | libc::PROT_EXEC)
            .inspect_err(|_| restore(image, from, bytes))
    });
    block_signals(mask);
    result
}

/// Maps the file's own pages again if changed text may not become executable.
fn restore(image: &Image<'_>, from: u64, bytes: u64) {
    let address = from - image.base;
    let holds = |segment: &&image::Segment<'_>| {
        segment.executable && address >= segment.address & !(PAGE_BYTES - 1)
    };
    let Some(segment) = image.segments().filter(holds).last() else {
        return;
    };
    let offset = address + segment.file_offset - segment.address;
    let path: &CStr = image.path;
    let protection = (libc::PROT_READ | libc::PROT_EXEC) as u64;
    let flags = (libc::MAP_PRIVATE | libc::MAP_FIXED) as u64;
    // SAFETY: the same bytes of the same file over the text that was mapped from it.
    unsafe {
        let only = (libc::O_RDONLY | libc::O_CLOEXEC) as u64;
        let file = raw::call3(libc::SYS_open, path.as_ptr().addr() as u64, only, 0);
        let descriptor = file.cast_unsigned();
        let _ = raw::call6(libc::SYS_mmap, from, bytes, protection, flags, descriptor, offset);
        raw::close(file);
    }
}

/// Writes the jumps while other threads may run the text.
fn write_through_memory_file(jumps: &[Jump]) -> Result<(), Refusal> {
    let path = c"/proc/self/mem".as_ptr().addr() as u64;
    let flags = (libc::O_RDWR | libc::O_CLOEXEC) as u64;
    // SAFETY: writes our own text, in windows that no thread is inside of (invariant 2).
    unsafe {
        let file = raw::call3(libc::SYS_open, path, flags, 0);
        if file < 0 {
            return Err(Refusal::Forbidden);
        }
        let write = |jump: &Jump| {
            let (bytes, length) = (jump.bytes.as_ptr().addr() as u64, JUMP_BYTES as u64);
            let file = file.cast_unsigned();
            raw::call4(libc::SYS_pwrite64, file, bytes, length, jump.address) == length as i64
        };
        // Either the first write is refused, or all are allowed.
        let done = jumps.iter().all(write);
        raw::close(file);
        if done { Ok(()) } else { Err(Refusal::Forbidden) }
    }
}
