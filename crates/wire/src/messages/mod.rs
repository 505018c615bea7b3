//! The messages: the header of each, requests and replies, local operations, and the welcome that
//! opens a session.

pub mod header;

pub mod request;

pub mod reply;

pub mod local_op;

pub mod welcome;
