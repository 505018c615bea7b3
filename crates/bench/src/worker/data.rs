//! Data phases: sequential and random blocks, a file per worker or one shared by all.
//!
//! Reads, and writes at random over what is there, go over it until a tenth of a second is over; new data
//! is written once.
//!
//! Each block begins with its worker and its number, so that a read from the wrong place is
//! noticed at the cost of sixteen bytes. Times include open and close and no flush to a device,
//! as in IOR without -e; the memory that is copied from and to is there before, as in IOR, too: to
//! make 1 MiB of it takes the kernel longer than the copy.

use super::{Amount, Worker, wrong};
use rustix::thread::{self, CpuSet};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

/// Whether each worker has a file or all have parts of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sharing {
    Own,
    Shared,
}

/// Block sizes by name.
const SIZES: [(&str, usize); 3] = [("1m", 1 << 20), ("64k", 64 << 10), ("8k", 8 << 10)];

/// The block of IO500's ior-hard: no multiple of anything.
pub(super) const HARD_BYTES: usize = 47_008;

/// New files that are written in such blocks: one takes a few milliseconds, and whether two writers of
/// it are beside each other or one is ahead, and where the memory is, differs from file to file.
const HARD_ROUNDS: u32 = 8;

/// Where the blocks of one worker lie.
pub(super) struct Part {
    path: String,
    block_bytes: usize,
    blocks: u64,
    /// The first block of this worker in the file, and how far it is to the next.
    first: u64,
    step: u64,
    index: u64,
}

impl Worker {
    /// Writes and reads with each block size, and at random with the smallest.
    pub(super) fn data(&self, sharing: Sharing) -> io::Result<()> {
        self.bind()?;
        for (name, block_bytes) in SIZES {
            let blocks = (self.megabytes << 20) / block_bytes as u64;
            let first = if sharing == Sharing::Shared { self.index * blocks } else { 0 };
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

    /// Blocks of an odd size, in a file of its own or in turn with all others in one.
    pub(super) fn hard(&self, sharing: Sharing) -> io::Result<()> {
        self.in_turn(sharing, HARD_BYTES, ["write", "read"])
    }

    /// The same with blocks of a size; what the phases are called.
    pub(super) fn in_turn(
        &self,
        sharing: Sharing,
        block_bytes: usize,
        [write, read]: [&str; 2],
    ) -> io::Result<()> {
        self.bind()?;
        let places = match sharing {
            Sharing::Own => (0, 1),
            Sharing::Shared => (self.index, self.processes),
        };
        let part = self.part(sharing, "hard", block_bytes, places);
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

    /// Stays on one of the processors that the process may use, as launchers of MPI bind ranks. New data
    /// is written in a few milliseconds: where the kernel left two workers on one processor for as long,
    /// that showed half of what they can do.
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

    /// `places`: the first block and the step to the next.
    pub(super) fn part(
        &self,
        sharing: Sharing,
        name: &str,
        block_bytes: usize,
        (first, step): (u64, u64),
    ) -> Part {
        let owner = if sharing == Sharing::Own { self.index.to_string() } else { "all".into() };
        Part {
            path: format!("{}/{name}-{owner}", self.directory),
            block_bytes,
            blocks: ((self.megabytes << 20) / block_bytes as u64).max(1),
            first,
            step,
            index: self.index,
        }
    }

    /// A shared file is there before anyone writes; an own one is made by its first write.
    pub(super) fn make(&self, sharing: Sharing, part: &Part) -> io::Result<()> {
        if sharing == Sharing::Shared && self.index == 0 {
            File::create_new(&part.path)?;
        }
        Ok(())
    }

    /// Removes the file after all are done with it.
    fn unmake(&self, sharing: Sharing, part: &Part) -> io::Result<()> {
        self.phase("remove", Amount::Nothing, || Ok(()))?;
        if sharing == Sharing::Own || self.index == 0 {
            fs::remove_file(&part.path)
        } else {
            Ok(())
        }
    }
}

impl Part {
    /// What one pass over all blocks is.
    pub(super) fn amount(&self) -> Amount {
        Amount::Bytes(self.blocks * self.block_bytes as u64)
    }

    /// All blocks from the first to the last.
    pub(super) fn order(&self) -> Vec<u64> {
        (0..self.blocks).collect()
    }

    /// Memory for a block, which the process has touched.
    pub(super) fn block(&self) -> Vec<u8> {
        vec![0x5a; self.block_bytes]
    }

    /// Writes blocks in this order from `block`; the file is still open.
    pub(super) fn write(&self, order: &[u64], block: &mut [u8]) -> io::Result<File> {
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(&self.path)?;
        for &number in order {
            block[..16].copy_from_slice(&self.tag(number));
            file.write_all_at(block, self.offset(number))?;
        }
        Ok(file)
    }

    /// Reads blocks in this order to `block`, and looks at what they say.
    pub(super) fn read(&self, order: &[u64], block: &mut [u8]) -> io::Result<()> {
        let file = File::open(&self.path)?;
        for &number in order {
            // What is looked at below must come from this read.
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

/// The same order in every run, another for each worker.
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
