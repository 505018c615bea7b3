//! Contents of files: copied by ranges, so that several threads can do it, holes left out.

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

/// Blocks of zeros of this size are holes again, in files that have holes.
const BLOCK_BYTES: usize = 4096;

/// Which side of a copy failed.
#[derive(Debug)]
pub enum Trouble {
    /// What is copied can not be read.
    Read(io::Error),
    /// The copy can not be written.
    Write(io::Error),
    /// What is copied changed meanwhile.
    Changed,
    /// The copy does not read as it was written, at this offset.
    Different(u64),
    /// The name is another file's for this file system, as where upper and lower case are one.
    Taken,
}

impl fmt::Display for Trouble {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Read(error) => write!(to, "can not be read: {error}"),
            Trouble::Write(error) => write!(to, "can not be written: {error}"),
            Trouble::Changed => write!(to, "is not copied: it changes while it is copied"),
            Trouble::Different(offset) => {
                write!(to, "is not copied: the copy differs at byte {offset}")
            }
            Trouble::Taken => {
                let why = "another file has the name there, or it was made meanwhile";
                write!(to, "is not copied: {why}")
            }
        }
    }
}

/// The next bytes within `range` that are no hole; `None` if there are none.
///
/// # Errors
/// As of `lseek`.
pub fn data(file: &File, range: Range<u64>) -> io::Result<Option<Range<u64>>> {
    if range.is_empty() {
        return Ok(None);
    }
    let to = |offset: u64| i64::try_from(offset).unwrap_or(i64::MAX);
    let start = match rustix::fs::seek(file, SeekFrom::Data(to(range.start))) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        // A file system that does not know of holes.
        Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(Some(range)),
        Err(errno) => return Err(errno.into()),
    };
    if start >= range.end {
        return Ok(None);
    }
    let end = match rustix::fs::seek(file, SeekFrom::Hole(to(start))) {
        Ok(end) => end.min(range.end),
        // Cut meanwhile: who reads finds out.
        Err(_) => range.end,
    };
    Ok(Some(start.max(range.start)..end))
}

/// Copies what is in `range`, which ends no later than the file, without its holes if it
/// `may_have_holes`; tells `on` of bytes as they are done. The copy has its size already.
///
/// # Errors
/// The side that failed; `Changed` if the file ends before the range.
pub fn copy(
    from: &File,
    to: &File,
    range: Range<u64>,
    may_have_holes: bool,
    buffer: &mut [u8],
    on: &mut dyn FnMut(u64),
) -> Result<(), Trouble> {
    let mut left = range;
    while !left.is_empty() {
        let part = match may_have_holes {
            true => data(from, left.clone()).map_err(Trouble::Read)?,
            false => Some(left.clone()),
        };
        let Some(part) = part else { return Ok(()) };
        let mut at = part.start;
        while at < part.end {
            let room = room(buffer, part.end - at);
            let read = read_at(from, room, at).map_err(Trouble::Read)?;
            let bytes = room.get(..read).filter(|bytes| !bytes.is_empty());
            let bytes = bytes.ok_or(Trouble::Changed)?;
            match may_have_holes {
                true => write_sparsely(to, bytes, at),
                false => to.write_all_at(bytes, at),
            }
            .map_err(Trouble::Write)?;
            at += read as u64;
            on(read as u64);
        }
        left.start = part.end;
    }
    Ok(())
}

/// Writes all but blocks of zeros: who tells of holes may know them by larger units than the other side.
fn write_sparsely(to: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    let is_zero = |block: &[u8]| block.iter().all(|&byte| byte == 0);
    let mut done = 0;
    for run in
        bytes.chunks(BLOCK_BYTES).collect::<Vec<_>>().chunk_by(|a, b| is_zero(a) == is_zero(b))
    {
        let length: usize = run.iter().map(|block| block.len()).sum();
        let part = bytes.get(done..done + length).unwrap_or_default();
        if !is_zero(part) {
            to.write_all_at(part, at + done as u64)?;
        }
        done += length;
    }
    Ok(())
}

/// Asks the kernel to keep nothing of a file in memory, so that what is read comes from the device.
pub fn forget(file: &File) {
    let _ = rustix::fs::fadvise(file, 0, 0, rustix::fs::Advice::DontNeed);
}

/// Compares what is in `range` of a file and its copy, byte for byte, holes of both left out.
///
/// # Errors
/// The side that can not be read; `Different`.
pub fn compare(
    from: &File,
    to: &File,
    range: Range<u64>,
    buffers: (&mut [u8], &mut [u8]),
) -> Result<(), Trouble> {
    let mut left = range;
    while !left.is_empty() {
        let one = data(from, left.clone()).map_err(Trouble::Read)?;
        let other = data(to, left.clone()).map_err(Trouble::Write)?;
        let start = one.iter().chain(&other).map(|part| part.start).min();
        let Some(mut at) = start else { return Ok(()) };
        // To where the nearer one ends: what is beyond is looked at anew.
        let ends = one.iter().chain(&other).map(|part| part.end).min();
        let end = ends.unwrap_or(left.end).max(at + 1);
        while at < end {
            let first = room(buffers.0, end - at);
            let read = read_at(from, first, at).map_err(Trouble::Read)?;
            let second = room(buffers.1, read as u64);
            to.read_exact_at(second, at).map_err(Trouble::Write)?;
            let same = |(a, b): (&u8, &u8)| a == b;
            if read == 0 || !first.iter().zip(second.iter()).all(same) {
                return Err(Trouble::Different(at));
            }
            at += read as u64;
        }
        left.start = at;
    }
    Ok(())
}

/// As much of a buffer as is of use.
fn room(buffer: &mut [u8], bytes: u64) -> &mut [u8] {
    let length = usize::try_from(bytes).unwrap_or(usize::MAX).min(buffer.len());
    buffer.get_mut(..length).unwrap_or_default()
}

fn read_at(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    loop {
        match file.read_at(buffer, at) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt as _;

    const TIB: u64 = 1 << 40;

    fn sparse(parts: &[(u64, &[u8])], size: u64) -> File {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(size).expect("sized");
        for (at, bytes) in parts {
            file.write_all_at(bytes, *at).expect("written");
        }
        file
    }

    fn copied(from: &File, size: u64, may_have_holes: bool) -> (File, u64) {
        let to = sparse(&[], size);
        let mut bytes = 0;
        let mut buffer = vec![0; 1 << 20];
        let mut on = |more| bytes += more;
        copy(from, &to, 0..size, may_have_holes, &mut buffer, &mut on).expect("copied");
        (to, bytes)
    }

    #[test]
    fn holes_stay_holes_also_in_a_file_of_a_tebibyte() {
        let parts: [(u64, &[u8]); 3] = [(0, b"begin"), (TIB / 2, b"middle"), (TIB - 3, b"end")];
        let from = sparse(&parts, TIB);
        let (to, bytes) = copied(&from, TIB, true);
        assert!(bytes < 1 << 20, "{bytes} bytes of a hole were copied");
        assert!(to.metadata().expect("stat").blocks() * 512 < 1 << 20);
        let (mut one, mut other) = (vec![0; 1 << 20], vec![0; 1 << 20]);
        compare(&from, &to, 0..TIB, (&mut one, &mut other)).expect("the same");
        to.write_all_at(b"x", TIB / 4).expect("written");
        let found = compare(&from, &to, 0..TIB, (&mut one, &mut other)).expect_err("changed");
        assert!(matches!(found, Trouble::Different(at) if at <= TIB / 4), "{found}");
    }

    #[test]
    fn zeros_of_a_file_with_holes_become_holes() {
        let mut bytes = vec![0; 1 << 20];
        bytes[500_000] = 7;
        let from = sparse(&[(4096, &bytes)], 4 << 20);
        let (to, _) = copied(&from, 4 << 20, true);
        assert!(to.metadata().expect("stat").blocks() * 512 <= 8192);
        let (mut one, mut other) = (vec![0; 1 << 20], vec![0; 1 << 20]);
        compare(&from, &to, 0..4 << 20, (&mut one, &mut other)).expect("the same");
    }

    #[test]
    fn ranges_make_the_whole() {
        let bytes: Vec<u8> = (0..100_000_u32).map(|n| (n % 251) as u8).collect();
        let from = sparse(&[(0, &bytes), (300_000, &bytes)], 450_000);
        let to = sparse(&[], 450_000);
        let mut buffer = vec![0; 7777];
        for start in (0..450_000_u32).step_by(33_333).rev().map(u64::from) {
            let range = start..(start + 33_333).min(450_000);
            copy(&from, &to, range, true, &mut buffer, &mut |_| {}).expect("copied");
        }
        let (mut one, mut other) = (vec![0; 5000], vec![0; 5000]);
        compare(&from, &to, 0..450_000, (&mut one, &mut other)).expect("the same");
    }

    #[test]
    fn a_file_that_is_cut_is_told() {
        let from = sparse(&[(0, &[1; 5000])], 5000);
        from.set_len(4000).expect("cut");
        let to = sparse(&[], 5000);
        let found = copy(&from, &to, 0..5000, false, &mut [0; 999], &mut |_| {});
        assert!(matches!(found, Err(Trouble::Changed)), "{found:?}");
    }
}
