//! Attributes of a file and its layout: the fields of `stat`, and what a client needs to reach
//! data.
//!
//! Encoded form, little-endian, `ATTRIBUTES_BYTES` long, in the order of the fields. It is part of
//! messages, of the metadata log and of the shared-memory index; a field never changes its
//! position.

use crate::codec::{Malformed, Reader, Writer};
use crate::errno::Errno;
use crate::id::Inode;
use crate::quota::Owner;

/// File type bits of a mode, as in `stat(2)`.
pub mod mode {
    /// Mask of the type bits.
    pub const TYPE: u32 = 0o170_000;
    /// Regular file.
    pub const REGULAR: u32 = 0o100_000;
    /// Directory.
    pub const DIRECTORY: u32 = 0o040_000;
    /// Symbolic link.
    pub const SYMLINK: u32 = 0o120_000;
    /// Named pipe.
    pub const FIFO: u32 = 0o010_000;
    /// Socket.
    pub const SOCKET: u32 = 0o140_000;
    /// Character device.
    pub const CHARACTER: u32 = 0o020_000;
    /// Block device.
    pub const BLOCK: u32 = 0o060_000;
    /// Permission bits, set-id and sticky bits.
    pub const PERMISSIONS: u32 = 0o7777;
    /// Set-user-id.
    pub const SET_UID: u32 = 0o4000;
    /// Set-group-id.
    pub const SET_GID: u32 = 0o2000;
    /// Sticky: in such a directory only owners delete.
    pub const STICKY: u32 = 0o1000;
}

/// Shards of a directory's entries (`Layout::spread`): `HOME`, `WIDE`, or `AUTO` with how far the
/// directory is spread.
pub mod spread {
    use crate::limits::SHARD_COUNT;

    /// All entries in one shard, `Layout::place`; children inherit it (O5).
    pub const HOME: u8 = 0;
    /// Each entry in the shard of hash(parent, name) (G3).
    pub const WIDE: u8 = 1;
    /// At home until the directory has grown; then, step by step, the entries of the first shards of
    /// the hash are spread, and the others still at home. Children begin at home.
    pub const AUTO: u8 = 2;
    /// All steps are taken: wide, and children begin at home.
    pub const WIDENED: u8 = AUTO | WIDE;

    /// Steps from `AUTO` to `WIDENED`.
    pub const STEPS: u8 = 16;
    /// Shift of the number of steps that are taken, of a directory that is neither at home nor wide.
    const STEP_SHIFT: u32 = 2;
    /// Shards of each step.
    const STEP_SHARDS: u16 = SHARD_COUNT / STEPS as u16;
    const _: () = assert!(STEP_SHARDS * STEPS as u16 == SHARD_COUNT);

    /// `AUTO` after so many steps.
    #[must_use]
    pub const fn after_steps(steps: u8) -> u8 {
        if steps < STEPS { AUTO | steps << STEP_SHIFT } else { WIDENED }
    }

    /// Steps that are taken; `HOME` has none, and `WIDE` all.
    #[must_use]
    pub const fn steps(spread: u8) -> u8 {
        if is_wide(spread) { STEPS } else { spread >> STEP_SHIFT }
    }

    /// Names whose hash belongs to a shard below this are there, the others at home.
    #[must_use]
    pub const fn wide_below(spread: u8) -> u16 {
        steps(spread) as u16 * STEP_SHARDS
    }

    /// True if no name is at home because it is the home.
    #[must_use]
    pub const fn is_wide(spread: u8) -> bool {
        spread & WIDE != 0
    }

    /// True if the spread does not change any more.
    #[must_use]
    pub const fn is_final(spread: u8) -> bool {
        spread & AUTO == 0 || is_wide(spread)
    }

    /// Of a new directory that inherits it.
    #[must_use]
    pub const fn of_new(spread: u8) -> u8 {
        if spread & AUTO != 0 { AUTO } else { spread & WIDE }
    }

    /// True for the values that there are.
    #[must_use]
    pub const fn is_known(spread: u8) -> bool {
        matches!(spread, HOME | WIDE | WIDENED)
            || spread & WIDENED == AUTO && spread >> STEP_SHIFT < STEPS
    }
}

/// Targets of a file's stripes (`Layout::placement`): one of these, or a group of targets.
pub mod placement {
    /// Each stripe on any target, by hash (G3).
    pub const HASH: u8 = 0;
    /// All stripes on the target `Layout::place`.
    pub const LOCAL: u8 = 1;
    /// Maximum size of a group: the remaining values of a byte.
    pub const GROUP_MAX: u16 = (u8::MAX - LOCAL) as u16;

    /// Stripes in turn over a group of `count` targets, 1 to `GROUP_MAX` of them (O11).
    #[must_use]
    pub const fn group(count: u16) -> Option<u8> {
        match count {
            1..=GROUP_MAX => Some(LOCAL + count as u8),
            _ => None,
        }
    }

    /// Number of targets in the group of a placement; `None` if it is not a group.
    #[must_use]
    pub const fn group_count(placement: u8) -> Option<u16> {
        match placement {
            HASH | LOCAL => None,
            group => Some((group - LOCAL) as u16),
        }
    }
}

/// Bits of `Layout::flags`.
pub mod flag {
    /// The contents are in the inode record; no target holds anything of this file.
    pub const INLINE: u8 = 1;
    /// There may be holes: the targets are asked for the space that the file takes.
    pub const SPARSE: u8 = 2;
    /// No target holds anything beyond the first stripe, so only that stripe's target has to free
    /// space. Set when a file is created; `set::LONG` clears it before extents beyond are created.
    pub const SHORT: u8 = 4;
    /// Hosts see each other's changes at once (`docs/semantics/sharing.md`, the mode `posix`).
    /// Inherited from the parent directory.
    pub const POSIX: u8 = 8;
    /// For a directory: the bits of `writeback`. Subdirectories inherit them; the files in a
    /// directory follow that directory alone.
    pub const WRITEBACK: u8 = 7 << 4;
    /// The file's extents stay in memory. Inherited from the parent directory.
    pub const PINNED: u8 = 1 << 7;
}

/// When the names of a directory, and its files in the backing store, are written back: values of
/// the bits `flag::WRITEBACK`; 0: there is no backing store.
pub mod writeback {
    /// When nobody has the file open for writing.
    pub const CLOSE: u8 = 1;
    /// When nobody has, and it was not changed for a while.
    pub const IDLE: u8 = 2;
    /// On request, at the end of the instance, or when space is short.
    pub const END: u8 = 3;
    /// Never.
    pub const NEVER: u8 = 4;
    /// As `CLOSE`; and a writer that closes or syncs the file waits until it is written back.
    pub const THROUGH: u8 = 5;
    /// Shift of the bits in `Layout::flags`.
    pub(super) const SHIFT: u32 = 4;

    /// The names of the values, as options and layouts use them.
    pub const NAMES: [(&str, u8); 5] =
        [("through", THROUGH), ("close", CLOSE), ("idle", IDLE), ("end", END), ("never", NEVER)];

    /// The name of a value; `None` if there is no backing store.
    #[must_use]
    pub fn name(value: u8) -> Option<&'static str> {
        NAMES.iter().find(|(_, known)| *known == value).map(|(name, _)| *name)
    }

    /// The value of a name.
    #[must_use]
    pub fn value(name: &[u8]) -> Option<u8> {
        NAMES.iter().find(|(known, _)| known.as_bytes() == name).map(|(_, value)| *value)
    }
}

/// Bits of `Attributes::extras`: metadata that a file has beside its attributes, so that a reader
/// of the attributes need not ask for it.
pub mod extra {
    /// It has an access control list beyond its mode.
    pub const ACCESS_ACL: u16 = 1 << 15;
    /// For a directory: it has a default list.
    pub const DEFAULT_ACL: u16 = 1 << 14;
    /// It has extended attributes, lists included.
    pub const XATTRS: u16 = 1 << 13;
    /// It has `security.capability`, which a write removes.
    pub const CAPABILITY: u16 = 1 << 12;
    /// The low bits count the changes of the lists.
    pub const CHANGES: u16 = (1 << 12) - 1;
}

/// How a file or directory is laid out. Inherited from the parent directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Layout {
    /// Of a directory: as in the module `spread`. Its lowest bit shares a byte with `pool`, the others
    /// two with `place`.
    pub spread: u8,
    /// Of a directory: the pool whose targets new files in it are stored on (`crate::pool`). Of a
    /// file: the pool that chose its target. 0: none. It shares a byte with `spread`.
    pub pool: u8,
    /// Targets of a file's stripes: `placement`. It holds the size of a group, which may be larger
    /// than the number of all targets.
    pub placement: u8,
    /// Of a directory: the copies that the bytes of new files in it have; 0: as many as the instance
    /// keeps. A file has them in its number (`Inode::copies`). It shares a byte with `stripe_log2`.
    pub copies: u8,
    /// log2 of the stripe size in bytes.
    pub stripe_log2: u8,
    /// Bits of `flag`.
    pub flags: u8,
    /// For a home directory: the shard of its entries. For a local file: its target. For another file:
    /// the number of targets over which it is placed, where that is not the number with which the
    /// instance began; 0 otherwise.
    pub place: u16,
}

/// Nanoseconds since 1970, negative before.
pub type Nanos = i64;

/// All fields of `stat`, and the layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Attributes {
    /// The file's inode number.
    pub inode: Inode,
    /// For a directory: its parent, for `..`; otherwise `Inode::NONE`.
    pub parent: Inode,
    /// Type and permission bits as in `stat(2)`.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of names. Zero: deleted but still open somewhere.
    pub links: u32,
    /// Size in bytes.
    pub size: u64,
    /// Last access.
    pub accessed: Nanos,
    /// Last change of contents.
    pub modified: Nanos,
    /// Last change of anything.
    pub changed: Nanos,
    /// Birth.
    pub born: Nanos,
    /// For a device node: its number as the kernel encodes it.
    pub device: u32,
    /// The project that it counts for (`crate::quota`); 0: none. Inherited from the parent
    /// directory.
    pub project: u32,
    /// Layout.
    pub layout: Layout,
    /// Bits of `extra`.
    pub extras: u16,
}

/// Encoded length of `Attributes`.
pub const ATTRIBUTES_BYTES: usize = 8 * 2 + 4 * 4 + 8 * 6 + 8;

/// Shift of `Attributes::extras` in the word of the layout, which leaves them free.
const EXTRAS_SHIFT: u32 = 48;

/// Bits of `Layout::spread` in the first byte of a layout; the others are the pool's.
const SPREAD: u8 = 1;
/// Shift of `Layout::pool` in that byte.
const POOL_SHIFT: u32 = 1;
const _: () = assert!(spread::WIDE == SPREAD);
/// Shift of the other bits of `Layout::spread` in the two bytes of the place.
const SPREAD_SHIFT: u32 = 11;
/// Bits of `Layout::place` there: a shard, or a number of targets.
const PLACE: u16 = (1 << SPREAD_SHIFT) - 1;
const _: () = assert!(crate::limits::SHARD_COUNT <= PLACE);
const _: () = assert!(crate::limits::DAEMON_COUNT_MAX <= PLACE);
const _: () =
    assert!((spread::after_steps(spread::STEPS - 1) as u16 >> 1) <= u16::MAX >> SPREAD_SHIFT);
const _: () = assert!(crate::pool::POOL_ID_MAX == u8::MAX >> POOL_SHIFT);

/// Shift of `Layout::copies` in the byte of the stripe size.
const COPIES_SHIFT: u32 = 6;
/// Bits of `Layout::stripe_log2` in that byte.
const STRIPE: u8 = (1 << COPIES_SHIFT) - 1;
const _: () = assert!(crate::limits::STRIPE_LOG2_MAX <= STRIPE);

/// Shift of `Attributes::project` in the word of the device.
const PROJECT_SHIFT: u32 = 32;

/// Permissions to be checked by `Attributes::permits`, as in `access(2)`.
pub mod want {
    /// May read.
    pub const READ: u32 = 4;
    /// May write.
    pub const WRITE: u32 = 2;
    /// May execute, or search a directory.
    pub const EXECUTE: u32 = 1;
}

/// True if a read at `now` updates the access time, by the rule of `relatime`: if it is no later
/// than the last change, or a day old.
#[must_use]
pub const fn is_read_late(of: &Attributes, now: Nanos) -> bool {
    const DAY_NANOS: i64 = 24 * 60 * 60 * 1_000_000_000;
    of.accessed <= of.modified
        || of.accessed <= of.changed
        || now.saturating_sub(of.accessed) >= DAY_NANOS
}

impl Attributes {
    /// Attributes of a file created now, with one name and no contents. `owner`: its user, project
    /// and group.
    #[must_use]
    pub const fn of_new(
        inode: Inode,
        mode: u32,
        owner: (Owner, u32),
        now: Nanos,
        layout: Layout,
    ) -> Attributes {
        let (Owner { uid, project }, gid) = owner;
        Attributes {
            inode,
            parent: Inode::NONE,
            mode,
            uid,
            gid,
            links: 1,
            size: 0,
            accessed: now,
            modified: now,
            changed: now,
            born: now,
            device: 0,
            project,
            layout,
            extras: 0,
        }
    }

    /// The owner whose usage it counts for.
    #[must_use]
    pub const fn owner(&self) -> Owner {
        Owner { uid: self.uid, project: self.project }
    }

    /// Size for `stat(2)`, in bytes. All directories have the same: how many entries one has is unknown
    /// until it is read from a backing store, and a size that grows while a program reads is a change
    /// for it.
    #[inline]
    #[must_use]
    pub const fn shown_size(&self) -> u64 {
        const DIRECTORY_BYTES: u64 = 4096;
        if self.is_directory() { DIRECTORY_BYTES } else { self.size }
    }

    /// True for a directory.
    #[must_use]
    pub const fn is_directory(&self) -> bool {
        self.mode & mode::TYPE == mode::DIRECTORY
    }

    /// True for a regular file.
    #[must_use]
    pub const fn is_regular(&self) -> bool {
        self.mode & mode::TYPE == mode::REGULAR
    }

    /// True for a symbolic link.
    #[must_use]
    pub const fn is_symlink(&self) -> bool {
        self.mode & mode::TYPE == mode::SYMLINK
    }

    /// True if the contents are in the inode record.
    #[must_use]
    pub const fn is_inline(&self) -> bool {
        self.layout.flags & flag::INLINE != 0
    }

    /// True if hosts see each other's changes at once.
    #[must_use]
    pub const fn is_posix(&self) -> bool {
        self.layout.flags & flag::POSIX != 0
    }

    /// True if the file is pinned in memory.
    #[must_use]
    pub const fn is_pinned(&self) -> bool {
        self.layout.flags & flag::PINNED != 0
    }

    /// True if the file may have holes.
    #[must_use]
    pub const fn is_sparse(&self) -> bool {
        self.layout.flags & flag::SPARSE != 0
    }

    /// True if it has these bits of `extra`.
    #[must_use]
    pub const fn has(&self, extras: u16) -> bool {
        self.extras & extras == extras
    }

    /// True if an access control list decides about `caller`, and not the mode. As in Linux, which
    /// ignores a list if the bits of the group, the list's mask, are all unset.
    #[must_use]
    pub const fn is_up_to_acl(&self, caller: &crate::Credentials) -> bool {
        self.has(extra::ACCESS_ACL)
            && !caller.is_privileged()
            && caller.uid != self.uid
            && self.mode & 0o070 != 0
    }

    /// Checks that `caller` may do all of `requested` (bits of `want`). The rule of `access(2)`:
    /// the first class that matches decides; root may do anything but execute a file that nobody
    /// may execute. Evaluates the mode alone: see `is_up_to_acl`.
    ///
    /// # Errors
    /// `EACCES` if not.
    pub fn permits(&self, caller: &crate::Credentials, requested: u32) -> crate::errno::Result<()> {
        if caller.is_privileged() {
            let executable = self.is_directory() || self.mode & 0o111 != 0;
            if requested & want::EXECUTE == 0 || executable {
                return Ok(());
            }
            return Err(Errno::EACCES);
        }
        let shift = if caller.uid == self.uid {
            6
        } else if caller.is_in_group(self.gid) {
            3
        } else {
            0
        };
        if (self.mode >> shift) & requested == requested { Ok(()) } else { Err(Errno::EACCES) }
    }

    /// Writes the encoded form.
    pub fn encode(&self, to: &mut Writer<'_>) {
        to.words(&self.words());
    }

    /// The encoded form as little-endian words.
    #[must_use]
    #[inline]
    pub const fn words(&self) -> [u64; ATTRIBUTES_BYTES / 8] {
        [
            self.inode.0,
            self.parent.0,
            self.mode as u64 | (self.uid as u64) << 32,
            self.gid as u64 | (self.links as u64) << 32,
            self.size,
            self.accessed.cast_unsigned(),
            self.modified.cast_unsigned(),
            self.changed.cast_unsigned(),
            self.born.cast_unsigned(),
            self.device as u64 | (self.project as u64) << PROJECT_SHIFT,
            self.layout.word() | (self.extras as u64) << EXTRAS_SHIFT,
        ]
    }

    /// The attributes of words made by `words`.
    #[must_use]
    #[inline]
    pub const fn from_words(words: &[u64; ATTRIBUTES_BYTES / 8]) -> Attributes {
        let [inode, parent, mode_uid, gid_links, size, times @ .., device, layout] = *words;
        let [accessed, modified, changed, born] = times;
        Attributes {
            inode: Inode(inode),
            parent: Inode(parent),
            mode: mode_uid as u32,
            uid: (mode_uid >> 32) as u32,
            gid: gid_links as u32,
            links: Attributes::links_in(gid_links),
            size,
            accessed: accessed.cast_signed(),
            modified: modified.cast_signed(),
            changed: changed.cast_signed(),
            born: born.cast_signed(),
            device: device as u32,
            project: (device >> PROJECT_SHIFT) as u32,
            layout: Layout::from_word(layout),
            extras: (layout >> EXTRAS_SHIFT) as u16,
        }
    }

    /// The number of links in the fourth of the words made by `words`.
    #[must_use]
    pub const fn links_in(word: u64) -> u32 {
        (word >> 32) as u32
    }

    /// Reads the encoded form.
    ///
    /// # Errors
    /// `Malformed` if the input is too short.
    pub fn decode(from: &mut Reader<'_>) -> Result<Attributes, Malformed> {
        Ok(Attributes::from_words(&from.words()?))
    }
}

impl Layout {
    /// For a directory of an instance with a backing store: its writeback mode, a value of
    /// `writeback`.
    #[must_use]
    pub const fn writeback(&self) -> u8 {
        (self.flags & flag::WRITEBACK) >> writeback::SHIFT
    }

    /// The flags with another value of `writeback`.
    #[must_use]
    pub const fn flags_with_writeback(&self, value: u8) -> u8 {
        self.flags & !flag::WRITEBACK | value << writeback::SHIFT & flag::WRITEBACK
    }

    /// The encoded form as a little-endian word.
    #[must_use]
    pub const fn word(&self) -> u64 {
        let Layout { spread, pool, placement, copies, stripe_log2, flags, place } = *self;
        let place = place & PLACE | (spread as u16 >> 1) << SPREAD_SHIFT;
        let [low, high] = place.to_le_bytes();
        let first = spread & SPREAD | pool << POOL_SHIFT;
        let third = stripe_log2 & STRIPE | copies << COPIES_SHIFT;
        u64::from_le_bytes([first, placement, third, flags, low, high, 0, 0])
    }

    /// The layout of a word made by `word`.
    #[must_use]
    pub const fn from_word(word: u64) -> Layout {
        let [first, placement, third, flags, low, high, ..] = word.to_le_bytes();
        let fourth = u16::from_le_bytes([low, high]);
        let (place, steps) = (fourth & PLACE, (fourth >> SPREAD_SHIFT) as u8);
        let (spread, pool) = (first & SPREAD | steps << 1, first >> POOL_SHIFT);
        let (stripe_log2, copies) = (third & STRIPE, third >> COPIES_SHIFT);
        Layout { spread, pool, placement, copies, stripe_log2, flags, place }
    }

    /// Writes the encoded form: four bytes, place and spread, two bytes of zero (in attributes: the
    /// extras).
    pub fn encode(&self, to: &mut Writer<'_>) {
        to.u64(self.word());
    }

    /// Reads the encoded form.
    ///
    /// # Errors
    /// `Malformed` if the input is too short.
    pub fn decode(from: &mut Reader<'_>) -> Result<Layout, Malformed> {
        Ok(Layout::from_word(from.u64()?))
    }
}
