//! A directory of the site, by the crate `below`.

use crate::round::is_version;
use crate::sides::{Draft, Drafts, Folder, Lower, New, Node, Origin, Over, Sink};
use crate::state::Tried;
use below::{Dress, Kind, Lost, Temporary, Trouble, contents};
use rustix::fs::{Mode, OFlags};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use wire::{Attributes, Inode};

/// Bytes that are read and written at once.
const BUFFER_BYTES: usize = 1 << 20;
/// Blocks of zeros of this size are left out of files.
const BLOCK_BYTES: usize = 4096;
/// Bytes of a part of a large file.
const PART_BYTES: u64 = if cfg!(test) { 16 } else { 32 << 20 };
/// Parts of a file: those of one that is nearly all hole are larger.
const PARTS_MAX: u64 = 1 << 10;

/// A tree below a directory that is opened anew by its path, so that another one which is mounted there
/// meanwhile is noticed, and nothing keeps it from being unmounted.
pub(crate) struct Site {
    path: PathBuf,
    /// Number of the directory, and which kind of file system it is of.
    identity: (u64, i64),
    /// Whose drafts are its own.
    owner: u64,
}

impl Site {
    /// The directory at `path`; `owner` is a number of the instance's alone.
    ///
    /// # Errors
    /// As of `open`.
    pub(crate) fn new(path: &Path, owner: u64) -> io::Result<Site> {
        let identity = identity(&below::Folder::open(path)?)?;
        Ok(Site { path: path.to_owned(), identity, owner })
    }
}

/// The number of a device may be another after a mount; these stay.
fn identity(folder: &below::Folder) -> io::Result<(u64, i64)> {
    let kind = rustix::fs::fstatfs(folder)?.f_type;
    Ok((below::Node::of(folder)?.identity.1, kind))
}

/// An open directory.
fn open_folder(folder: &Folder) -> io::Result<&Arc<below::Folder>> {
    match folder {
        Folder::Site(folder) => Ok(folder),
        Folder::Objects(_) => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// Writes all but blocks of zeros: the file has its size.
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

impl Lower for Site {
    fn is_far(&self) -> bool {
        false
    }

    fn part_bytes(&self, size: u64) -> u64 {
        size.div_ceil(PARTS_MAX).max(PART_BYTES)
    }

    fn drafts(&self) -> Option<&dyn Drafts> {
        Some(self)
    }

    fn root(&self) -> io::Result<Folder> {
        let folder = below::Folder::open(&self.path)?;
        match identity(&folder)? == self.identity {
            true => Ok(Folder::Site(Arc::new(folder))),
            false => Err(io::Error::other("it is not the directory that it was: is it mounted?")),
        }
    }

    fn folder(&self, within: &Folder, name: &OsStr) -> io::Result<Folder> {
        let folder = open_folder(within)?.folder(Path::new(name))?;
        Ok(Folder::Site(Arc::new(folder)))
    }

    fn node(&self, within: &Folder, name: &OsStr) -> io::Result<Option<Node>> {
        match open_folder(within)?.node(name) {
            Ok(node) => Ok(Some(node.into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn names(&self, within: &Folder) -> io::Result<Vec<OsString>> {
        let within = open_folder(within)?;
        let mut names = within.entries()?;
        within.sweep(&mut names);
        Ok(names.into_iter().map(|(name, _)| name).collect())
    }

    fn draft(&self, (within, _): (&Folder, &OsStr), new: &New, _: &Dress) -> io::Result<Draft> {
        let within = open_folder(within)?;
        Ok(match new {
            New::File(mode, size) => {
                let draft = below::Draft::new(within, *mode)?;
                draft.file().set_len(*size)?;
                Draft::File(draft)
            }
            New::Folder => Draft::Other(Temporary::folder(within)?),
            New::Link(target) => Draft::Other(Temporary::link(within, target)?),
            New::Special(mode, device) => Draft::Other(Temporary::special(within, *mode, *device)?),
        })
    }

    fn write(
        &self,
        draft: &Draft,
        _: &Range<u64>,
        fill: &mut dyn FnMut(&mut Sink<'_>) -> Tried<()>,
    ) -> Tried<()> {
        match draft {
            Draft::File(draft) => fill(&mut |bytes, at| write_blocks(draft.file(), bytes, at)),
            Draft::Kept(draft, counts) => {
                fill(&mut |bytes, at| self.put(draft, bytes, at, *counts))
            }
            Draft::Other(_) | Draft::Object(_) => Ok(()),
        }
    }

    fn dress(&self, draft: &Draft, dress: &Dress) -> io::Result<Lost> {
        match draft {
            Draft::File(draft) | Draft::Kept(draft, _) => dress.put_on(draft.file()),
            Draft::Other(other) => other.dress(dress),
            Draft::Object(_) => Ok(Lost(false)),
        }
    }

    fn sync(&self, within: &Folder) -> io::Result<()> {
        open_folder(within)?.sync_all()
    }

    fn land(
        &self,
        draft: Draft,
        (within, name): (&Folder, &OsStr),
        over: Over,
    ) -> Result<(), Trouble> {
        match draft {
            Draft::Kept(draft, _) => {
                draft.land_in(open_folder(within).map_err(Trouble::Write)?, name, over.landing())
            }
            Draft::File(draft) => draft.land(name, over.landing()),
            Draft::Other(other) => other.land(name, over.landing()),
            Draft::Object(_) => Err(Trouble::Write(io::ErrorKind::Unsupported.into())),
        }
    }

    fn rename(&self, from: (&Folder, &OsStr), to: (&Folder, &OsStr)) -> io::Result<()> {
        open_folder(from.0)?.rename(from.1, open_folder(to.0)?, to.1)
    }

    fn link(&self, from: (&Folder, &OsStr), to: (&Folder, &OsStr)) -> io::Result<()> {
        open_folder(from.0)?.link_to(from.1, open_folder(to.0)?, to.1)
    }

    fn remove(&self, within: &Folder, name: &OsStr, is_folder: bool) -> io::Result<()> {
        let within = open_folder(within)?;
        match is_folder {
            true => within.remove_folder(name),
            false => within.remove(name),
        }
    }

    fn dress_there(&self, within: &Folder, name: &OsStr, dress: &Dress) -> io::Result<Lost> {
        let within = open_folder(within)?;
        match within.node(name)?.kind {
            Kind::File | Kind::Folder => dress.put_on(open(within, name, OFlags::RDONLY)?),
            Kind::Link | Kind::Special => dress.put_on_name(within, name).map(|()| Lost(false)),
        }
    }

    fn rewrite(
        &self,
        within: &Folder,
        name: &OsStr,
        draft: &Draft,
        dress: &Dress,
    ) -> Result<(), Trouble> {
        let (Draft::File(from) | Draft::Kept(from, _)) = draft else {
            return Err(Trouble::Changed);
        };
        let within = open_folder(within).map_err(Trouble::Write)?;
        let to = open(within, name, OFlags::RDWR).map_err(Trouble::Write)?;
        let size = below::Node::of(from.file()).map_err(Trouble::Read)?.size;
        // What is a hole in the draft may not be what was there.
        to.set_len(0).and_then(|()| to.set_len(size)).map_err(Trouble::Write)?;
        let mut buffer = vec![0; BUFFER_BYTES];
        contents::copy(from.file(), &to, 0..size, true, &mut buffer, &mut |_| {})?;
        dress.put_on(&to).map_err(Trouble::Write)?;
        to.sync_all().map_err(Trouble::Write)
    }
}

impl Drafts for Site {
    fn begin(
        &self,
        within: &Folder,
        of: &Attributes,
        origin: Origin<'_>,
    ) -> Result<(below::Draft, OsString, u64), Trouble> {
        let within = open_folder(within).map_err(Trouble::Write)?;
        let mut draft = below::Draft::new(within, of.mode & 0o7777).map_err(Trouble::Write)?;
        let mut size = 0;
        if let Some((from, lies)) = origin {
            size = lies.counts;
            let from = open_folder(from).map_err(Trouble::Read)?;
            let file = open(from, &lies.place.name, OFlags::RDONLY).map_err(Trouble::Read)?;
            let mut buffer = vec![0; BUFFER_BYTES];
            draft.file().set_len(size).map_err(Trouble::Write)?;
            contents::copy(&file, draft.file(), 0..size, true, &mut buffer, &mut |_| {})?;
            let node = below::Node::of(&file).map_err(Trouble::Read)?;
            if !is_version(&node.into(), &lies.version) {
                return Err(Trouble::Changed);
            }
        }
        let name = self.keep(&mut draft, of.inode).map_err(Trouble::Write)?;
        Ok((draft, name, size))
    }

    fn keep(&self, draft: &mut below::Draft, of: Inode) -> io::Result<OsString> {
        draft.keep(of.0, self.owner)
    }

    fn is_left_over(&self, name: &OsStr, modified: i64) -> bool {
        below::is_left_over(name, modified, self.owner)
    }

    fn open(&self, within: &Folder, name: &OsStr, number: u64) -> io::Result<Option<below::Draft>> {
        let within = open_folder(within)?;
        let file = match open(within, name, OFlags::RDWR) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let is_it = below::Node::of(&file)?.identity.1 == number;
        Ok(is_it.then(|| below::Draft::of_kept(within, name, file)))
    }

    fn resize(&self, draft: &below::Draft, size: u64) -> io::Result<()> {
        draft.file().set_len(size)
    }

    fn put(&self, draft: &below::Draft, bytes: &[u8], at: u64, counts: u64) -> io::Result<()> {
        match at < counts {
            true => draft.file().write_all_at(bytes, at),
            false => write_blocks(draft.file(), bytes, at),
        }
    }

    fn sync(&self, draft: &below::Draft, name_in: Option<&Folder>) -> io::Result<()> {
        draft.file().sync_data()?;
        match name_in {
            Some(within) => Ok(rustix::fs::fsync(&**open_folder(within)?)?),
            None => Ok(()),
        }
    }
}

/// Opens what is ours, also if its mode is against it.
fn open(within: &below::Folder, name: &OsStr, access: OFlags) -> io::Result<File> {
    let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match rustix::fs::openat(within, name, flags, Mode::empty()) {
        Err(rustix::io::Errno::ACCESS) => {}
        opened => return Ok(opened?.into()),
    }
    let mode = Mode::from_raw_mode(within.node(name)?.mode()) | Mode::RUSR | Mode::WUSR;
    rustix::fs::chmodat(within, name, mode, rustix::fs::AtFlags::empty())?;
    Ok(rustix::fs::openat(within, name, flags, Mode::empty())?.into())
}
