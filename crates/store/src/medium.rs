//! A file and a directory as the log needs them: two traits, and their implementations on a real
//! device.
//!
//! A log file is written through a mapping: a store into the page cache, no system call. Measured
//! on ext4 with records of 200 bytes: 0.11 to 0.28 us per append, against 0.57 us for `pwrite`. The
//! file is preallocated before it is mapped, so no store meets a full device (which would be a
//! signal, not an error).

use crate::error::{c_path, errno, errno_of};
use core::marker::PhantomData;
use rustix::fd::OwnedFd;
use rustix::fs::{FallocateFlags, Mode, OFlags};
use shm::{Access, Segment};
use std::path::{Path, PathBuf};
use wire::Errno;
use wire::errno::Result;

/// One file of a log.
pub trait Medium {
    /// Its length in bytes; all of it can be written without asking the device for space.
    fn length(&self) -> u64;
    /// Extends it to `length`, the new bytes zero.
    ///
    /// # Errors
    /// `ENOSPC`; then its length is unchanged.
    fn grow(&mut self, length: u64) -> Result<()>;
    /// Truncates it to `length`.
    ///
    /// # Errors
    /// The device's error.
    fn cut(&mut self, length: u64) -> Result<()>;
    /// Writes bytes within its length. They survive the death of the process.
    ///
    /// # Errors
    /// The device's error.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()>;
    /// Reads up to `to.len()` bytes; fewer only at the end.
    ///
    /// # Errors
    /// The device's error.
    fn read(&self, offset: u64, to: &mut [u8]) -> Result<usize>;
    /// Flushes the written bytes, so that they survive the death of the node.
    ///
    /// # Errors
    /// The device's error; then its contents are unknown.
    fn sync(&mut self) -> Result<()>;
}

/// A directory of log files.
pub trait Files {
    /// Type of its files.
    type File: Medium;
    /// Path of a file, for messages.
    fn path(&self, name: &str) -> PathBuf;
    /// Names of its files.
    ///
    /// # Errors
    /// The device's error.
    fn names(&self) -> Result<Vec<String>>;
    /// Opens a file.
    ///
    /// # Errors
    /// The device's error.
    fn open(&mut self, name: &str) -> Result<Self::File>;
    /// Creates an empty file; an old one of that name is removed.
    ///
    /// # Errors
    /// The device's error.
    fn create(&mut self, name: &str) -> Result<Self::File>;
    /// Renames a file; an old one of the new name is removed.
    ///
    /// # Errors
    /// The device's error.
    fn rename(&mut self, from: &str, to: &str) -> Result<()>;
    /// Removes a file.
    ///
    /// # Errors
    /// The device's error.
    fn remove(&mut self, name: &str) -> Result<()>;
    /// Flushes the directory, so that names survive the death of the node.
    ///
    /// # Errors
    /// The device's error.
    fn sync(&mut self) -> Result<()>;
}

/// A file that is written through a mapping of its end.
pub struct MappedFile {
    fd: OwnedFd,
    length: u64,
    /// First mapped offset, and the mapping up to the end.
    window: Option<(u64, Segment)>,
}

const PAGE_BYTES: u64 = 4096;

/// A file that is written by system calls, for what is rarely written: it needs no file system that can
/// map files.
pub struct PlainFile {
    fd: OwnedFd,
    length: u64,
}

/// A file of a real file system.
pub trait OpenedFile: Medium {
    /// The file of an open descriptor, and its length.
    fn of(fd: OwnedFd, length: u64) -> Self;
}

impl OpenedFile for MappedFile {
    fn of(fd: OwnedFd, length: u64) -> MappedFile {
        MappedFile { fd, length, window: None }
    }
}

impl OpenedFile for PlainFile {
    fn of(fd: OwnedFd, length: u64) -> PlainFile {
        PlainFile { fd, length }
    }
}

fn open_file<M: OpenedFile>(path: &Path, flags: OFlags) -> Result<M> {
    let flags = flags | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let path = c_path(path)?;
    let fd = rustix::fs::open(path.as_c_str(), flags, Mode::RUSR | Mode::WUSR).map_err(errno)?;
    let size = rustix::fs::fstat(&fd).map_err(errno)?.st_size;
    Ok(M::of(fd, u64::try_from(size).map_err(|_| Errno::EIO)?))
}

impl MappedFile {
    /// The mapping that holds `offset`, and the offset in it.
    fn window(&mut self, offset: u64) -> Result<(&Segment, usize)> {
        let is_in = self.window.as_ref().is_some_and(|(start, _)| *start <= offset);
        if !is_in {
            // A log is only appended to: earlier bytes are not needed again.
            let start = offset / PAGE_BYTES * PAGE_BYTES;
            let length = usize::try_from(self.length - start).map_err(|_| Errno::EFBIG)?;
            let segment = Segment::map_part(&self.fd, start, length, Access::ReadWrite)?;
            self.window = Some((start, segment));
        }
        let (start, segment) = self.window.as_ref().ok_or(Errno::EIO)?;
        Ok((segment, usize::try_from(offset - start).map_err(|_| Errno::EIO)?))
    }
}

/// Makes the device allocate `length` bytes from `offset` on, by writing zeros where it cannot
/// otherwise.
pub(crate) fn preallocate(fd: &OwnedFd, offset: u64, length: u64) -> Result<()> {
    loop {
        match rustix::fs::fallocate(fd, FallocateFlags::empty(), offset, length) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::OPNOTSUPP) => return write_zeros(fd, offset, length),
            Err(os) => return Err(errno(os)),
        }
    }
}

/// Writes zeros.
pub(crate) fn write_zeros(fd: &OwnedFd, offset: u64, length: u64) -> Result<()> {
    let zeros = vec![0; usize::try_from(length.min(1 << 20)).unwrap_or(1 << 20)];
    let mut done = 0;
    while done < length {
        let part = usize::try_from(length - done).unwrap_or(zeros.len()).min(zeros.len());
        write_all(fd, offset + done, zeros.get(..part).unwrap_or(&[]))?;
        done += part as u64;
    }
    Ok(())
}

/// `pwrite` until all is written.
pub(crate) fn write_all(fd: &OwnedFd, offset: u64, bytes: &[u8]) -> Result<()> {
    let mut done = 0;
    while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
        match rustix::io::pwrite(fd, rest, offset + done as u64) {
            Ok(0) => return Err(Errno::EIO),
            Ok(count) => done += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(os) => return Err(errno(os)),
        }
    }
    Ok(())
}

/// `pread` until `to` is full or the file ends; the number of bytes read.
pub(crate) fn read_all(fd: &OwnedFd, offset: u64, to: &mut [u8]) -> Result<usize> {
    let mut done = 0;
    while let Some(rest) = to.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match rustix::io::pread(fd, rest, offset + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(os) => return Err(errno(os)),
        }
    }
    Ok(done)
}

impl Medium for MappedFile {
    fn length(&self) -> u64 {
        self.length
    }

    fn grow(&mut self, length: u64) -> Result<()> {
        if length > self.length {
            preallocate(&self.fd, self.length, length - self.length)?;
            self.length = length;
            self.window = None;
        }
        Ok(())
    }

    fn cut(&mut self, length: u64) -> Result<()> {
        self.window = None;
        rustix::fs::ftruncate(&self.fd, length).map_err(errno)?;
        self.length = length;
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let (segment, at) = self.window(offset)?;
        segment.copy_in(at, bytes)
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> Result<usize> {
        read_all(&self.fd, offset, to)
    }

    fn sync(&mut self) -> Result<()> {
        // This also writes what was stored through mappings.
        rustix::fs::fdatasync(&self.fd).map_err(errno)
    }
}

impl Medium for PlainFile {
    fn length(&self) -> u64 {
        self.length
    }

    fn grow(&mut self, length: u64) -> Result<()> {
        if length > self.length {
            preallocate(&self.fd, self.length, length - self.length)?;
            self.length = length;
        }
        Ok(())
    }

    fn cut(&mut self, length: u64) -> Result<()> {
        rustix::fs::ftruncate(&self.fd, length).map_err(errno)?;
        self.length = length;
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        write_all(&self.fd, offset, bytes)
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> Result<usize> {
        read_all(&self.fd, offset, to)
    }

    fn sync(&mut self) -> Result<()> {
        rustix::fs::fdatasync(&self.fd).map_err(errno)
    }
}

/// A directory of a real file system, whose files are written as `M` does.
#[derive(Clone, Debug)]
pub struct RealFiles<M = MappedFile> {
    path: PathBuf,
    files: PhantomData<M>,
}

impl<M> RealFiles<M> {
    /// Opens the directory at `path`, which exists.
    #[must_use]
    pub fn new(path: &Path) -> RealFiles<M> {
        RealFiles { path: path.to_path_buf(), files: PhantomData }
    }
}

impl<M: OpenedFile> Files for RealFiles<M> {
    type File = M;

    fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn names(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.path).map_err(|error| errno_of(&error))? {
            let name = entry.map_err(|error| errno_of(&error))?.file_name();
            names.extend(name.into_string().ok());
        }
        Ok(names)
    }

    fn open(&mut self, name: &str) -> Result<M> {
        open_file(&self.path.join(name), OFlags::empty())
    }

    fn create(&mut self, name: &str) -> Result<M> {
        open_file(&self.path.join(name), OFlags::CREATE | OFlags::TRUNC)
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<()> {
        let (from, to) = (self.path.join(from), self.path.join(to));
        std::fs::rename(from, to).map_err(|error| errno_of(&error))
    }

    fn remove(&mut self, name: &str) -> Result<()> {
        std::fs::remove_file(self.path.join(name)).map_err(|error| errno_of(&error))
    }

    fn sync(&mut self) -> Result<()> {
        let directory = std::fs::File::open(&self.path).map_err(|error| errno_of(&error))?;
        directory.sync_all().map_err(|error| errno_of(&error))
    }
}
