//! The ELF images to be patched: libc and the dynamic loader, as mapped or as files.
//!
//! Addresses are relative to the image (`address` in the ELF sense); adding `base` gives memory
//! addresses.

use core::ffi::{CStr, c_int, c_void};
use core::slice;

/// A loaded part of an image.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// Its address within the image.
    pub address: u64,
    /// Its bytes, as in the file.
    pub bytes: &'a [u8],
    /// Its offset in the file.
    pub file_offset: u64,
    /// True if it contains code.
    pub executable: bool,
}

/// Most loaded segments that are never written; libraries have three or four in all.
pub const SEGMENTS_MAX: usize = 8;

/// Build-ids are 20 bytes (SHA-1); the table's header has space for 32.
pub const BUILD_ID_BYTES_MAX: usize = 32;

/// A library: its read-only segments and its build-id.
#[derive(Clone, Copy, Debug)]
pub struct Image<'a> {
    /// Path of the file, as the loader knows it.
    pub path: &'a CStr,
    /// Offset from an image address to a memory address.
    pub base: u64,
    segments: [Option<Segment<'a>>; SEGMENTS_MAX],
    /// Made by Go, whose functions have small stacks.
    pub is_go: bool,
    /// The loader changes its text.
    pub has_text_relocations: bool,
    /// Zero-padded; `None` if the file carries none.
    pub build_id: Option<([u8; BUILD_ID_BYTES_MAX], u8)>,
}

const NOTE_BUILD_ID: u32 = 3;

/// One program header, from memory or file.
#[derive(Clone, Copy)]
struct SegmentHeader {
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    file_bytes: u64,
}

impl<'a> Image<'a> {
    /// The segments, lowest first.
    pub fn segments(&self) -> impl Iterator<Item = &Segment<'a>> {
        self.segments.iter().flatten()
    }

    /// `length` bytes at an image address.
    #[must_use]
    pub fn bytes(&self, address: u64, length: usize) -> Option<&'a [u8]> {
        self.segments().find_map(|segment| {
            let from = usize::try_from(address.checked_sub(segment.address)?).ok()?;
            segment.bytes.get(from..from.checked_add(length)?)
        })
    }

    fn empty(path: &'a CStr, base: u64) -> Self {
        Self {
            path,
            base,
            segments: [None; SEGMENTS_MAX],
            is_go: false,
            has_text_relocations: false,
            build_id: None,
        }
    }

    fn add(&mut self, header: SegmentHeader, bytes: &'a [u8]) {
        let writable = header.flags & libc::PF_W != 0;
        match header.kind {
            libc::PT_LOAD if !writable => {
                if let Some(slot) = self.segments.iter_mut().find(|slot| slot.is_none()) {
                    *slot = Some(Segment {
                        address: header.address,
                        bytes,
                        file_offset: header.offset,
                        executable: header.flags & libc::PF_X != 0,
                    });
                }
            }
            libc::PT_NOTE => {
                self.build_id = self.build_id.or_else(|| build_id(bytes));
                self.is_go |= bytes.get(12..16) == Some(b"Go\0\0");
            }
            libc::PT_DYNAMIC => self.has_text_relocations |= relocates_text(bytes),
            _ => {}
        }
    }

    /// True for the dynamic loader.
    #[must_use]
    pub fn is_loader(&self) -> bool {
        let path = self.path.to_bytes();
        let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        name.starts_with(b"ld-linux")
    }

    /// A library that was mapped at `base` by `program::load` and stays there.
    #[must_use]
    pub fn from_memory(path: &'a CStr, base: u64) -> Option<Self> {
        let mapped = |address: u64, length: usize| {
            let at = (base + address) as *const u8;
            // SAFETY: the loader mapped all segments, and the headers name ranges in them.
            unsafe { slice::from_raw_parts(at, length) }
        };
        let head = mapped(0, 64);
        let table = number(head, 32, 8)?;
        let count = usize::try_from(number(head, 56, 2)?).ok()?;
        let headers = mapped(table, count.checked_mul(56)?);
        let mut image = Self::empty(path, base);
        for header in headers.chunks_exact(56) {
            let field = |at, length| number(header, at, length);
            let header = SegmentHeader {
                kind: u32::try_from(field(0, 4)?).ok()?,
                flags: u32::try_from(field(4, 4)?).ok()?,
                offset: field(8, 8)?,
                address: field(16, 8)?,
                file_bytes: field(32, 8)?,
            };
            if header.flags & libc::PF_R != 0
                && matches!(header.kind, libc::PT_LOAD | libc::PT_NOTE)
            {
                let length = usize::try_from(header.file_bytes).ok()?;
                image.add(header, mapped(header.address, length));
            }
        }
        Some(image)
    }

    /// An image from the bytes of its file; `None` if it is no 64-bit ELF file.
    #[must_use]
    pub fn from_file(path: &'a CStr, file: &'a [u8]) -> Option<Self> {
        if !file.starts_with(b"\x7fELF\x02\x01") {
            return None;
        }
        let table = usize::try_from(number(file, 32, 8)?).ok()?;
        let count = number(file, 56, 2)?;
        let mut image = Self::empty(path, 0);
        for index in 0..usize::try_from(count).ok()? {
            let at = table.checked_add(index.checked_mul(56)?)?;
            let header = SegmentHeader {
                kind: u32::try_from(number(file, at, 4)?).ok()?,
                flags: u32::try_from(number(file, at + 4, 4)?).ok()?,
                offset: number(file, at + 8, 8)?,
                address: number(file, at + 16, 8)?,
                file_bytes: number(file, at + 32, 8)?,
            };
            let from = usize::try_from(header.offset).ok()?;
            let to = from.checked_add(usize::try_from(header.file_bytes).ok()?)?;
            image.add(header, file.get(from..to)?);
        }
        Some(image)
    }
}

/// A little-endian number of `length` bytes.
fn number(file: &[u8], at: usize, length: usize) -> Option<u64> {
    let bytes = file.get(at..at.checked_add(length)?)?;
    Some(bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
}

/// True if a dynamic section says so.
fn relocates_text(section: &[u8]) -> bool {
    /// Tags and a flag of the ELF format.
    const TEXT_RELOCATIONS: u64 = 22;
    const FLAGS: u64 = 30;
    const IN_TEXT: u64 = 4;
    section.chunks_exact(16).any(|entry| match (number(entry, 0, 8), number(entry, 8, 8)) {
        (Some(TEXT_RELOCATIONS), _) => true,
        (Some(FLAGS), Some(flags)) => flags & IN_TEXT != 0,
        _ => false,
    })
}

fn build_id(mut notes: &[u8]) -> Option<([u8; BUILD_ID_BYTES_MAX], u8)> {
    loop {
        let name = usize::try_from(number(notes, 0, 4)?).ok()?;
        let length = usize::try_from(number(notes, 4, 4)?).ok()?;
        let kind = u32::try_from(number(notes, 8, 4)?).ok()?;
        let at = 12 + name.checked_next_multiple_of(4)?;
        let content = notes.get(at..at.checked_add(length)?)?;
        if kind == NOTE_BUILD_ID && notes.get(12..16) == Some(b"GNU\0") {
            let mut id = [0; BUILD_ID_BYTES_MAX];
            id.get_mut(..length)?.copy_from_slice(content);
            return Some((id, u8::try_from(length).ok()?));
        }
        notes = notes.get(at + length.checked_next_multiple_of(4)?..)?;
    }
}

/// Which images `visit` passes on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Selection {
    /// libc and the dynamic loader.
    Own,
    /// The program and its other libraries.
    Others,
}

/// A function for images, and which it gets.
struct Visitor<'a> {
    selection: Selection,
    each: &'a mut dyn FnMut(&LoadedImage),
}

/// An image of this process, not looked at closely.
pub struct LoadedImage {
    /// Offset from an image address to a memory address.
    pub base: u64,
    /// Its path, as the loader knows it.
    pub path: &'static CStr,
    headers: &'static [libc::Elf64_Phdr],
}

/// Calls `each` for libc and the dynamic loader of this process, as mapped.
pub fn loaded(each: &mut dyn FnMut(&Image<'static>)) {
    visit_all(Visitor { selection: Selection::Own, each: &mut |loaded| each(&loaded.image()) });
}

/// Calls `each` for the program and its libraries other than those and this one, as they are mapped
/// now. Those of the start stay; the loader unloads only what was loaded by `dlopen`.
pub fn others(each: &mut dyn FnMut(&LoadedImage)) {
    visit_all(Visitor { selection: Selection::Others, each });
}

fn visit_all(mut visitor: Visitor<'_>) {
    let context = (&raw mut visitor).cast::<c_void>();
    // SAFETY: `visit` gets `context` back as what it is here, during this call only.
    // WHY: only the loader knows where its objects are mapped.
    unsafe { libc::dl_iterate_phdr(Some(visit), context) };
}

fn is_selected(selection: Selection, path: &CStr, is_this: bool) -> bool {
    let name = path.to_bytes().rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    let is_own = name == b"libc.so.6" || name.starts_with(b"ld-linux");
    // The kernel's own image makes the calls that it answers itself.
    let is_other = !is_own && !is_this && !name.starts_with(b"linux-vdso");
    if selection == Selection::Own { is_own } else { is_other }
}

unsafe extern "C" fn visit(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    context: *mut c_void,
) -> c_int {
    // SAFETY: dl_iterate_phdr passes a valid record, its name and headers; what is loaded at the
    // start is never unloaded, so its segments live as long as the process, and those of others as
    // long as this call, after which nobody keeps them. The context is `visit_all`'s.
    unsafe {
        let visitor = &mut *context.cast::<Visitor<'_>>();
        let info = &*info;
        if info.dlpi_name.is_null() {
            return 0;
        }
        let name: &'static CStr = CStr::from_ptr(info.dlpi_name);
        let headers = slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum));
        let here = (visit as *const ()).addr() as u64;
        let is_this = headers.iter().any(|header| {
            let start = info.dlpi_addr.wrapping_add(header.p_vaddr);
            header.p_type == libc::PT_LOAD && here.wrapping_sub(start) < header.p_memsz
        });
        if !is_selected(visitor.selection, name, is_this) {
            return 0;
        }
        (visitor.each)(&LoadedImage { base: info.dlpi_addr, path: name, headers });
    }
    0
}

impl LoadedImage {
    /// The image.
    #[must_use]
    pub fn image(&self) -> Image<'static> {
        // The program has no name there.
        let path = if self.path.is_empty() { c"/proc/self/exe" } else { self.path };
        let mut image = Image::empty(path, self.base);
        for header in self.headers {
            let readable = header.p_flags & libc::PF_R != 0;
            let kind = header.p_type;
            let is_read = matches!(kind, libc::PT_LOAD | libc::PT_NOTE | libc::PT_DYNAMIC);
            if !readable || !is_read {
                continue;
            }
            let at = (self.base + header.p_vaddr) as *const u8;
            // SAFETY: the headers name ranges of segments that the loader mapped; they stay mapped as
            // `visit` says.
            let bytes = unsafe { slice::from_raw_parts(at, header.p_filesz as usize) };
            let header = SegmentHeader {
                kind,
                flags: header.p_flags,
                offset: header.p_offset,
                address: header.p_vaddr,
                file_bytes: header.p_filesz,
            };
            image.add(header, bytes);
        }
        image
    }
}
