//! Records of an instance and messages between its hosts, as JSON.
//!
//! `instance.json` is on the host where `forebay start` ran and lists all daemons; `host.json` is
//! on each host and lists the daemons there. A `HostStartRequest` goes to a host on standard input;
//! the `HostReply` comes back as one line on standard output.

use crate::failure::{Failure, Result};
use crate::instance::inspect::{DaemonState, Usage};
use crate::instance::lend::DaemonMemory;
use crate::process::ProcessIdentity;
use crate::state::directories;
use config::activity::ActivityAnswer;
use config::control::{DaemonCheck, LostFiles, WritebackReport};
use config::{InstanceConfig, ProcessConfig};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};
use store::starts::DISK_RECORD;

/// Version of the records and messages. Those of another version are refused.
pub(crate) const VERSION: u32 = 2;

/// The request to start the daemons of one host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct HostStartRequest {
    /// `VERSION`.
    pub(crate) version: u32,
    /// Name of the instance.
    pub(crate) name: String,
    /// Number of daemons of the instance.
    pub(crate) count: u16,
    /// Number of those with which it began.
    pub(crate) began: u16,
    /// First daemon of this host.
    pub(crate) first: u16,
    /// Number of daemons of this host.
    pub(crate) local_count: u16,
    /// IP address to listen on.
    pub(crate) listen: String,
    /// The instance's secret: 64 hexadecimal digits.
    pub(crate) secret: String,
    /// The daemons of this host have run before, so that their record must be there.
    pub(crate) has_started: bool,
    /// As in `HostEntry`. A record of the host with a smaller number is that of a lost node, of which
    /// nothing is left or to be kept.
    pub(crate) lost_starts: u64,
    /// The failure domain of each daemon of the instance; empty: daemons do not watch each other.
    #[serde(default)]
    pub(crate) domains: Vec<u32>,
    /// The first daemon of each daemon's host; empty: metadata services stay at their first owners.
    #[serde(default)]
    pub(crate) first_daemons: Vec<u16>,
    /// Number of the salvage: the daemons start without what is damaged, and take up the changes that
    /// were sent before.
    #[serde(default)]
    pub(crate) salvage: Option<u64>,
    /// Configuration of the instance.
    pub(crate) config: InstanceConfig,
}

/// The reply of a host. Requests that return nothing have the reply `{}`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum HostReply {
    /// The daemons that now run there.
    #[serde(rename = "host")]
    Host(Box<HostRecord>),
    /// The memory of its daemons.
    #[serde(rename = "memory")]
    Memory(Vec<DaemonMemory>),
    /// The state of its daemons.
    #[serde(rename = "status")]
    Status(Vec<DaemonState>),
    /// Contents of the files of its daemons.
    #[serde(rename = "check")]
    Check(Vec<DaemonCheck>),
    /// The files and bytes that its daemons held before they were stopped.
    #[serde(rename = "stopped")]
    Stopped(Usage),
    /// The report of its writeback daemon after a flush.
    #[serde(rename = "flushed")]
    Flushed(Box<WritebackReport>),
    /// A page of what one of its daemons recorded for the access profile.
    #[serde(rename = "profile")]
    Profile(String),
    /// Figures of its jobs.
    #[serde(rename = "activity")]
    Activity(ActivityAnswer),
    /// The metadata services there that know that a host is gone.
    #[serde(rename = "aware")]
    Aware(Vec<u32>),
    /// Files of the instance that lost bytes with all their copies.
    #[serde(rename = "lost")]
    Lost(LostFiles),
    /// Why the request failed.
    #[serde(rename = "error")]
    Error(String),
}

/// One daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DaemonRecord {
    /// Its number in the instance.
    pub(crate) index: u16,
    /// Its process.
    #[serde(flatten)]
    pub(crate) process: ProcessIdentity,
    /// Address on which it listens for other daemons.
    pub(crate) tcp: String,
    /// Bytes of its arena.
    pub(crate) memory: u64,
    /// Bytes of the arena that it may always use; the rest follows the idle memory of the node.
    /// `None`: it may use all of the arena.
    pub(crate) memory_min: Option<u64>,
    /// Bytes of its SSD file.
    pub(crate) ssd: u64,
    /// True in the reply to the request that started it; not stored.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) is_new: bool,
    /// Why the daemon ended in whose place it was started, in that reply; not stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) before: Option<String>,
}

impl DaemonRecord {
    /// A daemon of which only the number is known.
    pub(crate) fn unknown(index: u16) -> DaemonRecord {
        let process = ProcessIdentity { pid: 0, started: 0, boot: String::new(), exe: (0, 0) };
        let (tcp, memory_min, before) = (String::new(), None, None);
        DaemonRecord { index, process, tcp, memory: 0, memory_min, ssd: 0, is_new: false, before }
    }

    /// The record as it is stored.
    pub(crate) fn forget_start(&mut self) {
        (self.is_new, self.before) = (false, None);
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde requires")]
fn is_false(flag: &bool) -> bool {
    !flag
}

/// `host.json`: the daemons of one host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct HostRecord {
    /// `VERSION`.
    pub(crate) version: u32,
    /// Name of the instance.
    pub(crate) name: String,
    /// Number of daemons of the instance.
    pub(crate) count: u16,
    /// First daemon of this host.
    pub(crate) first: u16,
    /// As in `HostEntry`.
    pub(crate) lost_starts: u64,
    /// The last attempt to start them ended since files of one of them are damaged.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) is_damaged: bool,
    /// Configuration of the instance.
    pub(crate) config: InstanceConfig,
    /// Directory of this host's shared memory.
    pub(crate) shm: PathBuf,
    /// Directories for data on this host, which its daemons use in turn.
    pub(crate) data: Vec<PathBuf>,
    /// Daemons of this host, in order.
    pub(crate) daemons: Vec<DaemonRecord>,
}

impl HostRecord {
    /// The data directory of one of its daemons.
    pub(crate) fn data_of(&self, index: u16) -> PathBuf {
        data_of(&self.data, self.first, index)
    }

    /// Whether it is the record of the host that is to start, perhaps before the instance got daemons.
    pub(crate) fn is_of(&self, request: &HostStartRequest) -> bool {
        let counts = request.began..=request.count;
        self.first == request.first && counts.contains(&self.count)
    }

    /// Whether it is the record of a node that was lost since.
    pub(crate) fn is_lost(&self, request: &HostStartRequest) -> bool {
        self.is_of(request) && self.lost_starts < request.lost_starts
    }

    /// Whether its daemons can start again, as far as is known: no damage was found, and the records of
    /// starts of all are there, in shared memory and beside the logs.
    pub(crate) fn is_whole(&self) -> bool {
        !self.is_damaged && self.has_records_of_starts()
    }

    /// Whether the files are those of daemons that have started.
    pub(crate) fn has_records_of_starts(&self) -> bool {
        self.daemons.iter().all(|daemon| {
            let in_memory = self.shm.join(format!("d{}.{DISK_RECORD}", daemon.index));
            self.data_of(daemon.index).join(DISK_RECORD).exists() && in_memory.exists()
        })
    }

    /// Number of its daemons that are alive.
    ///
    /// # Errors
    /// The state of a process cannot be read.
    pub(crate) fn count_alive(&self) -> Result<usize> {
        self.daemons
            .iter()
            .try_fold(0, |count, daemon| Ok(count + usize::from(daemon.process.is_alive()?)))
    }
}

/// The data directory of daemon `index` among those from `first` on that share the directories
/// `data`.
pub(crate) fn data_of(data: &[PathBuf], first: u16, index: u16) -> PathBuf {
    let turn = usize::from(index.saturating_sub(first)) % data.len().max(1);
    data.get(turn).cloned().unwrap_or_default().join(format!("d{index}"))
}

/// A host in `instance.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HostEntry {
    /// Its name; empty: the host where the instance was started, without `--hosts`.
    pub(crate) host: String,
    /// Address on which its daemons listen.
    pub(crate) listen: String,
    /// Its first daemon.
    pub(crate) first: u16,
    /// Its daemons; empty before they have started.
    pub(crate) daemons: Vec<DaemonRecord>,
    /// Requested number of daemons.
    pub(crate) count: u16,
    /// Name of its failure domain; empty: the instance has none.
    #[serde(default)]
    pub(crate) domain: String,
    /// How often its daemons were started at most, those of lost nodes in this place too. A start is
    /// counted before it begins.
    pub(crate) starts: u64,
    /// The same when the last node was lost in this place. The daemons of now began with nothing.
    pub(crate) lost_starts: u64,
    /// The command that adds it has not ended: it may be given again.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) is_joining: bool,
}

impl HostEntry {
    /// A host whose daemons have not started.
    pub(crate) fn new(host: &str, listen: &str, first: u16, count: u16) -> HostEntry {
        HostEntry {
            host: host.to_owned(),
            listen: listen.to_owned(),
            first,
            daemons: Vec::new(),
            count,
            domain: String::new(),
            starts: 0,
            lost_starts: 0,
            is_joining: false,
        }
    }

    /// The numbers of its daemons.
    pub(crate) fn numbers(&self) -> Range<u16> {
        self.first..self.first + self.count
    }
}

/// `instance.json`: an instance on all hosts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct InstanceRecord {
    /// `VERSION`.
    pub(crate) version: u32,
    /// Name of the instance.
    pub(crate) name: String,
    /// Its owner.
    pub(crate) uid: u32,
    /// Words of the command that runs another one on a host.
    pub(crate) ssh: Vec<String>,
    /// Its configuration.
    pub(crate) config: InstanceConfig,
    /// The hosts that it has, in the order of their daemons.
    pub(crate) hosts: Vec<HostEntry>,
    /// Number of daemons with which it began; `None`: it has no more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) began: Option<u16>,
    /// Hosts whose daemons have left it. The numbers of these are used no more. As long as one has
    /// daemons their files there are to be removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) left: Vec<HostEntry>,
}

impl InstanceRecord {
    /// Number of daemons that the instance has or had: the next one has this number.
    pub(crate) fn count(&self) -> u16 {
        self.present() + self.left.iter().map(|entry| entry.count).sum::<u16>()
    }

    /// Number of daemons that it has.
    pub(crate) fn present(&self) -> u16 {
        self.hosts.iter().map(|entry| entry.count).sum()
    }

    /// All hosts that it has or had, in the order of their daemons.
    pub(crate) fn all_hosts(&self) -> Vec<&HostEntry> {
        let mut all: Vec<&HostEntry> = self.hosts.iter().chain(&self.left).collect();
        all.sort_by_key(|entry| entry.first);
        all
    }

    /// The same with the hosts on which something is to be removed.
    pub(crate) fn with_files(&self) -> InstanceRecord {
        let with_files = self.left.iter().filter(|entry| !entry.daemons.is_empty());
        let hosts = self.hosts.iter().chain(with_files).cloned().collect();
        InstanceRecord { hosts, ..self.clone() }
    }

    /// Number of daemons with which it began.
    pub(crate) fn began(&self) -> u16 {
        self.began.unwrap_or_else(|| self.count())
    }

    /// All daemons that it has, in order.
    pub(crate) fn daemons(&self) -> impl Iterator<Item = (&HostEntry, &DaemonRecord)> {
        self.hosts.iter().flat_map(|entry| entry.daemons.iter().map(move |daemon| (entry, daemon)))
    }
}

/// Reads a record; `None` if it does not exist.
///
/// # Errors
/// The directory is not private, or the record is damaged or of another version.
pub(crate) fn load<T: DeserializeOwned>(run: &Path, file: &str) -> Result<Option<T>> {
    if std::fs::symlink_metadata(run).is_err() {
        return Ok(None);
    }
    directories::check_private(run)?;
    let path = run.join(file);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Failure::at("cannot read", path.display(), error)),
    };
    let record = serde_json::from_str(&text).map_err(|error| error.to_string()).and_then(
        |value: serde_json::Value| match value.get("version").and_then(|found| found.as_u64()) {
            Some(version) if version == u64::from(VERSION) => {
                serde_json::from_value(value).map_err(|error| error.to_string())
            }
            Some(version) => Err(format!("version={version}, expected={VERSION}")),
            None => Err("it has no version".to_owned()),
        },
    );
    record.map(Some).map_err(|why| {
        let advice = format!(
            "{why}: stop the instance with the forebay that started it, or remove the file"
        );
        Failure::at("unreadable record", path.display(), advice)
    })
}

/// Writes the configuration of a program to `path`, readable by its owner only.
///
/// # Errors
/// A path in it is not UTF-8, or the file cannot be written.
pub(crate) fn store_config(path: &Path, config: &impl ProcessConfig) -> Result<()> {
    let text = config.to_json();
    let text = text.map_err(|error| Failure::at("cannot write", path.display(), error))?;
    directories::write_whole(path, &text)
}

/// Writes a record.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn store(run: &Path, file: &str, record: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(record)
        .map_err(|error| Failure::at("cannot write", run.join(file).display(), error))?;
    directories::write_whole(&run.join(file), &(text + "\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::{Key, Settings, Sources};
    use std::fs;

    fn config() -> InstanceConfig {
        let options = [(Key::Workers, "1".to_owned())].into_iter().collect();
        let settings = Settings::resolve(&Sources { options, ..Sources::default() });
        InstanceConfig::new(&settings.expect("allowed")).expect("complete")
    }

    fn request(lost_starts: u64) -> HostStartRequest {
        HostStartRequest {
            version: VERSION,
            name: "x".into(),
            count: 4,
            began: 3,
            first: 1,
            local_count: 2,
            listen: "10.0.0.2".into(),
            secret: String::new(),
            has_started: false,
            lost_starts,
            domains: Vec::new(),
            first_daemons: Vec::new(),
            salvage: None,
            config: config(),
        }
    }

    #[test]
    fn numbers_of_daemons_that_left_stay() {
        let entry = |host: &str, first, count| HostEntry::new(host, "10.0.0.1", first, count);
        let record = InstanceRecord {
            version: VERSION,
            name: "x".into(),
            uid: 0,
            ssh: Vec::new(),
            config: config(),
            hosts: vec![entry("a", 0, 1), entry("c", 3, 2)],
            began: Some(3),
            left: vec![entry("d", 5, 1), entry("b", 1, 2)],
        };
        assert_eq!((record.count(), record.present(), record.began()), (6, 3, 3));
        let firsts = |hosts: &[HostEntry]| hosts.iter().map(|it| it.first).collect::<Vec<_>>();
        let all: Vec<u16> = record.all_hosts().iter().map(|it| it.first).collect();
        assert_eq!(all, [0, 1, 3, 5]);
        assert_eq!(firsts(&record.with_files().hosts), [0, 3]);
        let mut killed = record.clone();
        killed.left[1].daemons = vec![DaemonRecord::unknown(1)];
        assert_eq!(firsts(&killed.with_files().hosts), [0, 3, 1]);
        let text = serde_json::to_string(&record).expect("text");
        let read: InstanceRecord = serde_json::from_str(&text).expect("the record");
        assert_eq!(read.left, record.left);
    }

    #[test]
    fn the_record_of_a_lost_node_is_told_from_that_of_the_one_in_its_place() {
        let place = tempfile::tempdir().expect("a directory");
        let (shm, data) = (place.path().join("shm"), place.path().join("data"));
        let host = HostRecord {
            version: VERSION,
            name: "x".into(),
            count: 4,
            first: 1,
            lost_starts: 3,
            is_damaged: false,
            config: config(),
            shm: shm.clone(),
            data: vec![data.clone()],
            daemons: [1, 2].map(DaemonRecord::unknown).into(),
        };
        assert!(host.is_lost(&request(4)));
        assert!(!host.is_lost(&request(3)), "it is the same one");
        assert!(!host.is_lost(&HostStartRequest { first: 0, ..request(4) }), "another host");
        // The record is of the time when there were four daemons.
        let is_of = |began, count| host.is_of(&HostStartRequest { began, count, ..request(4) });
        assert!(is_of(3, 4) && is_of(4, 4) && is_of(4, 6), "the instance got daemons");
        assert!(!is_of(5, 6) && !is_of(3, 3), "another instance");
        // All of its daemons must find their records to start again.
        assert!(!host.is_whole());
        for index in [1, 2] {
            let own = data.join(format!("d{index}"));
            fs::create_dir_all(&shm).and_then(|()| fs::create_dir_all(&own)).expect("made");
            fs::write(shm.join(format!("d{index}.starts")), "").expect("written");
            assert!(!host.is_whole());
            fs::write(own.join("starts"), "").expect("written");
        }
        assert!(host.is_whole());
        assert!(!HostRecord { is_damaged: true, ..host.clone() }.is_whole());
        fs::remove_dir_all(&shm).expect("removed");
        assert!(!host.is_whole(), "its memory is gone");
    }
}
