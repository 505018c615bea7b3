//! How messages, changes, tables and kept state are written: numbers little-endian in their natural
//! width, a flag as one byte 0 or 1, an optional value behind a flag, a list behind its count (four
//! bytes). Reading is `wire::codec::Reader`.
//!
//! Each value has one form. A value that decodes is one that a node could have: a list within its bound,
//! in its order, each reference to something that is there. Space is taken as bytes are read, never
//! for a count.

use wire::DaemonIndex;
use wire::codec::{Malformed, Reader};

/// A value with an encoded form.
pub trait Encode {
    /// Appends the encoded form.
    fn encode(&self, to: &mut Vec<u8>);

    /// The encoded form alone.
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.encode(&mut bytes);
        bytes
    }
}

/// The inverse of `Encode`.
pub trait Decode: Sized {
    /// Reads one value.
    ///
    /// # Errors
    /// `Malformed` if the bytes are not such a value.
    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed>;

    /// Reads a value that is all of `bytes`.
    ///
    /// # Errors
    /// See `decode`.
    fn from_bytes(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let value = Self::decode(&mut reader)?;
        reader.end()?;
        Ok(value)
    }
}

macro_rules! numbers {
    ($($type:ident)*) => {$(
        impl Encode for $type {
            fn encode(&self, to: &mut Vec<u8>) { to.extend_from_slice(&self.to_le_bytes()); }
        }
        impl Decode for $type {
            fn decode(from: &mut Reader<'_>) -> Result<$type, Malformed> { from.$type() }
        }
    )*};
}
numbers!(u8 u16 u32 u64);

impl Encode for bool {
    fn encode(&self, to: &mut Vec<u8>) {
        to.push(u8::from(*self));
    }
}

impl Decode for bool {
    fn decode(from: &mut Reader<'_>) -> Result<bool, Malformed> {
        match from.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }
}

impl Encode for i64 {
    fn encode(&self, to: &mut Vec<u8>) {
        self.cast_unsigned().encode(to);
    }
}

impl Decode for i64 {
    fn decode(from: &mut Reader<'_>) -> Result<i64, Malformed> {
        Ok(from.u64()?.cast_signed())
    }
}

impl<T: Encode> Encode for Option<T> {
    fn encode(&self, to: &mut Vec<u8>) {
        self.is_some().encode(to);
        self.iter().for_each(|value| value.encode(to));
    }
}

impl<T: Decode> Decode for Option<T> {
    fn decode(from: &mut Reader<'_>) -> Result<Option<T>, Malformed> {
        Ok(if bool::decode(from)? { Some(T::decode(from)?) } else { None })
    }
}

impl Encode for DaemonIndex {
    fn encode(&self, to: &mut Vec<u8>) {
        self.0.encode(to);
    }
}

impl Decode for DaemonIndex {
    fn decode(from: &mut Reader<'_>) -> Result<DaemonIndex, Malformed> {
        Ok(DaemonIndex(from.u16()?))
    }
}

pub(crate) fn encode_list<T: Encode>(list: &[T], to: &mut Vec<u8>) {
    (list.len() as u32).encode(to);
    list.iter().for_each(|value| value.encode(to));
}

/// Reads a list of `most` values at most.
pub(crate) fn decode_list<T: Decode>(
    from: &mut Reader<'_>,
    most: usize,
) -> Result<Vec<T>, Malformed> {
    let count = from.u32()?;
    if count as usize > most {
        return Err(Malformed);
    }
    (0..count).map(|_| T::decode(from)).collect()
}

/// `Malformed` unless the condition holds.
pub(crate) const fn check(holds: bool) -> Result<(), Malformed> {
    if holds { Ok(()) } else { Err(Malformed) }
}

/// Whether each value is above the one before.
pub(crate) fn ascend<T: Ord>(values: impl Iterator<Item = T>) -> bool {
    values.is_sorted_by(|one, next| one < next)
}
