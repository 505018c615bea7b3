//! Copies one name: it is skipped, created, or copied to a partial file and committed.

use super::summary::count;
use super::{CopyOptions, NameToCopy, Stage};
use backing::{
    AttributesLost, CopyError, Dir, Kind, Node, PartialFile, RenameMode, contents, partial,
};
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes per read and write.
const BUFFER_BYTES: usize = 1 << 20;
/// Most copied files that are synced and committed together.
const BATCH_MAX: usize = 64;
/// Most bytes of copied files that are synced and committed together.
const BATCH_BYTES_MAX: u64 = 64 << 20;
/// Attempts to copy a file that changes meanwhile.
pub(super) const ATTEMPTS: u32 = 2;

/// The state of one copying thread.
pub(super) struct CopyContext {
    pub(super) buffer: Vec<u8>,
    /// Second buffer, to compare; empty without `--verify`.
    other: Vec<u8>,
    copied: Vec<CopiedFile>,
    bytes: u64,
}

/// A copied file that does not have its name yet.
pub(super) struct CopiedFile {
    pub(super) name: NameToCopy,
    pub(super) from: File,
    pub(super) node: Node,
    pub(super) partial: PartialFile,
}

impl CopyContext {
    pub(super) fn new(options: CopyOptions) -> CopyContext {
        let other = if options.is_verified { BUFFER_BYTES } else { 0 };
        let (buffer, other) = (vec![0; BUFFER_BYTES], vec![0; other]);
        CopyContext { buffer, other, copied: Vec::new(), bytes: 0 }
    }
}

/// Whether a file may replace an existing one of its name.
fn rename_mode(name: &NameToCopy) -> RenameMode {
    if name.is_there || name.pair.top.is_listed { RenameMode::Replace } else { RenameMode::New }
}

impl Stage {
    /// Copies one name.
    pub(super) fn name(&self, name: NameToCopy, context: &mut CopyContext) {
        count(&self.summary.begun);
        if let Err((name, error)) = self.try_name(name, context) {
            self.fail(&name, error);
        }
    }

    fn try_name(
        &self,
        name: NameToCopy,
        context: &mut CopyContext,
    ) -> Result<(), (NameToCopy, CopyError)> {
        if name.kind != Kind::File {
            return self.make(&name).map_err(|error| (name, error));
        }
        let opened = name.pair.from.file(&name.name);
        let opened = opened.and_then(|from| Ok((Node::of(&from)?, from)));
        match opened {
            Ok((node, _)) if node.kind != Kind::File => Err((name, CopyError::Changed)),
            Ok((node, _)) if node.links > 1 && self.hardlinks.is_another(&name, &node) => Ok(()),
            Ok((node, from)) => self.file(name, from, node, context),
            Err(error) => Err((name, CopyError::Read(error))),
        }
    }

    /// Copies a regular file, ignoring its hard links.
    pub(super) fn file(
        &self,
        name: NameToCopy,
        from: File,
        node: Node,
        context: &mut CopyContext,
    ) -> Result<(), (NameToCopy, CopyError)> {
        if self.is_copied(&name, &node) {
            count(&self.summary.skipped);
            self.hardlinks.committed(&node);
            return Ok(());
        }
        self.summary.bytes_begun.fetch_add(node.size, Ordering::Relaxed);
        if self.is_large(&node) {
            return self.begin_large(name, from, node, context, ATTEMPTS);
        }
        match self.copy_file(&name, &from, node, context) {
            Ok((partial, node)) => {
                self.copied(CopiedFile { name, from, node, partial }, context);
                Ok(())
            }
            Err(error) => Err((name, error)),
        }
    }

    /// True if the target already has the file.
    fn is_copied(&self, name: &NameToCopy, node: &Node) -> bool {
        let is_same = |there: Node| there.is_as_written(node);
        rename_mode(name) == RenameMode::Replace
            && !self.options.is_forced
            && name.pair.to.node(&name.name).is_ok_and(is_same)
    }

    fn copy_file(
        &self,
        name: &NameToCopy,
        from: &File,
        mut node: Node,
        context: &mut CopyContext,
    ) -> Result<(PartialFile, Node), CopyError> {
        for _ in 0..ATTEMPTS {
            let partial = PartialFile::new(&name.pair.to, node.mode()).map_err(CopyError::Write)?;
            let has_holes = node.may_have_holes();
            if has_holes {
                partial.file().set_len(node.size).map_err(CopyError::Write)?;
            }
            let mut on = |bytes| {
                self.summary.bytes.fetch_add(bytes, Ordering::Relaxed);
            };
            let (to, buffer) = (partial.file(), &mut context.buffer);
            let done = contents::copy(from, to, 0..node.size, has_holes, buffer, &mut on);
            match done {
                Ok(()) | Err(CopyError::Changed) => {}
                Err(error) => return Err(error),
            }
            let after = Node::of(from).map_err(CopyError::Read)?;
            if done.is_ok() && after.is_as_written(&node) {
                return Ok((partial, node));
            }
            node = after;
        }
        Err(CopyError::Changed)
    }

    /// Copies a regular file and commits it.
    pub(super) fn copy_now(
        &self,
        name: NameToCopy,
        from: File,
        node: Node,
        context: &mut CopyContext,
    ) -> Result<(), CopyError> {
        if self.is_copied(&name, &node) {
            count(&self.summary.skipped);
            return Ok(());
        }
        let (partial, node) = self.copy_file(&name, &from, node, context)?;
        let copied = CopiedFile { name, from, node, partial };
        self.set_metadata(&copied)?;
        self.commit(copied, context).map_err(|(_, error)| error)?;
        count(&self.summary.files);
        Ok(())
    }

    fn set_metadata(&self, copied: &CopiedFile) -> Result<(), CopyError> {
        let AttributesLost(is_lost) = copied.partial.set_metadata(&copied.from, &copied.node)?;
        if is_lost {
            count(&self.summary.without_attributes);
        }
        Ok(())
    }

    /// Sets the attributes of a copied file and commits it, at once or together with others that
    /// need a sync.
    pub(super) fn copied(&self, copied: CopiedFile, context: &mut CopyContext) {
        if let Err(error) = self.set_metadata(&copied) {
            drop(copied.partial);
            return self.fail(&copied.name, error);
        }
        context.bytes += copied.node.size;
        context.copied.push(copied);
        let is_full = context.copied.len() >= BATCH_MAX || context.bytes >= BATCH_BYTES_MAX;
        if !self.options.is_durable || is_full {
            self.settle(context);
        }
    }

    /// Syncs and commits all copied files.
    pub(super) fn settle(&self, context: &mut CopyContext) {
        context.bytes = 0;
        for copied in std::mem::take(&mut context.copied) {
            let node = copied.node;
            match self.commit(copied, context) {
                Ok(()) => {
                    count(&self.summary.files);
                    self.hardlinks.committed(&node);
                }
                Err((name, error)) => self.fail(&name, error),
            }
        }
    }

    fn commit(
        &self,
        copied: CopiedFile,
        context: &mut CopyContext,
    ) -> Result<(), (NameToCopy, CopyError)> {
        let CopiedFile { name, from, node, partial } = copied;
        let commit = || {
            if self.options.is_durable {
                partial.sync()?;
            }
            if self.options.is_verified {
                // The data is to be read from the device, not from the page cache.
                contents::forget(partial.file());
                let buffers = (&mut *context.buffer, &mut *context.other);
                contents::compare(&from, partial.file(), 0..node.size, buffers)?;
            }
            partial.commit(&name.name, rename_mode(&name))
        };
        let committed = commit();
        committed.map_err(|error| (name, error))
    }

    /// Creates a symbolic link or special file.
    pub(super) fn make(&self, name: &NameToCopy) -> Result<(), CopyError> {
        let (from, to): (&Dir, &Arc<Dir>) = (&name.pair.from, &name.pair.to);
        let node = from.node(&name.name).map_err(CopyError::Read)?;
        if self.is_copied(name, &node) {
            count(&self.summary.skipped);
            return Ok(());
        }
        match node.kind {
            Kind::Link => partial::link(from, &node, &name.name, to, rename_mode(name))?,
            Kind::Special => partial::special(&node, &name.name, to, rename_mode(name))?,
            // It has changed its type since it was listed.
            Kind::File | Kind::Dir => return Err(CopyError::Changed),
        }
        count(&self.summary.files);
        Ok(())
    }
}
