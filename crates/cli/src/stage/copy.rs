//! What becomes of one name: skipped, made, or copied and brought to its place.

use super::tally::count;
use super::{Manner, Name, Stage};
use below::{Draft, Folder, Kind, Landing, Lost, Node, Trouble, contents, draft};
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes that are read and written at once.
const BUFFER_BYTES: usize = 1 << 20;
/// Files that wait for the device together.
const READY_MAX: usize = 64;
/// Bytes of files that wait for the device together.
const READY_BYTES_MAX: u64 = 64 << 20;
/// A file that changes is copied so often.
pub(super) const ATTEMPTS: u32 = 2;

/// What one thread has of its own.
pub(super) struct Kit {
    pub(super) buffer: Vec<u8>,
    /// To compare, if that is wanted.
    other: Vec<u8>,
    ready: Vec<Ready>,
    bytes: u64,
}

/// A file that is copied and not yet under its name.
pub(super) struct Ready {
    pub(super) name: Name,
    pub(super) from: File,
    pub(super) node: Node,
    pub(super) draft: Draft,
}

impl Kit {
    pub(super) fn new(manner: Manner) -> Kit {
        let other = if manner.is_verified { BUFFER_BYTES } else { 0 };
        let (buffer, other) = (vec![0; BUFFER_BYTES], vec![0; other]);
        Kit { buffer, other, ready: Vec::new(), bytes: 0 }
    }
}

/// What a name may be for what comes under it.
fn landing(name: &Name) -> Landing {
    if name.is_there || name.pair.top.is_listed { Landing::Replace } else { Landing::New }
}

impl Stage {
    /// Copies one name.
    pub(super) fn name(&self, name: Name, kit: &mut Kit) {
        if let Err((name, trouble)) = self.try_name(name, kit) {
            self.fail(&name, trouble);
        }
    }

    fn try_name(&self, name: Name, kit: &mut Kit) -> Result<(), (Name, Trouble)> {
        if name.kind != Kind::File {
            return self.make(&name).map_err(|trouble| (name, trouble));
        }
        let opened = name.pair.from.file(&name.name);
        let opened = opened.and_then(|from| Ok((Node::of(&from)?, from)));
        match opened {
            Ok((node, _)) if node.kind != Kind::File => Err((name, Trouble::Changed)),
            Ok((node, _)) if node.links > 1 && self.twins.is_another(&name, &node) => Ok(()),
            Ok((node, from)) => self.file(name, from, node, kit),
            Err(error) => Err((name, Trouble::Read(error))),
        }
    }

    /// Copies a regular file, whatever other names it has.
    pub(super) fn file(
        &self,
        name: Name,
        from: File,
        node: Node,
        kit: &mut Kit,
    ) -> Result<(), (Name, Trouble)> {
        if self.is_copied(&name, &node) {
            count(&self.tally.skipped);
            self.twins.landed(&node);
            return Ok(());
        }
        if self.is_large(&node) {
            return self.begin_large(name, from, node, kit, ATTEMPTS);
        }
        match self.copy_file(&name, &from, node, kit) {
            Ok((draft, node)) => {
                self.ready(Ready { name, from, node, draft }, kit);
                Ok(())
            }
            Err(trouble) => Err((name, trouble)),
        }
    }

    /// True if the copy is there.
    fn is_copied(&self, name: &Name, node: &Node) -> bool {
        let is_same = |there: Node| there.is_as_written(node);
        landing(name) == Landing::Replace
            && !self.manner.is_forced
            && name.pair.to.node(&name.name).is_ok_and(is_same)
    }

    fn copy_file(
        &self,
        name: &Name,
        from: &File,
        mut node: Node,
        kit: &mut Kit,
    ) -> Result<(Draft, Node), Trouble> {
        for _ in 0..ATTEMPTS {
            let draft = Draft::new(&name.pair.to, node.mode()).map_err(Trouble::Write)?;
            let has_holes = node.may_have_holes();
            if has_holes {
                draft.file().set_len(node.size).map_err(Trouble::Write)?;
            }
            let mut on = |bytes| {
                self.tally.bytes.fetch_add(bytes, Ordering::Relaxed);
            };
            let (to, buffer) = (draft.file(), &mut kit.buffer);
            let done = contents::copy(from, to, 0..node.size, has_holes, buffer, &mut on);
            match done {
                Ok(()) | Err(Trouble::Changed) => {}
                Err(trouble) => return Err(trouble),
            }
            let after = Node::of(from).map_err(Trouble::Read)?;
            if done.is_ok() && after.is_as_written(&node) {
                return Ok((draft, node));
            }
            node = after;
        }
        Err(Trouble::Changed)
    }

    /// Copies a regular file whole; when it is done the file has its name.
    pub(super) fn copy_now(
        &self,
        name: Name,
        from: File,
        node: Node,
        kit: &mut Kit,
    ) -> Result<(), Trouble> {
        if self.is_copied(&name, &node) {
            count(&self.tally.skipped);
            return Ok(());
        }
        let (draft, node) = self.copy_file(&name, &from, node, kit)?;
        let ready = Ready { name, from, node, draft };
        self.dress(&ready)?;
        self.land(ready, kit).map_err(|(_, trouble)| trouble)?;
        count(&self.tally.files);
        Ok(())
    }

    fn dress(&self, ready: &Ready) -> Result<(), Trouble> {
        let Lost(is_lost) = ready.draft.dress(&ready.from, &ready.node)?;
        if is_lost {
            count(&self.tally.bare);
        }
        Ok(())
    }

    /// A file that is copied gets its attributes, and its name: at once, or with others that wait for the
    /// device.
    pub(super) fn ready(&self, ready: Ready, kit: &mut Kit) {
        if let Err(trouble) = self.dress(&ready) {
            drop(ready.draft);
            return self.fail(&ready.name, trouble);
        }
        kit.bytes += ready.node.size;
        kit.ready.push(ready);
        let is_full = kit.ready.len() >= READY_MAX || kit.bytes >= READY_BYTES_MAX;
        if !self.manner.is_durable || is_full {
            self.settle(kit);
        }
    }

    /// Brings all that is ready to the device and to their names.
    pub(super) fn settle(&self, kit: &mut Kit) {
        kit.bytes = 0;
        for ready in std::mem::take(&mut kit.ready) {
            let node = ready.node;
            match self.land(ready, kit) {
                Ok(()) => {
                    count(&self.tally.files);
                    self.twins.landed(&node);
                }
                Err((name, trouble)) => self.fail(&name, trouble),
            }
        }
    }

    fn land(&self, ready: Ready, kit: &mut Kit) -> Result<(), (Name, Trouble)> {
        let Ready { name, from, node, draft } = ready;
        let land = || {
            if self.manner.is_durable {
                draft.sync()?;
            }
            if self.manner.is_verified {
                // What is on the device is wanted, not what was written a moment ago.
                contents::forget(draft.file());
                let buffers = (&mut *kit.buffer, &mut *kit.other);
                contents::compare(&from, draft.file(), 0..node.size, buffers)?;
            }
            draft.land(&name.name, landing(&name))
        };
        let landed = land();
        landed.map_err(|trouble| (name, trouble))
    }

    /// Makes what has no contents.
    pub(super) fn make(&self, name: &Name) -> Result<(), Trouble> {
        let (from, to): (&Folder, &Arc<Folder>) = (&name.pair.from, &name.pair.to);
        let node = from.node(&name.name).map_err(Trouble::Read)?;
        if self.is_copied(name, &node) {
            count(&self.tally.skipped);
            return Ok(());
        }
        match node.kind {
            Kind::Link => draft::link(from, &node, &name.name, to, landing(name))?,
            Kind::Special => draft::special(&node, &name.name, to, landing(name))?,
            // It was something else when it was listed.
            Kind::File | Kind::Folder => return Err(Trouble::Changed),
        }
        count(&self.tally.files);
        Ok(())
    }
}
