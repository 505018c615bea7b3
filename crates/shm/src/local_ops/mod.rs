//! Operations that a client completes by itself in shared memory and the daemon applies later
//! (`wire::local_op`): the operation log, and the inode numbers granted for creates.

mod inode_numbers;
mod op_log;
mod served;
mod tags;

pub use inode_numbers::InodeNumbers;
pub(crate) use op_log::NUMBERS;
pub use op_log::{LOCAL_OP_COUNT, LocalOpId, OP_LOG_BYTES, OpLog, PendingOp, Tentative};
pub use served::{ServedUntil, ServedWord};
