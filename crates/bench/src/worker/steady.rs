//! A load that goes on whatever fails, until its input ends: `steady KIND PATH NUMBER`.
//!
//! With the kinds `write` and `read` it writes or reads blocks of 1 MiB in turn, in a file of so many
//! MiB, as a rank of IOR does. Each page of a block has the block's index and the round that wrote it,
//! and each block that is read is compared. With `names` so many threads make, look at and remove files,
//! as mdtest does, each in one of the directories after the other (PATH has commas between them); with
//! `files` one of sixteen files stays, with its name in it. A wrong byte ends the load with an error.
//!
//! It begins with the second line of input. For each line it prints six numbers: operations so far,
//! nanoseconds since its start, those of the longest operation since the line before (one that is under
//! way counts), errors so far, nanoseconds of the longest operation that failed since the line before,
//! and files that stay so far. At the end of its input `write` compares all blocks whose last write
//! succeeded, `files` the files that stay, and it prints its numbers a last time.
//!
//! `kept DIRECTORIES` compares the files that loads left there, and prints how many there are.

use super::wrong;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, ErrorKind, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread::JoinHandle;
use std::time::Instant;

/// Length of a block.
pub(crate) const BLOCK_BYTES: usize = 1 << 20;
/// Length of a part of a block that has its own tag: a page, so that no lost part goes unnoticed.
const PAGE_BYTES: usize = 4 << 10;
const TAG_BYTES: usize = 16;
/// Of so many files that a thread makes one stays with `files`.
const KEPT_EVERY: u64 = 16;
/// Between directories.
const SEPARATOR: char = ',';

/// Runs the load; `words` are its arguments.
///
/// # Errors
/// The wrong argument, an error before it has begun, or contents that are wrong at its end.
pub(crate) fn main(words: &[String]) -> Result<(), String> {
    let [kind, path, number] = words else { return Err("steady KIND PATH NUMBER".into()) };
    let number = number.parse::<u64>().map_err(|_| {
        let takes = "steady takes a number of MiB, or of threads";
        takes.to_owned()
    })?;
    run(kind, path, number).map_err(|error| format!("{path}: {error}"))
}

/// Compares the files that loads of the kind `files` left in directories; `words` are its arguments.
///
/// # Errors
/// The wrong argument, or a file that should not be there, or that has other bytes.
pub(crate) fn kept_main(words: &[String]) -> Result<(), String> {
    let [directories] = words else { return Err("kept DIRECTORIES".into()) };
    let mut count = 0;
    for directory in directories.split(SEPARATOR) {
        count += compare_kept(directory).map_err(|error| format!("{directory}: {error}"))?;
    }
    println!("{count}");
    Ok(())
}

fn run(kind: &str, path: &str, number: u64) -> io::Result<()> {
    let begun = Instant::now();
    let work = SteadyWork::prepare(kind, path, number)?;
    let loads: Vec<_> =
        (0..work.thread_count()).map(|_| Arc::new(SteadyLoad::new(begun))).collect();
    let mut threads = Vec::new();
    for (place, line) in io::stdin().lock().lines().enumerate() {
        line?;
        if place == 1 {
            threads = work.begin(&loads);
        }
        println!("{}", answer(&loads));
    }
    loads.iter().for_each(|load| load.ends.store(true, Relaxed));
    for thread in threads {
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the load panicked")))?;
    }
    println!("{}", answer(&loads));
    Ok(())
}

/// The work of each thread of a load.
#[derive(Clone)]
enum SteadyWork {
    Write { file: Arc<File>, blocks: u64 },
    Read { file: Arc<File>, blocks: u64 },
    Names { directories: Arc<Vec<String>>, threads: u64, stays: fn(u64) -> bool },
}

impl SteadyWork {
    fn prepare(kind: &str, path: &str, number: u64) -> io::Result<SteadyWork> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let names = |stays: fn(u64) -> bool| {
            let directories = path.split(SEPARATOR).map(String::from).collect();
            SteadyWork::Names { directories: Arc::new(directories), threads: number, stays }
        };
        match kind {
            "write" => {
                Ok(SteadyWork::Write { file: Arc::new(options.open(path)?), blocks: number })
            }
            "read" => {
                let file = options.open(path)?;
                fill(&file, number)?;
                Ok(SteadyWork::Read { file: Arc::new(file), blocks: number })
            }
            "names" => Ok(names(|_| false)),
            "files" => Ok(names(is_kept)),
            _ => Err(io::Error::other(format!("no kind {kind}"))),
        }
    }

    fn thread_count(&self) -> u64 {
        match self {
            SteadyWork::Names { threads, .. } => *threads,
            SteadyWork::Write { .. } | SteadyWork::Read { .. } => 1,
        }
    }

    fn begin(&self, loads: &[Arc<SteadyLoad>]) -> Vec<JoinHandle<io::Result<()>>> {
        let start = |(thread, load): (u64, &Arc<SteadyLoad>)| {
            let (work, load) = (self.clone(), Arc::clone(load));
            std::thread::spawn(move || work.run(&load, thread))
        };
        (0..).zip(loads).map(start).collect()
    }

    /// Works until the load ends, and compares what is to be there then.
    fn run(&self, load: &SteadyLoad, thread: u64) -> io::Result<()> {
        match self {
            SteadyWork::Write { file, blocks } => {
                let rounds = load.write(file, *blocks);
                load.compare_all(file, &rounds)
            }
            SteadyWork::Read { file, blocks } => {
                load.read(file, *blocks);
                Ok(())
            }
            SteadyWork::Names { directories, stays, .. } => {
                let kept = load.names(directories, thread, stays);
                load.compare_names(&kept)
            }
        }
    }
}

/// The line of numbers of all threads together.
fn answer(loads: &[Arc<SteadyLoad>]) -> String {
    let mut sum = [0; 6];
    for load in loads {
        let [operations, nanos, longest, errors, failed, kept] = load.numbers();
        sum[0] += operations;
        sum[1] = nanos.max(sum[1]);
        sum[2] = longest.max(sum[2]);
        sum[3] += errors;
        sum[4] = failed.max(sum[4]);
        sum[5] += kept;
    }
    sum.map(|number| number.to_string()).join(" ")
}

/// The operations of a thread of a load so far.
struct SteadyLoad {
    begun: Instant,
    /// When the operation under way began, in nanoseconds; 0 for none.
    since: AtomicU64,
    operations: AtomicU64,
    errors: AtomicU64,
    longest_nanos: AtomicU64,
    longest_failed_nanos: AtomicU64,
    kept: AtomicU64,
    ends: AtomicBool,
}

impl SteadyLoad {
    fn new(begun: Instant) -> SteadyLoad {
        SteadyLoad {
            begun,
            since: AtomicU64::new(0),
            operations: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            longest_nanos: AtomicU64::new(0),
            longest_failed_nanos: AtomicU64::new(0),
            kept: AtomicU64::new(0),
            ends: AtomicBool::new(false),
        }
    }

    fn nanos(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    /// The numbers of a line.
    fn numbers(&self) -> [u64; 6] {
        let now = self.nanos();
        let under_way = match self.since.load(Relaxed) {
            0 => 0,
            since => now.saturating_sub(since),
        };
        let longest = self.longest_nanos.swap(0, Relaxed).max(under_way);
        let failed = self.longest_failed_nanos.swap(0, Relaxed);
        let of = |number: &AtomicU64| number.load(Relaxed);
        [of(&self.operations), now, longest, of(&self.errors), failed, of(&self.kept)]
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

    /// Makes, looks at and removes files. Returns those whose number `stays`.
    fn names(
        &self,
        directories: &[String],
        thread: u64,
        stays: impl Fn(u64) -> bool,
    ) -> Vec<String> {
        let mut kept = Vec::new();
        for number in 0_u64.. {
            if self.ends.load(Relaxed) {
                return kept;
            }
            let directory = &directories[((thread + number) % directories.len() as u64) as usize];
            let name = format!("{}-{thread}-{number}", std::process::id());
            let path = format!("{directory}/{name}");
            let stays = stays(number);
            // A create that was carried out twice is an error, too.
            let make = || {
                let mut file = OpenOptions::new().write(true).create_new(true).open(&path)?;
                if stays { file.write_all(name.as_bytes()) } else { Ok(()) }
            };
            if self.count(make).is_none() {
                continue;
            }
            let _ = self.count(|| fs::metadata(&path));
            if stays {
                self.kept.fetch_add(1, Relaxed);
                kept.push(path);
            } else {
                let _ = self.count(|| fs::remove_file(&path));
            }
        }
        kept
    }

    /// Compares files that stay. Where operations have failed, the first one out of reach is the end.
    fn compare_names(&self, kept: &[String]) -> io::Result<()> {
        for path in kept {
            match compare_name(Path::new(path)) {
                Err(error)
                    if error.kind() != ErrorKind::InvalidData && self.errors.load(Relaxed) > 0 =>
                {
                    break;
                }
                outcome => outcome?,
            }
        }
        Ok(())
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

fn is_kept(number: u64) -> bool {
    number.is_multiple_of(KEPT_EVERY)
}

/// Compares a file with its name.
fn compare_name(path: &Path) -> io::Result<()> {
    let found = fs::read(path)?;
    let is_right = path.file_name().is_some_and(|name| name.as_bytes() == found);
    if is_right { Ok(()) } else { Err(wrong(path.display())) }
}

/// Compares all files in a directory with their names, and returns how many there are.
fn compare_kept(directory: &str) -> io::Result<u64> {
    let mut count = 0;
    for entry in fs::read_dir(directory)? {
        compare_name(&entry?.path())?;
        count += 1;
    }
    Ok(count)
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
        let load = SteadyLoad::new(Instant::now());
        assert_eq!(load.count(|| Ok(7)), Some(7));
        assert_eq!(load.count(|| Err::<(), _>(io::Error::other("gone"))), None);
        let all = load.numbers();
        assert_eq!((all[0], all[3]), (2, 1), "{all:?}");
        assert!(all[2] >= all[4] && all[4] > 0, "{all:?}");
        // The longest ones are those since the last answer.
        let all = load.numbers();
        assert_eq!(all[2..], [0, 1, 0, 0], "{all:?}");
        // An operation under way counts.
        load.count(|| {
            assert!(load.numbers()[2] > 0);
            Ok(())
        });
    }

    #[test]
    fn the_numbers_of_all_threads_are_one_line() {
        let loads = [1, 2].map(|_| Arc::new(SteadyLoad::new(Instant::now())));
        loads[0].count(|| Ok(()));
        loads[1].count(|| Err::<(), _>(io::Error::other("gone")));
        loads[1].kept.store(3, Relaxed);
        let line = answer(&loads);
        let all: Vec<u64> = line.split(' ').map(|word| word.parse().expect("a number")).collect();
        assert_eq!((all.len(), all[0], all[3], all[5]), (6, 2, 1, 3), "{line}");
        assert!(all[1] >= all[2] && all[2] >= all[4] && all[4] > 0, "{line}");
    }

    /// Lets a thread of `names` make so many files in new directories, one after the other.
    fn named(directories: u64, files: u64) -> (tempfile::TempDir, Vec<String>, Arc<SteadyLoad>) {
        let root = tempfile::tempdir().expect("a directory");
        let path =
            |number: u64| root.path().join(number.to_string()).to_string_lossy().into_owned();
        let paths: Vec<String> = (0..directories).map(path).collect();
        paths.iter().for_each(|path| fs::create_dir(path).expect("a directory"));
        let load = Arc::new(SteadyLoad::new(Instant::now()));
        let kept = std::thread::scope(|scope| {
            let work = scope.spawn(|| load.names(&paths, 0, is_kept));
            // A file that is removed is three operations, one that stays two.
            while load.operations.load(Relaxed) < files * 3 {
                std::thread::yield_now();
            }
            load.ends.store(true, Relaxed);
            work.join().expect("it ends")
        });
        assert!(load.compare_names(&kept).is_ok());
        assert_eq!(load.kept.load(Relaxed), kept.len() as u64);
        (root, paths, load)
    }

    #[test]
    fn of_sixteen_files_one_stays_and_all_that_stay_are_found() {
        let (_root, paths, load) = named(3, 100);
        let count: u64 = paths.iter().map(|path| compare_kept(path).expect("right")).sum();
        assert_eq!(count, load.kept.load(Relaxed));
        assert!(count > 100 / KEPT_EVERY && load.errors.load(Relaxed) == 0, "{count}");
    }

    #[test]
    fn a_file_that_was_to_be_removed_or_has_other_bytes_is_wrong() {
        let (root, paths, load) = named(1, 20);
        let is_wrong =
            || compare_kept(&paths[0]).map_err(|error| error.kind()) == Err(ErrorKind::InvalidData);
        // Files that do not stay have no bytes.
        fs::write(root.path().join("0/1-0-1"), "").expect("written");
        assert!(is_wrong());
        fs::write(root.path().join("0/1-0-1"), "1-0-2").expect("written");
        assert!(is_wrong());
        fs::write(root.path().join("0/1-0-1"), "1-0-1").expect("written");
        assert!(!is_wrong());
        // One that cannot be read is a failure, unless operations failed.
        let gone = [format!("{}/gone", paths[0])];
        assert!(load.compare_names(&gone).is_err());
        load.count(|| Err::<(), _>(io::Error::other("gone")));
        assert!(load.compare_names(&gone).is_ok());
    }

    #[test]
    fn what_was_acknowledged_is_compared_at_the_end() {
        let file = file(3);
        let load = SteadyLoad::new(Instant::now());
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
