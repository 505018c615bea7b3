//! Checksums of what is uploaded. A store that knows CRC-32C compares it with what arrives, and its
//! answer has the checksum of what it keeps. Every store that checks signatures compares a SHA-256
//! of the body that is part of the signature; it costs much more, so it is for other stores.
//!
//!   Unknown --answer with a CRC-32C--> Kept: only that is sent
//!           --any other answer-------> Ignored: only SHA-256 is sent
//!   Kept    --answer without it------> Ignored, and the request is repeated
//!
//! In the state Unknown both are sent, so no upload is without one. Requests without a signature
//! have no SHA-256.

use crate::client::{StoreRequest, TIMEOUT, map_of};
use crate::tree::Bucket;
use crate::writes::STORED_TIME;
use http::{HeaderMap, Method};
use reqsign_core::hash::{base64_encode, hex_sha256};
use std::io;
use std::sync::atomic::{AtomicU8, Ordering};

/// Header with the CRC-32C of a body, in requests and answers.
const CRC: &str = "x-amz-checksum-crc32c";
/// Header with the SHA-256 of a body, which the signature covers.
const SHA: &str = "x-amz-content-sha256";

/// How a store handles checksums.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Support {
    Unknown,
    Kept,
    Ignored,
}

/// How the store handles checksums, as far as its answers told.
#[derive(Default)]
pub(crate) struct Checksums(AtomicU8);

impl Checksums {
    pub(crate) fn support(&self) -> Support {
        match self.0.load(Ordering::Relaxed) {
            0 => Support::Unknown,
            1 => Support::Kept,
            _ => Support::Ignored,
        }
    }

    fn set(&self, support: Support) {
        let state = match support {
            Support::Unknown => 0,
            Support::Kept => 1,
            Support::Ignored => 2,
        };
        if self.0.swap(state, Ordering::Relaxed) != state && support == Support::Ignored {
            tracing::info!("the store keeps no CRC-32C of objects: SHA-256 is sent instead");
        }
    }
}

/// An answer to an upload.
pub(crate) struct Stored {
    pub(crate) headers: HeaderMap,
    /// The CRC-32C, if the store answered that it has it.
    pub(crate) crc: Option<String>,
}

/// The CRC-32C of bytes as a store writes it.
fn crc_of(bytes: &[u8]) -> String {
    base64_encode(&crc32c::crc32c(bytes).to_be_bytes())
}

/// True for an answer that may mean that a header is not known.
fn may_refuse_header(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::InvalidInput)
}

/// True for an error that tells that the store keeps other bytes than it was sent.
pub(crate) fn is_damage(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidData
}

/// The error for an object that is not as it was sent.
pub(crate) fn damage(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the backing store has {what}"))
}

impl Bucket {
    /// Sends the contents of an object or a part, with a checksum that the store compares.
    ///
    /// # Errors
    /// `is_damage`: the store answered with the checksum of other bytes. Otherwise as of the request.
    pub(crate) fn send_contents(
        &self,
        url: &str,
        headers: &HeaderMap,
        bytes: &[u8],
    ) -> io::Result<Stored> {
        let crc = crc_of(bytes);
        let support = self.checksums.support();
        let sent = self.send_with(support, (url, headers), (bytes, &crc));
        match (support, sent) {
            (Support::Unknown, Err(error)) if may_refuse_header(&error) => {}
            (Support::Kept, Ok(Stored { crc: None, .. })) => {}
            (Support::Unknown, Ok(stored)) => {
                let is_kept = stored.crc.is_some();
                self.checksums.set(if is_kept { Support::Kept } else { Support::Ignored });
                return Ok(stored);
            }
            (_, sent) => return sent,
        }
        let stored = self.send_with(Support::Ignored, (url, headers), (bytes, &crc))?;
        self.checksums.set(Support::Ignored);
        Ok(stored)
    }

    fn send_with(
        &self,
        support: Support,
        (url, headers): (&str, &HeaderMap),
        (body, crc): (&[u8], &String),
    ) -> io::Result<Stored> {
        let mut headers = headers.clone();
        if support != Support::Ignored {
            headers.extend(map_of([(CRC, crc)].into_iter())?);
        }
        if support != Support::Kept && !self.client.location.is_public {
            headers.extend(map_of([(SHA, &hex_sha256(body))].into_iter())?);
        }
        let (method, answer_timeout) = (&Method::PUT, STORED_TIME);
        let request =
            StoreRequest { method, url, headers: &headers, body: Some(body), answer_timeout };
        let (headers, _) = self.client.send(&request, TIMEOUT)?;
        let stored = headers.get(CRC).and_then(|it| it.to_str().ok()).map(str::to_owned);
        if stored.as_ref().is_some_and(|stored| stored != crc) {
            return Err(damage("other bytes than it was given"));
        }
        Ok(Stored { headers, crc: stored })
    }

    /// Begins a multipart upload whose parts have a CRC-32C, where the store knows that. Returns the
    /// answer.
    pub(crate) fn begin_with_checksums(
        &self,
        url: &str,
        headers: &HeaderMap,
    ) -> io::Result<Vec<u8>> {
        let send = |headers: &HeaderMap| {
            self.send(&Method::POST, url, headers, (&[], STORED_TIME)).map(|(_, answer)| answer)
        };
        let support = self.checksums.support();
        if support == Support::Ignored {
            return send(headers);
        }
        let mut all = headers.clone();
        let name = "CRC32C".to_owned();
        all.extend(map_of([("x-amz-checksum-algorithm", &name)].into_iter())?);
        match send(&all) {
            Err(error) if support == Support::Unknown && may_refuse_header(&error) => {
                let answer = send(headers)?;
                self.checksums.set(Support::Ignored);
                Ok(answer)
            }
            answer => answer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_is_written_as_stores_write_it() {
        // RFC 3720, B.4: 32 bytes of zeros have the CRC-32C 0x8a9136aa.
        assert_eq!(crc_of(&[0; 32]), "ipE2qg==");
        assert_eq!(crc_of(b""), "AAAAAA==");
    }
}
