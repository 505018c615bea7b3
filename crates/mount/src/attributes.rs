//! Attributes: showing them, changing them, and the space of the instance.

use client::{At, Follow, Time, Times};
use fuse::abi::change as bit;
use fuse::reply::{self, Entry, Space, Validity};
use fuse::request::Change;
use std::time::Duration;
use wire::codec::Writer;
use wire::errno::{Errno, Result};
use wire::limits::NAME_BYTES_MAX;
use wire::{Attributes, Inode};

use crate::answer::{Request, within};
use crate::names::is_told_late;
use crate::serve::Scratch;
use crate::watches::VALID;

/// Size of transfers that programs are told to prefer.
const PREFERRED_BYTES: u32 = 1 << 20;

/// The kernel's encoding of a device number in 32 bits, from that of `stat`.
fn device_of(attributes: &Attributes) -> u32 {
    let device = u64::from(attributes.device);
    let (major, minor) = (libc::major(device), libc::minor(device));
    minor & 0xff | major << 8 | (minor & !0xff) << 12
}

/// Tells files of one number apart. An instance gives no number twice, but who kept a handle may find
/// another instance at the place: there a file of that number was born at another time. The kernel knows
/// the root without being told, by 0.
fn generation_of(file: &Attributes) -> u64 {
    match file.inode {
        Inode::ROOT => 0,
        _ => u64::from(wire::hash::mix(file.born.cast_unsigned(), 7) as u32),
    }
}

/// What the kernel is told of a node that is gone.
pub(crate) fn stale(errno: Errno) -> Errno {
    if errno == Errno::ENOENT { Errno::ESTALE } else { errno }
}

impl Request<'_> {
    /// Attributes as the kernel takes them.
    pub(crate) fn shown(&self, of: &Attributes) -> reply::Attributes {
        reply::Attributes {
            inode: of.inode.0,
            size: of.size,
            blocks: self.server.client.usage(of).div_ceil(512),
            times: [of.accessed, of.modified, of.changed],
            mode: of.mode,
            links: of.links,
            uid: self.server.owners.users.inside(of.uid),
            gid: self.server.owners.groups.inside(of.gid),
            device: device_of(of),
            block_size: PREFERRED_BYTES,
        }
    }

    /// What a look-up says of a file.
    pub(crate) fn entry(&self, of: &Attributes, validity: Validity) -> Entry {
        let (node, generation) = (self.server.node_of(of.inode), generation_of(of));
        Entry { node, generation, validity, attributes: self.shown(of) }
    }

    /// The attributes of the node, by an open file of it if there is one.
    fn attributes(&self, handle: Option<u64>, scratch: &mut Scratch) -> Result<Attributes> {
        let client = self.server.client;
        match handle {
            Some(handle) => client.fstat(self.opened(handle)?),
            None => {
                let at = At::itself(self.node());
                within(client.stat(at, Follow::Never, &self.who(), &mut scratch.path)?)
            }
        }
    }

    pub(crate) fn get_attributes(
        &self,
        handle: Option<u64>,
        scratch: &mut Scratch,
        to: &mut Writer<'_>,
    ) -> Result<()> {
        if self.server.client.is_far(self.node().shard()) {
            let (attributes, valid) = self.look_at_far(self.node(), None)?;
            reply::attributes(to, &self.shown(&attributes), valid);
            return Ok(());
        }
        // By a name that is another's by now: the kernel looks once more.
        let is_watched = self.watch_attributes(self.node());
        let attributes = self.attributes(handle, scratch).map_err(stale)?;
        let may_stay = is_watched && !is_told_late(&attributes);
        let valid = if may_stay { VALID } else { Duration::ZERO };
        reply::attributes(to, &self.shown(&attributes), valid);
        Ok(())
    }

    pub(crate) fn set_attributes(
        &self,
        change: &Change,
        scratch: &mut Scratch,
        to: &mut Writer<'_>,
    ) -> Result<()> {
        let (client, who, at) = (self.server.client, self.who(), At::itself(self.node()));
        let handle = (change.valid & bit::HANDLE != 0).then_some(change.handle);
        let has = |bits: u32| change.valid & bits != 0;
        // Judged by the group that it still has.
        if has(bit::KILL_SUIDGID) && !has(bit::MODE) {
            self.kill_set_id(scratch)?;
        }
        if has(bit::SIZE) {
            match handle {
                Some(handle) => client.ftruncate(self.opened(handle)?, change.size)?,
                None => within(client.truncate(at, change.size, &who, &mut scratch.path)?)?,
            }
        }
        if has(bit::UID | bit::GID) {
            let owners = &self.server.owners;
            let user = has(bit::UID).then(|| owners.users.outside(change.uid));
            let owner = (user, has(bit::GID).then(|| owners.groups.outside(change.gid)));
            within(client.chown(at, owner, Follow::Never, &who, &mut scratch.path)?)?;
        }
        if has(bit::MODE) {
            within(client.chmod(at, change.mode, Follow::Never, &who, &mut scratch.path)?)?;
        }
        let time = |set: u32, now: u32, place: usize| match change.times.get(place) {
            _ if has(now) => Time::Now,
            Some(time) if has(set) => Time::At(
                time.seconds
                    .cast_signed()
                    .saturating_mul(1_000_000_000)
                    .saturating_add(i64::from(time.nanos)),
            ),
            _ => Time::Omit,
        };
        let times = Times {
            accessed: time(bit::ATIME, bit::ATIME_NOW, 0),
            modified: time(bit::MTIME, bit::MTIME_NOW, 1),
        };
        within(client.set_times(at, times, Follow::Never, &who, &mut scratch.path)?)?;
        self.get_attributes(handle, scratch, to)
    }

    /// Takes away the bits that a write by others than root takes away.
    pub(crate) fn kill_set_id(&self, scratch: &mut Scratch) -> Result<()> {
        let attributes = self.attributes(None, scratch)?;
        let keeps = |gid| self.may_keep_set_gid(gid);
        let Some(mode) = client::without_set_id(&attributes, keeps) else { return Ok(()) };
        let at = At::itself(self.node());
        let path = &mut scratch.path;
        within(self.server.client.chmod(at, mode, Follow::Never, &self.who(), path)?)
    }

    pub(crate) fn space(&self, scratch: &mut Scratch, to: &mut Writer<'_>) -> Result<()> {
        let (client, at) = (self.server.client, At::itself(self.node()));
        let file = client.stat(at, Follow::Never, &self.who(), &mut scratch.path).and_then(within);
        // One that is gone counts for nobody.
        let space = file.map_or_else(|_| client.space(), |file| client.space_of(&file))?;
        let blocks = |bytes: u64| bytes / client::Space::BLOCK_BYTES;
        Space {
            blocks: blocks(space.bytes_total),
            free: blocks(space.bytes_free),
            available: blocks(space.bytes_free),
            files: space.files_total,
            files_free: space.files_free,
            block_size: client::Space::BLOCK_BYTES as u32,
            name_bytes: NAME_BYTES_MAX as u32,
        }
        .write(to);
        Ok(())
    }
}
