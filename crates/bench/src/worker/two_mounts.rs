//! Phases of two workers, each on the mount of its own host.

use super::data::{HARD_BYTES, Sharing};
use super::{Amount, Worker};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;

impl Worker {
    /// A byte to and fro, then blocks in files of their own and in turn in one.
    pub(super) fn two_mounts(&self) -> io::Result<()> {
        self.pass("pass", 2)?;
        // Of its own pieces, not beside the attributes.
        self.pass("pass-in-1m", 1 << 20)?;
        for (block_bytes, sharing, names) in [
            (1 << 20, Sharing::Own, ["write-1m-own", "read-1m-own"]),
            (1 << 20, Sharing::Shared, ["write-1m-one", "read-1m-one"]),
            (HARD_BYTES, Sharing::Own, ["write-hard-own", "read-hard-own"]),
            (HARD_BYTES, Sharing::Shared, ["write-hard-one", "read-hard-one"]),
        ] {
            self.in_turn(sharing, block_bytes, names)?;
        }
        Ok(())
    }

    /// Each has a byte of a file of that length, and writes it once he reads that the other has: so often
    /// is a byte written and seen by the other.
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
                let wanted = (round % 255) as u8 + 1;
                let say = || file.write_all_at(&[wanted], own);
                let hear = || -> io::Result<()> {
                    let mut byte = [0];
                    while byte != [wanted] {
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
