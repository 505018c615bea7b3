//! Files that found no space while others were copied. One of the others may have taken all of it,
//! run out of space itself, and been removed. So these files are copied again after all others, one
//! at a time, the smallest first, until one does not fit.

use super::copy::CopyContext;
use super::hardlinks::{PendingName, open};
use super::{NameToCopy, Pair, Stage};
use backing::{CopyError, Kind, Node};
use rustix::io::Errno;
use std::sync::{Arc, Mutex, PoisonError};

/// Most names that are retried.
const RETRIES_MAX: usize = 1 << 16;

/// Names that found no space, and their errors.
#[derive(Default)]
pub(super) struct RetryQueue {
    names: Mutex<Vec<(PendingName, CopyError)>>,
}

fn is_out_of_space(error: &CopyError) -> bool {
    let errno = match error {
        CopyError::Write(error) => Errno::from_io_error(error),
        _ => None,
    };
    matches!(errno, Some(Errno::NOSPC | Errno::DQUOT))
}

impl Stage {
    /// Records that a name is not copied. It is retried at the end if there was no space for it.
    pub(super) fn fail(&self, name: &NameToCopy, error: CopyError) {
        if is_out_of_space(&error) {
            let mut names = self.retry.names.lock().unwrap_or_else(PoisonError::into_inner);
            if names.len() < RETRIES_MAX {
                return names.push((PendingName::of(name), error));
            }
        }
        self.summary.fail(&name.shown(&error), &error);
    }

    /// Retries the names that found no space, after all others.
    pub(super) fn retry_all(&self, context: &mut CopyContext) {
        let names =
            std::mem::take(&mut *self.retry.names.lock().unwrap_or_else(PoisonError::into_inner));
        let mut last = None;
        let mut sized: Vec<(u64, (PendingName, CopyError))> = names
            .into_iter()
            .map(|(name, error)| {
                let pair = open(&name.top, &name.path, &mut last);
                let node =
                    pair.and_then(|pair| pair.from.node(&name.name).map_err(CopyError::Read));
                (node.map_or(u64::MAX, |node| node.size), (name, error))
            })
            .collect();
        sized.sort_by_key(|&(size, _)| size);
        let mut is_full = false;
        for (size, (name, error)) in sized {
            let outcome =
                if is_full { Err(error) } else { self.copy_alone(&name, &mut last, context) };
            if let Err(error) = outcome {
                is_full |= is_out_of_space(&error) && size > 0;
                self.summary.fail(&name.shown(&error), &error);
            }
        }
    }

    fn copy_alone(
        &self,
        name: &PendingName,
        last: &mut Option<Arc<Pair>>,
        context: &mut CopyContext,
    ) -> Result<(), CopyError> {
        let pair = open(&name.top, &name.path, last)?;
        let node = pair.from.node(&name.name).map_err(CopyError::Read)?;
        let name = name.name(pair, node.kind);
        if node.kind != Kind::File {
            return self.make(&name);
        }
        let from = name.pair.from.file(&name.name).map_err(CopyError::Read)?;
        let node = Node::of(&from).map_err(CopyError::Read)?;
        check_space(&name, &node)?;
        self.copy_now(name, from, node, context)?;
        self.hardlinks.committed(&node);
        Ok(())
    }
}

/// Refuses a file that is larger than the free space, before it is copied.
fn check_space(name: &NameToCopy, node: &Node) -> Result<(), CopyError> {
    if node.may_have_holes() {
        return Ok(());
    }
    // If the free space cannot be read, the copy is tried.
    let is_short = rustix::fs::fstatvfs(&*name.pair.to)
        .is_ok_and(|space| space.f_bavail.saturating_mul(space.f_frsize) < node.size);
    if is_short { Err(CopyError::Write(Errno::NOSPC.into())) } else { Ok(()) }
}
