//! The table of sites of one library, and its cache: a file for each build-id.
//!
//! A sweep of libc costs about 10 ms, loading a table some 20 us, so `forebay` prepares the files
//! in advance and programs only read them. Nothing in a table is trusted: it must carry the
//! build-id and a valid checksum, belong to this user or root and be writable by nobody else, and
//! each window's bytes must be unchanged. Otherwise the library is swept again.
//!
//! File `forebay-sites-<build-id in hex>`, little-endian:
//! ```text
//!  0  8  "FBYSITES"            48  4  length of the build-id
//!  8  4  version (2)           52  4  zero
//! 12  4  number of records     56  8  FNV-1a over bytes 0..56 and all records
//! 16 32  build-id, zero-padded 64     records of 16 bytes
//! ```
//! Record: 0 window's address (4), 4 window's length (1), 5 offset of the `syscall` from the
//! window's start (1), 6 number or 0xffff (2), 8 offsets of two displacements or 0xff (2), 10 zero
//! (2), 12 FNV-1a, folded to 32 bits, over the window's bytes (4).

use core::ffi::CStr;
use core::slice;
use std::ffi::CString;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::arch::raw;
use crate::entry::select;
use crate::rewrite::foreign;
use crate::rewrite::image::{self, BUILD_ID_BYTES_MAX, Image};
use crate::rewrite::scan;
use crate::rewrite::site::{Fixup, Site};

const MAGIC: [u8; 8] = *b"FBYSITES";
const VERSION: u32 = 2;
const HEADER_BYTES: usize = 64;
const RECORD_BYTES: usize = 16;

/// libc has some 550 sites; 16 Ki of them would be a table of 256 KiB.
const SITES_MAX: usize = 16 * 1024;

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x100_0000_01b3;

fn fnv(seed: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(seed, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME))
}

/// Hash of the bytes of the window and the `syscall`.
fn window_hash(image: &Image<'_>, site: &Site) -> Option<u32> {
    let end = usize::from(site.length.max(site.call.checked_add(2)?));
    let bytes = image.bytes(u64::from(site.address), end)?;
    let call = usize::from(site.call);
    if bytes.get(call..call + 2) != Some(&[0x0f, 0x05]) || site.length < 5 {
        return None;
    }
    let hash = fnv(FNV_OFFSET, bytes);
    Some((hash ^ hash >> 32) as u32)
}

fn encode_site(site: &Site, hash: u32) -> [u8; RECORD_BYTES] {
    let mut record = [0; RECORD_BYTES];
    record[0..4].copy_from_slice(&site.address.to_le_bytes());
    record[4] = site.length;
    record[5] = site.call;
    record[6..8].copy_from_slice(&site.number.to_le_bytes());
    record[8] = site.fixups[0].displacement;
    record[9] = site.fixups[1].displacement;
    record[12..16].copy_from_slice(&hash.to_le_bytes());
    record
}

fn decode_site(record: &[u8; RECORD_BYTES]) -> (Site, u32) {
    let [a, b, c, d, length, call, n0, n1, f0, f1, _, _, h0, h1, h2, h3] = *record;
    let site = Site {
        address: u32::from_le_bytes([a, b, c, d]),
        length,
        call,
        number: u16::from_le_bytes([n0, n1]),
        fixups: [Fixup { displacement: f0 }, Fixup { displacement: f1 }],
    };
    (site, u32::from_le_bytes([h0, h1, h2, h3]))
}

/// The file's content; `None` if the image has no build-id or a site is not in it.
fn encode(image: &Image<'_>, sites: &[Site]) -> Option<Vec<u8>> {
    let (id, id_length) = image.build_id?;
    let mut file = Vec::with_capacity(HEADER_BYTES + sites.len() * RECORD_BYTES);
    file.extend_from_slice(&MAGIC);
    file.extend_from_slice(&VERSION.to_le_bytes());
    file.extend_from_slice(&u32::try_from(sites.len()).ok()?.to_le_bytes());
    file.extend_from_slice(&id);
    file.extend_from_slice(&u32::from(id_length).to_le_bytes());
    file.extend_from_slice(&[0; 12]);
    for site in sites {
        file.extend_from_slice(&encode_site(site, window_hash(image, site)?));
    }
    let checksum = checksum(&file)?;
    file.get_mut(56..64)?.copy_from_slice(&checksum.to_le_bytes());
    Some(file)
}

fn checksum(file: &[u8]) -> Option<u64> {
    Some(fnv(fnv(FNV_OFFSET, file.get(..56)?), file.get(HEADER_BYTES..)?))
}

/// A table: mapped from its file, or from a sweep.
#[derive(Debug)]
pub enum Table {
    /// Records of a validated file. Unmapped when dropped.
    Mapped(Mapping),
    /// The result of a sweep.
    Swept(Vec<Site>),
}

impl Table {
    /// The sites, in the order of addresses.
    pub fn sites(&self) -> impl Iterator<Item = Site> {
        let (mapped, swept) = match self {
            Self::Mapped(mapping) => (records(mapping.bytes()), [].as_slice()),
            Self::Swept(sites) => ([].as_slice(), sites.as_slice()),
        };
        mapped.iter().map(|record| decode_site(record).0).chain(swept.iter().copied())
    }
}

fn records(file: &[u8]) -> &[[u8; RECORD_BYTES]] {
    file.get(HEADER_BYTES..).map_or(&[], |records| records.as_chunks().0)
}

/// A file mapped read-only.
#[derive(Debug)]
pub struct Mapping {
    address: u64,
    length: usize,
}

impl Mapping {
    /// Maps a table's file if only its owner, this user or root, can have written it.
    fn open(path: &CStr) -> Option<Self> {
        let path = path.as_ptr().addr() as u64;
        let flags = (libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NOFOLLOW) as u64;
        // SAFETY: the path ends in zero; fstat fills a record of its own type; the mapping is
        // new memory. WHY raw: at start-up libc's stdio must not be touched, and no descriptor
        // may outlive this function.
        unsafe {
            let file = raw::call3(libc::SYS_open, path, flags, 0);
            if file < 0 {
                return None;
            }
            let descriptor = file.cast_unsigned();
            let mut stat = core::mem::zeroed::<libc::stat>();
            let stat_at = (&raw mut stat).addr() as u64;
            let mut mapped = -1_i64;
            if raw::call2(libc::SYS_fstat, descriptor, stat_at) == 0 && trusted(&stat) {
                let (read, private) = (libc::PROT_READ as u64, libc::MAP_PRIVATE as u64);
                let bytes = stat.st_size.cast_unsigned();
                mapped = raw::call6(libc::SYS_mmap, 0, bytes, read, private, descriptor, 0);
            }
            raw::close(file);
            let length = usize::try_from(stat.st_size).ok()?;
            (mapped > 0).then_some(Self { address: mapped.cast_unsigned(), length })
        }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: mapped for `length` bytes until drop. A concurrent truncation of the file faults,
        // but only the owner can do it, and tables are replaced by rename.
        // WHY: no copy, no heap.
        unsafe { slice::from_raw_parts(self.address as *const u8, self.length) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and no borrow of it is left.
        let _ = unsafe { raw::call2(libc::SYS_munmap, self.address, self.length as u64) };
    }
}

/// True for a regular file of plausible size, owned by this user or root, and writable by nobody
/// else.
fn trusted(stat: &libc::stat) -> bool {
    // SAFETY: geteuid takes nothing.
    let user = unsafe { raw::call0(libc::SYS_geteuid) };
    let size = HEADER_BYTES..=HEADER_BYTES + SITES_MAX * RECORD_BYTES;
    let ours = stat.st_uid == 0 || i64::from(stat.st_uid) == user;
    ours && stat.st_mode & libc::S_IFMT == libc::S_IFREG
        && stat.st_mode & 0o022 == 0
        && usize::try_from(stat.st_size).is_ok_and(|bytes| size.contains(&bytes))
}

/// True if a file's content is a table of this very image.
fn valid(file: &[u8], image: &Image<'_>) -> bool {
    let (Some(header), Some((id, id_length))) = (file.get(..HEADER_BYTES), image.build_id) else {
        return false;
    };
    let records = records(file);
    let mut expected = [0; HEADER_BYTES];
    expected[0..8].copy_from_slice(&MAGIC);
    expected[8..12].copy_from_slice(&VERSION.to_le_bytes());
    expected[12..16].copy_from_slice(&(records.len() as u32).to_le_bytes());
    expected[16..48].copy_from_slice(&id);
    expected[48..52].copy_from_slice(&u32::from(id_length).to_le_bytes());
    let Some(sum) = checksum(file) else {
        return false;
    };
    expected[56..64].copy_from_slice(&sum.to_le_bytes());
    let whole = file.len() == HEADER_BYTES + records.len() * RECORD_BYTES;
    whole
        && header == expected
        && records.iter().map(decode_site).all(|(site, hash)| {
            let inside = site
                .fixups()
                .all(|fixup| usize::from(fixup.displacement) + 4 <= usize::from(site.length));
            inside && window_hash(image, &site) == Some(hash)
        })
}

/// Longest path of a table; a longer directory means no cache.
const PATH_BYTES_MAX: usize = 1024;

/// `directory/forebay-sites-<id>` with its final zero, in a buffer of the caller.
fn name<'a>(buffer: &'a mut [u8], directory: &[u8], image: &Image<'_>) -> Option<&'a CStr> {
    const PREFIX: &[u8] = b"/forebay-sites-";
    let (id, id_length) = image.build_id?;
    let id = id.get(..usize::from(id_length))?;
    let digit = |value: u8| {
        if value < 10 { b'0' + value } else { b'a' + (value - 10) }
    };
    let digits = id.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]);
    let path = directory.iter().chain(PREFIX).copied().chain(digits).chain([0]);
    let length = directory.len().checked_add(PREFIX.len() + 2 * BUILD_ID_BYTES_MAX + 1)?;
    buffer.get(..length)?;
    let mut used = 0;
    for (slot, byte) in buffer.iter_mut().zip(path) {
        *slot = byte;
        used += 1;
    }
    CStr::from_bytes_with_nul(buffer.get(..used)?).ok()
}

/// The table of an image from `directory`, if a valid one is there. Allocates nothing.
#[must_use]
pub fn load(directory: &[u8], image: &Image<'_>) -> Option<Table> {
    let mut buffer = [0; PATH_BYTES_MAX];
    let mapping = Mapping::open(name(&mut buffer, directory, image)?)?;
    valid(mapping.bytes(), image).then_some(Table::Mapped(mapping))
}

/// Sweeps an image.
#[must_use]
pub fn sweep(image: &Image<'_>) -> Table {
    Table::Swept(scan::scan(image).sites)
}

/// Longest text that is searched: a sweep of it takes a fifth of a second, once for each image.
const FOREIGN_BYTES_MAX: usize = 32 << 20;

/// Longest text of an image without build-id, which is searched at each start.
const UNCACHED_BYTES_MAX: usize = 8 << 20;

/// Longest text in which calls with unknown numbers are taken, as unoptimized programs have. The two
/// bytes of a `syscall` are found by chance once in 64 KiB.
const SMALL_BYTES_MAX: usize = 64 << 10;

/// The sites of an image that is not libc's: of the calls that `select` names, those whose number
/// is certain and whose `syscall` stays in place. `None` for one that is too long to be searched at
/// each start.
#[must_use]
pub fn sweep_foreign(image: &Image<'_>) -> Option<Table> {
    let text = || image.segments().filter(|segment| segment.executable);
    let bytes: usize = text().map(|segment| segment.bytes.len()).sum();
    if bytes > FOREIGN_BYTES_MAX || (image.build_id.is_none() && bytes > UNCACHED_BYTES_MAX) {
        return None;
    }
    let is_small = bytes <= SMALL_BYTES_MAX;
    let may_call = |text| foreign::may_call(text) || is_small && foreign::has_syscall(text);
    if !text().any(|segment| may_call(segment.bytes)) {
        return Some(Table::Swept(Vec::new()));
    }
    let is_known = |site: &Site| match site.number {
        Site::UNKNOWN => is_small,
        number => select::selected(number),
    };
    let is_certain = |site: &Site| is_known(site) && site.stays();
    let sites = scan::scan(image).sites;
    Some(Table::Swept(sites.into_iter().filter(is_certain).collect()))
}

/// Writes the table of an image to `directory`, mode 0600, atomically replacing an older one.
///
/// # Errors
/// Those of creating, writing and renaming the file; `InvalidInput` for an image without build-id.
pub fn store(directory: &Path, image: &Image<'_>, table: &Table) -> io::Result<PathBuf> {
    let sites: Vec<Site> = table.sites().collect();
    let content = encode(image, &sites).ok_or(io::ErrorKind::InvalidInput)?;
    let mut buffer = [0; PATH_BYTES_MAX];
    let path = name(&mut buffer, directory.as_os_str().as_bytes(), image)
        .ok_or(io::ErrorKind::InvalidInput)?;
    let path = PathBuf::from(std::ffi::OsStr::from_bytes(path.to_bytes()));
    let temporary = path.with_extension(format!("tmp-{}", std::process::id()));
    let written = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&temporary)
        .and_then(|mut file| file.write_all(&content))
        .and_then(|()| std::fs::rename(&temporary, &path));
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    written.map(|()| path)
}

/// Makes sure that `directory` holds the tables of this system's libc and loader; returns their
/// paths. Reads the libraries' files, not memory, which this library may have rewritten already.
///
/// # Errors
/// The first error of reading a library or writing a table.
pub fn prepare(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths: Vec<CString> = Vec::new();
    image::loaded(&mut |image| paths.push(image.path.to_owned()));
    let mut made = Vec::new();
    for path in paths {
        let file = std::fs::read(std::ffi::OsStr::from_bytes(path.to_bytes()))?;
        let image = Image::from_file(&path, &file).ok_or(io::ErrorKind::InvalidData)?;
        if load(directory.as_os_str().as_bytes(), &image).is_none() {
            made.push(store(directory, &image, &sweep(&image))?);
        } else {
            let mut buffer = [0; PATH_BYTES_MAX];
            let name = name(&mut buffer, directory.as_os_str().as_bytes(), &image);
            let name = name.ok_or(io::ErrorKind::InvalidInput)?;
            made.push(PathBuf::from(std::ffi::OsStr::from_bytes(name.to_bytes())));
        }
    }
    Ok(made)
}

#[cfg(test)]
mod tests;
