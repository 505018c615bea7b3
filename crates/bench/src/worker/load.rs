//! A load that goes on until its input ends: `load FILE BLOCK THREADS`. Threads read blocks at random
//! places of a file. For each line of input it prints the blocks read so far and the nanoseconds since it
//! began.

use std::fs::File;
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
    let number = |word: &String| word.parse::<u64>().ok().filter(|number| *number > 0);
    let (Some(block), Some(threads)) = (number(block), number(threads)) else {
        return Err("load takes numbers above 0".into());
    };
    run(path, block, threads).map_err(|error| format!("{path}: {error}"))
}

fn run(path: &str, block: u64, threads: u64) -> io::Result<()> {
    let file = Arc::new(File::open(path)?);
    let blocks = (file.metadata()?.len() / block).max(1);
    let done = Arc::new(AtomicU64::new(0));
    for thread in 0..threads {
        let (file, done) = (Arc::clone(&file), Arc::clone(&done));
        std::thread::spawn(move || {
            let mut bytes = vec![0; block as usize];
            let mut random = thread + 1;
            loop {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let at = (random >> 33) % blocks * block;
                if let Err(error) = file.read_exact_at(&mut bytes, at) {
                    eprintln!("a load ends: {error}");
                    return;
                }
                done.fetch_add(1, Relaxed);
            }
        });
    }
    let begun = Instant::now();
    for line in io::stdin().lock().lines() {
        line?;
        println!("{} {}", done.load(Relaxed), begun.elapsed().as_nanos());
    }
    Ok(())
}
