//! The mount of an instance where its programs see it (`--at`), shared by all commands of a user on
//! a host: it serves what the preloaded library does not.
//!
//! It is in the mount namespace of the host where this user may mount there without hiding files:
//! on an empty directory of its own, or on one that can be created. Otherwise it is in a namespace
//! of its own, which each command joins before it starts its program. It stays until the instance
//! is stopped; if its program is killed, a running `forebay run` or the next command mounts again.

use super::directory::DirectoryClaim;
use super::namespace::{self, MountNamespaceId};
use super::{
    MountNamespace, MountRecord, MountRequest, MountRights, MountState, RECORD, all, directory,
    end, resolved, start, top,
};
use crate::failure::{Failure, Result};
use crate::process::progress::Progress;
use crate::state::directories::{self, InstanceLock};
use crate::state::records::{self, HostRecord};
use config::printable::without_os_error;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Most times that one command mounts again after the program of the mount was killed.
const REMOUNTS_MAX: usize = 16;
/// Attempts to mount on a place that changes meanwhile.
const ATTEMPTS_MAX: u32 = 3;

/// The shared mount that a command asks for.
#[derive(Clone, Debug)]
pub(crate) struct SharedMountRequest {
    /// Name of the instance.
    pub(crate) name: String,
    /// Where programs see it.
    pub(crate) at: PathBuf,
    /// How the kernel passes requests (setting `requests`).
    pub(crate) requests: String,
    /// Limit on waits.
    pub(crate) timeout: Duration,
}

/// The mount that commands share.
#[derive(Debug)]
pub(crate) struct SharedMount {
    request: SharedMountRequest,
    record: MountRecord,
    /// This command made it.
    is_new: bool,
    /// Why the programs of the host do not see it, if this command made it so.
    pub(crate) why_not_on_host: Option<String>,
}

/// Makes sure that the instance is mounted for programs of this host, and moves this process, which
/// must have one thread, to where it is.
///
/// # Errors
/// The host does not allow it; there is no such instance here.
pub(crate) fn enter(mut request: SharedMountRequest) -> Result<SharedMount> {
    request.at = resolved(&request.at);
    let run = directories::run(&request.name)?;
    if let Some(record) = find(&run, &request.at)?
        && (is_here(&record) || namespace::join(record.process.pid).is_ok())
    {
        return Ok(SharedMount { request, record, is_new: false, why_not_on_host: None });
    }
    let mount = prepare(request)?;
    if !is_here(&mount.record) {
        namespace::join(mount.record.process.pid)?;
    }
    if !is_here(&mount.record) {
        let why = "this command runs in a chroot or a container beside it";
        return Err(Failure::at("cannot see the mount", mount.record.at.display(), why));
    }
    Ok(mount)
}

/// Mounts the instance for later commands, unless it is mounted.
///
/// # Errors
/// As `enter`.
pub(crate) fn prepare(mut request: SharedMountRequest) -> Result<SharedMount> {
    request.at = resolved(&request.at);
    // So that only one command mounts it, and the instance is not stopped meanwhile.
    let lock = InstanceLock::take(&request.name, request.timeout)?;
    let run = directories::run(&request.name)?;
    let host: Option<HostRecord> = records::load(&run, RECORD)?;
    let Some(host) = host else {
        if !run.exists() {
            lock.remove();
        }
        return Err(Failure::no_instance(&request.name));
    };
    if let Some(record) = find(&run, &request.at)? {
        return Ok(SharedMount { request, record, is_new: false, why_not_on_host: None });
    }
    let namespace = remove_dead(&run, &request)?;
    let (record, why_not_on_host) = make(&run, &host, &request, namespace)?;
    Ok(SharedMount { request, record, is_new: true, why_not_on_host })
}

/// The mount that commands share, if it is served.
fn find(run: &Path, at: &Path) -> Result<Option<MountRecord>> {
    let mounts = all(run)?.into_iter();
    let mut served = mounts
        .filter(|(mount, state)| mount.at == *at && *state == MountState::Served)
        .map(|(mount, _)| mount);
    Ok(served.find(|mount| mount.namespace.is_some() || is_here(mount)))
}

/// True if this process sees the mount.
fn is_here(mount: &MountRecord) -> bool {
    top(&mount.at).is_some_and(|row| row.device == mount.device)
}

/// Removes the mount if its program was killed. If commands are still in its namespace, moves this
/// process there and returns it.
fn remove_dead(run: &Path, request: &SharedMountRequest) -> Result<Option<MountNamespaceId>> {
    let dead = all(run)?.into_iter().find_map(|(mount, state)| {
        (mount.at == request.at && state == MountState::Dead).then_some(mount)
    });
    let Some(mount) = dead else { return Ok(None) };
    if let (Some(id), false) = (mount.namespace, is_here(&mount)) {
        let mut failed = None;
        let join = |pid| namespace::join(pid).map_err(|failure| failed = Some(failure)).ok();
        if namespace::with_member(id, join).is_none() {
            // All commands there have ended, and their namespace with them.
            let is_empty = namespace::with_member(id, Some).is_none();
            return failed.filter(|_| !is_empty).map_or(Ok(None), Err);
        }
    }
    if is_here(&mount) {
        let _elsewhere = end(&mount.at, true, request.timeout)?;
    }
    Ok(mount.namespace)
}

/// Mounts in `joined`, the namespace of other commands, to which this process has moved; otherwise
/// on the host, or in a new namespace if that is not possible, with the reason for that.
fn make(
    run: &Path,
    host: &HostRecord,
    shared: &SharedMountRequest,
    joined: Option<MountNamespaceId>,
) -> Result<(MountRecord, Option<String>)> {
    let request = |namespace| MountRequest {
        at: shared.at.clone(),
        rights: rights_of_commands(),
        requests: shared.requests.clone(),
        namespace,
    };
    let mount = |namespace| {
        let progress = &mut Progress::new("mounting");
        start(run, host, &request(namespace), shared.timeout, progress)
    };
    if let Some(id) = joined {
        let joined = MountNamespace::Joined(id);
        return namespace::with_right_to_mount(|| mount(joined)).map(|record| (record, None));
    }
    let mut attempts = 0;
    loop {
        attempts += 1;
        let before = PlaceState::of(&shared.at);
        let why = match on_host(&shared.at) {
            Ok(()) => match DirectoryClaim::take(&shared.at, shared.timeout) {
                Some(_claim) => match mount(MountNamespace::Current) {
                    Ok(record) => return Ok((record, None)),
                    Err(failure) => failure.text().to_owned(),
                },
                None => format!("another command mounts on {}", shared.at.display()),
            },
            Err(why) => why,
        };
        directory::remove(&shared.at, "");
        match mount(MountNamespace::New) {
            Ok(record) => return Ok((record, Some(why))),
            // The mount of another instance ended meanwhile, and its directory was removed.
            Err(_) if attempts < ATTEMPTS_MAX && PlaceState::of(&shared.at) != before => {}
            // For instance the device is missing.
            Err(failure) if failure.text() == why => return Err(failure),
            Err(failure) => return Err(Failure::new(format!("{why}; {}", failure.text()))),
        }
    }
}

/// The state of the place of a mount.
#[derive(PartialEq, Eq)]
struct PlaceState {
    device: Option<String>,
    is_there: bool,
}

impl PlaceState {
    fn of(at: &Path) -> PlaceState {
        let device = top(at).map(|row| row.device);
        // A mount, perhaps of another user, is not accessed: it may not answer.
        let is_there = device.is_some() || at.symlink_metadata().is_ok();
        PlaceState { device, is_there }
    }
}

/// A command of root may drop its rights or start programs of other users, as servers and
/// installers do, and file modes decide what these may do, as on every file system of root's.
fn rights_of_commands() -> MountRights {
    MountRights {
        is_for_all: directories::user() == 0,
        // One user's job; quotas are for mounts that several users share.
        counts_users: false,
        ..MountRights::default()
    }
}

/// Whether this user can mount on `at` for the whole host without hiding anything, and if not, why.
/// A missing directory is created.
fn on_host(at: &Path) -> std::result::Result<(), String> {
    let shown = at.display();
    if let Some(row) = top(at) {
        return Err(format!("{shown} has a mount of {}", row.kind));
    }
    let user = directories::user();
    match std::fs::symlink_metadata(at) {
        Ok(found) if !found.is_dir() => Err(format!("{shown} is not a directory")),
        Ok(found) if user != 0 && found.uid() != user => {
            Err(format!("{shown} belongs to user {}", found.uid()))
        }
        Ok(_) => match std::fs::read_dir(at).map(|mut all| all.next().is_none()) {
            Ok(true) => Ok(()),
            Ok(false) => Err(format!("{shown} has files")),
            Err(error) => Err(without_os_error(&format!("cannot read {shown}: {error}"))),
        },
        Err(_) => directory::create(at)
            .map_err(|error| without_os_error(&format!("cannot create {shown}: {error}"))),
    }
}

impl SharedMount {
    /// True if all programs of the host see it; else only commands of `forebay run`.
    pub(crate) fn is_on_host(&self) -> bool {
        self.record.namespace.is_none()
    }

    /// Waits until the process `command` ends, and mounts again whenever the program of the mount is
    /// killed before that.
    pub(crate) fn keep(mut self, command: &OwnedFd) {
        for _ in 0..REMOUNTS_MAX {
            // It was unmounted, or the instance is being stopped.
            if self.wait(command) || !is_here(&self.record) {
                return;
            }
            let at = self.record.at.clone();
            let what =
                format!("forebay run: the program of the mount on {} was killed", at.display());
            self = match prepare(self.request) {
                Ok(mount) => mount,
                Err(failure) => {
                    errln!("{what}: {}", failure.text());
                    return;
                }
            };
            if self.is_new {
                errln!("{what}: mounted again");
            }
        }
    }

    /// Waits for the end of the mount's program or of `command`; true for the latter.
    fn wait(&self, command: &OwnedFd) -> bool {
        let pid = Pid::from_raw(self.record.process.pid);
        let server = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let Some(server) = server else { return false };
        let mut polled = [command, &server].map(|process| PollFd::new(process, PollFlags::IN));
        while poll(&mut polled, None) == Err(Errno::INTR) {}
        let [command, _] = polled;
        !command.revents().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_on_the_host_hides_nothing() {
        let place = tempfile::tempdir().expect("a directory");
        let at = place.path().join("at");
        assert_eq!(on_host(&at), Ok(()));
        assert_eq!(on_host(&at), Ok(()));
        std::fs::write(at.join("f"), "").expect("written");
        assert_eq!(on_host(&at), Err(format!("{} has files", at.display())));
        let file = at.join("f");
        assert_eq!(on_host(&file), Err(format!("{} is not a directory", file.display())));
        let why = on_host(&place.path().join("none/at")).expect_err("no parent");
        assert!(why.starts_with("cannot create ") && why.contains("No such file"), "{why}");
        assert_eq!(on_host(Path::new("/proc")), Err("/proc has a mount of proc".to_owned()));
    }
}
