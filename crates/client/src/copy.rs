//! Copying between two open files of the instance (`copy_file_range`, `sendfile`).

use core::sync::atomic::Ordering::Relaxed;
use wire::attributes::want;
use wire::errno::{Errno, Result};
use wire::limits::FILE_BYTES_MAX;

use crate::open_files::{Open, o};
use crate::read::Position;
use crate::{Client, OfdIndex};

/// Bytes copied at once: small enough for the stack, and it stays in the nearest cache.
const STEP_BYTES: usize = 8 * 1024;

fn start(open: &Open<'_>, position: Position) -> u64 {
    match position {
        Position::Current => open.words.offset.load(Relaxed),
        Position::At(offset) => offset,
    }
}

fn advance(open: &Open<'_>, position: Position, to: u64) {
    if position == Position::Current {
        open.words.offset.store(to, Relaxed);
    }
}

impl Client {
    /// Copies up to `length` bytes; the number copied. Offsets with `Position::Current` move.
    ///
    /// # Errors
    /// As `copy_file_range(2)`.
    pub fn copy_range(
        &self,
        from: OfdIndex,
        from_at: Position,
        to: OfdIndex,
        to_at: Position,
        length: u64,
    ) -> Result<u64> {
        let source = self.open_for(from, want::READ)?;
        let sink = self.open_for(to, want::WRITE)?;
        if sink.flags() & o::APPEND != 0 {
            return Err(Errno::EBADF);
        }
        // Both offsets are held, in the order of their rows, so that two copies against each
        // other do not wait for each other; one file's offset only once.
        let (first, second) = if from.0 <= to.0 { (&source, &sink) } else { (&sink, &source) };
        let first_guard = first.words.lock_offset();
        let second_guard = (from != to).then(|| second.words.lock_offset());
        let (read, write) = (start(&source, from_at), start(&sink, to_at));
        let limit = FILE_BYTES_MAX.saturating_sub(read.max(write));
        let length = length.min(limit);
        let overlaps = read < write.saturating_add(length) && write < read.saturating_add(length);
        if source.inode == sink.inode && overlaps {
            return Err(Errno::EINVAL);
        }
        let copied = self.copy_bytes(&source, read, &sink, write, length)?;
        advance(&source, from_at, read.saturating_add(copied));
        advance(&sink, to_at, write.saturating_add(copied));
        drop(second_guard);
        drop(first_guard);
        Ok(copied)
    }

    fn copy_bytes(
        &self,
        source: &Open<'_>,
        read: u64,
        sink: &Open<'_>,
        write: u64,
        length: u64,
    ) -> Result<u64> {
        let mut bytes = [0; STEP_BYTES];
        let mut done = 0u64;
        while done < length {
            let left = usize::try_from(length.saturating_sub(done)).unwrap_or(usize::MAX);
            let room = bytes.get_mut(..left.min(STEP_BYTES)).ok_or(Errno::EIO)?;
            let step = self.read_at(source, read.saturating_add(done), room).and_then(|count| {
                let bytes = room.get(..count).unwrap_or(&[]);
                self.write_at(sink, write.saturating_add(done), bytes)
            });
            match step {
                Ok(0) => break,
                Ok(count) => done = done.saturating_add(count as u64),
                Err(_) if done > 0 => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(done)
    }
}
