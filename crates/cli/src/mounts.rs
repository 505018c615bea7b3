//! Mounts of an instance on this host: the programs that serve them, started and ended.
//!
//! Each has a record in the run directory, `mount-<pid>.json`, and a log beside it. The kernel's table
//! says which file system is mounted where; a record whose process is gone and whose file system
//! is in no table any more means nothing, and is swept away by whoever meets it.

mod away;

mod brief;

mod users;

use crate::directories;
use crate::failure::{Failure, Result};
use crate::host::{RECORD, beside};
use crate::process::{self, Identity};
use crate::progress::Progress;
use crate::records::{self, Host, VERSION};
use crate::spawn::{Order, Spawned};
use away::{Unmount, in_use, unmount};
use fuse::table::{self, Mounted};
use rustix::fd::AsRawFd as _;
use rustix::io::FdFlags;
use rustix::mount::UnmountFlags;
use serde::{Deserialize, Serialize};
use std::io::{ErrorKind, PipeReader};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use users::Users;

pub(crate) use brief::{Wanted, for_command};

const PREFIX: &str = "mount-";

/// What those who use a mount may.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Rights {
    /// All users may use it, not only who mounts.
    pub(crate) is_for_all: bool,
    /// Set-id programs and devices that lie there work.
    pub(crate) is_trusted: bool,
}

/// A mount that is asked for.
#[derive(Debug)]
pub(crate) struct Wish {
    /// Where.
    pub(crate) at: PathBuf,
    /// What users may.
    pub(crate) rights: Rights,
    /// Way of the kernel's requests.
    pub(crate) requests: String,
    /// It ends when nobody has the other end of this pipe any more.
    pub(crate) while_held: Option<PipeReader>,
}

/// A mount, as its record has it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Mount {
    /// `VERSION`.
    version: u32,
    /// Where it is.
    pub(crate) at: PathBuf,
    /// Number of the file system, as the kernel's table has it.
    pub(crate) device: String,
    /// It is a command's, and goes with it.
    pub(crate) is_brief: bool,
    /// Who serves it.
    pub(crate) process: Identity,
}

/// How it is with a mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// Programs find it.
    Served,
    /// Taken away while programs had files open, which are served until they are closed.
    Leaving,
    /// Its program was killed: whoever looks there gets an error.
    Dead,
}

impl State {
    /// The word for it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            State::Served => "served",
            State::Leaving => "leaving",
            State::Dead => "dead",
        }
    }
}

/// The directory that is meant, without links: as the kernel's table of mounts has it.
///
/// # Errors
/// There is no such place.
pub(crate) fn place(path: &Path) -> Result<PathBuf> {
    let whole = std::path::absolute(path)
        .map_err(|error| Failure::at("can not find", path.display(), error))?;
    // The parent alone: a mount whose program is gone can not be looked at.
    let (Some(parent), Some(name)) = (whole.parent(), whole.file_name()) else {
        return Err(Failure::at("can not mount", whole.display(), "take a directory below it"));
    };
    let parent = parent.canonicalize().map_err(|error| match error.kind() {
        ErrorKind::NotFound => {
            Failure::new(format!("there is no directory {}: make it first", parent.display()))
        }
        _ => Failure::at("can not find", parent.display(), error),
    })?;
    let whole = parent.join(name);
    // What is mounted there is not asked: nobody may answer.
    if top(&whole).is_some() {
        return Ok(whole);
    }
    let is_link = whole.symlink_metadata().is_ok_and(|found| found.is_symlink());
    Ok(if is_link { whole.canonicalize().unwrap_or(whole) } else { whole })
}

/// The kernel's table, as the process `of` sees it.
fn seen_by(of: &str) -> Vec<Mounted> {
    let text = std::fs::read(format!("/proc/{of}/mountinfo")).unwrap_or_default();
    table::read(&text).collect()
}

/// What programs find at `at`, if it is a mount.
fn top(at: &Path) -> Option<Mounted> {
    seen_by("self").into_iter().rfind(|row| row.at == at.as_os_str().as_bytes())
}

/// Is this a directory that can be mounted on?
fn check(at: &Path) -> Result<()> {
    let shown = at.display();
    let refused = |why: String| Err(Failure::new(why));
    if let Some(row) = top(at) {
        let of = match of_device(&row.device)? {
            _ if !row.is_ours() => format!("is a mount of {} already", row.kind),
            Some((_, mount)) if !mount.process.is_alive()? => {
                let advice = format!("'forebay umount {shown}' takes it away");
                return refused(format!("{shown} is a mount whose program is gone: {advice}"));
            }
            Some((run, _)) => format!("is a mount of instance {} already", name_of(&run)),
            None => "is a mount of an instance already".to_owned(),
        };
        return refused(format!("{shown} {of}: take another directory, or unmount it first"));
    }
    match std::fs::metadata(at) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => refused(format!("{shown} is no directory: mount on one")),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            refused(format!("there is no directory {shown}: make it first"))
        }
        Err(error) => Err(Failure::at("can not mount", shown, error)),
    }
}

fn name_of(run: &Path) -> String {
    run.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Mounts the instance `host`, and writes that down.
///
/// # Errors
/// It can not be mounted there; the program can not be started, or says why it can not mount.
pub(crate) fn start(
    run: &Path,
    host: &Host,
    wish: &Wish,
    patience: Duration,
    progress: &mut Progress,
) -> Result<Mount> {
    let at = &wish.at;
    check(at)?;
    let log = run.join(format!("{PREFIX}{}.log", std::process::id()));
    let what = format!("mount on {}", at.display());
    let variables = vec![("FOREBAY_LOG", host.wanted.log.clone())];
    let words = words(run, host, wish)?;
    let order = Order { index: 0, what, words, variables, log: log.clone() };
    let mut spawned = Spawned::start(&beside("forebay-mount")?, vec![order])?;
    let ready = match spawned.wait(Instant::now() + patience, progress) {
        Ok(ready) => ready,
        Err(failure) => {
            // What it said itself is the whole story, mostly.
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            let _ = std::fs::remove_file(&log);
            let own = said.lines().find_map(|line| line.strip_prefix("forebay-mount: "));
            return Err(own.map_or(failure, Failure::new));
        }
    };
    let process = ready.into_iter().next().map(|ready| ready.process);
    let (Some(process), Some(row)) = (process, top(at).filter(Mounted::is_ours)) else {
        return Err(Failure::at("can not mount", at.display(), "it was unmounted at once"));
    };
    let (at, is_brief) = (at.clone(), wish.while_held.is_some());
    let mount = Mount { version: VERSION, at, device: row.device, is_brief, process };
    let _ = std::fs::rename(&log, run.join(format!("{PREFIX}{}.log", mount.process.pid)));
    records::store(run, &record(&mount), &mount)?;
    spawned.finish();
    Ok(mount)
}

/// The command line of the program, without `--ready-fd`.
fn words(run: &Path, host: &Host, wish: &Wish) -> Result<Vec<std::ffi::OsString>> {
    let home = host.first.to_string();
    let mut words = vec!["--run".into(), run.into(), "--home".into(), home.into()];
    words.extend(["--at".into(), wish.at.clone().into()]);
    words.extend(["--transport".into(), wish.requests.clone().into()]);
    if wish.rights.is_for_all {
        words.push("--for-all".into());
    }
    if wish.rights.is_trusted {
        words.push("--trusted".into());
    }
    if is_apart(host) {
        words.push("--apart".into());
    }
    if let Some(pipe) = &wish.while_held {
        rustix::io::fcntl_setfd(pipe, FdFlags::empty())
            .map_err(|error| Failure::at("can not keep", "a pipe", error))?;
        words.extend(["--while-fd".into(), pipe.as_raw_fd().to_string().into()]);
    }
    Ok(words)
}

/// True if the daemons are in another user namespace than this program, where users have other numbers.
fn is_apart(host: &Host) -> bool {
    let space = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/user"));
    let Some(daemon) = host.daemons.first() else { return false };
    match (space("self"), space(&daemon.process.pid.to_string())) {
        (Ok(own), Ok(theirs)) => own != theirs,
        // Into one above nobody may look.
        (Ok(_), Err(error)) => error.kind() == ErrorKind::PermissionDenied,
        _ => false,
    }
}

/// Mounts an instance of this host unless it is mounted there already.
///
/// # Errors
/// There is no such instance here; as `start`.
pub(crate) fn ensure(
    name: &str,
    wish: &Wish,
    patience: Duration,
    progress: &mut Progress,
) -> Result<()> {
    let run = directories::run(name)?;
    let host: Option<Host> = records::load(&run, RECORD)?;
    let host = host.ok_or_else(|| Failure::no_instance(name))?;
    for (mount, state) in all(&run)?.into_iter().filter(|(mount, _)| mount.at == wish.at) {
        match state {
            State::Served if !mount.is_brief => return Ok(()),
            State::Dead => drop(end(&mount.at, true, patience)?),
            State::Served | State::Leaving => {}
        }
    }
    start(&run, &host, wish, patience, progress).map(|_| ())
}

fn record(mount: &Mount) -> String {
    format!("{PREFIX}{}.json", mount.process.pid)
}

/// The mounts of an instance on this host.
///
/// # Errors
/// A record can not be read.
pub(crate) fn all(run: &Path) -> Result<Vec<(Mount, State)>> {
    let mut found = Vec::new();
    let entries = std::fs::read_dir(run).into_iter().flatten().flatten();
    for name in entries.filter_map(|entry| entry.file_name().into_string().ok()) {
        if !(name.starts_with(PREFIX) && name.ends_with(".json")) {
            continue;
        }
        let Some(mount) = records::load::<Mount>(run, &name)? else { continue };
        match state(&mount)? {
            Some(state) => found.push((mount, state)),
            None => forget(run, &mount),
        }
    }
    found.sort_by(|(a, _), (b, _)| a.at.cmp(&b.at));
    Ok(found)
}

/// `None`: nothing is left of it.
fn state(mount: &Mount) -> Result<Option<State>> {
    let is_there =
        |row: &Mounted| row.device == mount.device && row.at == mount.at.as_os_str().as_bytes();
    let is_in = |table: Vec<Mounted>| table.iter().any(is_there);
    Ok(match mount.process.is_alive()? {
        // It may be in a namespace of its own.
        true if is_in(seen_by(&mount.process.pid.to_string())) => Some(State::Served),
        true => Some(State::Leaving),
        false => is_in(seen_by("self")).then_some(State::Dead),
    })
}

fn forget(run: &Path, mount: &Mount) {
    let _ = std::fs::remove_file(run.join(record(mount)));
    let _ = std::fs::remove_file(run.join(format!("{PREFIX}{}.log", mount.process.pid)));
}

/// The mount with this number, of whatever instance of this user, and its run directory.
fn of_device(device: &str) -> Result<Option<(PathBuf, Mount)>> {
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

/// Takes the mount at `at` away, and waits for the end of who serves it. `is_lazy`: also while it is in
/// use; who has files open there is served on until they are closed. Says who still has it in a mount
/// namespace of his own, as containers do that were started meanwhile.
///
/// # Errors
/// It is in use, or is no mount of an instance.
pub(crate) fn end(at: &Path, is_lazy: bool, patience: Duration) -> Result<Option<Users>> {
    let failure = |why: &str| Failure::at("can not unmount", at.display(), why);
    let refused = |why: &str| Err(failure(why));
    let Some(row) = top(at) else { return refused("nothing is mounted there") };
    if !row.is_ours() {
        let why = format!("it is a mount of {}, not of an instance", row.kind);
        return refused(&why);
    }
    let served = of_device(&row.device)?;
    // Looked for before: once it is gone, another may have its number.
    let elsewhere = users::with_mount(&row.device);
    let is_twice = seen_by("self").iter().filter(|one| one.device == row.device).count() > 1;
    let mut is_left = is_twice || elsewhere.is_some();
    match unmount(at, UnmountFlags::empty()) {
        Ok(()) => {}
        Err(Unmount::Busy) if is_lazy => {
            is_left = true;
            unmount(at, UnmountFlags::DETACH).map_err(|why| failure(&why.text()))?;
        }
        Err(Unmount::Busy) => return refused(&in_use(at, &row.device)),
        Err(why) => return refused(&why.text()),
    }
    if let Some((run, mount)) = served {
        if !is_left {
            process::wait_or_end(&mount.process, patience, &mut Progress::new("unmounting"))?;
        }
        // The number of one that is gone may soon be another's.
        if !mount.process.is_alive()? {
            forget(&run, &mount);
        }
    }
    Ok(elsewhere)
}

/// Ends all mounts of an instance on this host; programs that use one get errors from then on.
///
/// # Errors
/// A record can not be read.
pub(crate) fn end_all(run: &Path, patience: Duration, progress: &mut Progress) -> Result<()> {
    let mounts = all(run)?;
    let processes: Vec<_> = mounts.iter().map(|(mount, _)| mount.process.clone()).collect();
    process::end(&processes, patience, progress)?;
    for (mount, _) in &mounts {
        // Its program does that itself unless it was killed.
        if top(&mount.at).is_some_and(|row| row.device == mount.device) {
            let _ = unmount(&mount.at, UnmountFlags::DETACH);
        }
        forget(run, mount);
    }
    Ok(())
}
