//! Phases of two workers, each on the mount of its own host.

use super::data::{FileSharing, HARD_BYTES};
use super::{Amount, Worker};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;

impl Worker {
    /// A byte passed back and forth, then blocks in a file per mount and interleaved in one file.
    pub(super) fn two_mounts(&self) -> io::Result<()> {
        self.pass("pass", 2)?;
        // Large enough for extents of its own, instead of contents inside the inode.
        self.pass("pass-in-1m", 1 << 20)?;
        for (block_bytes, sharing, names) in [
            (1 << 20, FileSharing::Own, ["write-1m-own", "read-1m-own"]),
            (1 << 20, FileSharing::Shared, ["write-1m-one", "read-1m-one"]),
            (HARD_BYTES, FileSharing::Own, ["write-hard-own", "read-hard-own"]),
            (HARD_BYTES, FileSharing::Shared, ["write-hard-one", "read-hard-one"]),
        ] {
            self.in_turn(sharing, block_bytes, names)?;
        }
        Ok(())
    }

    /// Each worker owns a byte of a file of `length` bytes, and writes it when it reads the other's
    /// new value. Counts how often a byte is written and seen by the other side.
    fn pass(&self, name: &str, length: usize) -> io::Result<()> {
        let path = format!("{}/{name}", self.directory);
        let (own, others) = (self.index, 1 - self.index);
        self.phase("make", Amount::Nothing, || match own {
            0 => File::create_new(&path)?.write_all_at(&vec![0; length], 0),
            _ => Ok(()),
        })?;
        let amount = if own == 0 { Amount::Operations(2 * self.files) } else { Amount::Nothing };
        self.phase(name, amount, || {
            let file = OpenOptions::new().read(true).write(true).open(&path)?;
            (0..self.files).try_for_each(|round| {
                let expected = (round % 255) as u8 + 1;
                let say = || file.write_all_at(&[expected], own);
                let hear = || -> io::Result<()> {
                    let mut byte = [0];
                    while byte != [expected] {
                        file.read_exact_at(&mut byte, others)?;
                    }
                    Ok(())
                };
                match own {
                    0 => say().and_then(|()| hear()),
                    _ => hear().and_then(|()| say()),
                }
            })
        })
    }
}
