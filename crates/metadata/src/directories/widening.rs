//! Directories with the spread `AUTO` whose entries are at home in this service, and which have grown:
//! when they are to be spread further. How that is done is in `namespace::widening`.
//!
//! An attempt fails if a service is down or slow, or if names of the directory are about to change. It
//! is repeated after growing pauses until the directory is wide. After a restart it begins with the
//! longest pause: a service that is restarted again and again must not hold names all the time.

use std::collections::BTreeMap;

use wire::Inode;
use wire::attributes::spread;

use crate::core::context::Context;
use crate::core::state::Tally;
use crate::kernel_cache::remote::REMEMBERED_NANOS_MAX;

/// First pause after an attempt: ten times what one takes.
const PAUSE_NANOS: i64 = 20_000_000;
/// Longest pause: about the restart of a daemon.
const PAUSE_NANOS_MAX: i64 = 1_000_000_000;

/// When a directory is to be spread next.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    at: i64,
    pause: i64,
}

/// The directories that are to be spread.
#[derive(Default)]
pub(crate) struct Widening {
    due: BTreeMap<Inode, Attempt>,
    /// A kernel may remember names of these directories until then, by the clock of validities.
    held_off: BTreeMap<Inode, i64>,
}

impl Widening {
    /// An entry was added: `tally` is the count of the directory since.
    pub(crate) fn note_growth(&mut self, cx: &mut Context, directory: Inode, tally: &Tally) {
        let least = cx.config.widen_entries.max(1);
        // Once for each so many entries: one that cannot be spread is not looked at for each name.
        let has_grown = tally.entries >= least && tally.entries.is_multiple_of(least.div_ceil(4));
        if tally.spread == spread::AUTO && has_grown && !self.due.contains_key(&directory) {
            self.go_on(cx, directory);
        }
    }

    /// At a start: what was begun is finished.
    pub(crate) fn resume(&mut self, cx: &mut Context) {
        let least = cx.config.widen_entries.max(1);
        let tallies = cx.state.tallies.iter().filter(|(_, tally)| !spread::is_final(tally.spread));
        let begun = tallies
            .filter(|(_, tally)| spread::steps(tally.spread) > 0 || tally.entries >= least)
            .map(|(&directory, _)| directory);
        let begun: Vec<Inode> = begun.collect();
        let first = Attempt { at: cx.now.saturating_add(PAUSE_NANOS_MAX), pause: PAUSE_NANOS_MAX };
        begun.into_iter().for_each(|directory| self.begin(cx, directory, first));
    }

    /// The directory is to be spread at once.
    pub(crate) fn go_on(&mut self, cx: &mut Context, directory: Inode) {
        self.begin(cx, directory, Attempt { at: cx.now, pause: PAUSE_NANOS });
    }

    fn begin(&mut self, cx: &mut Context, directory: Inode, first: Attempt) {
        let is_alone = cx.config.map.daemon_count() == 1 && cx.config.workers == 1;
        if !is_alone {
            self.due.insert(directory, first);
            cx.wake_at(first.at);
        }
    }

    /// A kernel has taken along what it remembers of a name.
    pub(crate) fn hold_off(&mut self, cx: &Context, directory: Inode) {
        self.held_off.retain(|_, until| *until > cx.steady);
        let until = cx.steady.saturating_add(REMEMBERED_NANOS_MAX);
        self.held_off.insert(directory, until);
    }

    pub(crate) fn is_held_off(&self, cx: &Context, directory: Inode) -> bool {
        self.held_off.get(&directory).is_some_and(|until| *until > cx.steady)
    }

    /// The directory is wide, is gone, or has its entries elsewhere.
    pub(crate) fn end(&mut self, directory: Inode) {
        self.due.remove(&directory);
    }

    /// The directories to be spread now; each is due again after a pause.
    pub(crate) fn take_due(&mut self, cx: &mut Context) -> Vec<Inode> {
        let mut due = Vec::new();
        for (&directory, attempt) in &mut self.due {
            if attempt.at <= cx.now {
                due.push(directory);
                attempt.at = cx.now.saturating_add(attempt.pause);
                attempt.pause = (2 * attempt.pause).min(PAUSE_NANOS_MAX);
            }
            cx.wake_at(attempt.at);
        }
        due
    }
}
