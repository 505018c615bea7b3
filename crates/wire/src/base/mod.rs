//! The parts of every message: limits, identifiers, errors, names, hashes, and the codec.

pub mod limits;

pub mod id;

pub mod errno;

pub mod name;

pub mod hash;

pub mod codec;
