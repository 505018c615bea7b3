//! Frame: the unit on a connection between daemons.
//!
//! Little-endian: length of the payload u32, kind u8, three zero bytes, id u64, payload.

use wire::codec::{Malformed, Reader, Writer};
use wire::limits::FRAME_BYTES_MAX;

/// Bytes before the payload.
pub const HEADER_BYTES: usize = 16;

/// Kind of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum FrameKind {
    /// First frame of either side (`handshake`).
    Hello = 1,
    /// Last frame of the handshake, of the side that dialled.
    Proof = 2,
    /// Last frame: why the connection is closed.
    Refusal = 3,
    /// A request; the reply carries the same id.
    Request = 4,
    /// The reply to a request.
    Reply = 5,
    /// A message without a reply.
    Message = 6,
}

impl FrameKind {
    fn of(number: u8) -> Result<FrameKind, Malformed> {
        Ok(match number {
            1 => FrameKind::Hello,
            2 => FrameKind::Proof,
            3 => FrameKind::Refusal,
            4 => FrameKind::Request,
            5 => FrameKind::Reply,
            6 => FrameKind::Message,
            _ => return Err(Malformed),
        })
    }
}

/// A received frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame<'a> {
    /// Its kind.
    pub kind: FrameKind,
    /// Matches a reply to its request; otherwise zero.
    pub id: u64,
    /// The payload.
    pub payload: &'a [u8],
}

/// The first frame in `bytes` and its length including the header. `None`: incomplete.
/// `payload_max` bounds the length that the sender may announce.
///
/// # Errors
/// `Malformed` as soon as the bytes cannot be the beginning of a frame.
pub fn decode(bytes: &[u8], payload_max: usize) -> Result<Option<(Frame<'_>, usize)>, Malformed> {
    let Some((header, rest)) = bytes.split_at_checked(HEADER_BYTES) else { return Ok(None) };
    let mut reader = Reader::new(header);
    let length = reader.u32()? as usize;
    let kind = FrameKind::of(reader.u8()?)?;
    if reader.raw(3)? != [0; 3] || length > payload_max.min(FRAME_BYTES_MAX) {
        return Err(Malformed);
    }
    let id = reader.u64()?;
    let Some(payload) = rest.get(..length) else { return Ok(None) };
    Ok(Some((Frame { kind, id, payload }, HEADER_BYTES + length)))
}

/// Appends a frame to `to`.
///
/// # Errors
/// `Malformed` if the payload is longer than `FRAME_BYTES_MAX`; nothing is appended then.
pub fn encode(kind: FrameKind, id: u64, payload: &[u8], to: &mut Vec<u8>) -> Result<(), Malformed> {
    if payload.len() > FRAME_BYTES_MAX {
        return Err(Malformed);
    }
    let mut header = [0; HEADER_BYTES];
    let mut writer = Writer::new(&mut header);
    writer.u32(u32::try_from(payload.len()).map_err(|_| Malformed)?);
    writer.u8(kind as u8);
    writer.raw(&[0; 3]);
    writer.u64(id);
    writer.finish()?;
    to.extend_from_slice(&header);
    to.extend_from_slice(payload);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Arbitrary bytes make the decoder fail only by its error.
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(Some((frame, length))) = decode(&bytes, 64) {
                prop_assert!(length <= bytes.len() && frame.payload.len() <= 64);
            }
        }

        /// Frames with changed bytes are refused, or decode to other frames that encode to the same
        /// bytes; none exceeds the length limit.
        #[test]
        fn modified_frames_are_refused_or_round_trip(
            payloads in proptest::collection::vec((0u8..8, 0usize..70), 1..4),
            changes in proptest::collection::vec(any::<(usize, u8)>(), 0..4),
        ) {
            let mut bytes = Vec::new();
            for (kind, length) in payloads {
                let kind = FrameKind::of(kind).unwrap_or(FrameKind::Hello);
                prop_assert_eq!(encode(kind, 3, &vec![7; length], &mut bytes), Ok(()));
            }
            for (at, to) in changes {
                let length = bytes.len();
                bytes[at % length] = to;
            }
            let mut rest = &bytes[..];
            while let Ok(Some((frame, length))) = decode(rest, 64) {
                prop_assert!(frame.payload.len() <= 64);
                let mut again = Vec::new();
                prop_assert_eq!(encode(frame.kind, frame.id, frame.payload, &mut again), Ok(()));
                prop_assert_eq!(&again, &rest[..length]);
                rest = &rest[length..];
            }
        }

        /// A frame round-trips, and no prefix of it decodes as a frame.
        #[test]
        fn a_frame_round_trips(id: u64, payload in proptest::collection::vec(any::<u8>(), 0..99)) {
            let mut bytes = Vec::new();
            prop_assert_eq!(encode(FrameKind::Reply, id, &payload, &mut bytes), Ok(()));
            let frame = Frame { kind: FrameKind::Reply, id, payload: &payload };
            prop_assert_eq!(decode(&bytes, 99), Ok(Some((frame, bytes.len()))));
            for cut in 0..bytes.len() {
                prop_assert_eq!(decode(&bytes[..cut], 99), Ok(None));
            }
        }
    }

    #[test]
    fn a_length_beyond_the_bound_is_refused_at_once() {
        let mut bytes = Vec::new();
        encode(FrameKind::Message, 0, &[7; 100], &mut bytes).expect("small");
        assert_eq!(decode(&bytes[..HEADER_BYTES], 99), Err(Malformed));
    }
}
