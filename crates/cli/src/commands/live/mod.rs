//! The commands that show an instance live: on a terminal, and on a page in a browser.

pub(super) mod top;

pub(super) mod dashboard;

pub(crate) mod monitor;
