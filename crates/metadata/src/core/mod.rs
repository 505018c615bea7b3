//! Foundation of all subjects: the values of the interface (`config`, `effect`), the log (`record`,
//! `coding`, `snapshot`), the tables that it describes (`state`, `table`), and the shared ground of
//! the subjects (`context`, `change`, `job`, `keys`, `output`, `valid_names`). Messages between
//! services are in `peer_messages`.
//!
//! Nothing here decides what a request does: that is in the subject modules.

pub(crate) mod change;
pub(crate) mod coding;
pub mod config;
pub(crate) mod context;
pub mod effect;
pub(crate) mod job;
pub(crate) mod keys;
pub(crate) mod output;
pub(crate) mod peer_messages;
pub(crate) mod record;
pub(crate) mod snapshot;
pub(crate) mod state;
pub(crate) mod table;
pub(crate) mod valid_names;
