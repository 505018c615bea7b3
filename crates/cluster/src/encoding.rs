//! How the messages and records of this crate are written: numbers little-endian in their natural
//! width, byte strings with four bytes of length before them. Reading is `wire::codec::Reader`.

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
    )*};
}
numbers!(u8 u16 u32 u64);

impl Encode for [u8] {
    fn encode(&self, to: &mut Vec<u8>) {
        (self.len() as u32).encode(to);
        to.extend_from_slice(self);
    }
}

/// Reads one byte that is 0 or 1.
pub(crate) fn flag(from: &mut Reader<'_>) -> Result<bool, Malformed> {
    match from.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Malformed),
    }
}
