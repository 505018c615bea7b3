//! An instance over a backing directory: importing (`import`), revalidating what was imported
//! (`revalidate`), what is dirty until the writeback daemon reports it (`dirty`), and what of files is
//! lost where neither a copy nor the backing store has it (`lost_files`).

mod dirty;
mod give_up;
mod import;
mod lost_files;
mod revalidate;
