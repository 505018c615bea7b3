//! How values that daemons send to each other, or keep in files, are written: numbers little-endian in
//! their natural width, a flag as one byte 0 or 1, an optional value behind a flag, a byte string behind
//! its length and a list behind its count (four bytes each). The form of each type is beside the type.
//!
//! `wire::codec::Reader` reads them. Messages of clients have the codec of `wire`, which allocates
//! nothing.
//!
//! Each value has one form, and a value that decodes is one that could have been written. Space is taken
//! as bytes are read, never for a count.
#![forbid(unsafe_code)]
#![warn(
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::expect_used,
    clippy::panic,
    clippy::unreachable
)]

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

/// A pair: one value behind the other.
impl<A: Encode, B: Encode> Encode for (A, B) {
    fn encode(&self, to: &mut Vec<u8>) {
        self.0.encode(to);
        self.1.encode(to);
    }
}

impl<A: Decode, B: Decode> Decode for (A, B) {
    fn decode(from: &mut Reader<'_>) -> Result<(A, B), Malformed> {
        Ok((A::decode(from)?, B::decode(from)?))
    }
}

/// A byte string. It is read, without a copy, by `Reader::bytes`.
impl Encode for [u8] {
    fn encode(&self, to: &mut Vec<u8>) {
        (self.len() as u32).encode(to);
        to.extend_from_slice(self);
    }
}

/// Appends a list.
pub fn encode_list<T: Encode>(list: &[T], to: &mut Vec<u8>) {
    (list.len() as u32).encode(to);
    list.iter().for_each(|value| value.encode(to));
}

/// Reads a list of `most` values at most.
///
/// # Errors
/// `Malformed` if the bytes are not such a list.
pub fn decode_list<T: Decode>(from: &mut Reader<'_>, most: usize) -> Result<Vec<T>, Malformed> {
    let count = from.u32()?;
    if count as usize > most {
        return Err(Malformed);
    }
    (0..count).map(|_| T::decode(from)).collect()
}

/// For what a value must be besides well-formed.
///
/// # Errors
/// `Malformed` unless the condition holds.
pub const fn check(holds: bool) -> Result<(), Malformed> {
    if holds { Ok(()) } else { Err(Malformed) }
}

/// Whether each value is above the one before: a list that is a set has this order alone.
pub fn ascend<T: Ord>(values: impl Iterator<Item = T>) -> bool {
    values.is_sorted_by(|one, next| one < next)
}

#[cfg(test)]
mod tests {
    //! Each form by its bytes, that it is read again, and that nothing else is read.

    use super::*;
    use proptest::prelude::*;

    #[test]
    fn values_have_these_bytes() {
        assert_eq!(0x0102_u16.to_bytes(), [2, 1]);
        assert_eq!((-2_i64).to_bytes(), [0xfe, 255, 255, 255, 255, 255, 255, 255]);
        assert_eq!((true.to_bytes(), false.to_bytes()), (vec![1], vec![0]));
        assert_eq!(Some(7_u8).to_bytes(), [1, 7]);
        assert_eq!(None::<u64>.to_bytes(), [0]);
        assert_eq!(DaemonIndex(3).to_bytes(), [3, 0]);
        assert_eq!((5_u8, 6_u16).to_bytes(), [5, 6, 0]);
        assert_eq!(b"ab"[..].to_bytes(), [2, 0, 0, 0, b'a', b'b']);
        let mut bytes = Vec::new();
        encode_list(&[1_u16, 2], &mut bytes);
        assert_eq!(bytes, [2, 0, 0, 0, 1, 0, 2, 0]);
    }

    #[test]
    fn other_bytes_are_no_values() {
        assert_eq!(bool::from_bytes(&[2]), Err(Malformed));
        assert_eq!(Option::<u8>::from_bytes(&[2, 7]), Err(Malformed));
        assert_eq!(Option::<u8>::from_bytes(&[1]), Err(Malformed));
        assert_eq!(u8::from_bytes(&[1, 2]), Err(Malformed), "something follows");
        let list = |bytes: &[u8], most| decode_list::<u8>(&mut Reader::new(bytes), most);
        assert_eq!(list(&[2, 0, 0, 0, 5, 6], 2), Ok(vec![5, 6]));
        assert_eq!(list(&[2, 0, 0, 0, 5, 6], 1), Err(Malformed));
        // No space is taken for the count.
        assert_eq!(list(&[255, 255, 255, 255, 5], usize::MAX), Err(Malformed));
        assert!(ascend([1, 2, 4].iter()) && !ascend([1, 1].iter()) && !ascend([2, 1].iter()));
    }

    proptest! {
        #[test]
        fn values_survive_encoding(n: (u8, u16, u32, u64), s: i64, o: Option<u64>, flag: bool) {
            let mut bytes = Vec::new();
            n.0.encode(&mut bytes);
            n.1.encode(&mut bytes);
            n.2.encode(&mut bytes);
            n.3.encode(&mut bytes);
            s.encode(&mut bytes);
            o.encode(&mut bytes);
            flag.encode(&mut bytes);
            DaemonIndex(n.1).encode(&mut bytes);
            let mut from = Reader::new(&bytes);
            let numbers = (from.u8(), from.u16(), from.u32(), from.u64());
            prop_assert_eq!(numbers, (Ok(n.0), Ok(n.1), Ok(n.2), Ok(n.3)));
            prop_assert_eq!((i64::decode(&mut from), Option::<u64>::decode(&mut from)), (Ok(s), Ok(o)));
            prop_assert_eq!(bool::decode(&mut from), Ok(flag));
            prop_assert_eq!(DaemonIndex::decode(&mut from), Ok(DaemonIndex(n.1)));
            prop_assert_eq!(from.end(), Ok(()));
        }

        #[test]
        fn lists_survive_encoding(numbers: Vec<(u32, bool)>, text: Vec<u8>) {
            let mut bytes = Vec::new();
            encode_list(&numbers, &mut bytes);
            text.as_slice().encode(&mut bytes);
            let mut from = Reader::new(&bytes);
            let most = numbers.len();
            prop_assert_eq!(decode_list(&mut from, most), Ok(numbers));
            prop_assert_eq!(from.bytes(), Ok(text.as_slice()));
            prop_assert_eq!(from.end(), Ok(()));
        }
    }
}
