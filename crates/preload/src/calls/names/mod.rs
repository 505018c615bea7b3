//! Calls on paths: whether a path is ours, names, directories, attributes, and file system space.

pub mod paths;

pub mod namespace;

pub mod directories;

pub mod attributes;

pub mod xattr;

pub mod space;
