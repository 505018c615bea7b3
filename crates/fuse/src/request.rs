//! Parsed requests. Names and data are borrowed.

use wire::codec::{Malformed, Reader};

use crate::abi::{IN_HEADER_BYTES, MINOR_MIN, flag, opcode};

/// The header of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Total length: this header, the part of fixed size and the rest.
    pub length: u32,
    /// One of `opcode`, or one of a later version.
    pub opcode: u32,
    /// Identifies the request in its reply.
    pub unique: u64,
    /// The node of the request.
    pub node: u64,
    /// User of the caller (`fsuid`), in the mount's user namespace.
    pub uid: u32,
    /// See `uid` (`fsgid`).
    pub gid: u32,
    /// The process, 0 if it is in no namespace that the mount sees.
    pub pid: u32,
}

impl Header {
    /// Reads a header.
    ///
    /// # Errors
    /// `Malformed` if it is cut off, or its total length is less than its own.
    pub fn parse(bytes: &[u8]) -> Result<Header, Malformed> {
        let mut from = Reader::new(bytes.get(..IN_HEADER_BYTES).ok_or(Malformed)?);
        let header = Header {
            length: from.u32()?,
            opcode: from.u32()?,
            unique: from.u64()?,
            node: from.u64()?,
            uid: from.u32()?,
            gid: from.u32()?,
            pid: from.u32()?,
        };
        if (header.length as usize) < IN_HEADER_BYTES { Err(Malformed) } else { Ok(header) }
    }
}

/// A time as `SETATTR` gives it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Time {
    /// Seconds since 1970, signed.
    pub seconds: u64,
    /// And nanoseconds.
    pub nanos: u32,
}

/// `SETATTR`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Change {
    /// Bits of `change`: which of the other fields are valid.
    pub valid: u32,
    /// The open file, if `change::HANDLE`.
    pub handle: u64,
    /// New size.
    pub size: u64,
    /// The owner of locks.
    pub lock_owner: u64,
    /// Access, modification, change.
    pub times: [Time; 3],
    /// New mode.
    pub mode: u32,
    /// New owner.
    pub uid: u32,
    /// New group.
    pub gid: u32,
}

/// A lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lock {
    /// The open file.
    pub handle: u64,
    /// The owner of the lock: a process, or an open file.
    pub owner: u64,
    /// First byte.
    pub start: u64,
    /// Last byte; `i64::MAX`: to the end.
    pub end: u64,
    /// `F_RDLCK`, `F_WRLCK`, `F_UNLCK`.
    pub kind: u32,
    /// The process.
    pub pid: u32,
    /// It is a `flock`.
    pub is_flock: bool,
}

/// The first request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Init {
    /// Version: 7.
    pub major: u32,
    /// Minor version.
    pub minor: u32,
    /// Maximum readahead in bytes.
    pub max_readahead: u32,
    /// Bits of `capability` that the kernel has.
    pub capabilities: u64,
}

/// `COPY_FILE_RANGE`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Copy {
    /// The open file that is read.
    pub from: u64,
    /// Offset there.
    pub from_offset: u64,
    /// The node that is written.
    pub to_node: u64,
    /// The open file that is written.
    pub to: u64,
    /// Offset there.
    pub to_offset: u64,
    /// Bytes.
    pub length: u64,
}

/// Nodes that the kernel forgets, and the number of look-ups of each.
#[derive(Clone)]
pub struct Forgets<'a> {
    count: u32,
    from: Reader<'a>,
}

impl Iterator for Forgets<'_> {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        self.count = self.count.checked_sub(1)?;
        Some((self.from.u64().ok()?, self.from.u64().ok()?))
    }
}

/// The operation of a request. Names have no NUL.
#[derive(Clone)]
#[expect(missing_docs, reason = "fields are the arguments of the system call of that name")]
pub enum Operation<'a> {
    /// See `opcode` for this and all others.
    Lookup {
        name: &'a [u8],
    },
    Forget {
        lookups: u64,
    },
    BatchForget(Forgets<'a>),
    GetAttributes {
        handle: Option<u64>,
    },
    SetAttributes(Change),
    ReadLink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    MakeNode {
        name: &'a [u8],
        mode: u32,
        device: u32,
        umask: u32,
    },
    MakeDirectory {
        name: &'a [u8],
        mode: u32,
        umask: u32,
    },
    Unlink {
        name: &'a [u8],
    },
    RemoveDirectory {
        name: &'a [u8],
    },
    Rename {
        name: &'a [u8],
        to_directory: u64,
        to_name: &'a [u8],
        flags: u32,
    },
    Link {
        node: u64,
        name: &'a [u8],
    },
    Open {
        flags: u32,
        kills_ids: bool,
    },
    Create {
        name: &'a [u8],
        flags: u32,
        mode: u32,
        umask: u32,
        kills_ids: bool,
    },
    TemporaryFile {
        flags: u32,
        mode: u32,
        umask: u32,
    },
    Read {
        handle: u64,
        offset: u64,
        size: u32,
        flags: u32,
    },
    Write {
        handle: u64,
        offset: u64,
        flags: u32,
        data: &'a [u8],
    },
    StatFs,
    Release {
        handle: u64,
        lock_owner: u64,
        unlocks: bool,
    },
    Flush {
        handle: u64,
        lock_owner: u64,
    },
    Sync {
        handle: u64,
        data_only: bool,
    },
    SetXattr {
        name: &'a [u8],
        value: &'a [u8],
        flags: u32,
        kills_sgid: bool,
    },
    GetXattr {
        name: &'a [u8],
        size: u32,
    },
    ListXattr {
        size: u32,
    },
    RemoveXattr {
        name: &'a [u8],
    },
    Init(Init),
    OpenDirectory {
        flags: u32,
    },
    ReadDirectory {
        handle: u64,
        offset: u64,
        size: u32,
        with_attributes: bool,
    },
    ReleaseDirectory {
        handle: u64,
    },
    SyncDirectory {
        handle: u64,
    },
    GetLock(Lock),
    SetLock {
        lock: Lock,
        waits: bool,
    },
    Access {
        mask: u32,
    },
    Interrupt {
        unique: u64,
    },
    Destroy,
    Ioctl {
        handle: u64,
        command: u32,
        data: &'a [u8],
        /// Maximum length of the answer.
        reply_bytes_max: u32,
    },
    Poll {
        handle: u64,
    },
    Allocate {
        handle: u64,
        offset: u64,
        length: u64,
        mode: u32,
    },
    Seek {
        handle: u64,
        offset: u64,
        whence: u32,
    },
    CopyRange(Copy),
    /// Pages that the kernel sends because of a notification; their contents are ignored.
    Retrieved,
    SyncAll,
    Statx {
        handle: Option<u64>,
        mask: u32,
    },
    /// An operation that this crate does not know.
    Unknown,
}

/// Length of the part of fixed size of an operation; `has_long_xattr`: `SETXATTR_EXT` was agreed
/// on.
#[must_use]
pub const fn fixed_bytes(opcode: u32, has_long_xattr: bool) -> usize {
    match opcode {
        opcode::SETXATTR if has_long_xattr => 16,
        opcode::FORGET
        | opcode::BATCH_FORGET
        | opcode::MKDIR
        | opcode::RENAME
        | opcode::LINK
        | opcode::OPEN
        | opcode::OPENDIR
        | opcode::SETXATTR
        | opcode::GETXATTR
        | opcode::LISTXATTR
        | opcode::ACCESS
        | opcode::INTERRUPT
        | opcode::SYNCFS => 8,
        opcode::GETATTR
        | opcode::MKNOD
        | opcode::RENAME2
        | opcode::CREATE
        | opcode::TMPFILE
        | opcode::FSYNC
        | opcode::FSYNCDIR => 16,
        opcode::RELEASE
        | opcode::RELEASEDIR
        | opcode::FLUSH
        | opcode::POLL
        | opcode::LSEEK
        | opcode::STATX => 24,
        opcode::IOCTL | opcode::FALLOCATE => 32,
        opcode::READ | opcode::READDIR | opcode::READDIRPLUS | opcode::WRITE => 40,
        opcode::GETLK | opcode::SETLK | opcode::SETLKW => 48,
        opcode::COPY_FILE_RANGE => 56,
        opcode::INIT => 16,
        opcode::SETATTR => 88,
        _ => 0,
    }
}

/// Takes the next name off, up to its NUL.
fn name<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], Malformed> {
    let end = rest.iter().position(|&byte| byte == 0).ok_or(Malformed)?;
    let (name, after) = rest.split_at_checked(end).ok_or(Malformed)?;
    *rest = after.get(1..).ok_or(Malformed)?;
    if name.is_empty() { Err(Malformed) } else { Ok(name) }
}

impl<'a> Operation<'a> {
    /// True for an operation that may release locks: no mount may be notified of those meanwhile.
    #[must_use]
    pub const fn may_end_locks(&self) -> bool {
        matches!(
            self,
            Operation::Release { .. } | Operation::Flush { .. } | Operation::SetLock { .. }
        )
    }

    /// Parses the bytes after the header in one piece.
    ///
    /// # Errors
    /// `Malformed` if something is missing.
    pub fn parse(
        opcode: u32,
        body: &'a [u8],
        has_long_xattr: bool,
    ) -> Result<Operation<'a>, Malformed> {
        let bytes = fixed_bytes(opcode, has_long_xattr);
        let (fixed, rest) = body.split_at_checked(bytes).ok_or(Malformed)?;
        Operation::of(opcode, fixed, rest)
    }

    /// Parses the two parts after the header.
    ///
    /// # Errors
    /// `Malformed` if something is missing.
    pub fn of(opcode: u32, fixed: &'a [u8], rest: &'a [u8]) -> Result<Operation<'a>, Malformed> {
        let from = Reader::new(fixed);
        match opcode {
            opcode::LOOKUP
            | opcode::SYMLINK
            | opcode::MKNOD
            | opcode::MKDIR
            | opcode::UNLINK
            | opcode::RMDIR
            | opcode::RENAME
            | opcode::RENAME2
            | opcode::LINK
            | opcode::CREATE => named(opcode, from, rest),
            opcode::SETXATTR | opcode::GETXATTR | opcode::LISTXATTR | opcode::REMOVEXATTR => {
                xattr(opcode, from, rest)
            }
            opcode::IOCTL => ioctl(from, rest),
            opcode::READ
            | opcode::WRITE
            | opcode::FALLOCATE
            | opcode::LSEEK
            | opcode::COPY_FILE_RANGE
            | opcode::READDIR
            | opcode::READDIRPLUS => data(opcode, from, rest),
            opcode::GETLK | opcode::SETLK | opcode::SETLKW => lock(opcode, from),
            opcode::FORGET | opcode::BATCH_FORGET => forget(opcode, from, rest),
            opcode::SETATTR => change(from),
            opcode::INIT => init(from, rest),
            _ => other(opcode, from),
        }
    }
}

/// Operations on names.
fn named<'a>(
    opcode: u32,
    mut from: Reader<'a>,
    mut rest: &'a [u8],
) -> Result<Operation<'a>, Malformed> {
    let rest = &mut rest;
    Ok(match opcode {
        opcode::LOOKUP => Operation::Lookup { name: name(rest)? },
        opcode::SYMLINK => Operation::Symlink { name: name(rest)?, target: name(rest)? },
        opcode::UNLINK => Operation::Unlink { name: name(rest)? },
        opcode::RMDIR => Operation::RemoveDirectory { name: name(rest)? },
        opcode::MKNOD => {
            let (mode, device, umask) = (from.u32()?, from.u32()?, from.u32()?);
            Operation::MakeNode { name: name(rest)?, mode, device, umask }
        }
        opcode::MKDIR => {
            let (mode, umask) = (from.u32()?, from.u32()?);
            Operation::MakeDirectory { name: name(rest)?, mode, umask }
        }
        opcode::LINK => Operation::Link { node: from.u64()?, name: name(rest)? },
        opcode::CREATE => {
            let (flags, mode, umask) = (from.u32()?, from.u32()?, from.u32()?);
            let kills_ids = from.u32()? & flag::OPEN_KILL_SUIDGID != 0;
            Operation::Create { name: name(rest)?, flags, mode, umask, kills_ids }
        }
        _ => {
            let to_directory = from.u64()?;
            let flags = if opcode == opcode::RENAME2 { from.u32()? } else { 0 };
            Operation::Rename { name: name(rest)?, to_directory, to_name: name(rest)?, flags }
        }
    })
}

/// Extended attributes.
fn xattr<'a>(
    opcode: u32,
    mut from: Reader<'a>,
    mut rest: &'a [u8],
) -> Result<Operation<'a>, Malformed> {
    let rest = &mut rest;
    Ok(match opcode {
        opcode::SETXATTR => {
            let (size, flags) = (from.u32()?, from.u32()?);
            let kills_sgid = from.u32().unwrap_or(0) & flag::SETXATTR_KILL_SGID != 0;
            let name = name(rest)?;
            let value = rest.get(..size as usize).ok_or(Malformed)?;
            Operation::SetXattr { name, value, flags, kills_sgid }
        }
        opcode::GETXATTR => Operation::GetXattr { size: from.u32()?, name: name(rest)? },
        opcode::LISTXATTR => Operation::ListXattr { size: from.u32()? },
        _ => Operation::RemoveXattr { name: name(rest)? },
    })
}

/// Operations on ranges of an open file or directory.
fn data<'a>(opcode: u32, mut from: Reader<'a>, rest: &'a [u8]) -> Result<Operation<'a>, Malformed> {
    let (handle, offset) = (from.u64()?, from.u64()?);
    Ok(match opcode {
        opcode::READ => Operation::Read { handle, offset, size: from.u32()?, flags: from.u32()? },
        opcode::WRITE => {
            let (size, flags) = (from.u32()?, from.u32()?);
            let data = rest.get(..size as usize).ok_or(Malformed)?;
            Operation::Write { handle, offset, flags, data }
        }
        opcode::FALLOCATE => {
            let (length, mode) = (from.u64()?, from.u32()?);
            Operation::Allocate { handle, offset, length, mode }
        }
        opcode::LSEEK => Operation::Seek { handle, offset, whence: from.u32()? },
        opcode::COPY_FILE_RANGE => Operation::CopyRange(Copy {
            from: handle,
            from_offset: offset,
            to_node: from.u64()?,
            to: from.u64()?,
            to_offset: from.u64()?,
            length: from.u64()?,
        }),
        _ => {
            let with_attributes = opcode == opcode::READDIRPLUS;
            Operation::ReadDirectory { handle, offset, size: from.u32()?, with_attributes }
        }
    })
}

fn lock(opcode: u32, mut from: Reader<'_>) -> Result<Operation<'static>, Malformed> {
    let lock = Lock {
        handle: from.u64()?,
        owner: from.u64()?,
        start: from.u64()?,
        end: from.u64()?,
        kind: from.u32()?,
        pid: from.u32()?,
        is_flock: from.u32()? & flag::LOCK_FLOCK != 0,
    };
    Ok(match opcode {
        opcode::GETLK => Operation::GetLock(lock),
        _ => Operation::SetLock { lock, waits: opcode == opcode::SETLKW },
    })
}

fn forget<'a>(
    opcode: u32,
    mut from: Reader<'a>,
    rest: &'a [u8],
) -> Result<Operation<'a>, Malformed> {
    Ok(match opcode {
        opcode::FORGET => Operation::Forget { lookups: from.u64()? },
        _ => Operation::BatchForget(Forgets { count: from.u32()?, from: Reader::new(rest) }),
    })
}

fn change(mut from: Reader<'_>) -> Result<Operation<'static>, Malformed> {
    let valid = from.u32()?;
    from.u32()?;
    let (handle, size, lock_owner) = (from.u64()?, from.u64()?, from.u64()?);
    let mut times = [Time::default(); 3];
    for time in &mut times {
        time.seconds = from.u64()?;
    }
    for time in &mut times {
        time.nanos = from.u32()?;
    }
    let mode = from.u32()?;
    from.u32()?;
    let (uid, gid) = (from.u32()?, from.u32()?);
    Ok(Operation::SetAttributes(Change { valid, handle, size, lock_owner, times, mode, uid, gid }))
}

/// The second word of capabilities is at the start of the rest.
fn init<'a>(mut from: Reader<'a>, rest: &'a [u8]) -> Result<Operation<'a>, Malformed> {
    let (major, minor, max_readahead) = (from.u32()?, from.u32()?, from.u32()?);
    let low = from.u32()?;
    let is_long = minor >= MINOR_MIN && u64::from(low) & crate::abi::capability::INIT_EXT != 0;
    let high = if is_long { Reader::new(rest).u32()? } else { 0 };
    let capabilities = u64::from(high) << 32 | u64::from(low);
    Ok(Operation::Init(Init { major, minor, max_readahead, capabilities }))
}

fn ioctl<'a>(mut from: Reader<'a>, rest: &'a [u8]) -> Result<Operation<'a>, Malformed> {
    let (handle, _flags, command) = (from.u64()?, from.u32()?, from.u32()?);
    let (_argument, size, reply_bytes_max) = (from.u64()?, from.u32()?, from.u32()?);
    let data = rest.get(..size as usize).ok_or(Malformed)?;
    Ok(Operation::Ioctl { handle, command, data, reply_bytes_max })
}

/// All others.
fn other(opcode: u32, mut from: Reader<'_>) -> Result<Operation<'static>, Malformed> {
    Ok(match opcode {
        opcode::GETATTR | opcode::STATX => {
            let flags = from.u32()?;
            from.u32()?;
            let handle = from.u64()?;
            let handle = (flags & flag::GETATTR_HANDLE != 0).then_some(handle);
            if opcode == opcode::GETATTR {
                Operation::GetAttributes { handle }
            } else {
                from.u32()?;
                Operation::Statx { handle, mask: from.u32()? }
            }
        }
        opcode::READLINK => Operation::ReadLink,
        opcode::OPEN => {
            let flags = from.u32()?;
            Operation::Open { flags, kills_ids: from.u32()? & flag::OPEN_KILL_SUIDGID != 0 }
        }
        opcode::TMPFILE => {
            Operation::TemporaryFile { flags: from.u32()?, mode: from.u32()?, umask: from.u32()? }
        }
        opcode::STATFS => Operation::StatFs,
        opcode::RELEASE | opcode::RELEASEDIR => {
            let handle = from.u64()?;
            from.u32()?;
            let unlocks = from.u32()? & flag::RELEASE_FLOCK_UNLOCK != 0;
            match opcode {
                opcode::RELEASEDIR => Operation::ReleaseDirectory { handle },
                _ => Operation::Release { handle, lock_owner: from.u64()?, unlocks },
            }
        }
        opcode::FLUSH => {
            let handle = from.u64()?;
            from.u64()?;
            Operation::Flush { handle, lock_owner: from.u64()? }
        }
        opcode::FSYNC => {
            let handle = from.u64()?;
            Operation::Sync { handle, data_only: from.u32()? & flag::FSYNC_DATA != 0 }
        }
        opcode::FSYNCDIR => Operation::SyncDirectory { handle: from.u64()? },
        opcode::OPENDIR => Operation::OpenDirectory { flags: from.u32()? },
        opcode::ACCESS => Operation::Access { mask: from.u32()? },
        opcode::INTERRUPT => Operation::Interrupt { unique: from.u64()? },
        opcode::DESTROY => Operation::Destroy,
        opcode::POLL => Operation::Poll { handle: from.u64()? },
        opcode::SYNCFS => Operation::SyncAll,
        opcode::NOTIFY_REPLY => Operation::Retrieved,
        _ => Operation::Unknown,
    })
}
