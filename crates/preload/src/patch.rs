//! Rewrites libc and the loader of this process: stubs into new memory near each, jumps into the
//! windows.
//!
//! Invariants:
//! 1. No memory is ever writable and executable at once. While text is writable it can't run, so
//!    signals are blocked and only this library's own code runs, without libc.
//! 2. With other threads alive (a constructor ahead of ours started them) text stays executable:
//!    windows are written through /proc/self/mem, and only those whose `syscall` stays in place,
//!    because no thread can be about to return into one of these.
//! 3. Either a library is patched at all its wanted sites, or not at all, and one line says why.

use core::ffi::CStr;
use core::slice;

use crate::arch::stub::{self, JUMP_BYTES, Unfit};
use crate::arch::{enter, raw};
use crate::image::{self, Image};
use crate::select;
use crate::sites::{self, Site, Table};

const PAGE_BYTES: u64 = 4096;

/// Steps in which free memory near a library is looked for, and how far: 1.5 GiB leaves room for
/// the library and the area itself within a jump's 2 GiB.
const PROBE_STEP_BYTES: u64 = 1 << 20;
const PROBE_STEPS_MAX: u64 = 1536;

/// Why a library was left as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No site that can be patched: not a library that we know.
    NoSites,
    /// No free memory within reach.
    NoRoom,
    /// The system does not let code be changed (mprotect).
    Forbidden,
    /// A stub could not be written.
    Unfit(Unfit),
}

impl Refusal {
    fn text(self) -> &'static [u8] {
        match self {
            Self::NoSites => b"no system call sites found",
            Self::NoRoom => b"no free memory near the library",
            Self::Forbidden => b"the system forbids changing code (SELinux execmod?)",
            Self::Unfit(_) => b"a call site does not fit",
        }
    }
}

/// What was done, over both libraries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Installed {
    /// Libraries patched.
    pub libraries: u32,
    /// Sites that now lead to the handler.
    pub sites: u32,
    /// Tables that were read from the cache.
    pub cached: u32,
}

/// Patches libc and the loader. `directory` is where the tables of sites are, if anywhere.
///
/// Called once, by the constructor. Refusals are reported on standard error, one line each. With
/// `has_loader` the loader was rewritten before it began (`program`).
pub fn install(directory: Option<&[u8]>, has_loader: bool) -> Installed {
    let mut installed = Installed::default();
    let mut complained = false;
    image::loaded(&mut |image| {
        if has_loader && image.is_loader() {
            return;
        }
        let cached = directory.and_then(|directory| sites::load(directory, image));
        installed.cached += u32::from(cached.is_some());
        let table = cached.unwrap_or_else(|| sites::sweep(image));
        match library(image, &table) {
            Ok(sites) => {
                installed.libraries += 1;
                installed.sites += sites;
            }
            Err(_) if complained => {}
            Err(refusal) => {
                complained = true;
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

/// Patches one image that nothing runs in yet.
///
/// # Errors
/// Why it was left as it was.
pub fn install_in(image: &Image<'_>) -> Result<u32, Refusal> {
    library(image, &sites::sweep(image))
}

fn wanted(site: &Site) -> bool {
    site.number == Site::UNKNOWN || select::selected(site.number)
}

fn library(image: &Image<'_>, table: &Table) -> Result<u32, Refusal> {
    let threads = has_threads();
    let sites = || table.sites().filter(|site| wanted(site) && (!threads || site.stays()));
    let count = sites().count();
    if count == 0 {
        return Err(Refusal::NoSites);
    }
    let mut area = Area::near(image, stub::HEADER_BYTES + count * stub::STUB_BYTES_MAX)?;
    let mut jumps = Jumps::new(count)?;
    area.fill(image, sites(), &mut jumps)?;
    area.seal()?;
    if threads {
        write_through_memory_file(jumps.made())?;
    } else {
        write_with_mprotect(image, jumps.made())?;
    }
    area.keep();
    Ok(jumps.used as u32)
}

/// Whether other threads run already. An older libc does not say; then there are none, as a rule.
fn has_threads() -> bool {
    // SAFETY: the name ends in zero; the symbol is a `char` of libc's. WHY: a weak symbol can't be
    // declared in stable Rust.
    unsafe {
        let single = libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr());
        !single.is_null() && single.cast::<u8>().read_volatile() == 0
    }
}

/// New anonymous memory, returned unless kept.
struct Memory {
    address: u64,
    bytes: u64,
    kept: bool,
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
        let memory = Self { address: mapped.cast_unsigned(), bytes, kept: false };
        // A kernel before 4.17 takes NOREPLACE for a hint.
        (!fixed || memory.address == hint).then_some(memory)
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: our own mapping, writable until sealed, borrowed through us alone.
        unsafe { slice::from_raw_parts_mut(self.address as *mut u8, self.bytes as usize) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if !self.kept {
            // SAFETY: our own mapping, which nothing leads to.
            let _ = unsafe { raw::call2(libc::SYS_munmap, self.address, self.bytes) };
        }
    }
}

/// The jumps to be written: memory of our own, because the heap is libc's.
struct Jumps {
    memory: Memory,
    used: usize,
}

/// One jump: where, and what.
#[derive(Clone, Copy)]
struct Jump {
    address: u64,
    bytes: [u8; JUMP_BYTES],
}

impl Jumps {
    fn new(count: usize) -> Result<Self, Refusal> {
        let memory = Memory::map(0, count * size_of::<Jump>(), false).ok_or(Refusal::NoRoom)?;
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
    /// Free memory below the library, else above it.
    fn near(image: &Image<'_>, bytes: usize) -> Result<Self, Refusal> {
        let low = image.base & !(PROBE_STEP_BYTES - 1);
        let size = (bytes as u64).next_multiple_of(PROBE_STEP_BYTES);
        let below =
            (0..PROBE_STEPS_MAX).filter_map(|step| low.checked_sub(size + step * PROBE_STEP_BYTES));
        let above =
            (1..PROBE_STEPS_MAX).filter_map(|step| low.checked_add(step * PROBE_STEP_BYTES));
        below
            .chain(above)
            .filter(|hint| *hint != 0)
            .find_map(|hint| Memory::map(hint, bytes, true))
            .map(|memory| Self { memory })
            .ok_or(Refusal::NoRoom)
    }

    fn fill(
        &mut self,
        image: &Image<'_>,
        sites: impl Iterator<Item = Site>,
        jumps: &mut Jumps,
    ) -> Result<(), Refusal> {
        let area_at = self.memory.address;
        let area = self.memory.bytes();
        stub::begin(area, enter::entry(), enter::after());
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
            offset += length;
        }
        Ok(())
    }

    /// Makes the stubs code.
    fn seal(&self) -> Result<(), Refusal> {
        protect(self.memory.address, self.memory.bytes, libc::PROT_READ | libc::PROT_EXEC)
    }

    fn keep(mut self) {
        self.memory.kept = true;
    }
}

fn protect(address: u64, bytes: u64, protection: i32) -> Result<(), Refusal> {
    // SAFETY: callers pass memory of their own or the text that they are about to patch.
    match unsafe { raw::call3(libc::SYS_mprotect, address, bytes, protection as u64) } {
        0 => Ok(()),
        _ => Err(Refusal::Forbidden),
    }
}

/// Blocks all signals; answers the mask before.
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
            // SAFETY: the window lies in text that is writable now and is executed by nobody:
            // one thread, no signals, and this code is not in that text.
            unsafe { (jump.address as *mut [u8; JUMP_BYTES]).write_volatile(jump.bytes) };
        }
        protect(from, bytes, libc::PROT_READ | libc::PROT_EXEC)
            .inspect_err(|_| restore(image, from, bytes))
    });
    block_signals(mask);
    result
}

/// Puts the file's own pages back where changed text may not become code again.
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
        // The first write is refused or all are allowed.
        let done = jumps.iter().all(write);
        raw::close(file);
        if done { Ok(()) } else { Err(Refusal::Forbidden) }
    }
}
