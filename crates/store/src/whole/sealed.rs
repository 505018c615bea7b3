//! A file that is replaced as a whole, and whose head says whose it is, how often it was replaced, and
//! the CRC-32C of all of it:
//!
//! ```text
//! title:8 instance:u64 part:u32 crc32c:u32 count:u64 contents
//! ```
//!
//! The checksum is that of the file with zeros in its place. Numbers are in little-endian order.

use super::Survives;
use crate::error::{Error, Kind, Result};
use crate::identity::Identity;
use crate::medium::{Files, PlainFile, RealFiles};
use crate::whole;
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};

/// The number changes with the meaning of what follows.
const TITLE: [u8; 8] = *b"forebay1";
/// Where the checksum is.
const CRC: core::ops::Range<usize> = 20..24;
const HEAD_BYTES: usize = 32;

/// The file at a path, and what it had when it was read or replaced last.
#[derive(Debug)]
pub struct SealedFile {
    path: PathBuf,
    identity: Identity,
    survives: Survives,
    count: u64,
}

impl SealedFile {
    /// Finds the file and its contents; `None`: there is none. It was replaced so many times at least.
    ///
    /// # Errors
    /// `Corrupt`, `Foreign`, `Old` or `Missing` if the file is not the one that was stored last.
    pub fn open(
        path: &Path,
        identity: Identity,
        survives: Survives,
        replaced: u64,
    ) -> Result<(SealedFile, Option<Vec<u8>>)> {
        let fail = |kind| Error::new("read what an earlier start stored", path, kind);
        let mut file = SealedFile { path: path.to_owned(), identity, survives, count: replaced };
        let mut bytes = Vec::new();
        match std::fs::File::open(path).and_then(|mut it| it.read_to_end(&mut bytes)) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound && replaced == 0 => {
                return Ok((file, None));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(fail(Kind::Missing)),
            Err(error) => return Err(fail(Kind::Device(crate::error::errno_of(&error)))),
        }
        let corrupt = fail(Kind::Corrupt { offset: 0, sequence: 0 });
        let (owner, count) = unseal(&mut bytes).ok_or(corrupt)?;
        if owner != identity {
            return Err(fail(Kind::Foreign));
        }
        if count < replaced {
            return Err(fail(Kind::Old { found: count, expected: replaced }));
        }
        file.count = count;
        Ok((file, Some(bytes)))
    }

    /// Replaces the contents. Returns how often that was done.
    ///
    /// # Errors
    /// The device's error; the earlier contents may still be there.
    pub fn replace(&mut self, contents: &[u8]) -> wire::errno::Result<u64> {
        let count = self.count + 1;
        let bytes = seal(self.identity, count, contents);
        let directory = self.path.parent().ok_or(wire::Errno::EINVAL)?;
        let name = self.path.file_name().and_then(|name| name.to_str());
        let name = name.ok_or(wire::Errno::EINVAL)?;
        let mut files = RealFiles::<PlainFile>::new(directory);
        let new = format!("{name}.new");
        let replaced = whole::replace(&mut files, &new, name, &bytes, self.survives);
        if replaced.is_err() {
            let _ = files.remove(&new);
        }
        replaced?;
        self.count = count;
        Ok(count)
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn seal(Identity { instance, part }: Identity, count: u64, contents: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD_BYTES + contents.len());
    bytes.extend_from_slice(&TITLE);
    bytes.extend_from_slice(&instance.to_le_bytes());
    bytes.extend_from_slice(&part.to_le_bytes());
    bytes.extend_from_slice(&[0; CRC.end - CRC.start]);
    bytes.extend_from_slice(&count.to_le_bytes());
    bytes.extend_from_slice(contents);
    let crc = crc32c::crc32c(&bytes);
    if let Some(place) = bytes.get_mut(CRC) {
        place.copy_from_slice(&crc.to_le_bytes());
    }
    bytes
}

/// Leaves the contents of a file alone. `None`: it is damaged.
fn unseal(bytes: &mut Vec<u8>) -> Option<(Identity, u64)> {
    let crc = bytes.get(CRC)?.try_into().ok().map(u32::from_le_bytes)?;
    bytes.get_mut(CRC)?.fill(0);
    if crc32c::crc32c(bytes) != crc {
        return None;
    }
    let rest = bytes.strip_prefix(&TITLE)?;
    let (instance, rest) = rest.split_first_chunk()?;
    let (part, rest) = rest.split_first_chunk()?;
    let (count, _) = rest.get(CRC.end - CRC.start..)?.split_first_chunk()?;
    let identity =
        Identity { instance: u64::from_le_bytes(*instance), part: u32::from_le_bytes(*part) };
    let count = u64::from_le_bytes(*count);
    bytes.drain(..HEAD_BYTES);
    Some((identity, count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const OWN: Identity = Identity::of_daemon(7, 1);

    fn open(path: &Path, replaced: u64) -> Result<(SealedFile, Option<Vec<u8>>)> {
        SealedFile::open(path, OWN, Survives::Daemon, replaced)
    }

    #[test]
    fn the_last_contents_are_found_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("record");
        let (mut file, found) = open(&path, 0).expect("there is none yet");
        assert_eq!(found, None);
        for (count, contents) in [(1, &b"one"[..]), (2, b""), (3, b"a longer one")] {
            assert_eq!(file.replace(contents), Ok(count));
            // A kill just after it was stored: nobody else knows how often that was.
            for replaced in [count, count - 1] {
                let (_, found) = open(&path, replaced).expect("stored");
                assert_eq!(found.as_deref(), Some(contents));
            }
        }
        let (mut next, _) = open(&path, 0).expect("stored");
        assert_eq!(next.replace(b"more"), Ok(4), "it counts on");
    }

    #[test]
    fn each_other_file_is_an_error_that_names_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("record");
        let (mut file, _) = open(&path, 0).expect("there is none yet");
        file.replace(b"older").expect("stored");
        let older = fs::read(&path).expect("there");
        file.replace(b"the last one").expect("stored");
        let last = fs::read(&path).expect("there");
        let kind = |bytes: Option<&[u8]>| {
            match bytes {
                Some(bytes) => fs::write(&path, bytes).expect("written"),
                None => fs::remove_file(&path).expect("removed"),
            }
            let error = open(&path, 2).expect_err("it is not the last one");
            assert!(error.to_string().contains(&path.display().to_string()), "{error}");
            error.kind
        };
        let corrupt = Kind::Corrupt { offset: 0, sequence: 0 };
        for length in 0..last.len() {
            assert_eq!(kind(last.get(..length)), corrupt, "cut at {length}");
        }
        for bit in 0..last.len() * 8 {
            let mut flipped = last.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(kind(Some(&flipped)), corrupt, "bit {bit}");
        }
        assert_eq!(kind(Some(&older)), Kind::Old { found: 1, expected: 2 });
        for other in [Identity::of_daemon(8, 1), Identity::of_daemon(7, 2)] {
            assert_eq!(kind(Some(&seal(other, 2, b"the last one"))), Kind::Foreign);
        }
        assert_eq!(kind(None), Kind::Missing);
    }

    #[test]
    fn what_cannot_be_stored_leaves_what_was_there() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("record");
        let (mut file, _) = open(&path, 0).expect("there is none yet");
        file.replace(b"kept").expect("stored");
        // Nothing can be written where a directory is.
        let new = directory.path().join("record.new");
        fs::create_dir(&new).expect("made");
        file.replace(b"other").expect_err("no file can be made");
        fs::remove_dir(&new).expect("removed");
        assert_eq!(open(&path, 1).expect("stored").1.as_deref(), Some(&b"kept"[..]));
        assert_eq!(file.replace(b"next"), Ok(2));
    }
}
