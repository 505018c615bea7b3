//! The backend for a directory of a POSIX file system, by the crate `backing`.

use crate::backends::{
    Backend, CopySource, Dir, NewNode, Node, PartialFiles, Precondition, Uncommitted, WriteAt,
};
use crate::round::is_version;
use crate::state::WritebackResult;
use backing::{AttributesLost, CopyError, FileMetadata, Kind, TemporaryFile, contents};
use rustix::fs::{Mode, OFlags};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use wire::{Attributes, Inode};

/// Size of the buffer of reads and writes, in bytes.
const BUFFER_BYTES: usize = 1 << 20;
/// Zero blocks of this size are not written.
const BLOCK_BYTES: usize = 4096;
/// Minimum size of a part of a large file, in bytes.
const PART_BYTES: u64 = if cfg!(test) { 16 } else { 32 << 20 };
/// Maximum number of parts of a file; a huge sparse file gets larger parts.
const PARTS_MAX: u64 = 1 << 10;

/// A directory tree. Its top is opened by path in each round, so that another file system mounted
/// there is noticed, and the directory can be unmounted in between.
pub(crate) struct PosixBackend {
    path: PathBuf,
    /// Inode number of the top directory, and type of its file system.
    identity: (u64, i64),
    /// Owner number in the names of this instance's partial files.
    owner: u64,
}

impl PosixBackend {
    /// The directory at `path`; `owner` is a number that only this instance has.
    ///
    /// # Errors
    /// As of `open`.
    pub(crate) fn new(path: &Path, owner: u64) -> io::Result<PosixBackend> {
        let identity = identity(&backing::Dir::open(path)?)?;
        Ok(PosixBackend { path: path.to_owned(), identity, owner })
    }
}

/// Identifies the directory. The device number may change with a mount; these two values do not.
fn identity(dir: &backing::Dir) -> io::Result<(u64, i64)> {
    let kind = rustix::fs::fstatfs(dir)?.f_type;
    Ok((backing::Node::of(dir)?.identity.1, kind))
}

/// The open directory of a `Dir`.
fn open_dir(dir: &Dir) -> io::Result<&Arc<backing::Dir>> {
    match dir {
        Dir::Posix(dir) => Ok(dir),
        Dir::S3(_) => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// Writes all but zero blocks; the file has its final size already.
fn write_blocks(to: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    let is_zero = |block: &&[u8]| block.iter().all(|&byte| byte == 0);
    if !bytes.chunks(BLOCK_BYTES).any(|block| is_zero(&block)) {
        return to.write_all_at(bytes, at);
    }
    let blocks = bytes.chunks(BLOCK_BYTES).zip((at..).step_by(BLOCK_BYTES));
    for (block, at) in blocks.filter(|(block, _)| !is_zero(block)) {
        to.write_all_at(block, at)?;
    }
    Ok(())
}

impl Backend for PosixBackend {
    fn is_object_store(&self) -> bool {
        false
    }

    fn part_bytes(&self, size: u64) -> u64 {
        size.div_ceil(PARTS_MAX).max(PART_BYTES)
    }

    fn partials(&self) -> Option<&dyn PartialFiles> {
        Some(self)
    }

    fn root(&self) -> io::Result<Dir> {
        let dir = backing::Dir::open(&self.path)?;
        match identity(&dir)? == self.identity {
            true => Ok(Dir::Posix(Arc::new(dir))),
            false => Err(io::Error::other(
                "another directory is at this path: is the file system mounted?",
            )),
        }
    }

    fn dir(&self, within: &Dir, name: &OsStr) -> io::Result<Dir> {
        let dir = open_dir(within)?.dir(Path::new(name))?;
        Ok(Dir::Posix(Arc::new(dir)))
    }

    fn node(&self, within: &Dir, name: &OsStr) -> io::Result<Option<Node>> {
        match open_dir(within)?.node(name) {
            Ok(node) => Ok(Some(node.into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn names(&self, within: &Dir) -> io::Result<Vec<OsString>> {
        let within = open_dir(within)?;
        let mut names = within.entries()?;
        within.sweep(&mut names);
        Ok(names.into_iter().map(|(name, _)| name).collect())
    }

    fn create(
        &self,
        (within, _): (&Dir, &OsStr),
        new: &NewNode,
        _: &FileMetadata,
    ) -> io::Result<Uncommitted> {
        let within = open_dir(within)?;
        Ok(match new {
            NewNode::File(mode, size) => {
                let partial = backing::PartialFile::new(within, *mode)?;
                partial.file().set_len(*size)?;
                Uncommitted::File(partial)
            }
            NewNode::Dir => Uncommitted::Other(TemporaryFile::dir(within)?),
            NewNode::Link(target) => Uncommitted::Other(TemporaryFile::link(within, target)?),
            NewNode::Special(mode, device) => {
                Uncommitted::Other(TemporaryFile::special(within, *mode, *device)?)
            }
        })
    }

    fn write(
        &self,
        partial: &Uncommitted,
        _: &Range<u64>,
        fill: &mut dyn FnMut(&mut WriteAt<'_>) -> WritebackResult<()>,
    ) -> WritebackResult<()> {
        match partial {
            Uncommitted::File(partial) => {
                fill(&mut |bytes, at| write_blocks(partial.file(), bytes, at))
            }
            Uncommitted::Partial(partial, counts) => {
                fill(&mut |bytes, at| self.put(partial, bytes, at, *counts))
            }
            Uncommitted::Other(_) | Uncommitted::Object(_) => Ok(()),
        }
    }

    fn read_back(&self, partial: &Uncommitted, to: &mut [u8], at: u64) -> io::Result<usize> {
        let (Uncommitted::File(partial) | Uncommitted::Partial(partial, _)) = partial else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        contents::forget(partial.file());
        partial.file().read_at(to, at)
    }

    fn set_metadata(
        &self,
        partial: &Uncommitted,
        metadata: &FileMetadata,
    ) -> io::Result<AttributesLost> {
        match partial {
            Uncommitted::File(partial) | Uncommitted::Partial(partial, _) => {
                metadata.put_on(partial.file())
            }
            Uncommitted::Other(other) => other.set_metadata(metadata),
            Uncommitted::Object(_) => Ok(AttributesLost(false)),
        }
    }

    fn sync(&self, within: &Dir) -> io::Result<()> {
        open_dir(within)?.sync_all()
    }

    fn commit(
        &self,
        partial: Uncommitted,
        (within, name): (&Dir, &OsStr),
        over: Precondition,
    ) -> Result<(), CopyError> {
        match partial {
            Uncommitted::Partial(partial, _) => partial.commit_in(
                open_dir(within).map_err(CopyError::Write)?,
                name,
                over.rename_mode(),
            ),
            Uncommitted::File(partial) => partial.commit(name, over.rename_mode()),
            Uncommitted::Other(other) => other.commit(name, over.rename_mode()),
            Uncommitted::Object(_) => Err(CopyError::Write(io::ErrorKind::Unsupported.into())),
        }
    }

    fn rename(&self, from: (&Dir, &OsStr), to: (&Dir, &OsStr)) -> io::Result<()> {
        open_dir(from.0)?.rename(from.1, open_dir(to.0)?, to.1)
    }

    fn link(&self, from: (&Dir, &OsStr), to: (&Dir, &OsStr)) -> io::Result<()> {
        open_dir(from.0)?.link_to(from.1, open_dir(to.0)?, to.1)
    }

    fn remove(&self, within: &Dir, name: &OsStr, is_dir: bool) -> io::Result<()> {
        let within = open_dir(within)?;
        match is_dir {
            true => within.remove_dir(name),
            false => within.remove(name),
        }
    }

    fn update_metadata(
        &self,
        within: &Dir,
        name: &OsStr,
        metadata: &FileMetadata,
    ) -> io::Result<AttributesLost> {
        let within = open_dir(within)?;
        match within.node(name)?.kind {
            Kind::File | Kind::Dir => metadata.put_on(open(within, name, OFlags::RDONLY)?),
            Kind::Link | Kind::Special => {
                metadata.put_on_name(within, name).map(|()| AttributesLost(false))
            }
        }
    }

    fn rewrite(
        &self,
        within: &Dir,
        name: &OsStr,
        partial: &Uncommitted,
        metadata: &FileMetadata,
    ) -> Result<(), CopyError> {
        let (Uncommitted::File(from) | Uncommitted::Partial(from, _)) = partial else {
            return Err(CopyError::Changed);
        };
        let within = open_dir(within).map_err(CopyError::Write)?;
        let to = open(within, name, OFlags::RDWR).map_err(CopyError::Write)?;
        let size = backing::Node::of(from.file()).map_err(CopyError::Read)?.size;
        // Truncated first, because a hole in the new contents may be data in the old ones.
        to.set_len(0).and_then(|()| to.set_len(size)).map_err(CopyError::Write)?;
        let mut buffer = vec![0; BUFFER_BYTES];
        contents::copy(from.file(), &to, 0..size, true, &mut buffer, &mut |_| {})?;
        metadata.put_on(&to).map_err(CopyError::Write)?;
        to.sync_all().map_err(CopyError::Write)
    }
}

impl PartialFiles for PosixBackend {
    fn begin(
        &self,
        within: &Dir,
        of: &Attributes,
        source: CopySource<'_>,
    ) -> Result<(backing::PartialFile, OsString, u64), CopyError> {
        let within = open_dir(within).map_err(CopyError::Write)?;
        let mut partial =
            backing::PartialFile::new(within, of.mode & 0o7777).map_err(CopyError::Write)?;
        let mut size = 0;
        if let Some((from, location)) = source {
            size = location.counts;
            let from = open_dir(from).map_err(CopyError::Read)?;
            let file = open(from, &location.place.name, OFlags::RDONLY).map_err(CopyError::Read)?;
            let mut buffer = vec![0; BUFFER_BYTES];
            partial.file().set_len(size).map_err(CopyError::Write)?;
            contents::copy(&file, partial.file(), 0..size, true, &mut buffer, &mut |_| {})?;
            let node = backing::Node::of(&file).map_err(CopyError::Read)?;
            if !is_version(&node.into(), &location.version) {
                return Err(CopyError::Changed);
            }
        }
        let name = self.persist(&mut partial, of.inode).map_err(CopyError::Write)?;
        Ok((partial, name, size))
    }

    fn persist(&self, partial: &mut backing::PartialFile, of: Inode) -> io::Result<OsString> {
        partial.keep(of.0, self.owner)
    }

    fn is_left_over(&self, name: &OsStr, modified: i64) -> bool {
        backing::is_left_over(name, modified, self.owner)
    }

    fn open(
        &self,
        within: &Dir,
        name: &OsStr,
        number: u64,
    ) -> io::Result<Option<backing::PartialFile>> {
        let within = open_dir(within)?;
        let file = match open(within, name, OFlags::RDWR) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let is_it = backing::Node::of(&file)?.identity.1 == number;
        Ok(is_it.then(|| backing::PartialFile::of_existing(within, name, file)))
    }

    fn resize(&self, partial: &backing::PartialFile, size: u64) -> io::Result<()> {
        partial.file().set_len(size)
    }

    fn put(
        &self,
        partial: &backing::PartialFile,
        bytes: &[u8],
        at: u64,
        counts: u64,
    ) -> io::Result<()> {
        match at < counts {
            true => partial.file().write_all_at(bytes, at),
            false => write_blocks(partial.file(), bytes, at),
        }
    }

    fn sync(&self, partial: &backing::PartialFile, name_in: Option<&Dir>) -> io::Result<()> {
        partial.file().sync_data()?;
        match name_in {
            Some(within) => Ok(rustix::fs::fsync(&**open_dir(within)?)?),
            None => Ok(()),
        }
    }
}

/// Opens a file of ours, changing its mode if that forbids it.
fn open(within: &backing::Dir, name: &OsStr, access: OFlags) -> io::Result<File> {
    let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match rustix::fs::openat(within, name, flags, Mode::empty()) {
        Err(rustix::io::Errno::ACCESS) => {}
        opened => return Ok(opened?.into()),
    }
    let mode = Mode::from_raw_mode(within.node(name)?.mode()) | Mode::RUSR | Mode::WUSR;
    rustix::fs::chmodat(within, name, mode, rustix::fs::AtFlags::empty())?;
    Ok(rustix::fs::openat(within, name, flags, Mode::empty())?.into())
}
