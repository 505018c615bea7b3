//! Requests by rings: the layout of the memory that is lent to the kernel, and the commands that
//! lend it.
//!
//! An entry is 288 bytes of *headers* and a *payload*. The headers, by byte: at 0 the header of the
//! request, replaced by the reply's header; at 128 the part of fixed size; at 256 the fields of the
//! ring itself: 8 bytes of flags, the number by which the reply is committed, and at 272 the length
//! of the payload, of the request and then of the reply.

use wire::codec::{Malformed, Reader, Writer};

use crate::abi::OUT_HEADER_BYTES;
use crate::init::TRANSFER_BYTES;
use crate::request::{Header, Operation, fixed_bytes};

/// Length of the headers.
pub const HEADERS_BYTES: usize = 288;
/// Length of the payload: the kernel accepts no less.
pub const PAYLOAD_BYTES: usize = TRANSFER_BYTES as usize;
/// Length of a command.
pub const COMMAND_BYTES: usize = 80;
/// Hands the kernel a new entry; its memory is given by two `iovec`s.
pub const REGISTER: u32 = 1;
/// Commits the reply in an entry, and returns the entry to the kernel.
pub const COMMIT_AND_FETCH: u32 = 2;

const FIXED_AT: usize = 128;
const FIXED_BYTES: usize = 128;
const OWN_AT: usize = FIXED_AT + FIXED_BYTES;
const PAYLOAD_BYTES_AT: usize = OWN_AT + 16;

/// A request in the headers of an entry.
#[derive(Clone, Copy, Debug)]
pub struct Arrived<'a> {
    /// The header of the request.
    pub header: Header,
    /// Identifies the request when it is committed.
    pub commit: u64,
    /// Length of the request's part of the payload.
    pub payload: usize,
    fixed: &'a [u8],
}

impl<'a> Arrived<'a> {
    /// Parses the headers.
    ///
    /// # Errors
    /// `Malformed` if there are too few bytes.
    pub fn parse(headers: &'a [u8]) -> Result<Arrived<'a>, Malformed> {
        let header = Header::parse(headers)?;
        let fixed = headers.get(FIXED_AT..OWN_AT).ok_or(Malformed)?;
        let mut own = Reader::new(headers.get(OWN_AT..).ok_or(Malformed)?);
        own.u64()?;
        let commit = own.u64()?;
        Ok(Arrived { header, commit, payload: own.u32()? as usize, fixed })
    }

    /// The operation; `payload` is the request's part of it.
    ///
    /// # Errors
    /// As `Operation::of`.
    pub fn operation(
        &self,
        payload: &'a [u8],
        has_long_xattr: bool,
    ) -> Result<Operation<'a>, Malformed> {
        let fixed = self.fixed.get(..fixed_bytes(self.header.opcode, has_long_xattr));
        Operation::of(self.header.opcode, fixed.ok_or(Malformed)?, payload)
    }
}

/// Puts a reply's header, and the length of its payload, into the headers of an entry.
pub fn reply(headers: &mut [u8], header: &[u8; OUT_HEADER_BYTES], payload: usize) {
    if let Some(to) = headers.get_mut(..OUT_HEADER_BYTES) {
        to.copy_from_slice(header);
    }
    if let Some(to) = headers.get_mut(PAYLOAD_BYTES_AT..) {
        Writer::new(to).u32(payload as u32);
    }
}

/// The argument of a command: the number of the queue, and the request that is committed.
#[must_use]
pub fn command(queue: u16, commit: u64) -> [u8; COMMAND_BYTES] {
    let mut bytes = [0; COMMAND_BYTES];
    let mut to = Writer::new(&mut bytes);
    to.u64(0);
    to.u64(commit);
    to.u16(queue);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::opcode;

    #[test]
    fn a_request_is_found_where_the_kernel_puts_it() {
        let mut headers = [0; HEADERS_BYTES];
        let mut to = Writer::new(&mut headers);
        to.u32(100);
        to.u32(opcode::WRITE);
        to.u64(77);
        to.u64(5);
        to.raw(&[0; 16]);
        let mut fixed = Writer::new(&mut headers[FIXED_AT..]);
        fixed.u64(9);
        fixed.u64(4096);
        fixed.u32(3);
        let mut own = Writer::new(&mut headers[OWN_AT..]);
        own.u64(0);
        own.u64(78);
        own.u32(3);
        let arrived = Arrived::parse(&headers).expect("whole");
        assert_eq!((arrived.commit, arrived.payload, arrived.header.node), (78, 3, 5));
        let operation = arrived.operation(b"abc", true).expect("whole");
        let Operation::Write { handle: 9, offset: 4096, data: b"abc", .. } = operation else {
            panic!("another operation");
        };
        assert!(arrived.operation(b"ab", true).is_err(), "a byte is missing");
    }

    #[test]
    fn a_reply_is_where_the_kernel_looks() {
        let mut headers = [7; HEADERS_BYTES];
        reply(&mut headers, &[1; OUT_HEADER_BYTES], 0x0102_0304);
        assert_eq!((headers[15], headers[16], headers[271]), (1, 7, 7));
        assert_eq!(headers[272..276], [4, 3, 2, 1]);
        let command = command(0x0605, 0x0807);
        assert_eq!(command[8..10], [7, 8]);
        assert_eq!(command[16..18], [5, 6]);
    }
}
