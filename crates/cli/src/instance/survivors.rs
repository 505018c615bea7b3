//! Daemons of this host whose record is gone, found by their locks in shared memory: the run
//! directory was removed while they run. They make it again within seconds; until then, and where
//! they cannot, nothing of theirs may be removed, and `stop` ends them.

use crate::failure::{Failure, Result};
use crate::instance::host;
use crate::process::progress::Progress;
use crate::process::{self, ProcessIdentity};
use crate::state::directories;
use rustix::fs::{FlockOperation, OFlags};
use serde::Deserialize;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest line in a lock file: a number and two paths.
const HOLDER_BYTES_MAX: u64 = 16 * 1024;
/// How long daemons may take to notice that their run directory is gone, and to make it again.
const REMADE_TIME: Duration = Duration::from_secs(8);
/// Pause between looks for it.
const PAUSE: Duration = Duration::from_millis(50);

/// A living daemon.
#[derive(Debug)]
pub(crate) struct Survivor {
    /// Its process; `None`: it was killed, and a thread of it still waits for a device.
    pub(crate) process: Option<ProcessIdentity>,
    /// Its run directory.
    pub(crate) run: PathBuf,
    /// Its directory of data.
    pub(crate) data: PathBuf,
}

/// The line in a lock file.
#[derive(Deserialize)]
struct Holder {
    pid: i32,
    run: PathBuf,
    data: PathBuf,
}

/// The living daemons whose locks are in `shm`, the directory of one host.
pub(crate) fn of_host(shm: &Path) -> Vec<Survivor> {
    let mut found = Vec::new();
    if directories::check_private(shm).is_err() {
        return found;
    }
    for entry in std::fs::read_dir(shm).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_lock = path.extension().is_some_and(|extension| extension == "lock");
        let Ok(file) = File::open(&path) else { continue };
        let is_held = rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared)
            == Err(rustix::io::Errno::WOULDBLOCK);
        if !is_lock || !is_held {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        if let Ok(Holder { pid, run, data }) = serde_json::from_str(&text) {
            let process = ProcessIdentity::of(pid).ok().flatten();
            found.push(Survivor { process, run, data });
        }
    }
    found
}

/// The living daemons of an instance of any user.
#[derive(Debug)]
pub(crate) struct UserInstance {
    /// Its owner.
    pub(crate) uid: u32,
    /// Its name.
    pub(crate) name: String,
    /// Process ids of its daemons on this machine.
    pub(crate) pids: Vec<i32>,
}

/// The instances of all users that have living daemons on this machine. Directories and files of
/// other users are not trusted: links are not followed, nothing can make this wait, and a process
/// counts if it is the owner's.
pub(crate) fn of_all_users() -> Vec<UserInstance> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/dev/shm").into_iter().flatten().flatten() {
        let Ok(text) = entry.file_name().into_string() else { continue };
        let parts = text.strip_prefix("forebay-").and_then(|rest| rest.split_once('-'));
        let Some((uid, name)) = parts else { continue };
        let Ok(uid) = uid.parse() else { continue };
        if !config::parse::is_name(name) || !is_directory_of(&entry.path(), uid) {
            continue;
        }
        let mut pids = Vec::new();
        for host in std::fs::read_dir(entry.path()).into_iter().flatten().flatten() {
            if is_directory_of(&host.path(), uid) {
                pids.extend(pids_in(&host.path(), uid));
            }
        }
        pids.sort_unstable();
        pids.dedup();
        if !pids.is_empty() {
            found.push(UserInstance { uid, name: name.to_owned(), pids });
        }
    }
    found.sort_by(|one, other| (one.uid, &one.name).cmp(&(other.uid, &other.name)));
    found
}

fn is_directory_of(path: &Path, uid: u32) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|it| it.is_dir() && it.uid() == uid)
}

/// Processes of `uid` that hold locks in the directory of a host.
fn pids_in(host: &Path, uid: u32) -> Vec<i32> {
    let locks = std::fs::read_dir(host).into_iter().flatten().flatten();
    let locks = locks.filter(|entry| entry.path().extension().is_some_and(|it| it == "lock"));
    let pid_in = |path: PathBuf| {
        // A pipe would wait for its other end.
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let file = File::options().read(true).custom_flags(flags).open(path).ok()?;
        let is_held = rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared)
            == Err(rustix::io::Errno::WOULDBLOCK);
        let mut text = String::new();
        let is_file = file.metadata().ok()?.is_file();
        file.take(HOLDER_BYTES_MAX)
            .read_to_string(&mut text)
            .ok()
            .filter(|_| is_file && is_held)?;
        let Holder { pid, .. } = serde_json::from_str(&text).ok()?;
        let owner = std::fs::metadata(format!("/proc/{pid}")).ok()?.uid();
        (owner == uid).then_some(pid)
    };
    locks.filter_map(|entry| pid_in(entry.path())).collect()
}

/// The living daemons of the instance `name` on this machine, of all its hosts there.
fn of_instance(name: &str) -> Vec<Survivor> {
    let shm = directories::shm(name);
    if directories::check_private(&shm).is_err() {
        return Vec::new();
    }
    let hosts = std::fs::read_dir(shm).into_iter().flatten().flatten();
    hosts.flat_map(|host| of_host(&host.path())).collect()
}

/// If the record of the instance's host is gone and daemons of it live, waits until they have made
/// it again.
///
/// # Errors
/// They did not.
pub(crate) fn await_record(name: &str) -> Result<()> {
    let run = directories::run(name)?;
    let until = Instant::now() + REMADE_TIME;
    loop {
        if run.join(host::RECORD).exists() || living(name, &run).is_empty() {
            return Ok(());
        }
        if Instant::now() >= until {
            let why = format!(
                "it was removed while daemons of the instance run: 'forebay stop {name}' ends them"
            );
            return Err(Failure::at("no record", run.display(), why));
        }
        std::thread::sleep(PAUSE);
    }
}

/// The living daemons with this run directory. One without a record has none of another host's.
fn living(name: &str, run: &Path) -> Vec<Survivor> {
    of_instance(name).into_iter().filter(|one| one.run == run).collect()
}

/// Ends daemons of the instance `name` that have no record, and removes their files. Returns their
/// number; 0: there are none.
///
/// # Errors
/// A process cannot be ended, or something cannot be removed.
pub(crate) fn end(name: &str, timeout: Duration, progress: &mut Progress) -> Result<usize> {
    let run = directories::run(name)?;
    let all = living(name, &run);
    let processes: Vec<_> = all.iter().filter_map(|one| one.process.clone()).collect();
    process::end(&processes, timeout, progress)?;
    for one in &all {
        directories::remove(&one.data)?;
        let _ = one.data.parent().map(std::fs::remove_dir);
    }
    if !all.is_empty() && of_instance(name).is_empty() {
        directories::remove(&directories::shm(name))?;
    }
    Ok(all.len())
}

/// Where daemons of the instance `name` run that this user cannot see by its run directory.
pub(crate) fn elsewhere(name: &str) -> Option<PathBuf> {
    let run = directories::run(name).ok()?;
    of_instance(name).into_iter().map(|one| one.run).find(|other| *other != run)
}
