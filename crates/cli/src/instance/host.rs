//! The daemons of this host: started, given the addresses of all daemons, stopped. The same code
//! serves local commands and requests that arrive through ssh.

use crate::commands::plural;
use crate::failure::{Failure, Result};
use crate::instance::cluster::HOSTS_RECORD;
use crate::instance::inspect::{self, Usage};
use crate::instance::mounts;
use crate::instance::rescue;
use crate::instance::survivors;
use crate::instance::writeback;
use crate::process;
use crate::process::ending;
use crate::process::progress::Progress;
use crate::process::spawn::{SpawnRequest, Spawned};
use crate::state::directories::{self, write_whole};
use crate::state::records::{
    self, DaemonRecord, HostRecord, HostStartRequest, InstanceRecord, VERSION,
};
use crate::state::resources;
use config::audit;
use config::process::Salvage;
use config::{DaemonConfig, InstanceConfig, Key, Settings};
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// The record of the daemons of one host.
pub(crate) const RECORD: &str = "host.json";
/// File with the addresses of all daemons, in the run directory.
pub(crate) const PEERS: &str = "peers";

/// Locked while the daemons of a host are started, in the run directory. Two hosts whose run
/// directory is the same start one after the other, and the second one finds the record of the
/// first.
const START_LOCK: &str = "host.lock";
/// Pause between attempts to take it.
const LOCK_PAUSE: Duration = Duration::from_millis(10);
/// Longest wait for the counts of a daemon that is about to be stopped.
const COUNT_TIME_MAX: Duration = Duration::from_secs(1);

/// Directory under which programs see the instance: that of `--at`, else the one given at its
/// start.
pub(crate) fn visible_at(settings: &Settings) -> Result<String> {
    let at = settings.word(Key::At);
    if settings.is_given(Key::At) {
        return Ok(at.to_owned());
    }
    let run = directories::run(settings.word(Key::Name))?;
    let here: Option<HostRecord> = records::load(&run, RECORD)?;
    Ok(here.map_or_else(|| at.to_owned(), |here| here.config.at))
}

/// A program or library of Forebay: in `FOREBAY_LIBEXEC`, next to this program, or in `../lib` of
/// it.
pub(crate) fn component(name: &str) -> Result<PathBuf> {
    if let Some(dir) = std::env::var_os("FOREBAY_LIBEXEC").filter(|path| !path.is_empty()) {
        let path = Path::new(&dir).join(name);
        return match path.exists() {
            true => Ok(path),
            false => Err(Failure::at("missing", path.display(), "correct FOREBAY_LIBEXEC")),
        };
    }
    let own = std::env::current_exe()
        .map_err(|error| Failure::at("cannot find", "this program", error))?;
    let dir = own.parent().unwrap_or(Path::new("/"));
    let paths = [dir.join(name), dir.join("../lib").join(name), dir.join("deps").join(name)];
    paths.iter().find(|path| path.exists()).cloned().ok_or_else(|| {
        let advice = "install it there, or set FOREBAY_LIBEXEC to its directory";
        Failure::at("missing", format!("{name} next to {}", own.display()), advice)
    })
}

/// Starts the daemons of `request` that are not running.
///
/// # Errors
/// The first failure. Everything that this call started and created is removed again.
pub(crate) fn start(request: &HostStartRequest, progress: &mut Progress) -> Result<HostRecord> {
    if request.version != VERSION {
        let why = format!("version={} expected={VERSION}: install the same one", request.version);
        return Err(Failure::at("other version of forebay", "this host", why));
    }
    let run = directories::run(&request.name)?;
    run.parent().map_or(Ok(()), directories::make_private)?;
    directories::make_private(&run)?;
    let _lock = lock(&run, Duration::from_micros(request.config.timeout))?;
    let recorded: Option<HostRecord> = records::load(&run, RECORD)?;
    let recorded = match recorded {
        Some(host) if host.is_lost(request) => {
            remove_lost(&host, &run, Duration::from_micros(request.config.timeout))?;
            None
        }
        recorded => recorded,
    };
    let is_new = recorded.is_none();
    let host = match recorded {
        Some(host) if host.is_of(request) => HostRecord { count: request.count, ..host },
        Some(_) => {
            let why = "this directory has the daemons of another host, or of another instance with this \
                       name: stop that instance; if several hosts have this directory in common, set \
                       XDG_RUNTIME_DIR to one that each host has to itself";
            return Err(Failure::at("conflict", run.display(), why));
        }
        None if !survivors::of_host(&shm_of(request)).is_empty() => {
            let why = format!(
                "daemons of an instance {0} run, but their record in {1} is gone: 'forebay stop {0}' \
                 ends them",
                request.name,
                run.display()
            );
            return Err(Failure::at("conflict", shm_of(request).display(), why));
        }
        None if request.has_started => {
            let why = "no daemon can be restarted without it: stop this instance";
            return Err(Failure::at("missing", run.join(RECORD).display(), why));
        }
        None => match new_record(request).and_then(without_files_of_lost) {
            Ok(host) => host,
            Err(failure) => {
                remove_run(&run);
                return Err(failure);
            }
        },
    };
    let (shm, data) = (host.shm.clone(), host.data.clone());
    let started = start_daemons(request, &run, host, progress);
    // Files of a living daemon stay.
    if started.is_err() && is_new && survivors::of_host(&shm).is_empty() {
        remove(&run, &shm, &data, request.first..request.first + request.local_count);
    }
    started
}

/// Removes what a lost node left on this host: the record of its daemons, which are dead, their mounts,
/// and the writeback daemon, which knows them alone.
///
/// # Errors
/// Daemons of it live, or can be started again with all that they have.
fn remove_lost(host: &HostRecord, run: &Path, timeout: Duration) -> Result<()> {
    if host.count_alive()? > 0 || !survivors::of_host(&host.shm).is_empty() {
        let why = "daemons of it run here: end them, or leave the node as it is";
        return Err(Failure::at("not lost", run.display(), why));
    }
    if host.is_whole() {
        let why = format!(
            "its daemons have all that they had: 'forebay start --name {}' starts them again, or names \
             what is damaged; if the files are not to be used any more, remove {}",
            host.name,
            host.shm.display()
        );
        return Err(Failure::at("not lost", run.display(), why));
    }
    mounts::end_all(run, timeout, &mut Progress::new(""))?;
    writeback::give_up(run, timeout, &mut Progress::new(""))?;
    let daemons = host.first..host.first + u16::try_from(host.daemons.len()).unwrap_or(u16::MAX);
    remove_files(run, &host.shm, &host.data, daemons);
    Ok(())
}

/// Another host has taken the place of this one, which was lost: removes what it has of the instance, of
/// which the first daemon here was `first`. Succeeds if there is nothing.
///
/// # Errors
/// As `remove_lost`.
pub(crate) fn give_up(name: &str, first: u16, timeout: Duration) -> Result<()> {
    let run = directories::run(name)?;
    let host = records::load::<HostRecord>(&run, RECORD)?;
    let Some(host) = host.filter(|host| host.first == first) else { return Ok(()) };
    remove_lost(&host, &run, timeout)?;
    remove_run(&run);
    Ok(())
}

/// Removes what a lost daemon left in the directories of one that is to begin with nothing. Where the
/// files of all daemons are whole they stay: they are of a start in their place whose record was not
/// stored, or the daemons refuse them.
fn without_files_of_lost(host: HostRecord) -> Result<HostRecord> {
    if host.lost_starts > 0 && !host.is_whole() {
        for daemon in &host.daemons {
            directories::remove(&host.data_of(daemon.index))?;
        }
        directories::remove(&host.shm)?;
    }
    Ok(host)
}

/// Directory of the shared memory of the host that starts.
fn shm_of(request: &HostStartRequest) -> PathBuf {
    directories::shm(&request.name).join(format!("h{}", request.first))
}

/// Takes the lock of the starting hosts, until the file is dropped.
fn lock(run: &Path, limit: Duration) -> Result<std::fs::File> {
    let path = run.join(START_LOCK);
    let file = std::fs::File::create(&path)
        .map_err(|error| Failure::at("cannot open", path.display(), error))?;
    let until = Instant::now() + limit;
    // Any other error: this file system has no locks, and hosts have no such directory in common.
    while rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)
        == Err(rustix::io::Errno::WOULDBLOCK)
    {
        if Instant::now() >= until {
            let why = "another host is starting daemons in this directory: try again";
            return Err(Failure::at("busy", path.display(), why));
        }
        std::thread::sleep(LOCK_PAUSE);
    }
    Ok(file)
}

/// The record of daemons that are to be started: their directories and sizes.
fn new_record(request: &HostStartRequest) -> Result<HostRecord> {
    let dirs = data_dirs(request)?;
    check_backing(&request.config)?;
    let (daemons, workers) = (request.local_count, request.config.workers);
    let memory = resources::memory(request.config.memory.as_ref(), daemons, workers)?;
    resources::check_memory(memory, daemons, workers)?;
    let count = u16::try_from(dirs.len()).unwrap_or(u16::MAX);
    let ssds: Vec<u64> = (0_u16..)
        .zip(&dirs)
        .map(|(index, dir)| {
            let sharers = (request.local_count - index).div_ceil(count);
            match request.config.ssd {
                Some(bytes) => resources::check_ssd(dir, bytes, sharers).map(|()| bytes),
                None => Ok(resources::ssd(dir, sharers)),
            }
        })
        .collect::<Result<_>>()?;
    if memory.min.is_some() && ssds.contains(&0) {
        let why = "files move to the SSD when programs need the memory, but there is no SSD space: \
                   give --ssd, another --dir, or a --memory that is not a range";
        return Err(Failure::at("cannot borrow memory", "this host", why));
    }
    let daemons =
        (request.first..request.first + request.local_count).zip(ssds.into_iter().cycle());
    let daemons = daemons.map(|(index, ssd)| DaemonRecord {
        memory: memory.max,
        memory_min: memory.min,
        ssd,
        ..DaemonRecord::unknown(index)
    });
    Ok(HostRecord {
        version: VERSION,
        name: request.name.clone(),
        count: request.count,
        first: request.first,
        lost_starts: request.lost_starts,
        is_damaged: false,
        config: request.config.clone(),
        shm: shm_of(request),
        data: dirs.iter().map(|dir| directories::data(&request.name, dir)).collect(),
        daemons: daemons.collect(),
    })
}

/// Refuses a backing directory that does not exist on this host.
fn check_backing(config: &InstanceConfig) -> Result<()> {
    let Some(path) = config.backing.as_deref().filter(|path| !backing::is_bucket(path)) else {
        return Ok(());
    };
    let advice = "create it, mount its file system, or give another --backing";
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(Failure::at("not a directory", path, advice)),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(Failure::at("no such directory", path, advice))
        }
        Err(error) => {
            Err(Failure::at("cannot use the backing directory", path, format!("{error}: {advice}")))
        }
    }
}

/// The directories for data, checked.
fn data_dirs(request: &HostStartRequest) -> Result<Vec<PathBuf>> {
    let dirs: Vec<PathBuf> = match &request.config.dir {
        Some(dirs) => dirs.split(':').map(PathBuf::from).collect(),
        None => vec![std::env::temp_dir()],
    };
    let absolute = |dir: PathBuf| std::path::absolute(&dir).unwrap_or(dir);
    let dirs: Vec<PathBuf> = dirs.into_iter().map(absolute).collect();
    for (index, dir) in dirs.iter().enumerate() {
        let advice = "create it or give another --dir";
        if !dir.is_dir() {
            return Err(Failure::at("no such directory", dir.display(), advice));
        }
        if dirs.iter().take(index).any(|other| other == dir) {
            return Err(Failure::at(
                "duplicate directory",
                dir.display(),
                "give each directory of --dir once",
            ));
        }
    }
    if dirs.len() > usize::from(request.local_count) {
        let count = dirs.len();
        let daemons = plural(request.local_count.into(), "daemon");
        let text = format!(
            "{count} directories in --dir for {daemons} on a host: start as many daemons (--local \
             {count}, or host:{count} in the hosts file), or give fewer directories"
        );
        return Err(Failure::with_code(crate::failure::USAGE, text));
    }
    Ok(dirs)
}

fn start_daemons(
    request: &HostStartRequest,
    run: &Path,
    mut host: HostRecord,
    progress: &mut Progress,
) -> Result<HostRecord> {
    let deadline = Instant::now() + Duration::from_micros(request.config.timeout);
    let program = component("forebayd")?;
    let parents = [run.parent(), host.shm.parent()];
    let parents = parents.into_iter().flatten().map(Path::to_owned);
    let own = [run.to_owned(), host.shm.clone()].into_iter().chain(host.data.iter().cloned());
    for path in parents.chain(own) {
        directories::make_private(&path)?;
    }
    write_whole(&run.join("secret"), &format!("{}\n", request.secret))?;
    let mut spawn_requests = Vec::new();
    for daemon in &mut host.daemons {
        if daemon.process.is_alive()? {
            continue;
        }
        let log = inspect::log_of(run, daemon.index);
        daemon.before = (daemon.process.pid != 0).then(|| ending::reason(&log));
    }
    for daemon in &host.daemons {
        if daemon.process.is_alive()? {
            continue;
        }
        directories::make_private(&host.data_of(daemon.index))?;
        let config = run.join(format!("d{}.config", daemon.index));
        records::store_config(&config, &daemon_config(request, &host, daemon, run)?)?;
        spawn_requests.push(SpawnRequest {
            index: daemon.index,
            what: format!("daemon {}", daemon.index),
            config,
            words: Vec::new(),
            log: inspect::log_of(run, daemon.index),
        });
    }
    let mut spawned = Spawned::start(&program, spawn_requests)?;
    // A cache of the system call sites in this host's libc, so that programs start faster.
    let _ = preload::sites::prepare(run);
    let ready = spawned.wait(deadline, progress).inspect_err(|_| {
        note_damage(run, spawned.have_found_damage());
    })?;
    host.is_damaged = false;
    for daemon in &mut host.daemons {
        let new = ready.iter().find(|ready| ready.index == daemon.index);
        daemon.is_new = new.is_some();
        if let Some(new) = new {
            daemon.process = new.process.clone();
            daemon.tcp.clone_from(&new.tcp);
        }
    }
    for daemon in &host.daemons {
        rescue::forget_stored(run, daemon.index);
    }
    let mut record = host.clone();
    record.daemons.iter_mut().for_each(DaemonRecord::forget_start);
    records::store(run, RECORD, &record)?;
    spawned.finish();
    Ok(host)
}

/// Notes whether the daemons did not start since files of them are damaged: only then they may be
/// replaced, with files that seem whole. A host that starts for the first time has no record, and
/// nothing to lose.
fn note_damage(run: &Path, is_damaged: bool) {
    if let Ok(Some(host)) = records::load::<HostRecord>(run, RECORD) {
        // Without the note the next attempt makes it.
        let _ = records::store(run, RECORD, &HostRecord { is_damaged, ..host });
    }
}

/// The configuration of a daemon.
fn daemon_config(
    request: &HostStartRequest,
    host: &HostRecord,
    daemon: &DaemonRecord,
    run: &Path,
) -> Result<DaemonConfig> {
    let refused = |why: String| Failure::at("cannot listen", &request.listen, why);
    let address: IpAddr =
        request.listen.parse().map_err(|_| refused("it is not an IP address".to_owned()))?;
    let port = match request.config.port {
        0 => Ok(0),
        base => u16::try_from(base + u64::from(daemon.index)),
    };
    let port = port.map_err(|_| {
        refused(format!("there is no port for daemon {}: give a smaller --port", daemon.index))
    })?;
    let salvage = request.salvage.map(|round| {
        let repairs = rescue::stored(run, daemon.index);
        repairs.map(|repairs| Salvage { round, repairs })
    });
    Ok(DaemonConfig {
        index: daemon.index,
        count: request.count,
        began: request.began,
        local_first: request.first,
        local_count: request.local_count,
        run: run.to_owned(),
        shm: host.shm.clone(),
        data: host.data_of(daemon.index),
        peers: run.join(PEERS),
        domains: request.domains.clone(),
        hosts: request.first_daemons.clone(),
        copies: u8::try_from(request.config.replicas).unwrap_or(u8::MAX),
        memory: daemon.memory,
        memory_min: daemon.memory_min,
        ssd: daemon.ssd,
        listen: SocketAddr::new(address, port),
        owner: directories::user(),
        has_started: daemon.process.pid != 0,
        lost_starts: host.lost_starts,
        salvage: salvage.transpose()?,
        instance: request.config.clone(),
    })
}

/// Gives the daemons of this host the addresses of all daemons, and starts the writeback daemon if
/// it belongs on this host. `hosts`: the record of the instance, if it was started on another host.
///
/// # Errors
/// There is no such instance here, the file cannot be written, or the writeback daemon cannot be
/// started.
pub(crate) fn peers(name: &str, lines: &str, hosts: Option<&InstanceRecord>) -> Result<()> {
    let run = directories::run(name)?;
    directories::check_private(&run)?;
    if let Some(hosts) = hosts {
        records::store(&run, HOSTS_RECORD, hosts)?;
    }
    write_whole(&run.join(PEERS), lines)?;
    writeback::ensure(&run)
}

/// How much of a host `stop` ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum StopPhase {
    /// Mounts, and the writeback, which ask daemons of all hosts: these still run.
    Programs,
    /// All of it.
    All,
}

/// Stops the daemons of this host, of which the first one is `first`, and removes their files;
/// returns what they held. Succeeds if there is nothing to stop.
///
/// # Errors
/// The state of a process cannot be read, or something cannot be removed.
pub(crate) fn stop(
    name: &str,
    first: u16,
    phase: StopPhase,
    timeout: Duration,
    progress: &mut Progress,
) -> Result<Usage> {
    let run = directories::run(name)?;
    let host = records::load::<HostRecord>(&run, RECORD)?;
    // A record of other daemons is that of a host with the same run directory.
    let Some(host) = host.filter(|host| host.first == first) else {
        let shm = directories::shm(name).join(format!("h{first}"));
        let left = survivors::of_host(&shm).len();
        if left > 0 {
            let daemons = plural(left as u64, "daemon");
            let why = format!(
                "{daemons} of the instance run there, but {} has not their record: run 'forebay \
                 stop {name}' with their XDG_RUNTIME_DIR",
                run.display()
            );
            return Err(Failure::at("not stopped", shm.display(), why));
        }
        return Ok(Usage::default());
    };
    if phase == StopPhase::Programs {
        mounts::end_all(&run, timeout, progress)?;
        writeback::end(&run, timeout, progress)?;
        return Ok(Usage::default());
    }
    let states = inspect::of_host(&run, &host.daemons, timeout.min(COUNT_TIME_MAX))?;
    let held = Usage::of(states.iter().filter_map(|state| state.status.as_ref()));
    note_stop(&run, first);
    mounts::end_all(&run, timeout, progress)?;
    writeback::end(&run, timeout, progress)?;
    let processes: Vec<_> = host.daemons.iter().map(|daemon| daemon.process.clone()).collect();
    process::end(&processes, timeout, progress)?;
    for daemon in &host.daemons {
        directories::remove(&host.data_of(daemon.index))?;
    }
    directories::remove(&host.shm)?;
    let end = host.daemons.last().map_or(host.first, |daemon| daemon.index + 1);
    remove(&run, &host.shm, &host.data, host.first..end);
    Ok(held)
}

/// Notes in the audit log which user stops the instance. The files go with it, so the line is of use
/// while the stop is under way, or when it failed.
fn note_stop(run: &Path, first: u16) {
    let user = (rustix::process::getuid().as_raw(), std::process::id());
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let mut options = OpenOptions::new();
    let file = options.append(true).create(true).mode(0o600);
    let file = file.open(run.join(audit::log_of(first)));
    let _ = file.and_then(|mut file| file.write_all(audit::line(now, "stop", user, "").as_bytes()));
}

/// Removes the files of the daemons of a host, as far as possible. Directories that are shared with
/// other hosts on the same machine are removed with the last of them.
fn remove(run: &Path, shm: &Path, data: &[PathBuf], daemons: Range<u16>) {
    remove_files(run, shm, data, daemons);
    remove_run(run);
}

/// As `remove`, but the run directory stays.
fn remove_files(run: &Path, shm: &Path, data: &[PathBuf], daemons: Range<u16>) {
    for index in daemons.clone() {
        let _ = directories::remove(&records::data_of(data, daemons.start, index));
        for suffix in
            ["sock", "log", "log.old", "audit", "audit.old", "ready", "profile", "config", "damage"]
        {
            let _ = std::fs::remove_file(run.join(format!("d{index}.{suffix}")));
        }
    }
    let _ = directories::remove(shm);
    for shared in data.iter().map(PathBuf::as_path).chain(shm.parent()) {
        let _ = std::fs::remove_dir(shared);
    }
    let _ = std::fs::remove_file(run.join(RECORD));
}

/// Removes the run directory of a host without daemons.
fn remove_run(run: &Path) {
    // On the starting host the record of the instance stays: it lists the hosts that are still to
    // stop.
    if !run.join(crate::instance::cluster::RECORD).exists() {
        let _ = directories::remove(run);
        directories::remove_lock_beside(run);
        let _ = run.parent().map(std::fs::remove_dir);
    }
}
