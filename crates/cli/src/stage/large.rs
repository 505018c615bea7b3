//! Large files, which several threads copy part by part.

use super::copy::{CopiedFile, CopyContext};
use super::{NameToCopy, Stage, Task};
use backing::{CopyError, Node, PartialFile, contents};
use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Files of at least this size are copied by several threads.
const LARGE_BYTES: u64 = 64 << 20;
/// Bytes that one thread copies at a time.
const PART_BYTES: u64 = 16 << 20;

/// A large file that is being copied.
pub(super) struct Large {
    name: NameToCopy,
    from: File,
    node: Node,
    partial: PartialFile,
    has_holes: bool,
    attempts_left: u32,
    /// Offset of the next part.
    next: AtomicU64,
    error: Mutex<Option<CopyError>>,
}

impl Stage {
    /// True if several threads copy the file.
    pub(super) fn is_large(&self, node: &Node) -> bool {
        self.options.jobs > 1 && node.size >= LARGE_BYTES
    }

    /// Begins a large file, adds tasks for the other threads, and copies parts.
    pub(super) fn begin_large(
        &self,
        name: NameToCopy,
        from: File,
        node: Node,
        context: &mut CopyContext,
        attempts: u32,
    ) -> Result<(), (NameToCopy, CopyError)> {
        let partial = PartialFile::new(&name.pair.to, node.mode()).and_then(|partial| {
            partial.file().set_len(node.size)?;
            Ok(partial)
        });
        let partial = match partial {
            Ok(partial) => partial,
            Err(error) => return Err((name, CopyError::Write(error))),
        };
        let large = Arc::new(Large {
            name,
            from,
            node,
            partial,
            has_holes: node.may_have_holes(),
            attempts_left: attempts - 1,
            next: AtomicU64::new(0),
            error: Mutex::new(None),
        });
        let helpers = (1..self.options.jobs).map(|_| Task::Help(Arc::clone(&large)));
        self.queue.push_first(helpers);
        self.help(large, context);
        Ok(())
    }

    /// Copies parts until none is left or a thread fails. The last thread commits the file.
    pub(super) fn help(&self, large: Arc<Large>, context: &mut CopyContext) {
        let set = |error| {
            let mut first = large.error.lock().unwrap_or_else(PoisonError::into_inner);
            first.get_or_insert(error);
            // No more parts are handed out.
            large.next.fetch_max(large.node.size, Ordering::Relaxed);
        };
        loop {
            let start = large.next.fetch_add(PART_BYTES, Ordering::Relaxed);
            if start >= large.node.size {
                break;
            }
            match has_data(&large, start) {
                Ok(true) => {}
                Ok(false) => continue,
                Err(error) => {
                    set(error);
                    break;
                }
            }
            let part = start..(start + PART_BYTES).min(large.node.size);
            let mut on = |bytes| {
                self.summary.bytes.fetch_add(bytes, Ordering::Relaxed);
            };
            let (from, to, holes) = (&large.from, large.partial.file(), large.has_holes);
            if let Err(error) = contents::copy(from, to, part, holes, &mut context.buffer, &mut on)
            {
                set(error);
                break;
            }
        }
        // `None` for all threads but the last.
        if let Some(large) = Arc::into_inner(large) {
            self.end_large(large, context);
        }
    }

    fn end_large(&self, large: Large, context: &mut CopyContext) {
        let Large { name, from, node, partial, attempts_left, error, .. } = large;
        let changed = match error.into_inner().unwrap_or_else(PoisonError::into_inner) {
            None => false,
            Some(CopyError::Changed) => true,
            Some(error) => {
                // Its space is free before the file is retried.
                drop(partial);
                return self.fail(&name, error);
            }
        };
        let failed = match Node::of(&from) {
            Ok(after) if !changed && after.is_as_written(&node) => {
                return self.copied(CopiedFile { name, from, node, partial }, context);
            }
            Ok(after) if attempts_left > 0 => {
                drop(partial);
                match self.begin_large(name, from, after, context, attempts_left) {
                    Ok(()) => return,
                    Err(failed) => failed,
                }
            }
            Ok(_) => (name, CopyError::Changed),
            Err(error) => (name, CopyError::Read(error)),
        };
        self.fail(&failed.0, failed.1);
    }
}

/// False if the part that begins at `start` is only a hole; then the next part is the one after the
/// hole.
fn has_data(large: &Large, start: u64) -> Result<bool, CopyError> {
    if !large.has_holes {
        return Ok(true);
    }
    let data = contents::data(&large.from, start..large.node.size).map_err(CopyError::Read)?;
    let next = data.map_or(large.node.size, |data| data.start);
    if next < start + PART_BYTES {
        return Ok(true);
    }
    large.next.fetch_max(next / PART_BYTES * PART_BYTES, Ordering::Relaxed);
    Ok(false)
}
