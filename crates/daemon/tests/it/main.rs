//! Tests of a running `forebayd`: its sessions, the namespace, the target, the backing store, and the
//! followers and successors of its metadata.

mod support;

mod backing;
mod copies;
mod followers;
mod namespace;
mod sessions;
mod successors;
mod target;
