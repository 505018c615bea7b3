//! Whether a file of the backing store is as it was written, before it counts as saved: its length
//! always, and its contents with `--writeback-verify contents`. These are read from the store itself,
//! past the memory of this host, after they were flushed.

use crate::backends::{Backend, Uncommitted};
use crate::state::{WritebackError, WritebackResult};
use std::io;
use wire::Attributes;
use wire::backing::Version;

/// Bytes that are read at a time.
const BUFFER_BYTES: usize = 1 << 20;

/// Bytes that were handed to the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct WrittenRange {
    at: u64,
    length: u64,
    crc: u32,
}

/// The ranges that the store was given, in their order.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct WrittenRanges(Vec<WrittenRange>);

impl WrittenRanges {
    pub(super) fn note(&mut self, bytes: &[u8], at: u64) {
        let (length, crc) = (bytes.len() as u64, crc32c::crc32c(bytes));
        self.0.push(WrittenRange { at, length, crc });
    }

    pub(super) fn add(&mut self, other: WrittenRanges) {
        self.0.extend(other.0);
    }
}

fn differs(what: &str) -> WritebackError {
    WritebackError::Backing(io::Error::other(format!("the backing store has {what}")))
}

/// The store has as many bytes as the file.
pub(super) fn length(version: &Version, of: &Attributes) -> WritebackResult<()> {
    if of.is_regular() && version.size != of.size {
        return Err(differs(&format!("{} of the {} bytes", version.size, of.size)));
    }
    Ok(())
}

/// The store has the bytes that it was given. A file that was cut since ends before some of them.
pub(super) fn contents(
    backend: &dyn Backend,
    (partial, size): (&Uncommitted, u64),
    written: &WrittenRanges,
) -> WritebackResult<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    for &WrittenRange { at, length, crc } in written.0.iter().filter(|it| it.at + it.length <= size)
    {
        let (mut found, mut position) = (0, at);
        while position < at + length {
            let most = usize::try_from(at + length - position).unwrap_or(usize::MAX);
            let part = buffer.get_mut(..most.min(BUFFER_BYTES)).unwrap_or_default();
            let count = backend.read_back(partial, part, position)?;
            let Some(read) = part.get(..count).filter(|it| !it.is_empty()) else { break };
            found = crc32c::crc32c_append(found, read);
            position += count as u64;
        }
        if position < at + length || found != crc {
            return Err(differs(&format!(
                "other bytes at {at} to {} than it was given",
                at + length
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::NewNode;
    use crate::backends::posix::PosixBackend;
    use backing::FileMetadata;
    use std::fs::File;
    use std::os::unix::fs::FileExt as _;

    fn file_of(partial: &Uncommitted) -> &File {
        let Uncommitted::File(partial) = partial else { panic!("a regular file") };
        partial.file()
    }

    #[test]
    fn a_byte_that_differs_and_an_end_that_is_missing_are_found() {
        let place = tempfile::tempdir().expect("a directory");
        let backend = PosixBackend::new(place.path(), 7).expect("a backend");
        let root = backend.root().expect("its top");
        let bytes: Vec<u8> = (0..3 * BUFFER_BYTES + 5000).map(|it| (it % 251) as u8).collect();
        let size = bytes.len() as u64;
        let new = NewNode::File(0o644, size);
        let top = File::open(place.path()).expect("opened");
        let node = backing::Node::of(&top).expect("its attributes");
        let metadata = FileMetadata::of(&top, &node).expect("its metadata");
        let partial = backend.create((&root, "x".as_ref()), &new, &metadata).expect("made");
        let mut written = WrittenRanges::default();
        let half = BUFFER_BYTES + 77;
        for (at, part) in [(0, &bytes[..half]), (half, &bytes[half..])] {
            file_of(&partial).write_all_at(part, at as u64).expect("written");
            written.note(part, at as u64);
        }
        let check =
            |size| contents(&backend, (&partial, size), &written).map_err(|it| it.to_string());
        assert_eq!(check(size), Ok(()));
        for at in [0, half - 1, half, bytes.len() - 1] {
            let flipped = [bytes[at] ^ 4];
            file_of(&partial).write_all_at(&flipped, at as u64).expect("written");
            let why = check(size).expect_err("a byte differs");
            assert!(why.contains("other bytes at"), "{why}");
            file_of(&partial).write_all_at(&bytes[at..=at], at as u64).expect("written");
        }
        file_of(&partial).set_len(size - 1).expect("cut");
        assert!(check(size).is_err(), "the end is missing");
        assert_eq!(check(half as u64), Ok(()), "the file was cut: only what is left is compared");
        let version = partial.version().expect("its version");
        let of = Attributes { size, mode: 0o100_644, ..Attributes::default() };
        let why = length(&version, &of).expect_err("a byte is missing").to_string();
        assert!(why.contains(&format!("{} of the {size} bytes", size - 1)), "{why}");
    }
}
