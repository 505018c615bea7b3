//! Operations that the targets of a file are asked to perform.

use crate::core::context::Context;
use crate::core::effect::{DataOp, Effect};
use crate::core::state::Pending;

/// Sends a pending operation to the targets of its file; see `Files::request_on_targets`.
pub(crate) fn send_to_targets(cx: &mut Context, token: u64) {
    let Some(&Pending { inode, layout, kind, size }) = cx.state.pending.get(&token) else {
        return;
    };
    let op = match kind {
        Pending::WRITE_ALL => {
            let contents = cx.state.inodes.get(inode).map(|node| node.contents.clone());
            DataOp::WriteAll { bytes: contents.unwrap_or_default() }
        }
        Pending::OWN => {
            let Some(node) = cx.state.inodes.get(inode) else { return };
            let (owner, changed) = (node.attributes.owner(), node.attributes.changed);
            DataOp::Own { owner, changed, is_pinned: node.attributes.is_pinned() }
        }
        _ => DataOp::Truncate { size },
    };
    cx.io.push(Effect::Data { token, inode, layout, op });
}
