//! Backing locations as shards report them, and a cache of open backing files.

use backing::Contents;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use wire::backing::{BackingFile, Version};
use wire::codec::Reader;
use wire::errno::{Errno, Result};
use wire::{Inode, Layout};

/// Files kept open, so that a sequential reader does not open its file for each extent.
const OPEN_MAX: usize = 64;

/// Locations of a file as its shard reported them: the file is at one of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct FileLocations {
    pub(super) places: Vec<BackingPlace>,
    /// Number of backed bytes, whichever location is right. Bytes beyond are in the instance, or
    /// are zeros.
    pub(crate) size: u64,
    /// Placement of its stripes in the instance.
    pub(crate) layout: Layout,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct BackingPlace {
    version: Version,
    path: Vec<u8>,
}

impl FileLocations {
    /// Decodes an answer to `Request::LocateBacking`.
    pub(crate) fn from_answer(bytes: &[u8]) -> Result<FileLocations> {
        let mut reader = Reader::new(bytes);
        let mut locations = FileLocations { size: u64::MAX, ..FileLocations::unbacked() };
        while !reader.rest().is_empty() {
            let backing = BackingFile::decode(&mut reader).map_err(|_| Errno::EIO)?;
            let BackingFile { number, modified, seen, size, layout, path } = backing;
            locations.layout = layout;
            locations.size = locations.size.min(size);
            let version = Version { number, modified, size: seen };
            locations.places.push(BackingPlace { version, path: path.to_vec() });
        }
        if locations.places.is_empty() { Err(Errno::ESTALE) } else { Ok(locations) }
    }

    /// Locations of a file that is not backed.
    pub(crate) fn unbacked() -> FileLocations {
        FileLocations { places: Vec::new(), size: 0, layout: Layout::default() }
    }

    /// True if the file is not backed.
    pub(super) const fn is_unbacked(&self) -> bool {
        self.places.is_empty()
    }

    /// Its first path.
    pub(super) fn first_path(&self) -> &[u8] {
        self.places.first().map(|place| &place.path[..]).unwrap_or_default()
    }

    /// Its first path, for logs.
    pub(super) fn display_path(&self) -> String {
        String::from_utf8_lossy(self.first_path()).into_owned()
    }
}

/// Why a backing file cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    /// It is not at the known location, or is another version: it may have been moved or rewritten
    /// since.
    Missing,
    /// Another error.
    Errno(Errno),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Fault {
        match errno_of(&error) {
            Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::ESTALE => Fault::Missing,
            errno => Fault::Errno(errno),
        }
    }
}

impl From<Fault> for Errno {
    /// Not ENOENT, which a program that lists a directory would take for its end.
    fn from(fault: Fault) -> Errno {
        match fault {
            Fault::Missing => Errno::EIO,
            Fault::Errno(errno) => errno,
        }
    }
}

fn errno_of(error: &io::Error) -> Errno {
    let number = error.raw_os_error().and_then(|number| u16::try_from(number).ok());
    number.map(Errno).unwrap_or(match error.kind() {
        io::ErrorKind::NotFound => Errno::ENOENT,
        io::ErrorKind::PermissionDenied => Errno::EACCES,
        io::ErrorKind::StaleNetworkFileHandle => Errno::ESTALE,
        _ => Errno::EIO,
    })
}

/// The backing tree, with a cache of open files.
pub(crate) struct Tree {
    pub(super) backing: Box<dyn backing::Tree>,
    /// In order of use, the most recent last.
    open: Mutex<VecDeque<Open>>,
}

/// A file, its location, and its open contents.
type Open = (Inode, BackingPlace, Arc<dyn Contents>);

impl Tree {
    pub(crate) fn new(backing: Box<dyn backing::Tree>) -> Tree {
        Tree { backing, open: Mutex::new(VecDeque::new()) }
    }

    /// The file at a location, from the cache or newly opened.
    pub(super) fn opened_file(
        &self,
        inode: Inode,
        place: &BackingPlace,
    ) -> io::Result<Arc<dyn Contents>> {
        if let Some(known) = self.take(inode, place) {
            self.remember(inode, place, &known);
            return Ok(known);
        }
        let file = self.backing.open(&place.path, &place.version)?;
        self.remember(inode, place, &file);
        Ok(file)
    }

    fn remember(&self, inode: Inode, place: &BackingPlace, file: &Arc<dyn Contents>) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.push_back((inode, place.clone(), Arc::clone(file)));
        if open.len() > OPEN_MAX {
            open.pop_front();
        }
    }

    /// Removes a file from the cache.
    pub(super) fn take(&self, inode: Inode, place: &BackingPlace) -> Option<Arc<dyn Contents>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let at = open.iter().position(|(it, its, _)| (*it, its) == (inode, place))?;
        open.remove(at).map(|(_, _, file)| file)
    }
}
