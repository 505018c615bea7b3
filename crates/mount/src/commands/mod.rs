//! Runs of `forebay-mount` that mount nothing: they change layouts, pools and quotas for `forebay`,
//! which does not use shared memory itself.

pub(crate) mod layout;

pub(crate) mod pool;

pub(crate) mod quota;
