//! A load that goes on whatever fails, until its input ends: `steady KIND PATH MEGABYTES`.
//!
//! With the kinds `write` and `read` it writes or reads blocks of 1 MiB in turn, in a file of so many
//! MiB, as a rank of IOR does. Each page of a block has the block's index and the round that wrote it,
//! and each block that is read is compared. With `names` it makes, looks at and removes a file in a
//! directory, as mdtest does. A wrong byte ends it with an error.
//!
//! For each line of input it prints five numbers: operations so far, nanoseconds since it began, those of
//! the longest operation since the line before (one that is under way counts), errors so far, and
//! nanoseconds of the longest operation that failed since the line before. At the end of its input
//! `write` compares all blocks whose last write succeeded.

use super::wrong;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, ErrorKind};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Instant;

/// Length of a block.
pub(crate) const BLOCK_BYTES: usize = 1 << 20;
/// Length of a part of a block that has its own tag: a page, so that no lost part goes unnoticed.
const PAGE_BYTES: usize = 4 << 10;
const TAG_BYTES: usize = 16;

/// Runs the load; `words` are its arguments.
///
/// # Errors
/// The wrong argument, an error before it has begun, or contents that are wrong at its end.
pub(crate) fn main(words: &[String]) -> Result<(), String> {
    let [kind, path, megabytes] = words else { return Err("steady KIND PATH MEGABYTES".into()) };
    let megabytes =
        megabytes.parse::<u64>().map_err(|_| "steady takes a number of MiB".to_owned())?;
    run(kind, path, megabytes).map_err(|error| format!("{path}: {error}"))
}

fn run(kind: &str, path: &str, megabytes: u64) -> io::Result<()> {
    let load = Arc::new(SteadyLoad::new());
    let working = Arc::clone(&load);
    let file = || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
    let thread = match kind {
        "write" => {
            let file = file()?;
            std::thread::spawn(move || {
                let rounds = working.write(&file, megabytes);
                working.compare_all(&file, &rounds)
            })
        }
        "read" => {
            let file = file()?;
            fill(&file, megabytes)?;
            std::thread::spawn(move || {
                working.read(&file, megabytes);
                Ok(())
            })
        }
        "names" => {
            let path = path.to_owned();
            std::thread::spawn(move || {
                working.names(&path);
                Ok(())
            })
        }
        _ => return Err(io::Error::other(format!("no kind {kind}"))),
    };
    for line in io::stdin().lock().lines() {
        line?;
        println!("{}", load.answer());
    }
    load.ends.store(true, Relaxed);
    thread.join().unwrap_or_else(|_| Err(io::Error::other("the load panicked")))
}

/// The operations of a load so far.
struct SteadyLoad {
    begun: Instant,
    /// When the operation under way began, in nanoseconds; 0 for none.
    since: AtomicU64,
    operations: AtomicU64,
    errors: AtomicU64,
    longest_nanos: AtomicU64,
    longest_failed_nanos: AtomicU64,
    ends: AtomicBool,
}

impl SteadyLoad {
    fn new() -> SteadyLoad {
        SteadyLoad {
            begun: Instant::now(),
            since: AtomicU64::new(0),
            operations: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            longest_nanos: AtomicU64::new(0),
            longest_failed_nanos: AtomicU64::new(0),
            ends: AtomicBool::new(false),
        }
    }

    fn nanos(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    fn answer(&self) -> String {
        let now = self.nanos();
        let under_way = match self.since.load(Relaxed) {
            0 => 0,
            since => now.saturating_sub(since),
        };
        let longest = self.longest_nanos.swap(0, Relaxed).max(under_way);
        let failed = self.longest_failed_nanos.swap(0, Relaxed);
        let (operations, errors) = (self.operations.load(Relaxed), self.errors.load(Relaxed));
        format!("{operations} {now} {longest} {errors} {failed}")
    }

    /// Does an operation and counts it. Wrong contents end the process.
    fn count<T>(&self, operation: impl FnOnce() -> io::Result<T>) -> Option<T> {
        let since = self.nanos().max(1);
        self.since.store(since, Relaxed);
        let outcome = operation();
        self.since.store(0, Relaxed);
        let nanos = self.nanos().saturating_sub(since);
        self.longest_nanos.fetch_max(nanos, Relaxed);
        self.operations.fetch_add(1, Relaxed);
        match outcome {
            Ok(value) => Some(value),
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                eprintln!("a load ends: {error}");
                std::process::exit(1);
            }
            Err(error) => {
                if self.errors.fetch_add(1, Relaxed) == 0 {
                    eprintln!("the first error of a load: {error}");
                }
                self.longest_failed_nanos.fetch_max(nanos, Relaxed);
                None
            }
        }
    }

    /// Writes blocks in turn. Returns the round of each block whose last write succeeded.
    fn write(&self, file: &File, blocks: u64) -> Vec<Option<u64>> {
        let mut rounds = vec![None; blocks as usize];
        let mut block = vec![0x5a; BLOCK_BYTES];
        for round in 1.. {
            for (index, last) in (0..).zip(&mut rounds) {
                if self.ends.load(Relaxed) {
                    return rounds;
                }
                mark(&mut block, index, round);
                let written = self.count(|| file.write_all_at(&block, offset(index)));
                *last = written.map(|()| round);
            }
        }
        rounds
    }

    fn read(&self, file: &File, blocks: u64) {
        let mut block = vec![0; BLOCK_BYTES];
        for index in (0..blocks).cycle() {
            if self.ends.load(Relaxed) {
                return;
            }
            let _ = self.count(|| compare(file, &mut block, index, 1));
        }
    }

    fn names(&self, directory: &str) {
        for number in 0_u64.. {
            if self.ends.load(Relaxed) {
                return;
            }
            let name = format!("{directory}/{}-{number}", std::process::id());
            // A create that was carried out twice is an error, too.
            let make = || OpenOptions::new().write(true).create_new(true).open(&name);
            if self.count(make).is_some() {
                let _ = self.count(|| fs::metadata(&name));
                let _ = self.count(|| fs::remove_file(&name));
            }
        }
    }

    /// Compares blocks with what was written last. Where operations have failed, the first block out of
    /// reach is the end: each of them may take the timeout of the instance.
    fn compare_all(&self, file: &File, rounds: &[Option<u64>]) -> io::Result<()> {
        let has_failed = self.errors.load(Relaxed) > 0;
        let mut block = vec![0; BLOCK_BYTES];
        for (index, round) in (0..).zip(rounds) {
            let Some(round) = *round else { continue };
            match compare(file, &mut block, index, round) {
                Err(error) if error.kind() != ErrorKind::InvalidData && has_failed => break,
                outcome => outcome?,
            }
        }
        Ok(())
    }
}

fn offset(index: u64) -> u64 {
    index * BLOCK_BYTES as u64
}

fn tag(index: u64, round: u64) -> [u8; TAG_BYTES] {
    (u128::from(round) << 64 | u128::from(index)).to_le_bytes()
}

fn mark(block: &mut [u8], index: u64, round: u64) {
    for page in block.chunks_exact_mut(PAGE_BYTES) {
        page[..TAG_BYTES].copy_from_slice(&tag(index, round));
    }
}

/// Writes the first round.
fn fill(file: &File, blocks: u64) -> io::Result<()> {
    let mut block = vec![0x5a; BLOCK_BYTES];
    (0..blocks).try_for_each(|index| {
        mark(&mut block, index, 1);
        file.write_all_at(&block, offset(index))
    })
}

/// Reads a block and compares it with what that round wrote.
fn compare(file: &File, block: &mut [u8], index: u64, round: u64) -> io::Result<()> {
    file.read_exact_at(block, offset(index))?;
    let is_right =
        |page: &[u8]| page[..TAG_BYTES] == tag(index, round) && page[PAGE_BYTES - 1] == 0x5a;
    match block.chunks_exact(PAGE_BYTES).position(|page| !is_right(page)) {
        None => Ok(()),
        Some(page) => Err(wrong(format!("block {index}, page {page}, of round {round}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(blocks: u64) -> File {
        let file = tempfile::tempfile().expect("a file");
        fill(&file, blocks).expect("filled");
        file
    }

    #[test]
    fn a_page_of_another_round_or_block_is_wrong() {
        let file = file(2);
        let block = &mut vec![0; BLOCK_BYTES];
        assert!(compare(&file, block, 1, 1).is_ok());
        let kind = |outcome: io::Result<()>| outcome.err().map(|error| error.kind());
        assert_eq!(kind(compare(&file, block, 1, 2)), Some(ErrorKind::InvalidData));
        // The last page alone is of the round before.
        let mut newer = vec![0x5a; BLOCK_BYTES];
        mark(&mut newer, 1, 2);
        file.write_all_at(&newer[..BLOCK_BYTES - PAGE_BYTES], offset(1)).expect("written");
        let error = compare(&file, block, 1, 2).expect_err("a lost page");
        assert!(error.to_string().contains("block 1, page 255, of round 2"), "{error}");
    }

    #[test]
    fn errors_are_counted_and_the_load_goes_on() {
        let load = SteadyLoad::new();
        assert_eq!(load.count(|| Ok(7)), Some(7));
        assert_eq!(load.count(|| Err::<(), _>(io::Error::other("gone"))), None);
        let numbers = |answer: String| -> Vec<u64> {
            answer.split(' ').map(|word| word.parse().expect("a number")).collect()
        };
        let all = numbers(load.answer());
        assert_eq!((all[0], all[3]), (2, 1), "{all:?}");
        assert!(all[2] >= all[4] && all[4] > 0, "{all:?}");
        // The longest ones are those since the last answer.
        let all = numbers(load.answer());
        assert_eq!(all[2..], [0, 1, 0], "{all:?}");
        // An operation under way counts.
        load.count(|| {
            assert!(numbers(load.answer())[2] > 0);
            Ok(())
        });
    }

    #[test]
    fn what_was_acknowledged_is_compared_at_the_end() {
        let file = file(3);
        let load = SteadyLoad::new();
        assert!(load.compare_all(&file, &[Some(1), None, Some(1)]).is_ok());
        assert!(load.compare_all(&file, &[Some(1), Some(2), None]).is_err());
        // A block that cannot be read is a failure, unless some failed before.
        file.set_len(offset(2)).expect("cut");
        let cut = [Some(1), Some(1), Some(1)];
        assert!(load.compare_all(&file, &cut).is_err());
        load.count(|| Err::<(), _>(io::Error::other("gone")));
        assert!(load.compare_all(&file, &cut).is_ok());
    }
}
