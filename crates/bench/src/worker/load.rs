//! A load that goes on until its input ends: `load FILE BLOCK THREADS`. Threads read blocks at random
//! places of a file; with BLOCK 0, FILE is a directory in which they create and remove a name each.
//! For each line of input it prints the number of operations so far, the nanoseconds since it began,
//! and those of the longest operation that ended since the line before.

use std::fs::{self, File};
use std::io::{self, BufRead as _};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// Runs the load; `words` are its arguments.
///
/// # Errors
/// The wrong argument, or an error of the file.
pub(crate) fn main(words: &[String]) -> Result<(), String> {
    let [path, block, threads] = words else { return Err("load FILE BLOCK THREADS".into()) };
    let (Ok(block), Ok(threads)) = (block.parse::<u64>(), threads.parse::<u64>()) else {
        return Err("load takes numbers of bytes and of threads".into());
    };
    run(path, block, threads).map_err(|error| format!("{path}: {error}"))
}

/// The transfers of all threads.
#[derive(Default)]
struct LoadDone {
    number: AtomicU64,
    longest_nanos: AtomicU64,
}

impl LoadDone {
    /// Does an operation again and again.
    fn repeat(&self, mut operation: impl FnMut() -> io::Result<()>) {
        loop {
            let begun = Instant::now();
            if let Err(error) = operation() {
                eprintln!("a load ends: {error}");
                std::process::exit(1);
            }
            self.longest_nanos.fetch_max(begun.elapsed().as_nanos() as u64, Relaxed);
            self.number.fetch_add(1, Relaxed);
        }
    }
}

fn run(path: &str, block: u64, threads: u64) -> io::Result<()> {
    let done = Arc::new(LoadDone::default());
    for thread in 0..threads {
        let done = Arc::clone(&done);
        if block == 0 {
            let name = format!("{path}/{}-{thread}", std::process::id());
            let pair = move || {
                File::create(&name)?;
                fs::remove_file(&name)
            };
            std::thread::spawn(move || done.repeat(pair));
            continue;
        }
        let file = File::open(path)?;
        let blocks = file.metadata()?.len() / block;
        if blocks == 0 {
            return Err(io::Error::other("shorter than a block"));
        }
        let (mut bytes, mut random) = (vec![0; block as usize], thread + 1);
        let read = move || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            file.read_exact_at(&mut bytes, (random >> 33) % blocks * block)
        };
        std::thread::spawn(move || done.repeat(read));
    }
    let begun = Instant::now();
    for line in io::stdin().lock().lines() {
        line?;
        let (number, longest) = (done.number.load(Relaxed), done.longest_nanos.swap(0, Relaxed));
        println!("{number} {} {longest}", begun.elapsed().as_nanos());
    }
    Ok(())
}
