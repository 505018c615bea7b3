//! The lowest tier as a bucket: objects below a prefix of an S3 store are files by their keys, a slash is
//! a step into a directory.
//!
//! Reading order: where a bucket is and how one is let in (`place`), requests that are signed, sent and
//! sent again (`client`), what a store answers (`answers`), what an object's metadata say of a file
//! (`attributes`), a bucket as `below::Tree` (`tree`), and what is put there (`writes`).
//!
//! All calls block: who reads by many threads has as many requests under way. Nothing here runs by
//! itself, and nothing happens before a `Bucket` is opened. Which version of an object bytes are of says
//! its ETag, or, where an instance put it there, a word in its metadata that a copy has as well.
//!
//! *Invariant:* no credential is in an error, a log line, or what `Debug` prints.
#![forbid(unsafe_code)]

mod place;

mod client;

mod answers;

mod attributes;

mod tree;

mod writes;

pub use attributes::Attributes;
pub use tree::{Bucket, DIRECTORY};
pub use writes::{Object, Over, Refused, Upload};
