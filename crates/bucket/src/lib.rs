//! The lowest tier as a bucket: objects below a prefix of an S3 store are files by their keys, a slash is
//! a step into a directory.
//!
//! Reading order: files with settings (`files`), where a bucket is (`place`), how one is let in
//! (`credentials`), requests that are signed, sent and sent again (`client`), what a store answers
//! (`answers`), what an object's metadata say of a file (`attributes`), a bucket as `below::Tree`
//! (`tree`), what is put there (`writes`), and what the store copies (`copies`).
//!
//! All calls block: who reads by many threads has as many requests under way. Nothing here runs by
//! itself, and nothing happens before a `Bucket` is opened. Which version of an object bytes are of says
//! its ETag, or, where an instance put it there, a word in its metadata that a copy has as well.
//!
//! *Invariant:* no credential is in an error, a log line, or what `Debug` prints.
#![forbid(unsafe_code)]

mod files;

mod place;

mod credentials;

mod client;

mod answers;

mod attributes;

mod tree;

mod writes;

mod copies;

pub use attributes::Attributes;
pub use tree::{Bucket, DIRECTORY};
pub use writes::{Object, Over, Refused, Upload, Uploads};
