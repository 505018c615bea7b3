//! The whole labelled set of workloads: `it/advice` has it, and what it compares.

use crate::advice::the_whole_set;

#[test]
fn advice_is_right_and_complete_in_19_of_20_findings() {
    the_whole_set();
}
