//! Metadata phases: all workers work in one directory, each on its own names. Phases that change
//! nothing repeat for at least a tenth of a second.

use super::{Amount, Worker, wrong};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};

/// Size of small files, as in IO500's mdtest-hard.
pub(super) const SMALL_BYTES: usize = 3901;

impl Worker {
    /// Creates, stats, lists and removes empty files, then small ones.
    pub(super) fn metadata(&self) -> io::Result<()> {
        let names = self.names("e");
        self.phase("create", Amount::Operations(self.files), || create(&names))?;
        self.phase_again("stat", Amount::Operations(self.files), || {
            for name in &names {
                if fs::metadata(name)?.len() != 0 {
                    return Err(wrong(name));
                }
            }
            Ok(())
        })?;
        self.phase_again("open-close", Amount::Operations(self.files), || {
            for name in &names {
                File::open(name)?;
            }
            Ok(())
        })?;
        let entries = self.files * self.processes;
        self.phase_again("readdir", Amount::Operations(entries), || self.list(|_| Ok(())))?;
        self.list_with_attributes()?;
        self.phase("unlink", Amount::Operations(self.files), || {
            names.iter().try_for_each(fs::remove_file)
        })?;
        self.small()
    }

    /// One long directory: created, listed with the attributes of each entry, removed.
    pub(super) fn long_directory(&self) -> io::Result<()> {
        let names = self.names("e");
        self.phase("make", Amount::Nothing, || create(&names))?;
        self.list_with_attributes()?;
        self.phase("remove", Amount::Nothing, || names.iter().try_for_each(fs::remove_file))
    }

    fn list_with_attributes(&self) -> io::Result<()> {
        let entries = Amount::Operations(self.files * self.processes);
        self.phase_again("readdir-stat", entries, || {
            self.list(|entry| match entry.metadata()?.len() {
                0 => Ok(()),
                _ => Err(wrong(entry.path().display())),
            })
        })
    }

    fn small(&self) -> io::Result<()> {
        let names = self.names("s");
        let mut block = vec![0u8; SMALL_BYTES];
        self.phase("small-write", Amount::Operations(self.files), || {
            for (name, number) in names.iter().zip(0u64..) {
                block[..8].copy_from_slice(&number.to_le_bytes());
                OpenOptions::new().write(true).create_new(true).open(name)?.write_all(&block)?;
            }
            Ok(())
        })?;
        let mut got = vec![0u8; SMALL_BYTES + 1];
        self.phase_again("small-read", Amount::Operations(self.files), || {
            for (name, number) in names.iter().zip(0u64..) {
                let length = File::open(name)?.read(&mut got)?;
                if length != SMALL_BYTES || got[..8] != number.to_le_bytes() {
                    return Err(wrong(name));
                }
            }
            Ok(())
        })?;
        self.phase("small-unlink", Amount::Operations(self.files), || {
            names.iter().try_for_each(fs::remove_file)
        })
    }

    fn names(&self, letter: &str) -> Vec<String> {
        (0..self.files)
            .map(|number| format!("{}/{letter}-{}-{number}", self.directory, self.index))
            .collect()
    }

    /// Lists the directory, which holds the files of all workers, and checks the number of entries.
    fn list(&self, mut look: impl FnMut(&fs::DirEntry) -> io::Result<()>) -> io::Result<()> {
        let mut count = 0;
        for entry in fs::read_dir(&self.directory)? {
            look(&entry?)?;
            count += 1;
        }
        if count == self.files * self.processes {
            Ok(())
        } else {
            Err(wrong(format!("{count} entries listed")))
        }
    }
}

/// Creates files of these names.
pub(super) fn create(names: &[String]) -> io::Result<()> {
    for name in names {
        OpenOptions::new().write(true).create_new(true).open(name)?;
    }
    Ok(())
}
