//! What other threads tell a worker.
//!
//! Requests and messages of peers are bounded: what does not fit is refused at once. The rest is
//! bounded by what it answers (a part of a job, a preallocation) or by the number of sessions.

use crate::below::{Listed, Outcome};
use crate::reply::ReplyTo;
use crate::shared::Guest;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use wire::errno::Result;
use wire::quota::Account;
use wire::reply::Piece;
use wire::{DaemonIndex, Inode, ShardIndex};

/// Most requests and messages that wait for one worker.
const WAITING_MAX: usize = 16 * 1024;

/// A word to a worker.
pub(crate) enum Note {
    /// A session begins; it comes before any ring of it.
    Opened(Arc<Guest>),
    /// The session of this index is over.
    Closed(u16),
    /// An admitted request, header first, for this worker.
    Request { bytes: Vec<u8>, to: ReplyTo },
    /// A message of another metadata service for a shard of this worker.
    Peer(Vec<u8>),
    /// Origins that will never send anything again.
    OriginGone { first: u64, count: u64 },
    /// Who sent a request is dead: its origin and number.
    Withdrawn { origin: u64, sequence: u64 },
    /// A part of a job of this worker is answered.
    Part { job: u64, daemon: u16, answer: PartAnswer },
    /// A target answered what this worker's removals asked.
    Removals { target: DaemonIndex, answer: PartAnswer },
    /// The target is to count by accounts.
    Count,
    /// A shard says whose files are.
    Owners { question: u64, answer: Vec<u8> },
    /// A shard says where a file lies below.
    ToldBelow { inode: Inode, answer: Vec<u8> },
    /// A shard says whether a file is saved as it is.
    IsSaved { inode: Inode, number: u64, is_saved: bool },
    /// What came of fetching bytes from below for the target.
    Fetched { ticket: u64, outcome: Outcome },
    /// Entries of a directory below, or why there are no more.
    Listed { directory: Inode, outcome: Result<Listed> },
    /// What lies below by a name, if it is known.
    Looked { key: u128, outcome: Result<Box<Option<below::Entry>>> },
    /// A service gave back space, in a round, by one of its shards.
    GaveBack { by: (u64, ShardIndex), answer: Vec<u8> },
    /// The target wants so many bytes more for an account.
    DrawSpace { account: Account, wanted: u64 },
    /// What an account may use is another amount; not so much as was wanted.
    Allowed { account: Account, denied: bool },
    /// A device holds, or does not hold, the space that was asked for.
    Preallocated(Result<()>),
    /// The arena may hold so many bytes.
    Lend(u64),
    /// A block of the arena was given back, or not.
    GivenBack { place: u64, length_log2: u8, outcome: Result<()> },
    /// A piece was copied to the SSD, or not.
    Copied { ticket: u64, outcome: Result<()> },
    /// Bytes of a piece abroad came for who reads them, or not.
    ReadAbroad { ticket: u64, piece: Piece, outcome: Result<Vec<u8>> },
    /// The keeper of a place abroad was told to let go of it.
    Dismissed { slot: u32, answer: PartAnswer },
}

/// How a target answered its part of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PartAnswer {
    /// Done or refused for good.
    Ended(Result<()>),
    /// To be asked again after so many microseconds.
    Again(u64),
}

impl Note {
    const fn is_bounded(&self) -> bool {
        matches!(self, Note::Request { .. } | Note::Peer(_))
    }
}

/// The inbox of one worker.
#[derive(Default)]
pub(crate) struct Inbox {
    queue: Mutex<VecDeque<Note>>,
}

impl Inbox {
    /// Puts a note in.
    ///
    /// # Errors
    /// The note, if too many wait.
    pub(crate) fn put(&self, note: Note) -> std::result::Result<(), Note> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if note.is_bounded() && queue.len() >= WAITING_MAX {
            return Err(note);
        }
        queue.push_back(note);
        Ok(())
    }

    /// True if nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Takes everything; `emptied` is an empty queue whose memory is used on.
    pub(crate) fn take(&self, emptied: &mut VecDeque<Note>) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::swap(&mut *queue, emptied);
    }
}
