//! Rewriting the `syscall` sites of libc, the dynamic loader and a program's other images: the ELF
//! images, the search for sites, the tables of sites and their cache, and the patching.

pub mod image;

pub mod site;

mod foreign;

pub mod scan;

pub mod sites;

pub mod patch;

pub mod opened;
