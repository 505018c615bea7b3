//! An instance over a backing directory: importing (`import`), revalidating what was imported
//! (`revalidate`), and what is dirty until the writeback daemon reports it (`dirty`).

mod dirty;
mod import;
mod revalidate;
