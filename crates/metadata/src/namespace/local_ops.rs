//! Local operations (`wire::local_op`): operations that a client of this host completed in shared
//! memory. They are applied between two steps, are not answered, and do not fail: an operation that
//! is refused here was never promised to a correct client, or was applied before a crash.
//!
//! The daemon lets clients log local operations only while `takes_local_ops` returns true.

use wire::attributes::{mode, spread};
use wire::id::LOCAL_OP_SEQUENCE_FIRST;
use wire::name::Name;
use wire::{Attributes, Inode, LocalOp, ShardIndex};

use crate::core::context::Context;
use crate::core::effect::{Effect, LoggedOp};
use crate::core::record::Record;
use crate::core::state::State;
use crate::files::Files;
use crate::files::new_inode::{flags_of_new, put_new};
use crate::files::open_files::drop_link;

/// Inode numbers that are granted to clients at a time.
const GRANT_COUNT: u64 = 8192;

impl State {
    /// The first inode number of `shard` that no local operation may have used.
    #[must_use]
    pub(crate) fn numbers_end(&self, shard: ShardIndex) -> u64 {
        self.grants.get(&shard.0).copied().unwrap_or(LOCAL_OP_SEQUENCE_FIRST)
    }
}

/// Whether clients go on with the rest of an earlier grant.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EarlierGrant {
    Stays,
    Ends,
}

pub(crate) fn grant_numbers(cx: &mut Context, shard: ShardIndex) {
    grant(cx, shard, EarlierGrant::Stays);
}

fn grant(cx: &mut Context, shard: ShardIndex, earlier: EarlierGrant) {
    let number_min = LOCAL_OP_SEQUENCE_FIRST + cx.state.births.number_min();
    let first = cx.state.numbers_end(shard).max(number_min);
    let end = first + GRANT_COUNT;
    cx.put(&Record::PutGrant { shard: shard.0, end });
    let is_anew = earlier == EarlierGrant::Ends;
    cx.io.push(Effect::GrantNumbers { shard, first, end, is_anew });
}

/// Units of file data have lost all their copies: files that are made from now on have higher numbers
/// (`files::births`).
pub(crate) fn note_loss(cx: &mut Context, loss: u64) {
    if loss <= cx.state.births.newest_loss() {
        return;
    }
    let given = cx.state.shards.values().map(|counters| counters.inode_next);
    let granted = cx.state.grants.values().map(|end| end.saturating_sub(LOCAL_OP_SEQUENCE_FIRST));
    let number = given.chain(granted).fold(cx.state.births.number_min(), u64::max);
    cx.put(&Record::PutBirth { number, loss });
    renew_grants(cx);
}

/// Clients use numbers of files that are younger than all losses that are known.
pub(crate) fn renew_grants(cx: &mut Context) {
    if cx.state.births.newest_loss() == 0 {
        return;
    }
    let shards: Vec<u16> = cx.state.grants.keys().copied().collect();
    for shard in shards {
        grant(cx, ShardIndex(shard), EarlierGrant::Ends);
    }
}

pub(crate) fn take_local_op(files: &mut Files, logged_op: &LoggedOp<'_>) {
    match logged_op.op {
        LocalOp::Create { parent, spread, ref attributes, name } => {
            created_by_local_op(files, parent, spread, attributes, name);
        }
        LocalOp::Unlink { parent, spread, inode, at, name } => {
            unlinked_by_local_op(files, (parent, spread), inode, at.cast_signed(), name);
        }
        LocalOp::Close { inode, .. } => closed_by_local_op(&mut files.cx, inode, logged_op.written),
    }
}

fn created_by_local_op(
    files: &mut Files,
    parent: Inode,
    spread: u8,
    attributes: &Attributes,
    name: &[u8],
) {
    let Ok(name) = Name::parse(name) else { return };
    let inode = attributes.inode;
    let granted = LOCAL_OP_SEQUENCE_FIRST..files.cx.state.numbers_end(inode.shard());
    let is_granted = granted.contains(&inode.sequence()) && files.cx.config.owns(inode.shard());
    let is_there = files.cx.state.entries.get(parent, name.bytes()).is_some()
        || files.cx.state.inodes.get(inode).is_some();
    let keeps_copies =
        files.cx.config.layout_copies(inode.copies()).is_some() || inode.copies() == 0;
    if !attributes.is_regular() || !is_granted || is_there || !keeps_copies {
        return;
    }
    let mut attributes = checked(&files.cx, attributes);
    if (attributes.project != 0 || files.cx.state.usage.has_projects())
        && let Some(known) = files.directories.known_directory(&files.cx, parent)
    {
        attributes.project = known.project;
    }
    put_new(&mut files.cx, &attributes, &[], 0, &[]);
    let kind = mode::REGULAR;
    files.cx.put(&Record::PutEntry { parent, name: name.bytes(), inode, mode: kind });
    let at = attributes.changed.min(files.cx.now);
    files.directories.change_tally_at(&mut files.cx, at, parent, spread, (1, 0));
}

/// Attributes as the client filled them in, within limits.
fn checked(cx: &Context, attributes: &Attributes) -> Attributes {
    let mut layout = attributes.layout;
    layout.stripe_log2 = cx.config.stripe_log2_of(layout.stripe_log2, layout.stripe_log2);
    layout.spread = spread::HOME;
    // Files of a pool are created by its service alone.
    layout.pool = 0;
    layout.copies = 0;
    layout.flags &= flags_of_new(&cx.config);
    let layout = cx.config.taken(layout);
    Attributes {
        parent: Inode::NONE,
        mode: attributes.mode & (mode::TYPE | mode::PERMISSIONS),
        links: 1,
        size: 0,
        device: 0,
        layout,
        extras: 0,
        ..*attributes
    }
}

fn unlinked_by_local_op(
    files: &mut Files,
    (parent, spread): (Inode, u8),
    inode: Inode,
    at: i64,
    name: &[u8],
) {
    let found = files.cx.state.entries.get(parent, name);
    let is_it =
        found.is_some_and(|(other, kind)| other == inode && kind & mode::TYPE != mode::DIRECTORY);
    if !is_it || !files.cx.config.owns(inode.shard()) {
        return;
    }
    files.cx.put(&Record::DeleteEntry { parent, name });
    // No later than now: no client dates a directory into the future.
    let at = at.min(files.cx.now);
    files.directories.change_tally_at(&mut files.cx, at, parent, spread, (-1, 0));
    drop_link(&mut files.cx, inode);
}

/// The file was closed with the unreported size `written`.
fn closed_by_local_op(cx: &mut Context, inode: Inode, written: u64) {
    let Some(node) = cx.state.inodes.get(inode) else { return };
    let old = node.attributes;
    if written == 0 || !old.is_regular() || old.is_inline() {
        return;
    }
    let mut attributes = old;
    attributes.size = old.size.max(written.min(wire::limits::FILE_BYTES_MAX));
    attributes.changed = cx.stamp(old.changed);
    attributes.modified = attributes.changed;
    cx.put(&Record::PutAttributes { attributes });
}
