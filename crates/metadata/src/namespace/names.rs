//! Names by inode numbers, for reports: a part of the entries for each request.

use std::collections::BTreeSet;

use wire::attributes::mode;
use wire::codec::Field;
use wire::names::{FoundName, NamePlace};
use wire::request::removed;
use wire::{Inode, Reply, Writer};

use crate::core::context::Context;
use crate::core::job::{Call, Step};
use crate::core::table::EntryKey;

/// Entries that one request looks at: some 0.2 ms of the worker.
const LOOKED_MAX: usize = 4096;
/// Most bytes of an answer: a slot less the reply's own head.
const BYTES_MAX: usize = wire::limits::SLOT_BYTES - 1024;

/// Answers with the names of directories and of `inodes` from `from` on, and with the place behind
/// what was looked at. Names that a transaction is about to change are as they are now.
pub(crate) fn find_names(
    cx: &mut Context,
    call: &Call<'_>,
    from: EntryKey,
    inodes: &[u8],
) -> Step<()> {
    let asked: BTreeSet<Inode> = removed(inodes).collect();
    let mut encoded = vec![0; BYTES_MAX];
    let mut writer = Writer::new(&mut encoded);
    let mut next = NamePlace::END;
    // Its bytes are written when it is known.
    next.put(&mut writer);
    for (looked, (&(parent, hash, collision), entry)) in
        cx.state.entries.iter_from(from).enumerate()
    {
        if looked == LOOKED_MAX || writer.space_left() < FoundName::BYTES_MAX {
            next = NamePlace { parent, hash: hash.0, collision };
            break;
        }
        let (inode, mode, name) = (entry.inode, entry.mode & mode::TYPE, &*entry.name);
        if mode == mode::DIRECTORY || asked.contains(&inode) {
            FoundName { parent, inode, mode, name }.put(&mut writer);
        }
    }
    let length = writer.len();
    next.put(&mut Writer::new(&mut encoded));
    let bytes = encoded.get(..length).unwrap_or_default();
    cx.io.reply(call.ticket, &Reply::Bytes { bytes });
    Ok(())
}
