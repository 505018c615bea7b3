//! Encoding into growing buffers, and the macro that lists the messages of this crate.
//!
//! The same bytes as `wire::codec` writes: numbers little-endian, byte strings with a length of
//! four bytes before them. Reading is `wire::codec::Field` as it is.

use wire::attributes::ATTRIBUTES_BYTES;
use wire::{Attributes, Errno, Inode, Layout, Writer};

/// A value that can be appended to a buffer.
pub(crate) trait Put {
    /// Appends the encoded value.
    fn append_to(&self, to: &mut Vec<u8>);
}

macro_rules! put_numbers {
    ($($type:ident)*) => {$(
        impl Put for $type {
            fn append_to(&self, to: &mut Vec<u8>) { to.extend_from_slice(&self.to_le_bytes()); }
        }
    )*};
}
put_numbers!(u8 u16 u32 u64);

impl Put for &[u8] {
    fn append_to(&self, to: &mut Vec<u8>) {
        // Strings longer than a message can hold never reach this point; one that did would be
        // truncated, and replay would refuse the record.
        let length = u32::try_from(self.len()).unwrap_or(u32::MAX);
        length.append_to(to);
        to.extend_from_slice(self);
    }
}

impl Put for Inode {
    fn append_to(&self, to: &mut Vec<u8>) {
        self.0.append_to(to);
    }
}

impl Put for Errno {
    fn append_to(&self, to: &mut Vec<u8>) {
        self.0.append_to(to);
    }
}

impl Put for Attributes {
    fn append_to(&self, to: &mut Vec<u8>) {
        let mut bytes = [0; ATTRIBUTES_BYTES];
        self.encode(&mut Writer::new(&mut bytes));
        to.extend_from_slice(&bytes);
    }
}

impl Put for Layout {
    fn append_to(&self, to: &mut Vec<u8>) {
        let mut bytes = [0; 8];
        self.encode(&mut Writer::new(&mut bytes));
        to.extend_from_slice(&bytes);
    }
}

/// Defines an enum whose variants are messages: one byte of number, then the fields in order.
/// A number, once given, never changes its meaning.
macro_rules! numbered {
    ($(#[$outer:meta])* $vis:vis enum $Enum:ident<'a> {
        $($(#[$doc:meta])* $number:literal $Variant:ident {
            $($field:ident : $type:ty),* $(,)?
        })*
    }) => {
        $(#[$outer])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        $vis enum $Enum<'a> {
            $($(#[$doc])* $Variant { $($field: $type),* },)*
        }

        impl<'a> $Enum<'a> {
            /// Appends the message: its number, then its fields in order.
            $vis fn encode(&self, to: &mut Vec<u8>) {
                match self {
                    $($Enum::$Variant { $($field),* } => {
                        to.push($number);
                        $($crate::core::coding::Put::append_to($field, to);)*
                    })*
                }
            }

            /// Reads one message; bytes that follow are left in `from`.
            ///
            /// # Errors
            /// `Malformed` if the bytes are no such message.
            $vis fn decode(from: &mut wire::Reader<'a>) -> Result<$Enum<'a>, wire::Malformed> {
                match from.u8()? {
                    $($number => Ok($Enum::$Variant {
                        $($field: wire::codec::Field::take(from)?),*
                    }),)*
                    _ => Err(wire::Malformed),
                }
            }
        }
    };
}
pub(crate) use numbered;
