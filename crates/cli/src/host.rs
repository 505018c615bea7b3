//! The daemons of this host: started, told of each other, ended. The same code serves a local start
//! and a host that is reached through ssh.

use crate::directories::{self, write_whole};
use crate::failure::{Failure, Result};
use crate::mounts;
use crate::process;
use crate::progress::Progress;
use crate::records::{self, Daemon, Host, Job, VERSION};
use crate::resources;
use crate::spawn::{Order, Spawned};
use crate::writeback;
use config::{Key, Settings};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The record of a host's own daemons.
pub(crate) const RECORD: &str = "host.json";
/// The peers' addresses.
pub(crate) const PEERS: &str = "peers";

/// Where programs see the instance: where it is said now, else where it was said at its start.
pub(crate) fn seen_at(settings: &Settings) -> Result<String> {
    let said = settings.word(Key::At);
    if settings.is_given(Key::At) {
        return Ok(said.to_owned());
    }
    let run = directories::run(settings.word(Key::Name))?;
    let here: Option<Host> = records::load(&run, RECORD)?;
    Ok(here.map_or_else(|| said.to_owned(), |here| here.wanted.at))
}

/// A file of ours: where `FOREBAY_LIBEXEC` says, beside this program, or in `../lib` of it.
pub(crate) fn beside(name: &str) -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os("FOREBAY_LIBEXEC").filter(|path| !path.is_empty()) {
        let path = Path::new(&folder).join(name);
        return match path.exists() {
            true => Ok(path),
            false => Err(Failure::at("missing", path.display(), "correct FOREBAY_LIBEXEC")),
        };
    }
    let own = std::env::current_exe()
        .map_err(|error| Failure::at("can not find", "this program", error))?;
    let folder = own.parent().unwrap_or(Path::new("/"));
    let places =
        [folder.join(name), folder.join("../lib").join(name), folder.join("deps").join(name)];
    places.iter().find(|path| path.exists()).cloned().ok_or_else(|| {
        let advice = "install it there, or set FOREBAY_LIBEXEC to its directory";
        Failure::at("missing", format!("{name} beside {}", own.display()), advice)
    })
}

/// Makes the daemons of `job` run: those that do, stay; those that do not, are started.
///
/// # Errors
/// What went wrong first. What this call started and made is gone again then.
pub(crate) fn start(job: &Job, progress: &mut Progress) -> Result<Host> {
    if job.version != VERSION {
        let why = format!("version={} of the job, {VERSION} here: install one", job.version);
        return Err(Failure::at("another forebay", "this host", why));
    }
    let run = directories::run(&job.name)?;
    let known: Option<Host> = records::load(&run, RECORD)?;
    let is_new = known.is_none();
    let host = match known {
        Some(host) if host.first == job.first && host.count == job.count => host,
        Some(_) => {
            let why = "other daemons of an instance of that name are here: stop it first";
            return Err(Failure::at("conflict", run.display(), why));
        }
        None => plan(job)?,
    };
    let (shm, data) = (host.shm.clone(), host.data.clone());
    let started = make(job, &run, host, progress);
    if started.is_err() && is_new {
        remove(&run, &shm, &data, job.first..job.first + job.local_count);
    }
    started
}

/// Where things will be and how large.
fn plan(job: &Job) -> Result<Host> {
    let dirs = dirs(job)?;
    let memory = resources::memory(job.wanted.memory.as_ref(), job.local_count)?;
    let count = u16::try_from(dirs.len()).unwrap_or(u16::MAX);
    let ssds: Vec<u64> = (0_u16..)
        .zip(&dirs)
        .map(|(place, dir)| {
            let sharers = (job.local_count - place).div_ceil(count);
            job.wanted.ssd.unwrap_or_else(|| resources::ssd(dir, sharers))
        })
        .collect();
    if memory.least.is_some() && ssds.contains(&0) {
        let why = "files in it move to the SSD when programs want it back, and there is none: give \
                   --ssd, another --dir, or a --memory that is no range";
        return Err(Failure::at("can not borrow memory", "this host", why));
    }
    let nobody = process::Identity { pid: 0, started: 0, boot: String::new(), exe: (0, 0) };
    let daemons = (job.first..job.first + job.local_count).zip(ssds.into_iter().cycle());
    let daemons = daemons.map(|(index, ssd)| Daemon {
        index,
        process: nobody.clone(),
        tcp: String::new(),
        memory: memory.most,
        memory_least: memory.least,
        ssd,
        fresh: false,
    });
    Ok(Host {
        version: VERSION,
        name: job.name.clone(),
        count: job.count,
        first: job.first,
        wanted: job.wanted.clone(),
        shm: directories::shm(&job.name).join(format!("h{}", job.first)),
        data: dirs.iter().map(|dir| directories::data(&job.name, dir)).collect(),
        daemons: daemons.collect(),
    })
}

/// The directories for data, which are there.
fn dirs(job: &Job) -> Result<Vec<PathBuf>> {
    let dirs: Vec<PathBuf> = match &job.wanted.dir {
        Some(dirs) => dirs.split(':').map(PathBuf::from).collect(),
        None => vec![std::env::temp_dir()],
    };
    let absolute = |dir: PathBuf| std::path::absolute(&dir).unwrap_or(dir);
    let dirs: Vec<PathBuf> = dirs.into_iter().map(absolute).collect();
    for (place, dir) in dirs.iter().enumerate() {
        let advice = "make it or give another --dir";
        if !dir.is_dir() {
            return Err(Failure::at("no such directory", dir.display(), advice));
        }
        if dirs.iter().take(place).any(|other| other == dir) {
            return Err(Failure::at("named twice", dir.display(), "give each --dir once"));
        }
    }
    if dirs.len() > usize::from(job.local_count) {
        let (count, daemons) = (dirs.len(), job.local_count);
        let text = format!(
            "{count} directories for {daemons} daemons of a host: start as many daemons \
             (--local {count}, or host:{count} in the hosts file), or give fewer in --dir"
        );
        return Err(Failure::with_code(crate::failure::USAGE, text));
    }
    Ok(dirs)
}

fn make(job: &Job, run: &Path, mut host: Host, progress: &mut Progress) -> Result<Host> {
    let until = Instant::now() + Duration::from_micros(job.wanted.timeout);
    let program = beside("forebayd")?;
    let parents = [run.parent(), host.shm.parent()];
    let parents = parents.into_iter().flatten().map(Path::to_owned);
    let own = [run.to_owned(), host.shm.clone()].into_iter().chain(host.data.iter().cloned());
    for path in parents.chain(own) {
        directories::make_private(&path)?;
    }
    write_whole(&run.join("secret"), &format!("{}\n", job.secret))?;
    let mut orders = Vec::new();
    for daemon in &host.daemons {
        if daemon.process.is_alive()? {
            continue;
        }
        let data = host.data_of(daemon.index);
        directories::make_private(&data)?;
        orders.push(Order {
            index: daemon.index,
            what: format!("daemon {}", daemon.index),
            words: words(job, &host, daemon, run, &data),
            variables: variables(job),
            log: run.join(format!("d{}.log", daemon.index)),
        });
    }
    let mut spawned = Spawned::start(&program, orders)?;
    // Programs start faster when the sites of this host's libc are known; without, they look.
    let _ = forebay_preload::sites::prepare(run);
    let ready = spawned.wait(until, progress)?;
    for daemon in &mut host.daemons {
        let new = ready.iter().find(|ready| ready.index == daemon.index);
        daemon.fresh = new.is_some();
        if let Some(new) = new {
            daemon.process = new.process.clone();
            daemon.tcp.clone_from(&new.tcp);
        }
    }
    let mut record = host.clone();
    record.daemons.iter_mut().for_each(|daemon| daemon.fresh = false);
    records::store(run, RECORD, &record)?;
    spawned.finish();
    Ok(host)
}

/// The command line of a daemon, without `--ready-fd`.
fn words(job: &Job, host: &Host, daemon: &Daemon, run: &Path, data: &Path) -> Vec<OsString> {
    let port = match job.wanted.port {
        0 => 0,
        base => base + u64::from(daemon.index),
    };
    let listen = match job.listen.contains(':') {
        true => format!("[{}]:{port}", job.listen),
        false => format!("{}:{port}", job.listen),
    };
    let pairs: [(&str, OsString); 27] = [
        ("--run", run.into()),
        ("--shm", host.shm.clone().into()),
        ("--data", data.into()),
        ("--index", daemon.index.to_string().into()),
        ("--count", job.count.to_string().into()),
        ("--local-first", job.first.to_string().into()),
        ("--local-count", job.local_count.to_string().into()),
        ("--memory", daemon.memory.to_string().into()),
        ("--ssd", daemon.ssd.to_string().into()),
        ("--room", percent(job.wanted.room)),
        ("--reserve", percent(job.wanted.reserve)),
        ("--idle", job.wanted.idle.to_string().into()),
        ("--patience", job.wanted.patience.to_string().into()),
        ("--move-rate", job.wanted.move_rate.to_string().into()),
        ("--chunk", job.wanted.chunk.to_string().into()),
        ("--spread", job.wanted.spread.clone().into()),
        ("--placement", job.wanted.placement.clone().into()),
        ("--consistency", job.wanted.consistency.clone().into()),
        ("--writes", job.wanted.writes.clone().into()),
        ("--reads", job.wanted.reads.clone().into()),
        ("--inline", job.wanted.inline.to_string().into()),
        ("--timeout", job.wanted.timeout.to_string().into()),
        ("--workers", job.wanted.workers.to_string().into()),
        ("--listen", listen.into()),
        ("--transport", job.wanted.transport.clone().into()),
        ("--peers", run.join(PEERS).into()),
        ("--owner", directories::user().to_string().into()),
    ];
    let backing = job.wanted.backing.iter().flat_map(|path| {
        let check = job.wanted.backing_check.to_string();
        let write_back = job.wanted.write_back.clone();
        let own = [("--backing", path.into()), ("--backing-check", check.into())];
        let rate = job.wanted.backing_rate.to_string();
        own.into_iter()
            .chain([("--write-back", write_back.into()), ("--backing-rate", rate.into())])
    });
    let history = job.wanted.history.as_ref().map(|_| ("--history", "noted".into()));
    let least = daemon.memory_least.map(|least| ("--memory-least", least.to_string().into()));
    pairs
        .into_iter()
        .chain(backing)
        .chain(history)
        .chain(least)
        .flat_map(|(name, value)| [name.into(), value])
        .collect()
}

/// `None`: it sets itself.
fn percent(of: Option<u64>) -> OsString {
    of.map_or_else(|| "auto".into(), |of| of.to_string().into())
}

fn variables(job: &Job) -> Vec<(&'static str, String)> {
    vec![("FOREBAY_LOG", job.wanted.log.clone())]
}

/// Tells the daemons of this host where all are, and starts the writer if it is to be here.
///
/// # Errors
/// There is no such instance here, the file can not be written, or the writer not be started.
pub(crate) fn peers(name: &str, lines: &str) -> Result<()> {
    let run = directories::run(name)?;
    directories::check_private(&run)?;
    write_whole(&run.join(PEERS), lines)?;
    writeback::ensure(&run)
}

/// Ends the daemons of this host and removes what they had. Fine if there is nothing.
///
/// # Errors
/// A daemon can not be looked at, or something can not be removed.
pub(crate) fn stop(name: &str, patience: Duration, progress: &mut Progress) -> Result<()> {
    let run = directories::run(name)?;
    let Some(host) = records::load::<Host>(&run, RECORD)? else { return Ok(()) };
    mounts::end_all(&run, patience, progress)?;
    writeback::end(&run, patience, progress)?;
    let processes: Vec<_> = host.daemons.iter().map(|daemon| daemon.process.clone()).collect();
    process::end(&processes, patience, progress)?;
    for daemon in &host.daemons {
        directories::remove(&host.data_of(daemon.index))?;
    }
    directories::remove(&host.shm)?;
    let end = host.daemons.last().map_or(host.first, |daemon| daemon.index + 1);
    remove(&run, &host.shm, &host.data, host.first..end);
    Ok(())
}

/// Removes what the daemons of a host had, as far as it can. Directories that other hosts share,
/// because they are the same machine, go with the last.
fn remove(run: &Path, shm: &Path, data: &[PathBuf], daemons: std::ops::Range<u16>) {
    for index in daemons.clone() {
        let _ = directories::remove(&records::data_of(data, daemons.start, index));
        for end in ["sock", "log", "ready", "history"] {
            let _ = std::fs::remove_file(run.join(format!("d{index}.{end}")));
        }
    }
    let _ = directories::remove(shm);
    for shared in data.iter().map(PathBuf::as_path).chain(shm.parent()) {
        let _ = std::fs::remove_dir(shared);
    }
    let _ = std::fs::remove_file(run.join(RECORD));
    // On the host of the starter its record must outlive us: it tells of hosts still to stop.
    if !run.join(crate::instance::RECORD).exists() {
        let _ = directories::remove(run);
        directories::remove_lock_beside(run);
        let _ = run.parent().map(std::fs::remove_dir);
    }
}
