//! A mount namespace of its own, for a host that does not let this user mount where programs look
//! for the instance.
//!
//! Root only needs a mount namespace. Another user also needs a user namespace; and where the
//! directory of the mount does not exist, a root directory that has it: a temporary file system in
//! which every entry of the host's root is bound.
//!
//! In the user namespace the user keeps its ids, and this program is its owner: it may mount, as it
//! executes no other program before. A command joins both namespaces (`forebay run`), and loses the
//! rights in them when it executes its program. All commands of a host join the same namespaces,
//! because processes of different user namespaces may not access each other's memory.
#![expect(unsafe_code, reason = "a namespace of its own")]

use super::top;
use rustix::fs::{CWD, Mode};
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive,
    mount_change, mount_remount, unmount,
};
use rustix::process::{getegid, geteuid, pivot_root};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::path::{Path, PathBuf};

/// Where the new root directory is made, below the run directory of the instance.
const ROOT: &str = "root";

/// Moves this process, which must have one thread, into new namespaces in which it can mount on
/// `at`. `run` is a directory of the user.
///
/// # Errors
/// One line: why the kernel refuses it.
pub(crate) fn enter(at: &Path, run: &Path) -> Result<(), String> {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    // SAFETY: file descriptors are not unshared. WHY: rustix has no other call for it.
    let is_root = user == 0 && unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.is_ok();
    if !is_root {
        let flags = UnshareFlags::NEWUSER | UnshareFlags::NEWNS;
        // SAFETY: as above.
        // WHY: as above.
        unsafe { unshare_unsafe(flags) }.map_err(refused)?;
        keep_ids(user, group)?;
    }
    // Mounts do not propagate out of the namespace; those of the host propagate into it.
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
        .map_err(refused)?;
    // A mount there, perhaps of another user, is not accessed: it may not answer.
    if top(at).is_some() || at.is_dir() {
        return Ok(());
    }
    let root = run.join(ROOT);
    new_root(&root, at).map_err(|(path, why)| format!("cannot make {}: {why}", path.display()))
}

fn refused(errno: Errno) -> String {
    match errno {
        Errno::PERM | Errno::NOSPC | Errno::ACCESS | Errno::INVAL => {
            "this host allows no mounts in user namespaces (user.max_user_namespaces, \
             kernel.unprivileged_userns_clone, AppArmor or SELinux)"
                .to_owned()
        }
        _ => format!("cannot make a namespace: {errno}"),
    }
}

/// Maps the user and its group to themselves.
fn keep_ids(user: u32, group: u32) -> Result<(), String> {
    let put = |file: &str, text: String| {
        std::fs::write(format!("/proc/self/{file}"), text)
            .map_err(|error| format!("cannot set {file} of a namespace: {error}"))
    };
    // Without it the kernel lets no user map a group.
    put("setgroups", "deny".to_owned())?;
    put("uid_map", format!("{user} {user} 1"))?;
    put("gid_map", format!("{group} {group} 1"))
}

/// Makes `root` a root directory that shows what the present one does and has the directory `at`,
/// and moves there.
fn new_root(root: &Path, at: &Path) -> Result<(), (PathBuf, String)> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |error: std::io::Error| (path, error.to_string())
    };
    let refused = |path: &Path| {
        let path = path.to_owned();
        move |errno: Errno| (path, errno.to_string())
    };
    match rustix::fs::mkdirat(CWD, root, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err((root.to_owned(), errno.to_string())),
    }
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("forebay", root, "tmpfs", flags, c"mode=0755").map_err(refused(root))?;
    let entries = std::fs::read_dir("/").map_err(failed(Path::new("/")))?;
    for entry in entries.flatten() {
        let (from, to) = (entry.path(), root.join(entry.file_name()));
        let kind = entry.file_type().map_err(failed(&from))?;
        if kind.is_symlink() {
            let link = std::fs::read_link(&from).map_err(failed(&from))?;
            std::os::unix::fs::symlink(link, &to).map_err(failed(&to))?;
        } else if kind.is_dir() {
            std::fs::create_dir(&to).map_err(failed(&to))?;
            mount_bind_recursive(&from, &to).map_err(refused(&to))?;
        } else {
            std::fs::File::create(&to).map_err(failed(&to))?;
            mount_bind(&from, &to).map_err(refused(&to))?;
        }
    }
    let inside = at.strip_prefix("/").unwrap_or(at);
    let is_new = inside.components().next().is_some_and(|first| !root.join(first).exists());
    if !is_new {
        // It would be created on the host.
        return Err((at.to_owned(), "it does not exist: create it first".to_owned()));
    }
    let below = root.join(inside);
    std::fs::create_dir_all(&below).map_err(|error| (at.to_owned(), error.to_string()))?;
    std::env::set_current_dir(root).map_err(failed(root))?;
    pivot_root(".", ".").map_err(refused(root))?;
    // The old root lies over the new one until here.
    unmount(".", UnmountFlags::DETACH).map_err(refused(root))?;
    std::env::set_current_dir("/").map_err(failed(Path::new("/")))?;
    // Files that programs create in it would be lost.
    mount_remount("/", flags | MountFlags::BIND | MountFlags::RDONLY, "").map_err(refused(root))?;
    // The copy of it that the binding of the run directory brought along.
    let _ = unmount(root, UnmountFlags::DETACH);
    Ok(())
}
