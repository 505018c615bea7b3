//! The part of a copy's state that survives the daemon's process, beside the bytes themselves.
//!
//! It changes by steps alone. The node asks for each to be stored (`Action::Keep`) in its order among
//! the other actions, so before bytes change, and before anyone is told of it: a killed process leaves
//! a mark and never bytes without one. Bytes of an object that has no entry here are removed when the
//! daemon starts. Steps that follow each other directly are stored together or not at all.
//!
//! Invariants
//! 1. An object has a version (`Kept::version`) only if its bytes are those of all changes up to
//!    it: nothing of it is under way or missing.
//! 2. Equal versions of an object at two copies mean equal bytes.
//! 3. A change that is not known to be on all copies is in `under_way`.

use crate::operation::{Kind, Object, Operation, RequestId, Requested, Stamp};
use encoding::{Decode, Encode, ascend, check, decode_list, encode_list};
use std::collections::BTreeMap;
use wire::Inode;
use wire::codec::{Malformed, Reader};

/// Clients of a unit whose requests are remembered. With more at a time, the one whose last change
/// is oldest is forgotten, and a repetition of it is made a second time.
const CLIENTS_MAX: usize = 1024;
/// Requests that a client may have under way at a unit.
pub const REQUESTS_MAX: usize = 16;
/// Requests of a client whose ends are remembered: as many again may have ended behind the oldest
/// one that is under way.
const ENDED_MAX: usize = 2 * REQUESTS_MAX;
/// Encoded memory of requests: a count, and for each client its number, oldest request and last stamp,
/// and the ends of requests.
pub(crate) const REPLIES_BYTES_MAX: usize =
    4 + CLIENTS_MAX * (8 + 8 + 16 + 4 + ENDED_MAX * (8 + 1 + 16));
/// Operations that a copy does not know to be on all copies. A primary has 64 under way, and a copy
/// learns of their end at most 256 orders later; what the steps of filling add is less than both.
pub const UNDER_WAY_MAX: usize = 1024;

/// Objects in one step of a snapshot: 14 KiB.
const SNAPSHOT_OBJECTS: usize = 256;

/// An object of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Entry {
    /// Of the last change.
    pub stamp: Stamp,
    /// Behind its last byte.
    pub length: u64,
    /// Parts of it are missing or older.
    pub is_partial: bool,
    /// The backing store has the bytes of all changes up to this one, or later ones.
    pub clean: Stamp,
}

impl Entry {
    /// Whether the backing store may lack bytes of it.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.stamp > self.clean
    }
}

/// An operation that may not be on all copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Begun {
    /// The operation.
    pub operation: Operation,
    /// Whether this copy has its bytes.
    pub is_done: bool,
}

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// On all copies in sync.
    Done(Stamp),
    /// Its bytes were lost with its client before all copies had them, and a copy may have some.
    Failed,
}

/// A change of kept state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KeptStep {
    /// The copy begins, with nothing; what is kept of an earlier one is forgotten.
    New {
        /// As in `Kept`.
        lost_at: u64,
    },
    /// An operation begins to change bytes.
    Begin(Operation),
    /// This copy has the bytes of an operation.
    Done(Stamp),
    /// An operation is on all copies that count, or ends torn.
    Settle(Stamp),
    /// A request ended torn, and bytes with this stamp are in its place.
    Failed(Requested, Stamp),
    /// Of the operations that were under way, only these still are.
    UnderWay(Vec<Stamp>),
    /// The copy begins to catch up: what it does not know to have is missing.
    Forget,
    /// The primary's memory of requests.
    Replies(Replies),
    /// The backing store has all changes of an object up to this one.
    Clean(Object, Stamp),
    /// The primary does not have an object.
    Remove(Object),
    /// The state is this one. Of a snapshot: the node asks for no such step.
    Whole(Kept),
    /// There are these objects, too. Of a snapshot.
    Objects(Vec<(Object, Entry)>),
}

/// Requests that ended, so that a repetition is recognized.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Replies {
    clients: BTreeMap<u64, Client>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Client {
    oldest: u64,
    last: Stamp,
    ended: BTreeMap<u64, Outcome>,
}

/// Knowledge of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Known {
    New,
    /// Its client has the answer: this is a message that was late.
    Late,
    Ended(Outcome),
}

impl Replies {
    pub(crate) fn find(&self, id: RequestId) -> Known {
        let Some(client) = self.clients.get(&id.client) else { return Known::New };
        match client.ended.get(&id.sequence) {
            Some(&outcome) => Known::Ended(outcome),
            None if id.sequence < client.oldest => Known::Late,
            None => Known::New,
        }
    }

    /// Whether the end of one more request of the client can be remembered, beside those under way.
    /// The last place is for the oldest one, without which the client forgets none of the others.
    pub(crate) fn has_place(&self, requested: &Requested, under_way: usize) -> bool {
        let Some(client) = self.clients.get(&requested.id.client) else { return true };
        let oldest = client.oldest.max(requested.oldest);
        let most = if requested.id.sequence == oldest { ENDED_MAX } else { ENDED_MAX - 1 };
        client.ended.range(oldest..).count() + under_way < most
    }

    pub(crate) fn end(&mut self, requested: &Requested, stamp: Stamp, outcome: Outcome) {
        let client = self.clients.entry(requested.id.client).or_default();
        client.oldest = client.oldest.max(requested.oldest);
        client.last = client.last.max(stamp);
        client.ended.insert(requested.id.sequence, outcome);
        let oldest = client.oldest;
        client.ended.retain(|&sequence, _| sequence >= oldest);
        while client.ended.len() > ENDED_MAX {
            client.ended.pop_first();
        }
        if self.clients.len() > CLIENTS_MAX {
            let quiet = self.clients.iter().min_by_key(|(_, client)| client.last);
            if let Some(quiet) = quiet.map(|(&client, _)| client) {
                self.clients.remove(&quiet);
            }
        }
    }

    /// Forgets that a request was made.
    fn forget(&mut self, id: RequestId, stamp: Stamp) {
        let ended = self.clients.get_mut(&id.client).map(|client| &mut client.ended);
        if let Some(ended) = ended.filter(|it| it.get(&id.sequence) == Some(&Outcome::Done(stamp)))
        {
            ended.remove(&id.sequence);
        }
    }
}

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Kept {
    /// As in `Unit::lost_at`: what a copy has from before is not the unit's any more.
    pub lost_at: u64,
    pub(crate) objects: BTreeMap<Object, Entry>,
    pub(crate) under_way: Vec<Begun>,
    pub(crate) replies: Replies,
}

impl Kept {
    /// The objects.
    pub fn objects(&self) -> impl Iterator<Item = (Object, &Entry)> {
        self.objects.iter().map(|(&object, entry)| (object, entry))
    }

    /// The objects of a file.
    pub fn objects_of(&self, inode: Inode) -> impl Iterator<Item = (Object, &Entry)> {
        let stripes = Object { inode, stripe: 0 }..=Object { inode, stripe: u64::MAX };
        self.objects.range(stripes).map(|(&object, entry)| (object, entry))
    }

    /// An object's version: `None` while something of it is under way or missing.
    #[must_use]
    pub fn version(&self, object: Object) -> Option<Stamp> {
        let entry = self.objects.get(&object).filter(|entry| !entry.is_partial)?;
        let is_open = self.under_way.iter().any(|it| it.operation.object == object && !it.is_done);
        (!is_open).then_some(entry.stamp)
    }

    pub(crate) fn begun(&self, stamp: Stamp) -> Option<&Begun> {
        self.under_way.iter().find(|begun| begun.operation.stamp == stamp)
    }

    /// Whether other operations than these are under way.
    pub(crate) fn has_other_than(&self, stamps: &[Stamp]) -> bool {
        self.under_way.iter().any(|begun| !stamps.contains(&begun.operation.stamp))
    }

    /// Makes a step.
    pub fn apply(&mut self, step: &KeptStep) {
        match step {
            KeptStep::New { lost_at } => *self = Kept { lost_at: *lost_at, ..Kept::default() },
            KeptStep::Begin(operation) => self.begin(*operation),
            KeptStep::Done(stamp) => self.done(*stamp),
            KeptStep::Settle(stamp) => {
                self.under_way.retain(|begun| begun.operation.stamp != *stamp);
            }
            KeptStep::Failed(requested, stamp) => {
                self.replies.end(requested, *stamp, Outcome::Failed)
            }
            KeptStep::UnderWay(stamps) => {
                self.under_way.retain(|begun| stamps.contains(&begun.operation.stamp));
            }
            KeptStep::Forget => self.forget_under_way(),
            KeptStep::Replies(replies) => self.learn_replies(replies.clone()),
            KeptStep::Clean(object, clean) => {
                if let Some(entry) = self.objects.get_mut(object) {
                    entry.clean = entry.clean.max(*clean);
                }
            }
            KeptStep::Remove(object) => {
                self.objects.remove(object);
            }
            KeptStep::Whole(kept) => self.clone_from(kept),
            KeptStep::Objects(objects) => self.objects.extend(objects.iter().copied()),
        }
    }

    /// Steps that make this state of any other.
    pub fn snapshot(&self) -> impl Iterator<Item = KeptStep> {
        let (under_way, replies) = (self.under_way.clone(), self.replies.clone());
        let objects = BTreeMap::new();
        let first = Kept { lost_at: self.lost_at, objects, under_way, replies };
        let mut objects = self.objects.iter().map(|(&object, &entry)| (object, entry));
        let others = std::iter::from_fn(move || {
            let some: Vec<(Object, Entry)> = objects.by_ref().take(SNAPSHOT_OBJECTS).collect();
            (!some.is_empty()).then_some(KeptStep::Objects(some))
        });
        std::iter::once(KeptStep::Whole(first)).chain(others)
    }

    /// An operation begins to change bytes.
    fn begin(&mut self, operation: Operation) {
        if self.begun(operation.stamp).is_none() {
            self.under_way.push(Begun { operation, is_done: false });
        }
        match operation.kind {
            Kind::Write | Kind::Punch => {
                let entry = self.objects.entry(operation.object).or_default();
                entry.stamp = entry.stamp.max(operation.stamp);
                entry.length = entry.length.max(operation.range.end);
            }
            Kind::Begin => {
                let entry = Entry { is_partial: true, ..Entry::default() };
                self.objects.insert(operation.object, entry);
            }
            Kind::Copy => {
                if let Some(entry) = self.objects.get_mut(&operation.object) {
                    entry.length = entry.length.max(operation.range.end);
                }
            }
            Kind::Remove | Kind::Complete { .. } | Kind::Spoil => {}
        }
    }

    /// This copy has the bytes of an operation.
    fn done(&mut self, stamp: Stamp) {
        let mut under_way = self.under_way.iter_mut();
        let Some(begun) = under_way.find(|begun| begun.operation.stamp == stamp) else { return };
        begun.is_done = true;
        let operation = begun.operation;
        match operation.kind {
            Kind::Remove => {
                self.objects.remove(&operation.object);
            }
            Kind::Complete { version, clean } => {
                if let Some(entry) = self.objects.get_mut(&operation.object) {
                    entry.stamp = entry.stamp.max(version);
                    entry.clean = entry.clean.max(clean);
                    entry.is_partial = false;
                }
            }
            _ => {}
        }
        if let Some(requested) = &operation.requested {
            self.replies.end(requested, stamp, Outcome::Done(stamp));
        }
    }

    /// The primary's memory of requests, with those that this copy was quicker to do.
    fn learn_replies(&mut self, replies: Replies) {
        self.replies = replies;
        for begun in self.under_way.iter().filter(|begun| begun.is_done) {
            if let Some(requested) = &begun.operation.requested {
                let stamp = begun.operation.stamp;
                self.replies.end(requested, stamp, Outcome::Done(stamp));
            }
        }
    }

    /// The memory of requests for another copy: without those that this copy has made, and perhaps no
    /// other. As the primary, the other copy would say that they are made, and not have their bytes.
    pub(crate) fn settled_replies(&self) -> Replies {
        let mut replies = self.replies.clone();
        for begun in self.under_way.iter().filter(|begun| begun.is_done) {
            if let Some(requested) = &begun.operation.requested {
                replies.forget(requested.id, begun.operation.stamp);
            }
        }
        replies
    }

    /// Whether it is news that the backing store has all changes of an object up to this one.
    pub(crate) fn is_news(&self, object: Object, clean: Stamp) -> bool {
        self.objects.get(&object).is_some_and(|entry| entry.clean < clean)
    }

    /// Objects that the backing store may not have as a whole, with the stamp of the last change.
    pub fn dirty(&self) -> impl Iterator<Item = (Object, Stamp)> {
        let dirty = self.objects.iter().filter(|(_, entry)| entry.is_dirty());
        dirty.map(|(&object, entry)| (object, entry.stamp))
    }

    /// The copy begins to catch up: what it does not know to have is missing.
    fn forget_under_way(&mut self) {
        for begun in std::mem::take(&mut self.under_way) {
            if !begun.is_done
                && let Some(entry) = self.objects.get_mut(&begun.operation.object)
            {
                entry.is_partial = true;
            }
        }
    }
}

impl Encode for KeptStep {
    /// number:u8, then the fields; stamps of `UnderWay` and objects as lists
    fn encode(&self, to: &mut Vec<u8>) {
        match self {
            KeptStep::New { lost_at } => {
                to.push(0);
                lost_at.encode(to);
            }
            KeptStep::Begin(operation) => {
                to.push(1);
                operation.encode(to);
            }
            KeptStep::Done(stamp) => {
                to.push(2);
                stamp.encode(to);
            }
            KeptStep::Settle(stamp) => {
                to.push(3);
                stamp.encode(to);
            }
            KeptStep::Failed(requested, stamp) => {
                to.push(4);
                requested.encode(to);
                stamp.encode(to);
            }
            KeptStep::UnderWay(stamps) => {
                to.push(5);
                encode_list(stamps, to);
            }
            KeptStep::Forget => to.push(6),
            KeptStep::Replies(replies) => {
                to.push(7);
                replies.encode(to);
            }
            KeptStep::Clean(object, clean) => {
                to.push(8);
                object.encode(to);
                clean.encode(to);
            }
            KeptStep::Remove(object) => {
                to.push(9);
                object.encode(to);
            }
            KeptStep::Whole(kept) => {
                to.push(10);
                kept.encode(to);
            }
            KeptStep::Objects(objects) => {
                to.push(11);
                encode_list(objects, to);
            }
        }
    }
}

impl Decode for KeptStep {
    fn decode(from: &mut Reader<'_>) -> Result<KeptStep, Malformed> {
        Ok(match from.u8()? {
            0 => KeptStep::New { lost_at: from.u64()? },
            1 => KeptStep::Begin(Operation::decode(from)?),
            2 => KeptStep::Done(Stamp::decode(from)?),
            3 => KeptStep::Settle(Stamp::decode(from)?),
            4 => {
                let requested = Requested::decode(from)?;
                KeptStep::Failed(requested, Stamp::decode(from)?)
            }
            5 => KeptStep::UnderWay(decode_list(from, usize::MAX)?),
            6 => KeptStep::Forget,
            7 => KeptStep::Replies(Replies::decode(from)?),
            8 => {
                let object = Object::decode(from)?;
                KeptStep::Clean(object, Stamp::decode(from)?)
            }
            9 => KeptStep::Remove(Object::decode(from)?),
            10 => KeptStep::Whole(Kept::decode(from)?),
            11 => {
                let objects: Vec<(Object, Entry)> = decode_list(from, SNAPSHOT_OBJECTS)?;
                check(ascend(objects.iter().map(|it| it.0)))?;
                KeptStep::Objects(objects)
            }
            _ => return Err(Malformed),
        })
    }
}

impl Encode for Begun {
    /// operation is_done:flag
    fn encode(&self, to: &mut Vec<u8>) {
        self.operation.encode(to);
        self.is_done.encode(to);
    }
}

impl Decode for Begun {
    fn decode(from: &mut Reader<'_>) -> Result<Begun, Malformed> {
        Ok(Begun { operation: Operation::decode(from)?, is_done: bool::decode(from)? })
    }
}

impl Encode for Outcome {
    /// 0 stamp, or 1
    fn encode(&self, to: &mut Vec<u8>) {
        match self {
            Outcome::Done(stamp) => {
                to.push(0);
                stamp.encode(to);
            }
            Outcome::Failed => to.push(1),
        }
    }
}

impl Decode for Outcome {
    fn decode(from: &mut Reader<'_>) -> Result<Outcome, Malformed> {
        match from.u8()? {
            0 => Ok(Outcome::Done(Stamp::decode(from)?)),
            1 => Ok(Outcome::Failed),
            _ => Err(Malformed),
        }
    }
}

impl Encode for Client {
    /// oldest:u64 last, list of ended (sequence:u64 outcome) in the order of their numbers
    fn encode(&self, to: &mut Vec<u8>) {
        self.oldest.encode(to);
        self.last.encode(to);
        let ended = self.ended.iter().map(|(&sequence, &outcome)| (sequence, outcome));
        encode_list(&ended.collect::<Vec<_>>(), to);
    }
}

impl Decode for Client {
    fn decode(from: &mut Reader<'_>) -> Result<Client, Malformed> {
        let (oldest, last) = (from.u64()?, Stamp::decode(from)?);
        let ended: Vec<(u64, Outcome)> = decode_list(from, ENDED_MAX)?;
        check(ascend(ended.iter().map(|it| it.0)) && ended.iter().all(|it| it.0 >= oldest))?;
        Ok(Client { oldest, last, ended: ended.into_iter().collect() })
    }
}

impl Encode for Replies {
    /// list of clients, each behind its number:u64, in the order of their numbers
    fn encode(&self, to: &mut Vec<u8>) {
        (self.clients.len() as u32).encode(to);
        for (number, client) in &self.clients {
            number.encode(to);
            client.encode(to);
        }
    }
}

impl Decode for Replies {
    fn decode(from: &mut Reader<'_>) -> Result<Replies, Malformed> {
        let clients: Vec<(u64, Client)> = decode_list(from, CLIENTS_MAX)?;
        check(ascend(clients.iter().map(|it| it.0)))?;
        Ok(Replies { clients: clients.into_iter().collect() })
    }
}

impl Encode for Entry {
    /// stamp length:u64 is_partial:flag clean
    fn encode(&self, to: &mut Vec<u8>) {
        self.stamp.encode(to);
        self.length.encode(to);
        self.is_partial.encode(to);
        self.clean.encode(to);
    }
}

impl Decode for Entry {
    fn decode(from: &mut Reader<'_>) -> Result<Entry, Malformed> {
        let (stamp, length) = (Stamp::decode(from)?, from.u64()?);
        let (is_partial, clean) = (bool::decode(from)?, Stamp::decode(from)?);
        Ok(Entry { stamp, length, is_partial, clean })
    }
}

/// Reads operations under way: each stamp once.
pub(crate) fn decode_under_way(from: &mut Reader<'_>) -> Result<Vec<Begun>, Malformed> {
    let under_way: Vec<Begun> = decode_list(from, UNDER_WAY_MAX)?;
    let mut stamps: Vec<Stamp> = under_way.iter().map(|begun| begun.operation.stamp).collect();
    stamps.sort_unstable();
    check(ascend(stamps.into_iter()))?;
    Ok(under_way)
}

impl Encode for Kept {
    /// lost_at:u64, list of objects in their order, each with its entry, list of operations under way,
    /// replies
    fn encode(&self, to: &mut Vec<u8>) {
        self.lost_at.encode(to);
        (self.objects.len() as u32).encode(to);
        for (object, entry) in &self.objects {
            object.encode(to);
            entry.encode(to);
        }
        encode_list(&self.under_way, to);
        self.replies.encode(to);
    }
}

impl Decode for Kept {
    fn decode(from: &mut Reader<'_>) -> Result<Kept, Malformed> {
        let lost_at = from.u64()?;
        // As many as there are files: the bytes that are there are the bound.
        let objects: Vec<(Object, Entry)> = decode_list(from, usize::MAX)?;
        check(ascend(objects.iter().map(|it| it.0)))?;
        let objects = objects.into_iter().collect();
        let under_way = decode_under_way(from)?;
        Ok(Kept { lost_at, objects, under_way, replies: Replies::decode(from)? })
    }
}
