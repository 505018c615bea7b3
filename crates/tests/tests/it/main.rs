//! End-to-end tests: real processes, programs, mounts and hosts. One binary, so that it links once; a
//! module is an area, and `make test AREA=NAME` runs the tests whose path contains the name.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "seeds, figures and logs of failed tests"
)]

mod support;

mod activity;
mod advice;
mod backing;
mod causes;
mod cluster;
mod crash;
mod dashboard;
mod faults;
mod history;
mod hosts;
mod locks;
mod migration;
mod mount;
mod pools;
mod programs;
mod quotas;
mod report;
mod security;
mod shares;
mod soak;
mod tiering;
