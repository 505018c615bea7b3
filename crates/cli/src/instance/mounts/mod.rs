//! Mounts of an instance on this host: starting and ending the programs that serve them.
//!
//! Each mount has a record in the run directory, `mount-<pid>.json`, and a log next to it. The
//! kernel's mount table says which file system is mounted where. A record whose process is gone and
//! whose file system is no longer mounted is stale; the next command that reads it removes it.

mod unmount;

mod directory;

mod namespace;

pub(crate) mod shared;

mod users;

use crate::failure::{Failure, Result};
use crate::instance::host::{RECORD, component};
use crate::process::progress::Progress;
use crate::process::spawn::{SpawnRequest, Spawned};
use crate::process::{self, ProcessIdentity};
use crate::state::directories;
use crate::state::records::{self, HostRecord, VERSION};
use config::MountConfig;
use config::choice::RequestPath;
use config::id_ranges::IdRanges;
use fuse::table::{self, Mounted};
use rustix::mount::UnmountFlags;
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use unmount::{UnmountError, in_use, unmount};
use users::MountUsers;

use namespace::MountNamespaceId;

const PREFIX: &str = "mount-";

/// The rights of the users of a mount.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct MountRights {
    /// All users may use it, not only the user that mounted it.
    pub(crate) is_for_all: bool,
    /// Files count for their owners: quotas and fair shares.
    pub(crate) counts_users: bool,
    /// Set-id programs and devices on it work.
    pub(crate) is_trusted: bool,
    /// Root calls as nobody.
    pub(crate) squashes_root: bool,
    /// Users of the host, and those of the instance for which they stand.
    pub(crate) users: IdRanges,
    /// Groups likewise.
    pub(crate) groups: IdRanges,
}

/// A requested mount.
#[derive(Debug)]
pub(crate) struct MountRequest {
    /// The directory.
    pub(crate) at: PathBuf,
    /// The rights of its users.
    pub(crate) rights: MountRights,
    /// How the kernel passes requests (setting `requests`).
    pub(crate) requests: String,
    /// Where it is made.
    pub(crate) namespace: MountNamespace,
}

/// The mount namespace in which a mount is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MountNamespace {
    /// That of this program.
    Current,
    /// A new one, which commands join.
    New,
    /// One that was new, which this program has joined.
    Joined(MountNamespaceId),
}

/// The record of a mount.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MountRecord {
    /// `VERSION`.
    version: u32,
    /// The directory.
    pub(crate) at: PathBuf,
    /// Device number of the file system, as in the kernel's mount table.
    pub(crate) device: String,
    /// The process that serves it.
    pub(crate) process: ProcessIdentity,
    /// The namespace that was made for it, which commands join.
    pub(crate) namespace: Option<MountNamespaceId>,
}

/// The state of a mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MountState {
    /// Mounted and served.
    Served,
    /// Unmounted while programs had files open; these are served until they are closed.
    Leaving,
    /// Its program was killed: accesses fail.
    Dead,
}

impl MountState {
    /// The state, for people and JSON.
    pub(crate) fn word(self) -> &'static str {
        match self {
            MountState::Served => "served",
            MountState::Leaving => "leaving",
            MountState::Dead => "dead",
        }
    }
}

/// The directory without symbolic links, as in the kernel's mount table.
///
/// # Errors
/// It cannot be a mount point.
pub(crate) fn place(path: &Path) -> Result<PathBuf> {
    let whole = std::path::absolute(path)
        .map_err(|error| Failure::at("cannot find", path.display(), error))?;
    match whole.file_name() {
        Some(_) => Ok(resolved(&whole)),
        None => Err(Failure::at("cannot mount", whole.display(), "use a directory in it")),
    }
}

/// `at` without symbolic links, as the kernel's mount table shows it. It is not accessed if it has
/// a mount, which may not answer; parts that do not exist are kept.
fn resolved(at: &Path) -> PathBuf {
    let existing = at.ancestors().skip(1).find_map(|parent| {
        let rest = at.strip_prefix(parent).ok()?;
        Some(parent.canonicalize().ok()?.join(rest))
    });
    let whole = existing.unwrap_or_else(|| at.to_owned());
    let is_link = || whole.symlink_metadata().is_ok_and(|found| found.is_symlink());
    if top(&whole).is_none() && is_link() { whole.canonicalize().unwrap_or(whole) } else { whole }
}

/// The kernel's mount table of the process `pid`.
fn mount_table(pid: &str) -> Vec<Mounted> {
    let text = std::fs::read(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    table::read(&text).collect()
}

/// The topmost mount at `at`.
fn top(at: &Path) -> Option<Mounted> {
    topmost(mount_table("self"), at)
}

fn topmost(table: Vec<Mounted>, at: &Path) -> Option<Mounted> {
    table.into_iter().rfind(|row| row.at == at.as_os_str().as_bytes())
}

/// Checks that `at` is a directory that can be mounted on.
fn check(at: &Path) -> Result<()> {
    let shown = at.display();
    let refused = |why: String| Err(Failure::new(why));
    if let Some(row) = top(at) {
        let of = match of_device(&row.device)? {
            _ if !row.is_ours() => format!("already has a mount of {}", row.kind),
            Some((_, mount)) if !mount.process.is_alive()? => {
                let advice = format!("remove it with 'forebay umount {shown}'");
                return refused(format!("{shown} has a mount whose program is gone: {advice}"));
            }
            Some((run, _)) => format!("already has a mount of instance {}", name_of(&run)),
            None => "already has a mount of an instance".to_owned(),
        };
        return refused(format!("{shown} {of}: use another directory, or unmount it first"));
    }
    match std::fs::metadata(at) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => refused(format!("{shown} is not a directory")),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            refused(format!("no such directory: {shown}: create it first"))
        }
        Err(error) => Err(Failure::at("cannot mount", shown, error)),
    }
}

fn name_of(run: &Path) -> String {
    run.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Mounts the instance of `host` and writes the record of the mount.
///
/// # Errors
/// It cannot be mounted there; the program cannot be started, or reports why it cannot mount.
pub(crate) fn start(
    run: &Path,
    host: &HostRecord,
    request: &MountRequest,
    timeout: Duration,
    progress: &mut Progress,
) -> Result<MountRecord> {
    let at = &request.at;
    if request.namespace != MountNamespace::New {
        check(at)?;
    }
    let log = run.join(format!("{PREFIX}{}.log", std::process::id()));
    let what = format!("mount on {}", at.display());
    let config = run.join(format!("{PREFIX}{}.config", std::process::id()));
    records::store_config(&config, &mount_config(run, host, request)?)?;
    let spawn = SpawnRequest {
        index: 0,
        what,
        config: config.clone(),
        words: Vec::new(),
        log: log.clone(),
    };
    let mut spawned = Spawned::start(&component("forebay-mount")?, vec![spawn])?;
    let ready = spawned.wait(Instant::now() + timeout, progress);
    // The program has read it, or never will.
    let _ = std::fs::remove_file(&config);
    let ready = match ready {
        Ok(ready) => ready,
        Err(failure) => {
            // The message of the program usually explains the failure.
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            let _ = std::fs::remove_file(&log);
            let own = text.lines().find_map(|line| line.strip_prefix("forebay-mount: "));
            return Err(own.map_or(failure, Failure::new));
        }
    };
    let gone = || Failure::at("cannot mount", at.display(), "it was unmounted again at once");
    let ready = ready.into_iter().next().ok_or_else(gone)?;
    let pid = ready.process.pid;
    let (table, namespace) = match request.namespace {
        MountNamespace::Current => (mount_table("self"), None),
        MountNamespace::Joined(id) => (mount_table("self"), Some(id)),
        MountNamespace::New => (mount_table(&pid.to_string()), namespace::of(pid)),
    };
    let row = topmost(table, at).filter(Mounted::is_ours).ok_or_else(gone)?;
    let mount = MountRecord {
        version: VERSION,
        at: at.clone(),
        device: row.device,
        process: ready.process,
        namespace,
    };
    let _ = std::fs::rename(&log, run.join(format!("{PREFIX}{}.log", mount.process.pid)));
    records::store(run, &record(&mount), &mount)?;
    spawned.finish();
    Ok(mount)
}

/// The configuration of the program.
fn mount_config(run: &Path, host: &HostRecord, request: &MountRequest) -> Result<MountConfig> {
    let requests = RequestPath::of(&request.requests)
        .ok_or_else(|| Failure::at("cannot use", "--requests", &request.requests))?;
    let config = MountConfig {
        run: run.to_owned(),
        home: host.first,
        at: request.at.clone(),
        requests,
        is_for_all: request.rights.is_for_all,
        counts_users: request.rights.counts_users,
        is_trusted: request.rights.is_trusted,
        squashes_root: request.rights.squashes_root,
        users: request.rights.users.clone(),
        groups: request.rights.groups.clone(),
        // An ordinary user gets a user namespace with a mount namespace.
        is_other_namespace: is_apart(host) || request.namespace == MountNamespace::New,
        is_private: request.namespace == MountNamespace::New,
        instance: host.config.clone(),
    };
    if config.has_identities() && (config.is_other_namespace || directories::user() != 0) {
        let why = "the instance believes only root of its hosts about callers: mount an instance of \
                   root, as root and outside of user namespaces";
        return Err(Failure::at("cannot squash root or map ids", config.at.display(), why));
    }
    Ok(config)
}

/// True if the daemons are in another user namespace than this program, so that user ids differ.
fn is_apart(host: &HostRecord) -> bool {
    let space = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/user"));
    let Some(daemon) = host.daemons.first() else { return false };
    match (space("self"), space(&daemon.process.pid.to_string())) {
        (Ok(own), Ok(theirs)) => own != theirs,
        // A namespace further out cannot be read.
        (Ok(_), Err(error)) => error.kind() == ErrorKind::PermissionDenied,
        _ => false,
    }
}

/// Mounts an instance of this host, unless it is already mounted there.
///
/// # Errors
/// There is no such instance here; otherwise as `start`.
pub(crate) fn ensure(
    name: &str,
    request: &MountRequest,
    timeout: Duration,
    progress: &mut Progress,
) -> Result<()> {
    let run = directories::run(name)?;
    let host: Option<HostRecord> = records::load(&run, RECORD)?;
    let host = host.ok_or_else(|| Failure::no_instance(name))?;
    for (mount, state) in all(&run)?.into_iter().filter(|(mount, _)| mount.at == request.at) {
        match state {
            MountState::Served if mount.namespace.is_none() => return Ok(()),
            MountState::Dead => drop(end(&mount.at, true, timeout)?),
            MountState::Served | MountState::Leaving => {}
        }
    }
    start(&run, &host, request, timeout, progress).map(|_| ())
}

fn record(mount: &MountRecord) -> String {
    format!("{PREFIX}{}.json", mount.process.pid)
}

/// The mounts of an instance on this host, without stale records.
///
/// # Errors
/// A record cannot be read.
pub(crate) fn all(run: &Path) -> Result<Vec<(MountRecord, MountState)>> {
    let mut found = Vec::new();
    let entries = std::fs::read_dir(run).into_iter().flatten().flatten();
    for name in entries.filter_map(|entry| entry.file_name().into_string().ok()) {
        if !(name.starts_with(PREFIX) && name.ends_with(".json")) {
            continue;
        }
        let Some(mount) = records::load::<MountRecord>(run, &name)? else { continue };
        match state(&mount)? {
            Some(state) => found.push((mount, state)),
            None => forget(run, &mount),
        }
    }
    found.sort_by(|(a, _), (b, _)| a.at.cmp(&b.at));
    Ok(found)
}

/// The state of a mount; `None` for a stale record.
fn state(mount: &MountRecord) -> Result<Option<MountState>> {
    let is_there =
        |row: &Mounted| row.device == mount.device && row.at == mount.at.as_os_str().as_bytes();
    let is_in = |table: Vec<Mounted>| table.iter().any(is_there);
    // Of a process that has just ended it is empty.
    let of_process =
        |pid: i32| Some(mount_table(&pid.to_string())).filter(|table| !table.is_empty());
    // The mount may be in a mount namespace of its own.
    if mount.process.is_alive()?
        && let Some(table) = of_process(mount.process.pid)
    {
        return Ok(Some(if is_in(table) { MountState::Served } else { MountState::Leaving }));
    }
    // Commands may still be in the namespace of a mount whose program was killed.
    let of_commands = mount.namespace.and_then(|id| namespace::with_member(id, of_process));
    let table = of_commands.unwrap_or_else(|| mount_table("self"));
    Ok(is_in(table).then_some(MountState::Dead))
}

fn forget(run: &Path, mount: &MountRecord) {
    let log = format!("{PREFIX}{}.log", mount.process.pid);
    for name in [record(mount), format!("{log}.old"), log] {
        let _ = std::fs::remove_file(run.join(name));
    }
}

/// The mount with this device number, of any instance of this user, and the run directory of the
/// instance.
fn of_device(device: &str) -> Result<Option<(PathBuf, MountRecord)>> {
    for entry in std::fs::read_dir(directories::base()).into_iter().flatten().flatten() {
        let run = entry.path();
        if run.is_dir()
            && let Some((mount, _)) = all(&run)?.into_iter().find(|(one, _)| one.device == device)
        {
            return Ok(Some((run, mount)));
        }
    }
    Ok(None)
}

/// Name of the instance of this user whose commands see it at `at` in a namespace of their own.
fn of_namespace(at: &Path) -> Result<Option<String>> {
    for entry in std::fs::read_dir(directories::base()).into_iter().flatten().flatten() {
        let run = entry.path();
        let is_it =
            |(mount, _): &(MountRecord, MountState)| mount.at == at && mount.namespace.is_some();
        if run.is_dir() && all(&run)?.iter().any(is_it) {
            return Ok(Some(name_of(&run)));
        }
    }
    Ok(None)
}

/// Removes a mount whose program was killed. The kernel gives up its requests first: the program may not
/// end before (`forebay-mount` has a guard for that, which does not find a mount that is gone), and then
/// programs that wait for an answer would wait for ever.
const ABORTED: UnmountFlags = UnmountFlags::FORCE.union(UnmountFlags::DETACH);

/// Unmounts `at` and waits for the end of its program. `is_lazy`: even while it is in use; files
/// that are open are served until they are closed. Returns the processes that still have it in a
/// mount namespace of their own, for instance containers that were started meanwhile.
///
/// # Errors
/// It is in use, or is not a mount of an instance.
pub(crate) fn end(at: &Path, is_lazy: bool, timeout: Duration) -> Result<Option<MountUsers>> {
    let failure = |why: &str| Failure::at("cannot unmount", at.display(), why);
    let refused = |why: &str| Err(failure(why));
    let Some(row) = top(at) else {
        return match of_namespace(at)? {
            Some(name) => refused(&format!(
                "only the commands of 'forebay run' see it: 'forebay stop --name {name}' ends it"
            )),
            None => refused("nothing is mounted there"),
        };
    };
    if !row.is_ours() {
        let why = format!("it is a mount of {}, not of an instance", row.kind);
        return refused(&why);
    }
    let served = of_device(&row.device)?;
    // Determined before unmounting, because the device number may be reused afterwards.
    let elsewhere = users::with_mount(&row.device);
    let is_twice = mount_table("self").iter().filter(|one| one.device == row.device).count() > 1;
    let mut is_left = is_twice || elsewhere.is_some();
    let process = served.as_ref().map(|(_, mount)| &mount.process);
    let is_dead = process.map_or(Ok(false), |it| it.is_alive().map(|alive| !alive))?;
    match unmount(at, UnmountFlags::empty()) {
        Ok(()) => {}
        Err(UnmountError::Busy) if is_lazy => {
            is_left = true;
            let flags = if is_dead { ABORTED } else { UnmountFlags::DETACH };
            unmount(at, flags).map_err(|why| failure(&why.text()))?;
        }
        Err(UnmountError::Busy) => return refused(&in_use(at, &row.device)),
        Err(why) => return refused(&why.text()),
    }
    if let Some((run, mount)) = served {
        if !is_left {
            process::wait_or_end(&mount.process, timeout, &mut Progress::new("unmounting"))?;
        }
        // A stale record must go, because its device number may be reused.
        if !mount.process.is_alive()? {
            directory::remove(at, &mount.device);
            forget(&run, &mount);
        }
    }
    Ok(elsewhere)
}

/// Ends those mounts of an instance on this host that no program uses.
///
/// # Errors
/// A program uses one, or a record cannot be read.
pub(crate) fn end_unused(run: &Path, timeout: Duration) -> Result<()> {
    let refused = |at: &Path, why: String| Err(Failure::at("in use", at.display(), why));
    for (mount, state) in all(run)? {
        let at = mount.at.as_path();
        if state == MountState::Leaving {
            return refused(
                at,
                "it was unmounted with --lazy, and files are still open".to_owned(),
            );
        }
        if let Some(id) = mount.namespace {
            // The program of the mount and its guard are there, too.
            let program = |pid: i32| std::fs::read_link(format!("/proc/{pid}/exe")).ok();
            let own = program(mount.process.pid);
            let other = |pid: i32| program(pid).filter(|it| own.as_ref() != Some(it));
            if let Some(other) = namespace::with_member(id, other) {
                return refused(at, format!("{} runs there", other.display()));
            }
            process::end(std::slice::from_ref(&mount.process), timeout, &mut Progress::new(""))?;
            directory::remove(at, &mount.device);
            forget(run, &mount);
        } else if let Some(users) = end(at, state == MountState::Dead, timeout)? {
            return refused(at, format!("{users} has it in a namespace of its own"));
        }
    }
    Ok(())
}

/// Ends all mounts of an instance on this host. Programs that use one get errors from then on.
///
/// # Errors
/// A record cannot be read.
pub(crate) fn end_all(run: &Path, timeout: Duration, progress: &mut Progress) -> Result<()> {
    let mounts = all(run)?;
    let processes: Vec<_> = mounts.iter().map(|(mount, _)| mount.process.clone()).collect();
    process::end(&processes, timeout, progress)?;
    for (mount, _) in &mounts {
        // The program unmounts at its end unless it was killed.
        if top(&mount.at).is_some_and(|row| row.device == mount.device) {
            let _ = unmount(&mount.at, ABORTED);
        }
        directory::remove(&mount.at, &mount.device);
        forget(run, mount);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_resolved_as_far_as_it_exists() {
        let place = tempfile::tempdir().expect("a directory");
        let real = place.path().canonicalize().expect("a path");
        std::os::unix::fs::symlink(&real, real.join("link")).expect("a link");
        std::os::unix::fs::symlink(real.join("target"), real.join("dangling")).expect("a link");
        assert_eq!(resolved(&real.join("link/a/b")), real.join("a/b"));
        assert_eq!(resolved(&real.join("link")), real);
        assert_eq!(resolved(&real.join("dangling")), real.join("dangling"));
        assert_eq!(resolved(Path::new("/no/such")), Path::new("/no/such"));
    }
}
