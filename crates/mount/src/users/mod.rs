//! Users: permissions of a calling process (`callers`), the mapping of user and group ids between
//! this mount and the instance (`id_map`), and the jobs of calling processes (`activity`).

pub(crate) mod callers;

pub(crate) mod id_map;

pub(crate) mod activity;
