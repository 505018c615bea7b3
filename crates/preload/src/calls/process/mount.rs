//! The mount at the prefix, if the command has one: `FOREBAY_MOUNTED` says so.
//!
//! With it, this library only accelerates: what it does not intercept reaches the same files
//! through the kernel. State of the kernel then stays with the kernel: the working directory is the
//! mount's, and a descriptor of a directory is one of the mount. Both are asked for by the inode
//! number, which a mount shows unchanged. Without it (*preload-only*) the kernel knows nothing of
//! the instance, and the library keeps such state itself.
//!
//! Invariant: nothing here makes a request to the server of the mount except by opening: `statx`
//! with `AT_STATX_DONT_SYNC` is answered from the kernel's cache.

use crate::calls::names::paths::{AT_CWD, Text};
use crate::calls::native;
use crate::calls::process::state;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU8, AtomicU64};
use wire::Inode;

/// The variable that says that the instance is mounted at the prefix.
pub const VARIABLE: &[u8] = b"FOREBAY_MOUNTED";

/// Device number of the mount; 0: there is none.
static DEVICE: AtomicU64 = AtomicU64::new(0);

/// 1: this process could not attach, or should not.
static IS_ONLY_WAY: AtomicU8 = AtomicU8::new(0);

/// Records that this process could not attach, or should not. It does not try again.
pub fn note_only_way() {
    IS_ONLY_WAY.store(1, Relaxed);
}

/// True if this process uses the mount alone.
#[must_use]
pub fn is_only_way() -> bool {
    IS_ONLY_WAY.load(Relaxed) != 0
}

/// A file as the kernel identifies it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// `st_dev`.
    pub device: u64,
    /// `st_ino`.
    pub inode: u64,
}

/// The identity of a path, or of `directory` itself if `path` is empty, without following a link.
#[must_use]
pub fn identity(directory: u64, path: &Text) -> Option<Identity> {
    // `struct statx` has 256 bytes: the inode number is at 32, the device's two numbers at 136.
    let mut statx = [0u64; 32];
    let to = statx.as_mut_ptr() as u64;
    let flags = (libc::AT_EMPTY_PATH | libc::AT_SYMLINK_NOFOLLOW | libc::AT_STATX_DONT_SYNC) as u64;
    let request = u64::from(libc::STATX_INO);
    let args = [directory, path.address(), flags, request, to, 0];
    if native::call(libc::SYS_statx, args) != 0 {
        return None;
    }
    let (inode, device) = (*statx.get(4)?, *statx.get(17)?);
    Some(Identity { device: libc::makedev(device as u32, (device >> 32) as u32), inode })
}

/// Finds the mount, in the constructor, after the prefix is known. Something else may be mounted
/// there in this namespace of mounts; it is then not used.
pub fn prepare() {
    let mut prefix = [0; state::SETTING_BYTES_MAX];
    let length = state::instance_prefix(&mut prefix);
    let prefix = Text::new(prefix.get(..length).unwrap_or(&[]));
    if let Some(root) = identity(AT_CWD, &prefix).filter(|root| root.inode == Inode::ROOT.0) {
        DEVICE.store(root.device, Release);
    }
}

/// True if the instance is mounted at the prefix.
#[must_use]
#[inline]
pub fn is_there() -> bool {
    DEVICE.load(Acquire) != 0
}

/// The device number that files have on the mount; `otherwise` without one.
#[must_use]
pub fn device_or(otherwise: u64) -> u64 {
    match DEVICE.load(Relaxed) {
        0 => otherwise,
        device => device,
    }
}

/// The inode that the kernel has for a descriptor, or for the working directory with `AT_CWD`, if it
/// is on the mount.
#[must_use]
pub fn inode_of(descriptor: u64) -> Option<Inode> {
    let it = identity(descriptor, &Text::new(b""))?;
    (is_there() && it.device == DEVICE.load(Acquire)).then_some(Inode(it.inode))
}

/// Opens a directory, or any file with `O_PATH`, on the mount, beside its open file in the instance:
/// the descriptor of the kernel that stands for it. Descriptors of files need none.
///
/// `None`: the path leads elsewhere by now; the caller uses a placeholder.
#[must_use]
pub fn open_beside(directory: u64, path: u64, flags: u32, inode: Inode) -> Option<i32> {
    let kept = (libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_DIRECTORY) as u32;
    let flags = u64::from(flags & kept | libc::O_PATH as u32);
    let fd = native::call(libc::SYS_openat, [directory, path, flags, 0, 0, 0]);
    let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0)?;
    if inode_of(fd as u64) == Some(inode) {
        return Some(fd);
    }
    native::close(fd);
    None
}
