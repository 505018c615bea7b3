//! Transfers of the processes of a job by file, as they are kept: in half of the memory of the messages
//! about them (`config::activity`), because most files are only read, or only written.

use config::activity::{FileProfile, ProcessProfile, SlowBytes, Transfers};
use shm::activity::{DirectionSample, RecordSample};
use std::collections::HashMap;

/// The transfers that a record counted.
pub(super) struct FileCounts {
    pub(super) reads: Transfers,
    pub(super) writes: Transfers,
    pub(super) slow: SlowBytes,
}

impl FileCounts {
    pub(super) fn of(record: &RecordSample) -> FileCounts {
        let [ssd, remote, backing] = record.sources;
        FileCounts {
            reads: transfers(&record.reads),
            writes: transfers(&record.writes),
            slow: SlowBytes { ssd, remote, backing },
        }
    }

    /// Adds them to those of a process in files that have no entry of their own.
    pub(super) fn merge_into(&self, process: &mut ProcessProfile) {
        process.other_reads.add(&self.reads);
        process.other_writes.add(&self.writes);
        process.other_slow.add(self.slow);
    }
}

fn transfers(of: &DirectionSample) -> Transfers {
    Transfers {
        number: of.number,
        bytes: of.bytes,
        consecutive: of.consecutive.into(),
        sequential: u64::from(of.consecutive) + u64::from(of.forward),
        strided: of.strided.into(),
        stride: of.stride.cast_signed(),
        misaligned: of.misaligned.into(),
        sizes: of.bins.map(u64::from),
        lowest: (of.number > 0).then_some(of.lowest),
        highest: of.highest,
        nanos: of.nanos,
    }
}

/// A file that a process used.
#[derive(Clone)]
struct CountedFile {
    inode: u64,
    directory: u64,
    began: u64,
    opens: u64,
    slow: SlowBytes,
    /// Place of the process among those of the job.
    process: u32,
    /// Places in `CountedFiles::transfers`.
    reads: Option<u32>,
    writes: Option<u32>,
}

/// Bytes of the entry of a file that is read and written.
pub(super) const FILE_BYTES_MAX: usize = size_of::<CountedFile>() + 2 * size_of::<Transfers>();

/// The files of a job.
#[derive(Clone, Default)]
pub(super) struct CountedFiles {
    all: Vec<CountedFile>,
    /// Of each file, those of the directions in which there were any.
    transfers: Vec<Transfers>,
    /// Places in `all`, by process and inode.
    places: HashMap<(u32, u64), u32>,
}

impl CountedFiles {
    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.all.len()
    }

    /// The transfers of each file, those of each direction apart.
    pub(super) fn transfers(&self) -> &[Transfers] {
        &self.transfers
    }

    /// Adds what a record of a process counted. False if the file has no entry yet and there is no `room`
    /// for one; a new entry takes one from it.
    pub(super) fn add(
        &mut self,
        process: u32,
        record: &RecordSample,
        counts: &FileCounts,
        room: &mut usize,
    ) -> bool {
        let key = (process, record.inode.0);
        let known = self.places.get(&key).copied();
        if known.is_none() && *room == 0 {
            return false;
        }
        let place = known.unwrap_or_else(|| {
            *room -= 1;
            let place = place_behind(&self.all);
            self.places.insert(key, place);
            let file = CountedFile {
                inode: record.inode.0,
                directory: record.parent.0,
                began: record.began,
                opens: 0,
                slow: SlowBytes::default(),
                process,
                reads: None,
                writes: None,
            };
            push_tightly(&mut self.all, file);
            place
        });
        let CountedFiles { all, transfers, .. } = self;
        if let Some(file) = all.get_mut(place as usize) {
            file.began = file.began.min(record.began);
            file.opens += record.opens;
            file.slow.add(counts.slow);
            add_transfers(transfers, &mut file.reads, &counts.reads);
            add_transfers(transfers, &mut file.writes, &counts.writes);
        }
        true
    }

    fn transfers_at(&self, place: Option<u32>) -> Transfers {
        let found = place.and_then(|place| self.transfers.get(place as usize));
        found.copied().unwrap_or_default()
    }

    /// Adds all transfers to those of the processes in files that have no entry of their own.
    pub(super) fn merge_into(&self, processes: &mut [ProcessProfile]) {
        for file in &self.all {
            if let Some(process) = processes.get_mut(file.process as usize) {
                let (reads, writes) =
                    (self.transfers_at(file.reads), self.transfers_at(file.writes));
                FileCounts { reads, writes, slow: file.slow }.merge_into(process);
                process.other_files += file.opens;
            }
        }
    }

    /// The files as messages have them, without names.
    pub(super) fn profiles(&self) -> Vec<FileProfile> {
        let profile = |file: &CountedFile| FileProfile {
            inode: file.inode,
            directory: file.directory,
            process: file.process as usize,
            began: file.began,
            opens: file.opens,
            slow: file.slow,
            reads: self.transfers_at(file.reads),
            writes: self.transfers_at(file.writes),
            ..FileProfile::default()
        };
        self.all.iter().map(profile).collect()
    }
}

/// Adds transfers at their place, which is made at the first ones.
fn add_transfers(all: &mut Vec<Transfers>, place: &mut Option<u32>, more: &Transfers) {
    if more.is_none() {
        return;
    }
    match place.and_then(|place| all.get_mut(place as usize)) {
        Some(known) => known.add(more),
        None => {
            *place = Some(place_behind(all));
            push_tightly(all, *more);
        }
    }
}

/// The place of the next entry. There are far fewer than a `u32` counts (`jobs`).
pub(super) fn place_behind<T>(all: &[T]) -> u32 {
    u32::try_from(all.len()).unwrap_or(u32::MAX)
}

/// Appends to a list that grows by a quarter: by doubling, up to half of its memory would be unused.
pub(super) fn push_tightly<T>(all: &mut Vec<T>, one: T) {
    if all.len() == all.capacity() {
        all.reserve_exact(all.len() / 4 + 4);
    }
    all.push(one);
}
