//! The phases of IO500 in its order, by our own hands: what IOR, mdtest and find would do there.
//!
//! As there: the easy phases have files and directories of each process's own and blocks of 2 MiB, the
//! hard ones one file in blocks of 47008 bytes in turn and one directory of files of 3901 bytes; what is
//! read or looked at was written by another process; writes end with fsync. `find` is done by one
//! process here.

use super::data::{HARD_BYTES, Sharing};
use super::metadata::{SMALL_BYTES, create};
use super::{Amount, Worker, wrong};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::time::SystemTime;

const EASY_BYTES: usize = 2 << 20;

/// `find` looks for names with this in them, of the size of the hard files, made after the timestamp.
const WANTED: &str = "01";
/// The timestamp, a file in the directory of all.
const TIMESTAMP: &str = "timestamp";

impl Worker {
    /// All phases.
    pub(super) fn io500(&self) -> io::Result<()> {
        let other = Worker { index: (self.index + 1) % self.processes, ..self.clone() };
        let easy = |worker: &Worker| worker.part(Sharing::Own, "easy", EASY_BYTES, (0, 1));
        let strided = (self.index, self.processes);
        let hard = self.part(Sharing::Shared, "hard", HARD_BYTES, strided);
        let hard_of_other =
            other.part(Sharing::Shared, "hard", HARD_BYTES, (other.index, other.processes));
        let own = format!("{}/md-easy-{}", self.directory, self.index);
        fs::create_dir(&own)?;
        fs::create_dir_all(format!("{}/md-hard", self.directory))?;
        self.make(Sharing::Shared, &hard)?;

        let (mine, part) = (self.easy_names(), easy(self));
        let (easy_block, hard_block) = (&mut part.block(), &mut hard.block());
        let operations = Amount::Operations(self.files);
        self.phase("ior-easy-write", part.amount(), || {
            part.write(&part.order(), easy_block)?.sync_all()
        })?;
        self.phase("mdtest-easy-write", operations, || create(&mine))?;
        if self.index == 0 {
            File::create_new(Path::new(&self.directory).join(TIMESTAMP))?;
        }
        self.phase("ior-hard-write", hard.amount(), || {
            hard.write(&hard.order(), hard_block)?.sync_all()
        })?;
        let (small, theirs) = (self.hard_names(), other.hard_names());
        self.phase("mdtest-hard-write", operations, || write_small(&small))?;
        self.find()?;
        let part = easy(&other);
        self.phase("ior-easy-read", part.amount(), || part.read(&part.order(), easy_block))?;
        self.phase("mdtest-easy-stat", operations, || stat(&other.easy_names(), 0))?;
        let part = hard_of_other;
        self.phase("ior-hard-read", part.amount(), || part.read(&part.order(), hard_block))?;
        self.phase("mdtest-hard-stat", operations, || stat(&theirs, SMALL_BYTES as u64))?;
        self.phase("mdtest-easy-delete", operations, || mine.iter().try_for_each(fs::remove_file))?;
        self.phase("mdtest-hard-read", operations, || read_small(&theirs))?;
        self.phase("mdtest-hard-delete", operations, || small.iter().try_for_each(fs::remove_file))
    }

    /// One process goes through all that there is.
    pub(super) fn find(&self) -> io::Result<()> {
        self.phase_of_time("find", || {
            if self.index > 0 {
                return Ok(Amount::Nothing);
            }
            let root = Path::new(&self.directory);
            let since = fs::metadata(root.join(TIMESTAMP))?.modified()?;
            let (seen, found) = find(root, since)?;
            if found == 0 { Err(wrong("nothing found")) } else { Ok(Amount::Operations(seen)) }
        })
    }

    fn easy_names(&self) -> Vec<String> {
        let own = format!("{}/md-easy-{}", self.directory, self.index);
        (0..self.files).map(|number| format!("{own}/{number}")).collect()
    }

    /// With a 0 in front, so that a few of any number have what `find` looks for.
    fn hard_names(&self) -> Vec<String> {
        let name = |number| format!("{}/md-hard/{}-0{number}", self.directory, self.index);
        (0..self.files).map(name).collect()
    }
}

/// How many files and directories there are below `folder`, and how many of them are wanted.
fn find(folder: &Path, since: SystemTime) -> io::Result<(u64, u64)> {
    let (mut seen, mut found) = (0, 0);
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        seen += 1;
        if entry.file_type()?.is_dir() {
            let below = find(&entry.path(), since)?;
            (seen, found) = (seen + below.0, found + below.1);
        } else if entry.file_name().to_string_lossy().contains(WANTED) {
            let attributes = entry.metadata()?;
            let is_wanted =
                attributes.len() == SMALL_BYTES as u64 && attributes.modified()? >= since;
            found += u64::from(is_wanted);
        }
    }
    Ok((seen, found))
}

fn write_small(names: &[String]) -> io::Result<()> {
    let block = vec![7u8; SMALL_BYTES];
    names.iter().try_for_each(|name| {
        OpenOptions::new().write(true).create_new(true).open(name)?.write_all(&block)
    })
}

fn read_small(names: &[String]) -> io::Result<()> {
    let mut block = vec![0u8; SMALL_BYTES + 1];
    names.iter().try_for_each(|name| {
        let length = File::open(name)?.read(&mut block)?;
        if length == SMALL_BYTES && block[0] == 7 { Ok(()) } else { Err(wrong(name)) }
    })
}

fn stat(names: &[String], length: u64) -> io::Result<()> {
    names.iter().try_for_each(|name| match fs::metadata(name)?.len() {
        found if found == length => Ok(()),
        _ => Err(wrong(name)),
    })
}

#[cfg(test)]
mod tests {
    //! What find finds.
    use super::*;

    #[test]
    fn only_new_files_of_the_size_and_name_are_found() {
        let folder = tempfile::tempdir().expect("a directory");
        let below = folder.path().join("d01");
        fs::create_dir(&below).expect("made");
        for (name, length) in [("x01", SMALL_BYTES), ("x01y", 5), ("x10", SMALL_BYTES)] {
            fs::write(below.join(name), vec![0; length]).expect("written");
        }
        let before = SystemTime::UNIX_EPOCH;
        assert_eq!(find(folder.path(), before).expect("found"), (4, 1));
        let later = SystemTime::now() + std::time::Duration::from_secs(3600);
        assert_eq!(find(folder.path(), later).expect("found"), (4, 0));
    }
}
