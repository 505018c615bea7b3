//! Files of the data directory that are replaced as a whole and that the next start must find as they
//! were left: the state of the consensus, and the rules of shares. A word of shared memory counts the
//! replacements of each, so that an older copy is found; a node that ended has neither.

use crate::startup::{Failure, StartResult, WithoutCopies, failed};
use shm::Segment;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};
use store::whole::Survives;
use store::{Identity, SealedFile};
use wire::errno::Result;
use wire::limits::WORKER_COUNT_MAX;

/// One of the files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RecordName {
    /// Changes that all voters made, as one state.
    MembersBase,
    /// Changes and votes since.
    MembersTail,
    /// Rules of shares.
    Rules,
}

impl RecordName {
    /// All of them.
    pub(crate) const ALL: [RecordName; 3] =
        [RecordName::MembersBase, RecordName::MembersTail, RecordName::Rules];

    const fn file(self) -> (&'static str, Survives) {
        match self {
            RecordName::MembersBase => ("members.base", Survives::Daemon),
            RecordName::MembersTail => ("members.tail", Survives::Daemon),
            RecordName::Rules => ("qos", Survives::Node),
        }
    }

    /// The way out where it is damaged. A salvage starts without rules, and they are given anew; a voter
    /// that forgot its votes could vote twice.
    const fn without_copies(self) -> WithoutCopies {
        match self {
            RecordName::MembersBase | RecordName::MembersTail => WithoutCopies::NewInstance,
            RecordName::Rules => WithoutCopies::Salvage,
        }
    }

    /// Offset of its word in bytes: behind those of the logs.
    const fn word(self) -> usize {
        (WORKER_COUNT_MAX + self as usize) * size_of::<u64>()
    }
}

/// Bytes of shared memory for the words of logs and records.
pub(crate) const PROGRESS_BYTES: usize =
    (WORKER_COUNT_MAX + RecordName::ALL.len()) * size_of::<u64>();

/// See the module.
pub(crate) struct KeptRecord {
    file: SealedFile,
    memory: Arc<Segment>,
    word: usize,
}

/// A record, and its contents; `None`: nothing was stored yet.
pub(crate) type OpenedRecord = (KeptRecord, Option<Vec<u8>>);

/// The records of a daemon.
#[derive(Clone)]
pub(crate) struct KeptRecords<'a> {
    data: &'a Path,
    identity: Identity,
    memory: Arc<Segment>,
}

impl<'a> KeptRecords<'a> {
    /// With the words at the end of `log_progress`.
    pub(crate) fn of(data: &'a Path, identity: Identity, memory: &Arc<Segment>) -> KeptRecords<'a> {
        KeptRecords { data, identity, memory: Arc::clone(memory) }
    }

    /// A record, and its contents; `None`: nothing was stored yet.
    ///
    /// # Errors
    /// The file is not the one that was stored last.
    pub(crate) fn open(&self, name: RecordName) -> StartResult<OpenedRecord> {
        let (memory, word) = (Arc::clone(&self.memory), name.word());
        let replaced = memory.word64(word).map_err(failed("read shared memory"))?.load(Acquire);
        let (file, survives) = name.file();
        let opened = SealedFile::open(&self.data.join(file), self.identity, survives, replaced);
        let (file, contents) = opened.map_err(Failure::of_file(name.without_copies()))?;
        Ok((KeptRecord { file, memory, word }, contents))
    }

    /// As `open`, and a record that is damaged is given up: the first word tells whether it was.
    ///
    /// # Errors
    /// The device's error.
    pub(crate) fn salvage(&self, name: RecordName) -> StartResult<(bool, OpenedRecord)> {
        match self.open(name) {
            Err(failure) if failure.is_damage() => {
                let path = self.data.join(name.file().0);
                if let Err(error) = std::fs::remove_file(&path)
                    && error.kind() != std::io::ErrorKind::NotFound
                {
                    return Err(failed(format!("remove {}", path.display()))(error));
                }
                let word = self.memory.word64(name.word()).map_err(failed("use shared memory"))?;
                word.store(0, Release);
                Ok((true, self.open(name)?))
            }
            opened => Ok((false, opened?)),
        }
    }
}

impl KeptRecord {
    /// Replaces the contents.
    ///
    /// # Errors
    /// The device's error; the earlier contents may still be there.
    pub(crate) fn replace(&mut self, contents: &[u8]) -> Result<()> {
        let count = self.file.replace(contents)?;
        self.memory.word64(self.word)?.store(count, Release);
        Ok(())
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Records of a daemon in a directory of a test.
    pub(crate) fn records_in(data: &Path) -> KeptRecords<'_> {
        let memory = Segment::nameless(c"forebay-test", PROGRESS_BYTES).expect("shared memory").0;
        KeptRecords::of(data, Identity::of_daemon(7, 1), &Arc::new(memory))
    }

    #[test]
    fn words_are_behind_those_of_logs_and_apart() {
        let words = RecordName::ALL.map(RecordName::word);
        assert!(words.iter().all(|it| *it >= WORKER_COUNT_MAX * 8 && it + 8 <= PROGRESS_BYTES));
        assert!(words.is_sorted() && words.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn an_older_copy_and_a_missing_file_are_found_while_the_memory_is_there() {
        let directory = tempfile::tempdir().expect("a directory");
        let records = records_in(directory.path());
        let (mut record, none) = records.open(RecordName::Rules).expect("there is none yet");
        assert_eq!(none, None);
        record.replace(b"first").expect("stored");
        let first = std::fs::read(record.path()).expect("there");
        record.replace(b"second").expect("stored");
        let (_, found) = records.open(RecordName::Rules).expect("stored");
        assert_eq!(found.as_deref(), Some(&b"second"[..]));
        std::fs::write(record.path(), first).expect("written");
        let why = |records: &KeptRecords<'_>| match records.open(RecordName::Rules) {
            Ok((_, found)) => panic!("{found:?}"),
            Err(failure) => failure.text,
        };
        assert!(why(&records).contains("an older copy, file="), "{}", why(&records));
        // The node ended meanwhile: nothing that it had is newer.
        let (_, found) = records_in(directory.path()).open(RecordName::Rules).expect("whole");
        assert_eq!(found.as_deref(), Some(&b"first"[..]));
        std::fs::remove_file(record.path()).expect("removed");
        assert!(why(&records).contains("it is missing, file="), "{}", why(&records));
        let (is_given_up, (mut record, none)) =
            records.salvage(RecordName::Rules).expect("it begins anew");
        assert_eq!((is_given_up, none), (true, None));
        record.replace(b"third").expect("stored");
        let (is_given_up, (_, found)) = records.salvage(RecordName::Rules).expect("whole");
        assert_eq!((is_given_up, found.as_deref()), (false, Some(&b"third"[..])));
    }
}
