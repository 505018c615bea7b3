//! Messages between services, and the actions of a transaction.
//!
//! A message may be lost, duplicated and reordered. A sender that needs an answer resends; a
//! receiver ignores a duplicate (`transaction` says why). Encoded like log records: one byte of
//! number, then the fields in order. `from` is a shard of the sender, where answers go; `group`
//! names the sender (daemon and worker); numbers never change their meaning.

use wire::{Attributes, Errno, Inode};

use crate::core::coding::numbered;

numbered! {
    /// A message between services.
    pub(crate) enum Message<'a> {
        /// Query for the attributes of `inode`. `copy` 1: it is a directory, and the sender caches
        /// them for a term, unless a `Forget` revokes the copy.
        0x01 AskAttributes { from: u16, token: u64, inode: Inode, copy: u8 }
        /// Query for the entry `name` of `parent`.
        0x02 AskEntry { from: u16, token: u64, parent: Inode, name: &'a [u8] }
        /// Attributes; `found` 0: the inode does not exist.
        0x03 AreAttributes { token: u64, found: u8, attributes: Attributes }
        /// An entry; without an inode the entry does not exist.
        0x04 IsEntry { token: u64, inode: Inode, mode: u32 }
        /// Revokes the copy of this directory, and any answer about it on its way to the receiver.
        /// Answered by `Forgotten`. Number 5 announced changes.
        0x16 Forget { from: u16, number: u64, directory: Inode }
        /// The service has dropped the copy of revocation `number`.
        0x17 Forgotten { from: u16, number: u64 }
        /// Check and hold what the actions need, and vote. Transactions below `floor` are over.
        /// `host` and `mount` name the mount that sent the request (`wire::watch`). Number 6 was
        /// the same without them.
        0x12 Prepare {
            from: u16, group: u32, sequence: u64, floor: u64, host: u16, mount: u8,
            actions: &'a [u8],
        }
        /// Vote of `group`: errno 0 is a yes.
        0x07 Vote { group: u32, sequence: u64, errno: Errno }
        /// The transaction of `group` is committed: apply and acknowledge it.
        0x08 Commit { from: u16, group: u32, sequence: u64 }
        /// The transaction of `group` is aborted.
        0x09 Abort { group: u32, sequence: u64 }
        /// `group` has applied the commit.
        0x0a Committed { group: u32, sequence: u64 }
        /// `group` voted and asks for the decision.
        0x0b Inquire { from: u16, group: u32, sequence: u64 }
        /// Entries that `group` holds of a directory of the receiver, as counts.
        0x0c Tally {
            from: u16, group: u32, directory: Inode, version: u64, entries: u64,
            directories: u64, modified: u64,
        }
        /// The tally was noted.
        0x0d TallyKnown { directory: Inode, version: u64 }
        /// Query for the tally of this directory of the sender.
        0x18 AskTally { from: u16, token: u64, directory: Inode }
        /// The tally as it is now; version 0: none.
        0x19 IsTally {
            from: u16, group: u32, token: u64, directory: Inode, version: u64, entries: u64,
            directories: u64, modified: u64,
        }
        /// The daemon `holder` still uses its leases of this term and extends it; it sent this at
        /// `sent`.
        0x0e Renew { holder: u16, term: u64, sent: u64 }
        /// The daemon `holder` has dropped the leases of revocation `number`.
        0x0f Revoked { holder: u16, number: u64 }
        /// Query for the services that may have entries of this directory.
        0x10 AskEntryServices { from: u16, token: u64, directory: Inode }
        /// Those services, without the sender; four bytes each.
        0x11 AreEntryServices { token: u64, groups: &'a [u8] }
        /// Answer to `AskEntry`: the entry cannot be determined.
        0x13 NoEntry { token: u64, errno: Errno }
        /// Query for the backing location of this directory: its parent and name there.
        0x14 AskLocation { from: u16, token: u64, inode: Inode }
        /// The location, and the inode number there; without `parent`: it has none.
        0x15 IsLocation { token: u64, parent: Inode, number: u64, name: &'a [u8] }
        /// Query for the access control lists of `inode`.
        0x20 AskAcls { from: u16, token: u64, inode: Inode }
        /// The lists, as extended attributes; none if the inode does not exist.
        0x21 AreAcls { token: u64, lists: &'a [u8] }
        /// Notice for a mount of the receiver's host (an encoded `Notice`), with the sender's
        /// number. Answered by `NoticeDone`.
        0x22 Notice { from: u16, number: u64, mount: u8, notice: &'a [u8] }
        /// The mount has carried out the notice, or is gone.
        0x23 NoticeDone { number: u64 }
        /// How other hosts use a file that may be open on the receiver's host
        /// (`kernel_cache::page_cache`): bits of `wire::reply::opened`, and perhaps `DROP`: its
        /// kernels drop their pages, except behind mount `except`. Answered by `NoticeDone`.
        0x24 FileUse { from: u16, number: u64, inode: Inode, except: u8, uses: u8 }
        /// Answer to `HostMessage::Glimpse`: the unreported size on `host`; 0: nothing.
        0x30 Glimpsed { host: u16, token: u64, inode: Inode, end: u64 }
        /// `host` counted the beginning of a truncation.
        0x31 TruncateBegun { host: u16, token: u64, inode: Inode }
        /// `host` counted the end of a truncation.
        0x32 TruncateEnded { host: u16, token: u64, inode: Inode }
        /// Announces the limited resources of an account (`usage::limits`); answered by `Limited`.
        0x40 Limit { number: u64, account: u64, flags: u8 }
        /// `group` knows the limit, and has these allowances.
        0x41 Limited {
            group: u32, number: u64, account: u64, inodes: u64, inline: u64, space: u64,
        }
        /// `group` uses `used` for an account and requests `more`.
        0x42 Draw {
            group: u32, token: u64, account: u64, resource: u8, used: u64, more: u64,
        }
        /// New allowance; `granted` 0: less than requested.
        0x43 Drawn {
            token: u64, number: u64, account: u64, resource: u8, allowance: u64, granted: u8,
        }
        /// Query for the usage under `limit`. `trims` 1: the receiver returns its unused allowance.
        0x44 Collect { number: u64, account: u64, limit: u8, trims: u8 }
        /// Usage and allowance: of inodes, or of inline contents and of the target. `freeing` 1:
        /// space of removed files is being freed.
        0x45 Collected {
            group: u32, number: u64, account: u64, limit: u8, used: u64, may: u64,
            space_used: u64, space_may: u64, freeing: u8,
        }
        /// Query for the usage of accounts from `from` on.
        0x46 AskUsage { token: u64, from: u64 }
        /// Account, inodes and bytes of each account below `end`, eight bytes each.
        0x47 AreUsages { group: u32, token: u64, end: u64, entries: &'a [u8] }
        /// Announces a pool of targets, as `Record::PutPool` has it; answered by `PoolKnown`.
        0x60 Pool { number: u64, id: u8, name: &'a [u8], targets: &'a [u8] }
        /// `group` knows the pool.
        0x61 PoolKnown { group: u32, number: u64, id: u8 }
        /// The processes of `host` moved these bytes in `millis`: inode, bytes and nanoseconds in
        /// transfers, eight bytes each. The host has `daemons` daemons. Sent only while there are pools.
        0x62 Transfers { host: u16, daemons: u16, number: u64, millis: u32, entries: &'a [u8] }
        /// Lock waits in `group`, for deadlock detection (`locks::deadlock`): encoded `Edge`s.
        0x50 Waits { from: u16, group: u32, waits: &'a [u8] }
        /// Asks whether these waits still exist.
        0x51 AskWaits { from: u16, cycle: u64, waits: &'a [u8] }
        /// The waits of `group` still exist.
        0x52 AreWaiting { cycle: u64, group: u32 }
        /// Refuse this wait: it is part of a deadlock.
        0x53 RefuseWait { wait: u64 }
        /// Of the home of a directory to itself: spread it by one step (`namespace::widening`).
        0x70 SpreadFurther { directory: Inode }
    }
}

numbered! {
    /// A message of a service to a daemon that holds leases of it. `from`: a shard of the service.
    pub(crate) enum HolderMessage<'a> {
        /// Revokes the lease of this directory, and of the entry with this key of 16 bytes (zero:
        /// none). Answered by `Message::Revoked`.
        0x01 Revoke { from: u16, number: u64, directory: Inode, key: &'a [u8] }
        /// The request sent at `sent` extended the term from that time on.
        0x02 Renewed { from: u16, term: u64, sent: u64 }
    }
}

/// Values of `Action::Links::change`.
pub(crate) mod link {
    /// A name was removed.
    pub(crate) const REMOVED: u8 = 0;
    /// A name was added.
    pub(crate) const ADDED: u8 = 1;
    /// Another file took the name (`kernel_cache::grace`).
    pub(crate) const REPLACED: u8 = 2;
}

numbered! {
    /// Part of a transaction: its precondition, and its change at commit.
    pub(crate) enum Action<'a> {
        /// The entry `name` of `parent` is `expect` (NONE: absent) and becomes `set` (NONE:
        /// absent). `shard` holds the entry, `spread` is the directory's.
        0x01 Entry {
            shard: u16, parent: Inode, spread: u8, name: &'a [u8],
            expect: Inode, expect_mode: u32, set: Inode, set_mode: u32,
        }
        /// An inode that is no directory gains or loses a name: one of `link`.
        0x02 Links { inode: Inode, change: u8 }
        /// A directory is removed; `services` other services may have entries of it. Number 3 did
        /// not have the count.
        0x07 RemoveDirectory { inode: Inode, services: u32 }
        /// A directory has no entries in the service of `shard`, and gets none.
        0x04 Freeze { shard: u16, directory: Inode }
        /// The inode was moved; `parent` is a directory's new one, otherwise NONE.
        0x05 Moved { inode: Inode, parent: Inode }
        /// The directory's parent is, and stays, `parent`.
        0x06 Chain { inode: Inode, parent: Inode }
        /// Names leave `shard`, the home of a directory whose spread goes from one to another.
        0x08 Give { shard: u16, directory: Inode, from: u8, to: u8 }
        /// The service of `shard` gets these names of it: encoded `widening::Moved`s.
        0x09 Take { shard: u16, directory: Inode, to: u8, names: &'a [u8] }
        /// The spread in the directory's layout changes. `groups`: the services that get names, four
        /// bytes each.
        0x0a Widen { inode: Inode, from: u8, to: u8, groups: &'a [u8] }
        /// The kernel of a mount may take what it remembers of a name along into a directory that may
        /// still be spread: not before it has forgotten that.
        0x0b Carry { shard: u16, directory: Inode }
    }
}

impl Action<'_> {
    /// The shard that performs it.
    pub(crate) const fn shard(&self) -> wire::ShardIndex {
        match *self {
            Action::Entry { shard, .. }
            | Action::Freeze { shard, .. }
            | Action::Give { shard, .. }
            | Action::Take { shard, .. }
            | Action::Carry { shard, .. } => wire::ShardIndex(shard),
            Action::Links { inode, .. }
            | Action::RemoveDirectory { inode, .. }
            | Action::Moved { inode, .. }
            | Action::Widen { inode, .. }
            | Action::Chain { inode, .. } => inode.shard(),
        }
    }
}

/// The actions of an encoded list; stops at the first that is malformed.
pub(crate) fn actions(bytes: &[u8]) -> impl Iterator<Item = Action<'_>> {
    let mut reader = wire::Reader::new(bytes);
    core::iter::from_fn(move || Action::decode(&mut reader).ok())
}

/// True if the bytes are a list of actions to the last byte.
pub(crate) fn are_actions(bytes: &[u8]) -> bool {
    let mut reader = wire::Reader::new(bytes);
    while !reader.rest().is_empty() {
        if Action::decode(&mut reader).is_err() {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use wire::Reader;

    /// A message is read as it was written.
    fn survives(message: &Message<'_>) -> Result<(), TestCaseError> {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        prop_assert_eq!(&Message::decode(&mut Reader::new(&bytes)), &Ok(*message));
        Ok(())
    }

    proptest! {
        /// Messages survive encoding.
        #[test]
        fn messages_survive_encoding(n: [u64; 4], s: Vec<u8>) {
            let [w, x, y, z] = n;
            let (from, group, inode) = (w as u16, x as u32, Inode(y));
            let attributes = Attributes { inode, size: z, ..Attributes::default() };
            let all = [
                Message::AskAttributes { from, token: w, inode, copy: 1 },
                Message::AskEntry { from, token: w, parent: inode, name: &s },
                Message::AreAttributes { token: w, found: 1, attributes },
                Message::IsEntry { token: w, inode, mode: group },
                Message::Forget { from, number: w, directory: inode },
                Message::Forgotten { from, number: w },
                Message::Prepare {
                    from, group, sequence: w, floor: z, host: y as u16, mount: x as u8, actions: &s,
                },
                Message::Vote { group, sequence: w, errno: Errno(from) },
                Message::Commit { from, group, sequence: w },
                Message::Abort { group, sequence: w },
                Message::Committed { group, sequence: w },
                Message::Inquire { from, group, sequence: w },
                Message::Tally {
                    from, group, directory: inode, version: w, entries: x, directories: y,
                    modified: z,
                },
                Message::TallyKnown { directory: inode, version: w },
                Message::AskTally { from, token: w, directory: inode },
                Message::IsTally {
                    from, group, token: w, directory: inode, version: x, entries: y,
                    directories: z, modified: w,
                },
                Message::Renew { holder: from, term: x, sent: z },
                Message::Revoked { holder: from, number: x },
                Message::AskEntryServices { from, token: w, directory: inode },
                Message::AreEntryServices { token: w, groups: &s },
                Message::NoEntry { token: w, errno: Errno(from) },
                Message::AskLocation { from, token: w, inode },
                Message::IsLocation { token: w, parent: inode, number: x, name: &s },
                Message::AskAcls { from, token: w, inode },
                Message::AreAcls { token: w, lists: &s },
                Message::Notice { from, number: w, mount: x as u8, notice: &s },
                Message::NoticeDone { number: z },
                Message::FileUse { from, number: w, inode, except: x as u8, uses: y as u8 },
                Message::Glimpsed { host: from, token: w, inode, end: z },
                Message::TruncateBegun { host: from, token: w, inode },
                Message::TruncateEnded { host: from, token: w, inode },
                Message::Waits { from, group, waits: &s },
                Message::AskWaits { from, cycle: w, waits: &s },
                Message::AreWaiting { cycle: w, group },
                Message::RefuseWait { wait: w },
            ];
            for message in all {
                survives(&message)?;
            }
        }

        /// Messages about accounts and pools survive encoding.
        #[test]
        fn messages_about_shares_survive_encoding(n: [u64; 4], s: Vec<u8>) {
            let [w, x, y, z] = n;
            let (from, group) = (w as u16, x as u32);
            let all = [
                Message::Limit { number: w, account: x, flags: y as u8 },
                Message::Limited {
                    group, number: w, account: x, inodes: y, inline: z, space: w,
                },
                Message::Draw { group, token: w, account: x, resource: 1, used: y, more: z },
                Message::Drawn {
                    token: w, number: x, account: y, resource: 2, allowance: z, granted: 1,
                },
                Message::Collect { number: w, account: x, limit: 2, trims: 1 },
                Message::Collected {
                    group, number: w, account: x, limit: 1, used: y, may: z, space_used: w,
                    space_may: x, freeing: 1,
                },
                Message::AskUsage { token: w, from: x },
                Message::AreUsages { group, token: w, end: x, entries: &s },
                Message::Pool { number: w, id: x as u8, name: &s, targets: &s },
                Message::PoolKnown { group, number: w, id: x as u8 },
                Message::Transfers {
                    host: from, daemons: x as u16, number: w, millis: y as u32, entries: &s,
                },
            ];
            for message in all {
                survives(&message)?;
            }
        }

        /// Messages to holders survive encoding.
        #[test]
        fn holder_messages_survive_encoding(n: [u64; 3], key: Vec<u8>) {
            let [w, x, y] = n;
            let all = [
                HolderMessage::Revoke { from: w as u16, number: x, directory: Inode(y), key: &key },
                HolderMessage::Renewed { from: w as u16, term: x, sent: y },
            ];
            for word in all {
                let mut bytes = Vec::new();
                word.encode(&mut bytes);
                prop_assert_eq!(HolderMessage::decode(&mut Reader::new(&bytes)), Ok(word));
            }
        }

        /// Actions survive encoding.
        #[test]
        fn actions_survive_encoding(n: [u64; 4], s: Vec<u8>) {
            let [w, x, y, z] = n;
            let inode = Inode(y);
            let all = [
                Action::Entry {
                    shard: w as u16, parent: inode, spread: 1, name: &s, expect: Inode(x),
                    expect_mode: w as u32, set: Inode(z), set_mode: z as u32,
                },
                Action::Links { inode, change: w as u8 },
                Action::RemoveDirectory { inode, services: x as u32 },
                Action::Freeze { shard: z as u16, directory: inode },
                Action::Moved { inode, parent: Inode(x) },
                Action::Chain { inode, parent: Inode(x) },
            ];
            let mut bytes = Vec::new();
            all.iter().for_each(|action| action.encode(&mut bytes));
            prop_assert!(are_actions(&bytes));
            prop_assert!(actions(&bytes).eq(all));
        }

        /// Any bytes are read without a panic.
        #[test]
        fn any_bytes_are_read(bytes: Vec<u8>) {
            let _ = Message::decode(&mut Reader::new(&bytes));
            let _ = HolderMessage::decode(&mut Reader::new(&bytes));
            let _ = actions(&bytes).count();
        }
    }
}
