//! Requests: to a metadata shard (numbers below 0x40) and to a data target (0x40 and above).
//!
//! A request about an entry goes to the shard of the entry (`placement::entry_shard`), one about an
//! inode to the shard that the inode number names. Times are stamped by the shard.

use crate::attributes::Layout;
use crate::backing::BackingLocation;
use crate::codec::messages;
use crate::errno::Errno;
use crate::id::Inode;

/// Flags of `Request::Create`.
pub mod create {
    /// The name must not exist (`O_EXCL`): otherwise an existing file is returned as it is.
    pub const EXCLUSIVE: u32 = 1;
    /// The sender opens the file: registers its host as one that has it open.
    pub const OPEN: u32 = 2;
    /// With `OPEN`: it may also write to it.
    pub const WRITES: u32 = 4;
}

/// Bits of `Request::Open::uses`.
pub mod open {
    /// It may be written to.
    pub const WRITES: u8 = 1;
    /// A mount's kernel will cache pages of it, unless others write.
    pub const PAGES: u8 = 2;
    /// A kernel caches pages even if others write, for a mapping: writers are told.
    pub const MAPS: u8 = 4;
}

/// Bits of `mode` in `Request::Create` and `CreateNameless` above the sixteen bits of a mode: a
/// file gets its permissions from either the umask or a default access control list of its
/// directory.
pub mod made {
    const UMASK_SHIFT: u32 = 16;
    /// The bits of the umask.
    pub const UMASK: u32 = 0o777 << UMASK_SHIFT;

    /// A mode combined with the umask to be applied to it.
    #[must_use]
    pub const fn with(mode: u32, umask: u32) -> u32 {
        mode & 0xffff | (umask & 0o777) << UMASK_SHIFT
    }

    /// The mode without the bits of the umask.
    #[must_use]
    pub const fn masked(mode: u32) -> u32 {
        mode & 0xffff & !((mode & UMASK) >> UMASK_SHIFT)
    }
}

/// Values of `Request::Walk::from`.
pub mod walk {
    /// The directory's own attributes come first; for the shard of the directory's inode.
    pub const DIRECTORY: u8 = 0;
    /// The inode of the first name comes first; for the shard of that entry.
    pub const ENTRY: u8 = 1;
}

/// Bits of `Request::SetAttributes::mask`.
pub mod set {
    /// Permission bits.
    pub const MODE: u32 = 1;
    /// Owner.
    pub const UID: u32 = 2;
    /// Group.
    pub const GID: u32 = 4;
    /// Size: truncates or extends.
    pub const SIZE: u32 = 8;
    /// Access time as given.
    pub const ACCESSED: u32 = 16;
    /// Modification time as given.
    pub const MODIFIED: u32 = 32;
    /// Access time: the shard's current time.
    pub const ACCESSED_NOW: u32 = 64;
    /// Modification time: the shard's current time.
    pub const MODIFIED_NOW: u32 = 128;
    /// The caller holds a writable descriptor: no permission check for the size.
    pub const BY_DESCRIPTOR: u32 = 256;
    /// With `SIZE`: the file may have contents beyond, written and not reported yet.
    pub const TRUNCATES: u32 = 512;
    /// The file has a hole from now on.
    pub const SPARSE: u32 = 1024;
    /// The sender is about to create extents beyond the first stripe: see `flag::SHORT`.
    pub const LONG: u32 = 2048;
    /// Removes `security.capability`.
    pub const CAPABILITY: u32 = 4096;
    /// The file was read now: updates the access time by the rule of `relatime`, and nothing else.
    pub const READ: u32 = 8192;
    /// Files created in this directory from now on have the mode `posix` (`flag::POSIX`).
    pub const POSIX: u32 = 1 << 20;
    /// The same for the mode `relaxed`.
    pub const RELAXED: u32 = 1 << 21;
    /// With `SIZE`, for a file of the mode `posix` of another host: the sender's daemon counts the
    /// truncation in its host's open inode when it forwards the request and its answer.
    pub const COUNTED: u32 = 1 << 22;
    /// `size` is the project that the file counts for, and for a directory that of files created in
    /// it from now on. Not with `SIZE`.
    pub const PROJECT: u32 = 1 << 23;
    /// Files created in this directory from now on have the placement of the layout whose word is
    /// `size`. Not with `SIZE` or `PROJECT`.
    pub const PLACEMENT: u32 = 1 << 24;
    /// As `PLACEMENT`, for the stripe size.
    pub const STRIPE: u32 = 1 << 25;
    /// As `PLACEMENT`, for the writeback mode (`flag::WRITEBACK`) of this directory and of those
    /// created in it from now on; alone. EOPNOTSUPP without a backing store.
    pub const WRITEBACK: u32 = 1 << 26;
    /// The file, or files created in this directory from now on, are pinned in memory
    /// (`flag::PINNED`).
    pub const PINNED: u32 = 1 << 27;
    /// The opposite of `PINNED`.
    pub const UNPINNED: u32 = 1 << 28;
    /// As `PLACEMENT`, for the pool; alone. ENOENT if there is none with this number.
    pub const POOL: u32 = 1 << 29;
    /// As `PLACEMENT`, for the number of copies (`Layout::copies`); alone. EOPNOTSUPP if the instance
    /// does not keep so many.
    pub const COPIES: u32 = 1 << 30;
}

/// Bit beside the `stripe_log2` of a request for bytes: the sender knows the file as pinned in
/// memory (`flag::PINNED`). A target that learns of a file by this request uses it.
pub const PINNED_STRIPE: u8 = 1 << 7;

/// The `stripe_log2` without that bit.
#[must_use]
pub const fn stripe_log2_of(word: u8) -> u8 {
    word & !PINNED_STRIPE
}

/// Flags of `Request::Rename`, as in `renameat2(2)`.
pub mod rename {
    /// The new name must not exist.
    pub const NO_REPLACE: u32 = 1;
    /// Both names must exist and are exchanged.
    pub const EXCHANGE: u32 = 2;
}

/// Flags of `Request::SetXattr`, as in `setxattr(2)`.
pub mod xattr {
    /// The attribute must not exist.
    pub const CREATE: u32 = 1;
    /// The attribute must exist.
    pub const REPLACE: u32 = 2;
    /// With an access control list: the caller is not in the file's group, so its set-group-id bit
    /// is cleared. A mount's kernel decides that; for other callers the shard does.
    pub const KILL_SGID: u32 = 1 << 31;
}

/// Encoding of the answer to `Request::GiveBack`.
pub mod coming {
    /// Space of that target is being freed.
    const FREEING: u64 = 1;
    /// Data is being written back that can be evicted then.
    const WRITEBACK: u64 = 2;

    /// The answer; `saved` changes when more was written back.
    #[must_use]
    pub const fn value(is_freeing: bool, is_writing_back: bool, saved: u64) -> u64 {
        let saving = if is_writing_back { WRITEBACK | saved << 2 } else { 0 };
        saving | if is_freeing { FREEING } else { 0 }
    }

    /// True if space is being freed.
    #[must_use]
    pub const fn is_freeing(value: u64) -> bool {
        value & FREEING != 0
    }

    /// True if data is being written back.
    #[must_use]
    pub const fn is_writing_back(value: u64) -> bool {
        value & WRITEBACK != 0
    }
}

/// Values of `Request::Prefetch::what`.
pub mod prefetch {
    /// Only a query.
    pub const QUERY: u8 = 0;
    /// To memory where it has free space, else to the SSD.
    pub const MEMORY: u8 = 1;
    /// To the SSD; data in memory stays there.
    pub const SSD: u8 = 2;
    /// The opposite: evicts data that the backing store has, too. Refused with EAGAIN while some is
    /// still being evicted.
    pub const EVICT: u8 = 3;
    /// As `MEMORY`, for a list that may be wrong: it is given up if other files are read.
    pub const SPECULATIVE: u8 = 4;
}

/// Values of `Request::Lock::kind`.
pub mod lock {
    /// Removes the lock.
    pub const UNLOCK: u8 = 0;
    /// Shared.
    pub const READ: u8 = 1;
    /// Exclusive.
    pub const WRITE: u8 = 2;
    /// Bit of `Request::Lock::flags`: wait until it is free.
    pub const WAIT: u8 = 1;
    /// Bit of `Request::Lock::flags`: a lock of the whole file by `flock`, apart from the others.
    pub const FLOCK: u8 = 2;
    /// Bit of `Request::Lock::flags`: only report a conflicting lock.
    pub const TEST: u8 = 4;
    /// Bit of `Request::Lock::flags`: as without it, but do not overtake waiters for a lock of the
    /// file. For callers that would wait, too, but not with this request.
    pub const BEHIND: u8 = 8;
}

/// `truncate_epoch` of a write that is valid in any truncate epoch.
pub const ANY_TRUNCATE_EPOCH: u64 = u64::MAX;

/// The files of a `Request::Remove`; bytes behind the last whole number are ignored.
pub fn removed(inodes: &[u8]) -> impl Iterator<Item = Inode> + '_ {
    inodes.as_chunks().0.iter().map(|bytes| Inode(u64::from_le_bytes(*bytes)))
}

messages! {
    /// A request.
    pub enum Request<'a> {
        /// The entry `name` of `parent`. Answered by `Attributes`, or by `Entry` when the inode is
        /// another shard's; ENOENT otherwise.
        0x01 Lookup { parent: Inode, name: &'a [u8] }
        /// The attributes of an inode. ESTALE if it is gone.
        0x02 GetAttributes { inode: Inode }
        /// Changes attributes; answered by the new `Attributes`.
        0x03 SetAttributes {
            inode: Inode, mask: u32, mode: u32, uid: u32, gid: u32, size: u64,
            accessed: u64, modified: u64,
        }
        /// Creates a file of any kind (type bits in `mode`, the umask as in `made`). `target` is a
        /// symbolic link's. `layout` is the requested one; the shard fills in a directory's
        /// `place`. Answered by `Created` or, for an existing name without EXCLUSIVE, as Lookup.
        0x04 Create {
            parent: Inode, name: &'a [u8], mode: u32, device: u64, flags: u32, layout: Layout,
            target: &'a [u8],
        }
        /// Removes a name that is not a directory.
        0x05 Unlink { parent: Inode, name: &'a [u8] }
        /// Removes an empty directory.
        0x06 RemoveDirectory { parent: Inode, name: &'a [u8] }
        /// Moves or exchanges entries; sent to the shard of the old entry.
        0x07 Rename {
            parent: Inode, name: &'a [u8], new_parent: Inode, new_name: &'a [u8], flags: u32,
        }
        /// Adds a name for an inode; sent to the shard of the new entry.
        0x08 Link { inode: Inode, parent: Inode, name: &'a [u8] }
        /// Creates a nameless open file (`O_TMPFILE`), answered by `Created`; sent to the shard
        /// that a file of `parent` would be born in.
        0x09 CreateNameless { parent: Inode, mode: u32, layout: Layout }
        /// Entries of `directory` in this shard with a hash above `after` and up to `last`, in order of
        /// hash, at most `bytes` of them (`placement::locate::parts`). Answered by `Entries`; EREMCHG:
        /// some of them are elsewhere by now. The number 0x0a was the same without `last`.
        0x82 ReadDirectory { directory: Inode, after: u64, last: u64, bytes: u32 }
        /// The target of a symbolic link, as `Bytes`.
        0x0b ReadLink { inode: Inode }
        /// Value of an extended attribute, as `Bytes`.
        0x0c GetXattr { inode: Inode, name: &'a [u8] }
        /// Sets an extended attribute.
        0x0d SetXattr { inode: Inode, name: &'a [u8], value: &'a [u8], flags: u32 }
        /// Names of all extended attributes, each with a NUL, as `Bytes`.
        0x0e ListXattr { inode: Inode }
        /// Removes an extended attribute.
        0x0f RemoveXattr { inode: Inode, name: &'a [u8] }
        /// Contents of an inline file from `offset`, as `Contents`; `Moved` if not inline.
        0x10 ReadInline { inode: Inode, offset: u64, length: u32 }
        /// Writes into an inline file, answered by `Attributes`; `Moved` if the file is not inline.
        /// `offset` u64::MAX appends (answer: `Placed`). Fails with EFBIG if the result would not
        /// be inline: the sender then sends `MoveOut`.
        0x11 WriteInline { inode: Inode, offset: u64, bytes: &'a [u8] }
        /// Moves the contents of an inline file to its targets. Answered by `Attributes`.
        0x12 MoveOut { inode: Inode }
        /// The file is at least `size` long and was modified now (G7). Answered by `Attributes`.
        0x13 Extend { inode: Inode, size: u64 }
        /// Takes `length` bytes at the end of the file (`O_APPEND`). Answered by `Range`.
        0x14 Append { inode: Inode, length: u64 }
        /// The sender's host has the file open from now on; `uses`: bits of `open`.
        /// `open_sequence`: drawn there after the opener was counted (`shm::host`). Answered by
        /// `Opened`. Number 0x15 was the same without `uses`.
        0x30 Open { inode: Inode, open_sequence: u64, uses: u8 }
        /// The sender's host has it closed, unless it reported an open with a larger
        /// `open_sequence`.
        0x16 Close { inode: Inode, open_sequence: u64 }
        /// A deleted file was closed: frees it if it is not open anywhere.
        0x17 Reap { inode: Inode }
        /// Takes, tests or releases a lock on `start ..= end`. `owner` is unique in the instance.
        /// EAGAIN if it is held; with TEST answered by `Held` or `Done`. `party` is the process
        /// behind all its lock owners, unique, too: if parties wait for each other, one is refused
        /// with EDEADLK; 0: exempt from deadlock detection.
        0x18 Lock {
            inode: Inode, owner: u64, party: u64, pid: u32, kind: u8, flags: u8, start: u64, end: u64,
        }
        /// Releases all locks of an owner on `inode` (`Inode::NONE`: on every file of the shard).
        0x19 Release { inode: Inode, owner: u64 }
        /// Withdraws the waiting `Lock` with these numbers in its header.
        0x1a CancelLock { inode: Inode, client_id: u64, sequence: u64 }
        /// Looks up the first of `names` (separated by slashes) in `directory`, the next one in the
        /// result, and so on, as far as this worker knows them; from `DIRECTORY` there may be none.
        /// Answered by `Walked`.
        0x1b Walk { directory: Inode, from: u8, names: &'a [u8] }
        /// Answered when no mount's kernel caches attributes or bytes of the inode any more, except
        /// the mount that this comes through: the sender is about to write to it, or did. By a
        /// `Number`: bits of `reply::opened`.
        0x1c Unwatch { inode: Inode }
        /// A mount waits for notices (`crate::watch`), and has carried out all up to `done`. For
        /// any shard of a service of its host. Answered by `Bytes`, now or later: encoded
        /// `Notice`s, or none.
        0x1d Notices { done: u64 }
        /// Looks up the entry `name` of `inode`, or without a name the attributes of `inode`, for
        /// the kernel behind a mount of another host, which may cache the answer (`crate::watch`)
        /// for a while from the time of the request. Answered by `LookupForMount`.
        0x1e LookupForMount { inode: Inode, name: &'a [u8] }

        /// Makes a pool of targets (`crate::pool`), or without targets removes it; for shard 0.
        /// Answered by a `Number`, the pool's, when all services know it. EPERM for all but root and
        /// the instance's owner; EEXIST if there is another of the name, ENOENT if there is none to
        /// remove; EINVAL for a target that does not exist, is repeated, or may do 0 bytes per second.
        0x20 SetPool { name: &'a [u8], targets: &'a [u8] }
        /// Pools with numbers above `after`, in their order; for shard 0. Answered by `Bytes`:
        /// encoded `pool::PoolEntry`s, as many as fit; none: there are no more.
        0x21 Pools { after: u8 }

        /// Sets the limits of an account (`crate::quota`); for shard 0. Answered when all services
        /// know them.
        0x31 SetQuota {
            account: u64, space_soft: u64, space_hard: u64, inodes_soft: u64, inodes_hard: u64,
            grace: u64,
        }
        /// `fsync`: answered once the followers of the service have all changes that it made before.
        /// For any of its shards. Without a follower it is answered as it would be without followers.
        0x22 Replicate {}
        /// Usage and limits of accounts from this number on, in their order; for shard 0. Answered
        /// by `Bytes`: encoded `quota::AccountUsage`s, as many as fit; none: there are no more.
        0x32 Quotas { from: u64 }
        /// The owners of these files of one shard; inode numbers as in `Remove`. Answered by
        /// `Bytes`: an `Owner` and the time of the last change for each.
        0x33 Owners { inodes: &'a [u8] }
        /// A daemon's target is out of space: a service frees at once what it holds of deleted
        /// files, and starts writeback of data that can be evicted then. For any of its shards.
        /// Answered by a `Number` that tells what is under way (`coming`).
        0x34 GiveBack { target: u16 }
        /// Location of a file in the backing store; sent by daemons alone. Answered by `Bytes`: an
        /// encoded `crate::backing::BackingFile`, or two while it is being moved or written back
        /// again. ESTALE: none.
        0x35 LocateBacking { inode: Inode }

        // From the writer of a backing store (`crate::backing`), which is a session of the
        // instance's owner; EPERM for others.

        /// The sync state of an inode. Answered by `Bytes`: an encoded `backing::SyncState`. ESTALE
        /// if it exists neither here nor in the backing store.
        0x36 SyncState { inode: Inode }
        /// Dirty names of a service after this one in its order, from any of the service's shards;
        /// `Inode::NONE` and no name: from the first on. Answered by `Bytes`: encoded
        /// `backing::DirtyName`s (`backing::listed`), as many as fit; none: there are no more.
        0x37 DirtyNames { parent: Inode, name: &'a [u8] }
        /// As `DirtyNames`, inodes of the service with higher numbers than `after`: encoded
        /// `backing::SyncState`s.
        0x38 DirtyInodes { after: Inode }
        /// Answered by `Bytes`, an encoded `backing::DirtyStatus`, as soon as its number differs
        /// from `seen`, and after two seconds at most; by any of the service's shards. A close does
        /// not count as news: check `is_written` again.
        0x39 AwaitDirty { seen: u64 }
        /// Sent before the inode is brought to this backing location by a rename or by a change in
        /// place: from now on it may be as `now` or as `next` says. Replaces an earlier `next`.
        /// EAGAIN if the contents of a file are not those of `location.stamp` any more; ESTALE if
        /// there is no such inode, here or in the backing store.
        0x3a Writing { inode: Inode, location: BackingLocation<'a> }
        /// Sent after it: it is there. If only attributes were changed, so that location and
        /// version are those of `now`, it needs no `Writing`. Repeated: `Done`. EAGAIN if
        /// `location` is neither; ESTALE as above.
        0x3b Wrote { inode: Inode, location: BackingLocation<'a> }
        /// It is not as `next` says, and will not be: `now` is valid. `Done` if there is no `next`.
        0x3c NotWritten { inode: Inode }
        /// It has no backing location any more, so it is new to the backing store if it exists
        /// here. For a regular file from the backing store no byte may be left there that is not
        /// here. `Done` if it had none.
        0x3d Gone { inode: Inode }
        /// The backing entry of a name is now `to` and was `from`, either of them may be none; for
        /// any shard of the service that has the name (that listed it). `Done` if it is `to`
        /// already; EAGAIN if it is neither. Sent after the `Wrote` of `to`; where `from` was
        /// removed, before its `Gone`.
        0x3e NameWritten { parent: Inode, name: &'a [u8], from: Inode, to: Inode }

        /// Answered by `Done` when the current state of the inode is written back under its name,
        /// or it has no name and needs none; refused with the reason why it cannot be (`Settled`);
        /// after two seconds at most by a `Number`, which changes if anything was written back
        /// meanwhile: ask again then.
        0x3f AwaitClean { inode: Inode }
        /// From the writer: the `Number` of the last inode that a client waits for (`AwaitClean`),
        /// when it differs from `seen`, and after two seconds at most; by any of the service's
        /// shards. `moved`: a number that changes when the writer has made progress.
        0x52 AwaitCleanRequests { seen: u64, moved: u64 }
        /// From the writer: inodes of the service that clients wait for. Answered by `Bytes`:
        /// encoded `backing::CleanRequest`s, as many as fit.
        0x53 CleanRequests {}
        /// From the writer: the inode is written back, in its state when its number
        /// (`CleanRequest`) was reported; or `errno` says why it cannot be.
        0x54 Settled { inode: Inode, number: u64, errno: Errno }
        /// True if all of a file is written back in its current state, and nobody may write to it.
        /// Sent by daemons alone. Answered by the `Number` 1 if so, else 0.
        0x55 IsClean { inode: Inode }
        /// From a daemon whose units of file data lost all their copies: the last such loss after which
        /// the file was made, as far as its service knew, or had nothing on targets. Answered by its
        /// `Number`, which is a version of the table of units (`replicas`); 0: none.
        0x60 KnownLoss { inode: Inode }
        /// Files of a service from this inode on that have bytes in these units (`losses::LostUnits`), of
        /// `per_target` for each target and number of copies, among some thousands that it looks at;
        /// without those that the backing store has as they are. For any of its shards; sent by daemons
        /// alone. Answered by `Bytes`: the inode to go on from, or `Inode::NONE`, and encoded
        /// `losses::LostFile`s.
        0x61 LostFiles { from: Inode, per_target: u16, units: &'a [u8] }
        /// The file is to have its bytes in the backing store alone, if that has it as it is and
        /// nobody uses it: its name leads to another inode then, one that was found there. Answered
        /// by the `Number` of bytes; 0: it stays as it is. EPERM for all but its owner and root.
        0x62 GiveUpCopies { inode: Inode }
        /// How the bytes of the file are in an instance with copies: answered by a `Number`, a value of
        /// `losses::state`.
        0x63 CopyState { inode: Inode }
        /// From the writer: the partial file of the file is at this location, and its first
        /// `location.counts` bytes are the file's, except for newer data in the instance. `is_new`:
        /// it had no partial file, and this one has the valid backing bytes of the file. EAGAIN if
        /// that is not so, or if `location.stamp` is not that of the partial file as it was
        /// reported, because the file was truncated meanwhile; ESTALE if it is gone.
        0x56 NotePartial { inode: Inode, is_new: u8, location: BackingLocation<'a> }
        /// From the writer: the file has no partial file any more. `Done` if it had none.
        0x57 ForgetPartial { inode: Inode }
        /// Names of a service from this place on in its order (`crate::names`), of some thousands
        /// that it looks at: those of directories, and of these inodes, whose numbers are sorted
        /// (`removed` reads them). For any of its shards; sent by daemons alone. Answered by
        /// `Bytes`: the place to go on from, and encoded `names::FoundName`s.
        0x5a Names { parent: Inode, hash: u64, collision: u8, inodes: &'a [u8] }

        /// The extents that hold `offset .. offset + length`, as `Extents`. With `allocate` missing
        /// ones are created (ENOSPC if there is no space); else they are left out. With `allocate` 2
        /// their space counts as used (`Usage`) before bytes are written. The target may
        /// create further ones for the following `preallocate` bytes, which the caller seems to
        /// need next: they are in the answer, and are reclaimed unless they are written soon.
        0x40 MapExtents {
            inode: Inode, stripe_log2: u8, allocate: u8, offset: u64, length: u64, preallocate: u64,
        }
        /// Reads, for a sender that does not map the target. Answered by `Bytes`, holes as zeros.
        0x41 Read { inode: Inode, stripe_log2: u8, offset: u64, length: u32 }
        /// Writes, for a sender that does not map the target. `truncate_epoch`: the daemon of the
        /// sender's host refuses with EAGAIN if its open inode of the file is in another epoch; or
        /// `ANY_TRUNCATE_EPOCH`. Number 0x42 was the same without it.
        0x4e Write { inode: Inode, stripe_log2: u8, offset: u64, truncate_epoch: u64, bytes: &'a [u8] }
        /// Frees everything beyond `size`; the rest of the last extent reads as zeros beyond.
        0x43 Truncate { inode: Inode, stripe_log2: u8, size: u64 }
        /// Makes `offset .. offset + length` read as zeros, and frees whole extents.
        0x44 Punch { inode: Inode, stripe_log2: u8, offset: u64, length: u64 }
        /// Bytes that this target holds for the file below `end`, as `Number`: pages that were
        /// written, and reserved ones, and bytes that only the backing store has.
        0x46 Usage { inode: Inode, end: u64 }
        /// First offset at or after `offset` where this target has data, as `Number`; ENXIO: none.
        0x47 SeekData { inode: Inode, stripe_log2: u8, offset: u64 }
        /// Space of the daemon's targets and number of its files, as `Space`.
        0x48 Space {}
        /// Forces the file's data of this target to its device.
        0x49 Flush { inode: Inode }
        /// Reads from a target of another host, within one extent, into a bounce buffer of the
        /// session. Answered by the `Number` of bytes there; 0: all of it is a hole.
        0x4a Fetch { inode: Inode, stripe_log2: u8, offset: u64, length: u32, buffer: u8 }
        /// Writes from a bounce buffer of the session to a target of another host, within one
        /// extent. Answered by the `Number` of bytes. `truncate_epoch` as in `Write`; number 0x4b
        /// was the same without it.
        0x4f Store {
            inode: Inode, stripe_log2: u8, offset: u64, length: u32, buffer: u8, truncate_epoch: u64,
        }
        /// As `Store`, for a sender that does not wait: the buffer's entry in the session describes
        /// the write. The daemon tries until the instance's timeout, frees the buffer, and records
        /// the outcome in the file's open inode in the host segment.
        0x4c Push { buffer: u8 }
        /// Frees everything of these files: their inode numbers, `removed` reads them. Number 0x45
        /// was the same for one file.
        0x4d Remove { inodes: &'a [u8] }
        /// Amount of a file with this layout and size that is still to be prefetched here
        /// (`prefetch`), as `Number`; requests the prefetch if that is not known yet. With a
        /// `list`, which any number but 0 names, it is file number `index` of those that are read
        /// in that order, `group` of them at a time. Refused with the error that occurred since the
        /// last query; EAGAIN: too much is queued.
        0x51 Prefetch {
            inode: Inode, what: u8, layout: u64, size: u64, list: u64, index: u64, group: u32,
        }
        /// From the writer: it is about to write back bytes of a file. Answered by those `Extents`
        /// from `offset` on that may differ from the backing store, in their order; none: there are
        /// no more. `number` 0: all of them, as many as fit. Else those that are not mapped, of
        /// `most` bytes or one extent more, and from now on changes of them are tracked; for one
        /// such number of a file at a time.
        0x58 BeginWriteback { inode: Inode, number: u64, offset: u64, most: u64 }
        /// From the writer: the bytes of this number are written back as they were, and the file's
        /// shard knows their location; except extents that end behind `end`, because the file
        /// seemed to end before. EAGAIN if the number is unknown.
        0x59 EndWriteback { inode: Inode, number: u64, end: u64 }
        /// Sent by daemons alone, to one that has a copy of a unit of file data (`replicas`): a client,
        /// which the header names, writes bytes of one stripe whose target is `home`. The copies get
        /// them from the daemon of that client. `unit_epoch`: that of the unit, as the sender knows it.
        /// Answered by the `Number` of bytes once all copies have them. Number 0x5b was the same with the
        /// age of the file.
        0x5e WriteCopies {
            home: u16, inode: Inode, stripe_log2: u8, offset: u64, length: u32, unit_epoch: u64,
        }
        /// As `WriteCopies`: the client reads. Answered by `Bytes`. Number 0x5c was the same with the age
        /// of the file.
        0x5f ReadCopy { home: u16, inode: Inode, stripe_log2: u8, offset: u64, length: u32 }
        /// Sent by daemons alone, as `WriteCopies`: frees everything of these files (`Remove`) beyond
        /// `size`, in some units of the target `home`: a bit for each, the lowest for its first of those
        /// for the number of copies of these files, whose numbers say the same (`Inode::copies`).
        /// Answered by `Done` when all copies of all these units have done it.
        0x5d ClearCopies { home: u16, units: u64, size: u64, inodes: &'a [u8] }
        /// The owner of the file since it changed at `changed`, and whether it is pinned in memory
        /// (`flag::PINNED`); a report of an earlier change is ignored.
        0x50 Own { inode: Inode, uid: u32, project: u32, changed: u64, pinned: u8 }
    }
}

impl<'a> Request<'a> {
    /// The entry whose shard the request was sent to, if that is looked up by a client that can find
    /// out anew where the entry is. EREMCHG: it is at another shard by now.
    #[must_use]
    pub const fn sent_to_entry(&self) -> Option<(Inode, &'a [u8])> {
        match *self {
            Request::Lookup { parent, name }
            | Request::Create { parent, name, .. }
            | Request::Unlink { parent, name }
            | Request::RemoveDirectory { parent, name }
            | Request::Rename { parent, name, .. }
            | Request::Link { parent, name, .. } => Some((parent, name)),
            _ => None,
        }
    }

    /// The inode of the request, if that determines its shard.
    #[must_use]
    pub const fn subject(&self) -> Option<Inode> {
        match *self {
            Request::GetAttributes { inode }
            | Request::SetAttributes { inode, .. }
            | Request::ReadLink { inode }
            | Request::GetXattr { inode, .. }
            | Request::SetXattr { inode, .. }
            | Request::ListXattr { inode }
            | Request::RemoveXattr { inode, .. }
            | Request::ReadInline { inode, .. }
            | Request::WriteInline { inode, .. }
            | Request::MoveOut { inode }
            | Request::Extend { inode, .. }
            | Request::Append { inode, .. }
            | Request::Open { inode, .. }
            | Request::Close { inode, .. }
            | Request::Reap { inode }
            | Request::Lock { inode, .. }
            | Request::CancelLock { inode, .. }
            | Request::Unwatch { inode }
            | Request::LookupForMount { inode, name: [] }
            | Request::LocateBacking { inode }
            | Request::IsClean { inode }
            | Request::KnownLoss { inode }
            | Request::GiveUpCopies { inode }
            | Request::CopyState { inode }
            | Request::SyncState { inode }
            | Request::Writing { inode, .. }
            | Request::Wrote { inode, .. }
            | Request::NotWritten { inode }
            | Request::Gone { inode }
            | Request::NotePartial { inode, .. }
            | Request::ForgetPartial { inode }
            | Request::AwaitClean { inode }
            | Request::Settled { inode, .. }
            | Request::Walk { directory: inode, from: walk::DIRECTORY, .. } => Some(inode),
            _ => None,
        }
    }
}
