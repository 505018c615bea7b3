//! Requests: to a metadata shard (numbers below 0x40) and to a data target (0x40 and above).
//!
//! A request about an entry goes to the shard of the entry (`placement::entry_shard`), one about
//! an inode to the shard that the inode number names. Times are stamped by the shard.

use crate::attributes::Layout;
use crate::below::Lies;
use crate::codec::messages;
use crate::errno::Errno;
use crate::id::Inode;

/// Flags of `Request::Create`.
pub mod create {
    /// The name must not exist (`O_EXCL`): otherwise an existing file is answered as it is.
    pub const EXCLUSIVE: u32 = 1;
    /// The sender opens the file: registers its host as one that has it open.
    pub const OPEN: u32 = 2;
    /// With `OPEN`: and may write to it.
    pub const WRITES: u32 = 4;
}

/// Bits of `Request::Open::uses`.
pub mod open {
    /// It may be written to.
    pub const WRITES: u8 = 1;
    /// A mount's kernel is to keep pages of it, unless others write.
    pub const PAGES: u8 = 2;
    /// One keeps pages whether others write or not, as a mapping does: who writes is told.
    pub const MAPS: u8 = 4;
}

/// What `mode` of `Request::Create` and `CreateNameless` holds above the sixteen bits of a mode: a file
/// gets either the umask's due or what a default access control list of its directory says.
pub mod made {
    const UMASK_SHIFT: u32 = 16;
    /// The bits of the umask.
    pub const UMASK: u32 = 0o777 << UMASK_SHIFT;

    /// A mode and the umask that is to be applied to it.
    #[must_use]
    pub const fn with(mode: u32, umask: u32) -> u32 {
        mode & 0xffff | (umask & 0o777) << UMASK_SHIFT
    }

    /// The mode less what the umask takes away.
    #[must_use]
    pub const fn masked(mode: u32) -> u32 {
        mode & 0xffff & !((mode & UMASK) >> UMASK_SHIFT)
    }
}

/// Values of `Request::Walk::from`.
pub mod walk {
    /// The directory's own attributes come first; for the shard of the directory's inode.
    pub const DIRECTORY: u8 = 0;
    /// What the first name leads to comes first; for the shard of that entry.
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
    /// Access time: the shard's now.
    pub const ACCESSED_NOW: u32 = 64;
    /// Modification time: the shard's now.
    pub const MODIFIED_NOW: u32 = 128;
    /// The caller holds a writable descriptor: no permission check for the size.
    pub const BY_DESCRIPTOR: u32 = 256;
    /// With `SIZE`: the file may have contents beyond, written and not told yet.
    pub const CUTS: u32 = 512;
    /// The file has a hole from now on.
    pub const SPARSE: u32 = 1024;
    /// The sender is about to make pieces beyond the first chunk: see `flag::SHORT`.
    pub const LONG: u32 = 2048;
    /// Takes `security.capability` away.
    pub const CAPABILITY: u32 = 4096;
    /// It was read now: the access time follows as `relatime` of Linux has it, and nothing else changes.
    pub const READ: u32 = 8192;
    /// What is made in this directory from now on is of the mode `posix` (`flag::POSIX`).
    pub const POSIX: u32 = 1 << 20;
    /// Of the mode `relaxed`.
    pub const RELAXED: u32 = 1 << 21;
    /// With `SIZE`, of a file of the mode `posix` of another host: the sender's daemon counts the cut in
    /// his host's row of the file, as the request and its answer pass by.
    pub const COUNTED: u32 = 1 << 22;
    /// The project that it counts for is `size`, and of a directory what is made in it from now on. Not
    /// with `SIZE`.
    pub const PROJECT: u32 = 1 << 23;
    /// What is made in this directory from now on has the placement of the layout whose word `size` is.
    /// Not with `SIZE` or `PROJECT`.
    pub const PLACEMENT: u32 = 1 << 24;
    /// As `PLACEMENT`, the chunk size.
    pub const CHUNK: u32 = 1 << 25;
    /// As `PLACEMENT`, of this directory and of those made in it from now on: when it is saved
    /// (`flag::WRITE_BACK`); alone. EOPNOTSUPP without a backing directory.
    pub const WRITE_BACK: u32 = 1 << 26;
    /// The file stays in memory, or what is made in this directory from now on (`flag::PINNED`).
    pub const PINNED: u32 = 1 << 27;
    /// Not so.
    pub const UNPINNED: u32 = 1 << 28;
}

/// Beside the `chunk_log2` of a request for bytes: the sender knows the file as one that stays in memory
/// (`flag::PINNED`). Who is told of a file for the first time goes by it.
pub const RESIDENT_CHUNK: u8 = 1 << 7;

/// The `chunk_log2` without that bit.
#[must_use]
pub const fn chunk_log2_of(word: u8) -> u8 {
    word & !RESIDENT_CHUNK
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
    /// With an access control list: who asks is not in the file's group, so its set-group-id bit goes. A
    /// mount's kernel says so; of others the shard knows.
    pub const KILL_SGID: u32 = 1 << 31;
}

/// What the answer to `Request::GiveBack` says.
pub mod coming {
    /// Something of that target's is on its way back.
    const FREEING: u64 = 1;
    /// Something is being saved that can be dropped then.
    const SAVING: u64 = 2;

    /// The answer; `saved` is another number when more was saved.
    #[must_use]
    pub const fn value(is_freeing: bool, is_saving: bool, saved: u64) -> u64 {
        let saving = if is_saving { SAVING | saved << 2 } else { 0 };
        saving | if is_freeing { FREEING } else { 0 }
    }

    /// True if something is on its way back.
    #[must_use]
    pub const fn is_freeing(value: u64) -> bool {
        value & FREEING != 0
    }

    /// True if something is being saved.
    #[must_use]
    pub const fn is_saving(value: u64) -> bool {
        value & SAVING != 0
    }
}

/// Values of `Request::Rise::what`.
pub mod rise {
    /// Only to be told.
    pub const ASK: u8 = 0;
    /// To memory where that has room to spare, else to the SSD.
    pub const MEMORY: u8 = 1;
    /// To the SSD; what is in memory stays there.
    pub const SSD: u8 = 2;
    /// The other way: what lies below, too, is given up. Refused with EAGAIN while some of it still goes.
    pub const DROP: u8 = 3;
    /// As `MEMORY`, of a list that may be wrong: it is given up if other files are read.
    pub const GUESS: u8 = 4;
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
    /// Bit of `Request::Lock::flags`: only say what stands in the way.
    pub const TEST: u8 = 4;
    /// Bit of `Request::Lock::flags`: as without it, but nobody who waits for a lock of the file is
    /// passed. For who would wait, too, but not with this request.
    pub const BEHIND: u8 = 8;
}

/// `cuts` of a write that is good however often the file was cut.
pub const ANY_CUTS: u64 = u64::MAX;

/// The files of a `Request::Remove`; bytes behind the last whole number are left out.
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
        /// Makes a file of any kind (type bits in `mode`, the umask as in `made`). `target`
        /// is a symbolic link's. `layout` is the one wanted; a directory's `place` is filled in by
        /// the shard. Answered by `Created` or, for an existing name without EXCLUSIVE, as Lookup.
        0x04 Create {
            parent: Inode, name: &'a [u8], mode: u32, device: u64, flags: u32, layout: Layout,
            target: &'a [u8],
        }
        /// Removes a name that is no directory.
        0x05 Unlink { parent: Inode, name: &'a [u8] }
        /// Removes an empty directory.
        0x06 RemoveDirectory { parent: Inode, name: &'a [u8] }
        /// Moves or exchanges entries; sent to the shard of the old entry.
        0x07 Rename {
            parent: Inode, name: &'a [u8], new_parent: Inode, new_name: &'a [u8], flags: u32,
        }
        /// A further name for an inode; sent to the shard of the new entry.
        0x08 Link { inode: Inode, parent: Inode, name: &'a [u8] }
        /// A nameless open file (`O_TMPFILE`), answered by `Created`; sent to the shard that a file
        /// of `parent` would be born in.
        0x09 CreateNameless { parent: Inode, mode: u32, layout: Layout }
        /// Entries of `directory` in this shard with a hash above `after`, in order of hash, at
        /// most `bytes` of them. Answered by `Entries`.
        0x0a ReadDirectory { directory: Inode, after: u64, bytes: u32 }
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
        /// be inline: the sender then asks `MoveOut`.
        0x11 WriteInline { inode: Inode, offset: u64, bytes: &'a [u8] }
        /// Moves the contents of an inline file to its targets. Answered by `Attributes`.
        0x12 MoveOut { inode: Inode }
        /// The file is at least `size` long and was modified now (G7). Answered by `Attributes`.
        0x13 Extend { inode: Inode, size: u64 }
        /// Takes `length` bytes at the end of the file (`O_APPEND`). Answered by `Range`.
        0x14 Append { inode: Inode, length: u64 }
        /// The sender's host has the file open from now on; `uses`: bits of `open`. `turn`: drawn
        /// there after the opener was counted (`shm::host`). Answered by `Opened`. The number 0x15
        /// was the same without `uses`.
        0x30 Open { inode: Inode, turn: u64, uses: u8 }
        /// The sender's host has it open no longer, unless it told of an opening of a larger `turn`.
        0x16 Close { inode: Inode, turn: u64 }
        /// Somebody closed a deleted file: frees it if it is open nowhere.
        0x17 Reap { inode: Inode }
        /// Takes, tests or gives back a lock on `start ..= end`. `owner` is unique in the instance.
        /// EAGAIN if it is held; with TEST answered by `Held` or `Done`. `party` is a process, by
        /// whatever owners it takes locks, and is unique, too: of parties that wait for each other one
        /// is refused with EDEADLK; 0: it is none that this is looked for.
        0x18 Lock {
            inode: Inode, owner: u64, party: u64, pid: u32, kind: u8, flags: u8, start: u64, end: u64,
        }
        /// Gives back all locks of an owner on `inode` (`Inode::NONE`: on every file of the shard).
        0x19 Release { inode: Inode, owner: u64 }
        /// Withdraws the waiting `Lock` with these numbers in its header.
        0x1a CancelLock { inode: Inode, origin: u64, sequence: u64 }
        /// The first of `names`, which slashes part, in `directory`, the next one in that, and so on,
        /// as far as this worker knows them; from `DIRECTORY` there may be none. Answered by `Walked`.
        0x1b Walk { directory: Inode, from: u8, names: &'a [u8] }
        /// Answered when no mount's kernel remembers attributes or bytes of the inode any more, but
        /// that by which this comes: the sender is about to write to it, or did. By a `Number`: bits of
        /// `reply::opened`.
        0x1c Unwatch { inode: Inode }
        /// A mount waits for notices (`crate::watch`), and has carried out all up to `done`. For any
        /// shard of a service of its host. Answered by `Bytes`, now or later: encoded `Notice`s, or none.
        0x1d Notices { done: u64 }
        /// The entry `name` of `inode`, or without a name the attributes of `inode`, for the kernel
        /// behind a mount of another host, which may remember what the answer says (`crate::watch`) for
        /// a while from when this was asked. Answered by `Looked`.
        0x1e Look { inode: Inode, name: &'a [u8] }

        /// What an account (`crate::quota`) may use from now on; for shard 0. Answered when all know it.
        0x31 SetQuota {
            account: u64, space_soft: u64, space_hard: u64, inodes_soft: u64, inodes_hard: u64,
            grace: u64,
        }
        /// Usage and limits of accounts from this number on, in their order; for shard 0. Answered by
        /// `Bytes`: encoded `quota::Row`s, as many as fit; none: there are no more.
        0x32 Quotas { from: u64 }
        /// Whose these files of one shard are; inode numbers as in `Remove`. Answered by `Bytes`: an
        /// `Owner` and the time of the last change for each.
        0x33 Owners { inodes: &'a [u8] }
        /// A daemon's target has no room: what a service keeps of files that are gone goes at once. For
        /// any of its shards; and what can be saved in a backing directory is, so that it can be dropped.
        /// Answered by a `Number` that says what is on its way (`coming`).
        0x34 GiveBack { target: u16 }
        /// Where a file lies below; asked by daemons alone. Answered by `Bytes`: an encoded
        /// `crate::below::Below`, or two while it is being moved or saved anew. ESTALE: nowhere.
        0x35 Below { inode: Inode }

        // To the writer of a backing directory (`crate::below`), which is a session of the instance's
        // owner; EPERM to others.

        /// How an inode stands to the backing directory. Answered by `Bytes`: an encoded
        /// `below::Standing`. ESTALE if it neither exists nor lies below.
        0x36 Standing { inode: Inode }
        /// Unsaved names of a service behind this one in its order, by any of the service's shards;
        /// `Inode::NONE` and no name: from the first on. Answered by `Bytes`: encoded
        /// `below::UnsavedName`s (`below::listed`), as many as fit; none: there are no more.
        0x37 UnsavedNames { parent: Inode, name: &'a [u8] }
        /// As `UnsavedNames`, inodes of the service with higher numbers than `after`: encoded
        /// `below::Standing`s.
        0x38 UnsavedInodes { after: Inode }
        /// Answered by `Bytes`, an encoded `below::News`, as soon as its number is another than
        /// `seen`, and after two seconds at most; by any of the service's shards. Who closes a file
        /// is no news: look again at what `is_written`.
        0x39 AwaitUnsaved { seen: u64 }
        /// Before the inode is brought to lie so below, by a rename or by a change in place: from now on
        /// it may lie as `now` or as `next` says. Replaces an earlier `next`. EAGAIN if the contents of
        /// a file are not those of `lies.stamp` any more; ESTALE if there is no such inode here and
        /// below.
        0x3a Saving { inode: Inode, lies: Lies<'a> }
        /// After it: it lies there. Where only attributes were changed below, so that place and version
        /// are those of `now`, it needs no `Saving`. Done before: `Done`. EAGAIN if `lies` is
        /// neither; ESTALE as above.
        0x3b Wrote { inode: Inode, lies: Lies<'a> }
        /// It does not lie as `next` says, and will not: `now` stands. `Done` if there is no `next`.
        0x3c NotWritten { inode: Inode }
        /// It lies nowhere below any more, so it is new to the backing directory if it exists here. Of a
        /// regular file from below no byte may be left there that is not here. `Done` if it lay nowhere.
        0x3d Gone { inode: Inode }
        /// What lies below by a name is now `to` and was `from`, either of them may be none; for any
        /// shard of the service that has the name (that listed it). `Done` if `to` lies there already;
        /// EAGAIN if neither does. Told after the `Wrote` of `to`; where `from` was removed, before its
        /// `Gone`.
        0x3e Saved { parent: Inode, name: &'a [u8], from: Inode, to: Inode }

        /// Answered by `Done` when what the inode is now lies below by its name, or it has none and needs
        /// none; refused with what kept it from that (`Settled`); after two seconds at most by a
        /// `Number`, which is another one each time if something was saved meanwhile: ask again then.
        0x3f AwaitSaved { inode: Inode }
        /// To the writer: the `Number` of the last inode that somebody waits for (`AwaitSaved`), when it
        /// is another than `seen`, and after two seconds at most; by any of the service's shards.
        /// `moved`: a number that is another one when the writer has done something since.
        0x52 AwaitWanted { seen: u64, moved: u64 }
        /// To the writer: inodes of the service that are waited for. Answered by `Bytes`: encoded
        /// `below::Wanted`s, as many as fit.
        0x53 Wanted {}
        /// From the writer: the inode is saved, as it was when its number (`Wanted`) was told; or
        /// `errno` says why it can not be.
        0x54 Settled { inode: Inode, number: u64, errno: Errno }
        /// Is all of a file saved in the backing directory as it is now, and may nobody write to it?
        /// Asked by daemons alone. Answered by the `Number` 1 if so, else 0.
        0x55 IsSaved { inode: Inode }
        /// From the writer: a draft of the file lies so, by number and place, and its first
        /// `lies.counts` bytes are the file's, but for what is newer in the instance. `is_new`: it had no
        /// draft, and this one has what counts below of the file. EAGAIN if that is not so, or if
        /// `lies.stamp` is not that of the draft as it was told, as the file was cut meanwhile; ESTALE if
        /// it is gone.
        0x56 Drafted { inode: Inode, is_new: u8, lies: Lies<'a> }
        /// From the writer: the file has no draft any more. `Done` if it had none.
        0x57 Undrafted { inode: Inode }

        /// The pieces that hold `offset .. offset + length`, as `Pieces`. With `allocate` those
        /// that are missing are made (ENOSPC if there is no room); else they are left out. The target
        /// may make further ones, of the `ahead` bytes behind, which the caller seems to come to: they
        /// are in the answer, and are taken back unless something is written to them soon.
        0x40 MapPieces {
            inode: Inode, chunk_log2: u8, allocate: u8, offset: u64, length: u64, ahead: u64,
        }
        /// Reads, for who has no mapping of the target. Answered by `Bytes`, holes as zeros.
        0x41 Read { inode: Inode, chunk_log2: u8, offset: u64, length: u32 }
        /// Writes, for who has no mapping of the target. `cuts`: refused with EAGAIN by the daemon of the
        /// sender's host if its row of the file says that it was cut so often no longer; or `ANY_CUTS`.
        /// The number 0x42 was the same without it.
        0x4e Write { inode: Inode, chunk_log2: u8, offset: u64, cuts: u64, bytes: &'a [u8] }
        /// Gives back all beyond `size`; what is kept of the last piece reads as zeros beyond.
        0x43 Truncate { inode: Inode, chunk_log2: u8, size: u64 }
        /// Makes `offset .. offset + length` read as zeros, gives back whole pieces.
        0x44 Punch { inode: Inode, chunk_log2: u8, offset: u64, length: u64 }
        /// Bytes that this target holds for the file, as `Number`.
        0x46 Usage { inode: Inode }
        /// First offset at or after `offset` where this target has data, as `Number`; ENXIO: none.
        0x47 SeekData { inode: Inode, chunk_log2: u8, offset: u64 }
        /// Space of the daemon's targets and number of its files, as `Space`.
        0x48 Space {}
        /// Forces the file's data of this target to its device.
        0x49 Flush { inode: Inode }
        /// Reads from a target of another host, within one piece, into a buffer of the session's
        /// stage. Answered by the `Number` of bytes there; 0: all of it is a hole.
        0x4a Fetch { inode: Inode, chunk_log2: u8, offset: u64, length: u32, buffer: u8 }
        /// Writes from a buffer of the session's stage to a target of another host, within one
        /// piece. Answered by the `Number` of bytes. `cuts` as in `Write`; the number 0x4b was the same
        /// without it.
        0x4f Store {
            inode: Inode, chunk_log2: u8, offset: u64, length: u32, buffer: u8, cuts: u64,
        }
        /// As `Store`, for who does not wait: what is written where stands in the buffer's row in
        /// the stage. The daemon tries until the instance's timeout, frees the buffer, and tells in
        /// the file's row of the host segment what came of it.
        0x4c Push { buffer: u8 }
        /// Gives back everything of these files: their inode numbers, `removed` reads them. The
        /// number 0x45 was the same for one file.
        0x4d Remove { inodes: &'a [u8] }
        /// How much of a file with this layout and size is still to come up here (`rise`), as `Number`,
        /// and that it is to come, if that is not known yet. With a `list`, which any number but 0 names,
        /// it is file number `index` of those that are read in that order, `group` of them at a time.
        /// Refused with what was in its way since this was asked last; EAGAIN: too much is to come.
        0x51 Rise {
            inode: Inode, what: u8, layout: u64, size: u64, list: u64, index: u64, group: u32,
        }
        /// From the writer: it is about to save bytes of a file. Answered by those `Pieces` from `offset`
        /// on that may be other than what lies below, in their order; none: there are no more. `number`
        /// 0: all of them, as many as fit. Else those that nobody has mapped, of `most` bytes or one
        /// more, and it is noted from now on which of them change; for one such number of a file at a
        /// time.
        0x58 BeginSaving { inode: Inode, number: u64, offset: u64, most: u64 }
        /// From the writer: what this number was about lies below as it was, and the file's shard knows
        /// where; of pieces that end behind `end` that is not so, as the file seemed to end before.
        /// EAGAIN if nothing is known of that number.
        0x59 EndSaving { inode: Inode, number: u64, end: u64 }
        /// Whose the file is since it changed at `changed`, and whether it stays in memory
        /// (`flag::PINNED`); a word of an earlier change is left out.
        0x50 Own { inode: Inode, uid: u32, project: u32, changed: u64, resident: u8 }
    }
}

impl Request<'_> {
    /// The inode that the request is about, if that is what its shard follows from.
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
            | Request::Look { inode, name: [] }
            | Request::Below { inode }
            | Request::IsSaved { inode }
            | Request::Standing { inode }
            | Request::Saving { inode, .. }
            | Request::Wrote { inode, .. }
            | Request::NotWritten { inode }
            | Request::Gone { inode }
            | Request::Drafted { inode, .. }
            | Request::Undrafted { inode }
            | Request::AwaitSaved { inode }
            | Request::Settled { inode, .. }
            | Request::Walk { directory: inode, from: walk::DIRECTORY, .. } => Some(inode),
            _ => None,
        }
    }
}
