//! Named limits. Every bound that more than one crate relies on is here, with its reason.

/// One kibibyte.
pub const KIB: u64 = 1024;
/// One mebibyte.
pub const MIB: u64 = 1024 * KIB;

/// Version of every message and shared-memory layout. Two sides with different versions do not
/// talk.
pub const PROTOCOL_VERSION: u32 = 33;

/// Longest file name in bytes, as on every local file system.
pub const NAME_BYTES_MAX: usize = 255;
/// Longest path in bytes, with its terminating NUL, as `PATH_MAX` of Linux.
pub const PATH_BYTES_MAX: usize = 4096;
/// Maximum number of names in one `Walk`; a longer path takes another.
pub const WALK_NAMES_MAX: usize = 8;
/// Longest target of a symbolic link: a path without its NUL.
pub const SYMLINK_BYTES_MAX: usize = PATH_BYTES_MAX - 1;
/// Maximum number of symbolic links followed in one look-up before ELOOP, as in Linux.
pub const SYMLINKS_FOLLOWED_MAX: u32 = 40;
/// Longest name of an extended attribute.
pub const XATTR_NAME_BYTES_MAX: usize = 255;
/// Longest value of an extended attribute that Linux accepts at all.
pub const XATTR_SIZE_MAX: usize = 64 * 1024;
/// Longest value of an extended attribute. It must fit one message with its name.
pub const XATTR_VALUE_BYTES_MAX: usize = 8 * 1024;
/// Largest file: offsets are signed 64-bit in every system call.
pub const FILE_BYTES_MAX: u64 = i64::MAX as u64;
/// Maximum number of hard links of one file.
pub const LINKS_MAX: u32 = 65_000;

/// Number of metadata shards of an instance, fixed for its life. 1024 spread evenly over up to a
/// few hundred daemons, and the table of their owners is 2 KiB.
pub const SHARD_COUNT: u16 = 1024;
/// Maximum number of daemons of one instance that fit the map as it is sent to clients.
pub const DAEMON_COUNT_MAX: u16 = 1024;
/// Maximum number of units of file data with copies: the membership, which has them, goes to others in
/// one frame (`cluster::units`).
pub const UNIT_COUNT_MAX: usize = 6144;
/// Maximum number of units of one target, of all numbers of copies together (`replicas::placement`).
pub const UNITS_PER_TARGET_MAX: u16 = 64;

/// The numbers of copies in units that files may have, in an instance that keeps so many unless a
/// directory says otherwise: that one first. Files with one copy are in no unit.
pub fn copy_goals(kept: u8) -> impl ExactSizeIterator<Item = u8> {
    (2..=kept).rev()
}

/// Units of one target for one number of copies, in an instance that begins with so many daemons and
/// offers so many numbers: 64 for 96 daemons and one number, 32 for two, 6 and 3 for 1,024. So an
/// instance has as many units whatever it offers.
#[must_use]
pub fn units_per_target(daemons: usize, goals: usize) -> u16 {
    let goals = goals.max(1);
    let most = usize::from(UNITS_PER_TARGET_MAX).min(UNIT_COUNT_MAX / daemons.max(1));
    u16::try_from(most / goals).unwrap_or(u16::MAX).max(1)
}

/// Maximum number of worker threads of one daemon.
pub const WORKER_COUNT_MAX: usize = 16;

/// Contents up to this size may be in the inode record. One page: it must fit a message beside the
/// attributes, and a larger file is cheaper in an arena.
pub const INLINE_BYTES_MAX: usize = 4096;

/// Maximum length of a request or reply in a session slot, header included.
pub const SLOT_BYTES: usize = 16 * 1024;
/// Slots of one session: more threads than this in one process wait for each other.
pub const SLOT_COUNT: usize = 64;
/// Slots of one session, plus reply slots for replies that may take long: waits for locks. So many
/// processes of a host may wait through one mount, and as many of a program with its children.
pub const ANSWER_SLOT_COUNT: usize = 4096;
/// Reply slots of one session.
pub const REPLY_SLOT_COUNT: usize = ANSWER_SLOT_COUNT - SLOT_COUNT;

/// Maximum amount of data in one message between daemons.
pub const BULK_BYTES: usize = MIB as usize;

/// Maximum number of files in one `Request::Remove`: enough that the message costs little for each,
/// few enough that a target processes them in less than a millisecond. They fit a slot.
pub const REMOVE_COUNT_MAX: usize = 1024;

/// Size of a bounce buffer of a session, through which data of other hosts moves. Small enough that
/// bytes copied by one side are still in a cache when the other copies them on; large enough that a
/// message for each costs little.
pub const BOUNCE_BUFFER_BYTES: usize = 256 * KIB as usize;
/// Bounce buffers of a session: 8 MiB for each client process, however many servers there are,
/// touched as they are used.
pub const BOUNCE_BUFFER_COUNT: usize = 32;

/// Smallest extent of a file in a target (see `placement::extent`).
pub const EXTENT_BYTES_MIN: u64 = 4 * KIB;
/// Smallest and largest stripe size, as powers of two.
pub const STRIPE_LOG2_MIN: u8 = 16;
/// See `STRIPE_LOG2_MIN`. The amount that a client stopped inside a copy may hold.
pub const STRIPE_LOG2_MAX: u8 = 26;

/// Longest frame between daemons: the maximum of data and a slot's length of header.
pub const FRAME_BYTES_MAX: usize = BULK_BYTES + SLOT_BYTES;

const _: () = assert!(XATTR_VALUE_BYTES_MAX + XATTR_NAME_BYTES_MAX + 512 <= SLOT_BYTES);
const _: () = assert!(INLINE_BYTES_MAX + 1024 <= SLOT_BYTES);
const _: () = assert!(SYMLINK_BYTES_MAX + NAME_BYTES_MAX + 1024 <= SLOT_BYTES);
const _: () = assert!(8 * REMOVE_COUNT_MAX + 1024 <= SLOT_BYTES);
const _: () = assert!(SHARD_COUNT.is_power_of_two());
