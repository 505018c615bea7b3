//! Data phases: sequential and random blocks, a file per worker or one shared by all.
//!
//! Each block begins with its worker and its number, so that a read from the wrong place is
//! noticed at the cost of sixteen bytes. Times include open and close and no flush to a device,
//! as in IOR without -e.

use super::{Worker, wrong};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

/// Whether each worker has a file or all have parts of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sharing {
    Own,
    Shared,
}

/// One block size: its name, its bytes, and by how much the amount of data is divided, since small
/// blocks take longer.
const SIZES: [(&str, usize, u64); 3] =
    [("1m", 1 << 20, 1), ("64k", 64 << 10, 1), ("8k", 8 << 10, 4)];

/// Where the blocks of one worker lie.
struct Part {
    path: String,
    block_bytes: usize,
    blocks: u64,
    /// The first block of this worker in the file.
    first: u64,
    index: u64,
}

impl Worker {
    /// Writes and reads with each block size, and at random with the smallest.
    pub(super) fn data(&self, sharing: Sharing) -> io::Result<()> {
        for (name, block_bytes, divisor) in SIZES {
            let blocks = (self.megabytes << 20) / divisor / block_bytes as u64;
            let part = self.part(sharing, block_bytes, blocks.max(1));
            if sharing == Sharing::Shared && self.index == 0 {
                File::create_new(&part.path)?;
            }
            let amount = part.blocks * block_bytes as u64;
            let order: Vec<u64> = (0..part.blocks).collect();
            self.phase(&format!("write-{name}"), amount, || part.write(&order))?;
            self.phase(&format!("read-{name}"), amount, || part.read(&order))?;
            if name == "8k" {
                let order = shuffled(order, self.index);
                self.phase("random-write-8k", amount, || part.write(&order))?;
                self.phase("random-read-8k", amount, || part.read(&order))?;
            }
            self.phase("remove", 0, || Ok(()))?;
            if sharing == Sharing::Own || self.index == 0 {
                fs::remove_file(&part.path)?;
            }
        }
        Ok(())
    }

    fn part(&self, sharing: Sharing, block_bytes: usize, blocks: u64) -> Part {
        let (name, first) = match sharing {
            Sharing::Own => (format!("own-{}-{block_bytes}", self.index), 0),
            Sharing::Shared => (format!("shared-{block_bytes}"), self.index * blocks),
        };
        Part {
            path: format!("{}/{name}", self.directory),
            block_bytes,
            blocks,
            first,
            index: self.index,
        }
    }
}

impl Part {
    fn write(&self, order: &[u64]) -> io::Result<()> {
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(&self.path)?;
        let mut block = vec![0x5a; self.block_bytes];
        for &number in order {
            block[..16].copy_from_slice(&self.tag(number));
            file.write_all_at(&block, self.offset(number))?;
        }
        Ok(())
    }

    fn read(&self, order: &[u64]) -> io::Result<()> {
        let file = File::open(&self.path)?;
        let mut block = vec![0; self.block_bytes];
        for &number in order {
            file.read_exact_at(&mut block, self.offset(number))?;
            if block[..16] != self.tag(number) || block[self.block_bytes - 1] != 0x5a {
                return Err(wrong(format!("block {number} of {}", self.path)));
            }
        }
        Ok(())
    }

    fn offset(&self, number: u64) -> u64 {
        (self.first + number) * self.block_bytes as u64
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
