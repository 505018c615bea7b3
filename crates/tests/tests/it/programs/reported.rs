//! Faults that users reported of other file systems and programs: each case of `tests/cases` on one
//! kind of instance; each on all kinds in `soak::programs`.

use crate::support::reported::{Kind, run};

#[test]
fn reported_cases_pass_on_one_daemon() {
    run(Kind::One, &["0[3-8]-*", "18-*"]);
}

#[test]
fn reported_cases_pass_on_four_daemons() {
    run(Kind::Four, &["0[129]-*", "1[0-5]-*"]);
}

#[test]
fn reported_cases_pass_over_a_backing_directory() {
    run(Kind::Backed, &["1[679]-*", "2*"]);
}
