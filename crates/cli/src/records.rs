//! What is written down about an instance, and what goes between its hosts: JSON.
//!
//! `instance.json` lies on the host where `forebay start` ran and tells of all daemons;
//! `host.json` lies on each host and tells of its own. `Job` goes to a host on standard input, the
//! answer comes back as one line on standard output.

use crate::directories;
use crate::failure::{Failure, Result};
use crate::lend::Lent;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Version of the files and messages. What another version wrote is not understood.
pub(crate) const VERSION: u32 = 1;

/// What was asked for, the same for all daemons of an instance. `None` is `auto`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Wanted {
    /// Where programs see the instance unless they are told otherwise.
    pub(crate) at: String,
    /// Directories for data, with `:` between them; `None`: the host's own temporary directory.
    pub(crate) dir: Option<String>,
    /// Directory whose tree the instance shows.
    #[serde(default)]
    pub(crate) backing: Option<String>,
    /// Microseconds for which what lies there counts as known.
    #[serde(default = "backing_check")]
    pub(crate) backing_check: u64,
    /// When it is written to.
    #[serde(default = "never")]
    pub(crate) write_back: String,
    /// Name of the history that is followed and kept.
    #[serde(default)]
    pub(crate) history: Option<String>,
    /// Bytes a second of the backing directory's bandwidth; 0: no bound.
    #[serde(default)]
    pub(crate) backing_rate: u64,
    /// Memory of a daemon.
    pub(crate) memory: Option<MemoryWish>,
    /// Bytes on the SSD of a daemon.
    pub(crate) ssd: Option<u64>,
    /// Percent of memory below which idle files sink; `None`: that sets itself.
    #[serde(default = "none")]
    pub(crate) room: Option<u64>,
    /// Percent of memory below which any files do.
    #[serde(default = "none")]
    pub(crate) reserve: Option<u64>,
    /// Microseconds after which a file is idle.
    #[serde(default = "idle")]
    pub(crate) idle: u64,
    /// Microseconds for which a write waits for room.
    #[serde(default = "patience")]
    pub(crate) patience: u64,
    /// Bytes a second that a daemon moves between tiers while nobody waits; 0: no bound.
    #[serde(default)]
    pub(crate) move_rate: u64,
    /// Bytes of a chunk.
    pub(crate) chunk: u64,
    /// Where entries of a directory live.
    pub(crate) spread: String,
    /// Where chunks of a file live.
    pub(crate) placement: String,
    /// What hosts see of each other's changes.
    #[serde(default = "relaxed")]
    pub(crate) consistency: String,
    /// When writes to other hosts return.
    pub(crate) writes: String,
    /// When bytes of other hosts are read.
    pub(crate) reads: String,
    /// Largest file in an inode record.
    pub(crate) inline: u64,
    /// Threads of a daemon, decided by the starter because they must be alike.
    pub(crate) workers: u64,
    /// TCP port of daemon 0, or 0.
    pub(crate) port: u64,
    /// Way of files' bytes between hosts.
    #[serde(default = "tcp")]
    pub(crate) transport: String,
    /// Level of logs.
    pub(crate) log: String,
    /// Bound on waits, in microseconds.
    pub(crate) timeout: u64,
}

impl Wanted {
    /// Is what is made and changed saved below?
    pub(crate) fn has_writer(&self) -> bool {
        self.backing.is_some()
    }
}

/// Memory as it is wished for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum MemoryWish {
    /// Bytes of each daemon.
    Bytes(u64),
    /// A part of the host's memory or a range, see `config::parse::memory`.
    Text(String),
}

/// What those had that were written before there was a choice.
fn tcp() -> String {
    "tcp".to_owned()
}

/// As `tcp`.
/// Nothing was written to it where this is missing.
fn never() -> String {
    "never".to_owned()
}

fn relaxed() -> String {
    "relaxed".to_owned()
}

/// As `tcp`; nothing sinks where these are missing.
#[expect(clippy::unnecessary_wraps, reason = "the type of the field")]
const fn none() -> Option<u64> {
    Some(0)
}

/// As `tcp`.
const fn idle() -> u64 {
    500_000
}

const fn patience() -> u64 {
    10_000_000
}

const fn backing_check() -> u64 {
    1_000_000
}

/// The work of one host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    /// `VERSION`.
    pub(crate) version: u32,
    /// Name of the instance.
    pub(crate) name: String,
    /// Daemons of the instance.
    pub(crate) count: u16,
    /// First daemon of this host.
    pub(crate) first: u16,
    /// Daemons of this host.
    pub(crate) local_count: u16,
    /// IP address to listen on.
    pub(crate) listen: String,
    /// The instance's secret: 64 hexadecimal digits.
    pub(crate) secret: String,
    /// Settings.
    pub(crate) wanted: Wanted,
}

/// A host's answer: exactly one of these.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// What runs there now.
    #[serde(rename = "host")]
    Host(Box<Host>),
    /// What its daemons hold.
    #[serde(rename = "lent")]
    Lent(Vec<Lent>),
    /// A part of what one of its daemons noted of files that are read.
    #[serde(rename = "noted")]
    Noted(String),
    /// Why it does not.
    #[serde(rename = "error")]
    Error(String),
}

/// One daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Daemon {
    /// Its number in the instance.
    pub(crate) index: u16,
    /// Its process, and how to know that it still is that one.
    #[serde(flatten)]
    pub(crate) process: crate::process::Identity,
    /// Where its peers reach it.
    pub(crate) tcp: String,
    /// Bytes of its arena.
    pub(crate) memory: u64,
    /// Of these, what it may always use, if the rest follows what is idle.
    #[serde(default)]
    pub(crate) memory_least: Option<u64>,
    /// Bytes of its SSD file.
    pub(crate) ssd: u64,
    /// Started by the call that answers with it, not before.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) fresh: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the shape that serde calls")]
fn is_false(flag: &bool) -> bool {
    !flag
}

/// `host.json`: the daemons of one host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Host {
    /// `VERSION`.
    pub(crate) version: u32,
    /// Name of the instance.
    pub(crate) name: String,
    /// Daemons of the instance.
    pub(crate) count: u16,
    /// First daemon of this host.
    pub(crate) first: u16,
    /// Settings.
    pub(crate) wanted: Wanted,
    /// Shared memory of this host.
    pub(crate) shm: PathBuf,
    /// Where data of this host are: its daemons take these directories in turn.
    pub(crate) data: Vec<PathBuf>,
    /// Daemons of this host, in order.
    pub(crate) daemons: Vec<Daemon>,
}

impl Host {
    /// Where the data of one of its daemons are.
    pub(crate) fn data_of(&self, index: u16) -> PathBuf {
        data_of(&self.data, self.first, index)
    }

    /// How many of its daemons live.
    ///
    /// # Errors
    /// One of them can not be looked at.
    pub(crate) fn count_alive(&self) -> Result<usize> {
        self.daemons
            .iter()
            .try_fold(0, |count, daemon| Ok(count + usize::from(daemon.process.is_alive()?)))
    }
}

/// Where the data of a daemon are, of those that begin with `first` and share these directories.
pub(crate) fn data_of(data: &[PathBuf], first: u16, index: u16) -> PathBuf {
    let place = usize::from(index.saturating_sub(first)) % data.len().max(1);
    data.get(place).cloned().unwrap_or_default().join(format!("d{index}"))
}

/// A host in `instance.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Part {
    /// Its name; empty: the host where the instance was started, without `--hosts`.
    pub(crate) host: String,
    /// Address on which its daemons listen.
    pub(crate) listen: String,
    /// First daemon there.
    pub(crate) first: u16,
    /// Daemons there.
    pub(crate) daemons: Vec<Daemon>,
    /// Number of daemons that should be there.
    pub(crate) count: u16,
}

/// `instance.json`: all of an instance.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Instance {
    /// `VERSION`.
    pub(crate) version: u32,
    /// Name of the instance.
    pub(crate) name: String,
    /// Its owner.
    pub(crate) uid: u32,
    /// Words of the command that reaches hosts.
    pub(crate) ssh: Vec<String>,
    /// Settings.
    pub(crate) wanted: Wanted,
    /// Its hosts, in the order of their daemons.
    pub(crate) hosts: Vec<Part>,
}

impl Instance {
    /// Daemons of the instance.
    pub(crate) fn count(&self) -> u16 {
        self.hosts.iter().map(|part| part.count).sum()
    }

    /// All daemons, in order.
    pub(crate) fn daemons(&self) -> impl Iterator<Item = (&Part, &Daemon)> {
        self.hosts.iter().flat_map(|part| part.daemons.iter().map(move |daemon| (part, daemon)))
    }
}

/// Reads a record; `None` if it is not there.
///
/// # Errors
/// The directory is not ours alone, or the record is damaged or of another version.
pub(crate) fn load<T: DeserializeOwned>(run: &Path, file: &str) -> Result<Option<T>> {
    if std::fs::symlink_metadata(run).is_err() {
        return Ok(None);
    }
    directories::check_private(run)?;
    let path = run.join(file);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Failure::at("can not read", path.display(), error)),
    };
    let known = serde_json::from_str(&text).map_err(|error| error.to_string()).and_then(
        |value: serde_json::Value| match value.get("version").and_then(|found| found.as_u64()) {
            Some(version) if version == u64::from(VERSION) => {
                serde_json::from_value(value).map_err(|error| error.to_string())
            }
            version => Err(format!("version={version:?}, this forebay knows {VERSION}")),
        },
    );
    known.map(Some).map_err(|why| {
        let advice = format!("{why}: stop it with the forebay that started it, or remove it");
        Failure::at("damaged record", path.display(), advice)
    })
}

/// Writes a record.
///
/// # Errors
/// It can not be written.
pub(crate) fn store(run: &Path, file: &str, record: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(record)
        .map_err(|error| Failure::at("can not write", run.join(file).display(), error))?;
    directories::write_whole(&run.join(file), &(text + "\n"))
}
