//! The process: its state in this library, its job, credentials, exec, and the hooks around fork and
//! vfork.

pub mod static_client;

pub mod identity;

pub mod activity;

pub mod state;

pub mod cut_off;

pub mod mount;

pub mod working_directory;

pub mod credentials;

pub mod signals;

pub mod limits;

pub mod launch;

pub mod runnable;

pub mod hooks;
