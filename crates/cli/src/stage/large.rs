//! A file that several threads copy, each the next part of it.

use super::copy::{Kit, Ready};
use super::{Name, Stage, Task};
use below::{Draft, Node, Trouble, contents};
use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Files from here on are copied by several threads.
const LARGE_BYTES: u64 = 64 << 20;
/// Bytes that one thread copies before it asks for more.
const PART_BYTES: u64 = 16 << 20;

/// The file.
pub(super) struct Large {
    name: Name,
    from: File,
    node: Node,
    draft: Draft,
    has_holes: bool,
    attempts_left: u32,
    /// Where the next part begins.
    next: AtomicU64,
    trouble: Mutex<Option<Trouble>>,
}

impl Stage {
    /// True for a file that is worth it.
    pub(super) fn is_large(&self, node: &Node) -> bool {
        self.manner.jobs > 1 && node.size >= LARGE_BYTES
    }

    /// Begins one, calls the others to help, and helps.
    pub(super) fn begin_large(
        &self,
        name: Name,
        from: File,
        node: Node,
        kit: &mut Kit,
        attempts: u32,
    ) -> Result<(), (Name, Trouble)> {
        let draft = Draft::new(&name.pair.to, node.mode()).and_then(|draft| {
            draft.file().set_len(node.size)?;
            Ok(draft)
        });
        let draft = match draft {
            Ok(draft) => draft,
            Err(error) => return Err((name, Trouble::Write(error))),
        };
        let large = Arc::new(Large {
            name,
            from,
            node,
            draft,
            has_holes: node.may_have_holes(),
            attempts_left: attempts - 1,
            next: AtomicU64::new(0),
            trouble: Mutex::new(None),
        });
        let helpers = (1..self.manner.jobs).map(|_| Task::Help(Arc::clone(&large)));
        self.queue.push_first(helpers);
        self.help(large, kit);
        Ok(())
    }

    /// Copies parts until there is none, or somebody failed. Who is the last brings the file to its name.
    pub(super) fn help(&self, large: Arc<Large>, kit: &mut Kit) {
        let set = |trouble| {
            let mut first = large.trouble.lock().unwrap_or_else(PoisonError::into_inner);
            first.get_or_insert(trouble);
            // Nothing more is handed out.
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
                Err(trouble) => {
                    set(trouble);
                    break;
                }
            }
            let part = start..(start + PART_BYTES).min(large.node.size);
            let mut on = |bytes| {
                self.tally.bytes.fetch_add(bytes, Ordering::Relaxed);
            };
            let (from, to, holes) = (&large.from, large.draft.file(), large.has_holes);
            if let Err(trouble) = contents::copy(from, to, part, holes, &mut kit.buffer, &mut on) {
                set(trouble);
                break;
            }
        }
        // None for all but the last.
        if let Some(large) = Arc::into_inner(large) {
            self.end_large(large, kit);
        }
    }

    fn end_large(&self, large: Large, kit: &mut Kit) {
        let Large { name, from, node, draft, attempts_left, trouble, .. } = large;
        let changed = match trouble.into_inner().unwrap_or_else(PoisonError::into_inner) {
            None => false,
            Some(Trouble::Changed) => true,
            Some(trouble) => {
                // Its room is free before it is tried again.
                drop(draft);
                return self.fail(&name, trouble);
            }
        };
        let failed = match Node::of(&from) {
            Ok(after) if !changed && after.is_as_written(&node) => {
                return self.ready(Ready { name, from, node, draft }, kit);
            }
            Ok(after) if attempts_left > 0 => {
                drop(draft);
                match self.begin_large(name, from, after, kit, attempts_left) {
                    Ok(()) => return,
                    Err(failed) => failed,
                }
            }
            Ok(_) => (name, Trouble::Changed),
            Err(error) => (name, Trouble::Read(error)),
        };
        self.fail(&failed.0, failed.1);
    }
}

/// False if there is nothing but a hole in the part that begins at `start`; then the next part is one
/// behind the hole.
fn has_data(large: &Large, start: u64) -> Result<bool, Trouble> {
    if !large.has_holes {
        return Ok(true);
    }
    let data = contents::data(&large.from, start..large.node.size).map_err(Trouble::Read)?;
    let next = data.map_or(large.node.size, |data| data.start);
    if next < start + PART_BYTES {
        return Ok(true);
    }
    large.next.fetch_max(next / PART_BYTES * PART_BYTES, Ordering::Relaxed);
    Ok(false)
}
