//! One order of changes: those that are proposed together are stored and made together.

use cluster::change::{Change, Tenure};
use cluster::consensus::{Consensus, Output};
use cluster::membership::{Membership, ServiceIndex};
use wire::DaemonIndex;

/// The only voter of an instance, and its first outputs.
fn alone() -> Consensus {
    let membership = Membership::initial(&[0, 1, 2], 3, 1, false).expect("a setup");
    let own = DaemonIndex(0);
    let mut consensus = Consensus::begin(own, &[own], &membership, 1).expect("a voter");
    consensus.start(&mut Vec::new());
    assert!(consensus.leads());
    consensus
}

fn count(out: &[Output], is: impl Fn(&Output) -> bool) -> usize {
    out.iter().filter(|it| is(it)).count()
}

#[test]
fn changes_that_are_proposed_together_are_stored_and_made_together() {
    let add = |service, follower| Change::AddFollower {
        of: Tenure { service: ServiceIndex(service), epoch: 1 },
        follower: DaemonIndex(follower),
    };
    // The second one is refused, and the third one is made.
    let changes = [add(0, 1), add(0, 1), add(1, 2)];
    let (mut consensus, mut out) = (alone(), Vec::new());
    let before = consensus.membership().epoch;
    consensus.propose_all(&changes, &mut out).expect("it leads");
    assert_eq!(consensus.membership().epoch, before + 2);
    let (mut single, mut outputs) = (alone(), Vec::new());
    for change in &changes {
        single.propose(change, &mut outputs).expect("it leads");
    }
    assert_eq!(single.membership(), consensus.membership());
    let is_tail = |it: &Output| matches!(it, Output::Tail(_));
    assert_eq!(3 * count(&out, is_tail), count(&outputs, is_tail));
    let is_changed = |it: &Output| *it == Output::Changed;
    assert_eq!((count(&out, is_changed), count(&outputs, is_changed)), (1, 2));
}
