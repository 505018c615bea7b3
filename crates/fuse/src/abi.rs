//! Numbers of the interface, as in `linux/fuse.h` of Linux 6.18. No code.

/// Length of the header before each request.
pub const IN_HEADER_BYTES: usize = 40;
/// Length of the header before each reply.
pub const OUT_HEADER_BYTES: usize = 16;
/// The version in use: 7, and at most this.
pub const MINOR: u32 = 44;
/// The oldest supported minor version: Linux 5.4.
pub const MINOR_MIN: u32 = 31;
/// The node of the root.
pub const ROOT: u64 = 1;

/// Operations.
pub mod opcode {
    /// Looks up a name of a directory.
    pub const LOOKUP: u32 = 1;
    /// The kernel forgets a node. No reply.
    pub const FORGET: u32 = 2;
    /// `stat`.
    pub const GETATTR: u32 = 3;
    /// `chmod`, `chown`, `truncate`, `utimensat`.
    pub const SETATTR: u32 = 4;
    /// `readlink`.
    pub const READLINK: u32 = 5;
    /// `symlink`.
    pub const SYMLINK: u32 = 6;
    /// `mknod`.
    pub const MKNOD: u32 = 8;
    /// `mkdir`.
    pub const MKDIR: u32 = 9;
    /// `unlink`.
    pub const UNLINK: u32 = 10;
    /// `rmdir`.
    pub const RMDIR: u32 = 11;
    /// `rename`.
    pub const RENAME: u32 = 12;
    /// `link`.
    pub const LINK: u32 = 13;
    /// `open`.
    pub const OPEN: u32 = 14;
    /// `read`.
    pub const READ: u32 = 15;
    /// `write`.
    pub const WRITE: u32 = 16;
    /// `statfs`.
    pub const STATFS: u32 = 17;
    /// The last descriptor of an open file is closed.
    pub const RELEASE: u32 = 18;
    /// `fsync`.
    pub const FSYNC: u32 = 20;
    /// `setxattr`.
    pub const SETXATTR: u32 = 21;
    /// `getxattr`.
    pub const GETXATTR: u32 = 22;
    /// `listxattr`.
    pub const LISTXATTR: u32 = 23;
    /// `removexattr`.
    pub const REMOVEXATTR: u32 = 24;
    /// A descriptor is closed.
    pub const FLUSH: u32 = 25;
    /// The first request.
    pub const INIT: u32 = 26;
    /// `open` of a directory.
    pub const OPENDIR: u32 = 27;
    /// `getdents`.
    pub const READDIR: u32 = 28;
    /// As `RELEASE`, for a directory.
    pub const RELEASEDIR: u32 = 29;
    /// `fsync` of a directory.
    pub const FSYNCDIR: u32 = 30;
    /// `F_GETLK`.
    pub const GETLK: u32 = 31;
    /// `F_SETLK`, `flock` without waiting.
    pub const SETLK: u32 = 32;
    /// `F_SETLKW`, `flock` with waiting.
    pub const SETLKW: u32 = 33;
    /// `access`, where the kernel does not check it.
    pub const ACCESS: u32 = 34;
    /// `open` with `O_CREAT` of a name that does not exist.
    pub const CREATE: u32 = 35;
    /// A signal interrupted the waiter of a request.
    pub const INTERRUPT: u32 = 36;
    /// The last request.
    pub const DESTROY: u32 = 38;
    /// `ioctl`.
    pub const IOCTL: u32 = 39;
    /// `poll`.
    pub const POLL: u32 = 40;
    /// The answer to `notify::RETRIEVE`. No reply.
    pub const NOTIFY_REPLY: u32 = 41;
    /// Many `FORGET`s. No reply.
    pub const BATCH_FORGET: u32 = 42;
    /// `fallocate`.
    pub const FALLOCATE: u32 = 43;
    /// `READDIR` with the result of `LOOKUP` for each name.
    pub const READDIRPLUS: u32 = 44;
    /// `renameat2`.
    pub const RENAME2: u32 = 45;
    /// `lseek` with `SEEK_DATA` or `SEEK_HOLE`.
    pub const LSEEK: u32 = 46;
    /// `copy_file_range`.
    pub const COPY_FILE_RANGE: u32 = 47;
    /// `syncfs`.
    pub const SYNCFS: u32 = 50;
    /// `open` with `O_TMPFILE`.
    pub const TMPFILE: u32 = 51;
    /// `statx`.
    pub const STATX: u32 = 52;
}

/// Capabilities of kernel and file system, bits 32 and up in the second word.
pub mod capability {
    /// Several reads of a file at a time.
    pub const ASYNC_READ: u64 = 1 << 0;
    /// POSIX locks are sent as requests.
    pub const POSIX_LOCKS: u64 = 1 << 1;
    /// `O_TRUNC` comes with the open.
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    /// `.` and `..` may be looked up.
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    /// Writes of more than a page.
    pub const BIG_WRITES: u64 = 1 << 5;
    /// The umask is left to the file system, which knows default ACLs.
    pub const DONT_MASK: u64 = 1 << 6;
    /// `flock` is sent as a request.
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    /// Cached pages are dropped when size or time of modification changed elsewhere.
    pub const AUTO_INVAL_DATA: u64 = 1 << 12;
    /// `READDIRPLUS`.
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    /// `READDIRPLUS` only where it was useful before.
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    /// Several direct transfers at a time.
    pub const ASYNC_DIO: u64 = 1 << 15;
    /// Look-ups and listings of one directory at a time.
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    /// Access control lists, checked by the kernel.
    pub const POSIX_ACL: u64 = 1 << 20;
    /// The device reports when it was aborted.
    pub const ABORT_ERROR: u64 = 1 << 21;
    /// Requests of more than 32 pages.
    pub const MAX_PAGES: u64 = 1 << 22;
    /// Targets of symbolic links are cached.
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    /// Directories are opened without a request.
    pub const NO_OPENDIR: u64 = 1 << 24;
    /// Cached pages are dropped only on request.
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    /// A write clears set-id bits, by a bit in the request.
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    /// `SETXATTR` has two more words.
    pub const SETXATTR_EXT: u64 = 1 << 29;
    /// There is a second word of capabilities.
    pub const INIT_EXT: u64 = 1 << 30;
    /// Names can expire without being dropped.
    pub const HAS_EXPIRE_ONLY: u64 = 1 << 35;
    /// Direct writers may map, too.
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    /// Reads and writes may pass through to another file inside the kernel.
    pub const PASSTHROUGH: u64 = 1 << 37;
    /// Requests by rings.
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// Bits of `SETATTR`.
pub mod change {
    /// The mode.
    pub const MODE: u32 = 1 << 0;
    /// The owner.
    pub const UID: u32 = 1 << 1;
    /// The group.
    pub const GID: u32 = 1 << 2;
    /// The size.
    pub const SIZE: u32 = 1 << 3;
    /// The time of access.
    pub const ATIME: u32 = 1 << 4;
    /// The time of modification.
    pub const MTIME: u32 = 1 << 5;
    /// There is a handle.
    pub const HANDLE: u32 = 1 << 6;
    /// The time of access: now.
    pub const ATIME_NOW: u32 = 1 << 7;
    /// The time of modification: now.
    pub const MTIME_NOW: u32 = 1 << 8;
    /// There is an owner of locks.
    pub const LOCK_OWNER: u32 = 1 << 9;
    /// The time of change.
    pub const CTIME: u32 = 1 << 10;
    /// Clears set-id bits.
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// Bits of the answer to an open.
pub mod open {
    /// No page of it is cached.
    pub const DIRECT_IO: u32 = 1 << 0;
    /// Cached pages stay valid.
    pub const KEEP_CACHE: u32 = 1 << 1;
    /// The listing may be cached.
    pub const CACHE_DIR: u32 = 1 << 3;
    /// No `FLUSH` at a close.
    pub const NOFLUSH: u32 = 1 << 5;
    /// Several direct writes at a time.
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
    /// Reads and writes pass through to another file inside the kernel.
    pub const PASSTHROUGH: u32 = 1 << 7;
}

/// Bits of requests.
pub mod flag {
    /// `GETATTR`: there is a handle.
    pub const GETATTR_HANDLE: u32 = 1 << 0;
    /// `OPEN`, `CREATE`: clears set-id bits.
    pub const OPEN_KILL_SUIDGID: u32 = 1 << 0;
    /// `WRITE`: from the page cache; the handle is a guess.
    pub const WRITE_CACHE: u32 = 1 << 0;
    /// `READ`, `WRITE`: on behalf of a program. Without it pages are read, or cached pages are
    /// written.
    pub const LOCK_OWNER: u32 = 1 << 1;
    /// `WRITE`: clears set-id bits.
    pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
    /// `RELEASE`: releases `flock`s.
    pub const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
    /// Locks: a `flock`.
    pub const LOCK_FLOCK: u32 = 1 << 0;
    /// `FSYNC`: data alone.
    pub const FSYNC_DATA: u32 = 1 << 0;
    /// `SETXATTR`: clears the set-group-id bit.
    pub const SETXATTR_KILL_SGID: u32 = 1 << 0;
}

/// Notifications to the kernel.
pub mod notify {
    /// Attributes and pages of a node are invalid.
    pub const INVAL_INODE: u32 = 2;
    /// A name is invalid.
    pub const INVAL_ENTRY: u32 = 3;
    /// Requests pages of a node, which come as a request.
    pub const RETRIEVE: u32 = 5;
    /// A name is gone.
    pub const DELETE: u32 = 6;
    /// All names are invalid. From version 7.44 on.
    pub const INC_EPOCH: u32 = 8;
}
