//! The directory below, whose calls may fail.

use super::World;
use crate::sides::{Draft, Drafts, Folder, Lower, New, Node, Origin, Over, Sink};
use crate::site::Site;
use crate::state::Tried;
use below::{Dress, Lost, Trouble};
use rustix::fs::{Mode, OFlags, ftruncate, openat};
use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::Range;

/// The calls of a `Site`, each of which may fail before it does anything, or be the writer's last.
pub(in crate::sim) struct Faulty<'a> {
    pub(in crate::sim) world: &'a World,
    pub(in crate::sim) site: Site,
}

impl Faulty<'_> {
    fn call<T>(&self, call: impl FnOnce(&Site) -> io::Result<T>) -> io::Result<T> {
        // ENOSPC.
        let failed = || io::Error::from_raw_os_error(28);
        if !self.world.step() {
            return Err(failed());
        }
        let done = call(&self.site)?;
        if self.world.is_dead() { Err(failed()) } else { Ok(done) }
    }

    fn call_to_land<T>(
        &self,
        call: impl FnOnce(&Site) -> Result<T, Trouble>,
    ) -> Result<T, Trouble> {
        let failed = || Trouble::Write(io::Error::from_raw_os_error(28));
        if !self.world.step() {
            return Err(failed());
        }
        let done = call(&self.site)?;
        if self.world.is_dead() { Err(failed()) } else { Ok(done) }
    }
}

impl Lower for Faulty<'_> {
    fn is_far(&self) -> bool {
        self.site.is_far()
    }
    fn part_bytes(&self, size: u64) -> u64 {
        self.site.part_bytes(size)
    }
    fn drafts(&self) -> Option<&dyn Drafts> {
        Some(self)
    }
    fn root(&self) -> io::Result<Folder> {
        self.call(Site::root)
    }
    fn folder(&self, within: &Folder, name: &OsStr) -> io::Result<Folder> {
        self.call(|site| site.folder(within, name))
    }
    fn node(&self, within: &Folder, name: &OsStr) -> io::Result<Option<Node>> {
        self.call(|site| site.node(within, name))
    }
    fn names(&self, within: &Folder) -> io::Result<Vec<OsString>> {
        self.call(|site| site.names(within))
    }
    fn draft(&self, at: (&Folder, &OsStr), new: &New, dress: &Dress) -> io::Result<Draft> {
        self.call(|site| site.draft(at, new, dress))
    }
    fn write(
        &self,
        draft: &Draft,
        part: &Range<u64>,
        fill: &mut dyn FnMut(&mut Sink<'_>) -> Tried<()>,
    ) -> Tried<()> {
        // Of the calls in it those above may fail.
        self.site.write(draft, part, fill)
    }
    fn dress(&self, draft: &Draft, dress: &Dress) -> io::Result<Lost> {
        self.call(|site| site.dress(draft, dress))
    }
    fn sync(&self, within: &Folder) -> io::Result<()> {
        // Nothing that is seen here depends on it, and a real one waits for the whole machine.
        let _ = within;
        self.call(|_| Ok(()))
    }
    fn land(&self, draft: Draft, at: (&Folder, &OsStr), over: Over) -> Result<(), Trouble> {
        self.call_to_land(|site| site.land(draft, at, over))
    }
    fn rename(&self, from: (&Folder, &OsStr), to: (&Folder, &OsStr)) -> io::Result<()> {
        self.call(|site| site.rename(from, to))
    }
    fn link(&self, from: (&Folder, &OsStr), to: (&Folder, &OsStr)) -> io::Result<()> {
        self.call(|site| site.link(from, to))
    }
    fn remove(&self, within: &Folder, name: &OsStr, is_folder: bool) -> io::Result<()> {
        self.call(|site| site.remove(within, name, is_folder))
    }
    fn dress_there(&self, within: &Folder, name: &OsStr, dress: &Dress) -> io::Result<Lost> {
        self.call(|site| site.dress_there(within, name, dress))
    }
    fn rewrite(
        &self,
        within: &Folder,
        name: &OsStr,
        draft: &Draft,
        dress: &Dress,
    ) -> Result<(), Trouble> {
        let done = self.call_to_land(|site| site.rewrite(within, name, draft, dress));
        if done.is_err()
            && let Folder::Site(within) = within
        {
            // It broke off in the middle.
            let torn = openat(within, name, OFlags::WRONLY, Mode::empty());
            torn.and_then(|file| ftruncate(file, 1))
                .map_err(|errno| Trouble::Write(errno.into()))?;
        }
        done
    }
}

impl Drafts for Faulty<'_> {
    fn begin(
        &self,
        within: &Folder,
        of: &wire::Attributes,
        origin: Origin<'_>,
    ) -> Result<(below::Draft, OsString, u64), Trouble> {
        self.call_to_land(|site| site.begin(within, of, origin))
    }
    fn keep(&self, draft: &mut below::Draft, of: wire::Inode) -> io::Result<OsString> {
        self.call(|site| site.keep(draft, of))
    }
    fn is_left_over(&self, name: &OsStr, modified: i64) -> bool {
        self.site.is_left_over(name, modified)
    }
    fn open(&self, within: &Folder, name: &OsStr, number: u64) -> io::Result<Option<below::Draft>> {
        self.call(|site| site.open(within, name, number))
    }
    fn resize(&self, draft: &below::Draft, size: u64) -> io::Result<()> {
        self.call(|site| site.resize(draft, size))
    }
    fn put(&self, draft: &below::Draft, bytes: &[u8], at: u64, counts: u64) -> io::Result<()> {
        self.call(|site| site.put(draft, bytes, at, counts))
    }
    fn sync(&self, _: &below::Draft, _: Option<&Folder>) -> io::Result<()> {
        // No machine dies here.
        self.call(|_| Ok(()))
    }
}
