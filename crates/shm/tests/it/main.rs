//! The shared-memory protocols between real threads and processes. Orders of single steps are tried
//! by `interleavings`.

mod activity;
mod checksums;
mod death;
mod growth;
mod local_ops;
mod open_sequence;
mod protocols;
mod tables;
