//! All cases of `tests/programs` by the ways of `--access` by which `make test` runs a part, and all
//! of `tests/cases` on all kinds of instances.

use crate::support::cases::on_instances;
use crate::support::mounted::has_fuse;
use crate::support::reported::{Kind, run};

#[test]
fn all_programs_work_preload_only() {
    on_instances("tests/programs", "preload", &[]);
}

#[test]
fn all_programs_work_by_a_mount_alone() {
    if has_fuse() {
        on_instances("tests/programs", "mount", &[]);
        on_instances("tests/refused", "mount", &[]);
    }
}

#[test]
fn all_reported_cases_pass_on_all_kinds_of_instances() {
    for kind in [Kind::One, Kind::Four, Kind::Backed] {
        println!("{kind:?}");
        run(kind, &[]);
    }
}
