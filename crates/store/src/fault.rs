//! A directory for tests that forgets and refuses: for the crash tests of the log.
//!
//! Everything is in memory. It can be told to die after some number of writes, in the middle of
//! one, and to be full. After a death it has two views: what the page cache kept (`after_kill`: the
//! process died), and what the device kept (`after_crash`: the node died; of each file any
//! selection of the blocks written since its last flush, and of the directory any selection of the
//! names changed since its last flush).

use crate::medium::{Files, Medium};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::rc::Rc;
use wire::Errno;
use wire::errno::Result;

/// Blocks reach the device whole or not at all.
const BLOCK_BYTES: usize = 512;

#[derive(Clone, Debug, Default)]
struct Content {
    cached: Vec<u8>,
    synced: Vec<u8>,
}

type Shared<T> = Rc<RefCell<T>>;

#[derive(Clone, Debug)]
struct State {
    /// Names and files as a living process sees them.
    files: BTreeMap<String, Shared<Content>>,
    /// Names and files as they are found after the node died.
    synced: BTreeMap<String, Shared<Content>>,
    /// Changes left until it dies.
    changes_left: u64,
    /// Bytes that its files may hold together.
    capacity: u64,
    /// True if flushes fail.
    is_flush_broken: bool,
}

/// The directory. Clones share it.
#[derive(Clone, Debug)]
pub struct FaultyFiles {
    state: Shared<State>,
}

/// One of its files.
pub struct FaultyFile {
    state: Shared<State>,
    content: Shared<Content>,
}

impl FaultyFiles {
    /// An empty directory without faults.
    #[must_use]
    pub fn new() -> FaultyFiles {
        FaultyFiles::with(BTreeMap::new())
    }

    fn with(files: BTreeMap<String, Vec<u8>>) -> FaultyFiles {
        let content = |bytes: Vec<u8>| Content { cached: bytes.clone(), synced: bytes };
        let files: BTreeMap<_, _> = files
            .into_iter()
            .map(|(name, bytes)| (name, Rc::new(RefCell::new(content(bytes)))))
            .collect();
        let state = State {
            synced: files.clone(),
            files,
            changes_left: u64::MAX,
            capacity: u64::MAX,
            is_flush_broken: false,
        };
        FaultyFiles { state: Rc::new(RefCell::new(state)) }
    }

    /// Dies in the middle of a change after `changes` more.
    pub fn die_after(&self, changes: u64) {
        self.state.borrow_mut().changes_left = changes;
    }

    /// True if it is dead.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.state.borrow().changes_left == 0
    }

    /// Limits the space to `bytes` in all.
    pub fn limit(&self, bytes: u64) {
        self.state.borrow_mut().capacity = bytes;
    }

    /// Makes every flush fail from now on.
    pub fn break_flush(&self) {
        self.state.borrow_mut().is_flush_broken = true;
    }

    /// Contents of a file, as a living process sees them; `None` if there is none.
    #[must_use]
    pub fn contents(&self, name: &str) -> Option<Vec<u8>> {
        self.state.borrow().files.get(name).map(|file| file.borrow().cached.clone())
    }

    /// Puts a file there without any process writing it, or removes one.
    pub fn put(&self, name: &str, bytes: Option<Vec<u8>>) {
        let mut state = self.state.borrow_mut();
        match bytes {
            Some(bytes) => {
                let content = Content { cached: bytes.clone(), synced: bytes };
                state.files.insert(name.into(), Rc::new(RefCell::new(content)));
            }
            None => drop(state.files.remove(name)),
        }
        state.synced = state.files.clone();
    }

    /// Changes bytes of a file without any process writing them.
    pub fn corrupt(&self, name: &str, with: impl FnOnce(&mut Vec<u8>)) {
        if let Some(file) = self.state.borrow().files.get(name) {
            with(&mut file.borrow_mut().cached);
        }
    }

    /// The directory that a new process finds after the old one was killed.
    #[must_use]
    pub fn after_kill(&self) -> FaultyFiles {
        let state = self.state.borrow();
        let cached = |file: &Shared<Content>| file.borrow().cached.clone();
        FaultyFiles::with(state.files.iter().map(|(n, f)| (n.clone(), cached(f))).collect())
    }

    /// The directory found after the node died: `survives` decides for each unflushed block whether
    /// the device got it.
    #[must_use]
    pub fn after_crash(&self, mut survives: impl FnMut() -> bool) -> FaultyFiles {
        let state = self.state.borrow();
        let mut found = BTreeMap::new();
        let names: BTreeSet<_> = state.synced.keys().chain(state.files.keys()).collect();
        for name in names {
            let (old, new) = (state.synced.get(name), state.files.get(name));
            let is_same = matches!((old, new), (Some(old), Some(new)) if Rc::ptr_eq(old, new));
            let Some(file) = (if is_same || survives() { new } else { old }) else { continue };
            let Content { cached, synced } = &*file.borrow();
            let length = if survives() { cached.len() } else { synced.len() };
            let mut bytes = synced.clone();
            bytes.resize(length, 0);
            for (index, block) in bytes.chunks_mut(BLOCK_BYTES).enumerate() {
                let new = cached.get(index * BLOCK_BYTES..).unwrap_or(&[]);
                let part = block.len().min(new.len());
                if block.get(..part) != new.get(..part) && survives() {
                    copy(new, block);
                }
            }
            found.insert(name.clone(), bytes);
        }
        FaultyFiles::with(found)
    }

    fn change(&self) -> Result<()> {
        change(&self.state)
    }
}

impl Default for FaultyFiles {
    fn default() -> FaultyFiles {
        FaultyFiles::new()
    }
}

/// Copies bytes until one of the two ends.
fn copy(from: &[u8], to: &mut [u8]) {
    let length = from.len().min(to.len());
    if let (Some(from), Some(to)) = (from.get(..length), to.get_mut(..length)) {
        to.copy_from_slice(from);
    }
}

/// Counts a change; fails when it was the last, which is half done.
fn change(state: &Shared<State>) -> Result<()> {
    let mut state = state.borrow_mut();
    state.changes_left = state.changes_left.saturating_sub(1);
    if state.changes_left == 0 { Err(Errno::EIO) } else { Ok(()) }
}

impl Medium for FaultyFile {
    fn length(&self) -> u64 {
        self.content.borrow().cached.len() as u64
    }

    fn grow(&mut self, length: u64) -> Result<()> {
        change(&self.state)?;
        let state = self.state.borrow();
        let used: u64 = state.files.values().map(|file| file.borrow().cached.len() as u64).sum();
        let more = length.saturating_sub(self.length());
        if used.saturating_add(more) > state.capacity {
            return Err(Errno::ENOSPC);
        }
        let mut content = self.content.borrow_mut();
        let length = (length as usize).max(content.cached.len());
        content.cached.resize(length, 0);
        Ok(())
    }

    fn cut(&mut self, length: u64) -> Result<()> {
        change(&self.state)?;
        self.content.borrow_mut().cached.truncate(length as usize);
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        if self.state.borrow().changes_left == 0 {
            return Err(Errno::EIO);
        }
        let outcome = change(&self.state);
        let part = if outcome.is_ok() { bytes } else { bytes.split_at(bytes.len() / 2).0 };
        let mut content = self.content.borrow_mut();
        let to = content.cached.get_mut(offset as usize..).unwrap_or(&mut []);
        let to = to.get_mut(..bytes.len()).ok_or(Errno::EIO)?;
        copy(part, to);
        outcome
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> Result<usize> {
        let content = self.content.borrow();
        let from = content.cached.get(offset as usize..).unwrap_or(&[]);
        copy(from, to);
        Ok(from.len().min(to.len()))
    }

    fn sync(&mut self) -> Result<()> {
        change(&self.state)?;
        if self.state.borrow().is_flush_broken {
            return Err(Errno::EIO);
        }
        let mut content = self.content.borrow_mut();
        content.synced = content.cached.clone();
        Ok(())
    }
}

impl Files for FaultyFiles {
    type File = FaultyFile;

    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from("/faulty").join(name)
    }

    fn names(&self) -> Result<Vec<String>> {
        Ok(self.state.borrow().files.keys().cloned().collect())
    }

    fn open(&mut self, name: &str) -> Result<FaultyFile> {
        let content = self.state.borrow().files.get(name).cloned().ok_or(Errno::ENOENT)?;
        Ok(FaultyFile { state: self.state.clone(), content })
    }

    fn create(&mut self, name: &str) -> Result<FaultyFile> {
        self.change()?;
        let content = Shared::<Content>::default();
        self.state.borrow_mut().files.insert(name.into(), content.clone());
        Ok(FaultyFile { state: self.state.clone(), content })
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<()> {
        self.change()?;
        let mut state = self.state.borrow_mut();
        let file = state.files.remove(from).ok_or(Errno::ENOENT)?;
        state.files.insert(to.into(), file);
        Ok(())
    }

    fn remove(&mut self, name: &str) -> Result<()> {
        self.change()?;
        self.state.borrow_mut().files.remove(name).map(drop).ok_or(Errno::ENOENT)
    }

    fn sync(&mut self) -> Result<()> {
        self.change()?;
        let mut state = self.state.borrow_mut();
        state.synced = state.files.clone();
        Ok(())
    }
}
