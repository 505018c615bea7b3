//! The backing store from the namespace's point of view: importing directories, revalidating
//! imported names, and the names and inodes that are dirty and wait for writeback.

pub(crate) mod dirty;
pub(crate) mod give_up;
pub(crate) mod import;
pub(crate) mod locations;
pub(crate) mod lost_changes;
pub(crate) mod lost_files;
pub(crate) mod requests;
pub(crate) mod revalidate;
pub(crate) mod revalidate_dir;
pub(crate) mod sync_state;
pub(crate) mod writeback_wait;

use std::collections::BTreeMap;

use give_up::GiveUps;
use import::Import;
use revalidate::Revalidation;
use revalidate_dir::Listings;
use wire::errno::Result;
use wire::{Inode, Request};
use writeback_wait::WritebackWaits;

use crate::core::context::Context;
use crate::core::effect::{BackingDirPart, BackingEntry};
use crate::core::job::{Call, Step};
use crate::files::Files;

/// Volatile state about the backing store.
#[derive(Default)]
pub(crate) struct Backing {
    /// Directories that are being imported.
    imports: BTreeMap<Inode, Import>,
    /// Directories missing at their backing location, and until when the import is retried.
    missing: BTreeMap<Inode, i64>,
    /// Probes of backing names.
    revalidation: Revalidation,
    /// Backed directories that were listed recently.
    listings: Listings,
    /// Requests that wait for writeback.
    pub(crate) waits: WritebackWaits,
    /// Files that give up their copies where space is short.
    pub(crate) give_ups: GiveUps,
}

impl Backing {
    /// Revalidates the names that a request is about to answer.
    pub(crate) fn revalidate_for(
        &mut self,
        files: &mut Files,
        call: &Call<'_>,
        request: &Request<'_>,
    ) -> Step<()> {
        match *request {
            Request::Lookup { parent, name } => self.revalidate(files, call, parent, name),
            Request::LookupForMount { inode, name } if !name.is_empty() => {
                self.revalidate(files, call, inode, name)
            }
            // A new name is not probed, because each create would then wait for the backing store.
            Request::Create { parent, name, .. }
                if files.cx.state.entries.get(parent, name).is_some() =>
            {
                self.revalidate(files, call, parent, name)
            }
            Request::ReadDirectory { directory, after: 0, .. } => {
                self.revalidate_dir(files, call, directory)
            }
            _ => Ok(()),
        }
    }

    /// Takes entries of a directory in the backing store, or the reason why it cannot be read.
    pub(crate) fn take_backing_dir(
        &mut self,
        files: &mut Files,
        directory: Inode,
        outcome: Result<BackingDirPart<'_>>,
    ) {
        if !self.is_importing(directory) {
            return self.take_dir_names(&mut files.cx, directory, outcome);
        }
        if let Some(started) = self.import_part(files, directory, outcome) {
            self.note_imported(&mut files.cx, directory, started);
        }
    }

    /// Takes the answer to a probe of a name, or of a directory itself.
    pub(crate) fn take_probe(
        &mut self,
        cx: &mut Context,
        key: u128,
        outcome: Result<Option<BackingEntry<'_>>>,
    ) {
        match self.is_probing(key) {
            true => self.take_name_probe(cx, key, outcome),
            false => self.take_dir_probe(cx, key, outcome),
        }
    }
}
