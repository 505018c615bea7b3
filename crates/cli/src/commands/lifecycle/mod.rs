//! Commands that start, use and end an instance: `run`, `start`, `stop`, `grow`, `shrink`, `replace`,
//! `balance`, `mount`, `umount`, and the hidden ones that they run on other hosts.

pub(crate) mod run;

pub(crate) mod run_staging;

pub(crate) mod run_report;

pub(crate) mod start;

pub(crate) mod stop;

pub(crate) mod grow;

pub(crate) mod shrink;

pub(crate) mod replace;

pub(crate) mod balance;

pub(crate) mod mount;

pub(crate) mod host_agent;
