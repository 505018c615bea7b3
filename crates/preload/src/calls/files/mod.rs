//! Calls on open files: descriptors, opening, data, mappings, locks, sockets and pipes.

pub mod uses;

pub mod descriptors;

pub mod reserved;

pub mod opening;

pub mod transfer;

pub mod aio;

pub mod mapping;

pub mod locks;

pub mod sockets;

pub mod handover;

pub mod kernel_io;
