//! Mapping the segments of an ELF file, as the kernel's loader does.
//!
//! Files of the instance are copied into anonymous memory, files of the kernel are mapped.

use super::Source;
use crate::calls::process::state::kernel;
use crate::calls::{native, user};
use core::ffi::CStr;
use wire::errno::{Errno, Result};

/// Longest path of a dynamic loader.
pub(super) const INTERPRETER_BYTES_MAX: usize = 256;
const HEADERS_MAX: usize = 64;
const HEADER_BYTES: usize = 56;
const PAGE: u64 = 4096;
const DYNAMIC: u16 = 3;
const FIXED: u16 = 2;
const X86_64: u16 = 62;

/// A program header.
#[derive(Clone, Copy, Default)]
struct ProgramHeader {
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    file_bytes: u64,
    bytes: u64,
}

/// An image in memory.
pub(super) struct MappedImage {
    /// Offset added to its addresses.
    pub base: u64,
    /// Address of its first instruction.
    pub entry: u64,
    /// Address of its program headers, and their number.
    pub headers_at: u64,
    pub header_count: u64,
    headers: [ProgramHeader; HEADERS_MAX],
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> u64 {
    let field = bytes.get(at..at + N).unwrap_or(&[]);
    field.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte))
}

impl MappedImage {
    fn used(&self) -> impl Iterator<Item = &ProgramHeader> {
        self.headers.iter().take(self.header_count as usize)
    }

    /// The path of the loader that it requires.
    pub(super) fn interpreter<'a>(
        &self,
        source: Source,
        to: &'a mut [u8; INTERPRETER_BYTES_MAX],
    ) -> Result<Option<&'a CStr>> {
        let Some(header) = self.used().find(|header| header.kind == libc::PT_INTERP) else {
            return Ok(None);
        };
        let length = usize::try_from(header.file_bytes).unwrap_or(usize::MAX);
        let path = to.get_mut(..length).ok_or(Errno::ENOEXEC)?;
        source.read(header.offset, path)?;
        CStr::from_bytes_until_nul(path).map(Some).map_err(|_| Errno::ENOEXEC)
    }
}

/// Maps all of an image.
pub(super) fn map(source: Source) -> Result<MappedImage> {
    let mut head = [0; 64];
    source.read(0, &mut head)?;
    let (kind, machine) = (field::<2>(&head, 16) as u16, field::<2>(&head, 18) as u16);
    let is_elf = head.starts_with(b"\x7fELF\x02\x01") && machine == X86_64;
    let count = field::<2>(&head, 56) as usize;
    let fits = field::<2>(&head, 54) as usize == HEADER_BYTES && (1..=HEADERS_MAX).contains(&count);
    if !is_elf || !fits || !matches!(kind, DYNAMIC | FIXED) {
        return Err(Errno::ENOEXEC);
    }
    let table_at = field::<8>(&head, 32);
    let mut table = [0; HEADERS_MAX * HEADER_BYTES];
    let table = table.get_mut(..count * HEADER_BYTES).ok_or(Errno::ENOEXEC)?;
    source.read(table_at, table)?;
    let mut headers = [ProgramHeader::default(); HEADERS_MAX];
    for (header, bytes) in headers.iter_mut().zip(table.chunks_exact(HEADER_BYTES)) {
        *header = ProgramHeader {
            kind: field::<4>(bytes, 0) as u32,
            flags: field::<4>(bytes, 4) as u32,
            offset: field::<8>(bytes, 8),
            address: field::<8>(bytes, 16),
            file_bytes: field::<8>(bytes, 32),
            bytes: field::<8>(bytes, 40),
        };
    }
    let mut image =
        MappedImage { base: 0, entry: 0, headers_at: 0, header_count: count as u64, headers };
    image.base = reserve(&image, kind)?;
    for header in image.used().filter(|header| header.kind == libc::PT_LOAD) {
        segment(source, image.base, header)?;
    }
    image.entry = image.base.wrapping_add(field::<8>(&head, 24));
    let holds = |header: &&ProgramHeader| {
        let end = header.offset.saturating_add(header.file_bytes);
        header.kind == libc::PT_LOAD && (header.offset..end).contains(&table_at)
    };
    let holder = image.used().find(holds).ok_or(Errno::ENOEXEC)?;
    image.headers_at = image.base + holder.address + (table_at - holder.offset);
    Ok(image)
}

/// Reserves the addresses for all segments. Returns the offset to add to theirs.
fn reserve(image: &MappedImage, kind: u16) -> Result<u64> {
    let loads = || image.used().filter(|header| header.kind == libc::PT_LOAD);
    let first = loads().map(|header| header.address & !(PAGE - 1)).min().ok_or(Errno::ENOEXEC)?;
    let end = |header: &ProgramHeader| header.address.checked_add(header.bytes);
    let last = loads().try_fold(0, |last, header| end(header).map(|end| end.max(last)));
    let last = last.and_then(|last| last.checked_next_multiple_of(PAGE)).ok_or(Errno::ENOEXEC)?;
    if last >= 1 << 47 {
        return Err(Errno::ENOEXEC);
    }
    let fixed = if kind == FIXED { libc::MAP_FIXED_NOREPLACE } else { 0 };
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed) as u64;
    let hint = if kind == FIXED { first } else { 0 };
    let none = libc::PROT_NONE as u64;
    let args = [hint, last - first, none, flags, u64::from(u32::MAX), 0];
    let at = kernel(native::call(libc::SYS_mmap, args))? as u64;
    if kind == FIXED && at != first {
        return Err(Errno::ENOMEM);
    }
    Ok(at.wrapping_sub(first))
}

fn segment(source: Source, base: u64, header: &ProgramHeader) -> Result<()> {
    if header.bytes == 0 {
        return Ok(());
    }
    if header.file_bytes > header.bytes {
        return Err(Errno::ENOEXEC);
    }
    let mut protection = 0;
    for (flag, bit) in [
        (libc::PF_R, libc::PROT_READ),
        (libc::PF_W, libc::PROT_WRITE),
        (libc::PF_X, libc::PROT_EXEC),
    ] {
        if header.flags & flag != 0 {
            protection |= bit;
        }
    }
    let start = base.wrapping_add(header.address);
    let from = start & !(PAGE - 1);
    let end = (start + header.bytes).next_multiple_of(PAGE);
    let writable = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    kernel(native::call(libc::SYS_mprotect, [from, end - from, writable, 0, 0, 0]))?;
    let length = usize::try_from(header.file_bytes).map_err(|_| Errno::ENOEXEC)?;
    let file_end = (start + header.file_bytes).next_multiple_of(PAGE);
    match source {
        Source::Native(fd) if header.file_bytes > 0 => {
            let flags = (libc::MAP_PRIVATE | libc::MAP_FIXED) as u64;
            let offset = header.offset - (start - from);
            let args = [from, file_end - from, writable, flags, fd as u64, offset];
            kernel(native::call(libc::SYS_mmap, args))?;
            // After the file's part, the page holds other bytes of the file.
            if header.flags & libc::PF_W != 0 {
                let rest = (file_end - start - header.file_bytes) as usize;
                user::bytes_mut(start + header.file_bytes, rest)?.fill(0);
            }
        }
        _ => source.read(header.offset, user::bytes_mut(start, length)?)?,
    }
    kernel(native::call(libc::SYS_mprotect, [from, end - from, protection as u64, 0, 0, 0]))?;
    Ok(())
}
