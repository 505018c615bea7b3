//! This daemon as the agent of its clients: the way of a client's request for bytes of a file with
//! copies, and of the answer.
//!
//! A request keeps the identity that its client gave it: client id and sequence. A client that repeats it
//! with the same one, after `Busy`, at this daemon or at the one that was started in its place, has it
//! done once. So an agent has no state of its own but the bytes of requests that are under way (`asks`).

use super::object::object_of;
use replicas::node::{Answer, Read, Request};
use replicas::operation::{ByteRange, Kind, Object, RequestId, Requested};
use replicas::packet::ASK_BYTES_MAX;
use replicas::placement::UnitIndex;
use replicas::table::Table;
use wire::errno::{Errno, Result};
use wire::{DaemonIndex, Inode, Reply};

/// A client asks again after this time where the primary changes, or is busy.
const AGAIN_MICROS: u32 = 2_000;

/// A file: its copies, and log2 of the bytes of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FileShape {
    pub(super) copies: u8,
    pub(super) object_log2: u8,
}

/// Bytes of a file, as a client asks for them: `home` is the target of the first one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FileBytes {
    pub(super) home: DaemonIndex,
    pub(super) inode: Inode,
    pub(super) offset: u64,
    pub(super) length: u64,
}

/// The place of bytes among the units.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct UnitPlace {
    pub(super) unit: UnitIndex,
    pub(super) epoch: u64,
    /// The daemon that orders what happens there; `None`: no copy with all bytes is in reach.
    pub(super) primary: Option<DaemonIndex>,
    pub(super) object: Object,
    pub(super) range: ByteRange,
}

impl UnitPlace {
    /// # Errors
    /// `EINVAL` if the bytes are none, too many, or of more than one object.
    pub(super) fn of(table: &Table, shape: FileShape, bytes: &FileBytes) -> Result<UnitPlace> {
        let FileBytes { home, inode, offset, length } = *bytes;
        let size = 1u64.checked_shl(shape.object_log2.into()).ok_or(Errno::EINVAL)?;
        let (stripe, start) = (offset >> shape.object_log2, offset & (size - 1));
        let is_whole = (1..=ASK_BYTES_MAX).contains(&length) && length <= size - start;
        let range = ByteRange { start, end: start + if is_whole { length } else { 0 } };
        let unit = table.unit_of(shape.copies, home, inode, stripe).filter(|_| is_whole);
        let unit = unit.ok_or(Errno::EINVAL)?;
        let row = table.unit(unit).ok_or(Errno::EINVAL)?;
        let object = object_of(inode, shape.object_log2, stripe);
        Ok(UnitPlace { unit, epoch: row.epoch, primary: row.primary, object, range })
    }

    /// A client's change of these bytes, in the epoch of the unit that its agent knows. A client id is
    /// one slot of a session, which has one request at a time, so all requests before it have their
    /// answers.
    pub(super) const fn request(
        &self,
        ticket: u64,
        id: RequestId,
        kind: Kind,
        born: u64,
    ) -> Request {
        let UnitPlace { epoch, object, range, .. } = *self;
        let requested = Requested { id, oldest: id.sequence, is_behind: false };
        Request { ticket, epoch, object, range, kind, requested, born }
    }

    /// A client's read of these bytes.
    pub(super) const fn read(&self, ticket: u64, client: u64, born: u64) -> Read {
        let UnitPlace { object, range, .. } = *self;
        Read { ticket, client, object, range, born }
    }
}

/// The answer to a client's change of so many bytes, or to a read that gets none. `refusal`: why the
/// primary's target did not take the bytes, if it did not.
pub(super) fn reply_of(answer: Answer, length: u64, refusal: Option<Errno>) -> Reply<'static> {
    match answer {
        Answer::Done(_) => Reply::Number { value: length },
        // No request asks for `Stored`: the client would give up its bytes.
        Answer::Stored | Answer::Stale | Answer::Busy | Answer::AskPrimary => {
            Reply::Busy { retry_micros: AGAIN_MICROS }
        }
        Answer::Failed => Reply::Refused { errno: refusal.unwrap_or(Errno::EIO) },
        Answer::Lost => Reply::Refused { errno: Errno::EIO },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use replicas::operation::Stamp;

    const SHAPE: FileShape = FileShape { copies: 2, object_log2: 22 };

    fn table() -> Table {
        Table::initial(&[0, 1, 2], &[2], 4, false).expect("a setup")
    }

    fn bytes(offset: u64, length: u64) -> FileBytes {
        FileBytes { home: DaemonIndex(1), inode: Inode(77), offset, length }
    }

    #[test]
    fn bytes_are_in_one_object_of_a_unit_of_their_target() {
        let table = table();
        let stripe = 4 << 20;
        for (offset, length, number, start) in [
            (0, 1, 0, 0),
            (stripe - 1, 1, 0, stripe - 1),
            (stripe, 4096, 1, 0),
            (9 * stripe + 5, 7, 9, 5),
        ] {
            let place = UnitPlace::of(&table, SHAPE, &bytes(offset, length)).expect("a place");
            assert_eq!(place.object, object_of(Inode(77), 22, number));
            assert_eq!(place.range, ByteRange { start, end: start + length });
            let row = table.unit(place.unit).expect("a unit");
            assert_eq!((table.home(place.unit), place.epoch), (DaemonIndex(1), row.epoch));
            assert_eq!(place.primary, Some(DaemonIndex(1)));
        }
    }

    #[test]
    fn other_bytes_are_refused() {
        let table = table();
        let place = |bytes: &FileBytes| UnitPlace::of(&table, SHAPE, bytes);
        for (offset, length) in
            [(0, 0), (0, ASK_BYTES_MAX + 1), ((4 << 20) - 1, 2), (u64::MAX, 2), (0, u64::MAX)]
        {
            assert_eq!(place(&bytes(offset, length)), Err(Errno::EINVAL), "{offset} {length}");
        }
        let home = DaemonIndex(3);
        assert_eq!(place(&FileBytes { home, ..bytes(0, 1) }), Err(Errno::EINVAL));
        let shape = FileShape { copies: 3, ..SHAPE };
        assert_eq!(UnitPlace::of(&table, shape, &bytes(0, 1)), Err(Errno::EINVAL));
        let shape = FileShape { object_log2: 64, ..SHAPE };
        assert_eq!(UnitPlace::of(&table, shape, &bytes(0, 1)), Err(Errno::EINVAL));
    }

    #[test]
    fn a_request_has_the_identity_of_the_client_and_its_answer_is_what_clients_know() {
        let place = UnitPlace::of(&table(), SHAPE, &bytes(8, 100)).expect("a place");
        let id = RequestId { client: 12, sequence: 7 };
        let request = place.request(3, id, Kind::Write, 1);
        let requested = Requested { id, oldest: 7, is_behind: false };
        assert_eq!((request.requested, request.ticket, request.epoch), (requested, 3, 1));
        assert_eq!((request.object, request.range), (place.object, place.range));
        let read = place.read(4, 12, 1);
        assert_eq!((read.ticket, read.client, read.range), (4, 12, place.range));
        let done = Answer::Done(Stamp { epoch: 1, number: 1 });
        assert_eq!(reply_of(done, 100, None), Reply::Number { value: 100 });
        for answer in [Answer::Stale, Answer::Busy, Answer::AskPrimary, Answer::Stored] {
            assert_eq!(reply_of(answer, 9, None), Reply::Busy { retry_micros: AGAIN_MICROS });
        }
        let refused = |errno| Reply::Refused { errno };
        assert_eq!(reply_of(Answer::Lost, 9, Some(Errno::ENOSPC)), refused(Errno::EIO));
        assert_eq!(reply_of(Answer::Failed, 9, None), refused(Errno::EIO));
        assert_eq!(reply_of(Answer::Failed, 9, Some(Errno::ENOSPC)), refused(Errno::ENOSPC));
    }
}
