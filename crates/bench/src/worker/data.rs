//! Data phases: sequential and random blocks, with a file per worker or one file shared by all.
//!
//! Reads and random overwrites repeat for at least a tenth of a second; new data is written once.
//!
//! Each block begins with its worker and its number, so that a read from the wrong offset is
//! detected at the cost of sixteen bytes. Times include open and close but no flush to a device, as
//! in IOR without
//! -e. Source and destination memory is allocated before, also as in IOR: allocating 1 MiB takes the
//! kernel longer than the copy.

use super::{Amount, Worker, wrong};
use rustix::thread::{self, CpuSet};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// Whether each worker has a file of its own or all share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileSharing {
    Own,
    Shared,
}

/// Block sizes by name.
const SIZES: [(&str, usize); 3] = [("1m", 1 << 20), ("64k", 64 << 10), ("8k", 8 << 10)];

/// Block size of IO500's ior-hard, aligned to nothing.
pub(super) const HARD_BYTES: usize = 47_008;

/// A burst: as much of a process as may be on its way behind (`--remote-writes behind`).
const BURST_BLOCKS: usize = 8;
const BURST_BLOCK_BYTES: usize = 1 << 20;

/// Number of new files written in such blocks. Writing one takes only milliseconds, and whether its
/// two writers run side by side or one is ahead, and on which memory, differs from file to file.
const HARD_ROUNDS: u32 = 8;

/// The blocks of one worker in a file.
pub(super) struct Part {
    path: String,
    block_bytes: usize,
    blocks: u64,
    /// Index of this worker's first block in the file, and the distance to the next.
    first: u64,
    step: u64,
    index: u64,
}

impl Worker {
    /// Writes and reads sequentially with each block size, and at random with the smallest.
    pub(super) fn data(&self, sharing: FileSharing) -> io::Result<()> {
        self.bind()?;
        for (name, block_bytes) in SIZES {
            let blocks = (self.megabytes << 20) / block_bytes as u64;
            let first = if sharing == FileSharing::Shared { self.index * blocks } else { 0 };
            let part = self.part(sharing, &format!("file-{name}"), block_bytes, (first, 1));
            self.make(sharing, &part)?;
            let order = part.order();
            let amount = part.amount();
            let block = &mut part.block();
            self.phase(&format!("write-{name}"), amount, || part.write(&order, block).map(drop))?;
            self.phase_again(&format!("read-{name}"), amount, || part.read(&order, block))?;
            if name == "8k" {
                let order = shuffled(order, self.index);
                self.phase_again("random-write-8k", amount, || {
                    part.write(&order, block).map(drop)
                })?;
                self.phase_again("random-read-8k", amount, || part.read(&order, block))?;
            }
            self.unmake(sharing, &part)?;
        }
        Ok(())
    }

    /// Blocks of 1 MiB in a file of its own, written and read once: for links that are slow.
    pub(super) fn once(&self) -> io::Result<()> {
        let part = self.part(FileSharing::Own, "file", 1 << 20, (0, 1));
        let (order, block) = (part.order(), &mut part.block());
        self.phase("write-1m", part.amount(), || part.write(&order, block).map(drop))?;
        self.phase("read-1m", part.amount(), || part.read(&order, block))
    }

    /// Blocks of 1 MiB in bursts, each into a new part of a file and followed by fsync, which does not
    /// count.
    pub(super) fn bursts(&self) -> io::Result<()> {
        let file = File::create(format!("{}/bursts", self.directory))?;
        let block = vec![self.index as u8 + 1; BURST_BLOCK_BYTES];
        self.phase_of_busy_time("burst-1m", || {
            let (mut busy, mut offset) = (Duration::ZERO, 0);
            while offset < self.megabytes << 20 {
                let begun = Instant::now();
                for _ in 0..BURST_BLOCKS {
                    file.write_all_at(&block, offset)?;
                    offset += BURST_BLOCK_BYTES as u64;
                }
                busy += begun.elapsed();
                file.sync_all()?;
            }
            Ok((Amount::Bytes(offset), busy))
        })
    }

    /// Unaligned blocks, in a file per worker or interleaved in one file.
    pub(super) fn hard(&self, sharing: FileSharing) -> io::Result<()> {
        self.in_turn(sharing, HARD_BYTES, ["write", "read"])
    }

    /// As `hard`, with the given block size and phase names.
    pub(super) fn in_turn(
        &self,
        sharing: FileSharing,
        block_bytes: usize,
        [write, read]: [&str; 2],
    ) -> io::Result<()> {
        self.bind()?;
        let systems = match sharing {
            FileSharing::Own => (0, 1),
            FileSharing::Shared => (self.index, self.processes),
        };
        let part = self.part(sharing, "hard", block_bytes, systems);
        let order = part.order();
        let block = &mut part.block();
        for round in 1..=HARD_ROUNDS {
            self.make(sharing, &part)?;
            self.phase(write, part.amount(), || part.write(&order, block).map(drop))?;
            if round == HARD_ROUNDS {
                self.phase_again(read, part.amount(), || part.read(&order, block))?;
            }
            self.unmake(sharing, &part)?;
        }
        Ok(())
    }

    /// Pins the process to one of its allowed CPUs, as MPI launchers bind ranks. Writing new data
    /// takes only milliseconds: if the kernel leaves two workers on one CPU during that time, the
    /// result is halved.
    fn bind(&self) -> io::Result<()> {
        let all = thread::sched_getaffinity(None)?;
        let mut each = (0..CpuSet::MAX_CPU).filter(|&cpu| all.is_set(cpu)).cycle();
        let mut only = CpuSet::new();
        if let Some(cpu) = each.nth(usize::try_from(self.index).unwrap_or(0)) {
            only.set(cpu);
            thread::sched_setaffinity(None, &only)?;
        }
        Ok(())
    }

    /// `(first, step)`: index of the first block and the distance to the next.
    pub(super) fn part(
        &self,
        sharing: FileSharing,
        name: &str,
        block_bytes: usize,
        (first, step): (u64, u64),
    ) -> Part {
        let owner = if sharing == FileSharing::Own { self.index.to_string() } else { "all".into() };
        Part {
            path: format!("{}/{name}-{owner}", self.directory),
            block_bytes,
            blocks: ((self.megabytes << 20) / block_bytes as u64).max(1),
            first,
            step,
            index: self.index,
        }
    }

    /// Creates a shared file before anyone writes; a worker's own file is created by its first
    /// write.
    pub(super) fn make(&self, sharing: FileSharing, part: &Part) -> io::Result<()> {
        if sharing == FileSharing::Shared && self.index == 0 {
            File::create_new(&part.path)?;
        }
        Ok(())
    }

    /// Removes the file after all workers are done with it.
    fn unmake(&self, sharing: FileSharing, part: &Part) -> io::Result<()> {
        self.phase("remove", Amount::Nothing, || Ok(()))?;
        if sharing == FileSharing::Own || self.index == 0 {
            fs::remove_file(&part.path)
        } else {
            Ok(())
        }
    }
}

impl Part {
    /// Amount of one pass over all blocks.
    pub(super) fn amount(&self) -> Amount {
        Amount::Bytes(self.blocks * self.block_bytes as u64)
    }

    /// All block numbers in ascending order.
    pub(super) fn order(&self) -> Vec<u64> {
        (0..self.blocks).collect()
    }

    /// A buffer for one block, already touched by the process.
    pub(super) fn block(&self) -> Vec<u8> {
        vec![0x5a; self.block_bytes]
    }

    /// Writes blocks in the given order from `block`. Returns the file, still open.
    pub(super) fn write(&self, order: &[u64], block: &mut [u8]) -> io::Result<File> {
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(&self.path)?;
        for &number in order {
            block[..16].copy_from_slice(&self.tag(number));
            file.write_all_at(block, self.offset(number))?;
        }
        Ok(file)
    }

    /// Reads blocks in the given order into `block` and verifies them.
    pub(super) fn read(&self, order: &[u64], block: &mut [u8]) -> io::Result<()> {
        let file = File::open(&self.path)?;
        for &number in order {
            // Cleared, so that the bytes verified below come from this read.
            block[..16].fill(0);
            block[self.block_bytes - 1] = 0;
            file.read_exact_at(block, self.offset(number))?;
            if block[..16] != self.tag(number) || block[self.block_bytes - 1] != 0x5a {
                return Err(wrong(format!("block {number} of {}", self.path)));
            }
        }
        Ok(())
    }

    fn offset(&self, number: u64) -> u64 {
        (self.first + number * self.step) * self.block_bytes as u64
    }

    fn tag(&self, number: u64) -> [u8; 16] {
        (u128::from(self.index) << 64 | u128::from(number)).to_le_bytes()
    }
}

/// A pseudorandom order: the same in every run, different for each worker.
fn shuffled(mut order: Vec<u64>, index: u64) -> Vec<u64> {
    let mut state = 0x9e37_79b9_7f4a_7c15 ^ (index + 1);
    for last in (1..order.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let other = usize::try_from(state % (last as u64 + 1)).unwrap_or(0);
        order.swap(last, other);
    }
    order
}
