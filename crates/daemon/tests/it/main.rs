//! Tests of a running `forebayd`: its sessions, the namespace, the target and the backing store.

mod support;

mod backing;
mod namespace;
mod sessions;
mod target;
