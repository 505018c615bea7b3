//! Space of removed files on its way back: what the targets are asked, and when. Who sends it is
//! `shard`.
//!
//! Files are gathered for a moment, and each target is told many of them in one message. It is
//! asked one thing at a time, and again until it has done it, with growing pauses: one that is gone
//! holds up its own part only. A kill loses nothing: what is not done is in the metadata service's
//! log, and giving back twice does no harm.
//!
//!   gathered --for long enough, or many--> waiting at each target --asked, answered--> done

use crate::inbox::PartAnswer;
use crate::jobs::targets_of;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::limits::REMOVE_COUNT_MAX;
use wire::{DaemonIndex, Inode, Layout};

/// How long files are gathered: a message and its answer wake threads on both sides and cost some
/// 100 us of processor time, so where files go all the time they take a twentieth of it.
const GATHER_TIME: Duration = Duration::from_millis(2);
/// Pauses before a target is asked again: first, longest.
const PAUSE_MIN: Duration = Duration::from_millis(1);
/// See `PAUSE_MIN`.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Inode numbers as a `Request::Remove` takes them.
pub(crate) type Inodes = Arc<[u8]>;

/// What one target is to be asked.
struct Line {
    /// The round of each, and the files. The first is being asked, or was and shall be again.
    waiting: VecDeque<(u64, Inodes)>,
    is_asked: bool,
    again_at: Option<Instant>,
    pause: Duration,
}

/// Files that were gathered, on their way.
struct Round {
    tokens: Vec<u64>,
    lines_open: usize,
}

/// All removals of one worker.
#[derive(Default)]
pub(crate) struct Removals {
    /// What is gathered: the service's tokens, files that any target may hold something of, and by
    /// target those that only some may.
    tokens: Vec<u64>,
    anywhere: Vec<u8>,
    at_some: BTreeMap<u16, Vec<u8>>,
    count: usize,
    since: Option<Instant>,
    rounds: BTreeMap<u64, Round>,
    rounds_made: u64,
    /// Targets that were not told everything yet.
    lines: BTreeMap<u16, Line>,
}

impl Removals {
    /// Takes files that are gone. True if targets are to be asked without waiting for more. `count`:
    /// targets of the instance.
    pub(crate) fn add(
        &mut self,
        now: Instant,
        count: u16,
        token: u64,
        files: &[(Inode, Layout)],
    ) -> bool {
        let is_full = self.count + files.len() > REMOVE_COUNT_MAX;
        if is_full {
            self.send_off(count);
        }
        self.tokens.push(token);
        for (inode, layout) in files {
            let (targets, number) = (targets_of(layout, *inode, count), inode.0.to_le_bytes());
            if targets.is_all() {
                self.anywhere.extend_from_slice(&number);
                continue;
            }
            for target in targets {
                self.at_some.entry(target.0).or_default().extend_from_slice(&number);
            }
        }
        self.count += files.len();
        self.since.get_or_insert(now);
        is_full
    }

    /// Ends gathering: every target gets its part.
    fn send_off(&mut self, count: u16) {
        let tokens = std::mem::take(&mut self.tokens);
        let anywhere = std::mem::take(&mut self.anywhere);
        let mut at_some = std::mem::take(&mut self.at_some);
        (self.count, self.since) = (0, None);
        let shared: Inodes = anywhere.as_slice().into();
        let (id, mut lines_open) = (self.rounds_made, 0);
        for target in 0..count {
            let files = match at_some.remove(&target) {
                Some(own) => [own.as_slice(), &anywhere].concat().into(),
                None => Arc::clone(&shared),
            };
            if !files.is_empty() {
                lines_open += 1;
                self.lines.entry(target).or_insert_with(Line::new).waiting.push_back((id, files));
            }
        }
        self.rounds_made += 1;
        self.rounds.insert(id, Round { tokens, lines_open });
    }

    /// Ends gathering, if something was gathered.
    pub(crate) fn hurry(&mut self, count: u16) {
        if self.since.is_some() {
            self.send_off(count);
        }
    }

    /// True if a target has not done all that it is to do.
    pub(crate) fn is_asked(&self, target: DaemonIndex) -> bool {
        self.lines.contains_key(&target.0)
    }

    /// When there is something to ask, unless an answer comes before.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let again = self.lines.values().filter_map(|line| line.again_at);
        again.chain(self.since.map(|since| since + GATHER_TIME)).min()
    }

    /// Gives what is to be asked now, and of whom. `count`: targets of the instance.
    pub(crate) fn due(
        &mut self,
        now: Instant,
        count: u16,
        mut ask: impl FnMut(DaemonIndex, &Inodes),
    ) {
        if self.since.is_some_and(|since| since + GATHER_TIME <= now) {
            self.send_off(count);
        }
        for (&target, line) in &mut self.lines {
            if line.is_asked || line.again_at.is_some_and(|at| at > now) {
                continue;
            }
            if let Some((_, files)) = line.waiting.front() {
                (line.is_asked, line.again_at) = (true, None);
                ask(DaemonIndex(target), files);
            }
        }
    }

    /// Takes a target's answer. The tokens of what all targets have done, if it was the last.
    pub(crate) fn answered(
        &mut self,
        now: Instant,
        target: DaemonIndex,
        answer: PartAnswer,
    ) -> Option<Vec<u64>> {
        let line = self.lines.get_mut(&target.0)?;
        line.is_asked = false;
        let wanted = match answer {
            PartAnswer::Ended(Ok(())) => None,
            PartAnswer::Again(micros) => Some(Duration::from_micros(micros).min(PAUSE_MAX)),
            PartAnswer::Ended(Err(errno)) => {
                tracing::warn!(target = target.0, %errno, "a target does not remove files");
                Some(PAUSE_MAX)
            }
        };
        if let Some(wanted) = wanted {
            line.again_at = Some(now + line.pause.max(wanted));
            line.pause = (line.pause * 2).min(PAUSE_MAX);
            return None;
        }
        line.pause = PAUSE_MIN;
        let (id, _) = line.waiting.pop_front()?;
        if line.waiting.is_empty() {
            self.lines.remove(&target.0);
        }
        let round = self.rounds.get_mut(&id)?;
        round.lines_open = round.lines_open.saturating_sub(1);
        if round.lines_open > 0 {
            return None;
        }
        self.rounds.remove(&id).map(|round| round.tokens)
    }
}

impl Line {
    const fn new() -> Line {
        Line { waiting: VecDeque::new(), is_asked: false, again_at: None, pause: PAUSE_MIN }
    }
}

#[cfg(test)]
mod tests;
