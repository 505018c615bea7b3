//! The target: requests in, effects out. This is the hub of the crate, the only place that calls all
//! subjects. Each subject calls only those below it:
//!
//!   prefetch (`Prefetch`) -> backing (`BackedFiles`) -> tiering (`Tiering`) -> space (`Pool`)
//!   migration (`Migration`) -> tiering
//!
//! A subject never calls the hub. It returns its finding, and the hub takes the next step:
//!
//!   requests     runs a request whose bytes are here
//!   filling      admits a request: brings the bytes that it needs from the backing store first
//!   fetch        the same for bytes of spilled extents
//!   shortage     queues, retries or refuses requests that find no space
//!   completions  the caller's answers: provisioned, copied, filled, hazards checked
//!   ticks        periodic calls: demote, promote, evict, advance readahead
//!   preallocate  extents allocated before a request names them
//!   startup      settings, recovery
//!   queries      counters, and whether a periodic call is due
//!
//! A request runs to completion in one step, unless it needs space that a device must provision
//! first: then it is parked until the device has answered. Later requests are parked behind it,
//! except lookups, and requests of another file that free space, so changes of a file happen in the
//! order of arrival. The removal of a file never waits.
//!
//!   arrived --run--> answered                `Target::run`
//!   arrived --space must be provisioned--> parked `Target::run`   Effect::Provision
//!   arrived --another is parked--> parked    `Target::run_in_order`
//!   parked --the device answered--> run      `Target::resume`
//!   run --no space--> waiting                `Target::refuse_or_wait`
//!
//! New extents go to memory while it has space, then to the SSD; a request that finds none waits
//! (`admission`). Freed extents stay in `slots` until no client's hazard pointer protects them.
//!
//! Invariants, checked at the end of each step: those of `space::pool`.

use crate::admission::job::{Job, Need};
use crate::admission::work::Work;
use crate::backing::BackedFiles;
use crate::effect::{Answer, Effect, Input};
use crate::migration::Migration;
use crate::prefetch::{Lower, Prefetch};
use crate::space::pool::Pool;
use crate::space::tier::Space;
use crate::tiering::Tiering;
use crate::tiering::allowance::ReturningBlocks;
use crate::tiering::replacement::DemotionSettings;

mod completions;
mod fetch;
mod filling;
mod preallocate;
mod queries;
mod requests;
mod shortage;
mod startup;
mod ticks;

/// Sizes and settings of a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// The arena.
    pub memory: Space,
    /// The SSD file.
    pub ssd: Space,
    /// Slots of the extent table.
    pub slot_count: u32,
    /// Most bytes that all extents may hold; `u64::MAX` without a quota.
    pub quota_bytes: u64,
    /// When extents are demoted from memory to the SSD.
    pub demotion: DemotionSettings,
}

/// One target.
#[derive(Clone, Debug)]
pub struct Target {
    pub(crate) pool: Pool,
    pub(crate) tiering: Tiering,
    pub(crate) backed: BackedFiles,
    pub(crate) prefetch: Prefetch,
    migration: Migration,
    returning: ReturningBlocks,
}

impl Target {
    /// A target whose devices are empty.
    #[must_use]
    pub fn new(settings: Settings) -> Target {
        let Settings { memory, ssd, slot_count, quota_bytes, demotion } = settings;
        Target {
            pool: Pool::new(memory, ssd, slot_count, quota_bytes),
            tiering: Tiering::new(demotion, ssd.length > 0),
            backed: BackedFiles::default(),
            prefetch: Prefetch::default(),
            migration: Migration::default(),
            returning: ReturningBlocks::default(),
        }
    }

    /// Number of slots that were ever in use. New ones follow them.
    #[must_use]
    pub const fn slot_count(&self) -> u32 {
        self.pool.slots().count()
    }

    /// Lets the slots below `count` be used; a request that needs more waits for space. Before the
    /// first call all may be used.
    pub fn allow_slots(&mut self, count: u32) {
        self.pool.allow_slots(count);
    }

    /// Takes one input and appends the effects that the caller must perform, in that order. Never
    /// fails: a refusal is an answer.
    pub fn step(&mut self, input: Input<'_>, out: &mut Vec<Effect>) {
        match input {
            Input::Request { ticket, request, job } => match Work::of(request) {
                Ok(work) => {
                    self.tiering.note_pinned_request(&mut self.pool, request, out);
                    let cleaning = &self.backed.cleaning;
                    let need =
                        Need::of(request, job.into(), &|inode| cleaning.may_be_missing(inode));
                    let makes = work.makes_extents();
                    let dirty = &mut self.tiering.order.dirty;
                    dirty.pass_time(self.pool.now, self.pool.memory().allowance());
                    let writer = if makes { dirty.admit(job) } else { None };
                    self.admit(Job::new(ticket, work, need, writer), out);
                }
                Err(errno) => out.push(Effect::Reply { ticket, answer: Answer::Refused(errno) }),
            },
            Input::BackingLocated { inode, outcome } => self.located(inode, outcome, out),
            Input::Filled { ticket, outcome } => self.filled(ticket, outcome, out),
            Input::Preallocate { inodes } => self.preallocate_files(inodes, out),
            Input::Written { extents } => {
                extents.iter().for_each(|&(inode, start)| {
                    self.claim_preallocated(inode, (start, start.saturating_add(1)), None, out);
                });
            }
            Input::Reclaimed { extents } => {
                extents
                    .iter()
                    .for_each(|&(inode, start)| self.release_preallocated(inode, start, out));
            }
            Input::Provisioned { outcome } => self.provisioned(outcome, out),
            Input::Hazards { round, protected, reading } => {
                self.hazards_checked(round, (protected, reading), out);
            }
            Input::Slow { others } => self.migration.note_slow(self.pool.now, others),
            Input::Copied { ticket, outcome } => self.copied(ticket, outcome, out),
            Input::GivenBack { location, length_log2, outcome } => {
                self.given_back((location, length_log2), outcome, out);
            }
            Input::Cleaned { extents } => self.cleaned(extents, out),
            Input::IsClean { inode, number, is_clean } => {
                self.clean_reported((inode, number, is_clean), out);
            }
            Input::Withdraw { ticket } => self.withdraw(ticket, out),
            Input::SpilledReleased { slot } => {
                self.tiering.spill.note_released(&mut self.pool, slot, out);
            }
            Input::SpaceReported { round, comes, progresses } => {
                let pass = self.backed.cleaning.deciding_pass();
                self.pool.admission.space_reported(round, (comes, progresses), pass);
            }
            Input::Tick => self.pool.check_leaving(),
        }
        self.finish(out);
    }

    /// Common end of each step.
    fn finish(&mut self, out: &mut Vec<Effect>) {
        self.admit_writers(out);
        self.admit_bounded(out);
        let (prefetch, mut lower) = self.split(out);
        prefetch.grant(&mut lower);
        let Target { pool, tiering, migration, .. } = self;
        migration.begin_moves(pool, tiering, out);
        if !self.waits_for_space() {
            self.tiering.order.clean.clear_need();
        }
        self.pool.check_hazards(out);
        self.returning.give_memory_back(&mut self.pool, self.tiering.moves.count(), out);
        self.pool.provision_ahead(out);
        self.pool.check();
    }

    /// Prefetching, and what it works with.
    fn split<'a>(&'a mut self, out: &'a mut Vec<Effect>) -> (&'a mut Prefetch, Lower<'a>) {
        let Target { pool, tiering, backed, prefetch, .. } = self;
        (prefetch, Lower { pool, tiering, backed, out })
    }
}
