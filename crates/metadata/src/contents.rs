//! Contents of inline files, sizes, and what the targets are asked.
//!
//! States of an inode's contents: inline -> moving out -> on targets -> truncating -> on targets.
//! An inode that moves or truncates is in `live.busy`; what concerns its contents waits. What the
//! targets must do is in the log (`state::Pending`) until they have done it.
//!
//! Invariants
//! 1. An inline file's contents are as long as its size.

use wire::attributes::flag;
use wire::errno::{Errno, Result};
use wire::limits::FILE_BYTES_MAX;
use wire::reply::{CUTS_OF_HOST, CUTS_UNKNOWN};
use wire::{Attributes, Inode, Layout, Reply};

use crate::attributes::without_set_id;
use crate::effect::{DataOp, Effect, IndexOp, Opens};
use crate::live::{Ask, Step, Stop, Wait};
use crate::record::Record;
use crate::service::{Service, outcome};
use crate::state::Pending;

/// Kind of a `Pending`: contents could not be moved out; what was written goes, the file stays
/// inline.
pub(crate) const UNDO: u8 = 4;
/// As the host that asked for something: none.
pub(crate) const NOBODY: u16 = u16::MAX;
/// Bytes of contents in one reply.
const READ_BYTES_MAX: usize = wire::limits::INLINE_BYTES_MAX;

impl Service {
    /// The attributes of an inode whose contents do not wait for targets.
    pub(crate) fn quiet_attributes(&self, inode: Inode) -> Step<Attributes> {
        match self.live.busy.contains_key(&inode) {
            true => Err(Stop::Wait(Wait::Data(inode))),
            false => self.own_attributes(inode),
        }
    }

    /// As `quiet_attributes`, of a regular file.
    fn quiet_file(&self, inode: Inode) -> Step<Attributes> {
        let attributes = self.own_attributes(inode)?;
        if attributes.is_directory() {
            return Err(Stop::Refused(Errno::EISDIR));
        }
        if !attributes.is_regular() {
            return Err(Stop::Refused(Errno::EINVAL));
        }
        if self.live.busy.contains_key(&inode) {
            return Err(Stop::Wait(Wait::Data(inode)));
        }
        Ok(attributes)
    }

    pub(crate) fn read_inline(
        &mut self,
        ask: &Ask<'_>,
        inode: Inode,
        offset: u64,
        length: u32,
    ) -> Step<()> {
        let attributes = self.quiet_file(inode)?;
        if !attributes.is_inline() {
            self.io.reply(ask.ticket, &Reply::Moved { attributes });
            return Ok(());
        }
        let Some(node) = self.state.inodes.get(inode) else {
            return Err(Stop::Refused(Errno::ESTALE));
        };
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(node.contents.len());
        let length = (length as usize).min(READ_BYTES_MAX).min(node.contents.len() - start);
        let bytes = node.contents.get(start..start + length).unwrap_or_default();
        self.io.reply(ask.ticket, &Reply::Contents { size: attributes.size, bytes });
        Ok(())
    }

    pub(crate) fn write_inline(
        &mut self,
        ask: &Ask<'_>,
        inode: Inode,
        offset: u64,
        bytes: &[u8],
    ) -> Step<()> {
        let old = self.quiet_file(inode)?;
        if !old.is_inline() {
            self.io.reply(ask.ticket, &Reply::Moved { attributes: old });
            return Ok(());
        }
        let is_append = offset == u64::MAX;
        let start = if is_append { old.size } else { offset };
        let end = start.checked_add(bytes.len() as u64).ok_or(Errno::EFBIG)?;
        if end > self.config.inline_bytes as u64 {
            return Err(Stop::Refused(Errno::EFBIG));
        }
        let mut new = self.modified(ask, &old);
        new.size = old.size.max(if bytes.is_empty() { 0 } else { end });
        self.draw_inline(ask, old.owner(), new.size - old.size)?;
        let mut contents = self.io.buffer();
        self.copy_contents(inode, new.size, &mut contents);
        if let Some(room) = contents.get_mut(start as usize..end as usize) {
            room.copy_from_slice(bytes);
        }
        self.put(&Record::PutContents { attributes: new, contents: &contents });
        self.io.recycle(contents);
        match is_append {
            true => self.done(ask, outcome::PLACED, start, new.size),
            false => self.done(ask, outcome::ATTRIBUTES, inode.0, 0),
        }
        Ok(())
    }

    /// The contents of an inline file, cut or filled with zeros to `size`.
    fn copy_contents(&self, inode: Inode, size: u64, to: &mut Vec<u8>) {
        to.clear();
        if let Some(node) = self.state.inodes.get(inode) {
            to.extend_from_slice(&node.contents);
        }
        to.resize(usize::try_from(size).unwrap_or(0), 0);
    }

    /// Attributes after a write.
    fn modified(&self, ask: &Ask<'_>, old: &Attributes) -> Attributes {
        let mut new = *old;
        new.changed = self.stamp(old.changed);
        new.modified = new.changed;
        let who = &ask.header.who;
        if !who.is_privileged() {
            new.mode = without_set_id(old.mode, who.is_in_group(old.gid));
        }
        new
    }

    pub(crate) fn move_out(&mut self, ask: &Ask<'_>, inode: Inode) -> Step<()> {
        if let Some(result) = ask.data {
            result?;
        }
        let attributes = self.quiet_file(inode)?;
        if attributes.is_inline() {
            self.start_move(&attributes)?;
        }
        let attributes = self.own_attributes(inode)?;
        self.io.reply(ask.ticket, &Reply::Attributes { attributes });
        Ok(())
    }

    /// Moves contents to the targets; at once if there are none.
    fn start_move(&mut self, attributes: &Attributes) -> Step<()> {
        if attributes.size == 0 {
            let mut attributes = *attributes;
            attributes.layout.flags &= !flag::INLINE;
            self.put(&Record::PutContents { attributes, contents: &[] });
            return Ok(());
        }
        let layout = layout_of_targets(attributes);
        let pending =
            Pending { inode: attributes.inode, layout, kind: Pending::WRITE_ALL, size: 0 };
        let token = self.put_pending(&pending, NOBODY);
        Err(Stop::Wait(Wait::OwnData(token)))
    }

    /// A client says what it wrote. Of this host's only the row knows what still has to be told: since
    /// the client looked, others may have told it, cut it off, and written anew. `Done` says that the
    /// row was looked at; who is answered otherwise notes himself what he told.
    pub(crate) fn extend(&mut self, ask: &Ask<'_>, inode: Inode, said: u64) -> Step<()> {
        if let Some(result) = ask.data {
            result?;
        }
        if self.is_before_cut(ask.header.host, inode) {
            self.io.reply(ask.ticket, &Reply::Done {});
            return Ok(());
        }
        let old = self.quiet_file(inode)?;
        self.check_row(inode)?;
        if ask.row == Some(0) {
            self.io.reply(ask.ticket, &Reply::Done {});
            return Ok(());
        }
        let size = ask.row.unwrap_or(said);
        if size > FILE_BYTES_MAX {
            return Err(Stop::Refused(Errno::EFBIG));
        }
        let mut new = self.modified(ask, &old);
        if old.is_inline() {
            let size = old.size.max(size);
            self.resize(ask, &old, &mut new, size, false)?;
        } else {
            new.size = old.size.max(size);
            self.put(&Record::PutAttributes { attributes: new });
        }
        if let Some(end) = ask.row {
            // Behind the change of the index: who finds nothing untold finds the size there.
            self.io.push(Effect::Told { inode, end });
            self.io.reply(ask.ticket, &Reply::Done {});
            return Ok(());
        }
        let attributes = self.own_attributes(inode)?;
        self.io.reply(ask.ticket, &Reply::Attributes { attributes });
        Ok(())
    }

    pub(crate) fn append(&mut self, ask: &Ask<'_>, inode: Inode, length: u64) -> Step<()> {
        if let Some(result) = ask.data {
            result?;
        }
        self.quiet_file(inode)?;
        self.settle_size(ask, inode)?;
        let mut old = self.quiet_file(inode)?;
        self.check_row(inode)?;
        if old.is_inline() {
            self.start_move(&old)?;
            old = self.own_attributes(inode)?;
        }
        let end = old.size.checked_add(length).filter(|&end| end <= FILE_BYTES_MAX);
        let mut new = self.modified(ask, &old);
        new.size = end.ok_or(Errno::EFBIG)?;
        self.put(&Record::PutAttributes { attributes: new });
        // Of this very moment: the range is good for as long as the count is the same.
        let unknown = if old.is_posix() { CUTS_OF_HOST } else { CUTS_UNKNOWN };
        self.done(ask, outcome::RANGE, old.size, ask.row.unwrap_or(unknown));
        Ok(())
    }

    /// What the row says is old if the file was cut in this step: the effect is still to come.
    pub(crate) fn check_row(&self, inode: Inode) -> Step<()> {
        if self.live.cut_now.contains(&inode) {
            return Err(Stop::Wait(Wait::Time(self.live.now)));
        }
        Ok(())
    }

    /// Puts `new` with another size. Waits for targets when something must be cut off there, or
    /// when inline contents would grow too long. `cuts`: there may be more than the size says.
    pub(crate) fn resize(
        &mut self,
        ask: &Ask<'_>,
        old: &Attributes,
        new: &mut Attributes,
        size: u64,
        cuts: bool,
    ) -> Step<()> {
        let inode = old.inode;
        if self.live.busy.contains_key(&inode) {
            return Err(Stop::Wait(Wait::Data(inode)));
        }
        new.size = size;
        // Hosts that are to count the cut are waited for, which only those that targets cut are.
        let is_cut_far = cuts && self.is_cut_far(old, ask.header.host);
        if old.is_inline() && size <= self.config.inline_bytes as u64 && !is_cut_far {
            self.draw_inline(ask, old.owner(), size.saturating_sub(old.size))?;
            let mut contents = self.io.buffer();
            self.copy_contents(inode, size, &mut contents);
            self.put(&Record::PutContents { attributes: *new, contents: &contents });
            self.io.recycle(contents);
            if size < old.size {
                self.io.push(Effect::CutInline { inode, size });
                self.live.cut_now.push(inode);
            }
            return Ok(());
        }
        if old.is_inline() {
            self.start_move(old)?;
            new.layout.flags &= !flag::INLINE;
        }
        self.put(&Record::PutAttributes { attributes: *new });
        self.cut_below(inode, size);
        // Clients may have written what they did not tell yet: the caller's host says so, and an
        // emptied file is always cut.
        let cuts = cuts || size < old.size || (size == 0 && !old.is_inline());
        if !cuts || ask.data.is_some() && size == old.size {
            return Ok(());
        }
        let pending = Pending { inode, layout: new.layout, kind: Pending::TRUNCATE, size };
        let token = self.put_pending(&pending, ask.header.host);
        Err(Stop::Wait(Wait::OwnData(token)))
    }

    /// Asks the targets for something, noted in the log until they have done it. `by`: the host that
    /// asked for it.
    pub(crate) fn put_pending(&mut self, pending: &Pending, by: u16) -> u64 {
        let token = self.new_sequence();
        let &Pending { inode, layout, kind, size } = pending;
        self.put(&Record::PutPending { token, inode, layout, kind, size });
        self.ask_targets(token, by);
        token
    }

    /// Sends what is pending under `token` to the targets; a cut after all hosts that have the file open
    /// counted that.
    pub(crate) fn ask_targets(&mut self, token: u64, by: u16) {
        let Some(&Pending { inode, kind, size, .. }) = self.state.pending.get(&token) else {
            return;
        };
        self.live.busy.insert(inode, token);
        // Who finds it shorter may write at once, which the targets must not cut off then.
        self.io.index(IndexOp::ForgetInode(inode));
        if kind == Pending::TRUNCATE {
            self.io.push(Effect::BeginCut { inode, size });
        }
        if kind != Pending::TRUNCATE || self.begin_far_cut(inode, token, size, by) {
            self.send_to_targets(token);
        }
    }

    /// See `ask_targets`.
    pub(crate) fn send_to_targets(&mut self, token: u64) {
        let Some(&Pending { inode, layout, kind, size }) = self.state.pending.get(&token) else {
            return;
        };
        let op = match kind {
            Pending::WRITE_ALL => {
                let contents = self.state.inodes.get(inode).map(|node| node.contents.clone());
                DataOp::WriteAll { bytes: contents.unwrap_or_default() }
            }
            Pending::OWN => {
                let Some(node) = self.state.inodes.get(inode) else { return };
                let (owner, changed) = (node.attributes.owner(), node.attributes.changed);
                DataOp::Own { owner, changed, is_pinned: node.attributes.is_pinned() }
            }
            _ => DataOp::Truncate { size },
        };
        self.io.push(Effect::Data { token, inode, layout, op });
    }

    /// The targets answered.
    pub(crate) fn data_done(&mut self, token: u64, result: Result<()>, opens: &mut dyn Opens) {
        let Some(&pending) = self.state.pending.get(&token) else { return };
        self.put(&Record::DeletePending { token });
        let inode = pending.inode;
        self.live.busy.remove(&inode);
        if pending.kind == Pending::TRUNCATE {
            // Before the index has it again, and before what waited looks at the row.
            opens.end_cut(inode);
            self.end_far_cut(inode, token);
        }
        if let Some(attributes) = self.state.inodes.get(inode).map(|node| node.attributes) {
            self.put_index(&attributes);
        }
        match (pending.kind, result) {
            (Pending::WRITE_ALL, Ok(())) => self.finish_move(inode),
            (Pending::WRITE_ALL, Err(_)) => {
                self.put_pending(&Pending { kind: UNDO, size: 0, ..pending }, NOBODY);
            }
            // They would count it for another: until they know.
            (Pending::OWN, Err(_)) => {
                self.put_pending(&pending, NOBODY);
            }
            _ => {}
        }
        for (&id, job) in &mut self.live.jobs {
            match job.wait {
                Wait::OwnData(own) if own == token => {
                    job.data = Some(result);
                    self.live.woken.insert(id);
                }
                Wait::Data(other) if other == inode => {
                    self.live.woken.insert(id);
                }
                _ => {}
            }
        }
        if self.state.orphans.contains(&inode) {
            self.live.unlinked.push(inode);
        }
    }

    fn finish_move(&mut self, inode: Inode) {
        if let Some(node) = self.state.inodes.get(inode) {
            let mut attributes = node.attributes;
            attributes.layout.flags &= !flag::INLINE;
            self.put(&Record::PutContents { attributes, contents: &[] });
        }
    }
}

/// The layout as it will be when the contents are on targets.
fn layout_of_targets(attributes: &Attributes) -> Layout {
    Layout { flags: attributes.layout.flags & !flag::INLINE, ..attributes.layout }
}
