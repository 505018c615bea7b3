//! Attributes: reporting and changing them, and the space of the instance (`statfs`).

use client::{At, Follow, Time, Times};
use fuse::abi::change as bit;
use fuse::reply;
use fuse::reply::Space;
use fuse::request::Change;
use std::time::Duration;
use wire::Attributes;
use wire::attributes::mode;
use wire::codec::Writer;
use wire::credentials::Credentials;
use wire::errno::{Errno, Result};
use wire::limits::NAME_BYTES_MAX;

use crate::kernel_cache::watches::VALID;
use crate::ops::entries::stale;
use crate::ops::lookup::is_notified_late;
use crate::ops::request::{Request, Scratch, within};
use crate::ops::{entries, lookup};
use crate::users::callers;

/// The attributes of the node, through an open file if there is one.
fn attributes(
    request: &Request<'_>,
    handle: Option<u64>,
    scratch: &mut Scratch,
) -> Result<Attributes> {
    let client = request.server.client;
    match handle {
        Some(handle) => client.fstat(request.opened(handle)?),
        None => {
            let at = At::itself(request.node());
            within(client.stat(at, Follow::Never, &request.caller(), &mut scratch.path)?)
        }
    }
}

pub(crate) fn get_attributes(
    request: &Request<'_>,
    handle: Option<u64>,
    scratch: &mut Scratch,
    to: &mut Writer<'_>,
) -> Result<()> {
    if request.server.client.is_remote(request.node().shard()) {
        let (attributes, valid) = lookup::remote_attributes(request, request.node(), None)?;
        reply::attributes(to, &entries::shown(request, &attributes), valid);
        return Ok(());
    }
    // If the name belongs to another file by now, the kernel looks it up again.
    let is_watched = lookup::watch_attributes(request, request.node());
    let attributes = attributes(request, handle, scratch).map_err(stale)?;
    let may_stay = is_watched && !is_notified_late(&attributes);
    let valid = if may_stay { VALID } else { Duration::ZERO };
    reply::attributes(to, &entries::shown(request, &attributes), valid);
    Ok(())
}

pub(crate) fn set_attributes(
    request: &Request<'_>,
    change: &Change,
    scratch: &mut Scratch,
    to: &mut Writer<'_>,
) -> Result<()> {
    let (client, caller, at) =
        (request.server.client, request.caller(), At::itself(request.node()));
    let handle = (change.valid & bit::HANDLE != 0).then_some(change.handle);
    let has = |bits: u32| change.valid & bits != 0;
    // Before the group changes, which decides about it.
    if has(bit::KILL_SUIDGID) && !has(bit::MODE) {
        kill_set_id(request, scratch)?;
    }
    if has(bit::SIZE) {
        match handle {
            Some(handle) => client.ftruncate(request.opened(handle)?, change.size)?,
            None => within(client.truncate(at, change.size, &caller, &mut scratch.path)?)?,
        }
    }
    if has(bit::UID | bit::GID) {
        let owners = &request.server.owners;
        let known = |id: Option<u32>| id.ok_or(Errno::EINVAL);
        let user = has(bit::UID).then(|| known(owners.users.known(change.uid))).transpose()?;
        let group = has(bit::GID).then(|| known(owners.groups.known(change.gid))).transpose()?;
        callers::as_owner(request, callers::GIVES_AWAY, |caller| {
            within(client.chown(at, (user, group), Follow::Never, caller, &mut scratch.path)?)
        })?;
    }
    if has(bit::MODE) {
        let mode = settable_mode(request, change.mode, scratch)?;
        callers::as_owner(request, callers::OWNS_ALL, |caller| {
            within(client.chmod(at, mode, Follow::Never, caller, &mut scratch.path)?)
        })?;
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
    callers::as_owner(request, callers::OWNS_ALL, |caller| {
        within(client.set_times(at, times, Follow::Never, caller, &mut scratch.path)?)
    })?;
    get_attributes(request, handle, scratch, to)
}

/// The mode that the caller may set: without the set-group-id bit where it is in no such group. The
/// kernel compared the group that it remembers.
fn settable_mode(request: &Request<'_>, bits: u32, scratch: &mut Scratch) -> Result<u32> {
    if bits & mode::SET_GID == 0 || request.is_of_root() {
        return Ok(bits);
    }
    let file = attributes(request, None, scratch)?;
    let may = callers::may_set_gid_bit(request, file.gid);
    Ok(if may { bits } else { bits & !mode::SET_GID })
}

/// Clears the set-id bits that a write by a user other than root clears, also in files of others.
fn kill_set_id(request: &Request<'_>, scratch: &mut Scratch) -> Result<()> {
    let attributes = attributes(request, None, scratch)?;
    let keep_cache = |gid| callers::may_keep_set_gid(request, gid);
    let Some(mode) = client::without_set_id(&attributes, keep_cache) else { return Ok(()) };
    let at = At::itself(request.node());
    let path = &mut scratch.path;
    let kernel = Credentials::checked(0, 0);
    within(request.server.client.chmod(at, mode, Follow::Never, &kernel, path)?)
}

pub(crate) fn space(
    request: &Request<'_>,
    scratch: &mut Scratch,
    to: &mut Writer<'_>,
) -> Result<()> {
    let (client, at) = (request.server.client, At::itself(request.node()));
    let file =
        client.stat(at, Follow::Never, &request.caller(), &mut scratch.path).and_then(within);
    // A deleted file belongs to no account.
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
