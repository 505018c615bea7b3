//! Messages of other services, taken in.

use wire::{Attributes, Header, Inode, Reader, ShardIndex};

use crate::coding::Put;
use crate::effect::Opens;
use crate::keys::Key;
use crate::leases::Believer;
use crate::live::{Ask, Fact, Kind, Step, Stop};
use crate::peer::Message;
use crate::service::Service;
use crate::state::encode_xattrs;
use crate::table::RemoteTally;

/// Nobody asks: a message carries no credentials, its sender has checked them.
const NOBODY: Header = Header {
    shard: 0,
    daemon: 0,
    epoch: 0,
    origin: u64::MAX,
    sequence: 0,
    host: 0,
    mount: 0,
    who: wire::Credentials::ROOT,
};

impl Service {
    /// A message came. One that can not be answered yet is parked as requests are.
    pub(crate) fn take_message(&mut self, bytes: &[u8], hands: &dyn Opens) {
        if let Err(Stop::Wait(wait)) = self.run_message(bytes, &[], hands) {
            self.park(Kind::Message { bytes: bytes.to_vec() }, wait);
        }
    }

    /// Takes a message in; one that is malformed is dropped.
    pub(crate) fn run_message(
        &mut self,
        bytes: &[u8],
        facts: &[Fact],
        hands: &dyn Opens,
    ) -> Step<()> {
        let Ok(message) = Message::decode(&mut Reader::new(bytes)) else { return Ok(()) };
        match message {
            Message::AskAttributes { from, token, inode, copy } => {
                self.check_key(&Key::Inode(inode))?;
                let node = self.state.inodes.get(inode);
                let found = node.map(|node| node.attributes);
                if copy != 0 && found.is_some() {
                    self.give_copy(inode, ShardIndex(from))?;
                    self.note_part(inode, ShardIndex(from));
                }
                let message = Message::AreAttributes {
                    token,
                    found: u8::from(found.is_some()),
                    attributes: found.unwrap_or_default(),
                };
                self.io.send(ShardIndex(from), &message);
            }
            Message::AskEntry { from, .. } => {
                let ask = Ask { ticket: 0, header: &NOBODY, facts, data: None, row: None, hands };
                self.asked_entry(&ask, ShardIndex(from), &message)?;
            }
            Message::AreAttributes { token, found, attributes } => {
                self.answered_attributes(token, (found != 0).then_some(attributes));
            }
            Message::IsEntry { token, inode, mode } => self.answered_entry(token, inode, mode),
            Message::Prepare { host, mount, .. } => {
                // The mount by which it came is not told.
                let header = &Header { host, mount, ..NOBODY };
                let ask = Ask { ticket: 0, header, facts, data: None, row: None, hands };
                self.prepare(&ask, &message)?;
            }
            Message::Vote { group, sequence, errno } => self.voted(group, sequence, errno),
            Message::Commit { from, group, sequence } => {
                self.commit(ShardIndex(from), (group, sequence));
            }
            Message::Abort { group, sequence } => self.aborted((group, sequence)),
            Message::Committed { group, sequence } => self.committed(group, sequence),
            Message::Inquire { from, group, sequence } => {
                self.inquired(ShardIndex(from), group, sequence);
            }
            Message::Tally { directory, .. } => {
                self.take_tally(&message);
                let ask = Ask { ticket: 0, header: &NOBODY, facts, data: None, row: None, hands };
                self.tell_mounts_of(&ask, directory);
            }
            Message::TallyKnown { directory, version } => self.tally_known(directory, version),
            Message::AskParts { from, token, directory } => {
                self.check_key(&Key::Inode(directory))?;
                self.tell_parts(ShardIndex(from), token, directory);
            }
            Message::AreParts { token, groups } => self.answered_parts(token, groups),
            Message::AskAcls { from, token, inode } => {
                self.check_key(&Key::Inode(inode))?;
                self.tell_acls(ShardIndex(from), token, inode);
            }
            Message::AreAcls { token, lists } => self.answered_acls(token, lists),
            _ => self.take_by_subject(&message, hands),
        }
        Ok(())
    }

    fn take_word_of_leases(&mut self, message: &Message<'_>) {
        match *message {
            Message::Renew { holder, pact, sent } => self.renew(holder, pact, sent),
            Message::Recalled { holder, number } => {
                self.recalled(|one| one == Believer::Holder(holder), number);
            }
            Message::Forget { from: owner, number, directory } => {
                self.forget_directory(directory);
                let from = self.live.address.0;
                self.io.send(ShardIndex(owner), &Message::Forgotten { from, number });
            }
            Message::Forgotten { from, number } => {
                let is_it = |one| matches!(one, Believer::Service(by, _) if by.0 == from);
                self.recalled(is_it, number);
            }
            _ => {}
        }
    }

    fn take_by_subject(&mut self, message: &Message<'_>, hands: &dyn Opens) {
        match message {
            Message::Renew { .. }
            | Message::Recalled { .. }
            | Message::Forget { .. }
            | Message::Forgotten { .. } => self.take_word_of_leases(message),
            Message::Glimpsed { .. } | Message::CutBegun { .. } | Message::CutEnded { .. } => {
                self.take_size(message);
            }
            Message::Tell { .. } | Message::Carried { .. } => {
                self.take_word_of_mounts(hands, message);
            }
            Message::Pages { .. } => self.take_pages(hands, message),
            Message::NoEntry { .. } | Message::AskPlace { .. } | Message::IsPlace { .. } => {
                self.take_word_of_below(message);
            }
            Message::Waits { .. }
            | Message::AskWaits { .. }
            | Message::AreWaiting { .. }
            | Message::RefuseWait { .. } => self.take_word_of_waits(message),
            _ => self.take_quota(message, hands),
        }
    }

    fn asked_entry(&mut self, ask: &Ask<'_>, to: ShardIndex, message: &Message<'_>) -> Step<()> {
        let Message::AskEntry { token, parent, name, .. } = *message else { return Ok(()) };
        match self.import(ask, parent) {
            Ok(()) => {}
            Err(Stop::Refused(errno)) => {
                self.io.send(to, &Message::NoEntry { token, errno });
                return Ok(());
            }
            Err(stop) => return Err(stop),
        }
        self.check_key(&Key::Entry(parent, name.to_vec()))?;
        let (inode, mode) = self.state.entries.get(parent, name).unwrap_or_default();
        self.io.send(to, &Message::IsEntry { token, inode, mode });
        Ok(())
    }

    fn tell_parts(&mut self, to: ShardIndex, token: u64, directory: Inode) {
        let mut groups = Vec::new();
        for group in self.own_parts(directory) {
            group.append_to(&mut groups);
        }
        self.io.send(to, &Message::AreParts { token, groups: &groups });
    }

    fn tell_acls(&mut self, to: ShardIndex, token: u64, inode: Inode) {
        let mut lists = Vec::new();
        encode_xattrs(Some(&self.own_acls(inode)), &mut lists);
        self.io.send(to, &Message::AreAcls { token, lists: &lists });
    }

    /// Another service says what a directory of this one has there.
    fn take_tally(&mut self, message: &Message<'_>) {
        let Message::Tally { from, group, directory, version, entries, directories, modified } =
            *message
        else {
            return;
        };
        if let Some(node) = self.state.inodes.get(directory) {
            let known = node.tallies.iter().find(|tally| tally.group == group);
            if known.is_none_or(|known| known.version < version) {
                // The directory's own clock goes on even if the sender's is behind.
                let changed = node.attributes.changed;
                let modified = match modified {
                    // Nothing was made or removed: there are entries that lie below (`below`).
                    0 => 0,
                    _ => modified.cast_signed().max(changed.saturating_add(1)),
                };
                let tally = RemoteTally { group, version, entries, directories, modified };
                self.put(&tally.record(directory));
            }
        }
        self.io.send(ShardIndex(from), &Message::TallyKnown { directory, version });
    }
}

/// Attributes are sent whole: the largest message besides transactions.
const _: () = assert!(size_of::<Attributes>() <= 128);
