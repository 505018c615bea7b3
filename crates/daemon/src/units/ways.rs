//! Ways of clients' requests for bytes with copies: from a session of this host to a copy here, or to the
//! daemon that is the primary; and from another daemon to the node here.
//!
//! ```text
//!  session --take_from_session--> pass_on --a copy in sync is here--> ask_node --> UnitInbox
//!                                    |                                    '--the copy may not be read--.
//!                                    '--the primary is elsewhere--> ask_primary <------------------'
//!  another daemon --take_from_peer--> ask_node
//!  service of a file --change_file--> begin_clear here, and at the other primaries; or as a session
//!  bounce buffer --pushed--> pass_on
//! ```
//!
//! A request that cannot go on is answered `Busy`: its client sends it again, by a newer table then.
//!
//! Files that were found in a backing store, or made in a directory whose files have one copy, as their
//! numbers say (`Inode::is_single`), are at the targets of their layouts alone: their requests go there
//! as in an instance without copies.

pub(super) mod pushed;

use super::agent::{FileBytes, FileShape, UnitPlace};
use super::asks::{DividedAsk, LentBuffer, PassedAsk};
use super::clears::ClearAsk;
use super::waiting::WaitingAsk;
use super::{Event, OWN_IDS, Units};
use crate::backing::{BelowRead, IfChanged};
use crate::host::size_request::SizeRequest;
use crate::sessions::client_session::ClientSession;
use crate::shared::Shared;
use crate::shared::network::encode_request;
use crate::shared::reply::{LOST_MICROS, ReplyTo};
use gateway::Admitted;
use replicas::operation::{Kind, RequestId};
use replicas::placement::UNITS_PER_TARGET;
use replicas::table::{CopyState, Table};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use wire::errno::{Errno, Result};
use wire::limits::DAEMON_COUNT_MAX;
use wire::request::{removed, stripe_log2_of};
use wire::{DaemonIndex, Header, Inode, Reply, Request, client_id};

// `Request::ClearCopies` has a bit for each unit of a target for one number of copies.
const _: () = assert!(UNITS_PER_TARGET as u32 <= u64::BITS);

/// The access that a client asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Access {
    Read,
    Write,
}

/// A client's request for bytes of one stripe.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct CopyRequest {
    /// As the client's daemon admitted it.
    header: Header,
    pub(super) bytes: FileBytes,
    stripe_log2: u8,
    access: Access,
    /// A write of another daemon: the epoch of the unit that it knows.
    unit_epoch: Option<u64>,
}

impl CopyRequest {
    /// Its identity, which all repetitions have.
    pub(super) const fn id(&self) -> RequestId {
        RequestId { client: self.header.client_id, sequence: self.header.sequence }
    }

    /// The identity of a write.
    pub(super) fn write_id(&self) -> Option<RequestId> {
        (self.access == Access::Write).then(|| self.id())
    }

    /// `kept`: the copies of files whose number says nothing.
    pub(super) const fn shape(&self, kept: u8) -> FileShape {
        FileShape { copies: self.bytes.inode.copies_in(kept), object_log2: self.stripe_log2 }
    }

    /// The message to the primary, which `place` has.
    fn message_to(&self, primary: DaemonIndex, unit_epoch: u64) -> Vec<u8> {
        let CopyRequest { header, bytes, stripe_log2, access, .. } = *self;
        let FileBytes { home: DaemonIndex(home), inode, offset, length } = bytes;
        let header = Header { daemon: primary.0, shard: Header::TARGET, ..header };
        // Not longer than a bounce buffer.
        let length = length as u32;
        let request = match access {
            Access::Read => Request::ReadCopy { home, inode, stripe_log2, offset, length },
            Access::Write => {
                Request::WriteCopies { home, inode, stripe_log2, offset, length, unit_epoch }
            }
        };
        encode_request(&header, &request)
    }

    /// A request for what a session asks for, and the bounce buffer of the bytes, if there is one.
    /// `None`: it does not ask for bytes.
    fn of_session(admitted: &Admitted<'_>) -> Option<(CopyRequest, Option<u8>)> {
        let (inode, stripe_log2, offset, length, access, buffer) = match admitted.request {
            Request::Read { inode, stripe_log2, offset, length } => {
                (inode, stripe_log2, offset, u64::from(length), Access::Read, None)
            }
            Request::Fetch { inode, stripe_log2, offset, length, buffer } => {
                (inode, stripe_log2, offset, u64::from(length), Access::Read, Some(buffer))
            }
            Request::Write { inode, stripe_log2, offset, bytes, .. } => {
                (inode, stripe_log2, offset, bytes.len() as u64, Access::Write, None)
            }
            Request::Store { inode, stripe_log2, offset, length, buffer, .. } => {
                (inode, stripe_log2, offset, u64::from(length), Access::Write, Some(buffer))
            }
            _ => return None,
        };
        let home = DaemonIndex(admitted.header.daemon);
        let bytes = FileBytes { home, inode, offset, length };
        let (header, stripe_log2) = (admitted.header, stripe_log2_of(stripe_log2));
        Some((CopyRequest { header, bytes, stripe_log2, access, unit_epoch: None }, buffer))
    }

    /// The request in a message of another daemon.
    fn of_peer(admitted: &Admitted<'_>) -> Option<CopyRequest> {
        let (home, inode, stripe_log2, offset, length, unit_epoch) = match admitted.request {
            Request::ReadCopy { home, inode, stripe_log2, offset, length } => {
                (home, inode, stripe_log2, offset, length, None)
            }
            Request::WriteCopies { home, inode, stripe_log2, offset, length, unit_epoch } => {
                (home, inode, stripe_log2, offset, length, Some(unit_epoch))
            }
            _ => return None,
        };
        let access = if unit_epoch.is_some() { Access::Write } else { Access::Read };
        let (home, length) = (DaemonIndex(home), u64::from(length));
        let bytes = FileBytes { home, inode, offset, length };
        let header = admitted.header;
        Some(CopyRequest { header, bytes, stripe_log2, access, unit_epoch })
    }
}

/// The file of a session's request to a target.
const fn file_of(request: &Request<'_>) -> Option<Inode> {
    match *request {
        Request::Read { inode, .. }
        | Request::Fetch { inode, .. }
        | Request::Write { inode, .. }
        | Request::Store { inode, .. }
        | Request::MapExtents { inode, .. }
        | Request::Punch { inode, .. }
        | Request::SeekData { inode, .. }
        | Request::Usage { inode, .. }
        | Request::Flush { inode }
        | Request::Prefetch { inode, .. }
        | Request::BeginWriteback { inode, .. }
        | Request::EndWriteback { inode, .. } => Some(inode),
        _ => None,
    }
}

/// The answer to a request of a session to a target that is not for bytes. Extents of files with copies
/// are not shown to programs: they would change or read one copy alone. Any other goes to the target, if
/// it is up.
fn answer_at_once(request: &Request<'_>, is_up: bool) -> Option<Reply<'static>> {
    match *request {
        // Other daemons have the bytes now, and count them.
        Request::Usage { .. } | Request::Prefetch { .. } if !is_up => {
            Some(Reply::Number { value: 0 })
        }
        Request::Flush { inode } if !is_up && !inode.is_single() => Some(Reply::Done {}),
        Request::Space {} if !is_up => Some(Reply::Space {
            memory_total: 0,
            memory_free: 0,
            ssd_total: 0,
            ssd_free: 0,
            files: 0,
        }),
        _ if file_of(request).is_some_and(Inode::is_single) => None,
        // Space is found when bytes are written.
        Request::MapExtents { allocate: 0 | 1, .. } => Some(Reply::Extents { extents: &[] }),
        // Without reserving anything, and without pushes and holes, programs write.
        Request::MapExtents { .. } | Request::Punch { .. } => {
            Some(Reply::Refused { errno: Errno::EOPNOTSUPP })
        }
        // All may be data.
        Request::SeekData { offset, .. } => Some(Reply::Number { value: offset }),
        _ => None,
    }
}

impl Units {
    /// Takes a request of a session of this host. False: it is not about bytes of files.
    pub(crate) fn take_from_session(
        &self,
        shared: &Shared,
        (client, slot): (&Arc<ClientSession>, usize),
        admitted: &Admitted<'_>,
    ) -> bool {
        if admitted.header.shard != Header::TARGET {
            return false;
        }
        let to = || ReplyTo::Slot { client: Arc::clone(client), slot: slot as u16 };
        let is_up = self.table().is_up(DaemonIndex(admitted.header.daemon));
        if let Some(reply) = answer_at_once(&admitted.request, is_up) {
            shared.answer_with(to(), &reply);
            return true;
        }
        let is_at_target = file_of(&admitted.request).is_some_and(Inode::is_single);
        if is_at_target && is_up {
            return false;
        }
        let Some((request, buffer)) = CopyRequest::of_session(admitted) else { return false };
        // The target may return with the bytes: it is waited for.
        if is_at_target && (request.access == Access::Write || shared.backing.is_none()) {
            return false;
        }
        if let (Some(buffer), Access::Read) = (buffer, request.access)
            && client.slots.bounce_buffers().complete_readahead(buffer, None)
        {
            // Nobody waits for it; its reader asks itself.
            shared.answer_with(to(), &Reply::Done {});
            return true;
        }
        let ask = self.begin_ask(shared, (client, slot as u16), admitted, (&request, buffer));
        match ask {
            Ok(ask) if is_at_target => {
                read_below(shared, &request, ReplyTo::Passed(ask), IfChanged::Wait);
            }
            Ok(ask) => self.pass_on(shared, request, ReplyTo::Passed(ask)),
            Err(errno) => shared.refuse(to(), errno),
        }
        true
    }

    /// Holds what the request needs until its answer.
    fn begin_ask(
        &self,
        shared: &Shared,
        (client, slot): (&Arc<ClientSession>, u16),
        admitted: &Admitted<'_>,
        (request, buffer): (&CopyRequest, Option<u8>),
    ) -> Result<PassedAsk> {
        let (id, length) = (request.id(), request.bytes.length);
        let lent = buffer.map(|buffer| LentBuffer::new(client, buffer, length)).transpose()?;
        // A program whose daemon is gone goes on at another one of its host, with the identity that the
        // request had. One of no daemon of this host is made up.
        if !shared.net.is_of_host(client_id::issuer(id.client)) {
            return Err(Errno::EINVAL);
        }
        let client = Arc::clone(client);
        if request.access == Access::Read {
            let to = Box::new(ReplyTo::Slot { client, slot });
            return Ok(PassedAsk { to, written: None, into: lent });
        }
        let bytes = match (&admitted.request, lent) {
            (Request::Write { bytes, .. }, _) => bytes.to_vec(),
            (_, Some(lent)) => lent.copy_bytes()?,
            (_, None) => return Err(Errno::EINVAL),
        };
        // A truncation of the file waits until the bytes have arrived.
        let to = match SizeRequest::of(&admitted.request) {
            None => ReplyTo::Slot { client, slot },
            Some(request) => {
                shared.host.truncates.admit_transfer(&shared.host.segment, request)?;
                ReplyTo::Size { client, slot, request }
            }
        };
        self.held.hold(id, bytes);
        Ok(PassedAsk { to: Box::new(to), written: Some(id), into: None })
    }

    fn pass_on(&self, shared: &Shared, request: CopyRequest, to: ReplyTo) {
        let (table, me) = (self.table(), shared.net.router.me);
        if may_come(&table, request.bytes.home) {
            return shared.busy(to, LOST_MICROS);
        }
        let place = UnitPlace::of(&table, request.shape(self.copies), &request.bytes);
        let place = match place {
            Ok(place) => place,
            Err(errno) => return shared.refuse(to, errno),
        };
        let copy = table.unit(place.unit).and_then(|unit| unit.copy(me));
        let is_here = copy.is_some_and(|copy| copy.state == CopyState::InSync);
        match place.primary {
            // The copies that have all bytes are down.
            None if self.awaits_copies() => shared.busy(to, LOST_MICROS),
            None => read_below(shared, &request, to, IfChanged::Lost),
            Some(primary) if primary == me || is_here && request.access == Access::Read => {
                self.ask_node(shared, request, place, to);
            }
            Some(primary) => ask_primary(shared, &request, (primary, place.epoch), to),
        }
    }

    fn ask_node(&self, shared: &Shared, request: CopyRequest, place: UnitPlace, to: ReplyTo) {
        let (id, access) = (request.id(), request.access);
        let epoch = request.unit_epoch.unwrap_or(place.epoch);
        let place = UnitPlace { epoch, ..place };
        let born = self.losses.newest_before(request.bytes.inode);
        let (ticket, earlier) = match self.waiting.admit(Some(request), to) {
            Ok(admitted) => admitted,
            Err(to) => return shared.busy(to, LOST_MICROS),
        };
        if let Some(to) = earlier {
            shared.busy(to, LOST_MICROS);
        }
        self.inbox.put(match access {
            Access::Read => Event::Read(place.unit, place.read(ticket, id.client, born)),
            Access::Write => {
                Event::Request(place.unit, place.request(ticket, id, Kind::Write, born))
            }
        });
    }

    /// Takes a request of another daemon.
    ///
    /// # Errors
    /// The destination of the answer: it is not for a copy.
    pub(crate) fn take_from_peer(
        &self,
        shared: &Shared,
        admitted: &Admitted<'_>,
        to: ReplyTo,
    ) -> std::result::Result<(), ReplyTo> {
        if let Request::ClearCopies { home, units, size, inodes } = admitted.request {
            self.begin_clear(shared, (DaemonIndex(home), units), (size, inodes), to);
            return Ok(());
        }
        let Some(request) = CopyRequest::of_peer(admitted) else { return Err(to) };
        self.take_passed(shared, request, to);
        Ok(())
    }

    /// Asks the node here, as another daemon wants it.
    fn take_passed(&self, shared: &Shared, request: CopyRequest, to: ReplyTo) {
        let table = self.table();
        if may_come(&table, request.bytes.home) {
            return shared.busy(to, LOST_MICROS);
        }
        match UnitPlace::of(&table, request.shape(self.copies), &request.bytes) {
            Ok(place) => self.ask_node(shared, request, place, to),
            Err(errno) => shared.refuse(to, errno),
        }
    }

    /// A request whose node is to be asked again: of this host, or of another daemon.
    pub(super) fn go_on(&self, shared: &Shared, request: CopyRequest, to: ReplyTo) {
        match to {
            ReplyTo::Passed(_) | ReplyTo::PushedCopy(_) => self.pass_on(shared, request, to),
            to => self.take_passed(shared, request, to),
        }
    }

    /// The copy here may not be read now: a read of this host's client goes to the primary. Returns a
    /// request that is to be answered: there is no other primary, or another daemon asks, which goes to
    /// the primary itself.
    pub(super) fn read_elsewhere(
        &self,
        shared: &Shared,
        waiting: WaitingAsk,
    ) -> Option<WaitingAsk> {
        let WaitingAsk { to, request: Some(request) } = waiting else { return Some(waiting) };
        let place = UnitPlace::of(&self.table(), request.shape(self.copies), &request.bytes);
        let is_own = matches!(to, ReplyTo::Passed(_)) && request.access == Access::Read;
        let elsewhere = |it: &DaemonIndex| is_own && *it != shared.net.router.me;
        match place.ok().and_then(|it| Some((it.primary.filter(elsewhere)?, it.epoch))) {
            None => return Some(WaitingAsk { to, request: Some(request) }),
            Some(primary) => ask_primary(shared, &request, primary, to),
        }
        None
    }

    /// Takes a change of a file that its service asks the target `home` for. It concerns the units of
    /// that target, at all copies of each. A unit whose copies are down is waited for, by repetitions of
    /// the service.
    pub(crate) fn change_file(
        &self,
        shared: &Shared,
        home: DaemonIndex,
        request: &Request<'_>,
        to: ReplyTo,
    ) {
        let table = self.table();
        match *request {
            Request::Truncate { inode, .. } | Request::Write { inode, .. } if inode.is_single() => {
                let bytes = encode_request(&shared.net.target_header(home), request);
                shared.hand_to_target(home, bytes, to);
            }
            Request::Truncate { inode, size, .. } => {
                self.clear_all(shared, home, (size, &inode.0.to_le_bytes()), None, to);
            }
            Request::Remove { inodes } => {
                // The target has more of a file than bytes: its owner. Of one that was found it has the
                // bytes: one that is down, and returns with some, evicts those that are clean. Files that
                // were made with one copy are removed there (`shard::removals`).
                let also = table.is_up(home).then_some(request);
                self.clear_all(shared, home, (0, inodes), also, to);
            }
            Request::Write { bytes: [], .. } => shared.answer_with(to, &Reply::Done {}),
            Request::Write { inode, stripe_log2, offset, bytes, .. } => {
                let (stripe_log2, length) = (stripe_log2_of(stripe_log2), bytes.len() as u64);
                let place = FileBytes { home, inode, offset, length };
                let header = shared.net.target_header(home);
                let request = self.own_write(header, place, stripe_log2);
                self.held.hold(request.id(), bytes.to_vec());
                let (written, into) = (Some(request.id()), None);
                let ask = PassedAsk { to: Box::new(to), written, into };
                self.pass_on(shared, request, ReplyTo::Passed(ask));
            }
            // It learns of it when it counts again.
            Request::Own { .. } if !table.is_up(home) => shared.answer_with(to, &Reply::Done {}),
            _ => {
                let bytes = encode_request(&shared.net.target_header(home), request);
                shared.hand_to_target(home, bytes, to);
            }
        }
    }

    /// A write of this daemon's own. Its identity is new, also where it is repeated.
    fn own_write(&self, header: Header, bytes: FileBytes, stripe_log2: u8) -> CopyRequest {
        let number = self.own_writes.fetch_add(1, Relaxed);
        let (client_id, sequence) = (self.own_ids + number % OWN_IDS, number + 1);
        let header = Header { client_id, sequence, ..header };
        CopyRequest { header, bytes, stripe_log2, access: Access::Write, unit_epoch: None }
    }

    /// The copies of files whose numbers all say the same, or that were found in a backing store.
    fn copies_of(&self, inodes: &[u8]) -> u8 {
        let first = removed(inodes).find(|inode| !inode.is_backed());
        first.map_or(self.copies, |inode| inode.copies_in(self.copies))
    }

    /// Frees everything of such files (`copies_of`) beyond a size: in each unit of a target, at its
    /// primary. The target itself gets the request `also`.
    fn clear_all(
        &self,
        shared: &Shared,
        home: DaemonIndex,
        (size, inodes): (u64, &[u8]),
        also: Option<&Request<'_>>,
        to: ReplyTo,
    ) {
        let (table, me) = (self.table(), shared.net.router.me);
        if may_come(&table, home) {
            return shared.busy(to, LOST_MICROS);
        }
        let mut parts: BTreeMap<DaemonIndex, u64> = BTreeMap::new();
        for (number, (_, unit)) in table.units_of(self.copies_of(inodes), home).enumerate() {
            // All copies that have its bytes are down.
            let Some(primary) = unit.primary else { return shared.busy(to, LOST_MICROS) };
            *parts.entry(primary).or_default() |= 1 << number;
        }
        if parts.is_empty() {
            return shared.refuse(to, Errno::EINVAL);
        }
        let count = parts.len() + usize::from(also.is_some());
        let divided = Arc::new(DividedAsk::new(count, to));
        if let Some(request) = also {
            let bytes = encode_request(&shared.net.target_header(home), request);
            shared.hand_to_target(home, bytes, ReplyTo::Divided(Arc::clone(&divided)));
        }
        for (primary, units) in parts {
            let to = ReplyTo::Divided(Arc::clone(&divided));
            if primary == me {
                self.begin_clear(shared, (home, units), (size, inodes), to);
                continue;
            }
            let DaemonIndex(home) = home;
            let request = Request::ClearCopies { home, units, size, inodes };
            let header = shared.net.target_header(primary);
            shared.hand_to_peer(primary, &encode_request(&header, &request), to);
        }
    }

    /// Has the node here clear such files (`copies_of`), in those units of a target whose bits are set.
    fn begin_clear(
        &self,
        shared: &Shared,
        (home, units): (DaemonIndex, u64),
        (size, inodes): (u64, &[u8]),
        to: ReplyTo,
    ) {
        let table = self.table();
        if may_come(&table, home) {
            // With no unit of it everything would be done.
            return shared.busy(to, LOST_MICROS);
        }
        let ticket = match self.waiting.admit(None, to) {
            Ok((ticket, _)) => ticket,
            Err(to) => return shared.busy(to, LOST_MICROS),
        };
        let of_home = table.units_of(self.copies_of(inodes), home).enumerate();
        let asked = of_home.filter(|(number, _)| units >> number & 1 != 0);
        let units = asked.map(|(_, (unit, _))| unit).collect();
        let ask = ClearAsk { inodes: removed(inodes).collect(), size, units };
        self.inbox.put(Event::Clear(ticket, ask));
    }
}

/// Answers a request whose bytes no daemon has that is up: a read by what the backing store has of the
/// file.
pub(super) fn read_below(
    shared: &Shared,
    request: &CopyRequest,
    to: ReplyTo,
    if_changed: IfChanged,
) {
    let FileBytes { inode, offset, length, .. } = request.bytes;
    match &shared.backing {
        Some(backing) if request.access == Access::Read => {
            // Not longer than a bounce buffer.
            let length = length as u32;
            backing.read_below(BelowRead { inode, offset, length, if_changed, to });
        }
        _ => shared.refuse(to, Errno::EIO),
    }
}

/// Whether a target is none of this table, and may be one of a later table: another daemon may know that
/// the instance has it.
fn may_come(table: &Table, home: DaemonIndex) -> bool {
    table.holder(home).is_none() && home.0 < DAEMON_COUNT_MAX
}

/// Asks the primary of a unit in this epoch of the unit.
fn ask_primary(
    shared: &Shared,
    request: &CopyRequest,
    (primary, unit_epoch): (DaemonIndex, u64),
    to: ReplyTo,
) {
    shared.hand_to_peer(primary, &request.message_to(primary, unit_epoch), to);
}

#[cfg(test)]
impl CopyRequest {
    /// A write of the same client, with this number.
    pub(super) fn write_for_tests(sequence: u64) -> CopyRequest {
        let read = CopyRequest::for_tests();
        CopyRequest { header: Header { sequence, ..read.header }, access: Access::Write, ..read }
    }

    /// A read of a client of daemon 1.
    pub(super) fn for_tests() -> CopyRequest {
        let header = Header {
            shard: Header::TARGET,
            daemon: 2,
            epoch: 1,
            client_id: client_id::first(DaemonIndex(1), 1) + 3,
            sequence: 12,
            host: 1,
            mount: 0,
            job: wire::JobWord::NONE,
            caller: wire::Credentials::ROOT,
        };
        let bytes = FileBytes { home: DaemonIndex(2), inode: Inode(77), offset: 4100, length: 700 };
        CopyRequest { header, bytes, stripe_log2: 22, access: Access::Read, unit_epoch: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gateway::admit_from_peer;
    use wire::request::{ANY_TRUNCATE_EPOCH, PINNED_STRIPE};

    /// A request is the same at the next daemon.
    #[test]
    fn a_request_arrives_as_it_was_sent() {
        let read = CopyRequest::for_tests();
        let write = CopyRequest { access: Access::Write, ..read };
        for (request, unit_epoch) in [(read, None), (write, Some(9))] {
            let bytes = request.message_to(DaemonIndex(3), 9);
            let admitted = admit_from_peer(&bytes).expect("possible");
            assert_eq!((admitted.header.daemon, admitted.header.shard), (3, Header::TARGET));
            let arrived = CopyRequest::of_peer(&admitted).expect("for a copy");
            let header = Header { daemon: 2, ..arrived.header };
            let expected = CopyRequest { unit_epoch, ..request };
            assert_eq!(CopyRequest { header, ..arrived }, expected);
            assert_eq!(arrived.id(), request.id());
        }
    }

    #[test]
    fn a_target_that_is_not_known_yet_may_come() {
        let mut table = Table::initial(&[0, 1], &[2], 4, false).expect("a setup");
        let comes = |table: &Table, home| may_come(table, DaemonIndex(home));
        let all = |table: &Table| [1, 2, DAEMON_COUNT_MAX].map(|home| comes(table, home));
        assert_eq!(all(&table), [false, true, false]);
        table.expect(2, 0).expect("a place");
        assert_eq!(all(&table), [false, false, false]);
    }

    #[test]
    fn requests_of_sessions_are_for_bytes_or_have_an_answer() {
        let header = CopyRequest::for_tests().header;
        let (inode, stripe_log2, offset) = (Inode(77), 22 | PINNED_STRIPE, 4100);
        let (truncate_epoch, buffer, length) = (ANY_TRUNCATE_EPOCH, 7, 700);
        let bytes = &[1; 700][..];
        let of = |request: &Request<'static>| {
            let admitted = Admitted { header, request: *request, bytes: &[] };
            CopyRequest::of_session(&admitted)
        };
        let read = CopyRequest::for_tests();
        let write = CopyRequest { access: Access::Write, ..read };
        let asked = Request::Read { inode, stripe_log2, offset, length };
        assert_eq!(of(&asked), Some((read, None)));
        let asked = Request::Fetch { inode, stripe_log2, offset, length, buffer };
        assert_eq!(of(&asked), Some((read, Some(7))));
        let written = Request::Store { inode, stripe_log2, offset, length, buffer, truncate_epoch };
        assert_eq!(of(&written), Some((write, Some(7))));
        assert!(answer_at_once(&written, true).is_none());
        let leaked: &'static [u8] = bytes.to_vec().leak();
        let written = Request::Write { inode, stripe_log2, offset, truncate_epoch, bytes: leaked };
        assert_eq!(of(&written), Some((write, None)));

        let (length, preallocate) = (700, 0);
        let map = |allocate| {
            let asked =
                Request::MapExtents { inode, stripe_log2, allocate, offset, length, preallocate };
            assert_eq!(of(&asked), None);
            answer_at_once(&asked, true)
        };
        assert_eq!(map(0), Some(Reply::Extents { extents: &[] }));
        assert_eq!(map(1), map(0));
        assert_eq!(map(2), Some(Reply::Refused { errno: Errno::EOPNOTSUPP }));
        let hole = Request::Punch { inode, stripe_log2, offset, length };
        assert_eq!(answer_at_once(&hole, true), map(2));
        let seek = Request::SeekData { inode, stripe_log2, offset };
        assert_eq!(answer_at_once(&seek, true), Some(Reply::Number { value: 4100 }));
        // A target that is down is not waited for.
        let (usage, flush) = (Request::Usage { inode, end: 9 }, Request::Flush { inode });
        for request in [&usage, &flush, &Request::Space {}] {
            assert!(answer_at_once(request, true).is_none() && of(request).is_none());
        }
        assert_eq!(answer_at_once(&usage, false), Some(Reply::Number { value: 0 }));
        assert_eq!(answer_at_once(&flush, false), Some(Reply::Done {}));
        // Files with one copy are at their targets alone.
        for inode in [Inode(wire::id::BACKED_FIRST + 1), Inode(77).with_copies(1)] {
            for request in [
                Request::MapExtents {
                    inode,
                    stripe_log2,
                    allocate: 2,
                    offset,
                    length,
                    preallocate,
                },
                Request::Punch { inode, stripe_log2, offset, length },
                Request::SeekData { inode, stripe_log2, offset },
                Request::Flush { inode },
            ] {
                assert_eq!(file_of(&request), Some(inode));
                for is_up in [true, false] {
                    let answer = answer_at_once(&request, is_up);
                    assert!(answer.is_none(), "what is there is not known here: {request:?}");
                }
            }
        }
        let space = answer_at_once(&Request::Space {}, false);
        assert!(matches!(space, Some(Reply::Space { memory_total: 0, ssd_total: 0, .. })));
    }
}
