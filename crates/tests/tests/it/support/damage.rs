//! Damage to the SSD file and the log of a daemon.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// Changes a bit in each page with data that `is_chosen` names by its number, of the SSD file in a
/// daemon's directory of data; how many.
pub(crate) fn damage(data: &Path, is_chosen: impl Fn(u64) -> bool) -> usize {
    let file = OpenOptions::new().read(true).write(true).open(data.join("ssd")).expect("opened");
    // The last page says whose file it is.
    let pages = file.metadata().expect("its length").len() / 4096 - 1;
    let mut count = 0;
    for page in (0..pages).filter(|page| is_chosen(*page)) {
        let mut bytes = [0; 4096];
        file.read_exact_at(&mut bytes, page * 4096).expect("read");
        if bytes.iter().any(|byte| *byte != 0) {
            bytes[700] ^= 1;
            file.write_all_at(&bytes, page * 4096).expect("written");
            count += 1;
        }
    }
    count
}

/// Changes the byte at `at`, or the last one before it that is not zero: zeros may be the fill behind a
/// record of a log, and a change of that damages nothing.
pub(crate) fn flip(bytes: &mut [u8], at: usize) {
    let at = bytes[..=at].iter().rposition(|byte| *byte != 0).expect("contents");
    bytes[at] ^= 0x55;
}
