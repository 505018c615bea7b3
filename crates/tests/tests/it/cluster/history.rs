//! Operations on a few names by programs of several hosts, and whether they could have happened one
//! after the other: each at one moment between its call and its return. One that failed may have
//! happened at any moment after its call, or not at all. A link happens at two moments, as in a local
//! file system: at the first its source is found, at the second that file gets the name.

use std::collections::HashSet;
use std::time::Instant;

/// Names of a history.
pub(super) const NAMES: usize = 4;

/// The symbolic link behind each name, by the number that is its target: no two are made with the same.
type Names = [Option<u32>; NAMES];

/// An operation on names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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

/// A moment of the search: how far each program is, which of the failed operations before that may happen
/// yet, and the names.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
struct Moment {
    next: Vec<usize>,
    open: Vec<(usize, usize)>,
    names: Names,
    /// The sources that links of each program have found.
    sources: Vec<Option<u32>>,
}

/// Whether some order explains what the programs saw, beginning without any name. Each list is of one
/// program, in its order.
pub(super) fn is_explained(programs: &[Vec<Deed>]) -> bool {
    let (next, sources) = (vec![0; programs.len()], vec![None; programs.len()]);
    let first = Moment { next, sources, ..Moment::default() };
    let (mut seen, mut stack) = (HashSet::new(), vec![first]);
    while let Some(moment) = stack.pop() {
        let is_at_end = programs.iter().zip(&moment.next).all(|(deeds, &next)| next == deeds.len());
        if is_at_end {
            return true;
        }
        if seen.insert(moment.clone()) {
            stack.extend(followers(programs, &moment));
        }
    }
    false
}

/// The moments that may come next.
fn followers(programs: &[Vec<Deed>], moment: &Moment) -> Vec<Moment> {
    let next = |program: usize| programs[program].get(moment.next[program]);
    let is_known = |deed: &&Deed| deed.ending != Ending::Failed;
    let ends = (0..programs.len()).filter_map(|program| next(program).filter(is_known));
    // Nothing that began after one of these had ended may come before it.
    let first_end = ends.map(|deed| deed.ended).min();
    let mut moments = Vec::new();
    for program in 0..programs.len() {
        let Some(deed) = next(program).filter(|deed| first_end.is_none_or(|end| deed.began <= end))
        else {
            continue;
        };
        let mut after = moment.clone();
        after.next[program] += 1;
        if deed.ending == Ending::Failed {
            after.open.push((program, moment.next[program]));
            after.open.sort_unstable();
            moments.push(after);
        } else if let Operation::Link { from, to } = deed.operation {
            moments.extend(after_link(moment, program, (from, to), deed.ending));
        } else if deed.operation.act(&mut after.names) == deed.ending {
            moments.push(after);
        }
    }
    for (at, &(program, index)) in moment.open.iter().enumerate() {
        let mut after = moment.clone();
        after.open.remove(at);
        programs[program][index].operation.act(&mut after.names);
        // Without an effect it is as if it had not happened.
        if after.names != moment.names {
            moments.push(after);
        }
    }
    moments
}

/// The next moment of a link that ended so, if there is one.
fn after_link(
    moment: &Moment,
    program: usize,
    (from, to): (usize, usize),
    ending: Ending,
) -> Option<Moment> {
    let mut after = moment.clone();
    let Some(source) = moment.sources[program] else {
        match moment.names[from] {
            None if ending != Ending::Absent => return None,
            None => after.next[program] += 1,
            found => after.sources[program] = found,
        }
        return Some(after);
    };
    (after.sources[program], after.next[program]) = (None, moment.next[program] + 1);
    let (is_there, is_free) = (moment.names.contains(&Some(source)), moment.names[to].is_none());
    match ending {
        Ending::Absent if !is_there => {}
        Ending::Exists if !is_free => {}
        Ending::Done if is_there && is_free => after.names[to] = Some(source),
        _ => return None,
    }
    Some(after)
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
}
