//! Marks of writers in the vnode of an open file: which process or mount of this host may change
//! its bytes without a message.

use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use shm::host::Vnode;
use shm::host::watches::pages;
use wire::Inode;

use crate::transport::Transport;

/// True if nobody on this host but this mount writes to a file.
pub(crate) fn has_sole_local_writer(transport: &Transport, inode: Inode) -> bool {
    let Ok(host) = transport.host() else { return false };
    let Some(row) = host.vnode_find(inode) else { return true };
    let Ok(vnode) = host.vnode(row) else { return false };
    is_sole_local_writer(transport, vnode.marks.load(SeqCst))
}

/// Marks this process as the writer of a file that nobody knows yet.
#[inline(always)]
pub(crate) fn note_writer_of_new(transport: &Transport, vnode: &Vnode) {
    vnode.marks.store(pages::with_writer(0, writer(transport)), Relaxed);
}

fn writer(transport: &Transport) -> u8 {
    let mount = transport.mount();
    if mount == 0 { pages::SHARED } else { mount }
}

/// Marks in the vnode that the file is open for writing: its bytes may change without a
/// message.
pub(crate) fn mark_writer(transport: &Transport, vnode: &Vnode) {
    let marked = |marks| {
        let now = pages::with_writer(marks, writer(transport));
        (now != marks).then_some(now)
    };
    let _ = vnode.marks.fetch_update(SeqCst, SeqCst, marked);
}

/// True if, by these marks, nobody on this host but this mount writes to the file.
pub(crate) fn is_sole_local_writer(transport: &Transport, marks: u64) -> bool {
    matches!(pages::writer(marks), writer if writer == 0 || writer == transport.mount())
}
