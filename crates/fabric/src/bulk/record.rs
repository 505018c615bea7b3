//! Messages between daemons about transfers whose bytes go by remote memory access; on a stream of
//! TCP, authenticated like all others.
//!
//! Record, 56 bytes: a bulk header (48, `net::bulk::header`), place u64. In a store or fetch the
//! place is the offset of the transfer's slot in the dialler's window. In an answer it is 0, or all
//! ones if the access failed: the transfer has to go another way. The answer to a fetch that moved
//! all is `Data` with the length; no bytes follow any header here.
//!
//! Greeting, 352 bytes, first sent by the dialler: version u32, length of the provider's name u8,
//! the name 63, length of the address u16, 2 zeros, the address 256, the window's grant 24. The
//! answer is one byte.

use crate::endpoint::{GRANT_BYTES, Grant};
use net::bulk::header::{HEADER_BYTES, Header};
use wire::codec::Malformed;

/// Length of a record.
pub(crate) const RECORD_BYTES: usize = HEADER_BYTES + 8;
/// The place in the answer to a transfer that failed.
pub(crate) const FAILED: u64 = u64::MAX;

/// Length of a greeting.
pub(crate) const GREETING_BYTES: usize = ADDRESS_AT + ADDRESS_MAX + GRANT_BYTES;
const VERSION: u32 = 1;
const NAME_MAX: usize = 63;
const ADDRESS_AT: usize = 72;
const ADDRESS_MAX: usize = 256;
/// Answers to a greeting.
pub(crate) const WELCOME: u8 = b'W';

/// A record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    pub(crate) header: Header,
    pub(crate) place: u64,
}

impl Record {
    pub(crate) fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        let (head, place) = bytes.split_at_mut(HEADER_BYTES);
        head.copy_from_slice(&self.header.encode());
        place.copy_from_slice(&self.place.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; RECORD_BYTES]) -> Result<Record, Malformed> {
        let (head, rest) = bytes.split_first_chunk::<HEADER_BYTES>().ok_or(Malformed)?;
        let place = u64::from_le_bytes(*rest.first_chunk().ok_or(Malformed)?);
        Ok(Record { header: Header::decode(head)?, place })
    }
}

/// A greeting.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Greeting {
    pub(crate) provider: String,
    pub(crate) address: Vec<u8>,
    pub(crate) window: Grant,
}

impl Greeting {
    /// `None` if name or address are too long.
    pub(crate) fn encode(&self) -> Option<Vec<u8>> {
        let (name, address) = (self.provider.as_bytes(), self.address.as_slice());
        if name.len() > NAME_MAX || address.len() > ADDRESS_MAX {
            return None;
        }
        let mut bytes = Vec::with_capacity(GREETING_BYTES);
        bytes.extend(VERSION.to_le_bytes());
        bytes.push(u8::try_from(name.len()).ok()?);
        bytes.extend(name);
        bytes.resize(ADDRESS_AT - 4, 0);
        bytes.extend(u16::try_from(address.len()).ok()?.to_le_bytes());
        bytes.resize(ADDRESS_AT, 0);
        bytes.extend(address);
        bytes.resize(ADDRESS_AT + ADDRESS_MAX, 0);
        bytes.extend(self.window.encode());
        Some(bytes)
    }

    pub(crate) fn decode(bytes: &[u8; GREETING_BYTES]) -> Result<Greeting, Malformed> {
        let part = |from: usize, length: usize| bytes.get(from..from + length).ok_or(Malformed);
        let version = u32::from_le_bytes(*bytes.first_chunk().ok_or(Malformed)?);
        let name_length = usize::from(*bytes.get(4).ok_or(Malformed)?);
        let address_length = part(ADDRESS_AT - 4, 2)?.first_chunk().ok_or(Malformed)?;
        let address_length = usize::from(u16::from_le_bytes(*address_length));
        if version != VERSION || name_length > NAME_MAX || address_length > ADDRESS_MAX {
            return Err(Malformed);
        }
        let provider = String::from_utf8(part(5, name_length)?.to_vec()).map_err(|_| Malformed)?;
        let grant = part(ADDRESS_AT + ADDRESS_MAX, GRANT_BYTES)?.first_chunk().ok_or(Malformed)?;
        let address = part(ADDRESS_AT, address_length)?.to_vec();
        Ok(Greeting { provider, address, window: Grant::decode(grant) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use net::bulk::header::Message;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_greeting_comes_back(
            provider in "[a-z;_]{0,63}",
            address in proptest::collection::vec(any::<u8>(), 0..=256),
            words: [u64; 3],
        ) {
            let [key, base, length] = words;
            let greeting = Greeting { provider, address, window: Grant { key, base, length } };
            let bytes = greeting.encode().expect("short enough");
            let bytes: &[u8; GREETING_BYTES] = bytes[..].try_into().expect("of one length");
            prop_assert_eq!(Greeting::decode(bytes), Ok(greeting));
        }

        #[test]
        fn any_greeting_is_survived(
            bytes in proptest::collection::vec(any::<u8>(), GREETING_BYTES),
            begins: bool,
        ) {
            let mut bytes: [u8; GREETING_BYTES] = bytes.try_into().expect("of one length");
            if begins {
                bytes[..4].copy_from_slice(&VERSION.to_le_bytes());
            }
            if let Ok(greeting) = Greeting::decode(&bytes) {
                prop_assert!(begins && greeting.encode().is_some());
            }
        }

        #[test]
        fn a_record_comes_back(id: u64, place: u64) {
            let record = Record { header: Header { id, message: Message::Data(5) }, place };
            prop_assert_eq!(Record::decode(&record.encode()), Ok(record));
        }
    }

    #[test]
    fn a_greeting_that_is_too_long_is_refused() {
        let window = Grant { key: 0, base: 0, length: 0 };
        let greeting = Greeting { provider: "x".repeat(64), address: Vec::new(), window };
        assert_eq!(greeting.encode(), None);
        let greeting = Greeting { provider: String::new(), address: vec![0; 257], window };
        assert_eq!(greeting.encode(), None);
    }
}
