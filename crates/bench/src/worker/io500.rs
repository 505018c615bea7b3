//! The phases of IO500 in its order, with the operations that IOR, mdtest and find would do.
//!
//! As in IO500: the easy phases use files and directories per process and blocks of 2 MiB; the hard
//! ones use one file with interleaved blocks of 47008 bytes, and one directory of files of 3901
//! bytes. A process reads and stats only what another process wrote; writes end with fsync. Unlike
//! in IO500, a single process does `find`.

use super::data::{FileSharing, HARD_BYTES};
use super::metadata::{SMALL_BYTES, create};
use super::{Amount, Worker, wrong};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::time::SystemTime;

const EASY_BYTES: usize = 2 << 20;

/// `find` selects names that contain this, of the size of the hard files, newer than the timestamp.
const INTERRUPTED: &str = "01";
/// Name of the timestamp file, in the shared directory.
const TIMESTAMP: &str = "timestamp";

impl Worker {
    /// Runs all phases.
    pub(super) fn io500(&self) -> io::Result<()> {
        let other = Worker { index: (self.index + 1) % self.processes, ..self.clone() };
        let easy = |worker: &Worker| worker.part(FileSharing::Own, "easy", EASY_BYTES, (0, 1));
        let strided = (self.index, self.processes);
        let hard = self.part(FileSharing::Shared, "hard", HARD_BYTES, strided);
        let hard_of_other =
            other.part(FileSharing::Shared, "hard", HARD_BYTES, (other.index, other.processes));
        let own = format!("{}/md-easy-{}", self.directory, self.index);
        fs::create_dir(&own)?;
        fs::create_dir_all(format!("{}/md-hard", self.directory))?;
        self.make(FileSharing::Shared, &hard)?;

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

    /// One process walks the whole tree.
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

    /// Names have a leading 0, so that `find` selects at least a few whatever the number of files.
    fn hard_names(&self) -> Vec<String> {
        let name = |number| format!("{}/md-hard/{}-0{number}", self.directory, self.index);
        (0..self.files).map(name).collect()
    }
}

/// Number of files and directories under `dir`, and how many of them are selected.
fn find(dir: &Path, since: SystemTime) -> io::Result<(u64, u64)> {
    let (mut seen, mut found) = (0, 0);
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        seen += 1;
        if entry.file_type()?.is_dir() {
            let found_within = find(&entry.path(), since)?;
            (seen, found) = (seen + found_within.0, found + found_within.1);
        } else if entry.file_name().to_string_lossy().contains(INTERRUPTED) {
            let attributes = entry.metadata()?;
            let is_selected =
                attributes.len() == SMALL_BYTES as u64 && attributes.modified()? >= since;
            found += u64::from(is_selected);
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
    //! Selection by `find`.
    use super::*;

    #[test]
    fn only_new_files_of_the_size_and_name_are_found() {
        let dir = tempfile::tempdir().expect("a directory");
        let inside = dir.path().join("d01");
        fs::create_dir(&inside).expect("made");
        for (name, length) in [("x01", SMALL_BYTES), ("x01y", 5), ("x10", SMALL_BYTES)] {
            fs::write(inside.join(name), vec![0; length]).expect("written");
        }
        let before = SystemTime::UNIX_EPOCH;
        assert_eq!(find(dir.path(), before).expect("found"), (4, 1));
        let later = SystemTime::now() + std::time::Duration::from_secs(3600);
        assert_eq!(find(dir.path(), later).expect("found"), (4, 0));
    }
}
