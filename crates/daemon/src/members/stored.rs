//! Base and tail of the consensus, two files beside the log: a voter must find them again after a
//! restart, or it would vote twice. They survive the process: a daemon whose node ended does not return
//! with them.

use crate::shared::kept_record::{KeptRecord, KeptRecords, RecordName};
use crate::startup::StartResult;

/// Base and tail.
pub(super) type StoredState = (Vec<u8>, Vec<u8>);

/// See the module.
pub(super) struct Stored {
    base: KeptRecord,
    tail: KeptRecord,
}

impl Stored {
    /// Finds base and tail; `None`: nothing was stored yet.
    ///
    /// # Errors
    /// One of the files is not the one that was stored last.
    pub(super) fn open(records: &KeptRecords<'_>) -> StartResult<(Stored, Option<StoredState>)> {
        let (base, found_base) = records.open(RecordName::MembersBase)?;
        let (tail, found_tail) = records.open(RecordName::MembersTail)?;
        // The base is stored first: nothing was sent before both were there.
        Ok((Stored { base, tail }, found_base.zip(found_tail)))
    }

    pub(super) fn base(&mut self, bytes: &[u8]) -> wire::errno::Result<()> {
        self.base.replace(bytes)
    }

    pub(super) fn tail(&mut self, bytes: &[u8]) -> wire::errno::Result<()> {
        self.tail.replace(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::kept_record::tests::records_in;

    #[test]
    fn the_last_of_both_is_found_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let records = records_in(directory.path());
        let load = || Stored::open(&records).expect("whole").1;
        let (mut stored, found) = Stored::open(&records).expect("there is none yet");
        assert_eq!(found, None);
        stored.base(b"base").expect("stored");
        assert_eq!(load(), None);
        for tail in [&b"tail"[..], b"", b"a longer tail"] {
            stored.tail(tail).expect("stored");
            assert_eq!(load(), Some((b"base".to_vec(), tail.to_vec())));
        }
    }

    #[test]
    fn one_of_both_that_is_older_or_missing_is_an_error_that_names_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let records = records_in(directory.path());
        let (mut stored, _) = Stored::open(&records).expect("there is none yet");
        stored.base(b"base").expect("stored");
        stored.tail(b"a vote").expect("stored");
        let tail = directory.path().join("members.tail");
        let voted = std::fs::read(&tail).expect("there");
        stored.tail(b"another vote").expect("stored");
        std::fs::write(&tail, voted).expect("written");
        let why = || match Stored::open(&records) {
            Ok((_, found)) => panic!("{found:?}"),
            Err(failure) => failure.text,
        };
        assert!(why().contains("members.tail found=1 expected=2"), "{}", why());
        std::fs::remove_file(&tail).expect("removed");
        assert!(why().contains("missing") && why().contains("members.tail"), "{}", why());
    }
}
