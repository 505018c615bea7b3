//! Sizes of files of the mode `posix` that are open on this host while their shard is on another: the
//! host's half of `metadata::sizes`.
//!
//! The shard asks what was written here and not told, and says when a file is cut; cuts that clients of
//! this host ask for are counted as the request and its answer pass by. The rows' words are changed as a
//! worker of this host would (`shm::host::lengths`): the count is odd from before a cut until it is over.
//!
//! Bytes that were written under the count of before may be on their way to other hosts. They are counted
//! (`shm::host::flights`), and what tells of a new count waits until they have arrived: so nothing that
//! was begun before a cut arrives after it.
//!
//! What is read of a row and what is sent about it is one step, under one lock: the shard believes that
//! words and answers of this host come in the order in which the row changed.

use crate::bulk::OwnEnd;
use crate::reply::{FULL_MICROS, LOST_MICROS, ReplyTo};
use crate::shard::send;
use crate::shared::{Guest, Shared, encode_request};
use metadata::HostWord;
use shm::host::Cuts;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use wire::codec::{Malformed, Reader};
use wire::errno::{Errno, Result};
use wire::reply::{CUTS_OF_FIRST, CUTS_OF_HOST};
use wire::request::{ANY_CUTS, set};
use wire::{DaemonIndex, Header, Inode, Reply, Request, ShardIndex};

/// Files with a cut under way.
#[derive(Default)]
pub(crate) struct Sizes {
    cuts: Mutex<BTreeMap<Inode, FarCut>>,
}

/// Cuts of one file.
#[derive(Default)]
struct FarCut {
    /// Cuts that clients of this host asked for and that are not answered.
    own: u32,
    /// One of these was lost on the way, and comes again, or was carried out. Until then.
    lost: Option<Instant>,
    /// The shard said that this one began, and not that it is over.
    told: Option<u64>,
    /// One of them cut it.
    is_cut: bool,
    /// To be sent when no bytes are on their way any more: answers to the shard, and requests.
    held: Vec<Held>,
}

/// Something that waits for bytes to arrive.
enum Held {
    Answer(ShardIndex, Vec<u8>),
    Request(DaemonIndex, Vec<u8>, ReplyTo),
}

impl FarCut {
    const fn is_over(&self) -> bool {
        self.own == 0 && self.lost.is_none() && self.told.is_none()
    }

    /// What clients wrote may be cut off by a request that is on its way.
    const fn is_asked_for(&self) -> bool {
        self.own != 0 || self.lost.is_some()
    }
}

/// What the answer of another daemon is looked at for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Asked {
    /// A file is to be cut, or made longer.
    Cut { inode: Inode, size: u64 },
    /// Bytes at the end of a file.
    Range { inode: Inode },
    /// Bytes to be written, as long as the file was cut so often.
    Bytes { inode: Inode, cuts: u64 },
}

impl Asked {
    /// What a request asks for.
    pub(crate) const fn by(request: &Request<'_>) -> Option<Asked> {
        match *request {
            Request::SetAttributes { inode, mask, size, .. }
                if mask & set::SIZE != 0 && mask & set::COUNTED != 0 =>
            {
                Some(Asked::Cut { inode, size })
            }
            Request::Append { inode, .. } => Some(Asked::Range { inode }),
            Request::Write { inode, cuts, .. } | Request::Store { inode, cuts, .. }
                if cuts != ANY_CUTS =>
            {
                Some(Asked::Bytes { inode, cuts })
            }
            _ => None,
        }
    }
}

impl Sizes {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Inode, FarCut>> {
        self.cuts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Counts the end of a file's cuts if none is under way any more.
    fn end_cuts(&self, cuts: &mut BTreeMap<Inode, FarCut>, inode: Inode) {
        if cuts.get(&inode).is_some_and(FarCut::is_over)
            && let Some(cut) = cuts.remove(&inode)
        {
            self.host.end_far_cut(inode, cut.is_cut);
        }
    }

    /// A word of a shard of another host.
    pub(crate) fn take_size_word(&self, bytes: &[u8]) -> core::result::Result<(), Malformed> {
        let (word, host) = (HostWord::decode(bytes)?, self.host_number);
        let mut cuts = self.sizes.lock();
        match word {
            HostWord::Glimpse { from, token, inode } => {
                let end = self.host.untold(inode);
                send(self, from, HostWord::glimpsed(host, token, inode, end));
            }
            HostWord::Told { inode, end } => self.host.note_told(inode, end),
            HostWord::BeginCut { from, token, inode, size } => {
                let cut = cuts.entry(inode).or_default();
                let is_new = cut.told != Some(token);
                if is_new {
                    (cut.told, cut.is_cut) = (Some(token), true);
                    self.host.begin_cut(inode, size);
                }
                let answer = HostWord::begun(host, token, inode);
                match (self.host.has_flights(inode), is_new) {
                    (false, _) => send(self, from, answer),
                    (true, true) => cut.held.push(Held::Answer(from, answer)),
                    // Asked once more; the answer waits already.
                    (true, false) => {}
                }
            }
            HostWord::EndCut { from, token, inode, .. } => {
                match cuts.get_mut(&inode) {
                    // Or of an earlier one: its end was lost, and the service was started anew.
                    Some(cut) if cut.told.is_none_or(|told| told <= token) => {
                        cut.told = None;
                        self.end_cuts(&mut cuts, inode);
                    }
                    Some(_) => {}
                    // This daemon was told of its beginning before it was started anew, or twice of its
                    // end.
                    None => self.host.end_far_cut(inode, true),
                }
                send(self, from, HostWord::ended(host, token, inode));
            }
        }
        Ok(())
    }

    /// Hands a request of a client to another host, whose answer is looked at here.
    pub(crate) fn ask_size(
        &self,
        peer: DaemonIndex,
        bytes: Vec<u8>,
        (guest, slot): (&Arc<Guest>, u16),
        asked: Asked,
    ) {
        let to = ReplyTo::Size { guest: Arc::clone(guest), slot, asked };
        let mut cuts = self.sizes.lock();
        match asked {
            Asked::Cut { inode, .. } => {
                self.host.begin_far_cut(inode);
                let cut = cuts.entry(inode).or_default();
                cut.own += 1;
                if self.host.has_flights(inode) {
                    return cut.held.push(Held::Request(peer, bytes, to));
                }
            }
            Asked::Range { .. } => {}
            Asked::Bytes { inode, cuts: count } => {
                if let Err(errno) = self.admit_bytes(inode, count) {
                    drop(cuts);
                    let (guest, slot) = (Arc::clone(guest), slot);
                    return self.refuse(ReplyTo::Slot { guest, slot }, errno);
                }
            }
        }
        let handed = self.net.request(peer, &bytes, to);
        drop(cuts);
        if let Err(to) = handed {
            self.busy(to, LOST_MICROS);
        }
    }

    /// Starts moving bytes of a client to another host, unless the file was cut since.
    pub(crate) fn start_bytes(
        &self,
        peer: DaemonIndex,
        end: OwnEnd,
        (guest, slot): (&Arc<Guest>, u16),
        asked: Option<Asked>,
    ) {
        let guest = Arc::clone(guest);
        let Some(asked) = asked else {
            return self.start_transfer(peer, end, ReplyTo::Slot { guest, slot });
        };
        let cuts = self.sizes.lock();
        let admitted = match asked {
            Asked::Bytes { inode, cuts } => self.admit_bytes(inode, cuts),
            _ => Ok(()),
        };
        drop(cuts);
        match admitted {
            Ok(()) => self.start_transfer(peer, end, ReplyTo::Size { guest, slot, asked }),
            Err(errno) => {
                // The client has its buffer back before it is answered.
                drop(end);
                self.refuse(ReplyTo::Slot { guest, slot }, errno);
            }
        }
    }

    /// Under the lock.
    fn admit_bytes(&self, inode: Inode, count: u64) -> Result<()> {
        if self.host.cuts(inode).map(Cuts::number) != Some(count) {
            return Err(Errno::EAGAIN);
        }
        self.host.begin_flight(inode);
        // Workers of this host's other daemons count as well, and then look.
        if self.host.cuts(inode).map(Cuts::number) != Some(count) {
            self.host.end_flight(inode);
            return Err(Errno::EAGAIN);
        }
        Ok(())
    }

    /// What waited for bytes to arrive goes on, if none are on their way. Requests that were lost with
    /// their peer are left.
    fn go_on(&self, cuts: &mut BTreeMap<Inode, FarCut>, inode: Inode) -> Vec<ReplyTo> {
        let mut lost = Vec::new();
        let Some(cut) = cuts.get_mut(&inode) else { return lost };
        if self.host.has_flights(inode) {
            return lost;
        }
        for held in std::mem::take(&mut cut.held) {
            match held {
                Held::Answer(to, bytes) => send(self, to, bytes),
                Held::Request(peer, bytes, to) => {
                    lost.extend(self.net.request(peer, &bytes, to).err());
                }
            }
        }
        lost
    }

    /// Looks at the answer of a shard of another host. Returns what is to be said instead, if so.
    pub(crate) fn note_size(&self, asked: Asked, bytes: &[u8]) -> Option<Vec<u8>> {
        let reply = Reply::decode(&mut Reader::new(bytes));
        let mut cuts = self.sizes.lock();
        match (asked, reply) {
            (Asked::Range { inode }, Ok(Reply::Range { offset, cuts: CUTS_OF_HOST })) => {
                let count = self.cuts_of_range(&cuts, inode);
                Some(crate::reply::encode(&Reply::Range { offset, cuts: count }, 0))
            }
            (Asked::Range { .. }, _) => None,
            (Asked::Bytes { inode, .. }, _) => {
                self.host.end_flight(inode);
                let lost = self.go_on(&mut cuts, inode);
                drop(cuts);
                lost.into_iter().for_each(|to| self.busy(to, LOST_MICROS));
                None
            }
            (Asked::Cut { inode, size }, reply) => {
                let cut = cuts.entry(inode).or_default();
                cut.own = cut.own.saturating_sub(1);
                cut.lost = match reply {
                    Ok(Reply::Busy { .. } | Reply::Stale { .. }) => {
                        Some(Instant::now() + self.timeout)
                    }
                    _ => None,
                };
                if let Ok(Reply::Attributes { .. }) = reply {
                    cut.is_cut = true;
                    self.host.far_cut_to(inode, size);
                }
                self.end_cuts(&mut cuts, inode);
                None
            }
        }
    }

    /// How often a file was cut when its shard, on another host, gave out the range whose answer passes
    /// by. Where the count is odd, a client of this host asked for a cut, which the shard carries out
    /// after that: what is written of the range until then is cut off, and whatever comes later would
    /// lie among what others append since. But a cut that the shard told of is before the range.
    fn cuts_of_range(&self, under_way: &BTreeMap<Inode, FarCut>, inode: Inode) -> u64 {
        let Some(cuts) = self.host.cuts(inode) else { return CUTS_OF_FIRST };
        let is_told = |cut: &FarCut| cut.told.is_some() && !cut.is_asked_for();
        let is_behind = under_way.get(&inode).is_some_and(is_told);
        if is_behind { cuts.after().number() } else { cuts.before().number() }
    }

    /// Tells a shard of another host what of a file is untold here now. What the client read may be cut
    /// off since: who cuts clears the row before he asks for it, and his request comes by here as well.
    pub(crate) fn tell_untold(
        &self,
        peer: DaemonIndex,
        header: &Header,
        inode: Inode,
        to: ReplyTo,
    ) {
        let cuts = self.sizes.lock();
        if cuts.get(&inode).is_some_and(FarCut::is_asked_for) {
            drop(cuts);
            return self.busy(to, FULL_MICROS);
        }
        let end = self.host.untold(inode);
        if end == 0 {
            drop(cuts);
            return self.answer_with(to, &Reply::Done {});
        }
        let bytes = encode_request(header, &Request::Extend { inode, size: end });
        let handed = self.net.request(peer, &bytes, to);
        drop(cuts);
        if let Err(to) = handed {
            self.busy(to, LOST_MICROS);
        }
    }

    /// Gives up what was lost long ago. Returns for how many microseconds nothing will be due.
    pub(crate) fn keep_sizes(&self) -> Option<u64> {
        let mut cuts = self.sizes.lock();
        let now = Instant::now();
        let late = |cut: &FarCut| cut.lost.is_some_and(|until| until <= now);
        let inodes: Vec<Inode> =
            cuts.iter().filter(|(_, cut)| late(cut)).map(|(&inode, _)| inode).collect();
        for inode in inodes {
            if let Some(cut) = cuts.get_mut(&inode) {
                cut.lost = None;
            }
            self.end_cuts(&mut cuts, inode);
        }
        let next = cuts.values().filter_map(|cut| cut.lost).min()?;
        u64::try_from(next.saturating_duration_since(now).as_micros()).ok()
    }
}
