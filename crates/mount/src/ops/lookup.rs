//! Looking names and attributes up for a kernel that may cache them, and files held open between a
//! lookup and the request that follows (`kernel_cache::lookup_cache`).

use client::{At, Client, Follow, PathBuffer, RemoteLookup};
use fuse::reply::{Entry, Validity};
use std::time::Duration;
use wire::attributes::spread;
use wire::errno::{Errno, Result};
use wire::watch::Watch;
use wire::{Attributes, Inode, Layout, ShardIndex};

use crate::kernel_cache::watches::VALID;
use crate::ops::entries::stale;
use crate::ops::request::{Request, within};
use crate::ops::{entries, records};

/// Maximum number of lookups of a name whose file is gone each time.
const LOOKUPS_MAX: u32 = 64;

/// True for directories whose changes on other hosts are reported late: wide ones.
pub(crate) fn is_notified_late(of: &Attributes) -> bool {
    of.is_directory() && spread::wide_below(of.layout.spread) != 0
}

/// The reply to a lookup of a name, including how long it may be cached.
///
/// # Errors
/// As `stat`; a missing name is not an error if the kernel may cache that.
pub(crate) fn look_up(request: &Request<'_>, name: &[u8], path: &mut PathBuffer) -> Result<Entry> {
    for _ in 0..LOOKUPS_MAX {
        if let Some(shard) = remote_shard(request, name) {
            match lookup_remote(request, name, shard, path) {
                Err(Errno::ESTALE) => continue,
                // The directory has been spread further since its layout was noted.
                Err(Errno::EREMCHG) => {
                    request.server.layouts.forget(request.node());
                    continue;
                }
                said => return said,
            }
        }
        let is_watched = watch_name(request, name);
        let entry = if is_watched { VALID } else { Duration::ZERO };
        let found =
            request.server.client.stat(request.child(name), Follow::Never, &request.caller(), path);
        let found = match found.and_then(within) {
            Err(Errno::ENOENT) if is_watched => {
                let validity = Validity { entry, ..Validity::default() };
                return Ok(Entry { validity, ..Entry::default() });
            }
            found => found?,
        };
        request.server.layouts.note(&found);
        let looked = visible_attributes(request, &found, path).and_then(|(now, attributes)| {
            // The shard keeps a file that is watched if it is replaced.
            records::note_write_through(request, request.node(), &now);
            let may_be_remembered = is_watched && !attributes.is_zero();
            if may_be_remembered {
                Ok(())
            } else {
                request.server.hold_lookup(found.inode).map_err(stale)
            }?;
            Ok(entries::entry(request, &now, Validity { entry, attributes }))
        });
        // Otherwise the name belongs to another file by now, or to none.
        if looked != Err(Errno::ESTALE) {
            return looked;
        }
    }
    Err(Errno::ESTALE)
}

/// The attributes of a file that was found, and how long the kernel may cache them.
///
/// # Errors
/// `ESTALE` if it is gone.
fn visible_attributes(
    request: &Request<'_>,
    found: &Attributes,
    path: &mut PathBuffer,
) -> Result<(Attributes, Duration)> {
    let client = request.server.client;
    if client.is_remote(found.inode.shard()) {
        return remote_attributes(request, found.inode, None);
    }
    if is_notified_late(found) || !watch_attributes(request, found.inode) {
        return Ok((*found, Duration::ZERO));
    }
    let now = client.stat(At::itself(found.inode), Follow::Never, &request.caller(), path);
    Ok((now.and_then(within).map_err(stale)?, VALID))
}

/// The same for an inode of another host. `first`: the reply of its shard to a lookup just now.
///
/// # Errors
/// As `visible_attributes`.
pub(crate) fn remote_attributes(
    request: &Request<'_>,
    inode: Inode,
    first: Option<RemoteLookup>,
) -> Result<(Attributes, Duration)> {
    request.tracker.begin_lookup();
    let client = request.server.client;
    let is_noted = request.server.watches.watch_remote(client, Watch::Attributes(inode));
    let (found, stays) = client.remote_attributes(inode, first)?;
    request.server.layouts.note(&found);
    Ok((found, if is_noted && stays { VALID } else { Duration::ZERO }))
}

/// Looks a name up at a shard of another host.
///
/// # Errors
/// `ESTALE` if its file is gone by now.
fn lookup_remote(
    request: &Request<'_>,
    name: &[u8],
    shard: ShardIndex,
    path: &mut PathBuffer,
) -> Result<Entry> {
    request.tracker.begin_lookup();
    let client = request.server.client;
    let seen = client.query_lookup(request.node(), name, shard)?;
    let entry = if seen.name_stays { VALID } else { Duration::ZERO };
    if seen.inode.is_none() {
        let validity = Validity { entry, ..Validity::default() };
        return match seen.name_stays {
            true => Ok(Entry { validity, ..Entry::default() }),
            false => Err(Errno::ENOENT),
        };
    }
    let (found, attributes) = if client.is_remote(seen.inode.shard()) {
        remote_attributes(request, seen.inode, Some(seen).filter(|seen| seen.attributes.is_some()))?
    } else {
        let found = client.stat(At::itself(seen.inode), Follow::Never, &request.caller(), path);
        visible_attributes(request, &found.and_then(within).map_err(stale)?, path)?
    };
    records::note_write_through(request, request.node(), &found);
    Ok(entries::entry(request, &found, Validity { entry, attributes }))
}

/// The shard of a name, if it is on another host, and the kernel checks its callers.
fn remote_shard(request: &Request<'_>, name: &[u8]) -> Option<ShardIndex> {
    let (client, parent) = (request.server.client, request.node());
    if client.has_one_host() || request.server.owners.are_checked_here() {
        return None;
    }
    let known = client.known_layout(parent).or_else(|| request.server.layouts.get(parent));
    let layout = match known {
        Some(layout) => layout,
        None if !client.is_remote(parent.shard()) => return None,
        None => remote_attributes(request, parent, None).ok()?.0.layout,
    };
    let (_, shard) = Client::watch_of_name(parent, &layout, name);
    client.is_remote(shard).then_some(shard)
}

/// Watches a name at a shard of this host, before it is looked up. True if the kernel may cache
/// it.
pub(crate) fn watch_name(request: &Request<'_>, name: &[u8]) -> bool {
    watch_name_in(request, request.node(), name)
}

pub(crate) fn watch_name_in(request: &Request<'_>, parent: Inode, name: &[u8]) -> bool {
    let client = request.server.client;
    let known = client.known_layout(parent).or_else(|| request.server.layouts.get(parent));
    // The service that the name may go to would not know of the watch.
    known.is_some_and(|layout| {
        spread::is_final(layout.spread) && register_watch(request, parent, &layout, name)
    })
}

/// Watches the name that a rename gives to an entry, with which the kernel moves what it remembers of the
/// old one. A directory is not spread before that is forgotten.
pub(crate) fn watch_moved(request: &Request<'_>, to: &At<'_>) {
    let client = request.server.client;
    let known = client.known_layout(to.base).or_else(|| request.server.layouts.get(to.base));
    if let Some(layout) = known {
        let _ = register_watch(request, to.base, &layout, to.path);
    }
}

fn register_watch(request: &Request<'_>, parent: Inode, layout: &Layout, name: &[u8]) -> bool {
    // A kernel that remembers a name shows it to root, too.
    if request.server.owners.are_checked_here() {
        return false;
    }
    let (watch, shard) = Client::watch_of_name(parent, layout, name);
    request.tracker.begin_lookup();
    request.server.watches.watch(request.server.client, watch, shard)
}

/// Watches attributes before they are looked up. True if the kernel may cache them.
pub(crate) fn watch_attributes(request: &Request<'_>, inode: Inode) -> bool {
    note_watch(request, inode) && request.server.client.has_sole_writer(inode)
}

/// The same, if only this mount writes to the file, which the caller checks afterwards.
pub(crate) fn note_watch(request: &Request<'_>, inode: Inode) -> bool {
    request.tracker.begin_lookup();
    let (client, watch) = (request.server.client, Watch::Attributes(inode));
    request.server.watches.watch(client, watch, inode.shard())
}
