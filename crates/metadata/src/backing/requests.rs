//! Dispatch of the requests of the writeback daemon.

use wire::{Errno, Reply, Request};

use crate::backing::dirty::{
    answer_sync_state, await_dirty, forget_partial, gone_from_backing, list_inodes, list_names,
    name_written, not_written, note_partial, writing, wrote,
};
use crate::backing::writeback_wait::WritebackWaits;
use crate::core::context::Context;
use crate::core::job::{Call, Step};

impl WritebackWaits {
    /// Runs a request of the writeback daemon.
    pub(crate) fn run_writeback_request(
        &mut self,
        cx: &mut Context,
        call: &Call<'_>,
        request: &Request<'_>,
    ) -> Step<()> {
        let is_there = cx.config.backing;
        let done = match *request {
            Request::SyncState { inode } if is_there => return answer_sync_state(cx, call, inode),
            Request::DirtyNames { parent, name } if is_there => {
                return list_names(cx, call, parent, name);
            }
            Request::DirtyInodes { after } if is_there => return list_inodes(cx, call, after),
            Request::AwaitDirty { seen } if is_there => return await_dirty(cx, call, seen),
            Request::Writing { inode, location } if is_there => writing(cx, inode, &location),
            Request::Wrote { inode, location } if is_there => wrote(cx, inode, &location),
            Request::NotWritten { inode } if is_there => not_written(cx, inode),
            Request::Gone { inode } if is_there => gone_from_backing(cx, inode),
            Request::NotePartial { inode, is_new, location } if is_there => {
                note_partial(cx, inode, is_new != 0, &location)
            }
            Request::ForgetPartial { inode } if is_there => forget_partial(cx, inode),
            Request::NameWritten { parent, name, from, to } if is_there => {
                name_written(cx, parent, name, (from, to))
            }
            Request::AwaitCleanRequests { seen, moved } if is_there => {
                return self.await_clean_requests(cx, call, seen, moved);
            }
            Request::CleanRequests {} if is_there => {
                self.list_clean_requests(cx, call);
                return Ok(());
            }
            Request::Settled { inode, number, errno } if is_there => {
                self.report_settled(cx, inode, number, errno);
                Ok(())
            }
            Request::SyncState { .. }
            | Request::DirtyNames { .. }
            | Request::DirtyInodes { .. }
            | Request::AwaitDirty { .. }
            | Request::Writing { .. }
            | Request::Wrote { .. }
            | Request::NotWritten { .. }
            | Request::Gone { .. }
            | Request::NotePartial { .. }
            | Request::ForgetPartial { .. }
            | Request::NameWritten { .. }
            | Request::AwaitCleanRequests { .. }
            | Request::CleanRequests {}
            | Request::Settled { .. } => Err(Errno::EOPNOTSUPP),
            _ => Err(Errno::EPROTO),
        };
        done?;
        cx.io.reply(call.ticket, &Reply::Done {});
        Ok(())
    }
}
