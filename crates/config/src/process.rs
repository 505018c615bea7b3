//! The configuration of one process of an instance: `forebayd`, `forebay-mount`, or
//! `forebay-writeback`.
//!
//! The starter writes it as JSON into a file of mode 0600 in the run directory; the command line of
//! the program names the file and inherited descriptors, nothing else. Not here: reading the file,
//! which each program does, and the secret, which has a file of its own.

use crate::choice::{RequestPath, Wire};
use crate::id_ranges::IdRanges;
use crate::instance::{InstanceConfig, check_fields};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use wire::limits::DAEMON_COUNT_MAX;

/// Most starts of daemons that were lost: the membership has 32 bits for the number of a start.
const LOST_STARTS_MAX: u64 = 1 << 30;

/// Exit code of a daemon that does not start, since a file that an earlier start of it left is damaged.
/// Other failures have 1, wrong configurations 2.
pub const EXIT_DAMAGED: u8 = 3;

/// Configuration of a daemon, `forebayd`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DaemonConfig {
    /// Index of this daemon.
    pub index: u16,
    /// Number of daemons of the instance.
    pub count: u16,
    /// Number of daemons with which the instance began. They have its metadata services, by name; those
    /// that were added since have none of their own.
    pub began: u16,
    /// Index of the first daemon of this host, which is also the number of the host.
    pub local_first: u16,
    /// Number of daemons of this host.
    pub local_count: u16,
    /// Directory of sockets and the secret.
    pub run: PathBuf,
    /// Directory of named shared memory.
    pub shm: PathBuf,
    /// The failure domain of each daemon; empty: daemons do not watch each other.
    pub domains: Vec<u32>,
    /// The first daemon of each daemon's host, in an instance whose metadata services go on at followers
    /// of dead daemons; empty: they stay.
    pub hosts: Vec<u16>,
    /// Copies of file data at daemons in different failure domains; 1: there is one.
    pub copies: u8,
    /// This daemon's directory of logs and the SSD file.
    pub data: PathBuf,
    /// Path of the file with the addresses of all daemons.
    pub peers: PathBuf,
    /// Bytes of the arena.
    pub memory: u64,
    /// Bytes of the arena that may always be used, if the rest follows the idle memory of the node.
    pub memory_min: Option<u64>,
    /// Bytes of the SSD file; 0: none.
    pub ssd: u64,
    /// Address to listen on for other daemons.
    pub listen: SocketAddr,
    /// User id that may attach, besides root.
    pub owner: u32,
    /// It was ready once, so its files must be there: without this, a start that finds none makes them.
    pub has_started: bool,
    /// Starts of an earlier daemon in this place whose files and memory are lost. This daemon began with
    /// nothing, and under a higher number: to the others it is not the earlier one. Its later starts say
    /// the same, so it has nothing until it is taken up. 0: there was none.
    pub lost_starts: u64,
    /// The start goes on without what is damaged; `None`: it fails there.
    pub salvage: Option<Salvage>,
    /// Configuration of the instance.
    pub instance: InstanceConfig,
}

/// A start from damaged files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Salvage {
    /// Number of the salvage: larger than that of each earlier one of the instance.
    pub round: u64,
    /// Changes of services whose logs the daemon has.
    pub repairs: Vec<ServiceRepair>,
}

/// Changes of a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceRepair {
    /// The service: the daemon that owned it first.
    pub first: u16,
    /// Its worker.
    pub worker: u8,
    /// A log record in hexadecimal digits that the service takes up behind those of its log.
    pub record: String,
}

/// Configuration of a mount, `forebay-mount`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MountConfig {
    /// Directory of the sockets of the instance's daemons on this host.
    pub run: PathBuf,
    /// Index of the first of these daemons.
    pub home: u16,
    /// The mount point.
    pub at: PathBuf,
    /// How the kernel passes requests.
    pub requests: RequestPath,
    /// All users may use the mount, not only its owner.
    pub is_for_all: bool,
    /// Files count for their owners: quotas and fair shares.
    pub counts_users: bool,
    /// Set-id programs and devices on the mount work.
    pub is_trusted: bool,
    /// Root of the host calls as nobody.
    pub squashes_root: bool,
    /// Users of the host, and those of the instance for which they stand.
    pub users: IdRanges,
    /// Groups of the host, and those of the instance for which they stand.
    pub groups: IdRanges,
    /// The daemons are in another user namespace.
    pub is_other_namespace: bool,
    /// The mount is in a mount namespace of its own, which commands join.
    pub is_private: bool,
    /// Configuration of the instance.
    pub instance: InstanceConfig,
}

/// Configuration of the writeback daemon, `forebay-writeback`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WritebackConfig {
    /// Directory of the sockets of the instance's daemons on this host, in which the control socket
    /// is created.
    pub run: PathBuf,
    /// Index of the first of these daemons.
    pub home: u16,
    /// Number of threads that copy contents, 1 to `WRITEBACK_THREADS_MAX`.
    pub threads: usize,
    /// Configuration of the instance, which has a backing store.
    pub instance: InstanceConfig,
}

/// Largest number of copying threads of a writeback daemon.
pub const WRITEBACK_THREADS_MAX: usize = 64;

/// A configuration that a program reads.
pub trait ProcessConfig: Serialize + DeserializeOwned {
    /// The first rule that the fields break, as the text of an error.
    ///
    /// # Errors
    /// The name of the field, its value, and the rule.
    fn check(&self) -> Result<(), String>;

    /// Reads the text that `to_json` wrote.
    ///
    /// # Errors
    /// An unknown or missing field, a value of another type, or one that is out of bounds. The text
    /// names the field.
    fn from_json(text: &str) -> Result<Self, String> {
        let fields: serde_json::Value =
            serde_json::from_str(text).map_err(|error| error.to_string())?;
        let instance = fields.get("instance").and_then(serde_json::Value::as_object);
        check_fields(instance.ok_or("missing field instance")?)
            .map_err(|error| format!("instance: {error}"))?;
        // From the text, because its errors have the line.
        let config: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        config.check()?;
        Ok(config)
    }

    /// The text that `from_json` reads.
    ///
    /// # Errors
    /// A path is not UTF-8.
    fn to_json(&self) -> Result<String, String> {
        let text = serde_json::to_string_pretty(self).map_err(|error| error.to_string())?;
        Ok(text + "\n")
    }
}

/// Returns the first broken rule of (field, value, whether the rule holds, rule).
fn first_broken(rules: &[(&str, &dyn std::fmt::Display, bool, &str)]) -> Result<(), String> {
    match rules.iter().find(|(.., holds, _)| !holds) {
        Some((field, value, _, rule)) => Err(format!("field {field} cannot be {value}: {rule}")),
        None => Ok(()),
    }
}

impl DaemonConfig {
    /// Whether files have more than one copy.
    #[must_use]
    pub const fn has_copies(&self) -> bool {
        self.copies > 1
    }

    /// Whether the instance may get more daemons.
    #[must_use]
    pub const fn may_grow(&self) -> bool {
        let services_may = self.instance.followers == 0 || !self.hosts.is_empty();
        !self.domains.is_empty() && services_may
    }

    fn check_copies(&self) -> Result<(), String> {
        let alone = !self.has_copies();
        let rules = [
            ((1..=3).contains(&self.copies), "it is 1 to 3"),
            (
                alone || !self.domains.is_empty(),
                "copies are in different failure domains: give --domains",
            ),
            (alone || self.memory_min.is_none(), "a target with copies lends no memory"),
            (alone || self.salvage.is_none(), "copies are not salvaged: other daemons have them"),
        ];
        let of_copies =
            |(holds, rule)| ("copies", &self.copies as &dyn std::fmt::Display, holds, rule);
        first_broken(&rules.map(of_copies))
    }
}

impl ProcessConfig for DaemonConfig {
    fn check(&self) -> Result<(), String> {
        let instance = &self.instance;
        let is_wire_possible = instance.wire != Wire::Encrypted || instance.transport == "tcp";
        let local_end = u32::from(self.local_first) + u32::from(self.local_count);
        let local = u32::from(self.local_first)..local_end;
        let is_addressable = |bytes: u64| usize::try_from(bytes).is_ok() && bytes <= u64::MAX >> 1;
        let memory_min = self.memory_min.unwrap_or(0);
        first_broken(&[
            ("count", &self.count, self.count > 0, "it is at least 1"),
            ("count", &self.count, self.count <= DAEMON_COUNT_MAX, "that are too many daemons"),
            ("index", &self.index, self.index < self.count, "it is less than count"),
            ("began", &self.began, self.began > 0, "it is at least 1"),
            ("began", &self.began, self.began <= self.count, "it is at most count"),
            (
                "began",
                &self.began,
                self.began == self.count || self.may_grow(),
                "only an instance with failure domains gets daemons",
            ),
            (
                "local_first",
                &self.local_first,
                local.contains(&u32::from(self.index)),
                "index is one of local_count daemons from it on",
            ),
            (
                "local_count",
                &self.local_count,
                local_end <= u32::from(self.count),
                "the daemons of this host end within count",
            ),
            (
                "domains",
                &self.domains.len(),
                self.domains.is_empty() || self.domains.len() == usize::from(self.count),
                "there is one for each daemon, or none",
            ),
            (
                "instance.followers",
                &instance.followers,
                instance.followers == 0 || !self.domains.is_empty(),
                "followers are in other failure domains: give --domains",
            ),
            (
                "lost_starts",
                &self.lost_starts,
                self.lost_starts <= LOST_STARTS_MAX,
                "nobody starts a daemon so often",
            ),
            ("memory", &self.memory, is_addressable(self.memory), "it is more than an address"),
            ("memory_min", &memory_min, memory_min <= self.memory, "it is at most memory"),
            ("ssd", &self.ssd, self.ssd <= u64::MAX >> 1, "it is more than an offset"),
            (
                "instance.wire",
                &instance.wire,
                is_wire_possible,
                "RDMA is not encrypted: give --transport tcp, or --wire authenticated",
            ),
        ])?;
        self.check_copies()
    }
}

impl MountConfig {
    /// True if callers are others in the instance than they are on the host. The instance checks what
    /// they may do then, and it trusts only root about callers.
    #[must_use]
    pub const fn has_identities(&self) -> bool {
        self.squashes_root || !self.users.is_empty() || !self.groups.is_empty()
    }
}

impl ProcessConfig for MountConfig {
    fn check(&self) -> Result<(), String> {
        let at = self.at.display();
        let is_one = !(self.is_other_namespace && self.has_identities());
        first_broken(&[
            ("at", &at, self.at.is_absolute(), "it is an absolute path"),
            ("is_other_namespace", &self.is_other_namespace, is_one, "a user namespace maps ids"),
        ])
    }
}

impl ProcessConfig for WritebackConfig {
    fn check(&self) -> Result<(), String> {
        let are_fit = (1..=WRITEBACK_THREADS_MAX).contains(&self.threads);
        first_broken(&[
            ("threads", &self.threads, are_fit, "it is 1 to 64"),
            ("instance.backing", &"null", self.instance.backing.is_some(), "give a backing store"),
        ])
    }
}

/// The parsed command line of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Invocation {
    /// Print the version.
    Version,
    /// Print one line of help.
    Help,
    /// Run.
    Run(Launch),
}

/// The command line of a program that a starter runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Launch {
    /// Path of the configuration, `--config`.
    pub config: PathBuf,
    /// Descriptor on which the program reports that it is ready, `--ready-fd`.
    pub ready_fd: Option<i32>,
    /// The daemon does not run, but prints what its files hold, `--check`.
    pub check: Option<CheckExtent>,
}

/// How much of the files of a daemon is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckExtent {
    /// The logs, and the data that was found damaged before, `--check logs`.
    Logs,
    /// Also all data on the SSD, `--check all`.
    All,
}

impl CheckExtent {
    /// The word of the command line.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            CheckExtent::Logs => "logs",
            CheckExtent::All => "all",
        }
    }
}

impl Invocation {
    /// Parses the words after the name of the program.
    ///
    /// # Errors
    /// The first word that is not understood.
    pub fn parse(mut words: impl Iterator<Item = OsString>) -> Result<Invocation, String> {
        let (mut config, mut launch) = (None, Launch::default());
        while let Some(word) = words.next() {
            let name = word.to_string_lossy().into_owned();
            match &*name {
                "--version" => return Ok(Invocation::Version),
                "--help" => return Ok(Invocation::Help),
                "--config" | "--ready-fd" | "--check" => {}
                _ => return Err(format!("unknown option {name:?}")),
            }
            let value = words.next().ok_or_else(|| format!("option {name} has no value"))?;
            let number = || {
                let number = value.to_str().and_then(|text| text.parse().ok());
                number.map(Some).ok_or_else(|| format!("option {name} cannot be {value:?}"))
            };
            match &*name {
                "--ready-fd" => launch.ready_fd = number()?,
                "--check" => {
                    let all = [CheckExtent::Logs, CheckExtent::All];
                    let found = all.into_iter().find(|one| value == *one.word());
                    launch.check =
                        Some(found.ok_or_else(|| format!("option {name} cannot be {value:?}"))?);
                }
                _ => config = Some(PathBuf::from(value)),
            }
        }
        launch.config = config.ok_or("option --config is missing")?;
        Ok(Invocation::Run(launch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Settings, Sources};
    use crate::table::Key;
    use proptest::prelude::*;

    fn instance(options: &[(Key, String)]) -> InstanceConfig {
        let mut sources =
            Sources { options: options.iter().cloned().collect(), ..Sources::default() };
        sources.options.entry(Key::Workers).or_insert_with(|| "1".to_owned());
        InstanceConfig::new(&Settings::resolve(&sources).expect("allowed")).expect("complete")
    }

    fn daemon(instance: InstanceConfig) -> DaemonConfig {
        DaemonConfig {
            index: 1,
            count: 2,
            began: 2,
            local_first: 0,
            local_count: 2,
            run: "/r".into(),
            shm: "/s".into(),
            data: "/d".into(),
            peers: "/r/peers".into(),
            domains: Vec::new(),
            hosts: Vec::new(),
            copies: 1,
            memory: 1 << 20,
            memory_min: None,
            ssd: 0,
            listen: "127.0.0.1:0".parse().expect("an address"),
            owner: 1000,
            has_started: false,
            lost_starts: 0,
            salvage: None,
            instance,
        }
    }

    #[test]
    fn an_error_names_the_field() {
        let text = daemon(instance(&[])).to_json().expect("text");
        for (from, to, expected) in [
            ("\"index\": 1", "\"index\": 2", "field index cannot be 2: it is less than count"),
            ("\"count\": 2", "\"count\": 0", "field count cannot be 0: it is at least 1"),
            ("\"began\": 2", "\"began\": 0", "field began cannot be 0: it is at least 1"),
            ("\"began\": 2", "\"began\": 3", "field began cannot be 3: it is at most count"),
            (
                "\"began\": 2",
                "\"began\": 1",
                "field began cannot be 1: only an instance with failure",
            ),
            ("\"owner\"", "\"owners\"", "unknown field `owners`"),
            ("  \"owner\": 1000,\n", "", "missing field `owner`"),
            ("\"tiering_rate\": 0,", "", "instance: missing field tiering_rate"),
            ("\"tiering_rate\": 0,", "\"tiering_rate\": 0, \"x\": 1,", "unknown field `x`"),
            ("4194304", "4194305", "field stripe_size cannot be 4194305: give a power of two"),
            ("\"home\"", "\"far\"", "field spread cannot be \"far\": give home, wide or auto"),
            ("\"inline\": 4096", "\"inline\": true", "field inline cannot be true"),
            ("\"workers\": 1", "\"workers\": null", "invalid type: null"),
            (
                "\"lost_starts\": 0",
                "\"lost_starts\": 9999999999",
                "nobody starts a daemon so often",
            ),
            ("{", "", "trailing characters"),
        ] {
            assert!(text.contains(from), "{from}: {text}");
            let error = DaemonConfig::from_json(&text.replacen(from, to, 1)).expect_err(to);
            assert!(error.contains(expected) && !error.contains('\n'), "{to}: {error}");
        }
        assert_eq!(DaemonConfig::from_json("{}"), Err("missing field instance".into()));
    }

    #[test]
    fn an_instance_with_domains_gets_daemons() {
        let with = |change: &dyn Fn(&mut DaemonConfig)| {
            let mut config = daemon(instance(&[]));
            (config.began, config.domains) = (1, vec![0, 1]);
            change(&mut config);
            config.check()
        };
        assert_eq!(with(&|_| ()), Ok(()));
        let apart = |it: &mut DaemonConfig| (it.instance.followers, it.hosts) = (1, vec![0, 1]);
        assert_eq!(with(&apart), Ok(()));
        let no_domains = |it: &mut DaemonConfig| it.domains.clear();
        assert_eq!(with(&|it| it.copies = 2), Ok(()));
        for refused in [with(&|it| it.instance.followers = 1), with(&no_domains)] {
            let why = refused.expect_err("it cannot be served");
            assert!(why.contains("an instance with failure domains gets daemons"), "{why}");
        }
    }

    #[test]
    fn copies_need_domains_and_exclude_what_does_not_know_them() {
        let with = |change: &dyn Fn(&mut DaemonConfig), options: &[(Key, String)]| {
            let mut config = daemon(instance(options));
            (config.copies, config.domains) = (2, vec![0, 1]);
            change(&mut config);
            config.check()
        };
        assert_eq!(with(&|_| (), &[]), Ok(()));
        assert_eq!(with(&|_| (), &[(Key::Backing, "/b".to_owned())]), Ok(()));
        let salvage = Salvage { round: 1, repairs: Vec::new() };
        for (refused, rule) in [
            (with(&|it| it.copies = 0, &[]), "it is 1 to 3"),
            (with(&|it| it.copies = 4, &[]), "it is 1 to 3"),
            (with(&|it| it.domains.clear(), &[]), "give --domains"),
            (with(&|it| it.memory_min = Some(0), &[]), "lends no memory"),
            (with(&|it| it.salvage = Some(salvage.clone()), &[]), "are not salvaged"),
        ] {
            let error = refused.expect_err(rule);
            assert!(error.starts_with("field copies") && error.contains(rule), "{error}");
        }
    }

    #[test]
    fn mounts_and_writeback_daemons_are_checked() {
        let mut mount = MountConfig {
            run: "/r".into(),
            home: 0,
            at: "/mnt".into(),
            requests: RequestPath::Auto,
            is_for_all: true,
            counts_users: true,
            is_trusted: false,
            squashes_root: true,
            users: "1000:2000:1".parse().expect("a map"),
            groups: IdRanges::default(),
            is_other_namespace: false,
            is_private: false,
            instance: instance(&[]),
        };
        let text = mount.to_json().expect("text");
        assert_eq!(MountConfig::from_json(&text), Ok(mount.clone()));
        mount.is_other_namespace = true;
        assert!(mount.check().is_err_and(|error| error.contains("a user namespace maps ids")));
        mount.at = "mnt".into();
        assert!(mount.check().is_err_and(|error| error.starts_with("field at cannot be mnt")));

        let backing = instance(&[(Key::Backing, "s3://b".to_owned())]);
        let with = |threads, instance: &InstanceConfig| {
            let instance = instance.clone();
            let config = WritebackConfig { run: "/r".into(), home: 0, threads, instance };
            WritebackConfig::from_json(&config.to_json().expect("text")).map(drop)
        };
        assert_eq!(with(4, &backing), Ok(()));
        assert!(with(65, &backing).is_err_and(|error| error.contains("field threads")));
        assert!(with(4, &instance(&[])).is_err_and(|error| error.contains("instance.backing")));
    }

    #[test]
    fn the_command_line_is_parsed_or_refused() {
        let parse = |line: &str| Invocation::parse(line.split_whitespace().map(OsString::from));
        let launch = Launch { config: "/r/d0.config".into(), ready_fd: Some(3), check: None };
        let line = "--config /r/d0.config --ready-fd 3";
        assert_eq!(parse(line), Ok(Invocation::Run(launch)));
        assert_eq!(parse("--version"), Ok(Invocation::Version));
        assert_eq!(parse("--help"), Ok(Invocation::Help));
        for (line, expected) in [
            ("", "option --config is missing"),
            ("--config", "option --config has no value"),
            ("--index 1", "unknown option \"--index\""),
            ("--ready-fd x", "option --ready-fd cannot be \"x\""),
        ] {
            assert_eq!(parse(line), Err(expected.to_owned()));
        }
    }

    proptest! {
        #[test]
        fn a_written_configuration_is_read_unchanged(
            low in proptest::option::of(0u64..=100),
            rate in prop_oneof![Just(0u64), (1u64 << 20)..1 << 50],
            stripe in 16u32..=26,
            backing in "/[a-z\"\\\\é]{1,8}",
            memory_min in proptest::option::of(0u64..1 << 20),
            port: u16,
        ) {
            let low = low.map_or_else(|| "auto".to_owned(), |low| low.to_string());
            let instance = instance(&[
                (Key::DemoteLowWatermark, low),
                (Key::TieringRate, rate.to_string()),
                (Key::StripeSize, (1u64 << stripe).to_string()),
                (Key::Backing, backing),
            ]);
            let mut config = daemon(instance);
            config.memory_min = memory_min;
            config.listen.set_port(port);
            let text = config.to_json().expect("text");
            prop_assert_eq!(DaemonConfig::from_json(&text), Ok(config));
        }
    }
}
