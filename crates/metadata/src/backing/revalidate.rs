//! Revalidation of imported names: changes that others make in the backing store are noticed name
//! by name.
//!
//! A lookup in an imported directory probes the name in the backing store, if that was not done
//! within the last term (`Config::revalidate_nanos`). A file with another number, time or size gets
//! a new inode in place of the old one; a name that is gone there is removed here, a new one is
//! added. All lookups that arrive meanwhile share one probe. Until the term is over, clients find
//! the name in the index without asking; then the index forgets it.
//!
//! States of a name: valid (`core::valid_names`, for a term) -> unknown -> being probed ->
//! answered -> valid.
//!
//! Invariants
//! 1. Only settled names are probed: the entry matches the backing store, and is neither dirty, nor
//!    being written back, nor open for writing. The same is checked when the answer arrives,
//!    together with the location probed: our own writeback is no change by others, and changes made
//!    here meanwhile stay.
//! 2. A probe that is not answered in `PROBE_TIMEOUT_NANOS` delays no request: all proceed with the
//!    cached state until it is answered.
//! 3. The old inode is treated as one replaced by a rename: processes that have it open keep its
//!    data.
//! 4. The index is told in time to forget a name that may have changed in the backing store: each
//!    change of such a name gives it a validity (`note_valid_until`).
//!
//! Directories are not probed, nor are entries of a directory created here, or moved here from
//! another.

use std::collections::BTreeMap;

use wire::attributes::mode;
use wire::backing::Version;
use wire::errno::Result;
use wire::hash::entry_key;
use wire::limits::SYMLINK_BYTES_MAX;
use wire::{Attributes, Inode, ShardIndex};

use crate::backing::Backing;
use crate::backing::dirty::may_be_written;
use crate::backing::import::{change_counts, import_entries, path_of};
use crate::backing::sync_state::SyncEntry;
use crate::core::context::Context;
use crate::core::effect::{BackingEntry, Effect};
use crate::core::job::{Call, Step, Stop, Wait};
use crate::core::keys::Key;
use crate::core::record::Record;
use crate::files::Files;
use crate::files::open_files::drop_link;
use crate::kernel_cache::notices::Changing;

/// Longest wait for a probe; then the request proceeds with the cached state.
const PROBE_TIMEOUT_NANOS: i64 = 1_000_000_000;
/// An unused answer expires after this time, which covers a wait for mounts.
const ANSWER_NANOS: i64 = 5_000_000_000;
/// Most probes that are pending or whose answers are unused; further requests proceed with the
/// cached state.
const PROBES_MAX: usize = 4096;

/// Backing entry found by a probe.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Found {
    /// Its `name`, `target` and `extended` are empty.
    seen: BackingEntry<'static>,
    target: Vec<u8>,
    extended: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Found {
    fn of(seen: &BackingEntry<'_>) -> Found {
        let BackingEntry { mode, uid, gid, links, size, accessed, modified, changed, born, .. } =
            *seen;
        let (device, number) = (seen.device, seen.number);
        let times = BackingEntry { accessed, modified, changed, born, ..BackingEntry::default() };
        let seen_here = BackingEntry { mode, uid, gid, links, size, device, number, ..times };
        let (target, extended) = (seen.target.to_vec(), seen.extended.to_vec());
        Found { seen: seen_here, target, extended }
    }

    const fn version(&self) -> Version {
        let BackingEntry { number, modified, size, .. } = self.seen;
        Version { number, modified, size }
    }
}

/// A name that is being probed in the backing store.
#[derive(Clone, Debug)]
struct Probe {
    /// Start time by the monotonic clock, in nanoseconds.
    started: i64,
    /// The name's state at that time.
    before: Settled,
    /// `None`: pending.
    answer: Option<Result<Option<Found>>>,
}

/// State of a settled name: a file with its sync entry, or no file.
pub(super) type Settled = Option<(Inode, SyncEntry)>;

/// Names that are being probed, by `wire::hash::entry_key`.
#[derive(Default)]
pub(crate) struct Revalidation {
    probes: BTreeMap<u128, Probe>,
}

impl Revalidation {
    fn is_hanging(&self, steady: i64) -> bool {
        let is_late = |probe: &Probe| {
            probe.answer.is_none() && probe.started.saturating_add(PROBE_TIMEOUT_NANOS) <= steady
        };
        self.probes.values().any(is_late)
    }
}

impl Backing {
    /// Timer: expires names, unused answers and waits.
    pub(crate) fn tick_revalidation(&mut self, cx: &mut Context) {
        let (now, steady) = (cx.now, cx.steady);
        cx.expire_names();
        let probes = &mut self.revalidation.probes;
        let is_old = |probe: &Probe| probe.started.saturating_add(ANSWER_NANOS) <= steady;
        probes.retain(|_, probe| probe.answer.is_none() || !is_old(probe));
        let mut late = Vec::new();
        for (&key, probe) in probes.iter().filter(|(_, probe)| probe.answer.is_none()) {
            let until = probe.started.saturating_add(PROBE_TIMEOUT_NANOS);
            match until <= steady {
                true => late.push(key),
                false => cx.timer = cx.timer.min(now.saturating_add(until - steady)),
            }
        }
        let is_late = |wait: &Wait| matches!(wait, Wait::Probe(key) if late.contains(key));
        if !late.is_empty() {
            cx.wake(is_late);
        }
    }

    /// Proceeds when a name matches the backing store, or is not to be probed.
    pub(crate) fn revalidate(
        &mut self,
        files: &mut Files,
        call: &Call<'_>,
        parent: Inode,
        name: &[u8],
    ) -> Step<()> {
        if !must_revalidate(&files.cx, call, parent, name) || wire::name::Name::parse(name).is_err()
        {
            return Ok(());
        }
        let (key, steady) = (entry_key(parent, name), files.cx.steady);
        match self.revalidation.probes.get(&key) {
            Some(Probe { answer: Some(_), .. }) => {
                return self.apply_probe(files, call, parent, name);
            }
            Some(probe) if probe.started.saturating_add(PROBE_TIMEOUT_NANOS) <= steady => {
                return Ok(());
            }
            Some(_) => return Err(Stop::Wait(Wait::Probe(key))),
            None => {}
        }
        let revalidate = &self.revalidation;
        if revalidate.probes.len() >= PROBES_MAX || revalidate.is_hanging(steady) {
            return Ok(());
        }
        let Some(before) = settled(&files.cx, call, parent, name) else { return Ok(()) };
        let place = match path_of(files, call, parent) {
            Ok(place) => place,
            Err(stop @ Stop::Wait(_)) => return Err(stop),
            // It has no backing location any more.
            Err(_) => return Ok(()),
        };
        self.revalidation.probes.insert(key, Probe { started: steady, before, answer: None });
        files.cx.wake_at(files.cx.now.saturating_add(PROBE_TIMEOUT_NANOS));
        files.cx.io.push(Effect::Probe { key, place, name: name.to_vec() });
        Err(Stop::Wait(Wait::Probe(key)))
    }

    /// True if a name with this key is being probed.
    pub(super) fn is_probing(&self, key: u128) -> bool {
        self.revalidation.probes.contains_key(&key)
    }

    /// Takes the answer to the probe of a name.
    pub(super) fn take_name_probe(
        &mut self,
        cx: &mut Context,
        key: u128,
        outcome: Result<Option<BackingEntry<'_>>>,
    ) {
        let Some(probe) = self.revalidation.probes.get_mut(&key) else { return };
        probe.answer = Some(outcome.map(|seen| seen.as_ref().map(Found::of)));
        cx.wake(|wait| *wait == Wait::Probe(key));
        // In case no job is left to use it.
        cx.wake_at(cx.now.saturating_add(ANSWER_NANOS));
    }

    /// Applies the answer to a probe.
    fn apply_probe(
        &mut self,
        files: &mut Files,
        call: &Call<'_>,
        parent: Inode,
        name: &[u8],
    ) -> Step<()> {
        let key = entry_key(parent, name);
        let Some(probe) = self.revalidation.probes.get(&key).cloned() else {
            return Ok(());
        };
        let is_late = probe.started.saturating_add(ANSWER_NANOS) <= files.cx.steady;
        if is_late || settled(&files.cx, call, parent, name).as_ref() != Some(&probe.before) {
            // It does not describe the current state.
            self.revalidation.probes.remove(&key);
            return Ok(());
        }
        if let Some(Ok(found)) = &probe.answer
            && !is_as_before(probe.before.as_ref(), found.as_ref(), &files.cx.state)
        {
            files.cx.check_key(&Key::Frozen(parent))?;
            let directory = files.directories.directory(&mut files.cx, call, parent)?;
            if !files.cx.config.owns(ShardIndex(directory.layout.place)) {
                return Err(Stop::Stale);
            }
            let old = probe.before.as_ref().map(|before| before.0);
            let inode = old.unwrap_or_default();
            use Changing::{Attributes, Name};
            let all = [Name(parent, name), Attributes(parent), Attributes(inode)];
            files.caches.await_invalidated(&mut files.cx, call, &all)?;
            if let Some(inode) = old {
                files.caches.begin_grace_if_watched(&mut files.cx, call, inode);
            }
            replace_entry(files, &directory, name, old, found.as_ref());
        }
        self.revalidation.probes.remove(&key);
        // From the start of the probe: the answer was true at some time since.
        files
            .cx
            .put_valid_until(key, probe.started.saturating_add(files.cx.config.revalidate_nanos));
        Ok(())
    }
}

/// True if a name has to be probed before an answer about it.
pub(crate) fn must_revalidate(cx: &Context, call: &Call<'_>, parent: Inode, name: &[u8]) -> bool {
    cx.is_revalidated(parent)
        && !cx.is_valid_name(entry_key(parent, name))
        && settled(cx, call, parent, name).is_some()
}

/// The state of a name, if it is settled (invariant 1). Its inode belongs to this service then.
pub(super) fn settled(
    cx: &Context,
    call: &Call<'_>,
    parent: Inode,
    name: &[u8],
) -> Option<Settled> {
    if cx.state.dirty_names.get(parent, name).is_some() {
        return None;
    }
    let Some((inode, kind)) = cx.state.entries.get(parent, name) else { return Some(None) };
    let sync_entry = cx.state.sync_entries.get(&inode)?;
    let attributes = &cx.state.inodes.get(inode)?.attributes;
    let now = sync_entry.now.as_ref()?;
    let is_settled = kind & mode::TYPE != mode::DIRECTORY
        && (now.parent, &*now.name) == (parent, name)
        && sync_entry.next.is_none()
        && attributes.links == 1
        && !cx.state.dirty_inodes.contains(&inode)
        && !may_be_written(cx, call, attributes);
    is_settled.then(|| Some((inode, sync_entry.clone())))
}

/// Replaces, removes or adds an entry to match the backing store.
fn replace_entry(
    files: &mut Files,
    directory: &Attributes,
    name: &[u8],
    old: Option<Inode>,
    found: Option<&Found>,
) {
    let parent = directory.inode;
    if let Some(inode) = old {
        files.cx.put(&Record::DeleteSyncEntry { inode });
        change_counts(files, directory, -1, 0);
        drop_link(&mut files.cx, inode);
    }
    let is_full = files.cx.state.bytes >= files.cx.config.metadata_bytes_max;
    let fits = |found: &&Found| found.target.len() <= SYMLINK_BYTES_MAX;
    match found.filter(fits) {
        // Overwrites the old entry, so that no client sees the name absent.
        Some(Found { seen, target, extended }) if old.is_some() || !is_full => {
            import_entries(files, directory, &[BackingEntry { name, target, extended, ..*seen }]);
        }
        _ if old.is_some() => files.cx.put_clean(&Record::DeleteEntry { parent, name }),
        _ => {}
    }
}

/// True if the found backing entry matches the state here.
fn is_as_before(
    before: Option<&(Inode, SyncEntry)>,
    found: Option<&Found>,
    state: &crate::core::state::State,
) -> bool {
    match (before, found) {
        (None, None) => true,
        (Some((inode, sync_entry)), Some(found)) => {
            let kind = state.inodes.get(*inode).map(|node| node.attributes.mode & mode::TYPE);
            let version = sync_entry.now.as_ref().map(|now| now.version);
            version == Some(found.version()) && kind == Some(found.seen.mode & mode::TYPE)
        }
        _ => false,
    }
}
