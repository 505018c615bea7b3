//! Operations on a few names by programs of several hosts, and whether they could have happened one
//! after the other: each at one moment between its call and its return. One that failed may have
//! happened at any moment after its call, or not at all. A link happens at two moments, as in a local
//! file system: at the first its source is found, at the second that file gets the name.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Instant;

/// Names of a history.
pub(super) const NAMES: usize = 4;

/// The symbolic link behind each name, by the number that is its target: no two are made with the same.
type Names = [Option<u32>; NAMES];

/// An operation on names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Operation {
    Make { name: usize, link: u32 },
    Look { name: usize },
    Remove { name: usize },
    Move { from: usize, to: usize },
    Link { from: usize, to: usize },
}

/// How an operation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ending {
    Done,
    Found(u32),
    /// ENOENT.
    Absent,
    /// EEXIST.
    Exists,
    /// EIO: it is unknown whether it happened.
    Failed,
}

impl Operation {
    /// The names that it uses.
    const fn names(self) -> NameSet {
        match self {
            Operation::Make { name, .. }
            | Operation::Look { name }
            | Operation::Remove { name } => 1 << name,
            Operation::Move { from, to } | Operation::Link { from, to } => 1 << from | 1 << to,
        }
    }

    /// Makes the operation.
    fn act(self, names: &mut Names) -> Ending {
        let source = match self {
            Operation::Make { link, .. } => Some(link),
            Operation::Look { name } | Operation::Remove { name } => names[name],
            Operation::Move { from, .. } | Operation::Link { from, .. } => names[from],
        };
        let Some(link) = source else { return Ending::Absent };
        match self {
            Operation::Look { .. } => return Ending::Found(link),
            Operation::Remove { name } => names[name] = None,
            Operation::Make { name: to, .. } | Operation::Link { to, .. } => {
                if names[to].is_some() {
                    return Ending::Exists;
                }
                names[to] = source;
            }
            // Two names of one link stay as they are.
            Operation::Move { from, to } if names[to] != source => {
                (names[from], names[to]) = (None, source);
            }
            Operation::Move { .. } => {}
        }
        Ending::Done
    }
}

/// An operation of a program, and how it ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deed {
    pub(super) operation: Operation,
    pub(super) began: Instant,
    pub(super) ended: Instant,
    pub(super) ending: Ending,
}

impl Deed {
    pub(super) fn has_failed(&self) -> bool {
        self.ending == Ending::Failed
    }

    /// Whether it may end so at another moment and change names then: two names of one link stay as
    /// they are.
    fn acts_elsewhere(&self) -> bool {
        matches!(self.operation, Operation::Move { .. }) && self.ending == Ending::Done
    }
}

/// Whether some order explains what the programs saw.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    Explained,
    Contradicted,
    /// The search has seen too many moments.
    Undecided,
}

/// Moments that a search remembers.
const MOMENTS_MAX: usize = 1 << 20;

/// A set of names, a bit for each.
type NameSet = u8;

const ALL_NAMES: NameSet = (1 << NAMES) - 1;

/// A set of deeds, a bit for each by its number.
type DeedSet = u128;

/// A moment of the search.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Moment {
    /// The next deed of each program that did not fail, by its place in the list.
    next: Vec<usize>,
    names: Names,
    /// The sources that links have found, by the numbers of the deeds.
    sources: BTreeMap<usize, u32>,
    /// Names of which the next step uses one: a failed deed happens right before a step to which it
    /// matters. None: any step may come.
    awaited: NameSet,
    /// A name that the next step changes: a failed link has just found its source there, which
    /// matters if it is elsewhere then.
    leaves: Option<usize>,
}

impl Moment {
    /// Whether a step that uses these names, and leads to `after`, may come.
    fn awaits(&self, used: NameSet, after: &Moment) -> bool {
        let is_used = self.awaited == 0 || self.awaited & used != 0;
        is_used && self.leaves.is_none_or(|name| after.names[name] != self.names[name])
    }

    /// Numbers the links anew that no program has found: which they are matters to nobody, but which of
    /// them are one link.
    fn forget_unseen(&mut self, seen: &BTreeSet<u32>) {
        let mut unseen = Vec::new();
        let links = self.names.iter_mut().flatten().chain(self.sources.values_mut());
        for link in links.filter(|link| !seen.contains(link)) {
            let known = unseen.iter().position(|it| it == link);
            let at = known.unwrap_or_else(|| {
                unseen.push(*link);
                unseen.len() - 1
            });
            *link = u32::MAX - at as u32;
        }
    }

    /// The second moment of a link, which has found this source. `None`: it cannot end so.
    fn end_link(&mut self, source: u32, to: usize, ending: Ending) -> Option<()> {
        let (is_there, is_free) = (self.names.contains(&Some(source)), self.names[to].is_none());
        match ending {
            Ending::Absent if !is_there => {}
            Ending::Exists if !is_free => {}
            Ending::Done if is_there && is_free => self.names[to] = Some(source),
            _ => return None,
        }
        Some(())
    }
}

/// A search for an order, depth first. Of two ways to a moment the one on which fewer failed deeds have
/// happened is the better one: the others may happen yet, or not at all.
struct Search<'a> {
    programs: &'a [Vec<Deed>],
    /// Links that a program has found.
    found: BTreeSet<u32>,
    /// The number of the first deed of each program.
    firsts: Vec<usize>,
    /// Moments that were looked at, with the failed deeds that had happened.
    seen: HashMap<Moment, Vec<DeedSet>>,
    /// Moments to look at.
    stack: Vec<(Moment, DeedSet)>,
}

/// Whether some order explains what the programs saw, beginning without any name. Each list is of one
/// program, in its order.
pub(super) fn verdict(programs: &[Vec<Deed>]) -> Verdict {
    let mut search = Search::new(programs);
    while let Some((moment, happened)) = search.stack.pop() {
        if (0..programs.len()).all(|program| search.next(&moment, program).is_none()) {
            return Verdict::Explained;
        }
        if search.is_new(&moment, happened) {
            search.go_on(&moment, happened);
        }
        if search.seen.len() > MOMENTS_MAX {
            return Verdict::Undecided;
        }
    }
    Verdict::Contradicted
}

impl<'a> Search<'a> {
    fn new(programs: &'a [Vec<Deed>]) -> Search<'a> {
        let counts = programs.iter().map(Vec::len);
        let firsts = counts.scan(0, |sum, count| Some(std::mem::replace(sum, *sum + count)));
        let (firsts, seen, stack) = (firsts.collect(), HashMap::new(), Vec::new());
        let found = programs.iter().flatten().filter_map(|deed| match deed.ending {
            Ending::Found(link) => Some(link),
            _ => None,
        });
        let mut search = Search { programs, found: found.collect(), firsts, seen, stack };
        assert!(programs.iter().map(Vec::len).sum::<usize>() <= DeedSet::BITS as usize);
        let next = (0..programs.len()).map(|program| search.known_from(program, 0)).collect();
        let (names, sources) = (Names::default(), BTreeMap::new());
        let first = Moment { next, names, sources, awaited: 0, leaves: None };
        search.stack.push((first, 0));
        search
    }

    /// The place of the first deed from `at` that did not fail.
    fn known_from(&self, program: usize, at: usize) -> usize {
        let deeds = &self.programs[program];
        let is_known = |at: &usize| !deeds[*at].has_failed();
        (at..deeds.len()).find(is_known).unwrap_or(deeds.len())
    }

    fn next(&self, moment: &Moment, program: usize) -> Option<&'a Deed> {
        self.programs[program].get(moment.next[program])
    }

    /// Notes that a moment is looked at; false if a way that is as good was.
    fn is_new(&mut self, moment: &Moment, happened: DeedSet) -> bool {
        let known = self.seen.entry(moment.clone()).or_default();
        if known.iter().any(|fewer| fewer & !happened == 0) {
            return false;
        }
        known.retain(|more| happened & !more != 0);
        known.push(happened);
        true
    }

    fn push(&mut self, mut moment: Moment, happened: DeedSet) {
        if self.has_lost_source(&moment) {
            return;
        }
        moment.forget_unseen(&self.found);
        self.stack.push((moment, happened));
    }

    /// Adds the moments that may come next.
    fn go_on(&mut self, moment: &Moment, happened: DeedSet) {
        let programs = 0..self.programs.len();
        let known = programs.filter_map(|it| Some((it, self.next(moment, it)?)));
        let known: Vec<(usize, &Deed)> = known.collect();
        // Nothing that began after one of these had ended may come before it.
        let Some(first_end) = known.iter().map(|(_, deed)| deed.ended).min() else { return };
        let may_come = known.into_iter().filter(|(_, deed)| deed.began <= first_end);
        let mut after: Vec<Moment> = Vec::new();
        for (program, deed) in may_come {
            let Some(step) = self.step(moment, program, deed) else { continue };
            let is_same = step.names == moment.names && step.sources == moment.sources;
            if is_same && !deed.acts_elsewhere() {
                // It may as well come now: it changes nothing for others.
                return self.push(step, happened);
            }
            after.push(step);
        }
        self.let_failed_happen(moment, happened, first_end);
        after.into_iter().for_each(|step| self.push(step, happened));
    }

    /// The moment after the next step of a deed whose end is known, if it could end so.
    fn step(&self, moment: &Moment, program: usize, deed: &Deed) -> Option<Moment> {
        let at = moment.next[program];
        let (number, mut after) = (self.firsts[program] + at, moment.clone());
        (after.awaited, after.leaves) = (0, None);
        let mut used = deed.operation.names();
        if let Operation::Link { from, to } = deed.operation {
            if let Some(source) = after.sources.remove(&number) {
                used = ALL_NAMES;
                after.end_link(source, to, deed.ending)?;
            } else if let Some(source) = after.names[from] {
                after.sources.insert(number, source);
                return moment.awaits(1 << from, &after).then_some(after);
            } else if deed.ending != Ending::Absent {
                return None;
            }
        } else if deed.operation.act(&mut after.names) != deed.ending {
            return None;
        }
        after.next[program] = self.known_from(program, at + 1);
        moment.awaits(used, &after).then_some(after)
    }

    /// Deeds that failed and may happen now: of those that would do the same the first one.
    fn failed(
        &self,
        moment: &Moment,
        happened: DeedSet,
        first_end: Instant,
    ) -> BTreeMap<Operation, (Instant, usize)> {
        let mut found = BTreeMap::new();
        for (program, deeds) in self.programs.iter().enumerate() {
            for (at, deed) in deeds[..moment.next[program]].iter().enumerate() {
                let number = self.firsts[program] + at;
                let may_come =
                    deed.has_failed() && happened >> number & 1 == 0 && deed.began <= first_end;
                if !may_come {
                    continue;
                }
                let (mut operation, begun) = (deed.operation, (deed.began, number));
                match &mut operation {
                    Operation::Make { link, .. } if !self.found.contains(link) => *link = u32::MAX,
                    Operation::Link { to, .. } if moment.sources.contains_key(&number) => {
                        // By its source it differs from others.
                        *to += NAMES * (number + 1);
                    }
                    _ => {}
                }
                let first = found.entry(operation).or_insert(begun);
                *first = begun.min(*first);
            }
        }
        found
    }

    /// Adds the moments after deeds that failed and have an effect now.
    fn let_failed_happen(&mut self, moment: &Moment, happened: DeedSet, first_end: Instant) {
        for (_, number) in self.failed(moment, happened, first_end).into_values() {
            let operation = self.deed(number).operation;
            let (mut after, then) = (moment.clone(), happened | 1 << number);
            let mut used = operation.names();
            (after.awaited, after.leaves) = (used, None);
            if let Operation::Link { from, to } = operation {
                if let Some(source) = after.sources.remove(&number) {
                    (used, after.awaited) = (ALL_NAMES, 0);
                    let _ = after.end_link(source, to, Ending::Done);
                } else if let Some(source) = after.names[from] {
                    let mut between = Moment { leaves: Some(from), awaited: 0, ..after.clone() };
                    between.sources.insert(number, source);
                    if moment.awaits(1 << from, &between) {
                        self.push(between, happened);
                    }
                    let _ = after.end_link(source, to, Ending::Done);
                }
            } else {
                operation.act(&mut after.names);
            }
            // Without an effect it is as if it had not happened.
            if after.names != moment.names && moment.awaits(used, &after) {
                self.push(after, then);
            }
        }
    }

    /// Whether a link that failed has found a source that has no name any more: it is as if it had not.
    fn has_lost_source(&self, moment: &Moment) -> bool {
        moment.sources.iter().any(|(&number, &source)| {
            let deed = self.deed(number);
            deed.has_failed() && !moment.names.contains(&Some(source))
        })
    }

    fn deed(&self, number: usize) -> &'a Deed {
        let program = self.firsts.partition_point(|&first| first <= number) - 1;
        &self.programs[program][number - self.firsts[program]]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// A history of deeds by program: operation, begin and end in seconds, ending.
    fn history(programs: &[&[(Operation, u64, u64, Ending)]]) -> Vec<Vec<Deed>> {
        let start = Instant::now();
        let at = |second: u64| start + Duration::from_secs(second);
        let deed = |&(operation, began, ended, ending): &(Operation, u64, u64, Ending)| Deed {
            operation,
            began: at(began),
            ended: at(ended),
            ending,
        };
        programs.iter().map(|deeds| deeds.iter().map(deed).collect()).collect()
    }

    const MAKE: Operation = Operation::Make { name: 0, link: 7 };
    const LOOK: Operation = Operation::Look { name: 0 };

    #[test]
    fn histories_without_an_order_are_found() {
        let is_so = |programs: &[&[_]]| is_explained(&history(programs));
        // At once: either order.
        assert!(is_so(&[&[(MAKE, 0, 9, Ending::Done)], &[(LOOK, 1, 2, Ending::Absent)]]));
        assert!(is_so(&[&[(MAKE, 0, 9, Ending::Done)], &[(LOOK, 1, 2, Ending::Found(7))]]));
        // It had been made.
        assert!(!is_so(&[&[(MAKE, 0, 1, Ending::Done)], &[(LOOK, 2, 3, Ending::Absent)]]));
        // Found, and then no more.
        let seen = [(LOOK, 1, 2, Ending::Found(7)), (LOOK, 3, 4, Ending::Absent)];
        assert!(!is_so(&[&[(MAKE, 0, 9, Ending::Done)], &seen]));
        // A repetition that took effect twice.
        assert!(!is_so(&[&[(MAKE, 0, 1, Ending::Exists)]]));
        // One that failed happens later, or never; but not before it was called.
        let fails = (MAKE, 2, 3, Ending::Failed);
        assert!(is_so(&[
            &[fails],
            &[(LOOK, 4, 5, Ending::Absent), (LOOK, 6, 7, Ending::Found(7))]
        ]));
        assert!(is_so(&[&[fails], &[(LOOK, 4, 5, Ending::Absent)]]));
        assert!(!is_so(&[&[fails], &[(LOOK, 0, 1, Ending::Found(7))]]));
        // Two names of one link are not changed by a move of one onto the other.
        let link = (Operation::Link { from: 0, to: 1 }, 2, 3, Ending::Done);
        let moved = (Operation::Move { from: 0, to: 1 }, 4, 5, Ending::Done);
        let made = (MAKE, 0, 1, Ending::Done);
        assert!(is_so(&[&[made, link, moved, (LOOK, 6, 7, Ending::Found(7))]]));
        assert!(!is_so(&[&[made, link, moved, (LOOK, 6, 7, Ending::Absent)]]));
        // It takes long, and happens when they are two names of one link no more.
        let slow = (Operation::Move { from: 0, to: 1 }, 4, 20, Ending::Done);
        let removed = (Operation::Remove { name: 1 }, 5, 6, Ending::Done);
        let (there, gone) = (look(0), look(1));
        let seen = [
            removed,
            (there, 7, 8, Ending::Found(7)),
            (there, 9, 10, Ending::Absent),
            (gone, 11, 12, Ending::Found(7)),
        ];
        assert!(is_so(&[&[made, link, slow], &seen]));
        let lost = [removed, (gone, 21, 22, Ending::Absent), (there, 23, 24, Ending::Absent)];
        assert!(!is_so(&[&[made, link, slow], &lost]));
        // The source of a link moves, or goes, after it was found.
        let again = (Operation::Link { from: 0, to: 0 }, 2, 9, Ending::Done);
        let away = (Operation::Move { from: 0, to: 1 }, 3, 4, Ending::Done);
        assert!(is_so(&[&[made, again, (LOOK, 10, 11, Ending::Found(7))], &[away]]));
        assert!(!is_so(&[&[made, again]]));
        assert!(!is_so(&[&[made, again], &[(Operation::Remove { name: 0 }, 3, 4, Ending::Done)]]));
        let lost = (Operation::Link { from: 0, to: 1 }, 2, 9, Ending::Absent);
        assert!(is_so(&[&[made, lost], &[(Operation::Remove { name: 0 }, 3, 4, Ending::Done)]]));
        assert!(!is_so(&[&[made, lost]]));
    }

    fn is_explained(programs: &[Vec<Deed>]) -> bool {
        let found = verdict(programs);
        assert_ne!(found, Verdict::Undecided);
        found == Verdict::Explained
    }

    #[test]
    fn failed_operations_keep_the_order_of_what_came_after_them() {
        let fails = (Operation::Remove { name: 3 }, 0, 1, Ending::Failed);
        let made = (MAKE, 2, 3, Ending::Done);
        // The first program's second operation had ended.
        let seen = [(LOOK, 4, 5, Ending::Absent)];
        assert!(!is_explained(&history(&[&[fails, made], &seen])));
        let seen = [(LOOK, 4, 5, Ending::Found(7))];
        assert!(is_explained(&history(&[&[fails, made], &seen])));
        // One that failed happens behind what its program did later.
        let late = (Operation::Remove { name: 0 }, 0, 1, Ending::Failed);
        let gone = [(LOOK, 4, 5, Ending::Absent)];
        assert!(is_explained(&history(&[&[late, made], &gone])));
        // A link that failed found its source, which moved before it made the name.
        let link = (Operation::Link { from: 0, to: 1 }, 0, 1, Ending::Failed);
        let moved = (Operation::Move { from: 0, to: 2 }, 4, 5, Ending::Done);
        let both = [(LOOK, 6, 7, Ending::Absent), (look(1), 8, 9, Ending::Found(7))];
        assert!(is_explained(&history(&[&[link], &[made, moved, both[0], both[1]]])));
        let removed = (Operation::Remove { name: 0 }, 4, 5, Ending::Done);
        let both = [(look(1), 6, 7, Ending::Absent), (look(1), 8, 9, Ending::Found(7))];
        assert!(!is_explained(&history(&[&[link], &[made, removed, both[0], both[1]]])));
    }

    /// More than a round has, with a contradiction at the end: all orders are looked at.
    #[test]
    fn many_failed_operations_are_decided() {
        let operation = |number: u32| match number % 3 {
            0 => Operation::Make { name: number as usize % NAMES, link: number },
            1 => Operation::Remove { name: number as usize % NAMES },
            _ => {
                Operation::Link { from: number as usize % NAMES, to: (number as usize + 1) % NAMES }
            }
        };
        let failed: Vec<_> = (0..28).map(|it| (operation(it), 0, 1, Ending::Failed)).collect();
        let mut seen: Vec<_> =
            (0..20).map(|it| (look(it as usize % NAMES), 2 + it, 3 + it, Ending::Absent)).collect();
        let programs = failed.chunks(7).collect::<Vec<_>>();
        let with = |seen: &[_]| history(&[&programs[..], &[seen]].concat());
        assert!(is_explained(&with(&seen)));
        seen.push((look(0), 30, 31, Ending::Found(1000)));
        assert!(!is_explained(&with(&seen)));
    }

    const fn look(name: usize) -> Operation {
        Operation::Look { name }
    }
}
