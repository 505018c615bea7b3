//! Finds what there is to copy, and makes the directories for it.

use super::tally::count;
use super::{Name, Order, Pair, Stage, Task, Top};
use below::{Folder, Kind, Trouble};
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, PoisonError};

/// Names that a directory had when it was come to.
type There = HashSet<OsString>;

impl Stage {
    /// Finds all of an order.
    pub(super) fn walk(&self, order: &Order, into: &Folder, is_new: bool) {
        let there = self.names_there(into, is_new);
        for source in &order.sources {
            if let Err(trouble) = self.source(source, order, &there) {
                self.tally.fail(source, &trouble);
            }
        }
    }

    fn source(&self, source: &Path, order: &Order, there: &There) -> Result<(), Trouble> {
        let top = |from: &Path, shown: &Path| -> Result<Arc<Top>, Trouble> {
            let from = Folder::open(from).map_err(Trouble::Read)?;
            let to = Folder::open(&order.into).map_err(Trouble::Write)?;
            let (shown, is_listed) = (shown.to_owned(), order.list.is_some());
            Ok(Arc::new(Top { from, to, shown, is_listed }))
        };
        if let Some(list) = &order.list {
            self.listed(&top(source, source)?, list);
            return Ok(());
        }
        let bytes = source.as_os_str().as_bytes();
        let is_contents = bytes == b"." || bytes.ends_with(b"/.");
        let (Some(name), false) = (source.file_name(), is_contents) else {
            self.tree(&top(source, source)?, PathBuf::new(), false);
            return Ok(());
        };
        let above = source.parent().unwrap_or(Path::new(""));
        let opened = if above.as_os_str().is_empty() { Path::new(".") } else { above };
        let top = top(opened, above)?;
        let pair = Arc::new(Pair::open(&top, Path::new(""))?);
        self.found(&pair, name, None, there.contains(name)).map(|deeper| {
            if let Some((path, is_new)) = deeper {
                self.tree(&top, path, is_new);
            }
        })
    }

    /// What is listed, each with the directories above it.
    fn listed(&self, top: &Arc<Top>, list: &[PathBuf]) {
        let mut made = HashSet::new();
        // Lists often name many files of one directory.
        let mut last: Option<Arc<Pair>> = None;
        for line in list {
            let below = line.strip_prefix(&top.shown).unwrap_or(line);
            let is_plain = |part| matches!(part, Component::Normal(_) | Component::CurDir);
            if !below.components().all(is_plain) {
                self.tally.fail(line, format!("is not below {}", top.shown.display()));
                continue;
            }
            let below: PathBuf =
                below.components().filter(|one| *one != Component::CurDir).collect();
            let (Some(name), Some(above)) = (below.file_name(), below.parent()) else {
                self.tree(top, PathBuf::new(), false);
                continue;
            };
            let pair = match last.take().filter(|last| last.path == above) {
                Some(pair) => Ok(pair),
                None => self.way(top, above, &mut made),
            };
            let found = pair.and_then(|pair| {
                let is_there = pair.to.node(name).is_ok();
                let deeper = self.found(&pair, name, None, is_there)?;
                last = Some(pair);
                Ok(deeper)
            });
            match found {
                Ok(Some((path, is_new))) => self.tree(top, path, is_new),
                Ok(None) => {}
                Err(trouble) => self.tally.fail(&top.shown.join(&below), &trouble),
            }
        }
    }

    /// Opens a directory on both sides; those that are missing are made.
    fn way(
        &self,
        top: &Arc<Top>,
        path: &Path,
        made: &mut HashSet<PathBuf>,
    ) -> Result<Arc<Pair>, Trouble> {
        let mut pair = Pair::open(top, Path::new(""))?;
        let mut here = PathBuf::new();
        for part in path.components() {
            here.push(part);
            let is_first = made.insert(here.clone());
            let is_new =
                is_first && pair.to.make_folder(part.as_os_str()).map_err(Trouble::Write)?;
            pair = Pair::open(top, &here)?;
            if is_first {
                self.names_there(&pair.to, is_new);
                self.note(top, &here);
            }
        }
        Ok(Arc::new(pair))
    }

    /// Names in a directory that is come to; what a killed run left is removed.
    fn names_there(&self, folder: &Folder, is_new: bool) -> There {
        if is_new {
            return There::new();
        }
        // What can not be listed is written to, perhaps.
        let mut entries = folder.entries().unwrap_or_default();
        folder.sweep(&mut entries);
        entries.into_iter().map(|(name, _)| name).collect()
    }

    /// Remembers a directory for the end.
    fn note(&self, top: &Arc<Top>, path: &Path) {
        count(&self.tally.folders);
        let mut folders = self.folders.lock().unwrap_or_else(PoisonError::into_inner);
        folders.push((Arc::clone(top), path.to_owned()));
    }

    /// All below a directory, which is there on both sides.
    fn tree(&self, top: &Arc<Top>, path: PathBuf, is_new: bool) {
        let mut waiting = vec![(path, is_new)];
        while let Some((path, is_new)) = waiting.pop() {
            let opened = Pair::open(top, &path).and_then(|pair| {
                let entries = pair.from.entries().map_err(Trouble::Read)?;
                Ok((Arc::new(pair), entries))
            });
            let (pair, entries) = match opened {
                Ok(opened) => opened,
                Err(trouble) => {
                    self.tally.fail(&top.shown.join(&path), &trouble);
                    continue;
                }
            };
            self.note(top, &path);
            let there = self.names_there(&pair.to, is_new);
            for (name, kind) in entries {
                if below::is_temporary(&name) {
                    continue;
                }
                match self.found(&pair, &name, kind, there.contains(&name)) {
                    Ok(deeper) => waiting.extend(deeper),
                    Err(trouble) => self.tally.fail(&top.shown.join(&path).join(&name), &trouble),
                }
            }
        }
    }

    /// One name: a directory is made and told with whether it is new, the rest is for others to copy.
    fn found(
        &self,
        pair: &Arc<Pair>,
        name: &OsStr,
        kind: Option<Kind>,
        is_there: bool,
    ) -> Result<Option<(PathBuf, bool)>, Trouble> {
        let kind = match kind {
            Some(kind) => kind,
            None => pair.from.node(name).map_err(Trouble::Read)?.kind,
        };
        if kind == Kind::Folder {
            let is_new = pair.to.make_folder(name).map_err(Trouble::Write)?;
            if !is_new && !is_there && !pair.top.is_listed {
                return Err(Trouble::Taken);
            }
            return Ok(Some((pair.path.join(name), is_new)));
        }
        let (pair, name) = (Arc::clone(pair), name.to_owned());
        self.queue.push(Task::Name(Name { pair, name, kind, is_there }));
        Ok(None)
    }
}
