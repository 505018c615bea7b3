//! Registered memory in slots, each for one transfer.
//!
//! Bytes are copied between a slot and the transfer's own memory: a device or a peer can reach only
//! slots, never the arena and never a client's memory, so a transfer can be given up at any time
//! and a late access touches no other bytes.

use crate::endpoint::{Endpoint, Grant, Place, Reach, Region};
use crate::error::{Error, Result};
use net::bulk::Memory;
use shm::Segment;
use std::sync::Arc;
use wire::limits::BOUNCE_BUFFER_BYTES;

/// Bytes copied at a time: they stay in the cache between their two copies.
const PART: usize = 16 * 1024;

pub(crate) struct Slots {
    segment: Arc<Segment>,
    region: Region,
    grant: Grant,
    free: Vec<u32>,
}

impl Slots {
    pub(crate) fn new(endpoint: &mut Endpoint, count: u32, reach: Reach) -> Result<Slots> {
        let length = count as usize * BOUNCE_BUFFER_BYTES;
        let lost = |_| Error::Absent("no memory for transfers".to_owned());
        let segment = Arc::new(Segment::private(length).map_err(lost)?);
        Slots::over(endpoint, segment, reach)
    }

    /// Slots over memory that had slots before.
    pub(crate) fn over(
        endpoint: &mut Endpoint,
        segment: Arc<Segment>,
        reach: Reach,
    ) -> Result<Slots> {
        let length = segment.len();
        let count = u32::try_from(length / BOUNCE_BUFFER_BYTES).unwrap_or(0);
        let region = endpoint.register(Arc::clone(&segment), 0, length as u64, reach)?;
        let grant = endpoint.grant(region)?;
        Ok(Slots { segment, region, grant, free: (0..count).rev().collect() })
    }

    /// The memory, for `over`.
    pub(crate) fn memory(self) -> Arc<Segment> {
        self.segment
    }

    pub(crate) const fn grant(&self) -> Grant {
        self.grant
    }

    pub(crate) const fn region(&self) -> Region {
        self.region
    }

    pub(crate) fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    pub(crate) fn give_back(&mut self, slot: u32) {
        self.free.push(slot);
    }

    pub(crate) const fn offset(slot: u32) -> u64 {
        slot as u64 * BOUNCE_BUFFER_BYTES as u64
    }

    pub(crate) const fn place(&self, slot: u32) -> Place {
        Place { region: self.region, offset: Slots::offset(slot) }
    }

    /// Copies the bytes of a transfer into its slot.
    pub(crate) fn fill<M: Memory>(
        &self,
        slot: u32,
        from: &M,
        length: u32,
    ) -> wire::errno::Result<()> {
        let (segment, at) = from.region();
        copy(segment, at, &self.segment, Slots::offset(slot) as usize, length as usize)
    }

    /// Copies the bytes of a transfer out of its slot.
    pub(crate) fn empty<M: Memory>(
        &self,
        slot: u32,
        to: &M,
        length: u32,
    ) -> wire::errno::Result<()> {
        let (segment, at) = to.region();
        copy(&self.segment, Slots::offset(slot) as usize, segment, at, length as usize)
    }
}

/// Copies through a local buffer: neither side can be borrowed as a slice.
fn copy(
    from: &Segment,
    from_at: usize,
    to: &Segment,
    to_at: usize,
    length: usize,
) -> wire::errno::Result<()> {
    let mut buffer = [0; PART];
    let mut done = 0;
    while done < length {
        let count = (length - done).min(PART);
        let part = buffer.get_mut(..count).unwrap_or_default();
        from.copy_out(from_at + done, part)?;
        to.copy_in(to_at + done, part)?;
        done += count;
    }
    Ok(())
}
