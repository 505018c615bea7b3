//! Advice and reports from outside: each trigger with a job that makes it fire and one just below.

mod merged;
mod reports;
mod triggers;
mod workloads;
