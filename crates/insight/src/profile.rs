//! The figures of one job.
//!
//! Collectors fill a profile for each host and merge them. Counts are exact; `is_sampled` says whether
//! times and the order of transfers are estimates. Stored and sent, ranks that do the same are one record
//! (`merged`).

use crate::text;
pub use config::activity::Disturbance;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use wire::job::SIZE_CLASSES;

/// All figures of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobProfile {
    /// Name of the job: that of the scheduler, of `--job`, or of the run.
    pub job: String,
    /// Its user, as a name or a number.
    pub user: String,
    /// Command line, or the names of its programs.
    pub command: String,
    /// Begin, in milliseconds since 1970.
    pub begin_ms: u64,
    /// Seconds from its first to its last moment.
    pub seconds: f64,
    /// False: the job was killed, or still runs.
    pub is_complete: bool,
    /// True: times, and the order of transfers, are estimates from samples.
    pub is_sampled: bool,
    /// Names of its hosts.
    pub hosts: Vec<String>,
    /// Its processes that did I/O.
    #[serde(with = "crate::merged::ranks")]
    pub ranks: Vec<RankProfile>,
    /// Its files with the most bytes or operations.
    #[serde(with = "crate::merged::files")]
    pub files: Vec<FileProfile>,
    /// Files that are not in `files`.
    pub other_files: u64,
    /// Where the bytes that it read were.
    pub read_tiers: TierBytes,
    /// Time that its processes waited for, by cause.
    pub waits: WaitSeconds,
    /// Traffic between the instance and its backing store for it.
    pub backing: BackingTraffic,
    /// Reads of the backing store for its files, by readers and ahead of them.
    pub backing_reads: BackingAccesses,
    /// Writes of its files to the backing store.
    pub backing_writes: BackingAccesses,
    /// The tiers thrashed while it ran.
    pub thrashing: Option<ThrashingBytes>,
    /// Directories with the most operations on names.
    pub directories: Vec<DirectoryProfile>,
    /// Bytes over time: equal spans from begin to end.
    #[serde(with = "crate::merged::timeline")]
    pub timeline: Vec<Span>,
    /// The job's part of what it was entitled to, where it was held back by others; 1: all of it.
    pub share: Option<f64>,
    /// Copies of file data in its instance; `None`: not known.
    pub copies: Option<InstanceCopies>,
    /// Jobs beside which it took longer for its bytes than before.
    pub disturbances: Vec<Disturbance>,
    /// The best rates of this instance, for estimates; zeros: not measured.
    pub rates: Rates,
}

/// Copies of file data in an instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct InstanceCopies {
    /// Its hosts.
    pub hosts: u64,
    /// The setting `replicas`.
    pub replicas: u64,
    /// Files are written back to a backing store.
    pub is_written_back: bool,
    /// Files of the job with one copy where others have more: their directory said so.
    pub single: BTreeSet<String>,
}

/// The best rates of an instance, measured where the job ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rates {
    /// Bytes per second of one process by large transfers in local memory.
    pub local_bytes: f64,
    /// Seconds of a transfer besides its bytes.
    pub call_seconds: f64,
    /// Seconds of one operation on a name.
    pub name_seconds: f64,
}

/// One process of a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RankProfile {
    /// Rank that its launcher gave it; else a number in the order of first use.
    pub rank: u32,
    /// Index into the hosts of the job.
    pub host: u32,
    /// Name of its program.
    pub program: String,
    /// Operations on names and attributes: open, create, stat, list, unlink, rename and the like.
    pub metadata: Operations,
    /// Of these, `open` and `create`.
    pub opens: u64,
    /// Of these, look-ups of names that do not exist.
    pub absent: u64,
    /// Files that it read from their begin, within the first 64 KiB, and did not write. The sizes of
    /// files are not counted: heads of larger ones are among them.
    pub small_files_read: u64,
    /// `fsync`, `fdatasync` and the like.
    pub syncs: Operations,
    /// Reads.
    pub reads: Operations,
    /// Writes.
    pub writes: Operations,
    /// Reads of files that are in no `FileProfile`. Their order says nothing: files alternate.
    #[serde(skip_serializing_if = "Transfers::is_none")]
    pub other_reads: Transfers,
    /// Writes of such files.
    #[serde(skip_serializing_if = "Transfers::is_none")]
    pub other_writes: Transfers,
}

/// Operations of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Operations {
    /// Number of operations.
    pub number: u64,
    /// Bytes that they moved.
    pub bytes: u64,
    /// Seconds that they took.
    pub seconds: f64,
}

impl JobProfile {
    /// Reads of all ranks.
    #[must_use]
    pub fn reads(&self) -> Operations {
        Operations::sum(self.ranks.iter().map(|rank| rank.reads))
    }

    /// Writes of all ranks.
    #[must_use]
    pub fn writes(&self) -> Operations {
        Operations::sum(self.ranks.iter().map(|rank| rank.writes))
    }

    /// Operations on names and attributes of all ranks.
    #[must_use]
    pub fn metadata(&self) -> Operations {
        Operations::sum(self.ranks.iter().map(|rank| rank.metadata))
    }

    /// Seconds in I/O of all ranks.
    #[must_use]
    pub fn io_seconds(&self) -> f64 {
        let syncs = Operations::sum(self.ranks.iter().map(|rank| rank.syncs));
        self.reads().seconds + self.writes().seconds + self.metadata().seconds + syncs.seconds
    }

    /// Seconds of the job, of seconds that were summed over its ranks: they do I/O side by side.
    #[must_use]
    pub fn per_rank(&self, seconds: f64) -> f64 {
        seconds / self.ranks.len().max(1) as f64
    }
}

impl Operations {
    /// The sum of `all`.
    #[must_use]
    pub fn sum(all: impl Iterator<Item = Operations>) -> Operations {
        all.fold(Operations::default(), |mut sum, one| {
            sum.add(one);
            sum
        })
    }

    /// Adds the figures of `other`.
    pub fn add(&mut self, other: Operations) {
        self.number = self.number.saturating_add(other.number);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.seconds += other.seconds;
    }
}

/// One file of a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FileProfile {
    /// Path inside the instance.
    pub path: String,
    /// Size at the end of the job.
    pub size: u64,
    /// True: it was removed before the end.
    pub is_removed: bool,
    /// Where its bytes were when they were read.
    pub read_tiers: TierBytes,
    /// The ranks that used it.
    pub uses: Vec<FileUse>,
}

/// The use of one file by one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FileUse {
    /// Index into the ranks of the job.
    pub rank: u32,
    /// How often the rank opened it and moved bytes.
    pub opens: u64,
    /// Reads of it.
    #[serde(skip_serializing_if = "Transfers::is_none")]
    pub reads: Transfers,
    /// Writes of it.
    #[serde(skip_serializing_if = "Transfers::is_none")]
    pub writes: Transfers,
    /// Seconds in operations on its name and attributes.
    pub metadata_seconds: f64,
    /// `fsync`, `fdatasync` and the like.
    pub syncs: u64,
}

/// Reads or writes of one file by one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Transfers {
    /// Number of transfers.
    pub number: u64,
    /// Bytes that they moved.
    pub bytes: u64,
    /// Seconds that they took.
    pub seconds: f64,
    /// Number of transfers in each size class (`wire::job::size_class`).
    pub sizes: [u64; SIZE_CLASSES],
    /// Transfers that began where the one before ended.
    pub consecutive: u64,
    /// Transfers that began behind the end of the one before, with a gap. The first transfer of a file is
    /// in neither; what remains went backwards.
    pub sequential: u64,
    /// Transfers whose offset is no multiple of 4096.
    pub misaligned: u64,
    /// Lowest offset.
    pub lowest: u64,
    /// Highest end.
    pub highest: u64,
}

impl Transfers {
    /// True if there are none; then they are left out.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        self.number == 0
    }

    /// Adds the figures of `other`, of the same file.
    pub fn add(&mut self, other: &Transfers) {
        if other.number == 0 {
            return;
        }
        self.lowest = if self.number == 0 { other.lowest } else { self.lowest.min(other.lowest) };
        self.highest = self.highest.max(other.highest);
        self.number = self.number.saturating_add(other.number);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.seconds += other.seconds;
        for (sum, number) in self.sizes.iter_mut().zip(other.sizes) {
            *sum = sum.saturating_add(number);
        }
        self.consecutive = self.consecutive.saturating_add(other.consecutive);
        self.sequential = self.sequential.saturating_add(other.sequential);
        self.misaligned = self.misaligned.saturating_add(other.misaligned);
    }

    /// Transfers smaller than 1 MiB.
    #[must_use]
    pub fn small(&self) -> u64 {
        self.sizes.iter().take(5).copied().fold(0, u64::saturating_add)
    }

    /// Transfers that went backwards or began anew.
    #[must_use]
    pub fn random(&self) -> u64 {
        let first = u64::from(self.number > 0);
        self.number
            .saturating_sub(self.consecutive.saturating_add(self.sequential).saturating_add(first))
    }
}

impl FileProfile {
    /// Reads and writes of all ranks.
    #[must_use]
    pub fn transfers(&self) -> [Transfers; 2] {
        let mut sums = [Transfers::default(), Transfers::default()];
        for one in &self.uses {
            sums[0].add(&one.reads);
            sums[1].add(&one.writes);
        }
        sums
    }
}

impl TierBytes {
    /// Adds other bytes.
    pub fn add(&mut self, other: TierBytes) {
        self.memory = self.memory.saturating_add(other.memory);
        self.ssd = self.ssd.saturating_add(other.ssd);
        self.remote = self.remote.saturating_add(other.remote);
        self.backing = self.backing.saturating_add(other.backing);
    }

    /// Each of them changed.
    #[must_use]
    pub fn map(self, change: impl Fn(u64) -> u64) -> TierBytes {
        TierBytes {
            memory: change(self.memory),
            ssd: change(self.ssd),
            remote: change(self.remote),
            backing: change(self.backing),
        }
    }

    /// Bytes of all places.
    #[must_use]
    pub fn all(&self) -> u64 {
        self.memory
            .saturating_add(self.ssd)
            .saturating_add(self.remote)
            .saturating_add(self.backing)
    }
}

/// Bytes by the place where they were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TierBytes {
    /// In memory of the reader's host.
    pub memory: u64,
    /// On an SSD of the reader's host.
    pub ssd: u64,
    /// On another host.
    pub remote: u64,
    /// In the backing store.
    pub backing: u64,
}

/// Seconds of waiting, summed over the processes of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WaitSeconds {
    /// Writes that waited for space.
    pub admission: f64,
    /// Reads that waited for the backing store.
    pub backing: f64,
    /// Locks of files.
    pub locks: f64,
    /// Requests that were held back by a rate or a share.
    pub throttled: f64,
}

/// Traffic between an instance and its backing store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BackingTraffic {
    /// Bytes that were read from it.
    pub read: u64,
    /// Bytes that were written to it.
    pub written: u64,
    /// Files that were not in the backing store when the job ended.
    pub dirty_files: u64,
    /// Bytes that were not in the backing store when the job ended.
    pub dirty_bytes: u64,
    /// Bytes written to it while the job itself did I/O.
    pub written_beside: u64,
    /// Damaged parts of its files that were read again from there.
    pub repaired: u64,
    /// Damaged parts of its files that only this instance had.
    pub damaged: u64,
}

/// Accesses to the backing store for the files of a job since the instance began: of very many files, for
/// a sample of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BackingAccesses {
    /// How many.
    pub number: u64,
    /// Those that failed.
    pub failed: u64,
    /// Seconds of all.
    pub seconds: f64,
    /// Half of them took no longer.
    pub p50_seconds: f64,
    /// 99 of 100 took no longer.
    pub p99_seconds: f64,
    /// By time: number `c` has those of less than 2^c microseconds that are in none before it.
    pub classes: Vec<u64>,
}

/// Bytes of the tiers that thrashed while a job ran, in their worst window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ThrashingBytes {
    /// Seconds of the window.
    pub seconds: f64,
    /// Bytes read from the backing store.
    pub fetched: u64,
    /// Of these, bytes that had been in the tiers before and were evicted.
    pub refetched: u64,
    /// Bytes that were prefetched.
    pub prefetched: u64,
    /// Of these, bytes that were evicted before they were read.
    pub discarded: u64,
    /// Bytes of memory and SSD.
    pub tiers: u64,
    /// Bytes of memory and SSD with which nothing would have been fetched again; 0: unknown.
    pub sufficient: u64,
}

impl ThrashingBytes {
    /// Adds the bytes of other tiers, at the same time.
    pub fn add(&mut self, other: ThrashingBytes) {
        self.seconds = self.seconds.max(other.seconds);
        self.fetched = self.fetched.saturating_add(other.fetched);
        self.refetched = self.refetched.saturating_add(other.refetched);
        self.prefetched = self.prefetched.saturating_add(other.prefetched);
        self.discarded = self.discarded.saturating_add(other.discarded);
        self.tiers = self.tiers.saturating_add(other.tiers);
        self.sufficient = self.sufficient.saturating_add(other.sufficient);
    }

    /// The figures for people, and the change that helps.
    #[must_use]
    pub fn texts(&self) -> (String, String) {
        let mut evidence = format!(
            "{} read from the backing store within {}, {} of them again after they were evicted",
            text::bytes(self.fetched),
            text::seconds(self.seconds),
            text::bytes(self.refetched)
        );
        if self.discarded > 0 {
            let (discarded, all) = (text::bytes(self.discarded), text::bytes(self.prefetched));
            evidence += &format!(", {discarded} of {all} prefetched evicted unread");
        }
        let tiers = text::bytes(self.tiers);
        let change = match self.sufficient {
            0 => format!("prefetch less at a time, or give more than {tiers} of memory and SSD"),
            bytes => {
                let bytes = text::bytes(bytes);
                format!("about {bytes} of memory and SSD would keep the data, instead of {tiers}")
            }
        };
        (evidence, change)
    }
}

/// Operations on names in one directory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DirectoryProfile {
    /// Path inside the instance.
    pub path: String,
    /// Operations on its names.
    pub operations: u64,
}

/// Bytes in one span of time, by rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Span {
    /// Bytes read in it, by index of rank.
    pub read: Vec<u64>,
    /// Bytes written in it, by index of rank.
    pub written: Vec<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_transfer_is_not_random() {
        let transfers = Transfers { number: 10, consecutive: 9, ..Transfers::default() };
        assert_eq!(transfers.random(), 0);
        let backwards =
            Transfers { number: 10, consecutive: 4, sequential: 2, ..Transfers::default() };
        assert_eq!(backwards.random(), 3);
    }

    #[test]
    fn an_empty_use_moves_no_bound() {
        let mut sum = Transfers { number: 1, lowest: 4096, highest: 8192, ..Transfers::default() };
        sum.add(&Transfers::default());
        assert_eq!((sum.lowest, sum.highest), (4096, 8192));
        let mut empty = Transfers::default();
        empty.add(&sum);
        assert_eq!((empty.lowest, empty.highest), (4096, 8192));
    }
}
