//! Runs of `forebay-mount` that mount nothing: they change layouts and quotas for `forebay`, which
//! does not use shared memory itself.

pub(crate) mod layout;

pub(crate) mod quota;
