//! A backing store that is a mounted file system.

use crate::attributes::extended_at;
use crate::dir::Dir;
use crate::tree::{Contents, Entry, Tree};
use rustix::fs::{AtFlags, Dir as DirReader, FileType, Statx, StatxFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use wire::backing::Version;

/// Number of reads that are in progress at once.
const WIDTH: usize = 4;
/// Fields that `statx` is asked for.
const ALL: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME);

/// A directory tree in a mounted file system.
#[derive(Debug)]
pub struct Mounted {
    top: Dir,
}

impl Mounted {
    /// Opens the tree at a path; follows links.
    ///
    /// # Errors
    /// As of `open`.
    pub fn open(path: &Path) -> io::Result<Mounted> {
        let top = Dir::open(path)?;
        // Opening needs read permission only; this checks search permission.
        rustix::fs::statat(&top, c".", AtFlags::empty())?;
        Ok(Mounted { top })
    }

    /// The directory at a path, if it has this inode number or is the top.
    fn dir(&self, path: &[u8], number: u64) -> io::Result<Dir> {
        let dir = self.top.dir(path_of(path))?;
        if !path.is_empty() && stat(&dir, b"")?.stx_ino != number {
            return Err(Errno::STALE.into());
        }
        Ok(dir)
    }
}

fn path_of(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

impl Tree for Mounted {
    fn list(&self, path: &[u8], number: u64, each: &mut dyn FnMut(Entry)) -> io::Result<()> {
        let dir = self.dir(path, number)?;
        for found in DirReader::read_from(&dir)? {
            let name = found?.file_name().to_bytes().to_vec();
            let is_nobodys = crate::is_temporary(OsStr::from_bytes(&name));
            if name == b"." || name == b".." || is_nobodys {
                continue;
            }
            match entry(&dir, name) {
                Ok(entry) => each(entry),
                // It was removed since it was listed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn look(&self, path: &[u8], number: u64, name: &[u8]) -> io::Result<Option<Entry>> {
        let dir = self.dir(path, number)?;
        if crate::is_temporary(OsStr::from_bytes(name)) {
            return Ok(None);
        }
        match entry(&dir, name.to_vec()) {
            Ok(entry) => Ok(Some(entry)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn open(&self, path: &[u8], version: &Version) -> io::Result<Arc<dyn Contents>> {
        let file = self.top.file_at(path_of(path))?;
        let opened = Opened { file, version: *version };
        opened.check()?;
        Ok(Arc::new(opened))
    }

    fn width(&self) -> usize {
        WIDTH
    }
}

/// An open file of a known version.
struct Opened {
    file: File,
    version: Version,
}

impl Opened {
    fn check(&self) -> io::Result<()> {
        let stat = stat(&self.file, b"")?;
        let (number, modified, size) =
            (stat.stx_ino, nanos(stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec), stat.stx_size);
        // Only the writeback daemon writes to a partial file, and the bytes that are requested are
        // in it.
        let is_partial = self.version.is_of_partial() && self.version.number == number;
        match is_partial || self.version == (Version { number, modified, size }) {
            true => Ok(()),
            false => Err(Errno::STALE.into()),
        }
    }
}

impl Contents for Opened {
    fn read(
        &self,
        part: Range<u64>,
        buffer: &mut [u8],
        each: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        // Checked before and after the read, so all bytes are of the requested version.
        self.check()?;
        let mut at = part.start;
        while at < part.end {
            let length = (part.end - at).min(buffer.len() as u64) as usize;
            let part_buffer = buffer.get_mut(..length).unwrap_or_default();
            if let Err(error) = self.file.read_exact_at(part_buffer, at) {
                self.check()?;
                return Err(error);
            }
            each(part_buffer)?;
            at += length as u64;
        }
        self.check()
    }
}

fn entry(dir: &Dir, name: Vec<u8>) -> io::Result<Entry> {
    let stat = stat(dir, &name)?;
    let mode = u32::from(stat.stx_mode);
    let target = match FileType::from_raw_mode(mode) {
        FileType::Symlink => rustix::fs::readlinkat(dir, &*name, Vec::new())?.into_bytes(),
        _ => Vec::new(),
    };
    let extended = match FileType::from_raw_mode(mode) {
        FileType::RegularFile | FileType::Directory if !name.is_empty() => extended_at(dir, &name)?,
        _ => Vec::new(),
    };
    let (minor, changed, born) = (
        stat.stx_rdev_minor,
        nanos(stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec),
        nanos(stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec),
    );
    Ok(Entry {
        name,
        mode,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        links: stat.stx_nlink,
        size: stat.stx_size,
        accessed: nanos(stat.stx_atime.tv_sec, stat.stx_atime.tv_nsec),
        modified: nanos(stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec),
        changed,
        // Not every file system records the birth time.
        born: if born == 0 { changed } else { born },
        device: minor & 0xff | stat.stx_rdev_major << 8 | (minor & !0xff) << 12,
        number: stat.stx_ino,
        target,
        extended,
    })
}

/// `statx` of a name in a directory, or of the open file if the name is empty. Links are not
/// followed.
fn stat(at: impl AsFd, name: &[u8]) -> io::Result<Statx> {
    let mut flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    if name.is_empty() {
        flags |= AtFlags::EMPTY_PATH;
    }
    Ok(rustix::fs::statx(at, name, flags, ALL)?)
}

const fn nanos(seconds: i64, nanos: u32) -> i64 {
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos as i64)
}
