//! Several components of a path by one message: what a shard of another host said of them, until the
//! walk comes by.
//!
//! It is as if each had been looked up on its own, at one moment within the call. Nothing is kept here
//! from one call to the next: another host may rename a directory or change its mode at any time. What
//! it has to tell this host of before is a lease (`leases`), which comes with the same message.

use wire::attributes::ATTRIBUTES_BYTES;
use wire::codec::Reader;
use wire::errno::{Errno, Result};
use wire::limits::WALK_NAMES_MAX;
use wire::request::walk;
use wire::{Attributes, Credentials, Inode, Reply, Request, ShardIndex};

use crate::Client;
use crate::path::Way;
use crate::request::To;
use crate::walk::{Look, Sight};

/// What is known of the components that come next.
pub(crate) struct Ahead {
    chain: [Attributes; WALK_NAMES_MAX + 1],
    count: usize,
    used: usize,
    is_absent: bool,
}

impl Ahead {
    fn of(absent: u8, bytes: &[u8]) -> Result<Ahead> {
        let (mut chain, mut count) = ([Attributes::default(); WALK_NAMES_MAX + 1], 0usize);
        let mut rest = bytes.chunks_exact(ATTRIBUTES_BYTES);
        for (place, bytes) in chain.iter_mut().zip(rest.by_ref()) {
            *place = Attributes::decode(&mut Reader::new(bytes)).map_err(|_| Errno::EIO)?;
            count = count.saturating_add(1);
        }
        let is_whole = count.saturating_mul(ATTRIBUTES_BYTES) == bytes.len();
        let ahead = Ahead { chain, count, used: 0, is_absent: absent != 0 };
        if is_whole { Ok(ahead) } else { Err(Errno::EIO) }
    }

    /// What is known of the next component, once.
    pub(crate) fn next(&mut self, to: &mut Attributes) -> Option<Sight> {
        let known = self.chain.get(..self.count).unwrap_or(&[]).get(self.used);
        self.used = self.used.saturating_add(1);
        match known {
            Some(attributes) => {
                *to = *attributes;
                Some(Sight::Found)
            }
            None => core::mem::take(&mut self.is_absent).then_some(Sight::Absent),
        }
    }
}

impl Client {
    /// Puts the attributes of `directory`, where a walk begins on another host, into `to`, and
    /// perhaps finds what follows. True if they are leased: only those are so that a walk needs.
    ///
    /// # Errors
    /// `ESTALE` if it is gone, `EIO`.
    pub(crate) fn begin_far(
        &self,
        directory: Inode,
        look: Look,
        who: &Credentials,
        way: &Way,
        ahead: &mut Option<Ahead>,
        to: &mut Attributes,
    ) -> Result<bool> {
        if self.leased(directory, to) {
            return Ok(true);
        }
        let (names, _) = way.names(way.place(), look != Look::Index);
        let shard = directory.shard();
        match self.walk_far(shard, (directory, walk::DIRECTORY, names), who, ahead, to)? {
            Some(Sight::Found) => Ok(false),
            _ => Err(Errno::EIO),
        }
    }

    /// What the first of `least` names or more is in `directory`, if it is to be asked for on another
    /// host.
    ///
    /// # Errors
    /// `EIO`.
    pub(crate) fn look_far(
        &self,
        directory: Inode,
        shard: ShardIndex,
        (names, count, least): (&[u8], usize, usize),
        who: &Credentials,
        ahead: &mut Option<Ahead>,
        to: &mut Attributes,
    ) -> Result<Option<Sight>> {
        if count < least || self.service_of(shard).is_some() {
            return Ok(None);
        }
        self.walk_far(shard, (directory, walk::ENTRY, names), who, ahead, to)
    }

    fn walk_far(
        &self,
        shard: ShardIndex,
        (directory, from, names): (Inode, u8, &[u8]),
        who: &Credentials,
        ahead: &mut Option<Ahead>,
        to: &mut Attributes,
    ) -> Result<Option<Sight>> {
        let request = Request::Walk { directory, from, names };
        let mut known = self.call(To::Shard(shard), &request, who)?.with(|reply| match reply {
            Reply::Walked { absent, chain, .. } => Ahead::of(absent, chain),
            _ => Err(Errno::EIO),
        })?;
        let first = known.next(to);
        *ahead = Some(known);
        Ok(first)
    }
}
