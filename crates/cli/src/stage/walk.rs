//! Finds the names to copy, and creates their directories.

use super::summary::count;
use super::{NameToCopy, Pair, Stage, StageRequest, StageRoot, Task};
use backing::{CopyError, Dir, Kind};
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, PoisonError};

/// Names that a target directory had before the copy.
type ExistingNames = HashSet<OsString>;

impl Stage {
    /// Finds all names of a request.
    pub(super) fn walk(&self, request: &StageRequest, into: &Dir, is_new: bool) {
        let there = self.names_there(into, is_new);
        for source in &request.sources {
            if let Err(error) = self.source(source, request, &there) {
                self.summary.fail(self.shown_source(source, request, &error), &error);
            }
        }
    }

    /// The path to which an error of a whole source applies, for people.
    fn shown_source<'a>(
        &self,
        source: &'a Path,
        request: &'a StageRequest,
        error: &CopyError,
    ) -> &'a Path {
        if matches!(error, CopyError::Write(_)) { &request.into } else { source }
    }

    fn source(
        &self,
        source: &Path,
        request: &StageRequest,
        there: &ExistingNames,
    ) -> Result<(), CopyError> {
        let top = |from: &Path, shown: &Path| -> Result<Arc<StageRoot>, CopyError> {
            let from = Dir::open(from).map_err(CopyError::Read)?;
            let to = Dir::open(&request.into).map_err(CopyError::Write)?;
            let (shown, target_shown) = (shown.to_owned(), request.into.clone());
            let is_listed = request.list.is_some();
            Ok(Arc::new(StageRoot { from, to, shown, target_shown, is_listed }))
        };
        if let Some(list) = &request.list {
            self.listed(&top(source, source)?, list);
            return Ok(());
        }
        let bytes = source.as_os_str().as_bytes();
        let is_contents = bytes == b"." || bytes.ends_with(b"/.");
        let (Some(name), false) = (source.file_name(), is_contents) else {
            self.tree(&top(source, source)?, PathBuf::new(), false);
            return Ok(());
        };
        let parent = source.parent().unwrap_or(Path::new(""));
        let opened = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        let top = top(opened, parent)?;
        let pair = Arc::new(Pair::open(&top, Path::new(""))?);
        self.found(&pair, name, None, there.contains(name)).map(|dir| {
            if let Some((path, is_new)) = dir {
                self.tree(&top, path, is_new);
            }
        })
    }

    /// The listed names, each with its parent directories.
    fn listed(&self, top: &Arc<StageRoot>, list: &[PathBuf]) {
        let mut made = HashSet::new();
        // Lists often name many files of one directory.
        let mut last: Option<Arc<Pair>> = None;
        for line in list {
            let relative = line.strip_prefix(&top.shown).unwrap_or(line);
            let is_plain = |part| matches!(part, Component::Normal(_) | Component::CurDir);
            if !relative.components().all(is_plain) {
                self.summary.fail(line, format!("is not under {}", top.shown.display()));
                continue;
            }
            let relative: PathBuf =
                relative.components().filter(|one| *one != Component::CurDir).collect();
            let (Some(name), Some(parent)) = (relative.file_name(), relative.parent()) else {
                self.tree(top, PathBuf::new(), false);
                continue;
            };
            let pair = match last.take().filter(|last| last.path == parent) {
                Some(pair) => Ok(pair),
                None => self.make_dirs(top, parent, &mut made),
            };
            let found = pair.and_then(|pair| {
                let is_there = pair.to.node(name).is_ok();
                let dir = self.found(&pair, name, None, is_there)?;
                last = Some(pair);
                Ok(dir)
            });
            match found {
                Ok(Some((path, is_new))) => self.tree(top, path, is_new),
                Ok(None) => {}
                Err(error) => self.summary.fail(&top.shown(&relative, &error), &error),
            }
        }
    }

    /// Opens a directory on both sides, and creates missing directories in the target.
    fn make_dirs(
        &self,
        top: &Arc<StageRoot>,
        path: &Path,
        made: &mut HashSet<PathBuf>,
    ) -> Result<Arc<Pair>, CopyError> {
        let mut pair = Pair::open(top, Path::new(""))?;
        let mut current = PathBuf::new();
        for part in path.components() {
            current.push(part);
            let is_first = made.insert(current.clone());
            let is_new =
                is_first && pair.to.make_dir(part.as_os_str()).map_err(CopyError::Write)?;
            pair = Pair::open(top, &current)?;
            if is_first {
                self.names_there(&pair.to, is_new);
                self.note(top, &current);
            }
        }
        Ok(Arc::new(pair))
    }

    /// Names in a target directory; partial files that a killed run left are removed.
    fn names_there(&self, dir: &Dir, is_new: bool) -> ExistingNames {
        if is_new {
            return ExistingNames::new();
        }
        // A directory that cannot be listed may still be writable.
        let mut entries = dir.entries().unwrap_or_default();
        dir.sweep(&mut entries);
        entries.into_iter().map(|(name, _)| name).collect()
    }

    /// Records a directory whose attributes are set at the end.
    fn note(&self, top: &Arc<StageRoot>, path: &Path) {
        count(&self.summary.dirs);
        let mut dirs = self.dirs.lock().unwrap_or_else(PoisonError::into_inner);
        dirs.push((Arc::clone(top), path.to_owned()));
    }

    /// Everything under a directory that exists on both sides.
    fn tree(&self, top: &Arc<StageRoot>, path: PathBuf, is_new: bool) {
        let mut waiting = vec![(path, is_new)];
        while let Some((path, is_new)) = waiting.pop() {
            let opened = Pair::open(top, &path).and_then(|pair| {
                let entries = pair.from.entries().map_err(CopyError::Read)?;
                Ok((Arc::new(pair), entries))
            });
            let (pair, entries) = match opened {
                Ok(opened) => opened,
                Err(error) => {
                    self.summary.fail(&top.shown(&path, &error), &error);
                    continue;
                }
            };
            self.note(top, &path);
            let there = self.names_there(&pair.to, is_new);
            for (name, kind) in entries {
                if backing::is_temporary(&name) {
                    continue;
                }
                match self.found(&pair, &name, kind, there.contains(&name)) {
                    Ok(dir) => waiting.extend(dir),
                    Err(error) => self.summary.fail(&top.shown(&path.join(&name), &error), &error),
                }
            }
        }
    }

    /// Handles one name: creates a directory and returns it, with whether it is new; queues
    /// everything else.
    fn found(
        &self,
        pair: &Arc<Pair>,
        name: &OsStr,
        kind: Option<Kind>,
        is_there: bool,
    ) -> Result<Option<(PathBuf, bool)>, CopyError> {
        let kind = match kind {
            Some(kind) => kind,
            None => pair.from.node(name).map_err(CopyError::Read)?.kind,
        };
        if kind == Kind::Dir {
            let is_new = pair.to.make_dir(name).map_err(CopyError::Write)?;
            if !is_new && !is_there && !pair.top.is_listed {
                return Err(CopyError::Taken);
            }
            return Ok(Some((pair.path.join(name), is_new)));
        }
        let (pair, name) = (Arc::clone(pair), name.to_owned());
        count(&self.summary.found);
        self.queue.push(Task::Copy(NameToCopy { pair, name, kind, is_there }));
        Ok(None)
    }
}
