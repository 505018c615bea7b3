//! Dispatch of messages from other services.

use wire::{Attributes, Header, Inode, Reader, ShardIndex};

use crate::backing::import::take_backing_reply;
use crate::core::coding::Put;
use crate::core::context::Context;
use crate::core::effect::HostMarks;
use crate::core::job::{Call, Fact, Step, Stop, UNANSWERED};
use crate::core::keys::Key;
use crate::core::peer_messages::Message;
use crate::core::state::encode_xattrs;
use crate::core::table::RemoteTally;
use crate::directories::leases::Grantee;
use crate::directories::remote_copies::note_entry_service;
use crate::files::Files;
use crate::kernel_cache::KernelCaches;
use crate::pools::rates::TransferReport;
use crate::pools::registry::take_pool;
use crate::service::Service;

/// Header for messages: they carry no credentials, because their sender has checked them. Also for
/// requests that a service makes of itself.
pub(crate) const NOBODY: Header = Header {
    shard: 0,
    daemon: 0,
    epoch: 0,
    client_id: u64::MAX,
    sequence: 0,
    host: 0,
    mount: 0,
    job: wire::JobWord::NONE,
    caller: wire::Credentials::ROOT,
};

impl Service {
    /// Runs a message; a malformed one is dropped.
    pub(crate) fn run_message(
        &mut self,
        bytes: &[u8],
        facts: &[Fact],
        host_view: &dyn HostMarks,
    ) -> Step<()> {
        let Ok(message) = Message::decode(&mut Reader::new(bytes)) else { return Ok(()) };
        let files = &mut self.files;
        match message {
            Message::AskAttributes { from, token, inode, copy } => {
                self.answer_attributes_query(ShardIndex(from), token, inode, copy)?;
            }
            Message::AskEntry { from, .. } => {
                let call = Call::of_message(&NOBODY, facts, host_view);
                self.answer_entry_query(&call, ShardIndex(from), &message)?;
            }
            Message::Prepare { host, mount, .. } => {
                // The requesting mount is not notified.
                let header = &Header { host, mount, ..NOBODY };
                let call = Call::of_message(header, facts, host_view);
                self.transactions.prepare(files, &call, &message)?;
            }
            Message::Tally { from, group, directory, version, entries, directories, modified } => {
                let modified = modified.cast_signed();
                let tally = RemoteTally { group, version, entries, directories, modified };
                let call = Call::of_message(&NOBODY, facts, host_view);
                self.take_tally(&call, ShardIndex(from), directory, tally);
            }
            Message::IsTally {
                from,
                group,
                token,
                directory,
                version,
                entries,
                directories,
                modified,
            } => {
                let modified = modified.cast_signed();
                let tally = RemoteTally { group, version, entries, directories, modified };
                let call = Call::of_message(&NOBODY, facts, host_view);
                if version != 0 {
                    self.take_tally(&call, ShardIndex(from), directory, tally);
                }
                self.files.directories.answered_tally(&mut self.files.cx, token);
            }
            Message::AskEntryServices { from, token, directory } => {
                files.cx.check_key(&Key::Inode(directory))?;
                self.answer_entry_services_query(ShardIndex(from), token, directory);
            }
            Message::AskTally { from, token, directory } => {
                // Names that come or go: each is in one of two tallies.
                files.cx.check_key(&Key::Entries(directory))?;
                answer_tally_query(&mut files.cx, ShardIndex(from), token, directory);
            }
            Message::AskAcls { from, token, inode } => {
                files.cx.check_key(&Key::Inode(inode))?;
                self.answer_acls_query(ShardIndex(from), token, inode);
            }
            Message::SpreadFurther { directory } => {
                let call = Call::of_message(&NOBODY, facts, host_view);
                let call = Call { ticket: UNANSWERED, ..call };
                self.transactions.widen(files, &call, directory)?;
            }
            _ => self.take_by_subject(&message, host_view),
        }
        Ok(())
    }

    fn take_directory_message(&mut self, message: &Message<'_>) {
        let Files { cx, directories, .. } = &mut self.files;
        match *message {
            Message::AreAttributes { token, found, attributes } => {
                directories.answered_attributes(cx, token, (found != 0).then_some(attributes));
            }
            Message::IsEntry { token, inode, mode } => {
                directories.answered_entry(cx, token, inode, mode);
            }
            Message::TallyKnown { directory, version } => {
                directories.tally_known(cx, directory, version);
            }
            Message::AreEntryServices { token, groups } => {
                directories.answered_entry_services(cx, token, groups);
            }
            Message::AreAcls { token, lists } => directories.answered_acls(cx, token, lists),
            _ => {}
        }
    }

    fn take_transaction_message(&mut self, message: &Message<'_>) {
        let Service { files, transactions, .. } = self;
        match *message {
            Message::Vote { group, sequence, errno } => {
                transactions.voted(files, group, sequence, errno);
            }
            Message::Commit { from, group, sequence } => {
                transactions.commit(files, ShardIndex(from), (group, sequence));
            }
            Message::Abort { group, sequence } => {
                transactions.aborted(&mut files.cx, (group, sequence));
            }
            Message::Committed { group, sequence } => {
                transactions.committed(&mut files.cx, group, sequence);
            }
            Message::Inquire { from, group, sequence } => {
                transactions.inquired(&mut files.cx, ShardIndex(from), group, sequence);
            }
            _ => {}
        }
    }

    fn take_lease_message(&mut self, message: &Message<'_>) {
        match *message {
            Message::Renew { holder, term, sent } => {
                self.files.leases.renew(&mut self.files.cx, holder, term, sent)
            }
            Message::Revoked { holder, number } => {
                self.files.leases.acknowledged_revocation(
                    &mut self.files.cx,
                    |one| one == Grantee::Holder(holder),
                    number,
                );
            }
            Message::Forget { from: owner, number, directory } => {
                self.files.directories.forget_directory(&mut self.files.cx, directory);
                let from = self.files.cx.address.0;
                self.files.cx.io.send(ShardIndex(owner), &Message::Forgotten { from, number });
            }
            Message::Forgotten { from, number } => {
                let is_it = |one| matches!(one, Grantee::Service(by, _) if by.0 == from);
                self.files.leases.acknowledged_revocation(&mut self.files.cx, is_it, number);
            }
            _ => {}
        }
    }

    fn take_by_subject(&mut self, message: &Message<'_>, host_view: &dyn HostMarks) {
        let Files { cx, caches, locks, grants, pools, .. } = &mut self.files;
        match message {
            Message::AreAttributes { .. }
            | Message::IsEntry { .. }
            | Message::TallyKnown { .. }
            | Message::AreEntryServices { .. }
            | Message::AreAcls { .. } => self.take_directory_message(message),
            Message::Vote { .. }
            | Message::Commit { .. }
            | Message::Abort { .. }
            | Message::Committed { .. }
            | Message::Inquire { .. } => self.take_transaction_message(message),
            Message::Renew { .. }
            | Message::Revoked { .. }
            | Message::Forget { .. }
            | Message::Forgotten { .. } => self.take_lease_message(message),
            Message::Glimpsed { .. }
            | Message::TruncateBegun { .. }
            | Message::TruncateEnded { .. } => self.files.take_size(message),
            // Mounts of the first owner's host may live, and no word of theirs comes here: the sender
            // waits for as long as they may remember something.
            Message::Notice { .. } | Message::FileUse { .. } if cx.unknown_opens.is_some() => {}
            &Message::Notice { from, number, mount, notice } => {
                let KernelCaches { local, remote, .. } = caches;
                remote.relay(cx, local, host_view, ShardIndex(from), (number, mount), notice);
            }
            &Message::NoticeDone { number } => {
                caches.remote.carried(cx, number);
                caches.file_use_carried(cx, number);
            }
            Message::FileUse { .. } => caches.take_file_use(cx, host_view, message),
            Message::NoEntry { .. } | Message::AskLocation { .. } | Message::IsLocation { .. } => {
                take_backing_reply(&mut self.files, message);
            }
            Message::Waits { .. }
            | Message::AskWaits { .. }
            | Message::AreWaiting { .. }
            | Message::RefuseWait { .. } => self.deadlocks.take_wait_message(cx, locks, message),
            Message::Limit { .. }
            | Message::Drawn { .. }
            | Message::Collect { .. }
            | Message::AskUsage { .. } => {
                grants.take_quota(cx, &mut caches.grace, message, host_view);
            }
            &Message::Pool { id, .. } => {
                take_pool(cx, message);
                pools.renew(cx, id);
            }
            &Message::Transfers { host, daemons, number, millis, entries } => {
                pools
                    .take_transfers(cx, &TransferReport { host, daemons, number, millis, entries });
            }
            &Message::PoolKnown { group, number, id } => {
                self.registry.pool_known(cx, group, number, id);
            }
            _ => self.coordinator.take_for_coordinator(cx, message),
        }
    }

    fn answer_attributes_query(
        &mut self,
        to: ShardIndex,
        token: u64,
        inode: Inode,
        copy: u8,
    ) -> Step<()> {
        let Files { cx, leases, .. } = &mut self.files;
        cx.check_key(&Key::Inode(inode))?;
        let found = cx.state.inodes.get(inode).map(|node| node.attributes);
        if copy != 0 && found.is_some() {
            leases.grant_copy(cx, inode, to)?;
            note_entry_service(cx, inode, to);
        }
        let attributes = found.unwrap_or_default();
        let answer = Message::AreAttributes { token, found: u8::from(found.is_some()), attributes };
        cx.io.send(to, &answer);
        Ok(())
    }

    fn answer_entry_query(
        &mut self,
        call: &Call<'_>,
        to: ShardIndex,
        message: &Message<'_>,
    ) -> Step<()> {
        let Message::AskEntry { token, parent, name, .. } = *message else { return Ok(()) };
        match self.backing.import(&mut self.files, call, parent) {
            Ok(()) => {}
            Err(Stop::Refused(errno)) => {
                self.files.cx.io.send(to, &Message::NoEntry { token, errno });
                return Ok(());
            }
            Err(stop) => return Err(stop),
        }
        self.files.cx.check_key(&Key::Entries(parent))?;
        self.files.cx.check_key(&Key::Entry(parent, name.to_vec()))?;
        if self.files.cx.is_elsewhere(parent, name) {
            let errno = wire::Errno::EREMCHG;
            self.files.cx.io.send(to, &Message::NoEntry { token, errno });
            return Ok(());
        }
        let (inode, mode) = self.files.cx.state.entries.get(parent, name).unwrap_or_default();
        self.files.cx.io.send(to, &Message::IsEntry { token, inode, mode });
        Ok(())
    }

    fn answer_entry_services_query(&mut self, to: ShardIndex, token: u64, directory: Inode) {
        let mut groups = Vec::new();
        for group in self.files.cx.state.own_entry_services(directory) {
            group.append_to(&mut groups);
        }
        self.files.cx.io.send(to, &Message::AreEntryServices { token, groups: &groups });
    }

    fn answer_acls_query(&mut self, to: ShardIndex, token: u64, inode: Inode) {
        let mut lists = Vec::new();
        encode_xattrs(Some(&self.files.cx.state.own_acls(inode)), &mut lists);
        self.files.cx.io.send(to, &Message::AreAcls { token, lists: &lists });
    }

    /// Takes the tally of another service for a directory of this one, and notifies the mounts that
    /// watch the directory if it is new.
    fn take_tally(
        &mut self,
        call: &Call<'_>,
        from: ShardIndex,
        directory: Inode,
        tally: RemoteTally,
    ) {
        let Files { cx, caches, .. } = &mut self.files;
        let version = tally.version;
        if let Some(node) = cx.state.inodes.get(directory) {
            let known = node.tallies.iter().find(|known| known.group == tally.group);
            if known.is_none_or(|known| known.version < version) {
                // The directory's own clock advances even if the sender's is behind.
                let changed = node.attributes.changed;
                let modified = match tally.modified {
                    // Nothing was created or removed: the entries were imported (`backing`).
                    0 => 0,
                    modified => modified.max(changed.saturating_add(1)),
                };
                cx.put(&RemoteTally { modified, ..tally }.record(directory));
                caches.notify_mounts_of(cx, call, directory);
            }
        }
        cx.io.send(from, &Message::TallyKnown { directory, version });
    }
}

/// Answers with the tally of this service, which may have changed since the owner was told of it.
fn answer_tally_query(cx: &mut Context, to: ShardIndex, token: u64, directory: Inode) {
    let (from, group) = (cx.address.0, cx.config.own_group().0);
    let tally = cx.state.tallies.get(&directory).copied().unwrap_or_default();
    let answer = Message::IsTally {
        from,
        group,
        token,
        directory,
        version: tally.version,
        entries: tally.entries,
        directories: tally.directories,
        modified: tally.modified.cast_unsigned(),
    };
    cx.io.send(to, &answer);
}

/// Attributes are sent whole: they make the largest message besides transactions.
const _: () = assert!(size_of::<Attributes>() <= 128);
