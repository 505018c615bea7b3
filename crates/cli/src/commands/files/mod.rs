//! Commands about files of an instance: `stage`, `evict`, `flush`, `profile`, `layout`, `pin`,
//! `unpin`.

pub(crate) mod stage;

pub(crate) mod prefetch;

pub(crate) mod evict;

pub(crate) mod flush;

pub(crate) mod profile;

pub(crate) mod layout;

pub(crate) mod pin;
