//! Base and tail of the consensus, two files beside the log: a voter must find them again after a
//! restart, or it would vote twice. They survive the process: a daemon whose node ended does not return
//! with them.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use store::medium::{PlainFile, RealFiles};
use store::whole::{self, Survives};

const BASE: &str = "members.base";
const TAIL: &str = "members.tail";
const NEW: &str = "members.new";

/// See the module.
pub(super) struct Stored {
    directory: PathBuf,
}

impl Stored {
    pub(super) fn new(directory: &Path) -> Stored {
        Stored { directory: directory.to_owned() }
    }

    /// Base and tail; `None`: nothing was stored yet.
    pub(super) fn load(&self) -> std::io::Result<Option<(Vec<u8>, Vec<u8>)>> {
        let read = |name: &str| match std::fs::read(self.directory.join(name)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        };
        // The base is stored first: nothing was sent before both were there.
        Ok(read(BASE)?.zip(read(TAIL)?))
    }

    pub(super) fn base(&self, bytes: &[u8]) -> wire::errno::Result<()> {
        self.replace(BASE, bytes)
    }

    pub(super) fn tail(&self, bytes: &[u8]) -> wire::errno::Result<()> {
        self.replace(TAIL, bytes)
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> wire::errno::Result<()> {
        let mut files = RealFiles::<PlainFile>::new(&self.directory);
        whole::replace(&mut files, NEW, name, bytes, Survives::Daemon)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_both_is_found_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let stored = Stored::new(directory.path());
        assert_eq!(stored.load().expect("readable"), None);
        stored.base(b"base").expect("stored");
        assert_eq!(stored.load().expect("readable"), None);
        for tail in [&b"tail"[..], b"", b"a longer tail"] {
            stored.tail(tail).expect("stored");
            let expected = Some((b"base".to_vec(), tail.to_vec()));
            assert_eq!(stored.load().expect("readable"), expected);
        }
    }
}
