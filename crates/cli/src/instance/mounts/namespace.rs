//! Mount namespaces in which commands see the instance: joining them, finding their processes, and
//! starting a program with the right to mount in them.
//!
//! A namespace lives as long as a process is in it: the program that serves the mount, or commands.

use crate::failure::{Failure, Result};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, LinkNameSpaceType, capabilities, configure_capability_in_ambient_set,
    move_into_link_name_space, set_capabilities,
};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, Instant};

/// Longest wait for threads of this program that have been joined and are still leaving the kernel.
const THREADS_TIME_MAX: Duration = Duration::from_secs(1);

/// Most times that the processes of a namespace are looked for: all that were found may have ended,
/// while others began.
const PASSES_MAX: usize = 16;

/// Identifies a mount namespace of this host: device and inode of its file in `/proc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MountNamespaceId(u64, u64);

/// The mount namespace of a process; `None`: it has ended, or is not accessible.
pub(super) fn of(pid: i32) -> Option<MountNamespaceId> {
    let found = fs::metadata(format!("/proc/{pid}/ns/mnt")).ok()?;
    Some(MountNamespaceId(found.dev(), found.ino()))
}

/// Does `work` with processes of this user in the namespace, one after the other, until it has a
/// result. `None`: there is no such process, or it has none with any of them.
///
/// Each process may end before `work` reads anything of it, as the guard of a killed mount does.
pub(super) fn with_member<T>(
    id: MountNamespaceId,
    mut work: impl FnMut(i32) -> Option<T>,
) -> Option<T> {
    for _ in 0..PASSES_MAX {
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let mut members = pids.filter(|&pid| of(pid) == Some(id)).peekable();
        members.peek()?;
        if let Some(result) = members.find_map(&mut work) {
            return Some(result);
        }
    }
    None
}

/// Moves this process, which must have one thread, into the user and mount namespaces of the
/// process `pid`. It keeps its working directory.
///
/// # Errors
/// The process has ended, or is in a namespace beside that of this process.
pub(super) fn join(pid: i32) -> Result<()> {
    let failed = |error: io::Error| {
        let advice = match error.kind() {
            io::ErrorKind::PermissionDenied => {
                ": this command runs in the namespace of another instance"
            }
            _ => "",
        };
        let why = format!("{error}{advice}");
        Failure::at("cannot join", "the mount namespace of the instance", why)
    };
    // Before it moves, because its root directory changes, too.
    let path = std::env::current_dir();
    let directory =
        rustix::fs::open(".", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let open = |kind: &str| File::open(format!("/proc/{pid}/ns/{kind}"));
    let (user, mount) = (open("user").map_err(failed)?, open("mnt").map_err(failed)?);
    let identity = |file: &File| file.metadata().map(|found| (found.dev(), found.ino()));
    let own = File::open("/proc/self/ns/user").and_then(|file| identity(&file));
    wait_for_threads();
    if own.map_err(failed)? != identity(&user).map_err(failed)? {
        move_into_link_name_space(user.as_fd(), Some(LinkNameSpaceType::User))
            .map_err(|errno| failed(errno.into()))?;
    }
    move_into_link_name_space(mount.as_fd(), Some(LinkNameSpaceType::Mount))
        .map_err(|errno| failed(errno.into()))?;
    // By its path, so that it is in the mounts of the namespace; else, for instance after it was
    // removed, as it is.
    let is_back = path.is_ok_and(|path| std::env::set_current_dir(path).is_ok());
    if !is_back && let Ok(directory) = directory {
        rustix::process::fchdir(directory).map_err(|errno| failed(errno.into()))?;
    }
    Ok(())
}

/// A thread that was joined may still be counted by the kernel, which then refuses to move this
/// process.
fn wait_for_threads() {
    let until = Instant::now() + THREADS_TIME_MAX;
    let is_alone = || fs::read_dir("/proc/self/task").is_ok_and(|all| all.count() <= 1);
    while !is_alone() && Instant::now() < until {
        std::thread::yield_now();
    }
}

/// Does `work` so that programs that it starts may mount in the user namespace of this process,
/// which must have joined it.
pub(super) fn with_right_to_mount<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    // In a thread, because this program must not pass the right on to commands.
    let thread = || {
        raise_right_to_mount().map_err(|errno| {
            Failure::at("cannot mount", "in the mount namespace of the instance", errno)
        })?;
        work()
    };
    std::thread::scope(|scope| scope.spawn(thread).join())
        .unwrap_or_else(|_| Err(Failure::new("a thread of this command panicked")))
}

/// A program keeps a right when it is executed if it is in the ambient set. Root keeps all.
fn raise_right_to_mount() -> std::result::Result<(), Errno> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let mut sets = capabilities(None)?;
    sets.inheritable |= CapabilitySet::SYS_ADMIN;
    set_capabilities(None, sets)?;
    configure_capability_in_ambient_set(CapabilitySet::SYS_ADMIN, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_of_a_namespace_is_found() {
        let own = std::process::id().cast_signed();
        let id = of(own).expect("readable");
        assert!(with_member(id, Some).is_some_and(|pid| of(pid) == Some(id)));
        assert_eq!(with_member(MountNamespaceId(id.0, 0), Some), None);
        assert_eq!(of(i32::MAX), None);
    }

    #[test]
    fn a_process_that_ends_when_it_is_found_hides_no_other() {
        let id = of(std::process::id().cast_signed()).expect("readable");
        // The first one of three passes, as if all others had just begun.
        let mut ended = Vec::new();
        let found = with_member(id, |pid| {
            let has_ended = ended.len() < 3;
            ended.push(pid);
            (!has_ended).then_some(pid)
        });
        assert!(found.is_some() && ended.len() == 4, "{ended:?}");
        let mut asked = 0;
        assert_eq!(
            with_member(id, |_| {
                asked += 1;
                None::<()>
            }),
            None
        );
        assert!(asked >= PASSES_MAX, "{asked}");
    }
}
