//! An instance over a directory or a bucket: import, revalidation, writeback, prefetch, staging.

mod attributes;
mod bucket_reads;
mod bucket_writes;
mod drain;
mod eviction;
mod external_changes;
mod prefetch;
mod profile;
mod staging;
mod store;
mod thrashing;
mod tree;
mod write_through;
mod writeback;
