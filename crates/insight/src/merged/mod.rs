//! Profiles as they are stored and sent: ranks that do the same are one record, with the set of these
//! ranks, their number, sums, and the spread of their times; so are files of one pattern of names that
//! are used the same way.
//!
//! - `runs`: sets of numbers.
//! - `alike`: which figures are the same, and the figures of one member of a group.
//! - `ranks`, `files`, `timeline`: the parts of a profile, by serde; `small`: uses of small files.
//!
//! Exact after a profile was read again: sums, counts of ranks and files, which rank used which file,
//! offsets, names, and the times of the slowest and the fastest of each group. The others of a group have
//! the mean of the rest; they differ by a factor of 4 at most, so slow ranks are not hidden. Of small
//! files all have the mean: none took 0.1 s.

mod alike;
pub(crate) mod files;
pub(crate) mod ranks;
mod runs;
mod small;
pub(crate) mod timeline;

pub use ranks::{EqualRanks, equal_ranks};
