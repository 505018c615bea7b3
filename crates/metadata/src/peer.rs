//! Messages between services, and the actions of a transaction.
//!
//! A message may be lost, doubled and overtaken. Whoever wants an answer sends again; whoever gets
//! a message twice does nothing the second time (`transaction` says why). Encoded as log records
//! are: one byte of number, then the fields in order. `from` is a shard of the sender, where
//! answers go; `group` names the sender (daemon and worker); numbers never change their meaning.

use wire::{Attributes, Errno, Inode};

use crate::coding::numbered;

numbered! {
    /// A message between services.
    pub(crate) enum Message<'a> {
        /// What are the attributes of `inode`? `copy` 1: of a directory, and the sender keeps them for a
        /// term, unless he is told to forget them (`Forget`).
        0x01 AskAttributes { from: u16, token: u64, inode: Inode, copy: u8 }
        /// What is the entry `name` of `parent`?
        0x02 AskEntry { from: u16, token: u64, parent: Inode, name: &'a [u8] }
        /// The attributes; `found` 0: there is no such inode.
        0x03 AreAttributes { token: u64, found: u8, attributes: Attributes }
        /// The entry; no inode: there is no such entry.
        0x04 IsEntry { token: u64, inode: Inode, mode: u32 }
        /// The copy of this directory is not to be used any more, nor what is on its way to the receiver.
        /// Answered by `Forgotten`. Number 5 was news of what had changed.
        0x16 Forget { from: u16, number: u64, directory: Inode }
        /// The service has forgotten what recall `number` was about.
        0x17 Forgotten { from: u16, number: u64 }
        /// Check and hold what the actions need, and vote. Transactions below `floor` are over. It came
        /// by this mount of that host (`wire::watch`). Number 6 was the same without them.
        0x12 Prepare {
            from: u16, group: u32, sequence: u64, floor: u64, host: u16, mount: u8, actions: &'a [u8],
        }
        /// Vote of `group`: errno 0 is a yes.
        0x07 Vote { group: u32, sequence: u64, errno: Errno }
        /// The transaction of `group` is decided: do it and acknowledge.
        0x08 Commit { from: u16, group: u32, sequence: u64 }
        /// The transaction of `group` will not happen.
        0x09 Abort { group: u32, sequence: u64 }
        /// `group` has done what was decided.
        0x0a Committed { group: u32, sequence: u64 }
        /// `group` voted long ago: what was decided?
        0x0b Inquire { from: u16, group: u32, sequence: u64 }
        /// What `group` holds of a directory of the receiver.
        0x0c Tally {
            from: u16, group: u32, directory: Inode, version: u64, entries: u64,
            directories: u64, modified: u64,
        }
        /// The tally was noted.
        0x0d TallyKnown { directory: Inode, version: u64 }
        /// The daemon `holder` still believes what it has under this pact; it sent this at `sent`.
        0x0e Renew { holder: u16, pact: u64, sent: u64 }
        /// The daemon `holder` believes nothing any more that recall `number` was about.
        0x0f Recalled { holder: u16, number: u64 }
        /// Which services may have entries of this directory?
        0x10 AskParts { from: u16, token: u64, directory: Inode }
        /// Those, besides the sender; four bytes each.
        0x11 AreParts { token: u64, groups: &'a [u8] }
        /// Answer to `AskEntry`: it can not be told.
        0x13 NoEntry { token: u64, errno: Errno }
        /// In which directory and by which name does this directory lie below?
        0x14 AskPlace { from: u16, token: u64, inode: Inode }
        /// There, and its number there; without `parent`: it does not.
        0x15 IsPlace { token: u64, parent: Inode, number: u64, name: &'a [u8] }
        /// What are the access control lists of `inode`?
        0x20 AskAcls { from: u16, token: u64, inode: Inode }
        /// Those, as extended attributes; none if there is no such inode.
        0x21 AreAcls { token: u64, lists: &'a [u8] }
        /// A mount of the receiver's host is to be told this (an encoded `Notice`), which has this number
        /// at the sender. Answered by `Carried`.
        0x22 Tell { from: u16, number: u64, mount: u8, notice: &'a [u8] }
        /// The mount has carried it out, or is gone.
        0x23 Carried { number: u64 }
        /// Of a file that may be open on the receiver's host (`pages`): what other hosts do with it, bits
        /// of `wire::reply::opened`, and perhaps that kernels there drop their pages, but that of mount
        /// `but`. Answered by `Carried`.
        0x24 Pages { from: u16, number: u64, inode: Inode, but: u8, told: u8 }
        /// Answer to `HostWord::Glimpse`: `end` of what `host` wrote and did not tell, 0: nothing.
        0x30 Glimpsed { host: u16, token: u64, inode: Inode, end: u64 }
        /// `host` counted the beginning of a cut.
        0x31 CutBegun { host: u16, token: u64, inode: Inode }
        /// `host` counted the end of a cut.
        0x32 CutEnded { host: u16, token: u64, inode: Inode }
        /// Of an account this is limited (`usage::limits`); answered by `Limited`.
        0x40 Limit { number: u64, account: u64, flags: u8 }
        /// `group` knows it, and may have so much in use.
        0x41 Limited {
            group: u32, number: u64, account: u64, inodes: u64, inline: u64, space: u64,
        }
        /// `group` has so much in use for an account, and wants so much more.
        0x42 Draw {
            group: u32, token: u64, account: u64, resource: u8, used: u64, wanted: u64,
        }
        /// It may have so much in use; `granted` 0: not what it wanted.
        0x43 Drawn {
            token: u64, number: u64, account: u64, resource: u8, allowance: u64, granted: u8,
        }
        /// What is in use of what comes under `limit`? `trims` 1: give back what is not.
        0x44 Collect { number: u64, account: u64, limit: u8, trims: u8 }
        /// So much is, and may be: of inodes, or inline and of the target. `freeing` 1: space of files
        /// that are gone is on its way back.
        0x45 Collected {
            group: u32, number: u64, account: u64, limit: u8, used: u64, may: u64,
            space_used: u64, space_may: u64, freeing: u8,
        }
        /// What is in use of accounts from `from` on?
        0x46 AskUsage { token: u64, from: u64 }
        /// Account, inodes and bytes of each below `end`, eight bytes each.
        0x47 AreUsages { group: u32, token: u64, end: u64, rows: &'a [u8] }
        /// Who waits in `group` for locks of whom (`deadlock`): encoded `Edge`s.
        0x50 Waits { from: u16, group: u32, waits: &'a [u8] }
        /// Are these still waiting?
        0x51 AskWaits { from: u16, circle: u64, waits: &'a [u8] }
        /// Those of `group` are.
        0x52 AreWaiting { circle: u64, group: u32 }
        /// Refuse this wait: it is part of a circle.
        0x53 RefuseWait { wait: u64 }
    }
}

numbered! {
    /// A word of a service to a daemon that holds leases of it. `from`: a shard of the service.
    pub(crate) enum Word<'a> {
        /// Believe nothing any more of this directory, nor of the entry with this key of 16 bytes
        /// (zero: there is none), and say so.
        0x01 Recall { from: u16, number: u64, directory: Inode, key: &'a [u8] }
        /// What was asked for at `sent` is granted for a term from then.
        0x02 Renewed { from: u16, pact: u64, sent: u64 }
    }
}

/// Values of `Action::Links::change`.
pub(crate) mod link {
    /// A name was removed.
    pub(crate) const REMOVED: u8 = 0;
    /// There is one more.
    pub(crate) const ADDED: u8 = 1;
    /// Another file took a name (`kept`).
    pub(crate) const REPLACED: u8 = 2;
}

numbered! {
    /// A part of a transaction: what must hold, and what is done when it commits.
    pub(crate) enum Action<'a> {
        /// The entry `name` of `parent` is `expect` (NONE: absent) and becomes `set` (NONE:
        /// absent). `shard` holds the entry, `spread` is the directory's.
        0x01 Entry {
            shard: u16, parent: Inode, spread: u8, name: &'a [u8],
            expect: Inode, expect_mode: u32, set: Inode, set_mode: u32,
        }
        /// An inode that is no directory gets a name more or less: one of `link`.
        0x02 Links { inode: Inode, change: u8 }
        /// A directory goes, of which so many services besides its own may have entries. 3 was one that
        /// did not say how many.
        0x07 RemoveDirectory { inode: Inode, parts: u32 }
        /// A directory has no entries in the service of `shard`, and gets none.
        0x04 Freeze { shard: u16, directory: Inode }
        /// The inode was moved; `parent` is a directory's new one, otherwise NONE.
        0x05 Moved { inode: Inode, parent: Inode }
        /// The directory's parent is, and stays, `parent`.
        0x06 Chain { inode: Inode, parent: Inode }
    }
}

impl Action<'_> {
    /// The shard that does it.
    pub(crate) const fn shard(&self) -> wire::ShardIndex {
        match *self {
            Action::Entry { shard, .. } | Action::Freeze { shard, .. } => wire::ShardIndex(shard),
            Action::Links { inode, .. }
            | Action::RemoveDirectory { inode, .. }
            | Action::Moved { inode, .. }
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
                Message::Renew { holder: from, pact: x, sent: z },
                Message::Recalled { holder: from, number: x },
                Message::AskParts { from, token: w, directory: inode },
                Message::AreParts { token: w, groups: &s },
                Message::NoEntry { token: w, errno: Errno(from) },
                Message::AskPlace { from, token: w, inode },
                Message::IsPlace { token: w, parent: inode, number: x, name: &s },
                Message::AskAcls { from, token: w, inode },
                Message::AreAcls { token: w, lists: &s },
                Message::Tell { from, number: w, mount: x as u8, notice: &s },
                Message::Carried { number: z },
                Message::Pages { from, number: w, inode, but: x as u8, told: y as u8 },
                Message::Glimpsed { host: from, token: w, inode, end: z },
                Message::CutBegun { host: from, token: w, inode },
                Message::CutEnded { host: from, token: w, inode },
                Message::Limit { number: w, account: x, flags: y as u8 },
                Message::Limited {
                    group, number: w, account: x, inodes: y, inline: z, space: w,
                },
                Message::Draw { group, token: w, account: x, resource: 1, used: y, wanted: z },
                Message::Drawn {
                    token: w, number: x, account: y, resource: 2, allowance: z, granted: 1,
                },
                Message::Collect { number: w, account: x, limit: 2, trims: 1 },
                Message::Collected {
                    group, number: w, account: x, limit: 1, used: y, may: z, space_used: w,
                    space_may: x, freeing: 1,
                },
                Message::AskUsage { token: w, from: x },
                Message::AreUsages { group, token: w, end: x, rows: &s },
                Message::Waits { from, group, waits: &s },
                Message::AskWaits { from, circle: w, waits: &s },
                Message::AreWaiting { circle: w, group },
                Message::RefuseWait { wait: w },
            ];
            for message in all {
                let mut bytes = Vec::new();
                message.encode(&mut bytes);
                prop_assert_eq!(Message::decode(&mut Reader::new(&bytes)), Ok(message));
            }
        }

        /// Words to holders survive encoding.
        #[test]
        fn words_survive_encoding(n: [u64; 3], key: Vec<u8>) {
            let [w, x, y] = n;
            let all = [
                Word::Recall { from: w as u16, number: x, directory: Inode(y), key: &key },
                Word::Renewed { from: w as u16, pact: x, sent: y },
            ];
            for word in all {
                let mut bytes = Vec::new();
                word.encode(&mut bytes);
                prop_assert_eq!(Word::decode(&mut Reader::new(&bytes)), Ok(word));
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
                Action::RemoveDirectory { inode, parts: x as u32 },
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
            let _ = Word::decode(&mut Reader::new(&bytes));
            let _ = actions(&bytes).count();
        }
    }
}
