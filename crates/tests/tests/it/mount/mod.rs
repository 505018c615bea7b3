//! Kernel mounts: commands, ends, users, and the coherence of kernel caches.

mod basics;
mod commands;
mod ends;
mod frozen;
mod handles;
mod kernel_coherence;
mod kernel_pages;
mod local_rights;
mod remote_names;
mod remote_pages;
mod rights;
mod shared;
mod used_space;
pub(crate) mod users;
