//! Locks of processes, of open files and of whole files, on one host and between hosts.

mod cases;
mod ends;
mod remote;
mod waiters;
