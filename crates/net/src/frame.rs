//! The unit on a connection between daemons.
//!
//! Little-endian: length of the payload u32, kind u8, three zero bytes, id u64, payload.

use wire::codec::{Malformed, Reader, Writer};
use wire::limits::FRAME_BYTES_MAX;

/// Bytes before the payload.
pub const HEADER_BYTES: usize = 16;

/// What a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// First word of either side (`handshake`).
    Hello = 1,
    /// Second word: the proof.
    Proof = 2,
    /// Last word: why the connection ends.
    Refusal = 3,
    /// A request; the reply carries the same id.
    Request = 4,
    /// The reply to a request.
    Reply = 5,
    /// A message without an answer.
    Message = 6,
}

impl Kind {
    fn of(number: u8) -> Result<Kind, Malformed> {
        Ok(match number {
            1 => Kind::Hello,
            2 => Kind::Proof,
            3 => Kind::Refusal,
            4 => Kind::Request,
            5 => Kind::Reply,
            6 => Kind::Message,
            _ => return Err(Malformed),
        })
    }
}

/// A frame as it came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame<'a> {
    /// What it is.
    pub kind: Kind,
    /// Pairs a reply with its request; zero elsewhere.
    pub id: u64,
    /// The rest.
    pub payload: &'a [u8],
}

/// The first frame in `bytes` and its length with the header. `None`: more bytes must come first.
/// `payload_max` bounds what the sender may announce.
///
/// # Errors
/// `Malformed` as soon as the bytes can not become a frame.
pub fn decode(bytes: &[u8], payload_max: usize) -> Result<Option<(Frame<'_>, usize)>, Malformed> {
    let Some((header, rest)) = bytes.split_at_checked(HEADER_BYTES) else { return Ok(None) };
    let mut reader = Reader::new(header);
    let length = reader.u32()? as usize;
    let kind = Kind::of(reader.u8()?)?;
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
pub fn encode(kind: Kind, id: u64, payload: &[u8], to: &mut Vec<u8>) -> Result<(), Malformed> {
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
        /// No bytes whatever make the decoder fail otherwise than by its error.
        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(Some((frame, length))) = decode(&bytes, 64) {
                prop_assert!(length <= bytes.len() && frame.payload.len() <= 64);
            }
        }

        /// Frames with changed bytes are refused or are other frames, which come back; none is
        /// longer than was allowed.
        #[test]
        fn changed_frames_are_refused_or_come_back(
            payloads in proptest::collection::vec((0u8..8, 0usize..70), 1..4),
            changes in proptest::collection::vec(any::<(usize, u8)>(), 0..4),
        ) {
            let mut bytes = Vec::new();
            for (kind, length) in payloads {
                let kind = Kind::of(kind).unwrap_or(Kind::Hello);
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

        /// A frame comes back, and no beginning of it is taken for one.
        #[test]
        fn a_frame_survives(id: u64, payload in proptest::collection::vec(any::<u8>(), 0..99)) {
            let mut bytes = Vec::new();
            prop_assert_eq!(encode(Kind::Reply, id, &payload, &mut bytes), Ok(()));
            let frame = Frame { kind: Kind::Reply, id, payload: &payload };
            prop_assert_eq!(decode(&bytes, 99), Ok(Some((frame, bytes.len()))));
            for cut in 0..bytes.len() {
                prop_assert_eq!(decode(&bytes[..cut], 99), Ok(None));
            }
        }
    }

    #[test]
    fn a_length_beyond_the_bound_is_refused_at_once() {
        let mut bytes = Vec::new();
        encode(Kind::Message, 0, &[7; 100], &mut bytes).expect("small");
        assert_eq!(decode(&bytes[..HEADER_BYTES], 99), Err(Malformed));
    }
}
