//! State on a host: the directories and records of instances, settings, the hosts file, and the
//! resources of the host (memory, disks, control groups). Starts no process.

pub(crate) mod settings;

pub(crate) mod directories;

pub(crate) mod records;

pub(crate) mod hosts;

pub(crate) mod domains;

pub(crate) mod resources;

pub(crate) mod job_group;

pub(crate) mod history;
