//! The file of the SSD target: a sparse file of a fixed length, addressed by byte offset.
//!
//! Which bytes belong to whom is said by the piece table. Space is preallocated before it is handed
//! out, so a write into a piece never meets a full device.

use crate::error::{Error, Kind, c_path, errno};
use crate::medium::{preallocate, read_all, write_all, write_zeros};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FallocateFlags, Mode, OFlags, SeekFrom};
use std::path::Path;
use wire::Errno;
use wire::errno::Result;

/// Runs of data that are looked at to find the last one; a file with more is taken as full.
const RUNS_MAX: u32 = 1 << 20;

/// The file.
pub struct SsdFile {
    fd: OwnedFd,
    length: u64,
}

impl SsdFile {
    /// Opens or makes the file with mode 0600. It is made `length` long, without taking space.
    ///
    /// # Errors
    /// What the operating system says; a symbolic link is not followed.
    pub fn open(path: &Path, length: u64) -> crate::Result<SsdFile> {
        let open = || -> Result<OwnedFd> {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let fd = rustix::fs::open(c_path(path)?.as_c_str(), flags, Mode::RUSR | Mode::WUSR)
                .map_err(errno)?;
            rustix::fs::ftruncate(&fd, length).map_err(errno)?;
            Ok(fd)
        };
        match open() {
            Ok(fd) => Ok(SsdFile { fd, length }),
            Err(errno) => Err(Error::new("open the file for data", path, Kind::Device(errno))),
        }
    }

    /// Its length.
    #[must_use]
    pub const fn length(&self) -> u64 {
        self.length
    }

    /// The descriptor, for clients.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn admit(&self, place: u64, length: u64) -> Result<()> {
        match place.checked_add(length) {
            Some(end) if end <= self.length => Ok(()),
            _ => Err(Errno::EIO),
        }
    }

    /// Makes the device hold a range; what was never written there reads as zeros.
    ///
    /// # Errors
    /// `ENOSPC`; `EIO` outside of the file, as with the others.
    pub fn preallocate(&self, place: u64, length: u64) -> Result<()> {
        self.admit(place, length)?;
        preallocate(&self.fd, place, length)
    }

    /// Gives a range back to the device; it reads as zeros and is not preallocated any more.
    ///
    /// # Errors
    /// What the device says.
    pub fn punch(&self, place: u64, length: u64) -> Result<()> {
        self.admit(place, length)?;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.fd, flags, place, length).map_err(errno)
    }

    /// Makes a range read as zeros; the device keeps holding it.
    ///
    /// # Errors
    /// What the device says.
    pub fn zero(&self, place: u64, length: u64) -> Result<()> {
        self.admit(place, length)?;
        let flags = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(&self.fd, flags, place, length) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::OPNOTSUPP) => write_zeros(&self.fd, place, length),
            Err(os) => Err(errno(os)),
        }
    }

    /// Fills `to` from `place` on.
    ///
    /// # Errors
    /// What the device says.
    pub fn read(&self, place: u64, to: &mut [u8]) -> Result<()> {
        self.admit(place, to.len() as u64)?;
        let done = read_all(&self.fd, place, to)?;
        if done == to.len() { Ok(()) } else { Err(Errno::EIO) }
    }

    /// Writes `from` at `place`.
    ///
    /// # Errors
    /// What the device says.
    pub fn write(&self, place: u64, from: &[u8]) -> Result<()> {
        self.admit(place, from.len() as u64)?;
        write_all(&self.fd, place, from)
    }

    /// Forces what was written to the device.
    ///
    /// # Errors
    /// What the device says.
    pub fn sync(&self) -> Result<()> {
        rustix::fs::fdatasync(&self.fd).map_err(errno)
    }

    /// See the function of the same name.
    #[must_use]
    pub fn data_end(&self) -> u64 {
        data_end(&self.fd, self.length)
    }
}

/// End of the last data of a file that is `length` long: from there on it reads as zeros. `length`
/// if nobody knows. It moves the descriptor's offset.
#[must_use]
pub fn data_end(fd: impl AsFd, length: u64) -> u64 {
    let mut end = 0;
    for _ in 0..RUNS_MAX {
        let start = match rustix::fs::seek(&fd, SeekFrom::Data(end)) {
            Ok(start) => start,
            Err(rustix::io::Errno::NXIO) => return end,
            Err(_) => return length,
        };
        match rustix::fs::seek(&fd, SeekFrom::Hole(start)) {
            Ok(hole) if hole > end => end = hole,
            _ => return length,
        }
    }
    length
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_keeps_to_its_length_and_knows_its_end() {
        let name = format!("forebay-{}-ssd", std::process::id());
        let path = std::env::temp_dir().join(name);
        let file = SsdFile::open(&path, 1 << 20).expect("opened");
        assert_eq!(file.data_end(), 0);
        file.preallocate(0, 1 << 20).expect("room");
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
        assert_eq!(SsdFile::open(&path, 2 << 20).expect("opened").length(), 2 << 20);
        let link = path.with_extension("link");
        std::os::unix::fs::symlink(&path, &link).expect("linked");
        assert!(SsdFile::open(&link, 1 << 20).is_err(), "a link was followed");
        std::fs::remove_file(&link).expect("removed");
        std::fs::remove_file(&path).expect("removed");
    }
}
