//! One kind of operation, repeated: the program whose instructions `profile` counts.
//!
//! The preparation is the same for every count, so that two runs differ only in the operations.

use super::metadata::SMALL_BYTES;
use super::wrong;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::FileExt as _;

/// The kinds of operations.
pub(crate) const KINDS: [&str; 8] = [
    "stat",
    "open-close",
    "create",
    "unlink",
    "random-read-8k",
    "random-write-8k",
    "small-write",
    "small-read",
];

/// Number of files created in advance, and the blocks of the file that is read and written.
const FILES: u64 = 64;
const BLOCK_BYTES: usize = 8 << 10;
const ALIGNMENT: usize = 64;
const BLOCKS: u64 = 512;

/// Runs `forebay-bench repeat KIND DIRECTORY COUNT COUNT_MAX`: the operation COUNT times in a new
/// directory, prepared as for COUNT_MAX times.
pub(crate) fn main(words: &[String]) -> Result<(), String> {
    let [kind, directory, counts @ ..] = words else {
        return Err("repeat: expected a kind, a directory and two counts".into());
    };
    let counts: Vec<u64> = counts.iter().filter_map(|word| word.parse().ok()).collect();
    let &[count, count_max] = counts.as_slice() else {
        return Err("repeat: expected two counts".into());
    };
    repeat(kind, directory, count, count_max)
        .map_err(|error| format!("{kind} in {directory}: {error}"))
}

fn repeat(kind: &str, directory: &str, count: u64, count_max: u64) -> io::Result<()> {
    fs::create_dir(directory)?;
    let name = |number: u64| format!("{directory}/{number}");
    let mut small = vec![7u8; SMALL_BYTES];
    match kind {
        "create" => (0..count).try_for_each(|number| create(&name(number)).map(drop)),
        "small-write" => (0..count).try_for_each(|number| create(&name(number))?.write_all(&small)),
        "unlink" => {
            (0..count_max).try_for_each(|number| create(&name(number)).map(drop))?;
            (0..count).try_for_each(|number| fs::remove_file(name(number)))
        }
        "stat" => {
            (0..FILES).try_for_each(|number| create(&name(number)).map(drop))?;
            (0..count).try_for_each(|number| fs::metadata(name(number % FILES)).map(drop))
        }
        "open-close" => {
            (0..FILES).try_for_each(|number| create(&name(number)).map(drop))?;
            (0..count).try_for_each(|number| File::open(name(number % FILES)).map(drop))
        }
        "small-read" => {
            (0..FILES).try_for_each(|number| create(&name(number))?.write_all(&small))?;
            (0..count).try_for_each(|number| {
                let name = name(number % FILES);
                let length = File::open(&name)?.read(&mut small)?;
                if length == SMALL_BYTES && small[0] == 7 { Ok(()) } else { Err(wrong(name)) }
            })
        }
        "random-read-8k" | "random-write-8k" => {
            // In one call: its cost depends on the previous state of the space, and both runs
            // include it.
            create(&name(0))?.write_all(&vec![7u8; BLOCK_BYTES * BLOCKS as usize])?;
            // Aligned: otherwise the copy uses 16-byte moves, which would be counted.
            let mut memory = vec![7u8; BLOCK_BYTES + ALIGNMENT];
            let start = memory.as_ptr().align_offset(ALIGNMENT);
            let block = &mut memory[start..start + BLOCK_BYTES];
            let file = OpenOptions::new().read(true).write(true).open(name(0))?;
            (0..count).try_for_each(|number| match kind {
                "random-read-8k" => file.read_exact_at(block, offset_of_block(number)),
                _ => file.write_all_at(block, offset_of_block(number)),
            })
        }
        _ => Err(io::Error::other("no such kind of operation")),
    }
}

fn create(name: &str) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(name)
}

/// Offset of access `number`: `BLOCKS` calls visit all blocks once, each far from the previous one.
fn offset_of_block(number: u64) -> u64 {
    (number * 197 % BLOCKS) * BLOCK_BYTES as u64
}

#[cfg(test)]
mod tests {
    //! All kinds work on any file system.
    use super::*;

    #[test]
    fn each_kind_does_the_requested_number_of_operations() {
        let dir = tempfile::tempdir().expect("a directory");
        for (kind, left) in KINDS.into_iter().zip([64, 64, 9, 3, 1, 1, 9, 64]) {
            let directory = dir.path().join(kind).to_string_lossy().into_owned();
            repeat(kind, &directory, 9, 12).expect(kind);
            assert_eq!(fs::read_dir(&directory).expect("listed").count(), left, "{kind}");
        }
        let offsets: std::collections::BTreeSet<u64> = (0..BLOCKS).map(offset_of_block).collect();
        assert_eq!(offsets.len() as u64, BLOCKS);
    }
}
