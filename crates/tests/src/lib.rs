//! Nothing: what this crate holds is in `tests/`.
#![forbid(unsafe_code)]
