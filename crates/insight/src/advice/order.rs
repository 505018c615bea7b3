//! Random and consecutive access.

use super::{Finding, Severity, percent, share};
use crate::pattern::Direction;
use crate::profile::{JobProfile, Transfers};
use crate::text;

/// Fewer transfers than this are never many.
const MANY: u64 = 1000;

pub(super) fn advise(job: &JobProfile, findings: &mut Vec<Finding>) {
    for direction in Direction::ALL {
        // A first transfer is in no order, so uses are counted each for itself.
        let (mut number, mut random) = (0_u64, 0_u64);
        let mut marked = Vec::new();
        for file in &job.files {
            let each = || file.uses.iter().map(|one| direction.of(one));
            let here: u64 = each().map(Transfers::random).fold(0, u64::saturating_add);
            number =
                number.saturating_add(each().map(|one| one.number).fold(0, u64::saturating_add));
            random = random.saturating_add(here);
            marked.push((here, file.path.as_str()));
        }
        let is_random = share(random as f64, number as f64) > 0.2;
        if is_random && random > MANY {
            findings.push(random_access(direction, random, number).naming(marked));
        } else if !is_random && number > MANY {
            findings.push(in_order(direction, number - random, number));
        }
    }
}

fn random_access(direction: Direction, random: u64, number: u64) -> Finding {
    let verb = direction.verb();
    let evidence = format!(
        "{} of {} {verb}s ({}) begin before the end of the one before",
        text::count(random),
        text::count(number),
        percent(random as f64, number as f64)
    );
    let (trigger, change) = match direction {
        Direction::Read => (
            "random-reads",
            "sort the accesses, or stage the file into memory before: forebay stage in --tier memory",
        ),
        Direction::Write => {
            ("random-writes", "sort the accesses, or write a log that is sorted at the end")
        }
    };
    Finding::new(trigger, Severity::High, evidence, change)
}

fn in_order(direction: Direction, ordered: u64, number: u64) -> Finding {
    let verb = direction.verb();
    let evidence = format!("{} of the {verb}s go forward", percent(ordered as f64, number as f64));
    let trigger = match direction {
        Direction::Read => "ordered-reads",
        Direction::Write => "ordered-writes",
    };
    Finding::new(trigger, Severity::Ok, evidence, "")
}
