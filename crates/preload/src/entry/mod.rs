//! From a stub to the handler: which calls are selected, the verdict on each, and the hooks around
//! a fork.

pub mod select;

pub mod dispatch;

pub mod process;

pub mod call_stack;

pub mod signals;

pub mod stubs;
