//! When a round is due, and what is told of it to others.
//!
//! Rounds begin when services say that something became unsaved, which they are asked once in a second;
//! at
//! once when somebody waits for a flush; and after a while, longer each time, when something failed. What
//! others are told lies in `Board`, which the thread that works never waits for long: a file system that
//! hangs hangs that thread alone.

use crate::brake::Brake;
use crate::round::{Counts, How, Manner, Memory, Report, run};
use crate::scope::Scope;
use crate::sides::{Above, Lower};
use crate::state::Tried;
use crate::wanted::Waited;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use wire::errno::Result;

/// How often services are asked, and what is open to write is looked at again.
pub(crate) const TICK: Duration = Duration::from_secs(1);
/// First and longest pause after a failure.
const BACK_OFF: Duration = Duration::from_millis(250);
/// See `BACK_OFF`.
const BACK_OFF_MAX: Duration = Duration::from_secs(30);
/// Pause after a round after which something is left that may go on at once.
const PAUSE: Duration = Duration::from_millis(20);
/// Conflicts that are told by name.
const CONFLICTS_MAX: usize = 100;
/// How long a flush waits for files that were removed to be forgotten, as kernels do soon; what is open
/// stays aside longer.
const ASIDE_PATIENCE: Duration = Duration::from_secs(5);
/// Rounds of a flush without a step forward after which it has failed: where something fails,
pub(crate) const VAIN_ROUNDS: u32 = 3;
/// and where things only changed meanwhile. Three rounds bring what others replace to a name beside.
pub(crate) const CONTENDED_ROUNDS: u32 = 12;

/// What others are told, as JSON.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Told {
    /// Names and inodes that are not saved.
    pub(crate) unsaved: u64,
    /// Bytes of contents that are on their way, wait or failed.
    pub(crate) bytes_left: u64,
    /// Names and inodes that were saved since the start.
    pub(crate) saved: u64,
    /// Bytes of contents that were.
    pub(crate) bytes_saved: u64,
    /// Open to write, or not cool yet.
    pub(crate) waiting: u64,
    /// To be saved at the end, or never.
    pub(crate) held: u64,
    /// What failed in the last round.
    pub(crate) failed: u64,
    /// The first of them: path and reason.
    pub(crate) failures: Vec<(PathBuf, String)>,
    /// What others changed: how often, and the first of them.
    pub(crate) conflicts: u64,
    /// Path, and what became of it.
    pub(crate) conflicted: Vec<(PathBuf, String)>,
    /// Files of which not all attributes could be saved.
    pub(crate) lost: u64,
    /// Why nothing can be saved.
    pub(crate) error: Option<String>,
}

/// How a flush stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flush {
    /// On its way.
    Busy,
    /// All is saved that is to be.
    Done,
    /// Some can not be.
    Failed,
}

/// A flush of a part of the tree.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) number: u64,
    /// Of what.
    pub(crate) scope: Scope,
}

/// How it goes.
struct PartState {
    part: Part,
    stands: Flush,
    told: Told,
}

#[derive(Default)]
struct Inside {
    told: Told,
    /// Somebody waits for files.
    is_wanted: bool,
    /// Flushes of parts of the tree, until who asked has heard how they ended.
    parts: BTreeMap<u64, PartState>,
    part_last: u64,
    /// Flushes that were asked for, done and failed, by number.
    asked: u64,
    done: u64,
    failed: u64,
    /// What was told when the last of them failed.
    told_of_failed: Told,
    /// The instance is about to end; the second: it has taken away what is its own.
    leaves: bool,
    has_left: bool,
    is_over: bool,
}

impl Inside {
    /// The last flush that is over.
    fn settled(&self) -> u64 {
        self.done.max(self.failed)
    }
}

/// Rounds of a flush that did not bring it forward.
#[derive(Debug, Default)]
struct Vain {
    /// The flush before it. Who asks for one more meanwhile does not begin it anew.
    after: u64,
    rounds: u32,
}

impl Vain {
    /// A round of a flush was this. True if the flush has failed.
    fn is_enough(&mut self, after: u64, done: &Tried<Report>) -> bool {
        if self.after != after {
            *self = Vain { after, rounds: 0 };
        }
        if done.as_ref().is_ok_and(|report| report.saved > 0) {
            self.rounds = 0;
            return false;
        }
        self.rounds += 1;
        let is_contended = done.as_ref().is_ok_and(|report| report.failed == 0);
        self.rounds >= if is_contended { CONTENDED_ROUNDS } else { VAIN_ROUNDS }
    }
}

/// What the thread that works and those that tell share.
#[derive(Default)]
pub(crate) struct Board {
    inside: Mutex<Inside>,
    bell: Condvar,
    pub(crate) counts: Counts,
}

impl Board {
    /// One of a writer that saves so many bytes a second; 0: as many as can be.
    pub(crate) fn new(rate: u64) -> Board {
        let counts = Counts { brake: Brake::new(rate), ..Counts::default() };
        Board { counts, ..Board::default() }
    }

    fn guard(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is told now.
    pub(crate) fn told(&self) -> Told {
        let mut told = self.guard().told.clone();
        told.unsaved = told.unsaved.max(self.counts.left.load(Ordering::Relaxed));
        told.bytes_left += self.counts.bytes.load(Ordering::Relaxed);
        told
    }

    /// Asks for a flush; its number.
    pub(crate) fn flush(&self) -> u64 {
        let mut inside = self.guard();
        inside.asked += 1;
        self.bell.notify_all();
        inside.asked
    }

    /// How the flush `number` stands.
    pub(crate) fn stands(&self, number: u64) -> Flush {
        let inside = self.guard();
        match () {
            () if inside.done >= number => Flush::Done,
            () if inside.failed >= number => Flush::Failed,
            () => Flush::Busy,
        }
    }

    /// What is told of a flush that failed: what came after it may be told otherwise.
    pub(crate) fn told_of_failed(&self) -> Told {
        self.guard().told_of_failed.clone()
    }

    /// Somebody waits for files.
    pub(crate) fn want(&self) {
        self.guard().is_wanted = true;
        self.counts.is_urgent.store(true, Ordering::Relaxed);
        self.bell.notify_all();
    }

    /// True if somebody does, once.
    pub(crate) fn take_wanted(&self) -> bool {
        let mut inside = self.guard();
        self.counts.is_urgent.store(false, Ordering::Relaxed);
        std::mem::take(&mut inside.is_wanted)
    }

    /// Asks for a flush of a part; its number.
    pub(crate) fn flush_part(&self, scope: Scope) -> u64 {
        let mut inside = self.guard();
        inside.part_last += 1;
        let number = inside.part_last;
        let part = Part { number, scope };
        let state = PartState { part, stands: Flush::Busy, told: Told::default() };
        inside.parts.insert(number, state);
        self.bell.notify_all();
        number
    }

    /// The first that is not over.
    fn next_part(&self) -> Option<Part> {
        let inside = self.guard();
        let busy = inside.parts.values().find(|state| state.stands == Flush::Busy);
        busy.map(|state| state.part.clone())
    }

    /// What a round of it came to.
    pub(crate) fn tell_part(&self, number: u64, report: &Report, left: u64) {
        if let Some(state) = self.guard().parts.get_mut(&number) {
            tell(&mut state.told, report);
            state.told.unsaved = left;
        }
    }

    pub(crate) fn end_part(&self, number: u64, is_done: bool) {
        if let Some(state) = self.guard().parts.get_mut(&number) {
            state.stands = if is_done { Flush::Done } else { Flush::Failed };
        }
    }

    /// How it stands, and what is told of it.
    pub(crate) fn part(&self, number: u64) -> (Flush, Told) {
        let inside = self.guard();
        let Some(state) = inside.parts.get(&number) else {
            return (Flush::Failed, Told::default());
        };
        let mut told = state.told.clone();
        if told.error.is_none() {
            told.error.clone_from(&inside.told.error);
        }
        if state.stands == Flush::Busy {
            told.unsaved = told.unsaved.max(self.counts.left.load(Ordering::Relaxed));
            told.bytes_left += self.counts.bytes.load(Ordering::Relaxed);
        }
        (state.stands, told)
    }

    /// Nobody asks for it any more.
    pub(crate) fn forget_part(&self, number: u64) {
        self.guard().parts.remove(&number);
    }

    /// The instance is about to end. True when it has taken away what is its own below; who waits for
    /// that waits no longer than `patience`.
    pub(crate) fn leave(&self, patience: Duration) -> bool {
        let mut inside = self.guard();
        inside.leaves = true;
        self.counts.is_urgent.store(true, Ordering::Relaxed);
        self.bell.notify_all();
        let goes_on = |inside: &mut Inside| !inside.has_left && !inside.is_over;
        let waited = self.bell.wait_timeout_while(inside, patience, goes_on);
        inside = waited.unwrap_or_else(PoisonError::into_inner).0;
        inside.has_left
    }

    fn leaves(&self) -> bool {
        self.guard().leaves
    }

    pub(crate) fn is_over(&self) -> bool {
        self.guard().is_over
    }

    /// The thread that works ends after its round.
    pub(crate) fn end(&self) {
        self.guard().is_over = true;
        self.counts.brake.release();
        self.bell.notify_all();
    }

    /// Waits for a flush that is asked for, or until `until`. The last that is asked for; `None`: it is
    /// over.
    fn wait(&self, until: Instant) -> Option<u64> {
        let mut inside = self.guard();
        loop {
            if inside.is_over {
                return None;
            }
            let left = until.saturating_duration_since(Instant::now());
            let is_flush = inside.asked > inside.settled();
            let has_part = inside.parts.values().any(|state| state.stands == Flush::Busy);
            if left.is_zero() || is_flush || has_part || inside.is_wanted || inside.leaves {
                return Some(inside.asked);
            }
            inside = self.bell.wait_timeout(inside, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn is_flush_wanted(&self) -> bool {
        let inside = self.guard();
        inside.asked > inside.settled()
    }

    fn settled(&self) -> u64 {
        self.guard().settled()
    }

    /// Is a flush done with this round, well or not?
    fn judge(&self, asked: u64, done: &Tried<Report>, has_failed: bool) {
        let mut inside = self.guard();
        match done {
            Ok(report) if report.is_quiet() => inside.done = asked,
            _ if has_failed => {
                inside.failed = asked;
                let mut told = inside.told.clone();
                if let Ok(report) = done
                    && report.failures.is_empty()
                {
                    (told.failed, told.failures) = (report.open, report.left.clone());
                }
                inside.told_of_failed = told;
            }
            _ => return,
        }
        drop(inside);
        self.bell.notify_all();
    }
}

/// What the thread that works knows.
pub(crate) struct Watch<'a> {
    pub(crate) above: &'a dyn Above,
    pub(crate) news: &'a dyn Fn() -> Result<(Vec<u64>, u64)>,
    pub(crate) lower: &'a dyn Lower,
    pub(crate) waited: &'a dyn Waited,
    pub(crate) board: Arc<Board>,
    pub(crate) threads: usize,
    pub(crate) idle: Duration,
}

impl Watch<'_> {
    /// Works until it is over.
    pub(crate) fn run(&self) {
        let mut memory = Memory::default();
        let (mut seen, mut due) = (Vec::new(), Instant::now());
        let (mut pause, mut vain) = (BACK_OFF, Vain::default());
        let mut tick = Instant::now();
        let mut aside_until = None;
        while let Some(asked) = self.board.wait(due.min(tick)) {
            if self.board.leaves() {
                return self.leave(&mut memory);
            }
            if self.board.take_wanted() {
                self.save_wanted(&mut memory);
            }
            if let Some(part) = self.board.next_part() {
                self.flush_part(&part, &mut memory);
            }
            if Instant::now() < due.min(tick) && !self.board.is_flush_wanted() {
                continue;
            }
            let is_flush = self.board.is_flush_wanted();
            tick = Instant::now() + TICK;
            let news = (self.news)();
            let is_new = match &news {
                Ok((numbers, unsaved)) => {
                    self.board.guard().told.unsaved = *unsaved;
                    *numbers != seen && *unsaved > 0 && pause == BACK_OFF
                }
                Err(_) => false,
            };
            if !is_flush && !is_new && Instant::now() < due {
                continue;
            }
            seen = news.map(|(numbers, _)| numbers).unwrap_or_default();
            let how = if is_flush { How::Flush } else { How::Plainly };
            let done = self.round(how, &Scope::default(), &mut memory);
            if is_flush && matches!(&done, Ok(report) if report.is_aside_alone()) {
                let until = *aside_until.get_or_insert_with(|| Instant::now() + ASIDE_PATIENCE);
                if Instant::now() < until {
                    std::thread::sleep(PAUSE);
                    continue;
                }
            }
            aside_until = None;
            let is_vain = done.as_ref().map_or(true, |report| report.saved == 0);
            let has_failed = done.as_ref().map_or(true, |report| report.failed > 0);
            due = Instant::now()
                + match &done {
                    _ if has_failed && is_vain => {
                        let now = pause;
                        pause = (pause * 2).min(BACK_OFF_MAX);
                        now
                    }
                    Ok(report) if report.open > 0 || report.saved > 0 => PAUSE,
                    Ok(report) if report.waiting > 0 => TICK,
                    _ => Duration::MAX / 4,
                };
            if !has_failed {
                pause = BACK_OFF;
            }
            if is_flush {
                let has_failed = vain.is_enough(self.board.settled(), &done);
                self.board.judge(asked, &done, has_failed);
            }
        }
    }

    /// The last round: after it nothing is saved any more.
    fn leave(&self, memory: &mut Memory) {
        // What failed is left, and told in the log.
        let _ = self.round(How::Leave, &Scope::default(), memory);
        self.board.guard().has_left = true;
        self.board.bell.notify_all();
    }

    /// A round of all, or of what is in a scope.
    pub(crate) fn round(&self, how: How, scope: &Scope, memory: &mut Memory) -> Tried<Report> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let nanos = |time: Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
        let manner =
            Manner { threads: self.threads, idle_nanos: nanos(self.idle), how, now: nanos(now) };
        let counts = &self.board.counts;
        let done = run(self.above, self.lower, (manner, scope), memory, counts);
        counts.clear();
        counts.judge(&done);
        if done.as_ref().is_ok_and(|report| report.saved > 0 || report.parts > 0) {
            counts.moves();
        }
        if scope.is_only {
            if let Ok(report) = &done {
                add(&mut self.board.guard().told, report);
            }
            return done;
        }
        let unsaved = (self.news)().map_or(1, |(_, unsaved)| unsaved);
        let mut inside = self.board.guard();
        let told = &mut inside.told;
        told.unsaved = unsaved;
        match &done {
            Ok(report) => tell(told, report),
            Err(trouble) => {
                let text = trouble.to_string();
                if told.error.as_ref() != Some(&text) {
                    tracing::error!("nothing can be saved: {text}");
                }
                told.error = Some(text);
            }
        }
        done
    }
}

fn tell(told: &mut Told, report: &Report) {
    told.error = None;
    add(told, report);
    told.bytes_left = report.bytes_left;
    (told.waiting, told.held) = (report.waiting, report.held);
    if report.failures != told.failures {
        for (path, why) in &report.failures {
            tracing::warn!("{} is not saved: {why}", path.display());
        }
    }
    (told.failed, told.failures) = (report.failed, report.failures.clone());
}

/// What was saved.
fn add(told: &mut Told, report: &Report) {
    told.saved += report.saved;
    told.bytes_saved += report.bytes + report.parts;
    told.lost += report.lost;
    for (path, what) in &report.conflicts {
        tracing::warn!("{} {what}", path.display());
        told.conflicts += 1;
        if told.conflicted.len() < CONFLICTS_MAX {
            told.conflicted.push((path.clone(), what.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_fails_after_rounds_of_its_own_in_vain() {
        let round = |saved, failed, open| Ok(Report { saved, failed, open, ..Report::default() });
        let mut vain = Vain::default();
        let rounds = |vain: &mut Vain, after, done: &Tried<Report>| {
            (1..100).find(|_| vain.is_enough(after, done)).expect("it fails some time")
        };
        assert_eq!(rounds(&mut vain, 1, &round(0, 1, 0)), VAIN_ROUNDS);
        // The next begins anew, and is patient with what others change.
        assert_eq!(rounds(&mut vain, 2, &round(0, 0, 1)), CONTENDED_ROUNDS);
        assert!(!vain.is_enough(3, &round(0, 0, 1)) && !vain.is_enough(3, &round(1, 1, 1)));
        assert_eq!(rounds(&mut vain, 3, &round(0, 1, 1)), VAIN_ROUNDS);
    }

    #[test]
    fn a_flush_that_fails_has_a_reason_that_stays() {
        let board = Board::default();
        let number = board.flush();
        let path = PathBuf::from("new");
        let left = vec![(path.clone(), "it was changed".to_owned())];
        let report = Report { open: 1, left: left.clone(), ..Report::default() };
        tell(&mut board.guard().told, &report);
        board.judge(number, &Ok(report), true);
        tell(&mut board.guard().told, &Report::default());
        assert_eq!(board.stands(number), Flush::Failed);
        let told = board.told_of_failed();
        assert_eq!((told.failed, told.failures), (1, left));
    }
}
