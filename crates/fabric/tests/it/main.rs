//! Transfers by libfabric: endpoints in one process and in two, and bulk transfers between daemons.
#![expect(clippy::print_stdout, reason = "the tests name the provider that they found")]

mod bulk;
mod one_process;
mod support;
mod two_processes;
