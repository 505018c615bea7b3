//! Contents of inline files, sizes, and operations on targets.
//!
//! States of an inode's contents: inline -> moving out -> on targets -> truncating -> on targets.
//! An inode that moves or truncates is in `Context::busy`, and requests about its contents wait.
//! The operations that targets have yet to perform are in the log (`state::Pending`).
//!
//! Invariants
//! 1. An inline file's contents are as long as its size.

use wire::attributes::{flag, mode};
use wire::errno::{Errno, Result};
use wire::limits::FILE_BYTES_MAX;
use wire::reply::{TRUNCATE_EPOCH_OF_HOST, TRUNCATE_EPOCH_UNKNOWN};
use wire::{Attributes, Inode, Layout, Reply};

use crate::backing::locations::truncate_backing;
use crate::core::context::Context;
use crate::core::effect::{Effect, HostMarks, IndexOp};
use crate::core::job::{Call, Step, Stop, Wait};
use crate::core::record::Record;
use crate::core::state::{Pending, reply_kind};
use crate::files::Files;
use crate::files::births::note_emptied;
use crate::files::target_ops::send_to_targets;

/// Kind of a `Pending`: moving contents out failed; targets drop what was written, the file stays
/// inline.
pub(crate) const UNDO: u8 = 4;
/// No host, in the place of the requesting one.
pub(crate) const NOBODY: u16 = u16::MAX;
/// Most bytes of contents in one reply.
const READ_BYTES_MAX: usize = wire::limits::INLINE_BYTES_MAX;

/// As `quiet_attributes`, of a regular file.
fn quiet_file(cx: &Context, inode: Inode) -> Step<Attributes> {
    let attributes = cx.own_attributes(inode)?;
    if attributes.is_directory() {
        return Err(Stop::Refused(Errno::EISDIR));
    }
    if !attributes.is_regular() {
        return Err(Stop::Refused(Errno::EINVAL));
    }
    if cx.busy.contains_key(&inode) {
        return Err(Stop::Wait(Wait::Data(inode)));
    }
    Ok(attributes)
}

pub(crate) fn read_inline(
    cx: &mut Context,
    call: &Call<'_>,
    inode: Inode,
    offset: u64,
    length: u32,
) -> Step<()> {
    let attributes = quiet_file(cx, inode)?;
    if !attributes.is_inline() {
        cx.io.reply(call.ticket, &Reply::Moved { attributes });
        return Ok(());
    }
    let Some(node) = cx.state.inodes.get(inode) else {
        return Err(Stop::Refused(Errno::ESTALE));
    };
    let start = usize::try_from(offset).unwrap_or(usize::MAX).min(node.contents.len());
    let length = (length as usize).min(READ_BYTES_MAX).min(node.contents.len() - start);
    let bytes = node.contents.get(start..start + length).unwrap_or_default();
    cx.io.reply(call.ticket, &Reply::Contents { size: attributes.size, bytes });
    Ok(())
}

/// The contents of an inline file, truncated or zero-filled to `size`.
fn copy_contents(cx: &Context, inode: Inode, size: u64, to: &mut Vec<u8>) {
    to.clear();
    if let Some(node) = cx.state.inodes.get(inode) {
        to.extend_from_slice(&node.contents);
    }
    to.resize(usize::try_from(size).unwrap_or(0), 0);
}

/// Attributes after a write.
fn modified(cx: &Context, call: &Call<'_>, old: &Attributes) -> Attributes {
    let mut new = *old;
    new.changed = cx.stamp(old.changed);
    new.modified = new.changed;
    let caller = &call.header.caller;
    if !caller.is_privileged() {
        new.mode = without_set_id(old.mode, caller.is_in_group(old.gid));
    }
    new
}

fn finish_move(cx: &mut Context, inode: Inode) {
    if let Some(node) = cx.state.inodes.get(inode) {
        let mut attributes = node.attributes;
        attributes.layout.flags &= !flag::INLINE;
        cx.put(&Record::PutContents { attributes, contents: &[] });
    }
}

impl Files {
    pub(crate) fn write_inline(
        &mut self,
        call: &Call<'_>,
        inode: Inode,
        offset: u64,
        bytes: &[u8],
    ) -> Step<()> {
        let old = quiet_file(&self.cx, inode)?;
        if !old.is_inline() {
            self.cx.io.reply(call.ticket, &Reply::Moved { attributes: old });
            return Ok(());
        }
        let is_append = offset == u64::MAX;
        let start = if is_append { old.size } else { offset };
        let end = start.checked_add(bytes.len() as u64).ok_or(Errno::EFBIG)?;
        if end > self.cx.config.inline_bytes as u64 {
            return Err(Stop::Refused(Errno::EFBIG));
        }
        let mut new = modified(&self.cx, call, &old);
        new.size = old.size.max(if bytes.is_empty() { 0 } else { end });
        self.grants.draw_inline(&mut self.cx, call, old.owner(), new.size - old.size)?;
        let mut contents = self.cx.io.buffer();
        copy_contents(&self.cx, inode, new.size, &mut contents);
        if let Some(overlap) = contents.get_mut(start as usize..end as usize) {
            overlap.copy_from_slice(bytes);
        }
        self.cx.put(&Record::PutContents { attributes: new, contents: &contents });
        self.cx.io.recycle(contents);
        match is_append {
            true => self.cx.done(call, reply_kind::PLACED, start, new.size),
            false => self.cx.done(call, reply_kind::ATTRIBUTES, inode.0, 0),
        }
        Ok(())
    }

    pub(crate) fn move_out(&mut self, call: &Call<'_>, inode: Inode) -> Step<()> {
        if let Some(result) = call.data {
            result?;
        }
        let attributes = quiet_file(&self.cx, inode)?;
        if attributes.is_inline() {
            self.start_move(&attributes)?;
        }
        let attributes = self.cx.own_attributes(inode)?;
        self.cx.io.reply(call.ticket, &Reply::Attributes { attributes });
        Ok(())
    }

    /// Moves contents to the targets; completes at once if there are none.
    fn start_move(&mut self, attributes: &Attributes) -> Step<()> {
        let newest_loss = self.cx.state.births.newest_loss();
        note_emptied(&mut self.cx, attributes.inode, newest_loss);
        if attributes.size == 0 {
            let mut attributes = *attributes;
            attributes.layout.flags &= !flag::INLINE;
            self.cx.put(&Record::PutContents { attributes, contents: &[] });
            return Ok(());
        }
        let layout = layout_of_targets(attributes);
        let pending =
            Pending { inode: attributes.inode, layout, kind: Pending::WRITE_ALL, size: 0 };
        let token = self.put_pending(&pending, NOBODY);
        Err(Stop::Wait(Wait::OwnData(token)))
    }

    /// A client reports the size that it wrote. For this host only the open inode knows what is
    /// unreported: since the client read it, others may have reported it, truncated it, and written
    /// anew. `Done` says that the open inode was read; a client that gets another answer updates
    /// the open inode itself.
    pub(crate) fn extend(&mut self, call: &Call<'_>, inode: Inode, said: u64) -> Step<()> {
        if let Some(result) = call.data {
            result?;
        }
        if self.sizes.is_before_truncate(call.header.host, inode) {
            self.cx.io.reply(call.ticket, &Reply::Done {});
            return Ok(());
        }
        let old = quiet_file(&self.cx, inode)?;
        self.cx.check_vnode(inode)?;
        if call.vnode_value == Some(0) {
            self.cx.io.reply(call.ticket, &Reply::Done {});
            return Ok(());
        }
        let size = call.vnode_value.unwrap_or(said);
        if size > FILE_BYTES_MAX {
            return Err(Stop::Refused(Errno::EFBIG));
        }
        let mut new = modified(&self.cx, call, &old);
        if old.is_inline() {
            let size = old.size.max(size);
            self.set_size(call, &old, &mut new, size, false)?;
        } else {
            new.size = old.size.max(size);
            self.cx.put(&Record::PutAttributes { attributes: new });
        }
        if let Some(end) = call.vnode_value {
            // After the index change: a client that finds nothing unreported finds the size in the
            // index.
            self.cx.io.push(Effect::SizeReported { inode, end });
            self.cx.io.reply(call.ticket, &Reply::Done {});
            return Ok(());
        }
        let attributes = self.cx.own_attributes(inode)?;
        self.cx.io.reply(call.ticket, &Reply::Attributes { attributes });
        Ok(())
    }

    pub(crate) fn append(&mut self, call: &Call<'_>, inode: Inode, length: u64) -> Step<()> {
        if let Some(result) = call.data {
            result?;
        }
        quiet_file(&self.cx, inode)?;
        self.settle_size(call, inode)?;
        let mut old = quiet_file(&self.cx, inode)?;
        self.cx.check_vnode(inode)?;
        if old.is_inline() {
            self.start_move(&old)?;
            old = self.cx.own_attributes(inode)?;
        }
        let end = old.size.checked_add(length).filter(|&end| end <= FILE_BYTES_MAX);
        let mut new = modified(&self.cx, call, &old);
        new.size = end.ok_or(Errno::EFBIG)?;
        self.cx.put(&Record::PutAttributes { attributes: new });
        // The epoch of this very moment: the range is valid as long as the epoch does not change.
        let unknown = if old.is_posix() { TRUNCATE_EPOCH_OF_HOST } else { TRUNCATE_EPOCH_UNKNOWN };
        self.cx.done(call, reply_kind::RANGE, old.size, call.vnode_value.unwrap_or(unknown));
        Ok(())
    }

    /// Puts `new` with another size. Waits for targets when they must truncate, or when inline
    /// contents would grow too long. `truncates`: there may be more data than the size says.
    pub(crate) fn set_size(
        &mut self,
        call: &Call<'_>,
        old: &Attributes,
        new: &mut Attributes,
        size: u64,
        truncates: bool,
    ) -> Step<()> {
        let inode = old.inode;
        if self.cx.busy.contains_key(&inode) {
            return Err(Stop::Wait(Wait::Data(inode)));
        }
        new.size = size;
        // Only a truncation by targets waits for the hosts that must count it.
        let is_remote_truncate = truncates && self.cx.is_remote_truncate(old, call.header.host);
        if old.is_inline() && size <= self.cx.config.inline_bytes as u64 && !is_remote_truncate {
            self.grants.draw_inline(
                &mut self.cx,
                call,
                old.owner(),
                size.saturating_sub(old.size),
            )?;
            let mut contents = self.cx.io.buffer();
            copy_contents(&self.cx, inode, size, &mut contents);
            self.cx.put(&Record::PutContents { attributes: *new, contents: &contents });
            self.cx.io.recycle(contents);
            if size < old.size {
                self.cx.io.push(Effect::TruncateInline { inode, size });
                self.cx.truncate_now.push(inode);
            }
            return Ok(());
        }
        if old.is_inline() {
            self.start_move(old)?;
            new.layout.flags &= !flag::INLINE;
        }
        self.cx.put(&Record::PutAttributes { attributes: *new });
        truncate_backing(&mut self.cx, inode, size);
        // There may be unreported writes: the caller's host says so, and an emptied file is always
        // truncated.
        let truncates = truncates || size < old.size || (size == 0 && !old.is_inline());
        if !truncates || call.data.is_some() && size == old.size {
            return Ok(());
        }
        let pending = Pending { inode, layout: new.layout, kind: Pending::TRUNCATE, size };
        let token = self.put_pending(&pending, call.header.host);
        Err(Stop::Wait(Wait::OwnData(token)))
    }

    /// Starts an operation on targets, logged until they have performed it. `by`: the requesting
    /// host.
    pub(crate) fn put_pending(&mut self, pending: &Pending, by: u16) -> u64 {
        let token = self.cx.new_sequence();
        let &Pending { inode, layout, kind, size } = pending;
        self.cx.put(&Record::PutPending { token, inode, layout, kind, size });
        self.request_on_targets(token, by);
        token
    }

    /// Sends the pending operation `token` to the targets; a truncation only after all hosts that
    /// have the file open have counted it.
    pub(crate) fn request_on_targets(&mut self, token: u64, by: u16) {
        let Some(&Pending { inode, kind, size, .. }) = self.cx.state.pending.get(&token) else {
            return;
        };
        self.cx.busy.insert(inode, token);
        // A client that sees the shorter size may write at once, and the targets must not truncate
        // that.
        self.cx.io.index(IndexOp::ForgetInode(inode));
        if kind == Pending::TRUNCATE {
            self.cx.io.push(Effect::BeginTruncate { inode, size });
            let births = &self.cx.state.births;
            let newest_loss = births.newest_loss();
            if size == 0 && newest_loss > births.loss_before(inode) {
                // As of now: what another host writes meanwhile may be lost with a later one.
                self.cx.emptying.insert(token, newest_loss);
            }
        }
        if kind != Pending::TRUNCATE
            || self.sizes.begin_remote_truncate(&mut self.cx, inode, token, size, by)
        {
            send_to_targets(&mut self.cx, token);
        }
    }

    /// Takes the result of the targets.
    pub(crate) fn data_done(
        &mut self,
        token: u64,
        result: Result<()>,
        host_view: &mut dyn HostMarks,
    ) {
        let Some(&pending) = self.cx.state.pending.get(&token) else { return };
        self.cx.put(&Record::DeletePending { token });
        let inode = pending.inode;
        self.cx.busy.remove(&inode);
        if let (Some(loss), Ok(())) = (self.cx.emptying.remove(&token), result) {
            note_emptied(&mut self.cx, inode, loss);
        }
        if pending.kind == Pending::TRUNCATE {
            // Before the index has the inode again, and before waiting jobs read the open inode.
            host_view.end_truncate(inode);
            self.sizes.end_remote_truncate(&mut self.cx, inode, token);
        }
        if let Some(attributes) = self.cx.state.inodes.get(inode).map(|node| node.attributes) {
            self.cx.put_index(&attributes);
        }
        match (pending.kind, result) {
            (Pending::WRITE_ALL, Ok(())) => finish_move(&mut self.cx, inode),
            (Pending::WRITE_ALL, Err(_)) => {
                self.put_pending(&Pending { kind: UNDO, size: 0, ..pending }, NOBODY);
            }
            // Until they know it, targets count the file for another account.
            (Pending::OWN, Err(_)) => {
                self.put_pending(&pending, NOBODY);
            }
            _ => {}
        }
        for (&id, job) in &mut self.cx.jobs {
            match job.wait {
                Wait::OwnData(own) if own == token => {
                    job.data = Some(result);
                    self.cx.woken.insert(id);
                }
                Wait::Data(other) if other == inode => {
                    self.cx.woken.insert(id);
                }
                _ => {}
            }
        }
        if self.cx.state.orphans.contains(&inode) {
            self.cx.unlinked.push(inode);
        }
    }
}

/// The layout of the file once its contents are on targets.
fn layout_of_targets(attributes: &Attributes) -> Layout {
    Layout { flags: attributes.layout.flags & !flag::INLINE, ..attributes.layout }
}

/// A mode after a change of owner or contents: without set-user-id, and without set-group-id unless
/// that bit has another meaning (no group execution) and the caller is in the group.
pub(crate) fn without_set_id(mode: u32, is_in_group: bool) -> u32 {
    let group = if mode & 0o010 != 0 || !is_in_group { mode::SET_GID } else { 0 };
    mode & !(mode::SET_UID | group)
}
