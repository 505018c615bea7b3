//! The ELF images to be patched: libc and the dynamic loader, as mapped or as files.
//!
//! Addresses are the image's own (`address` in the ELF sense), `base` turns them into memory's.

use core::ffi::{CStr, c_int, c_void};
use core::slice;

/// A loaded part of an image.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// Its address within the image.
    pub address: u64,
    /// Its bytes, as in the file.
    pub bytes: &'a [u8],
    /// Where in the file it begins.
    pub file_offset: u64,
    /// Whether code lies in it.
    pub executable: bool,
}

/// Loaded segments that are not written to; libraries have three or four in all.
pub const SEGMENTS_MAX: usize = 8;

/// Build-ids are 20 bytes (SHA-1); the table's header has room for 32.
pub const BUILD_ID_BYTES_MAX: usize = 32;

/// A library: its read-only segments and its build-id.
#[derive(Clone, Copy, Debug)]
pub struct Image<'a> {
    /// Path of the file, as the loader knows it.
    pub path: &'a CStr,
    /// What to add to an image address to get a memory address.
    pub base: u64,
    segments: [Option<Segment<'a>>; SEGMENTS_MAX],
    /// Zero-padded; `None` if the file carries none.
    pub build_id: Option<([u8; BUILD_ID_BYTES_MAX], u8)>,
}

const NOTE_BUILD_ID: u32 = 3;

/// One program header, from memory or file.
#[derive(Clone, Copy)]
struct Header {
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
        Self { path, base, segments: [None; SEGMENTS_MAX], build_id: None }
    }

    fn add(&mut self, header: Header, bytes: &'a [u8]) {
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
            libc::PT_NOTE => self.build_id = self.build_id.or_else(|| build_id(bytes)),
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
            // SAFETY: the loader mapped all segments, and the headers name what lies in them.
            unsafe { slice::from_raw_parts(at, length) }
        };
        let head = mapped(0, 64);
        let table = number(head, 32, 8)?;
        let count = usize::try_from(number(head, 56, 2)?).ok()?;
        let headers = mapped(table, count.checked_mul(56)?);
        let mut image = Self::empty(path, base);
        for header in headers.chunks_exact(56) {
            let field = |at, length| number(header, at, length);
            let header = Header {
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

    /// An image from the bytes of its file; `None` if they are no 64-bit ELF file.
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
            let header = Header {
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

/// Calls `each` for libc and the dynamic loader of this process, as they lie in memory.
pub fn loaded(each: &mut dyn FnMut(&Image<'static>)) {
    let mut each = each;
    let context = (&raw mut each).cast::<c_void>();
    // SAFETY: `visit` gets `context` back as what it is here, during this call only. WHY: the
    // loader alone knows where its objects lie.
    unsafe { libc::dl_iterate_phdr(Some(visit), context) };
}

unsafe extern "C" fn visit(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    context: *mut c_void,
) -> c_int {
    // SAFETY: dl_iterate_phdr passes a valid record, its name and headers; libc and the loader are
    // never unloaded, so their segments live as long as the process. The context is `loaded`'s.
    unsafe {
        let each = &mut *context.cast::<&mut dyn FnMut(&Image<'static>)>();
        let info = &*info;
        if info.dlpi_name.is_null() {
            return 0;
        }
        let path: &'static CStr = CStr::from_ptr(info.dlpi_name);
        let name = path.to_bytes().rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        if name != b"libc.so.6" && !name.starts_with(b"ld-linux") {
            return 0;
        }
        let mut image = Image::empty(path, info.dlpi_addr);
        for header in slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) {
            let readable = header.p_flags & libc::PF_R != 0;
            let kind = header.p_type;
            if !readable || (kind != libc::PT_LOAD && kind != libc::PT_NOTE) {
                continue;
            }
            let at = (info.dlpi_addr + header.p_vaddr) as *const u8;
            let bytes = slice::from_raw_parts(at, header.p_filesz as usize);
            let header = Header {
                kind,
                flags: header.p_flags,
                offset: header.p_offset,
                address: header.p_vaddr,
                file_bytes: header.p_filesz,
            };
            image.add(header, bytes);
        }
        each(&image);
    }
    0
}
