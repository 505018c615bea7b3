//! The file of the SSD target: a sparse file of a fixed length, addressed by byte offset.
//!
//! The extent table says which bytes belong to which file. Space is preallocated before it is
//! handed out, so a write into an extent never meets a full device.
//!
//! Behind the space for extents is a page that says whose file it is:
//!
//!   0   magic     8   "FORESSD1"
//!   8   instance  u64 of the `Identity`
//!   16  part      u32 of the `Identity`
//!   20  zeros     4
//!   24  length    u64 of the space
//!   32  crc       u32 CRC-32C of bytes 0 .. 32; zeros up to 4096

use crate::error::{Error, Kind, c_path, errno};
use crate::identity::{Expected, Identity};
use crate::medium::{preallocate, read_all, write_all, write_zeros};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FallocateFlags, Mode, OFlags, SeekFrom};
use std::path::Path;
use wire::Errno;
use wire::errno::Result;

/// Most runs of data that are examined to find the last one; a file with more is taken as full.
const RUNS_MAX: u32 = 1 << 20;

const MAGIC: &[u8; 8] = b"FORESSD1";
/// Bytes of the page that says whose file it is.
const OWNER_BYTES: usize = 4096;

fn encode_owner(identity: Identity, length: u64) -> [u8; OWNER_BYTES] {
    let mut page = [0; OWNER_BYTES];
    page[..8].copy_from_slice(MAGIC);
    page[8..16].copy_from_slice(&identity.instance.to_le_bytes());
    page[16..20].copy_from_slice(&identity.part.to_le_bytes());
    page[24..32].copy_from_slice(&length.to_le_bytes());
    let crc = crc32c::crc32c(&page[..32]);
    page[32..36].copy_from_slice(&crc.to_le_bytes());
    page
}

/// The file.
pub struct SsdFile {
    fd: OwnedFd,
    length: u64,
}

impl SsdFile {
    /// Creates the file of a first start, or opens the one that must be there, with mode 0600 and
    /// space of `length`, without allocating it.
    ///
    /// # Errors
    /// `Missing`, `Foreign` or `Length` if it is not the expected file, `Corrupt` if it does not say
    /// whose it is; the operating system's error. A symbolic link is not followed.
    pub fn open(
        path: &Path,
        length: u64,
        identity: Identity,
        expected: Expected,
    ) -> crate::Result<SsdFile> {
        let fail = |kind| Error::new("open the file for data", path, kind);
        let device = |errno| fail(Kind::Device(errno));
        let end = length.checked_add(OWNER_BYTES as u64).ok_or_else(|| device(Errno::EFBIG))?;
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let create = if expected == Expected::New { OFlags::CREATE } else { OFlags::empty() };
        let name = c_path(path).map_err(device)?;
        let fd = match rustix::fs::open(name.as_c_str(), flags | create, Mode::RUSR | Mode::WUSR) {
            Ok(fd) => fd,
            Err(rustix::io::Errno::NOENT) => return Err(fail(Kind::Missing)),
            Err(os) => return Err(device(errno(os))),
        };
        if expected == Expected::New {
            rustix::fs::ftruncate(&fd, end).map_err(|os| device(errno(os)))?;
            write_all(&fd, length, &encode_owner(identity, length)).map_err(device)?;
            return Ok(SsdFile { fd, length });
        }
        let stat = rustix::fs::fstat(&fd).map_err(|os| device(errno(os)))?;
        let found = u64::try_from(stat.st_size).unwrap_or(0);
        if found != end {
            return Err(fail(Kind::Length { found, expected: end }));
        }
        let mut owner = [0; OWNER_BYTES];
        read_all(&fd, length, &mut owner).map_err(device)?;
        if owner != encode_owner(identity, length) {
            let is_one = owner.first_chunk() == Some(MAGIC);
            let corrupt = Kind::Corrupt { offset: length, sequence: 0 };
            return Err(fail(if is_one { Kind::Foreign } else { corrupt }));
        }
        Ok(SsdFile { fd, length })
    }

    /// Opens what is left of the file of an earlier start: missing or cut, it is as long again
    /// afterwards, with zeros. Also returns the end of what was there.
    ///
    /// # Errors
    /// `Foreign` or `Length` if it is another file; the operating system's error.
    pub fn salvage(path: &Path, length: u64, identity: Identity) -> crate::Result<(SsdFile, u64)> {
        let opened = SsdFile::open(path, length, identity, Expected::Existing);
        let found = match opened {
            Ok(file) => return Ok((file, length)),
            Err(Error { kind: Kind::Missing, .. }) => 0,
            Err(Error { kind: Kind::Length { found, expected }, .. }) if found < expected => found,
            Err(Error { kind: Kind::Corrupt { .. }, .. }) => length,
            Err(error) => return Err(error),
        };
        // Writes nothing but what is missing, and the page behind the space.
        SsdFile::open(path, length, identity, Expected::New).map(|file| (file, found.min(length)))
    }

    /// Bytes of its space.
    #[must_use]
    pub const fn length(&self) -> u64 {
        self.length
    }

    /// The descriptor, for clients.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn admit(&self, offset: u64, length: u64) -> Result<()> {
        match offset.checked_add(length) {
            Some(end) if end <= self.length => Ok(()),
            _ => Err(Errno::EIO),
        }
    }

    /// Makes the device allocate a range; bytes never written there read as zeros.
    ///
    /// # Errors
    /// `ENOSPC`; `EIO` outside of the file, as with the others.
    pub fn preallocate(&self, offset: u64, length: u64) -> Result<()> {
        self.admit(offset, length)?;
        preallocate(&self.fd, offset, length)
    }

    /// Gives a range back to the device; it reads as zeros and is not allocated any more.
    ///
    /// # Errors
    /// The device's error.
    pub fn punch(&self, offset: u64, length: u64) -> Result<()> {
        self.admit(offset, length)?;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.fd, flags, offset, length).map_err(errno)
    }

    /// Makes a range read as zeros; it stays allocated.
    ///
    /// # Errors
    /// The device's error.
    pub fn zero(&self, offset: u64, length: u64) -> Result<()> {
        self.admit(offset, length)?;
        let flags = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(&self.fd, flags, offset, length) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::OPNOTSUPP) => write_zeros(&self.fd, offset, length),
            Err(os) => Err(errno(os)),
        }
    }

    /// Fills `to` from offset `offset` on.
    ///
    /// # Errors
    /// The device's error.
    pub fn read(&self, offset: u64, to: &mut [u8]) -> Result<()> {
        self.admit(offset, to.len() as u64)?;
        let done = read_all(&self.fd, offset, to)?;
        if done == to.len() { Ok(()) } else { Err(Errno::EIO) }
    }

    /// Writes `from` at offset `offset`.
    ///
    /// # Errors
    /// The device's error.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<()> {
        self.admit(offset, from.len() as u64)?;
        write_all(&self.fd, offset, from)
    }

    /// Flushes written bytes to the device.
    ///
    /// # Errors
    /// The device's error.
    pub fn sync(&self) -> Result<()> {
        rustix::fs::fdatasync(&self.fd).map_err(errno)
    }

    /// See the function of the same name.
    #[must_use]
    pub fn data_end(&self) -> u64 {
        data_end(&self.fd, self.length)
    }
}

/// End of the last data in the first `length` bytes of a file: from there on it reads as zeros.
/// `length` if unknown. It moves the descriptor's offset.
#[must_use]
pub fn data_end(fd: impl AsFd, length: u64) -> u64 {
    let mut end = 0;
    for _ in 0..RUNS_MAX {
        let start = match rustix::fs::seek(&fd, SeekFrom::Data(end)) {
            Ok(start) if start < length => start,
            Ok(_) | Err(rustix::io::Errno::NXIO) => return end,
            Err(_) => return length,
        };
        match rustix::fs::seek(&fd, SeekFrom::Hole(start)) {
            Ok(hole) if hole > end && hole < length => end = hole,
            _ => return length,
        }
    }
    length
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_a_fixed_length_and_a_known_end() {
        let name = format!("forebay-{}-ssd", std::process::id());
        let path = std::env::temp_dir().join(name);
        let (me, other) = (Identity::of_daemon(7, 0), Identity::of_daemon(7, 1));
        let open = |path: &Path, length, expected| SsdFile::open(path, length, me, expected);
        let kind = |outcome: crate::Result<SsdFile>| outcome.map(drop).map_err(|error| error.kind);
        assert_eq!(kind(open(&path, 1 << 20, Expected::Existing)), Err(Kind::Missing));
        let file = open(&path, 1 << 20, Expected::New).expect("opened");
        assert_eq!(file.data_end(), 0);
        file.preallocate(0, 1 << 20).expect("space");
        file.write(8192, &[7; 4096]).expect("written");
        assert_eq!(file.data_end(), 12_288, "preallocated space is no data");
        let mut bytes = [1; 4096];
        file.read(4096, &mut bytes).expect("read");
        assert_eq!(bytes, [0; 4096]);
        file.read(8192, &mut bytes).expect("read");
        assert_eq!(bytes, [7; 4096]);
        file.zero(8192, 100).expect("zeroed");
        file.read(8192, &mut bytes).expect("read");
        assert_eq!((bytes[99], bytes[100]), (0, 7));
        file.punch(8192, 4096).expect("punched");
        file.read(8192, &mut bytes).expect("read");
        assert_eq!(bytes, [0; 4096]);
        assert_eq!(file.write((1 << 20) - 1, &[0; 2]), Err(Errno::EIO));
        assert_eq!(file.read(u64::MAX, &mut bytes), Err(Errno::EIO));
        file.sync().expect("flushed");
        drop(file);
        assert_eq!(open(&path, 1 << 20, Expected::Existing).expect("opened").length(), 1 << 20);
        let length = Kind::Length { found: (1 << 20) + 4096, expected: (2 << 20) + 4096 };
        assert_eq!(kind(open(&path, 2 << 20, Expected::Existing)), Err(length));
        let foreign = SsdFile::open(&path, 1 << 20, other, Expected::Existing);
        assert_eq!(kind(foreign), Err(Kind::Foreign));
        let file = open(&path, 1 << 20, Expected::Existing).expect("opened");
        write_zeros(&file.fd, 1 << 20, 4096).expect("written");
        let corrupt = Kind::Corrupt { offset: 1 << 20, sequence: 0 };
        assert_eq!(kind(open(&path, 1 << 20, Expected::Existing)), Err(corrupt));
        // Salvaged: cut, damaged in its last page, missing; never another daemon's.
        let salvage = |length, identity| SsdFile::salvage(&path, length, identity);
        assert_eq!(salvage(1 << 20, me).expect("salvaged").1, 1 << 20);
        assert_eq!(open(&path, 1 << 20, Expected::Existing).expect("opened").length(), 1 << 20);
        assert_eq!(salvage(1 << 20, other).map(|_| ()).map_err(|it| it.kind), Err(Kind::Foreign));
        file.write(4096, &[7; 4096]).expect("written");
        rustix::fs::ftruncate(&file.fd, 10_000).expect("cut");
        assert_eq!(salvage(1 << 20, me).expect("salvaged").1, 10_000);
        let file = open(&path, 1 << 20, Expected::Existing).expect("opened");
        file.read(4096, &mut bytes).expect("read");
        assert_eq!(bytes, [7; 4096], "what is left stays");
        std::fs::remove_file(&path).expect("removed");
        assert_eq!(salvage(1 << 20, me).expect("salvaged").1, 0);
        let link = path.with_extension("link");
        std::os::unix::fs::symlink(&path, &link).expect("linked");
        assert!(open(&link, 1 << 20, Expected::New).is_err(), "a link was followed");
        std::fs::remove_file(&link).expect("removed");
        std::fs::remove_file(&path).expect("removed");
    }
}
