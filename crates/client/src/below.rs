//! What the writer of a backing directory asks shards and tells them (`wire::below`), for a process of
//! the
//! instance's owner.

use core::ops::Range;
use placement::locate::entry_shard;
use placement::map::worker_of_shard;
use wire::codec::{Field as _, Reader};
use wire::errno::{Errno, Result};
use wire::hash::NameHash;
use wire::reply::Piece;
use wire::{Attributes, DaemonIndex, Inode, Reply, Request, ShardIndex};

use crate::Client;
use crate::layout::File;
use crate::request::{To, own_credentials};

impl Client {
    /// Which service has a shard: its daemon, and the worker there.
    ///
    /// # Errors
    /// `EIO` if this process has no instance.
    pub fn service_with(&self, shard: ShardIndex) -> Result<(DaemonIndex, usize)> {
        let home = self.home()?;
        Ok((home.map.owner(shard), worker_of_shard(shard, home.workers())))
    }

    /// The shard that has the entries of a name in a directory.
    #[must_use]
    pub fn shard_of_name(directory: &Attributes, name: &[u8]) -> ShardIndex {
        entry_shard(directory, NameHash::of(directory.inode, name))
    }

    /// Asks a shard something that it answers with bytes, which `with` sees.
    ///
    /// # Errors
    /// What the shard refuses with, and what `with` says.
    pub fn ask_of_below<R>(
        &self,
        shard: ShardIndex,
        request: &Request<'_>,
        with: impl FnOnce(&[u8]) -> Result<R>,
    ) -> Result<R> {
        let answer = self.call(To::Shard(shard), request, &own_credentials())?;
        answer.with(|reply| match reply {
            Reply::Bytes { bytes } => with(bytes),
            _ => Err(Errno::EIO),
        })
    }

    /// Tells a shard something.
    ///
    /// # Errors
    /// What the shard refuses with.
    pub fn tell_of_below(&self, shard: ShardIndex, request: &Request<'_>) -> Result<()> {
        self.call_done(To::Shard(shard), request, &own_credentials())
    }

    /// Calls `with` for each target that may hold bytes of a file.
    ///
    /// # Errors
    /// The first that `with` returns.
    pub fn each_target_of_below(
        &self,
        file: &Attributes,
        with: &mut dyn FnMut(DaemonIndex) -> Result<()>,
    ) -> Result<()> {
        self.each_target(&File::of(file), 0, u64::MAX, with)
    }

    /// `Request::BeginSaving`: calls `each` with the ranges that a target says.
    ///
    /// # Errors
    /// What the target refuses with.
    pub fn begin_saving(
        &self,
        target: DaemonIndex,
        request: &Request<'_>,
        each: &mut dyn FnMut(Range<u64>),
    ) -> Result<()> {
        self.call(To::Target(target), request, &own_credentials())?.with(|reply| {
            let Reply::Pieces { pieces } = reply else { return Err(Errno::EIO) };
            let mut reader = Reader::new(pieces);
            while !reader.rest().is_empty() {
                let piece = Piece::take(&mut reader).map_err(|_| Errno::EIO)?;
                each(piece.start..piece.start.saturating_add(piece.length()));
            }
            Ok(())
        })
    }

    /// `Request::EndSaving`.
    ///
    /// # Errors
    /// `EAGAIN` if the target knows nothing of it; what else it refuses with.
    pub fn end_saving(
        &self,
        target: DaemonIndex,
        inode: Inode,
        (number, end): (u64, u64),
    ) -> Result<()> {
        let request = Request::EndSaving { inode, number, end };
        self.call_done(To::Target(target), &request, &own_credentials())
    }

    /// The bytes that a symbolic link leads to, and their number.
    ///
    /// # Errors
    /// `EINVAL` if it is none; `ESTALE` if it is gone.
    pub fn link_target_of(&self, link: Inode, target: &mut [u8]) -> Result<usize> {
        let link = self.attributes_of(link)?;
        self.read_link_of(&link, target, &own_credentials())
    }
}
