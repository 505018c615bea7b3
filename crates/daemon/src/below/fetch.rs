//! Bytes of a file of the backing directory, into a place of the target that nobody sees yet, or for who
//! reads where there is no room for one.

use super::tree::{Fault, Place, Told, Tree};
use crate::target::Devices;
use data::Haste;
use std::io;
use std::sync::Arc;
use std::time::Instant;
use wire::Inode;
use wire::errno::{Errno, Result};
use wire::reply::Piece;

/// Bytes that are read at once.
const STEP_BYTES: usize = 1 << 20;

/// What is wanted of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wanted {
    /// A place is to be filled: so many of its first bytes lie below, the others are zeros.
    Fill { piece: Piece, length: u64, haste: Haste },
    /// Bytes that are not kept: so many of them lie below, the others are zeros.
    Read { offset: u64, length: u32, below: u32 },
}

impl Wanted {
    /// Nobody waits for it yet.
    pub(super) fn is_later(self) -> bool {
        matches!(self, Wanted::Fill { haste: Haste::Soon | Haste::None, .. })
    }

    /// It can not be had.
    pub(super) const fn refused(self, errno: Errno) -> Outcome {
        match self {
            Wanted::Fill { .. } => Outcome::Filled(Err(errno)),
            Wanted::Read { .. } => Outcome::Read(Err(errno)),
        }
    }
}

/// Bytes of a file for a request, or a piece.
pub(crate) struct Fetch {
    pub(crate) ticket: u64,
    pub(crate) inode: Inode,
    pub(crate) wanted: Wanted,
    pub(crate) told: Arc<Told>,
    /// So long its shard is asked again if it is not there.
    pub(crate) until: Option<Instant>,
}

/// What came of one.
pub(crate) enum Outcome {
    /// The place is filled, or not.
    Filled(Result<()>),
    /// The bytes.
    Read(Result<Vec<u8>>),
    /// The file is not where it was said to be: its shard is to be asked again.
    Astray(Fetch),
}

/// What bytes are moved by.
pub(super) fn buffer() -> Vec<u8> {
    vec![0; STEP_BYTES]
}

/// Fetches what is wanted, and says what came of it.
pub(super) fn carry_out(
    tree: &Tree,
    devices: &Devices,
    fetch: Fetch,
    buffer: &mut [u8],
) -> (u64, Outcome) {
    let (ticket, wanted) = (fetch.ticket, fetch.wanted);
    let outcome = match wanted {
        Wanted::Fill { piece, length, .. } => {
            let mut each = |within: u64, bytes: &[u8]| put(devices, &piece, within, bytes);
            read(tree, &fetch, (piece.start, length), buffer, &mut each)
                .and_then(|()| zero(devices, &piece, length, buffer).map_err(Fault::Errno))
                .map(|()| Outcome::Filled(Ok(())))
        }
        Wanted::Read { offset, length, below } => {
            let mut all = Vec::with_capacity(length as usize);
            let mut each = |at: u64, bytes: &[u8]| {
                all.truncate(at as usize);
                all.extend_from_slice(bytes);
                Ok(())
            };
            let outcome = read(tree, &fetch, (offset, below.into()), buffer, &mut each);
            all.resize(length as usize, 0);
            outcome.map(|()| Outcome::Read(Ok(all)))
        }
    };
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(Fault::Errno(errno)) => wanted.refused(errno),
        Err(Fault::Astray) if fetch.until.is_none_or(|until| Instant::now() < until) => {
            Outcome::Astray(fetch)
        }
        Err(fault @ Fault::Astray) => {
            let path = fetch.told.path();
            tracing::warn!(path, "a file of the backing directory changed since it was seen");
            wanted.refused(fault.into())
        }
    };
    (ticket, outcome)
}

/// Reads a part of a file and gives `each` its bytes in order, from where they are in the part; from the
/// start again if a place turns out not to have what was told.
fn read(
    tree: &Tree,
    fetch: &Fetch,
    part: (u64, u64),
    buffer: &mut [u8],
    each: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
) -> core::result::Result<(), Fault> {
    for place in &fetch.told.places {
        let Err(error) = read_at(tree, (fetch.inode, place), part, buffer, each) else {
            return Ok(());
        };
        let text = error.to_string();
        let fault = Fault::from(error);
        if fault != Fault::Astray {
            let path = fetch.told.path();
            tracing::warn!(path, error = text, "can not read a file of the backing directory");
            return Err(fault);
        }
    }
    Err(Fault::Astray)
}

fn read_at(
    tree: &Tree,
    (inode, place): (Inode, &Place),
    (offset, length): (u64, u64),
    buffer: &mut [u8],
    each: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
) -> io::Result<()> {
    let file = tree.file(inode, place)?;
    let mut done = 0;
    let read = file.read(offset..offset + length, buffer, &mut |bytes| {
        each(done, bytes).map_err(|errno| io::Error::from_raw_os_error(errno.0.into()))?;
        done += bytes.len() as u64;
        Ok(())
    });
    if read.is_err() {
        // What is open may be what is wrong.
        tree.take(inode, place);
    }
    read
}

pub(crate) fn put(devices: &Devices, piece: &Piece, within: u64, bytes: &[u8]) -> Result<()> {
    let place = piece.place + within;
    if piece.tier == Piece::MEMORY {
        return devices.arena.copy_in(place, bytes);
    }
    let mut done = 0;
    while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
        match rustix::io::pwrite(devices.ssd.fd(), rest, place + done as u64) {
            Ok(0) => return Err(Errno::EIO),
            Ok(count) => done += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(shm::segment::errno(error)),
        }
    }
    Ok(())
}

fn zero(devices: &Devices, piece: &Piece, from: u64, buffer: &mut [u8]) -> Result<()> {
    let mut done = from;
    if done < piece.length() {
        buffer.fill(0);
    }
    while done < piece.length() {
        let part = (piece.length() - done).min(buffer.len() as u64);
        put(devices, piece, done, buffer.get(..part as usize).unwrap_or_default())?;
        done += part;
    }
    Ok(())
}
