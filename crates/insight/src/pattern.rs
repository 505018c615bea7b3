//! The I/O pattern of a file and of a job (`S10`; Sunway paper, section 5, table 1).
//!
//! A file's pattern follows from how many of the job's ranks use it. The job's pattern is the one
//! with most of the volume, by Beacon's rule: more than half of the bytes where there are two
//! patterns, more than a third where there are three or four. Where none has as much, the job has no
//! one pattern.

use crate::profile::{FileProfile, FileUse, JobProfile, Transfers};
use core::fmt;
use serde::{Deserialize, Serialize};

/// How ranks and files relate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Pattern {
    /// Each rank has files of its own.
    #[serde(rename = "N-N")]
    OwnFiles,
    /// Groups of ranks share files.
    #[serde(rename = "N-M")]
    GroupFiles,
    /// All ranks share one file.
    #[serde(rename = "N-1")]
    SharedFile,
    /// One rank does all I/O.
    #[serde(rename = "1-1")]
    OneRank,
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Pattern::OwnFiles => "N-N",
            Pattern::GroupFiles => "N-M",
            Pattern::SharedFile => "N-1",
            Pattern::OneRank => "1-1",
        })
    }
}

/// Reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Reads.
    Read,
    /// Writes.
    Write,
}

impl Direction {
    /// Both.
    pub const ALL: [Direction; 2] = [Direction::Read, Direction::Write];

    /// The transfers of a use in this direction.
    #[must_use]
    pub fn of(self, one: &FileUse) -> &Transfers {
        match self {
            Direction::Read => &one.reads,
            Direction::Write => &one.writes,
        }
    }

    /// "read" or "write".
    #[must_use]
    pub fn verb(self) -> &'static str {
        match self {
            Direction::Read => "read",
            Direction::Write => "write",
        }
    }
}

/// The patterns of a job in one direction.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct JobPattern {
    /// The one with most of the volume, if it has enough.
    pub pattern: Option<Pattern>,
    /// Bytes of each pattern that occurs, the largest first.
    pub volumes: Vec<(Pattern, u64)>,
}

/// Ranks of the job that move bytes in this direction.
#[must_use]
pub fn active_ranks(job: &JobProfile, direction: Direction) -> usize {
    let moves = |rank: &&crate::profile::RankProfile| match direction {
        Direction::Read => rank.reads.bytes > 0,
        Direction::Write => rank.writes.bytes > 0,
    };
    job.ranks.iter().filter(moves).count()
}

/// The pattern of a file of which `active` ranks of the job could be users. `None` if no bytes moved.
#[must_use]
pub fn of_file(file: &FileProfile, active: usize, direction: Direction) -> Option<Pattern> {
    let users = file.uses.iter().filter(|one| direction.of(one).bytes > 0).count();
    match users {
        0 => None,
        _ if active <= 1 => Some(Pattern::OneRank),
        1 => Some(Pattern::OwnFiles),
        _ if users < active => Some(Pattern::GroupFiles),
        _ => Some(Pattern::SharedFile),
    }
}

/// The pattern of a job.
#[must_use]
pub fn of_job(job: &JobProfile, direction: Direction) -> JobPattern {
    let active = active_ranks(job, direction);
    let mut volumes: Vec<(Pattern, u64)> = Vec::new();
    for file in &job.files {
        let Some(pattern) = of_file(file, active, direction) else { continue };
        let bytes =
            file.uses.iter().map(|one| direction.of(one).bytes).fold(0, u64::saturating_add);
        match volumes.iter_mut().find(|(one, _)| *one == pattern) {
            Some((_, sum)) => *sum = sum.saturating_add(bytes),
            None => volumes.push((pattern, bytes)),
        }
    }
    volumes.sort_by_key(|(pattern, bytes)| (core::cmp::Reverse(*bytes), *pattern));
    let all: f64 = volumes.iter().map(|(_, bytes)| *bytes as f64).sum();
    let least = if volumes.len() <= 2 { 0.5 } else { 1.0 / 3.0 };
    let pattern =
        volumes.first().filter(|(_, bytes)| *bytes as f64 > least * all).map(|(one, _)| *one);
    JobPattern { pattern, volumes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{Operations, RankProfile};

    /// The ranks that write a file, and the bytes that each writes.
    type Writers<'a> = (&'a [u32], u64);

    /// A job whose files have these writers.
    fn writers(ranks: u32, files: &[Writers]) -> JobProfile {
        let mut job = JobProfile {
            ranks: vec![RankProfile::default(); ranks as usize],
            ..JobProfile::default()
        };
        for (users, bytes) in files {
            let mut file = FileProfile::default();
            for rank in *users {
                let writes = Transfers { number: 1, bytes: *bytes, ..Transfers::default() };
                file.uses.push(FileUse { rank: *rank, writes, ..FileUse::default() });
                let operations = Operations { number: 1, bytes: *bytes, seconds: 0.0 };
                job.ranks[*rank as usize].writes.add(operations);
            }
            job.files.push(file);
        }
        job
    }

    #[test]
    fn the_users_of_a_file_make_its_pattern() {
        let cases: [(u32, &[Writers], Pattern); 6] = [
            (2, &[(&[0], 10), (&[1], 10)], Pattern::OwnFiles),
            (4, &[(&[0, 1], 10), (&[2, 3], 10)], Pattern::GroupFiles),
            (4, &[(&[0, 1, 2, 3], 10)], Pattern::SharedFile),
            (4, &[(&[2], 10)], Pattern::OneRank),
            (1, &[(&[0], 10)], Pattern::OneRank),
            (1, &[(&[0], 10), (&[0], 30)], Pattern::OneRank),
        ];
        for (ranks, files, pattern) in cases {
            assert_eq!(
                of_job(&writers(ranks, files), Direction::Write).pattern,
                Some(pattern),
                "{files:?}"
            );
        }
    }

    #[test]
    fn the_pattern_of_a_job_has_most_of_its_volume() {
        // Two patterns: more than half.
        let half = writers(2, &[(&[0], 100), (&[1], 100), (&[0, 1], 100)]);
        assert_eq!(of_job(&half, Direction::Write).pattern, None);
        let more = writers(2, &[(&[0], 100), (&[1], 100), (&[0, 1], 101)]);
        assert_eq!(of_job(&more, Direction::Write).pattern, Some(Pattern::SharedFile));
        // Three patterns: more than a third.
        let three = writers(3, &[(&[0], 120), (&[0, 1], 55), (&[0, 1, 2], 30)]);
        assert_eq!(of_job(&three, Direction::Write).pattern, Some(Pattern::OwnFiles));
        let even = writers(3, &[(&[0], 30), (&[0, 1], 15), (&[0, 1, 2], 10)]);
        assert_eq!(of_job(&even, Direction::Write).pattern, None);
    }

    #[test]
    fn a_reader_that_moves_no_bytes_makes_no_pattern() {
        let job = writers(2, &[(&[0], 0)]);
        assert_eq!(of_job(&job, Direction::Write), JobPattern::default());
        assert_eq!(of_job(&job, Direction::Read), JobPattern::default());
    }
}
