//! What a shard told of files, and those of them that are open.

use below::Contents;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use wire::below::{Below, Version};
use wire::codec::Reader;
use wire::errno::{Errno, Result};
use wire::{Inode, Layout};

/// Files that are kept open: who reads on in one does not open it for each piece.
const OPEN_MAX: usize = 64;

/// What a shard said of a file: it lies in one of these places.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Told {
    pub(super) places: Vec<Place>,
    /// So many of its first bytes count, wherever it lies: what is behind is here, or is zeros.
    pub(crate) size: u64,
    /// Where its chunks are in the instance.
    pub(crate) layout: Layout,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Place {
    version: Version,
    path: Vec<u8>,
}

impl Told {
    /// What an answer to `Request::Below` says.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Told> {
        let mut reader = Reader::new(bytes);
        let mut told = Told { size: u64::MAX, ..Told::nothing() };
        while !reader.rest().is_empty() {
            let below = Below::decode(&mut reader).map_err(|_| Errno::EIO)?;
            let Below { number, modified, seen, size, layout, path } = below;
            told.layout = layout;
            told.size = told.size.min(size);
            let version = Version { number, modified, size: seen };
            told.places.push(Place { version, path: path.to_vec() });
        }
        if told.places.is_empty() { Err(Errno::ESTALE) } else { Ok(told) }
    }

    /// Of a file that lies nowhere.
    pub(crate) fn nothing() -> Told {
        Told { places: Vec::new(), size: 0, layout: Layout::default() }
    }

    /// True if the file lies nowhere.
    pub(super) const fn is_nothing(&self) -> bool {
        self.places.is_empty()
    }

    /// Its path.
    pub(super) fn first_path(&self) -> &[u8] {
        self.places.first().map(|place| &place.path[..]).unwrap_or_default()
    }

    /// Its path, for people.
    pub(super) fn path(&self) -> String {
        String::from_utf8_lossy(self.first_path()).into_owned()
    }
}

/// Why something is not read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    /// It is not where it was said to be, or is not what was said: it may have been moved, or saved anew,
    /// since.
    Astray,
    /// For this reason.
    Errno(Errno),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Fault {
        match errno(&error) {
            Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::ESTALE => Fault::Astray,
            errno => Fault::Errno(errno),
        }
    }
}

impl From<Fault> for Errno {
    /// A program would take ENOENT of a directory that it reads for its end.
    fn from(fault: Fault) -> Errno {
        match fault {
            Fault::Astray => Errno::EIO,
            Fault::Errno(errno) => errno,
        }
    }
}

fn errno(error: &io::Error) -> Errno {
    let number = error.raw_os_error().and_then(|number| u16::try_from(number).ok());
    number.map(Errno).unwrap_or(match error.kind() {
        io::ErrorKind::NotFound => Errno::ENOENT,
        io::ErrorKind::PermissionDenied => Errno::EACCES,
        io::ErrorKind::StaleNetworkFileHandle => Errno::ESTALE,
        _ => Errno::EIO,
    })
}

/// The tree below, and files of it that are open.
pub(crate) struct Tree {
    pub(super) below: Box<dyn below::Tree>,
    /// The last used last.
    open: Mutex<VecDeque<Open>>,
}

/// A file, where it was told to be, and what reads it there.
type Open = (Inode, Place, Arc<dyn Contents>);

impl Tree {
    pub(crate) fn new(below: Box<dyn below::Tree>) -> Tree {
        Tree { below, open: Mutex::new(VecDeque::new()) }
    }

    /// A file as it was told to be at a place.
    pub(super) fn file(&self, inode: Inode, place: &Place) -> io::Result<Arc<dyn Contents>> {
        if let Some(known) = self.take(inode, place) {
            self.keep(inode, place, &known);
            return Ok(known);
        }
        let file = self.below.open(&place.path, &place.version)?;
        self.keep(inode, place, &file);
        Ok(file)
    }

    fn keep(&self, inode: Inode, place: &Place, file: &Arc<dyn Contents>) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.push_back((inode, place.clone(), Arc::clone(file)));
        if open.len() > OPEN_MAX {
            open.pop_front();
        }
    }

    /// It is not kept any more.
    pub(super) fn take(&self, inode: Inode, place: &Place) -> Option<Arc<dyn Contents>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let at = open.iter().position(|(it, its, _)| (*it, its) == (inode, place))?;
        open.remove(at).map(|(_, _, file)| file)
    }
}
