//! Users: permissions of a calling process (`callers`), the mapping of user and group ids between
//! this mount and the instance (`id_map`), the jobs of calling processes (`activity`), how many
//! requests of each job are carried out at once (`admission`), and rules that users give their own jobs
//! (`own_limits`).

pub(crate) mod callers;

pub(crate) mod id_map;

pub(crate) mod activity;

pub(crate) mod admission;

pub(crate) mod own_limits;
