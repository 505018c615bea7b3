//! Little-endian reading and writing over borrowed bytes. No allocation, no panic.
//!
//! A `Writer` that runs out of space remembers it (`finish` reports it) instead of failing at each
//! step. A `Reader` returns `Malformed` at the first missing byte.

/// The bytes are not a message of this protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed;

impl core::fmt::Display for Malformed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("malformed message")
    }
}

impl core::error::Error for Malformed {}

/// Writes fields one after the other.
pub struct Writer<'a> {
    bytes: &'a mut [u8],
    length: usize,
    overflowed: bool,
}

impl<'a> Writer<'a> {
    /// Starts at the beginning of `bytes`.
    pub fn new(bytes: &'a mut [u8]) -> Writer<'a> {
        Writer { bytes, length: 0, overflowed: false }
    }

    /// Bytes written so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// True if nothing was written yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Space that is left.
    #[must_use]
    pub fn space_left(&self) -> usize {
        self.bytes.len() - self.length
    }

    /// The length, or `Malformed` if something did not fit.
    ///
    /// # Errors
    /// `Malformed` if the message is longer than the buffer.
    pub fn finish(self) -> Result<usize, Malformed> {
        if self.overflowed { Err(Malformed) } else { Ok(self.length) }
    }

    /// Writes bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) {
        let end = self.length + bytes.len();
        match self.bytes.get_mut(self.length..end) {
            Some(target) => {
                target.copy_from_slice(bytes);
                self.length = end;
            }
            None => self.overflowed = true,
        }
    }

    /// Lets `with` write up to `most` bytes, fewer if there is less space; `with` returns how many
    /// it wrote.
    ///
    /// # Errors
    /// Errors of `with`; nothing is written then.
    pub fn fill<E>(
        &mut self,
        most: usize,
        with: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<(), E> {
        let end = self.length.saturating_add(most).min(self.bytes.len());
        let space = self.bytes.get_mut(self.length..end).unwrap_or_default();
        self.length += with(space)?.min(end - self.length);
        Ok(())
    }

    /// Writes one byte.
    pub fn u8(&mut self, value: u8) {
        self.raw(&[value]);
    }

    /// Writes two bytes.
    pub fn u16(&mut self, value: u16) {
        self.raw(&value.to_le_bytes());
    }

    /// Writes four bytes.
    pub fn u32(&mut self, value: u32) {
        self.raw(&value.to_le_bytes());
    }

    /// Writes eight bytes.
    pub fn u64(&mut self, value: u64) {
        self.raw(&value.to_le_bytes());
    }

    /// Writes words of eight bytes.
    pub fn words<const N: usize>(&mut self, words: &[u64; N]) {
        let end = self.length + 8 * N;
        match self.bytes.get_mut(self.length..end) {
            Some(target) => {
                for (to, word) in target.as_chunks_mut::<8>().0.iter_mut().zip(words) {
                    *to = word.to_le_bytes();
                }
                self.length = end;
            }
            None => self.overflowed = true,
        }
    }

    /// Writes a length (four bytes) and the bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        match u32::try_from(bytes.len()) {
            Ok(length) => {
                self.u32(length);
                self.raw(bytes);
            }
            Err(_) => self.overflowed = true,
        }
    }
}

/// Reads fields one after the other.
#[derive(Clone)]
pub struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Starts at the beginning of `bytes`.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes }
    }

    /// The unread rest.
    #[must_use]
    pub const fn rest(&self) -> &'a [u8] {
        self.bytes
    }

    /// Takes `length` bytes.
    ///
    /// # Errors
    /// `Malformed` if there are fewer.
    pub fn raw(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.bytes.split_at_checked(length).ok_or(Malformed)?;
        self.bytes = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.bytes.split_first_chunk::<N>().ok_or(Malformed)?;
        self.bytes = rest;
        Ok(*taken)
    }

    /// Reads one byte.
    ///
    /// # Errors
    /// `Malformed` at the end of the input; so do the others.
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    /// Reads two bytes.
    ///
    /// # Errors
    /// See `u8`.
    pub fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// Reads four bytes.
    ///
    /// # Errors
    /// See `u8`.
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Reads eight bytes.
    ///
    /// # Errors
    /// See `u8`.
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Reads words of eight bytes.
    ///
    /// # Errors
    /// See `u8`.
    pub fn words<const N: usize>(&mut self) -> Result<[u64; N], Malformed> {
        let mut words = [0; N];
        let bytes = self.raw(8 * N)?;
        for (word, from) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*from);
        }
        Ok(words)
    }

    /// Reads a length and that many bytes.
    ///
    /// # Errors
    /// See `u8`.
    pub fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.u32()?;
        self.raw(length as usize)
    }

    /// Checks that nothing follows.
    ///
    /// # Errors
    /// `Malformed` if bytes are left.
    pub fn end(self) -> Result<(), Malformed> {
        if self.bytes.is_empty() { Ok(()) } else { Err(Malformed) }
    }
}

/// A value that can be a field of a message.
pub trait Field<'a>: Sized {
    /// Writes the value.
    fn put(&self, to: &mut Writer<'_>);
    /// Reads the value.
    ///
    /// # Errors
    /// `Malformed` if the bytes are not such a value.
    fn take(from: &mut Reader<'a>) -> Result<Self, Malformed>;
}

macro_rules! number_fields {
    ($($type:ident)*) => {$(
        impl Field<'_> for $type {
            fn put(&self, to: &mut Writer<'_>) { to.$type(*self); }
            fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> { from.$type() }
        }
    )*};
}
number_fields!(u8 u16 u32 u64);

impl<'a> Field<'a> for &'a [u8] {
    fn put(&self, to: &mut Writer<'_>) {
        to.bytes(self);
    }
    fn take(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        from.bytes()
    }
}

macro_rules! codec_fields {
    ($($type:ty)*) => {$(
        impl Field<'_> for $type {
            fn put(&self, to: &mut Writer<'_>) { self.encode(to); }
            fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> { <$type>::decode(from) }
        }
    )*};
}
codec_fields!(crate::Attributes crate::Layout crate::Credentials);

impl Field<'_> for crate::Inode {
    fn put(&self, to: &mut Writer<'_>) {
        to.u64(self.0);
    }
    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(crate::Inode(from.u64()?))
    }
}

impl Field<'_> for crate::Errno {
    fn put(&self, to: &mut Writer<'_>) {
        to.u16(self.0);
    }
    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(crate::Errno(from.u16()?))
    }
}

/// Defines an enum whose variants are messages: one byte of number, then the fields in order. A
/// number, once given, never changes its meaning.
macro_rules! messages {
    ($(#[$outer:meta])* $vis:vis enum $Enum:ident<'a> {
        $($(#[$doc:meta])* $number:literal $Variant:ident {
            $($(#[$fdoc:meta])* $field:ident : $type:ty),* $(,)?
        })*
    }) => {
        $(#[$outer])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[expect(missing_docs, reason = "a field is described by the text of its message")]
        $vis enum $Enum<'a> {
            $($(#[$doc])* $Variant { $($(#[$fdoc])* $field: $type),* },)*
        }

        impl<'a> $Enum<'a> {
            /// Writes the message: its number, then its fields in order.
            pub fn encode(&self, to: &mut $crate::codec::Writer<'_>) {
                match self {
                    $($Enum::$Variant { $($field),* } => {
                        to.u8($number);
                        $($crate::codec::Field::put($field, to);)*
                    })*
                }
            }

            /// Reads one message; bytes that follow are left in `from`.
            ///
            /// # Errors
            /// `Malformed` if the bytes are not such a message.
            pub fn decode(
                from: &mut $crate::codec::Reader<'a>,
            ) -> Result<$Enum<'a>, $crate::codec::Malformed> {
                match from.u8()? {
                    $($number => Ok($Enum::$Variant {
                        $($field: $crate::codec::Field::take(from)?),*
                    }),)*
                    _ => Err($crate::codec::Malformed),
                }
            }
        }
    };
}
pub(crate) use messages;
