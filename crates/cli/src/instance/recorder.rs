//! The process that records an instance in the history, `forebay daemon-record`: started with the
//! instance on the host of `forebay start`, unless `--monitor off`; told by `forebay stop` to look a last
//! time.
//!
//! An instance does not depend on it: it can be killed, and the next `forebay start` starts it again. It
//! ends by itself once the instance is gone. Its loop is `dashboard::record`.

use crate::failure::{Failure, Result};
use crate::process::progress::Progress;
use crate::process::spawn::{SpawnRequest, Spawned};
use crate::process::{self, ProcessIdentity};
use crate::state::directories;
use crate::state::history::HistoryPlace;
use crate::state::records::{self, InstanceRecord, VERSION};
use config::choice::Monitoring;
use config::{Key, Settings};
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

const RECORD: &str = "recorder.json";
const CONFIG: &str = "recorder.config";
const LOG: &str = "recorder.log";
/// Exists while `forebay stop` ends the instance: what dies then was meant to.
const STOPPING: &str = "stopping";
/// Time between looks at an instance of one host.
const INTERVAL: Duration = Duration::from_secs(1);
/// A look asks each other host by `ssh`: with this, four of them begin each second.
const INTERVAL_OF_HOST: Duration = Duration::from_millis(250);
const INTERVAL_MAX: Duration = Duration::from_secs(60);
/// How long a stop waits for the last look and for what is written.
const END_TIME: Duration = Duration::from_secs(15);

/// The record of the process.
#[derive(Serialize, Deserialize)]
struct RecorderRecord {
    version: u32,
    process: ProcessIdentity,
}

/// Its configuration.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RecorderConfig {
    /// The instance.
    pub(crate) name: String,
    /// Microseconds between looks.
    pub(crate) interval_us: u64,
    /// Longest wait for the daemons in microseconds.
    pub(crate) timeout_us: u64,
    /// Where it records.
    pub(crate) place: HistoryPlace,
}

impl RecorderConfig {
    /// Reads it.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn read(path: &Path) -> Result<RecorderConfig> {
        let failed = |error: String| Failure::at("cannot read", path.display(), error);
        let text = std::fs::read(path).map_err(|error| failed(error.to_string()))?;
        serde_json::from_slice(&text).map_err(|error| failed(error.to_string()))
    }
}

/// Starts the recorder of an instance that runs, unless the settings say no, it runs, or another program
/// records the instance. A failure is said, and the instance is not recorded.
pub(crate) fn ensure(settings: &Settings, instance: &InstanceRecord) {
    let is_on = settings.word(Key::Monitor) == Monitoring::On.word();
    let outcome = directories::run(&instance.name).and_then(|run| {
        // An earlier stop failed, and daemons that end from now on do so by themselves.
        let _ = std::fs::remove_file(run.join(STOPPING));
        if is_on { start(settings, instance, &run) } else { Ok(()) }
    });
    if let Err(failure) = outcome {
        errln!("forebay: instance {} is not recorded: {}", instance.name, failure.text());
    }
}

fn start(settings: &Settings, instance: &InstanceRecord, run: &Path) -> Result<()> {
    if is_recorded(run) {
        return Ok(());
    }
    let hosts = u32::try_from(instance.hosts.len()).unwrap_or(u32::MAX);
    let interval = INTERVAL_OF_HOST.saturating_mul(hosts).clamp(INTERVAL, INTERVAL_MAX);
    let timeout = crate::instance::inspect::query_time(settings);
    let place = HistoryPlace::of(settings)?;
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let (interval_us, timeout_us) = (micros(interval), micros(timeout));
    let config = RecorderConfig { name: instance.name.clone(), interval_us, timeout_us, place };
    records::store(run, CONFIG, &config)?;
    let own = std::env::current_exe()
        .map_err(|error| Failure::at("cannot find", "this program", error))?;
    let (path, log) = (run.join(CONFIG), run.join(LOG));
    let words = vec!["daemon-record".into()];
    let what = "the recorder".to_owned();
    let request = SpawnRequest { index: 0, what, config: path, words, log };
    let mut spawned = Spawned::start(&own, vec![request])?;
    let ready = spawned.wait(Instant::now() + settings.timeout(), &mut Progress::new(""))?;
    if let Some(ready) = ready.into_iter().next() {
        records::store(run, RECORD, &RecorderRecord { version: VERSION, process: ready.process })?;
    }
    spawned.finish();
    Ok(())
}

/// True if a process of this host holds the lock of those that record (`lock`).
fn is_recorded(run: &Path) -> bool {
    matches!(lock(run), Ok(None))
}

/// The lock of the process that records an instance on this host: on its run directory. The kernel
/// releases it with the process. `None`: another process has it.
///
/// # Errors
/// The directory cannot be opened.
pub(crate) fn lock(run: &Path) -> Result<Option<File>> {
    let lock = File::open(run).map_err(|error| Failure::at("cannot open", run.display(), error))?;
    let locked = rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive);
    Ok(locked.is_ok().then_some(lock))
}

/// True while `forebay stop` ends the instance, and once it has removed the directory.
pub(crate) fn is_stopping(name: &str) -> bool {
    directories::run(name).is_ok_and(|run| run.join(STOPPING).exists() || !run.exists())
}

/// The instance ends: from now on each look takes what is dead for stopped. Lets the recorder look a last
/// time, and ends it.
pub(crate) fn end(run: &Path, progress: &mut Progress) {
    // Without the file daemons seem to die, which is written in the history and nothing else.
    let _ = File::create(run.join(STOPPING));
    let record = records::load::<RecorderRecord>(run, RECORD);
    if let Ok(Some(record)) = record {
        let _ = process::end(&[record.process], END_TIME, progress);
    }
    for name in [RECORD, CONFIG, LOG] {
        let _ = std::fs::remove_file(run.join(name));
    }
}
