//! Records that operations leave for later ones: access times, and files whose close waits for
//! writeback.

use client::{At, Follow, PathBuffer};
use rustix::fs::OFlags;
use std::time::{SystemTime, UNIX_EPOCH};
use wire::attributes::{self, writeback};
use wire::{Attributes, Inode};

use crate::ops::request::{Request, within};

/// True if a read through an open file with these flags would change the access time.
pub(crate) fn is_read_late(of: &Attributes, flags: u32) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = i64::try_from(now.as_nanos()).unwrap_or(i64::MAX);
    flags & OFlags::NOATIME.bits() == 0 && attributes::is_read_late(of, now)
}

/// Notes a read of the node through an open file with these flags.
pub(crate) fn note_read(request: &Request<'_>, flags: u32) {
    if flags & OFlags::NOATIME.bits() != 0 {
        return;
    }
    let (server, inode) = (request.server, request.node());
    // A read does not fail because the access time cannot be recorded.
    let _ = server.client.note_read(inode, || server.access_times.may_query(inode));
}

/// A name in a directory was looked up.
pub(crate) fn note_write_through(request: &Request<'_>, directory: Inode, found: &Attributes) {
    if found.is_regular() {
        let is_write_through = is_write_through_dir(request, directory);
        request.server.write_through.note(found.inode, is_write_through);
    }
}

fn is_write_through_dir(request: &Request<'_>, directory: Inode) -> bool {
    let (client, layouts) = (request.server.client, &request.server.layouts);
    let known = client.known_layout(directory).or_else(|| layouts.get(directory));
    known.is_some_and(|layout| layout.writeback() == writeback::THROUGH)
}

/// Records renamed files: the kernel keeps their entries and may not look them up again soon.
pub(crate) fn note_renamed(
    request: &Request<'_>,
    names: [Option<At<'_>>; 2],
    path: &mut PathBuffer,
) {
    for at in names.into_iter().flatten() {
        let is_write_through = is_write_through_dir(request, at.base);
        if !is_write_through && request.server.write_through.is_empty() {
            continue;
        }
        let found = request.server.client.stat(at, Follow::Never, &request.caller(), path);
        if let Ok(found) = found.and_then(within) {
            note_write_through(request, at.base, &found);
        }
    }
}
