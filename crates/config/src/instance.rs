//! The configuration of an instance: the checked settings that its programs use.
//!
//! A field has the name of its setting, with `_` for `-`, so that a new setting is one row of the
//! table, one field here, and its use. `InstanceConfig::new` and the tests of this file fail if one
//! of the two is missing. Values that differ between the processes of an instance are in `process`.

use crate::choice::{
    Consistency, LogLevel, MetadataSync, Placement, RemoteReads, RemoteWrites, SameDomain, Spread,
    Wire, WritebackMode, WritebackOrder, WritebackVerify,
};
use crate::parse::Value;
use crate::settings::Settings;
use crate::table::{Key, SETTINGS, Scope, Setting};
use serde::{Deserialize, Serialize};
use serde_json::Map;

/// The configuration of an instance, the same for all of its processes. `None` means `auto`, or
/// that an optional setting is not set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InstanceConfig {
    /// Directory under which programs see the instance by default.
    pub at: String,
    /// `auto` or the file of failure domains; `None`: daemons do not watch each other.
    pub domains: Option<String>,
    /// Followers of each metadata service; 0: none.
    pub followers: u64,
    /// When followers have a change. Without followers it has no meaning.
    pub metadata_sync: MetadataSync,
    /// Whether copies may be in one failure domain.
    pub same_domain: SameDomain,
    /// Copies of the bytes of each file; 1: there is one.
    pub replicas: u64,
    /// Directories for data, separated by `:`; `None`: the host's temporary directory.
    pub dir: Option<String>,
    /// The backing directory or bucket; `None`: there is none.
    pub backing: Option<String>,
    /// Microseconds for which a name looked up in the backing directory is trusted.
    pub backing_revalidate: u64,
    /// Limit on background traffic of the whole instance with the backing store, in bytes per
    /// second and direction; 0: no limit.
    pub backing_rate: u64,
    /// The writeback mode of the root. Without a backing store it has no meaning.
    pub writeback: WritebackMode,
    /// The order in which files are written back.
    pub writeback_order: WritebackOrder,
    /// The part of a file that is compared with the backing store before it counts as saved.
    pub writeback_verify: WritebackVerify,
    /// Name of the access profile that is followed and recorded; `None`: nothing is recorded.
    pub profile: Option<String>,
    /// Memory of a daemon.
    pub memory: Option<MemoryRequest>,
    /// Bytes of a daemon's SSD file; 0: none.
    pub ssd: Option<u64>,
    /// Percentage of free memory below which idle extents are demoted; 0: never.
    pub demote_low_watermark: Option<u64>,
    /// Percentage of free memory below which any extent is demoted.
    pub demote_min_watermark: Option<u64>,
    /// Microseconds without use after which an extent is idle.
    pub demote_idle_age: u64,
    /// Longest wait of a write for space, in microseconds.
    pub enospc_timeout: u64,
    /// Limit on background moves between tiers, in bytes per second and daemon; 0: no limit.
    pub tiering_rate: u64,
    /// Rate of the background check of the SSD, in bytes per second and daemon; 0: none.
    pub scrub_rate: u64,
    /// Bytes of a stripe.
    pub stripe_size: u64,
    /// Where the entries of a directory are.
    pub spread: Spread,
    /// Entries from which on a directory is spread, if `spread` is `Auto`.
    pub spread_entries: u64,
    /// Where the stripes of a file are.
    pub placement: Placement,
    /// The consistency mode of the root.
    pub consistency: Consistency,
    /// When writes to other hosts return.
    pub remote_writes: RemoteWrites,
    /// When data of other hosts is fetched.
    pub remote_reads: RemoteReads,
    /// Largest file, in bytes, that is kept in its inode record.
    pub inline: u64,
    /// Threads of a daemon. The starting host decides, because all daemons must have the same
    /// number.
    pub workers: u64,
    /// Percentage of a worker's time for metadata, while data waits.
    pub metadata_share: u64,
    /// TCP port of daemon 0, which daemon i exceeds by i; 0: any free port.
    pub port: u64,
    /// Transport of file data between hosts.
    pub transport: String,
    /// Protection of what daemons of different hosts send each other.
    pub wire: Wire,
    /// Longest wait of a client or a command, in microseconds.
    pub timeout: u64,
    /// Level of the logs.
    pub log: LogLevel,
}

/// The requested memory of a daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum MemoryRequest {
    /// Bytes of each daemon.
    Bytes(u64),
    /// A percentage of the host's memory or a range, see `parse::memory`.
    Text(String),
}

impl Setting {
    /// The name of its field in `InstanceConfig`.
    #[must_use]
    pub fn field(&self) -> String {
        self.name.replace('-', "_")
    }

    /// True if `InstanceConfig` has its value: all but those of one command. `listen` differs
    /// between hosts and becomes the address of each daemon; `at` is recorded as the default of
    /// later commands.
    #[must_use]
    pub fn is_of_instance(&self) -> bool {
        match self.key {
            Key::At => true,
            Key::Listen => false,
            _ => self.scope != Scope::Session,
        }
    }
}

impl InstanceConfig {
    /// The configuration that the settings describe.
    ///
    /// # Errors
    /// A setting has no field, a field has no setting, or a setting is `auto` that the starting
    /// host must decide before (`Settings::decide`).
    pub fn new(settings: &Settings) -> Result<InstanceConfig, String> {
        let mut fields = Map::new();
        for setting in SETTINGS.iter().filter(|setting| setting.is_of_instance()) {
            let value = match settings.value(setting.key) {
                None | Some(Value::Auto) => serde_json::Value::Null,
                Some(Value::Number(number)) => (*number).into(),
                Some(Value::Text(text)) => text.as_str().into(),
            };
            fields.insert(setting.field(), value);
        }
        check_fields(&fields)?;
        serde_json::from_value(fields.into()).map_err(|error| error.to_string())
    }

    /// The value of one setting as JSON; `None`: it is not a setting of an instance.
    #[must_use]
    pub fn value(&self, key: Key) -> Option<serde_json::Value> {
        let fields = serde_json::to_value(self).ok()?;
        fields.get(Setting::of(key).field()).cloned()
    }

    /// True if changes are written back to a backing store.
    #[must_use]
    pub const fn has_writeback(&self) -> bool {
        self.backing.is_some()
    }
}

/// Checks the fields of an `InstanceConfig` in JSON against the table of settings.
///
/// # Errors
/// The first field that is missing or has a value that the table does not allow, by name.
pub(crate) fn check_fields(fields: &Map<String, serde_json::Value>) -> Result<(), String> {
    for setting in SETTINGS.iter().filter(|setting| setting.is_of_instance()) {
        let field = setting.field();
        let Some(value) = fields.get(&field) else {
            return Err(format!("missing field {field}"));
        };
        let is_allowed = match value {
            // Types of fields that need a value do not accept null.
            serde_json::Value::Null => true,
            serde_json::Value::Number(number) => {
                number.as_u64().is_some_and(|number| setting.kind.has_number(number))
            }
            serde_json::Value::String(text) => {
                matches!(setting.kind.read(text), Some(Value::Text(_)))
            }
            _ => false,
        };
        if !is_allowed {
            let allowed = setting.kind.allowed();
            return Err(format!("field {field} cannot be {value}: give {allowed}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Sources;

    fn config(options: &[(Key, &str)]) -> InstanceConfig {
        let options = options.iter().map(|(key, text)| (*key, (*text).to_owned())).collect();
        let mut sources = Sources { options, ..Sources::default() };
        sources.options.entry(Key::Workers).or_insert_with(|| "2".to_owned());
        let settings = Settings::resolve(&sources).expect("allowed");
        InstanceConfig::new(&settings).expect("complete")
    }

    #[test]
    fn each_setting_of_an_instance_has_a_field_and_each_field_a_setting() {
        let fields = serde_json::to_value(config(&[])).expect("json");
        let mut found: Vec<&String> = fields.as_object().expect("an object").keys().collect();
        found.sort();
        let with_scope = SETTINGS.iter().filter(|setting| match setting.scope {
            // It is a field of `DaemonConfig`.
            _ if setting.key == Key::Listen => false,
            Scope::Instance | Scope::Node => true,
            Scope::Session => setting.key == Key::At,
        });
        let mut expected: Vec<String> = with_scope.map(Setting::field).collect();
        expected.sort();
        assert_eq!(found, expected.iter().collect::<Vec<_>>());
    }

    #[test]
    fn values_arrive_in_their_fields() {
        let config = config(&[
            (Key::Memory, "1GiB..50%"),
            (Key::Ssd, "auto"),
            (Key::DemoteLowWatermark, "7"),
            (Key::DemoteMinWatermark, "auto"),
            (Key::TieringRate, "3MiB"),
            (Key::Writeback, "idle"),
            (Key::RemoteReads, "readahead"),
            (Key::Backing, "/b"),
            (Key::EnospcTimeout, "2s"),
        ]);
        assert_eq!(config.memory, Some(MemoryRequest::Text("1GiB..50%".into())));
        assert_eq!((config.ssd, config.demote_min_watermark), (None, None));
        assert_eq!((config.demote_low_watermark, config.tiering_rate), (Some(7), 3 << 20));
        assert_eq!(config.writeback, WritebackMode::Idle);
        assert_eq!(config.remote_reads, RemoteReads::Readahead);
        assert_eq!(config.backing.as_deref(), Some("/b"));
        assert_eq!((config.enospc_timeout, config.dir.as_deref()), (2_000_000, None));
        assert_eq!(config.value(Key::TieringRate), Some((3 << 20).into()));
        assert_eq!(config.value(Key::Ssh), None);
    }

    #[test]
    fn an_undecided_setting_is_refused() {
        let settings = Settings::resolve(&Sources::default()).expect("the defaults");
        let error = InstanceConfig::new(&settings).expect_err("workers are automatic");
        assert!(error.contains("invalid type: null"), "{error}");
    }
}
