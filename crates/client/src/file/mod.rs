//! Files as every operation needs them, below the copying of bytes: their words in shared memory
//! (`open_file`), layout and targets, size, open count, and changes of attributes.

pub(crate) mod change;
pub(crate) mod changing;
pub(crate) mod inline;
pub(crate) mod layout;
pub(crate) mod open_file;
pub(crate) mod set_id;
pub(crate) mod size;
pub(crate) mod vnodes;
