//! The records of the run directory as a running daemon keeps them, to make them again if the
//! directory is removed.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Files of the run directory that are made again, by their names or the ends of their names.
const RECORDS: [&str; 4] = ["secret", "peers", ".json", ".config"];
/// Records that are there as long as a daemon runs.
const ALWAYS: [&str; 2] = ["secret", HOST_RECORD];
const HOST_RECORD: &str = "host.json";
/// Larger files are no records.
const RECORD_BYTES_MAX: u64 = 4 << 20;

/// See the module.
pub(crate) struct RunRecords {
    run: PathBuf,
    /// Under which a record is written before it gets its name: no other daemon's, and no record's.
    new: PathBuf,
    contents: BTreeMap<OsString, Vec<u8>>,
    /// Time of the directory when they were read.
    read_at: Option<SystemTime>,
}

impl RunRecords {
    /// The records of `run`, not yet read; `new`: a path there that only this daemon uses.
    pub(crate) fn new(run: &Path, new: PathBuf) -> RunRecords {
        RunRecords { run: run.to_owned(), new, contents: BTreeMap::new(), read_at: None }
    }

    /// Reads the records that changed since they were read last.
    pub(crate) fn read(&mut self) {
        let changed = fs::metadata(&self.run).and_then(|found| found.modified()).ok();
        if changed.is_none() || changed == self.read_at {
            return;
        }
        let mut records = BTreeMap::new();
        for entry in fs::read_dir(&self.run).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let text = name.to_string_lossy();
            let is_file = entry
                .metadata()
                .is_ok_and(|found| found.is_file() && found.len() <= RECORD_BYTES_MAX);
            if is_file
                && RECORDS.iter().any(|record| text.ends_with(record))
                && let Ok(contents) = fs::read(entry.path())
            {
                records.insert(name, contents);
            }
        }
        let is_there = |name: &&str| records.contains_key(OsStr::new(name));
        let was_there = |name: &&str| self.contents.contains_key(OsStr::new(name));
        if ALWAYS.iter().any(|name| was_there(name) && !is_there(name)) {
            // The directory is being emptied.
            let _ = self.write();
            return;
        }
        (self.contents, self.read_at) = (records, changed);
    }

    /// Writes the records that are missing, each whole or not at all. The record of the host is the
    /// last: commands wait for it, and read the others then.
    pub(crate) fn write(&self) -> io::Result<()> {
        let host = OsStr::new(HOST_RECORD);
        let others = self.contents.keys().filter(|name| *name != host);
        for name in others.map(OsString::as_os_str).chain([host]) {
            let Some(contents) = self.contents.get(name) else { continue };
            self.write_record(name, contents)?;
        }
        Ok(())
    }

    fn write_record(&self, name: &OsStr, contents: &[u8]) -> io::Result<()> {
        let path = self.run.join(name);
        if fs::symlink_metadata(&path).is_ok() {
            return Ok(());
        }
        let _ = fs::remove_file(&self.new);
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&self.new);
        made?.write_all(contents)?;
        let linked = fs::hard_link(&self.new, &path);
        fs::remove_file(&self.new)?;
        match linked {
            // By another daemon of this host.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            linked => linked,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    const FILES: [&str; 5] = ["host.json", "instance.json", "peers", "secret", "zone.config"];

    #[test]
    fn where_the_record_of_the_host_is_all_records_are_whole() {
        let base = tempfile::tempdir().expect("a directory");
        let run = base.path().join("run");
        fs::create_dir(&run).expect("made");
        let contents = "record ".repeat(10_000);
        FILES.iter().for_each(|name| fs::write(run.join(name), &contents).expect("written"));
        let mut daemons =
            [0, 1].map(|index| RunRecords::new(&run, run.join(format!("d{index}.record"))));
        daemons.iter_mut().for_each(RunRecords::read);
        for _ in 0..100 {
            fs::remove_dir_all(&run).expect("removed");
            fs::create_dir(&run).expect("made");
            let is_over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let reader = scope.spawn(|| {
                    while !run.join(HOST_RECORD).exists() && !is_over.load(Relaxed) {
                        std::hint::spin_loop();
                    }
                    FILES.map(|name| fs::read(run.join(name)).map_or(0, |found| found.len()))
                });
                let writers = daemons.each_ref().map(|one| scope.spawn(|| one.write()));
                for writer in writers {
                    writer.join().expect("ended").expect("written");
                }
                is_over.store(true, Relaxed);
                assert_eq!(reader.join().expect("ended"), [contents.len(); 5]);
            });
            // Nothing but records is left.
            assert_eq!(fs::read_dir(&run).expect("read").count(), FILES.len());
        }
    }
}
