//! Figures that the text and the page share.

use crate::merged::EqualRanks;
use crate::pattern::{Direction, JobPattern};
use crate::profile::{BackingAccesses, FileProfile, JobProfile, Operations, Transfers};
use crate::text::{count, seconds};
use wire::job::SIZE_CLASSES;

/// Labels of the size classes.
pub(super) const SIZE_LABELS: [&str; SIZE_CLASSES] = [
    "below 100 B",
    "below 1 KiB",
    "below 10 KiB",
    "below 100 KiB",
    "below 1 MiB",
    "below 4 MiB",
    "below 10 MiB",
    "below 100 MiB",
    "below 1 GiB",
    "larger",
];

/// A class of operations of all ranks.
pub(super) struct Class {
    pub(super) name: &'static str,
    pub(super) operations: Operations,
}

/// The classes of operations of a job.
pub(super) fn classes(job: &JobProfile) -> [Class; 4] {
    let syncs = Operations::sum(job.ranks.iter().map(|rank| rank.syncs));
    [
        Class { name: "read", operations: job.reads() },
        Class { name: "write", operations: job.writes() },
        Class { name: "names", operations: job.metadata() },
        Class { name: "sync", operations: syncs },
    ]
}

/// Accesses to the backing store, in words; `None`: there were none.
pub(super) fn accesses(of: &BackingAccesses) -> Option<String> {
    (of.number > 0).then(|| {
        format!(
            "{}, half within {}, 99 % within {}, {} failed",
            count(of.number),
            seconds(of.p50_seconds),
            seconds(of.p99_seconds),
            count(of.failed)
        )
    })
}

/// Both kinds of accesses to the backing store.
pub(super) fn backing(job: &JobProfile) -> [(&'static str, &BackingAccesses); 2] {
    [("reads", &job.backing_reads), ("writes", &job.backing_writes)]
}

/// Groups of equal ranks that are shown.
pub(super) const GROUPS: usize = 8;
/// Characters of a set of ranks that are shown.
const SET_LENGTH: usize = 40;

/// Groups that are not shown.
pub(super) fn more_groups(groups: &[EqualRanks]) -> Option<usize> {
    groups.len().checked_sub(GROUPS).filter(|more| *more > 0)
}

/// The times of the fastest and the slowest of a group.
pub(super) fn spread(group: &EqualRanks) -> String {
    let (least, most) = group.seconds;
    match group.count {
        1 => seconds(most),
        _ => format!("{} to {}", seconds(least), seconds(most)),
    }
}

/// The first ranks of a set that is long.
pub(super) fn shortened(set: &str) -> String {
    match set.char_indices().nth(SET_LENGTH) {
        None => set.to_owned(),
        Some((end, _)) => {
            let shown = set.get(..end).unwrap_or_default();
            let (shown, _) = shown.rsplit_once(',').unwrap_or((shown, ""));
            format!("{shown}, ...")
        }
    }
}

/// The waits of a job, by cause.
pub(super) fn waits(job: &JobProfile) -> [(&'static str, f64); 4] {
    let waits = job.waits;
    [
        ("space", waits.admission),
        ("backing store", waits.backing),
        ("locks", waits.locks),
        ("limits", waits.throttled),
    ]
}

/// Where bytes that were read were.
pub(super) fn tiers(job: &JobProfile) -> [(&'static str, u64); 4] {
    let tiers = job.read_tiers;
    [
        ("memory", tiers.memory),
        ("SSD", tiers.ssd),
        ("other hosts", tiers.remote),
        ("backing store", tiers.backing),
    ]
}

/// All transfers of a direction.
pub(super) fn transfers(job: &JobProfile, direction: Direction) -> Transfers {
    let mut all = Transfers::default();
    for one in job.files.iter().flat_map(|file| &file.uses) {
        all.add(direction.of(one));
    }
    all
}

/// Transfers that went backwards. The first transfer of each use is in no order, so uses are counted each
/// for itself.
pub(super) fn random(job: &JobProfile, direction: Direction) -> u64 {
    let uses = job.files.iter().flat_map(|file| &file.uses);
    uses.map(|one| direction.of(one).random()).fold(0, u64::saturating_add)
}

/// The pattern in words.
pub(super) fn pattern(one: &JobPattern) -> String {
    match (one.pattern, one.volumes.is_empty()) {
        (Some(pattern), _) => pattern.to_string(),
        (None, true) => "none".to_string(),
        (None, false) => {
            let names: Vec<String> =
                one.volumes.iter().map(|(pattern, _)| pattern.to_string()).collect();
            format!("mixed ({})", names.join(", "))
        }
    }
}

/// The files with the most bytes.
pub(super) fn largest(job: &JobProfile, number: usize) -> Vec<&FileProfile> {
    let bytes = |file: &FileProfile| {
        let [reads, writes] = file.transfers();
        reads.bytes.saturating_add(writes.bytes)
    };
    let mut files: Vec<&FileProfile> = job.files.iter().collect();
    files.sort_by(|a, b| bytes(b).cmp(&bytes(a)).then(a.path.cmp(&b.path)));
    files.truncate(number);
    files
}
