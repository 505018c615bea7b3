//! Builds a profile from single operations, as the collectors of an instance do.

use insight::profile::{
    DirectoryProfile, FileProfile, FileUse, JobProfile, Operations, RankProfile, Rates, Span,
    Transfers,
};
use std::collections::BTreeMap;
use wire::job::size_class;

/// Seconds of an operation on a name.
pub(super) const NAME_SECONDS: f64 = 10e-6;
/// Seconds of a transfer besides its bytes.
pub(super) const CALL_SECONDS: f64 = 20e-6;
/// Bytes per second of one process.
pub(super) const LOCAL_BYTES: f64 = 4e9;
/// Bytes per second of one process from the backing store.
pub(super) const BACKING_BYTES: f64 = 200e6;
/// Spans of a timeline.
const SPANS: usize = 100;

#[derive(Clone, Copy, Default)]
struct Position {
    begun: bool,
    end: u64,
}

/// The use of one file by one rank.
#[derive(Clone, Default)]
struct Use {
    figures: FileUse,
    read: Position,
    written: Position,
    /// Bytes read and transfers since the last open.
    since_open: (u64, u64),
}

/// Records the operations of a job.
pub(super) struct Recorder {
    pub(super) job: JobProfile,
    files: BTreeMap<String, BTreeMap<u32, Use>>,
    sizes: BTreeMap<String, u64>,
    directories: BTreeMap<String, u64>,
    clocks: Vec<f64>,
    moved: Vec<(u32, f64, u64, bool)>,
    /// Factor of the time of each host.
    pub(super) slowness: Vec<f64>,
    /// True: what is read comes from the backing store.
    pub(super) is_cold: bool,
}

impl Recorder {
    pub(super) fn new(hosts: u32, ranks: u32) -> Recorder {
        let job = JobProfile {
            job: "job".to_string(),
            is_complete: true,
            hosts: (0..hosts).map(|host| format!("node{host}")).collect(),
            ranks: (0..ranks)
                .map(|rank| RankProfile {
                    rank,
                    host: rank * hosts / ranks,
                    ..RankProfile::default()
                })
                .collect(),
            rates: Rates {
                local_bytes: LOCAL_BYTES,
                call_seconds: CALL_SECONDS,
                name_seconds: NAME_SECONDS,
            },
            ..JobProfile::default()
        };
        Recorder {
            job,
            files: BTreeMap::new(),
            sizes: BTreeMap::new(),
            directories: BTreeMap::new(),
            clocks: vec![0.0; ranks as usize],
            moved: Vec::new(),
            slowness: vec![1.0; hosts as usize],
            is_cold: false,
        }
    }

    pub(super) fn ranks(&self) -> u32 {
        self.job.ranks.len() as u32
    }

    fn pass(&mut self, rank: u32, seconds: f64) -> f64 {
        let host = self.job.ranks[rank as usize].host;
        let seconds = seconds * self.slowness[host as usize];
        self.clocks[rank as usize] += seconds;
        seconds
    }

    /// Time in which the rank computes.
    pub(super) fn compute(&mut self, rank: u32, seconds: f64) {
        self.clocks[rank as usize] += seconds;
    }

    fn used(&mut self, rank: u32, path: &str) -> &mut Use {
        let one = self.files.entry(path.to_string()).or_default().entry(rank).or_default();
        one.figures.rank = rank;
        one
    }

    /// An operation on a name.
    pub(super) fn name(&mut self, rank: u32, path: &str) {
        let seconds = self.pass(rank, NAME_SECONDS);
        self.job.ranks[rank as usize].metadata.add(Operations { number: 1, bytes: 0, seconds });
        let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
        *self.directories.entry(directory.to_string()).or_default() += 1;
    }

    /// A look-up of a name that does not exist.
    pub(super) fn absent(&mut self, rank: u32, path: &str) {
        self.name(rank, path);
        self.job.ranks[rank as usize].absent += 1;
    }

    pub(super) fn open(&mut self, rank: u32, path: &str) {
        self.name(rank, path);
        self.job.ranks[rank as usize].opens += 1;
        let one = self.used(rank, path);
        one.figures.opens += 1;
        one.since_open = (0, 0);
    }

    /// The end of use of a file that was opened.
    pub(super) fn close(&mut self, rank: u32, path: &str) {
        let size = self.sizes.get(path).copied().unwrap_or(0);
        let (bytes, _) = self.used(rank, path).since_open;
        if size > 0 && size < 64 << 10 && bytes == size {
            self.job.ranks[rank as usize].small_files_read += 1;
        }
    }

    /// A file that is there before the job begins.
    pub(super) fn prepare(&mut self, path: &str, size: u64) {
        self.sizes.insert(path.to_string(), size);
    }

    pub(super) fn read(&mut self, rank: u32, path: &str, offset: u64, length: u64) {
        let waited = if self.is_cold { length as f64 / BACKING_BYTES } else { 0.0 };
        let seconds = self.pass(rank, CALL_SECONDS + length as f64 / LOCAL_BYTES + waited);
        self.job.ranks[rank as usize].reads.add(Operations { number: 1, bytes: length, seconds });
        match self.is_cold {
            true => self.job.read_tiers.backing += length,
            false => self.job.read_tiers.memory += length,
        }
        self.job.waits.backing += waited;
        let one = self.used(rank, path);
        count(&mut one.figures.reads, &mut one.read, offset, length, seconds);
        one.since_open.0 += length;
        self.moved.push((rank, self.clocks[rank as usize], length, false));
    }

    pub(super) fn write(&mut self, rank: u32, path: &str, offset: u64, length: u64) {
        let seconds = self.pass(rank, CALL_SECONDS + length as f64 / LOCAL_BYTES);
        self.job.ranks[rank as usize].writes.add(Operations { number: 1, bytes: length, seconds });
        let one = self.used(rank, path);
        count(&mut one.figures.writes, &mut one.written, offset, length, seconds);
        let size = self.sizes.entry(path.to_string()).or_default();
        *size = (*size).max(offset + length);
        self.moved.push((rank, self.clocks[rank as usize], length, true));
    }

    pub(super) fn sync(&mut self, rank: u32, path: &str) {
        let seconds = self.pass(rank, 1e-3);
        self.job.ranks[rank as usize].syncs.add(Operations { number: 1, bytes: 0, seconds });
        self.used(rank, path).figures.syncs += 1;
    }

    /// The profile.
    pub(super) fn end(mut self) -> JobProfile {
        self.job.seconds = self.clocks.iter().copied().fold(0.0, f64::max);
        let ranks = self.job.ranks.len();
        self.job.timeline = vec![Span { read: vec![0; ranks], written: vec![0; ranks] }; SPANS];
        for (rank, time, bytes, is_write) in self.moved {
            let at = (time / self.job.seconds * SPANS as f64) as usize;
            let span = &mut self.job.timeline[at.min(SPANS - 1)];
            let each = if is_write { &mut span.written } else { &mut span.read };
            each[rank as usize] += bytes;
        }
        for (path, uses) in self.files {
            let size = self.sizes.get(&path).copied().unwrap_or(0);
            let uses: Vec<FileUse> = uses.into_values().map(|one| one.figures).collect();
            self.job.files.push(FileProfile { path, size, uses, ..FileProfile::default() });
        }
        let directory = |(path, operations)| DirectoryProfile { path, operations };
        self.job.directories = self.directories.into_iter().map(directory).collect();
        self.job
    }
}

fn count(sum: &mut Transfers, position: &mut Position, offset: u64, length: u64, seconds: f64) {
    let is_first = !position.begun;
    let mut one = Transfers {
        number: 1,
        bytes: length,
        seconds,
        consecutive: u64::from(!is_first && offset == position.end),
        sequential: u64::from(!is_first && offset > position.end),
        misaligned: u64::from(!offset.is_multiple_of(4096)),
        lowest: offset,
        highest: offset + length,
        ..Transfers::default()
    };
    one.sizes[size_class(length)] = 1;
    sum.add(&one);
    *position = Position { begun: true, end: offset + length };
}
