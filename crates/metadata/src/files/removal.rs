//! Removed files: their targets free the space.
//!
//! The removed files of a step go into one change of the log, in the record that deletes their
//! inodes, and stay in the table until every target has freed what it held. So a kill at any moment
//! loses none: targets are asked again for what is in the table. Freeing twice does no harm,
//! because an inode number is never reused.

use wire::{Inode, Layout};

use crate::core::context::Context;
use crate::core::effect::Effect;
use crate::core::record::Record;
use crate::core::state::encode_files;

/// Most files of one change: a step may remove any number, a change of the log should be short, and
/// several fit a message to a target.
pub(crate) const FILES_MAX: usize = wire::limits::REMOVE_COUNT_MAX / 4;

/// Files removed in the running step.
#[derive(Default)]
pub(crate) struct Removals(Vec<(Inode, Layout)>);

impl Removals {
    /// Records, for the end of the step, that targets may hold space of a removed file.
    pub(crate) fn note_removed(&mut self, inode: Inode, layout: Layout) {
        self.0.push((inode, layout));
    }

    /// At the end of a step: logs the removed files.
    pub(crate) fn put_removals(&mut self, cx: &mut Context) {
        if self.0.is_empty() {
            return;
        }
        let mut gone = core::mem::take(&mut self.0);
        for files in gone.chunks(FILES_MAX) {
            let token = cx.new_sequence();
            let mut bytes = cx.io.buffer();
            encode_files(files, &mut bytes);
            cx.put(&Record::PutRemoval { token, files: &bytes });
            cx.io.recycle(bytes);
            cx.io.push(Effect::Remove { token, files: files.to_vec() });
        }
        gone.clear();
        self.0 = gone;
    }
}

/// Repeats all removals that the log shows as unfinished.
pub(crate) fn resend_removals(cx: &mut Context) {
    for (&token, files) in &cx.state.removals {
        cx.io.push(Effect::Remove { token, files: files.clone() });
    }
}

/// The targets have freed everything.
pub(crate) fn note_freed(cx: &mut Context, tokens: &[u64]) {
    for &token in tokens {
        if cx.state.removals.contains_key(&token) {
            cx.put(&Record::DeletePending { token });
        }
    }
}
