//! Write-behind, if the instance is configured for it: writes to other hosts, and to files with copies
//! wherever these are, that return before they have arrived.
//!
//! The client fills and submits a bounce buffer and returns; the daemon frees the buffer on
//! arrival. The buffers bound the bytes in flight. The file's vnode in the host segment counts
//! those of the file and records a failure: any process of this host that reads, truncates, syncs
//! or closes the file waits until none is in flight. If the daemon dies, a waiting process
//! resubmits the buffers, which it still maps.
//!
//! The extent is requested first, so that a full target fails the write itself; a file with copies has
//! none, and the next write, sync or close fails.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use placement::extent::Span;
use shm::bounce::{LostPush, Pushed};
use shm::host::{Vnode, VnodeIndex};
use shm::wait;
use wire::errno::{Errno, Result};
use wire::limits::BOUNCE_BUFFER_COUNT;
use wire::request::ANY_TRUNCATE_EPOCH;
use wire::{Inode, Layout, Request, client_id};

use crate::file::layout::File;
use crate::file::open_file::{OpenFile, o};
use crate::file::size;
use crate::io::locate::Want;
use crate::io::transfer::{Bytes, TransferRange, TransferRepeat};
use crate::io::{Io, locate, transfer};
use crate::kernel_cache::page_caches;
use crate::transport::Transport;
use crate::transport::attachment::Attachment;
use crate::transport::errno::by_descriptor;
use crate::transport::request::Destination;

/// Waits for writes in flight and reports the size.
pub(crate) fn settle_and_flush(transport: &Transport, open: &OpenFile<'_>) -> Result<()> {
    let settled = settle_all(transport, open);
    by_descriptor(size::flush(transport, open.vnode, open.inode)).and(settled)
}

/// Length of one sleep, after which the daemon's liveness is tested.
const SLEEP_MICROS: u64 = 50_000;

/// True if writes through this open file return before they have arrived.
pub(crate) fn is_write_behind(transport: &Transport, open: &OpenFile<'_>) -> bool {
    let is_set = transport.is_write_behind.load(Relaxed);
    is_set && open.flags() & o::ANY_SYNC == 0 && !open.file().is_posix()
}

/// Submits a range without waiting for its arrival.
///
/// # Errors
/// `ENOSPC`, `EIO`.
pub(crate) fn push(
    io: &Io,
    open: &OpenFile<'_>,
    file: &File,
    span: &Span,
    part: TransferRange,
    bytes: &Bytes<'_>,
) -> Result<()> {
    if !io.transport().has_copies_of(file.inode) {
        locate::extent(io, part.target, file, span, Want::Write, 0)?;
    }
    let vnode = VnodeIndex(open.words.vnode.load(Relaxed));
    let to = Destination::Target(part.target);
    let mut reconnect = io.transport().reconnect_budget();
    loop {
        let Some((by, worker, owner)) = io.transport().route_or_wait(to, &mut reconnect)? else {
            continue;
        };
        let Some(mut buffer) = transfer::take_buffer(io.transport(), by)? else {
            resubmit_lost(io.transport());
            continue;
        };
        let slot = io.transport().claim_slot(by)?;
        bytes.fill(&part, &mut buffer)?;
        let pushed = Pushed {
            inode: file.inode,
            vnode,
            target: part.target,
            stripe_log2: file.stripe_word(),
            offset: part.offset,
            length: part.length as u32,
            stamp: wait::now_nanos(),
        };
        buffer.describe(&pushed)?;
        let request = Request::Push { buffer: buffer.index() };
        // Identifies the daemon and its incarnation: bytes in flight to an incarnation that
        // died are resubmitted before new ones.
        buffer.begin_counting()?;
        open.words.note_push();
        let through = by.welcome.client_id >> client_id::START_SHIFT;
        let Some(epoch) = open.vnode.begin_push(through) else {
            buffer.end_counting()?;
            drop((slot, buffer));
            settle(io.transport(), open.vnode)?;
            continue;
        };
        // From here on the bytes arrive even if this process dies.
        buffer.push(epoch)?;
        slot.set_pool(file.layout.pool);
        return io.transport().submit_detached(to, (by, worker, owner), slot, &request);
    }
}

/// Waits until no write-behind of a file from this host is in flight.
///
/// # Errors
/// `EIO` if nothing arrives within the timeout; what is in flight then counts as lost.
pub(crate) fn settle(transport: &Transport, vnode: &Vnode) -> Result<()> {
    if !vnode.has_pending() {
        return Ok(());
    }
    let mut left = vnode.pushed_count();
    let mut deadline = wait::now_micros().saturating_add(transport.timeout_micros());
    while !vnode.wait_pushed(SLEEP_MICROS) {
        resubmit_lost(transport);
        let now = wait::now_micros();
        let before = core::mem::replace(&mut left, vnode.pushed_count());
        if left < before {
            deadline = now.saturating_add(transport.timeout_micros());
        } else if now >= deadline && !transport.is_throttled() {
            vnode.give_up_pushes();
            return Err(Errno::EIO);
        }
    }
    Ok(())
}

/// As `settle`, and returns the first failure that was not reported yet; also invalidates page
/// caches behind mounts of other hosts if something arrived.
///
/// # Errors
/// As `settle`; `ENOSPC`, `EIO`.
pub(crate) fn settle_all(transport: &Transport, open: &OpenFile<'_>) -> Result<()> {
    let vnode = open.vnode;
    let is_write_behind = transport.is_write_behind.load(Relaxed);
    if is_write_behind && transport.attachments.each().count() > 1 {
        // Even if others consider it lost: the buffers of this process are resubmitted.
        resubmit_lost(transport);
    }
    settle(transport, vnode)?;
    if is_write_behind {
        page_caches::invalidate_after_arrival(transport, open)?;
    }
    vnode.take_failure()
}

/// Resubmits the buffers that this process had submitted to daemons that are gone, unless another thread
/// does: one at a time keeps their order.
fn resubmit_lost(transport: &Transport) {
    for by in transport.attachments.each() {
        if !by.is_alive() {
            transport.drop_attachment(by);
            let Some(_turn) = ResubmitTurn::take(&transport.resubmitter) else { return };
            while let Some(index) = oldest_pushed(by) {
                resubmit_buffer(transport, by, index);
            }
        }
    }
}

/// The turn of a thread to resubmit.
struct ResubmitTurn<'a>(&'a AtomicU32);

impl<'a> ResubmitTurn<'a> {
    /// `None`: another thread does it. One that is dead, or whose call a jump left, does not.
    fn take(holder: &'a AtomicU32) -> Option<ResubmitTurn<'a>> {
        let (me, before) = (wait::thread_id(), holder.load(SeqCst));
        let is_free = before == 0 || before == me || wait::is_dead(before);
        let is_taken = is_free && holder.compare_exchange(before, me, SeqCst, SeqCst).is_ok();
        // Not made in vain: its end would give the turn of another thread away.
        if is_taken { Some(ResubmitTurn(holder)) } else { None }
    }
}

impl Drop for ResubmitTurn<'_> {
    fn drop(&mut self) {
        self.0.store(0, SeqCst);
    }
}

/// The buffer that was pushed first of those that are not done: what was written twice ends as it was
/// written last.
fn oldest_pushed(by: &Attachment) -> Option<usize> {
    let buffers = by.session.bounce_buffers();
    let pushed = (0..BOUNCE_BUFFER_COUNT)
        .filter_map(|index| Some((buffers.pushed_to_dead(index)?.stamp, index)));
    pushed.min().map(|(_, index)| index)
}

fn resubmit_buffer(transport: &Transport, by: &Attachment, index: usize) {
    let taken = by.session.bounce_buffers().take_pushed(index);
    let Some((buffer, LostPush { pushed, epoch, identity })) = taken else { return };
    let layout = Layout { stripe_log2: pushed.stripe_log2, ..Layout::default() };
    let file = File { inode: pushed.inode, layout, good_for: ANY_TRUNCATE_EPOCH };
    let (offset, length) = (pushed.offset, pushed.length as usize);
    let part = TransferRange { target: pushed.target, offset, place: 0, length };
    let (mut bytes, repeat) = (Bytes::Buffered(&buffer, length), TransferRepeat::of_push(identity));
    let outcome = transfer::move_again(transport, &file, part, &mut bytes, repeat);
    let row = transport.host().and_then(|host| host.vnode(pushed.vnode));
    if let Ok(row) = row
        && Inode(row.inode.load(SeqCst)) == pushed.inode
    {
        row.end_push(epoch, outcome);
    }
}
