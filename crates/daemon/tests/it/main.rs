//! Tests of a running `forebayd`: its sessions, the namespace, the target, the backing store, the
//! followers and successors of its metadata, and daemons that an instance gets while it is used.

mod support;

mod backing;
mod copies;
mod followers;
mod growth;
mod namespace;
mod pushes;
mod sessions;
mod successors;
mod target;
