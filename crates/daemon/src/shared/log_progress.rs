//! How far a log has come, in memory that outlives the daemon: the next start must find that much. The
//! layouts of these words are where they are made (`startup::memory`, `members::copies`).

use shm::Segment;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};
use store::journal::Progress;
use wire::errno::Result;

/// The word of one log.
#[derive(Clone)]
pub(crate) struct LogProgress {
    memory: Arc<Segment>,
    /// Offset of the word in bytes.
    offset: usize,
}

impl LogProgress {
    /// The word at this offset, in bytes.
    pub(crate) const fn new(memory: Arc<Segment>, offset: usize) -> LogProgress {
        LogProgress { memory, offset }
    }

    /// The progress that the word has.
    ///
    /// # Errors
    /// `EIO` if the memory does not have it.
    pub(crate) fn load(&self) -> Result<Progress> {
        let word = self.memory.word64(self.offset)?;
        Ok(Progress::from_word(word.load(Acquire)))
    }

    /// Notes the progress.
    ///
    /// # Errors
    /// As `load`.
    pub(crate) fn store(&self, progress: Progress) -> Result<()> {
        self.memory.word64(self.offset)?.store(progress.to_word(), Release);
        Ok(())
    }
}
