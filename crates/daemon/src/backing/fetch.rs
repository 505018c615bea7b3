//! Fetches bytes of a file from the backing store, into an extent that is not published yet, or
//! directly for a reader if there is no space for an extent.

use super::tree::{BackingPlace, Fault, FileLocations, Tree};
use crate::target::Devices;
use data::{FillJob, Haste};
use std::io;
use std::sync::Arc;
use std::time::Instant;
use wire::Inode;
use wire::errno::{Errno, Result};
use wire::reply::Extent;

/// Bytes per read.
const STEP_BYTES: usize = 1 << 20;

/// Kind of a fetch.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FetchKind {
    /// Fill an extent. Its first `length` bytes are backed, the others are zeros.
    Fill { extent: Extent, length: u64, haste: Haste },
    /// Return bytes without storing them. The first `backing` of them are backed, the others are
    /// zeros.
    Read { offset: u64, length: u32, backing: u32 },
}

impl FetchKind {
    /// True if no client waits for it yet.
    pub(super) fn is_background(self) -> bool {
        matches!(self, FetchKind::Fill { haste: Haste::Soon | Haste::None, .. })
    }

    /// Bytes that it reads of the backing store.
    pub(super) fn bytes(self) -> u64 {
        match self {
            FetchKind::Fill { length, .. } => length,
            FetchKind::Read { backing, .. } => backing.into(),
        }
    }

    /// Result of a fetch that fails with `errno`.
    pub(super) const fn refused(self, errno: Errno) -> FetchOutcome {
        match self {
            FetchKind::Fill { .. } => FetchOutcome::Filled(Err(errno)),
            FetchKind::Read { .. } => FetchOutcome::Read(Err(errno)),
        }
    }
}

/// A fetch of bytes of a file.
pub(crate) struct Fetch {
    pub(crate) ticket: u64,
    pub(crate) inode: Inode,
    pub(crate) kind: FetchKind,
    /// The job that waits for it.
    pub(crate) job: FillJob,
    pub(crate) locations: Arc<FileLocations>,
    /// If the file is missing, its shard is asked again until then.
    pub(crate) until: Option<Instant>,
}

/// Result of a fetch.
pub(crate) enum FetchOutcome {
    /// Whether the extent is filled.
    Filled(Result<()>),
    /// The bytes.
    Read(Result<Vec<u8>>),
    /// The file is not at its known location; its shard must be asked again.
    Missing(Fetch),
}

/// Copy buffer of a thread.
pub(super) fn copy_buffer() -> Vec<u8> {
    vec![0; STEP_BYTES]
}

/// Performs a fetch. Returns its ticket and result.
pub(super) fn perform(
    tree: &Tree,
    devices: &Devices,
    fetch: Fetch,
    buffer: &mut [u8],
) -> (u64, FetchOutcome) {
    let (ticket, kind) = (fetch.ticket, fetch.kind);
    let outcome = match kind {
        FetchKind::Fill { extent, length, .. } => {
            let mut each =
                |within: u64, bytes: &[u8]| write_extent(devices, &extent, within, bytes);
            read(tree, &fetch, (extent.start, length), buffer, &mut each)
                .and_then(|()| zero(devices, &extent, length, buffer).map_err(Fault::Errno))
                .map(|()| FetchOutcome::Filled(Ok(())))
        }
        FetchKind::Read { offset, length, backing } => {
            let mut all = Vec::with_capacity(length as usize);
            let mut each = |at: u64, bytes: &[u8]| {
                all.truncate(at as usize);
                all.extend_from_slice(bytes);
                Ok(())
            };
            let outcome = read(tree, &fetch, (offset, backing.into()), buffer, &mut each);
            all.resize(length as usize, 0);
            outcome.map(|()| FetchOutcome::Read(Ok(all)))
        }
    };
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(Fault::Errno(errno)) => kind.refused(errno),
        Err(Fault::Missing) if fetch.until.is_none_or(|until| Instant::now() < until) => {
            FetchOutcome::Missing(fetch)
        }
        Err(fault @ Fault::Missing) => {
            let path = fetch.locations.display_path();
            tracing::warn!(path, "backing file is missing or has changed");
            kind.refused(fault.into())
        }
    };
    (ticket, outcome)
}

/// Reads a part of a file and passes its bytes to `each` in order, with their offset in the part.
/// Starts again with the next location if one turns out not to hold the expected version.
fn read(
    tree: &Tree,
    fetch: &Fetch,
    part: (u64, u64),
    buffer: &mut [u8],
    each: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
) -> core::result::Result<(), Fault> {
    for place in &fetch.locations.places {
        let Err(error) = read_at(tree, (fetch.inode, place), part, buffer, each) else {
            return Ok(());
        };
        let text = error.to_string();
        let fault = Fault::from(error);
        if fault != Fault::Missing {
            let path = fetch.locations.display_path();
            tracing::warn!(path, error = text, "cannot read backing file");
            return Err(fault);
        }
    }
    Err(Fault::Missing)
}

fn read_at(
    tree: &Tree,
    (inode, place): (Inode, &BackingPlace),
    (offset, length): (u64, u64),
    buffer: &mut [u8],
    each: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
) -> io::Result<()> {
    let file = tree.opened_file(inode, place)?;
    let mut done = 0;
    let read = file.read(offset..offset + length, buffer, &mut |bytes| {
        each(done, bytes).map_err(|errno| io::Error::from_raw_os_error(errno.0.into()))?;
        done += bytes.len() as u64;
        Ok(())
    });
    if read.is_err() {
        // The cached open file may be the cause.
        tree.take(inode, place);
    }
    read
}

/// Writes bytes of an extent that is not published, so that nobody else uses it.
pub(crate) fn write_extent(
    devices: &Devices,
    extent: &Extent,
    within: u64,
    bytes: &[u8],
) -> Result<()> {
    if extent.tier == Extent::MEMORY {
        return devices.arena.copy_in(extent.location + within, bytes);
    }
    devices.target().ssd_put(extent, within, bytes)
}

fn zero(devices: &Devices, extent: &Extent, from: u64, buffer: &mut [u8]) -> Result<()> {
    let mut done = from;
    if done < extent.length() {
        buffer.fill(0);
    }
    while done < extent.length() {
        let part = (extent.length() - done).min(buffer.len() as u64);
        write_extent(devices, extent, done, buffer.get(..part as usize).unwrap_or_default())?;
        done += part;
    }
    Ok(())
}
