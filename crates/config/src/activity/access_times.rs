//! Times of accesses to the backing store, and how many failed, by file: daemons count reads, the
//! writeback daemon writes.
//!
//! Of many files a sample is kept: those whose inode numbers have the lowest hashes. So it is a fair
//! sample of the files of any job.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Classes of times. Class `c` has the accesses of less than 2^c microseconds that are in none before it;
/// the last one has all others, from 67 s on.
pub const CLASSES: usize = 28;
/// Files that are kept: 300 kB.
const FILES_MAX: usize = 1024;

/// Accesses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AccessTimes {
    /// How many.
    pub number: u64,
    /// Those that failed.
    pub failed: u64,
    /// Microseconds of all.
    pub micros: u64,
    /// By time, without zeros at the end.
    pub classes: Vec<u64>,
}

impl AccessTimes {
    /// True if there were none.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        self.number == 0
    }

    /// Counts one.
    pub fn note(&mut self, micros: u64, is_failed: bool) {
        let class = (u64::BITS - micros.leading_zeros()) as usize;
        let class = class.min(CLASSES - 1);
        if self.classes.len() <= class {
            self.classes.resize(class + 1, 0);
        }
        if let Some(number) = self.classes.get_mut(class) {
            *number = number.saturating_add(1);
        }
        self.number = self.number.saturating_add(1);
        self.failed = self.failed.saturating_add(u64::from(is_failed));
        self.micros = self.micros.saturating_add(micros);
    }

    /// Adds others.
    pub fn add(&mut self, other: &AccessTimes) {
        if self.classes.len() < other.classes.len() {
            self.classes.resize(other.classes.len().min(CLASSES), 0);
        }
        for (sum, number) in self.classes.iter_mut().zip(&other.classes) {
            *sum = sum.saturating_add(*number);
        }
        self.number = self.number.saturating_add(other.number);
        self.failed = self.failed.saturating_add(other.failed);
        self.micros = self.micros.saturating_add(other.micros);
    }

    /// Seconds in which this part of the accesses was over, interpolated in its class; 0: there were
    /// none.
    #[must_use]
    pub fn quantile_seconds(&self, part: f64) -> f64 {
        let all = self.classes.iter().copied().fold(0, u64::saturating_add) as f64;
        let (place, mut before) = (all * part, 0.0);
        for (class, number) in (0..).zip(&self.classes) {
            let number = *number as f64;
            if number > 0.0 && before + number >= place {
                let end = 2_f64.powi(class);
                let begin = if class == 0 { 0.0 } else { end / 2.0 };
                return (begin + (end - begin) * (place - before) / number) / 1e6;
            }
            before += number;
        }
        0.0
    }
}

/// Accesses for one file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FileTimes {
    /// Its inode number.
    pub inode: u64,
    /// Reads for it.
    #[serde(skip_serializing_if = "AccessTimes::is_none")]
    pub reads: AccessTimes,
    /// Writes for it.
    #[serde(skip_serializing_if = "AccessTimes::is_none")]
    pub writes: AccessTimes,
}

impl FileTimes {
    /// True if there were no accesses.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        self.reads.is_none() && self.writes.is_none()
    }
}

/// Accesses by file.
#[derive(Debug, Default)]
pub struct AccessLog {
    /// By the hash of the inode number.
    files: BTreeMap<u64, FileTimes>,
}

/// Spreads numbers evenly (`SplitMix64`).
const fn hash(number: u64) -> u64 {
    let mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

impl AccessLog {
    /// Counts a read for a file.
    pub fn note_read(&mut self, inode: u64, micros: u64, is_failed: bool) {
        if let Some(file) = self.file(inode) {
            file.reads.note(micros, is_failed);
        }
    }

    /// Counts a write for a file.
    pub fn note_write(&mut self, inode: u64, micros: u64, is_failed: bool) {
        if let Some(file) = self.file(inode) {
            file.writes.note(micros, is_failed);
        }
    }

    /// The file, unless it is not in the sample.
    fn file(&mut self, inode: u64) -> Option<&mut FileTimes> {
        let key = hash(inode);
        if !self.files.contains_key(&key) {
            let last = self.files.last_key_value().map_or(0, |(last, _)| *last);
            if self.files.len() >= FILES_MAX {
                if key > last {
                    return None;
                }
                self.files.pop_last();
            }
        }
        Some(self.files.entry(key).or_insert_with(|| FileTimes { inode, ..FileTimes::default() }))
    }

    /// All files of the sample.
    #[must_use]
    pub fn list(&self) -> Vec<FileTimes> {
        self.files.values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_their_class() {
        let mut times = AccessTimes::default();
        assert_eq!(times.quantile_seconds(0.5), 0.0);
        (0..99).for_each(|_| times.note(1000, false));
        times.note(5_000_000, true);
        let [half, most] = [0.5, 0.995].map(|part| times.quantile_seconds(part));
        assert!((512e-6..1024e-6).contains(&half), "{half}");
        assert!((4.1..8.4).contains(&most), "{most}");
        let mut sum = times.clone();
        sum.add(&times);
        assert_eq!((sum.number, sum.failed, sum.classes.len()), (200, 2, 24));
        times.note(u64::MAX, false);
        assert_eq!(times.classes.len(), CLASSES);
    }

    #[test]
    fn a_fair_sample_of_many_files_is_kept() {
        let mut log = AccessLog::default();
        for inode in 0..20_000 {
            log.note_read(inode, 10, false);
            log.note_write(inode, 10, inode == 3);
        }
        let files = log.list();
        assert_eq!(files.len(), FILES_MAX);
        let early = files.iter().filter(|file| file.inode < 10_000).count();
        assert!((FILES_MAX / 3..2 * FILES_MAX / 3).contains(&early), "{early}");
        assert!(files.iter().all(|file| file.reads.number == 1 && file.writes.number == 1));
    }
}
