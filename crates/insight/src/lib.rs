//! Reports on the I/O of jobs: what it did, and what to change about it.
//!
//! - `profile`: the figures of one job, as the collectors of all hosts give them. The only input.
//! - `merged`: the same as text, in which ranks that do the same are one record.
//! - `pattern`: the pattern of a file and of a job: N-N, N-M, N-1, 1-1 (`S10` of the Sunway paper,
//!   section 5).
//! - `advice`: findings with their evidence, what to change, and the seconds that the change would save.
//! - `interference`: jobs that are slower since another began on their host.
//! - `report`: the text and the page that a scientist reads.
//! - `comparison`: two runs of one program side by side.
//! - `csv`: the figures as rows, for other programs.
//!
//! The crate is a core: it reads no clock and no file. Equal profiles give equal reports.

#![forbid(unsafe_code)]

pub mod advice;
pub mod comparison;
pub mod csv;
pub mod interference;
pub mod merged;
pub mod pattern;
pub mod profile;
pub mod report;
pub mod text;
