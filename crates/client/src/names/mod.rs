//! Names and attributes: creating, removing, renaming and listing, `stat`, changes of attributes,
//! and extended attributes.

pub(crate) mod attributes;
pub(crate) mod inherited;
pub(crate) mod namespace;
pub(crate) mod pools;
pub(crate) mod prefetch;
pub(crate) mod quota;
pub(crate) mod readdir;
pub(crate) mod rename;
pub(crate) mod space;
pub(crate) mod stat;
pub(crate) mod xattr;
