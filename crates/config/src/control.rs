//! Messages between `forebay` and the programs of an instance, as JSON: the status of a daemon, and
//! the report of the writeback daemon; and the hexadecimal form of paths in both directions.
//!
//! Not here: the requests, which are words of a line or fixed bytes (`wire::welcome`).

use crate::activity::access_times::FileTimes;
use crate::activity::is_false;
use crate::activity::timeline::Timeline;
use crate::metrics::{DaemonSample, WritebackSample};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

/// The reason for the allowance until idle memory was measured by the present terms.
pub const REASON_UNKNOWN: &str = "unknown";

/// The status of a daemon, one line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DaemonStatus {
    /// Its metrics.
    #[serde(flatten)]
    pub metrics: DaemonSample,
    /// The agreed amount of memory.
    pub memory_terms: MemoryTerms,
    /// Reason for the allowance: set, max, node, cgroup, pressure, available, unknown.
    pub memory_reason: String,
    /// Reason for the watermarks: set, default, bandwidth, overflow, refault, unused.
    pub watermark_reason: String,
    /// Targets of pools that its services found slow.
    pub slow_targets: Vec<SlowTarget>,
    /// Times at which its memory and SSD were too small for what programs read, the last ones.
    pub thrashing: Vec<ThrashingSpan>,
    /// The membership, if the daemon is a voter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub membership: Option<MembershipStatus>,
    /// The metadata services that the daemon owns, in an instance with followers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<ServiceStatus>,
    /// Damaged data on its SSD that was found, the last of it.
    pub damage: Vec<FoundDamage>,
    /// Jobs whose requests waited for a share on the ways of this daemon's host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub job_shares: Vec<JobShare>,
    /// In the answer to `wire::welcome::GONE_MAGIC`: services that learned here that the host is gone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gone_known: Vec<u32>,
    /// Something that its user should know; empty: nothing.
    pub notice: String,
}

/// The membership of the instance as a voter knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MembershipStatus {
    /// Counts its changes.
    pub epoch: u64,
    /// The voter that knows it is the leader.
    pub leads: bool,
    /// Metadata services that go to another daemon for good.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub services_moving: u64,
    /// Directories may have files with one copy, in an instance with more, so no daemon leaves.
    #[serde(default, skip_serializing_if = "is_false")]
    pub single_files: bool,
    /// All daemons, by number.
    pub members: Vec<MemberStatus>,
    /// The daemon that owns each metadata service, by number of the service; `None`: no daemon does.
    pub owners: Vec<Option<u16>>,
    /// The balance of their loads, as the leader knows it, where services have homes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub balance: Option<BalanceStatus>,
}

/// The balance of the loads of metadata services. Those are many, so it says only what is not as usual.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BalanceStatus {
    /// Counts the words about it.
    pub number: u64,
    /// Services exchange their homes whenever that is a gain.
    pub is_on: bool,
    /// One look is asked for, and has not been done yet.
    pub is_asked: bool,
    /// Services that go to another home, or will, until daemons have as many.
    pub to_move: u64,
    /// The load of each service, in operations per second; `None`: its owner has not said yet.
    pub loads: Vec<Option<u64>>,
    /// Services that have left the host of their first owner for good, and their homes.
    pub moved: Vec<(u32, u16)>,
    /// Services that go to another home, and where.
    pub going: Vec<(u32, u16)>,
    /// Services that moved lately, and stay where they are for now.
    pub resting: Vec<u32>,
    /// Pairs that a look would exchange: the service with the higher load first.
    pub plan: Vec<(u32, u32)>,
}

/// A daemon in the membership.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Number of its failure domain.
    pub domain: u32,
    /// `up`, `down`, `leaving`, or `left` for good.
    pub presence: String,
    /// Its last start that takes part, or did: of one that was started again the others may not know yet.
    pub start: u64,
    /// It was told to leave and has not left; a death does not change it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub leaves: bool,
    /// While it leaves: metadata services and copies of units of file data that it has yet.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub held: u64,
}

/// For fields that are left out.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// A metadata service as its owner knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceStatus {
    /// Number of the service: that of its worker, times the number of daemons, plus that of the daemon
    /// which owned it first.
    pub service: u32,
    /// The daemon that owns it.
    pub owner: u16,
    /// Counts its owners, and the starts of an owner.
    pub epoch: u64,
    /// The daemons that have a copy of its log, or are getting one.
    pub followers: Vec<FollowerStatus>,
    /// Why the owner cannot serve it; absent where it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unserved: Option<String>,
}

impl ServiceStatus {
    /// Whether another daemon has a copy from which the service could go on.
    #[must_use]
    pub fn has_copy(&self) -> bool {
        self.followers.iter().any(|it| it.is_in_sync)
    }
}

/// A follower of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FollowerStatus {
    /// The daemon.
    pub daemon: u16,
    /// Whether it has all that it must have to become the owner.
    #[serde(rename = "in_sync")]
    pub is_in_sync: bool,
    /// Records of the owner that it has not confirmed.
    pub lag_records: u64,
    /// Bytes that wait to be confirmed, also of a snapshot.
    pub lag_bytes: u64,
}

/// A page of a file whose checksum on the SSD differed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FoundDamage {
    /// When it was found, in milliseconds since 1970.
    pub at_ms: u64,
    /// The file.
    pub inode: u64,
    /// Offset of the page in it.
    pub offset: u64,
    /// The backing store has the same bytes: they are read from there again.
    pub is_in_backing: bool,
}

/// A slow target of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlowTarget {
    /// The pool.
    pub pool: String,
    /// The target.
    pub target: u16,
    /// The mean of its rate while it was active.
    pub bytes_per_second: u64,
    /// The mean of the peaks of all targets of the pool.
    pub peers_bytes_per_second: u64,
}

/// Device time that a job got while its requests waited, of that to which it was entitled by weights
/// (`qos::entitlement`), since it was first seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobShare {
    /// The job.
    pub job: String,
    /// Nanoseconds that it got.
    pub got: u64,
    /// Nanoseconds to which it was entitled.
    pub entitled: u64,
}

/// A time at which the tiers of a daemon thrashed: evicted data was fetched again, or prefetched data was
/// evicted unread. Bytes are those of the worst window in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ThrashingSpan {
    /// When it was found, in milliseconds since 1970.
    pub began_ms: u64,
    /// When it was seen last.
    pub seen_ms: u64,
    /// True: it goes on.
    pub is_now: bool,
    /// Milliseconds of a window.
    pub window_ms: u64,
    /// Bytes read from the backing store.
    pub bytes_fetched: u64,
    /// Of these, bytes that had been here before and were evicted.
    pub bytes_refetched: u64,
    /// Bytes read ahead of a reader.
    pub bytes_prefetched: u64,
    /// Of these, bytes that were evicted unread.
    pub bytes_discarded: u64,
    /// Memory and SSD of the daemon for files.
    pub bytes_of_tiers: u64,
    /// Memory and SSD with which nothing would have been fetched again; 0: unknown.
    pub bytes_sufficient: u64,
}

/// How much memory a daemon may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum MemoryTerms {
    /// This many bytes.
    Fixed {
        /// The bytes.
        fixed: u64,
    },
    /// As much as the node leaves idle.
    Idle {
        /// At least this many bytes.
        min: u64,
        /// At most this many bytes.
        max: u64,
    },
}

impl Default for MemoryTerms {
    fn default() -> MemoryTerms {
        MemoryTerms::Fixed { fixed: 0 }
    }
}

/// Files that lost bytes with all their copies, in all of an instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LostFiles {
    /// The files.
    pub files: Vec<LostBytes>,
    /// There are more than are listed.
    pub has_more: bool,
    /// Metadata services that did not answer in time: not all of their files are listed.
    pub services_silent: u64,
}

/// The bytes of a file that no copy has that is in reach. Holes there count as bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LostBytes {
    /// The file.
    pub inode: u64,
    /// Its path inside the instance; `None`: it was not found in time.
    pub path: Option<String>,
    /// Its size.
    pub size: u64,
    /// All copies are gone for good. Else the daemons that have them are down, and may return.
    pub is_gone: bool,
    /// Offset and length of each range, the first ones.
    pub ranges: Vec<(u64, u64)>,
    /// There are more ranges.
    pub has_more: bool,
}

/// The contents of the files of a daemon, as `forebayd --check` prints them: one line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonCheck {
    /// The daemon.
    pub index: u16,
    /// Number of its starts.
    pub starts: u64,
    /// For directories whose own is lost: spread, placement, log2 of the stripe size, flags.
    pub layout: [u8; 4],
    /// Its logs: one of each worker, and those of services of other daemons that it took over.
    pub logs: Vec<LogCheck>,
    /// The log of units, in an instance with copies of files. Its outline is empty.
    #[serde(default)]
    pub units_log: Option<LogCheck>,
    /// The units of which the daemon has a copy, as that log tells.
    #[serde(default)]
    pub units: Vec<u32>,
    /// Bytes of which no copy had a correct checksum when somebody asked: inode, offset, length. Reading
    /// them is an error.
    #[serde(default)]
    pub spoiled: Vec<(u64, u64, u64)>,
    /// The errors of files that are replaced as a whole: the state of the consensus, rules of shares.
    #[serde(default)]
    pub records: Vec<String>,
    /// The error of the SSD file, if it is missing, cut or damaged as a whole.
    pub ssd: Option<String>,
    /// Data on the SSD that does not match its checksums, in order.
    pub damaged: Vec<DamagedRange>,
    /// Extents of files that other targets hold: their number there, the inode, the offset in the file.
    pub spilled: Vec<(u64, u64, u64)>,
    /// Of each file that has data here: inode, bytes of its written pages, end of the last of them.
    pub held: Vec<(u64, u64, u64)>,
    /// Inodes that operations not yet in a log name, or that programs of the host have open.
    #[serde(default)]
    pub used: Vec<u64>,
}

/// A log. Of several of a service the one counts that has the highest epoch, and of those the one of its
/// owner.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogCheck {
    /// Its service: the daemon that owned it first, and its worker.
    pub first: u16,
    /// See `first`.
    pub worker: u8,
    /// Counts the owners of the service, as far as this daemon knew; 0: it owned the service first.
    pub epoch: u64,
    /// Whether the daemon was the owner; else this is a copy.
    pub is_owners: bool,
    /// Path of the file.
    pub file: String,
    /// Whole records.
    pub records: u64,
    /// Records that are damaged or missing.
    pub gaps: Vec<LogGap>,
    /// Numbers, from 1 on, of whole records that are none of this version.
    pub unreadable: Vec<u64>,
    /// The outline of the worker's service, in hexadecimal digits (`metadata::rescue`).
    pub outline: String,
}

impl LogCheck {
    /// True if no record is lost.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.gaps.is_empty() && self.unreadable.is_empty()
    }
}

/// Records of a log that are damaged or missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogGap {
    /// Where the first of them is, or should be.
    pub offset: u64,
    /// Number of the first; 0: the head of the file.
    pub first: u64,
    /// Number of the last, if that is known.
    pub last: Option<u64>,
}

/// Damaged bytes are whole pages of so many bytes.
pub const DAMAGED_PAGE_BYTES: u64 = 4096;

/// Bytes of a file that are damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DamagedRange {
    /// The file.
    pub inode: u64,
    /// First offset.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
    /// The backing store has the same bytes.
    pub is_in_backing: bool,
    /// The unit of the file's data with copies; `None`: its only copy is here, or this is of none.
    #[serde(default)]
    pub unit: Option<u32>,
}

/// Bytes in hexadecimal: two lower-case digits each.
#[must_use]
pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes that `to_hex` gave these digits for; `None` for any other text.
#[must_use]
pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    let path = path_from_hex(text)?;
    Some(path.into_os_string().into_vec())
}

/// The report of the writeback daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WritebackReport {
    /// Its metrics.
    #[serde(flatten)]
    pub metrics: WritebackSample,
    /// The first of the failures of the last round: path and reason.
    pub failures: Vec<(PathBuf, String)>,
    /// The first of the conflicts: path, and what the daemon did.
    pub conflicted: Vec<(PathBuf, String)>,
    /// Why nothing at all can be written.
    pub error: Option<String>,
    /// Bytes of contents over time.
    #[serde(default, skip_serializing_if = "Timeline::is_none")]
    pub timeline: Timeline,
    /// Accesses to the backing store by file, if they were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<FileTimes>,
}

/// One line of the answer to a request to the writeback daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WritebackAnswer {
    /// The report.
    #[serde(flatten)]
    pub report: WritebackReport,
    /// In the last line: true if all that the request covers is written, false if some of it cannot
    /// be written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done: Option<bool>,
    /// A path that cannot be flushed, as `path_to_hex` gives it, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<(String, String)>,
}

/// A path in hexadecimal: two lower-case digits for each byte, so that it is one word of a line.
#[must_use]
pub fn path_to_hex(path: &Path) -> String {
    let bytes = path.as_os_str().as_bytes();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The path that `path_to_hex` gave these digits for; `None` for any other text.
#[must_use]
pub fn path_from_hex(text: &str) -> Option<PathBuf> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let bytes = pairs.iter().map(|&[high, low]| Some(digit(high)? << 4 | digit(low)?));
    let bytes = bytes.collect::<Option<Vec<u8>>>().filter(|_| rest.is_empty())?;
    Some(OsString::from_vec(bytes).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::ffi::OsStr;

    #[test]
    fn only_hexadecimal_of_a_path_is_read_as_one() {
        let path = Path::new(OsStr::from_bytes(b"./a b\n\xff"));
        assert_eq!(path_to_hex(path), "2e2f6120620aff");
        assert_eq!(path_from_hex("2e2f6120620aff").as_deref(), Some(path));
        assert_eq!(path_from_hex(""), Some(PathBuf::new()));
        for text in ["2", "2e2", "2E", "+1", " 2e", "2e ", "2e\n", "0x", "2g", "\u{e9}"] {
            assert_eq!(path_from_hex(text), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn hexadecimal_gives_the_path_back(bytes: Vec<u8>, text in ".*") {
            let path = Path::new(OsStr::from_bytes(&bytes));
            prop_assert_eq!(path_from_hex(&path_to_hex(path)), Some(path.to_owned()));
            if let Some(path) = path_from_hex(&text) {
                prop_assert_eq!(path_to_hex(&path), text);
            }
        }
    }

    #[test]
    fn messages_are_read_as_they_were_written() {
        let status = DaemonStatus {
            metrics: DaemonSample { files: u64::MAX, ..DaemonSample::default() },
            memory_terms: MemoryTerms::Idle { min: 1, max: 2 },
            memory_reason: "set".to_owned(),
            watermark_reason: "default".to_owned(),
            slow_targets: vec![SlowTarget { pool: "fast".to_owned(), ..SlowTarget::default() }],
            thrashing: vec![ThrashingSpan { is_now: true, ..ThrashingSpan::default() }],
            membership: Some(MembershipStatus {
                services_moving: 1,
                members: vec![
                    MemberStatus {
                        domain: 1,
                        presence: "up".to_owned(),
                        ..MemberStatus::default()
                    },
                    MemberStatus { leaves: true, held: 9, ..MemberStatus::default() },
                ],
                owners: vec![Some(0), None],
                balance: Some(BalanceStatus {
                    is_on: true,
                    loads: vec![Some(7), None],
                    moved: vec![(1, 2)],
                    plan: vec![(0, 1)],
                    ..BalanceStatus::default()
                }),
                ..MembershipStatus::default()
            }),
            services: vec![ServiceStatus {
                service: 3,
                followers: vec![FollowerStatus { is_in_sync: true, ..FollowerStatus::default() }],
                ..ServiceStatus::default()
            }],
            damage: vec![FoundDamage { inode: 7, ..FoundDamage::default() }],
            job_shares: vec![JobShare { job: "a".to_owned(), got: 1, entitled: 2 }],
            gone_known: vec![3],
            notice: "device full".to_owned(),
        };
        let json = serde_json::to_value(&status).expect("json");
        assert_eq!((&json["files"], &json["memory_terms"]["max"]), (&u64::MAX.into(), &2.into()));
        assert_eq!(serde_json::from_value::<DaemonStatus>(json).expect("a status"), status);
        let report = WritebackReport {
            metrics: WritebackSample { dirty: 3, ..WritebackSample::default() },
            failures: vec![("a".into(), "no".to_owned())],
            ..WritebackReport::default()
        };
        let answer = WritebackAnswer { report, done: Some(false), refused: None };
        let text = serde_json::to_string(&answer).expect("json");
        assert!(text.contains("\"dirty\":3") && !text.contains("refused"), "{text}");
        assert_eq!(serde_json::from_str::<WritebackAnswer>(&text).expect("an answer"), answer);
    }
}
