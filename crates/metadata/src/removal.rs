//! Files that are gone: their space is given back by their targets.
//!
//! The files of a step go into one change of the log, in the record that deletes their inodes, and
//! stay in the table until every target has given back what it held. So a kill at any moment loses
//! none: what is in the table is asked again. Giving back twice does no harm, since an inode number
//! is never used twice.

use wire::{Inode, Layout, Malformed, Reader};

use crate::coding::Put;
use crate::effect::Effect;
use crate::record::Record;
use crate::service::Service;

/// Most files of one change: a step may remove any number, a change of the log should be short, and
/// several fit a message to a target.
const FILES_MAX: usize = wire::limits::REMOVE_COUNT_MAX / 4;

impl Service {
    /// Notes, for the end of the step, that targets may hold space of a file that is gone.
    pub(crate) fn give_back(&mut self, inode: Inode, layout: Layout) {
        self.live.gone.push((inode, layout));
    }

    /// The end of a step: what is gone goes into its record.
    pub(crate) fn put_removals(&mut self) {
        if self.live.gone.is_empty() {
            return;
        }
        let mut gone = core::mem::take(&mut self.live.gone);
        for files in gone.chunks(FILES_MAX) {
            let token = self.new_sequence();
            let mut bytes = self.io.buffer();
            encode_files(files, &mut bytes);
            self.put(&Record::PutRemoval { token, files: &bytes });
            self.io.recycle(bytes);
            self.io.push(Effect::Remove { token, files: files.to_vec() });
        }
        gone.clear();
        self.live.gone = gone;
    }

    /// Asks again for all that the log says is not done.
    pub(crate) fn ask_for_removals(&mut self) {
        for (&token, files) in &self.state.removals {
            self.io.push(Effect::Remove { token, files: files.clone() });
        }
    }

    /// The targets have given everything back.
    pub(crate) fn removed(&mut self, tokens: &[u64]) {
        for &token in tokens {
            if self.state.removals.contains_key(&token) {
                self.put(&Record::DeletePending { token });
            }
        }
    }
}

/// Appends files: inode and layout of each.
pub(crate) fn encode_files(files: &[(Inode, Layout)], to: &mut Vec<u8>) {
    for (inode, layout) in files {
        inode.append_to(to);
        layout.append_to(to);
    }
}

pub(crate) fn decode_files(bytes: &[u8]) -> Result<Vec<(Inode, Layout)>, Malformed> {
    let mut reader = Reader::new(bytes);
    let mut files = Vec::new();
    while !reader.rest().is_empty() {
        files.push((Inode(reader.u64()?), Layout::decode(&mut reader)?));
    }
    Ok(files)
}
