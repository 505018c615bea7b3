//! The backing store as a bucket: objects below a prefix of an S3 store are files by their keys,
//! and a slash separates directories.
//!
//! Reading order: configuration files (`files`), location of a bucket (`location`), credentials
//! (`credentials`), signed requests with retries (`client`), responses (`responses`), file
//! attributes in object metadata (`attributes`), a bucket as `backing::Tree` (`tree`), writes
//! (`writes`), checksums of what is written (`checksums`), and copies inside the store (`copies`).
//!
//! All calls block; a caller with many threads has as many requests in progress. There are no
//! background threads, and nothing happens before a `Bucket` is opened. The version of an object is
//! its ETag or, for an object that an instance wrote, a field in its metadata, which copies
//! preserve.
//!
//! *Invariant:* no error, log line or `Debug` output contains a credential.
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing, clippy::string_slice)]

mod files;

mod location;

mod credentials;

mod client;

mod responses;

mod attributes;

mod tree;

mod writes;

mod checksums;

mod copies;

pub use attributes::Attributes;
pub use tree::{Bucket, DIRECTORY};
pub use writes::{Object, Part, Precondition, Upload, Uploads, WriteError};
