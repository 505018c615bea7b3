//! Copying and comparing file contents by range, so that several threads can share a file. Holes
//! are skipped.

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

/// Zero blocks of this size stay holes in the copy of a sparse file.
const BLOCK_BYTES: usize = 4096;

/// Why a copy failed.
#[derive(Debug)]
pub enum CopyError {
    /// The source cannot be read.
    Read(io::Error),
    /// The copy cannot be written.
    Write(io::Error),
    /// The source changed during the copy.
    Changed,
    /// The copy differs from the source at this offset.
    Different(u64),
    /// Another file has the name, for instance because the file system ignores case.
    Taken,
}

impl fmt::Display for CopyError {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CopyError::Read(error) => write!(to, "cannot be read: {error}"),
            CopyError::Write(error) => write!(to, "cannot be written: {error}"),
            CopyError::Changed => write!(to, "is not copied: it changes while it is copied"),
            CopyError::Different(offset) => {
                write!(to, "is not copied: the copy differs at byte {offset}")
            }
            CopyError::Taken => {
                let why = "another file has the name, or was created in the meantime";
                write!(to, "is not copied: {why}")
            }
        }
    }
}

/// The next data range within `range`; `None` if the rest is a hole.
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
        // The file system does not report holes.
        Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(Some(range)),
        Err(errno) => return Err(errno.into()),
    };
    if start >= range.end {
        return Ok(None);
    }
    let end = match rustix::fs::seek(file, SeekFrom::Hole(to(start))) {
        Ok(end) => end.min(range.end),
        // The file was truncated in the meantime: the read detects that.
        Err(_) => range.end,
    };
    Ok(Some(start.max(range.start)..end))
}

/// Copies the bytes in `range`, which does not exceed the file. Skips holes if the file
/// `may_have_holes`. Calls `on` with the number of bytes after each write. The copy must already
/// have its final size.
///
/// # Errors
/// Which side failed; `Changed` if the file ends before the range.
pub fn copy(
    from: &File,
    to: &File,
    range: Range<u64>,
    may_have_holes: bool,
    buffer: &mut [u8],
    on: &mut dyn FnMut(u64),
) -> Result<(), CopyError> {
    let mut left = range;
    while !left.is_empty() {
        let part = match may_have_holes {
            true => data(from, left.clone()).map_err(CopyError::Read)?,
            false => Some(left.clone()),
        };
        let Some(part) = part else { return Ok(()) };
        let mut at = part.start;
        while at < part.end {
            let space = prefix_of(buffer, part.end - at);
            let read = read_at(from, space, at).map_err(CopyError::Read)?;
            let bytes = space.get(..read).filter(|bytes| !bytes.is_empty());
            let bytes = bytes.ok_or(CopyError::Changed)?;
            match may_have_holes {
                true => write_sparsely(to, bytes, at),
                false => to.write_all_at(bytes, at),
            }
            .map_err(CopyError::Write)?;
            at += read as u64;
            on(read as u64);
        }
        left.start = part.end;
    }
    Ok(())
}

/// Writes all but zero blocks: the source may report holes in larger units than the destination
/// uses.
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

/// Asks the kernel to drop its cached pages of a file, so that the next read comes from the device.
pub fn forget(file: &File) {
    let _ = rustix::fs::fadvise(file, 0, 0, rustix::fs::Advice::DontNeed);
}

/// Compares a range of a file with its copy byte by byte, skipping what is a hole in both.
///
/// # Errors
/// The side that cannot be read; `Different`.
pub fn compare(
    from: &File,
    to: &File,
    range: Range<u64>,
    buffers: (&mut [u8], &mut [u8]),
) -> Result<(), CopyError> {
    let mut left = range;
    while !left.is_empty() {
        let one = data(from, left.clone()).map_err(CopyError::Read)?;
        let other = data(to, left.clone()).map_err(CopyError::Write)?;
        let start = one.iter().chain(&other).map(|part| part.start).min();
        let Some(mut at) = start else { return Ok(()) };
        // Up to the end of the shorter data range; the loop looks again from there.
        let ends = one.iter().chain(&other).map(|part| part.end).min();
        let end = ends.unwrap_or(left.end).max(at + 1);
        while at < end {
            let first = prefix_of(buffers.0, end - at);
            let read = read_at(from, first, at).map_err(CopyError::Read)?;
            let second = prefix_of(buffers.1, read as u64);
            to.read_exact_at(second, at).map_err(CopyError::Write)?;
            let same = |(a, b): (&u8, &u8)| a == b;
            if read == 0 || !first.iter().zip(second.iter()).all(same) {
                return Err(CopyError::Different(at));
            }
            at += read as u64;
        }
        left.start = at;
    }
    Ok(())
}

/// The first `bytes` of a buffer, or all of it if it is smaller.
fn prefix_of(buffer: &mut [u8], bytes: u64) -> &mut [u8] {
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
    fn holes_stay_holes_in_a_file_of_one_tebibyte() {
        let parts: [(u64, &[u8]); 3] = [(0, b"begin"), (TIB / 2, b"middle"), (TIB - 3, b"end")];
        let from = sparse(&parts, TIB);
        let (to, bytes) = copied(&from, TIB, true);
        assert!(bytes < 1 << 20, "{bytes} bytes of a hole were copied");
        assert!(to.metadata().expect("stat").blocks() * 512 < 1 << 20);
        let (mut one, mut other) = (vec![0; 1 << 20], vec![0; 1 << 20]);
        compare(&from, &to, 0..TIB, (&mut one, &mut other)).expect("the same");
        to.write_all_at(b"x", TIB / 4).expect("written");
        let found = compare(&from, &to, 0..TIB, (&mut one, &mut other)).expect_err("changed");
        assert!(matches!(found, CopyError::Different(at) if at <= TIB / 4), "{found}");
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
    fn ranges_add_up_to_the_whole_file() {
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
    fn a_truncated_source_is_reported() {
        let from = sparse(&[(0, &[1; 5000])], 5000);
        from.set_len(4000).expect("cut");
        let to = sparse(&[], 5000);
        let found = copy(&from, &to, 0..5000, false, &mut [0; 999], &mut |_| {});
        assert!(matches!(found, Err(CopyError::Changed)), "{found:?}");
    }
}
