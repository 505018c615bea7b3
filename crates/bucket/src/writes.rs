//! Creating and removing objects. Each object is complete or absent.
//!
//! Overwriting is guarded twice: the store is queried for what exists, and the request carries a
//! condition (`If-Match`, `If-None-Match`). With a store that does not support conditions, a change
//! between the two goes unnoticed.
//!
//! Paths are keys without the prefix and without a slash at the end.

use crate::attributes::{Attributes, VERSION};
use crate::checksums::{damage, is_damage};
use crate::client::{Attempts, StoreRequest, TIMEOUT, map_of};
use crate::copies::COPIED_TIME;
use crate::responses::{Head, Page, UploadStarted};
use crate::tree::{Bucket, DIRECTORY};
use http::{HeaderMap, Method};
use std::io;
use std::time::Duration;
use wire::attributes::mode;
use wire::backing::Version;

/// Timeout of the response to an upload, once the store has all of it.
pub(crate) const STORED_TIME: Duration = Duration::from_secs(60);
/// Maximum length of a key in bytes.
const KEY_BYTES_MAX: usize = 1024;
/// An existing object or directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Object {
    /// Kind and permissions.
    pub mode: u32,
    /// Version; of a directory only the inode number is meaningful.
    pub version: Version,
}

/// Precondition of a write: what must exist at the path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Precondition {
    /// Nothing exists.
    Absent,
    /// This version exists.
    Version(Version),
    /// No precondition, because the path belongs to the caller.
    None,
}

/// Why a write failed.
#[derive(Debug)]
pub enum WriteError {
    /// The precondition does not hold.
    PreconditionFailed,
    /// The request failed; the store may or may not have executed it.
    Failed(io::Error),
}

impl From<io::Error> for WriteError {
    fn from(error: io::Error) -> WriteError {
        WriteError::Failed(error)
    }
}

/// A multipart upload.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Upload {
    /// Path of the object.
    pub path: String,
    /// Upload id that the store assigned.
    pub id: String,
}

/// A part of a multipart upload that the store has.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Part {
    /// Parts count from 1.
    pub number: u32,
    /// ETag that the store answered.
    pub etag: String,
    /// Checksum that the store keeps, as it answered.
    pub(crate) crc: Option<String>,
}

/// Records multipart uploads, so that uploads which are abandoned can be aborted later.
pub trait Uploads: Send + Sync {
    /// An upload has begun.
    ///
    /// # Errors
    /// It cannot be recorded.
    fn started(&self, upload: &Upload) -> io::Result<()>;
    /// The upload is completed or aborted.
    ///
    /// # Errors
    /// That cannot be recorded.
    fn ended(&self, upload: &Upload) -> io::Result<()>;
    /// The upload is abandoned.
    fn abandoned(&self, upload: &Upload);
}

/// A request header that states a precondition.
pub(crate) type Condition = (&'static str, String);

/// The condition that the object still is what was found.
pub(crate) fn condition_of(there: Option<&Head>) -> Condition {
    match there {
        None => ("if-none-match", "*".to_owned()),
        Some(head) => ("if-match", head.etag.clone()),
    }
}

impl Bucket {
    /// Checks that the bucket answers.
    ///
    /// # Errors
    /// It does not answer or does not exist.
    pub fn check(&self) -> io::Result<()> {
        self.page(&self.client.location.prefix, None, ("1", TIMEOUT)).map(drop)
    }

    pub(crate) fn key_of(&self, path: &str) -> io::Result<String> {
        let key = self.key(path.as_bytes())?;
        match key.len() > KEY_BYTES_MAX {
            true => Err(io::Error::other("its path is longer than a key in a bucket can be")),
            false => Ok(key),
        }
    }

    pub(crate) fn head(&self, path: &str) -> io::Result<Option<(Head, HeaderMap)>> {
        let url = self.client.location.url(&self.key_of(path)?);
        match self.client.query(&Method::HEAD, &url, &[], &mut Attempts::new(TIMEOUT)) {
            Ok(response) => Ok(Some((Head::of(response.headers()), response.headers().clone()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Looks up a path: an object, or else a directory.
    ///
    /// # Errors
    /// As of the request.
    pub fn look_up(&self, path: &str) -> io::Result<Option<Object>> {
        if let Some((head, _)) = self.head(path)? {
            let (mode, version) = (head.attributes.file_mode(), version_of(&head));
            return Ok(Some(Object { mode, version }));
        }
        let version = Version { number: DIRECTORY, modified: 0, size: 0 };
        let directory = Object { mode: mode::DIRECTORY | 0o755, version };
        Ok(self.is_directory(path)?.then_some(directory))
    }

    fn is_directory(&self, path: &str) -> io::Result<bool> {
        let page = self.list_page(path, None, "1")?;
        Ok(!page.contents.is_empty())
    }

    /// A page of all keys below a path.
    pub(crate) fn list_page(
        &self,
        path: &str,
        token: Option<&str>,
        keys: &str,
    ) -> io::Result<Page> {
        let prefix = format!("{}/", self.key_of(path)?);
        self.page_of(&prefix, token, &[("max-keys", keys)], TIMEOUT)
    }

    /// True if a directory contains names.
    ///
    /// # Errors
    /// As of the request.
    pub fn has_names(&self, path: &str) -> io::Result<bool> {
        let own = format!("{}/", self.key_of(path)?);
        let page = self.list_page(path, None, "2")?;
        Ok(page.contents.iter().any(|object| object.key != own))
    }

    /// The names in a directory.
    ///
    /// # Errors
    /// As of the requests.
    pub fn names(&self, path: &str) -> io::Result<Vec<String>> {
        let prefix = format!("{}/", self.key_of(path)?);
        let (mut names, mut token) = (Vec::new(), None::<String>);
        loop {
            let page = self.page(&prefix, token.as_deref(), ("1000", TIMEOUT))?;
            let objects = page.contents.iter().map(|object| &object.key);
            for key in objects.chain(page.common_prefixes.iter().map(|it| &it.prefix)) {
                let name = key.strip_prefix(&prefix).unwrap_or_default().trim_end_matches('/');
                if !name.is_empty() {
                    names.push(name.to_owned());
                }
            }
            token = page.next().map(str::to_owned);
            if token.is_none() {
                return Ok(names);
            }
        }
    }

    pub(crate) fn send(
        &self,
        method: &Method,
        url: &str,
        headers: &HeaderMap,
        (body, answer_timeout): (&[u8], Duration),
    ) -> io::Result<(HeaderMap, Vec<u8>)> {
        self.client
            .send(&StoreRequest { method, url, headers, body: Some(body), answer_timeout }, TIMEOUT)
    }

    /// The header for a precondition, after checking it against what exists.
    pub(crate) fn condition(
        &self,
        path: &str,
        precondition: Precondition,
    ) -> Result<Option<Condition>, WriteError> {
        let found = match precondition {
            Precondition::None => return Ok(None),
            Precondition::Absent | Precondition::Version(_) => self.head(path)?,
        };
        match (precondition, found) {
            (Precondition::Absent, None) if !self.is_directory(path)? => {
                Ok(Some(condition_of(None)))
            }
            (Precondition::Version(version), Some((head, _))) if version_of(&head) == version => {
                Ok(Some(condition_of(Some(&head))))
            }
            _ => Err(WriteError::PreconditionFailed),
        }
    }

    /// Sends a request that writes version `number` to a path, guarded by a precondition.
    fn put_guarded(
        &self,
        (path, precondition, number): (&str, Precondition, u64),
        send: &dyn Fn(HeaderMap) -> io::Result<()>,
        headers: HeaderMap,
    ) -> Result<(), WriteError> {
        let condition = self.condition(path, precondition)?;
        self.send_guarded((path, condition, number), send, headers)
    }

    /// The same with a known condition.
    pub(crate) fn send_guarded(
        &self,
        (path, condition, number): (&str, Option<Condition>, u64),
        send: &dyn Fn(HeaderMap) -> io::Result<()>,
        mut headers: HeaderMap,
    ) -> Result<(), WriteError> {
        let plain = headers.clone();
        headers.extend(map_of(condition.iter().map(|(name, value)| (*name, value)))?);
        let error = match send(headers) {
            // Not every store supports conditions.
            Err(error) if error.kind() == io::ErrorKind::Unsupported && condition.is_some() => {
                match send(plain) {
                    Ok(()) => return Ok(()),
                    Err(error) => error,
                }
            }
            Ok(()) => return Ok(()),
            Err(error) if is_damage(&error) => return Err(WriteError::Failed(error)),
            Err(error) => error,
        };
        // A response may have been lost and the request repeated: then our version is there.
        match self.head(path)? {
            Some((head, _)) if head.number() == number => Ok(()),
            _ if error.kind() == io::ErrorKind::StaleNetworkFileHandle => {
                Err(WriteError::PreconditionFailed)
            }
            _ => Err(WriteError::Failed(error)),
        }
    }

    /// Writes an object.
    ///
    /// # Errors
    /// The precondition does not hold, or as of the request.
    pub fn put(
        &self,
        path: &str,
        bytes: &[u8],
        attributes: &Attributes,
        precondition: Precondition,
    ) -> Result<(), WriteError> {
        let url = self.client.location.url(&self.key_of(path)?);
        let send = |headers: HeaderMap| self.send_contents(&url, &headers, bytes).map(drop);
        let of = (path, precondition, attributes.number);
        match self.put_guarded(of, &send, metadata(attributes)?) {
            Err(WriteError::Failed(error)) if is_damage(&error) => {
                self.remove_damaged(path, attributes.number)?;
                Err(WriteError::Failed(error))
            }
            done => done,
        }
    }

    /// Removes an object of ours that is not as it was sent. It has our version, so it would count
    /// as written.
    fn remove_damaged(&self, path: &str, number: u64) -> io::Result<()> {
        match self.head(path)? {
            Some((head, _)) if head.number() == number => self.remove(path),
            _ => Ok(()),
        }
    }

    /// Creates a directory, or sets its attributes.
    ///
    /// # Errors
    /// As of the request.
    pub fn put_directory(&self, path: &str, attributes: &Attributes) -> io::Result<()> {
        let url = self.client.location.url(&format!("{}/", self.key_of(path)?));
        let mut headers = metadata(attributes)?;
        headers.remove(format!("x-amz-meta-{VERSION}"));
        self.send(&Method::PUT, &url, &headers, (&[], STORED_TIME)).map(drop)
    }

    /// Creates the object of a directory, so that the directory continues to exist when its last
    /// name is removed.
    ///
    /// # Errors
    /// As of the request.
    pub fn keep_directory(&self, path: &str) -> io::Result<()> {
        let url = self.client.location.url(&format!("{}/", self.key_of(path)?));
        match self.client.query(&Method::HEAD, &url, &[], &mut Attempts::new(TIMEOUT)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            known => return known.map(drop),
        }
        self.send(&Method::PUT, &url, &HeaderMap::new(), (&[], STORED_TIME)).map(drop)
    }

    /// Begins a multipart upload.
    ///
    /// # Errors
    /// As of the request.
    pub fn begin(&self, path: &str, attributes: &Attributes) -> io::Result<Upload> {
        let url = self.url_to_begin(path)?;
        self.begun(path, &self.begin_with_checksums(&url, &metadata(attributes)?)?)
    }

    fn url_to_begin(&self, path: &str) -> io::Result<String> {
        Ok(format!("{}?uploads=", self.client.location.url(&self.key_of(path)?)))
    }

    /// The same for parts that the store copies.
    pub(crate) fn begin_copy(&self, path: &str, headers: &HeaderMap) -> io::Result<Upload> {
        let url = self.url_to_begin(path)?;
        let (_, answer) = self.send(&Method::POST, &url, headers, (&[], STORED_TIME))?;
        self.begun(path, &answer)
    }

    fn begun(&self, path: &str, answer: &[u8]) -> io::Result<Upload> {
        let begun: UploadStarted = parsed(answer)?;
        match begun.upload_id.is_empty() {
            true => Err(io::Error::other("the store begins no upload")),
            false => self.note(Upload { path: path.to_owned(), id: begun.upload_id }),
        }
    }

    fn note(&self, upload: Upload) -> io::Result<Upload> {
        if let Some(Err(error)) = self.uploads.as_ref().map(|uploads| uploads.started(&upload)) {
            let _ = self.abort(&upload);
            let text = format!("cannot note that an upload begins: {error}");
            return Err(io::Error::new(error.kind(), text));
        }
        Ok(upload)
    }

    /// Abandons an upload: it is aborted later, or at once if uploads are not recorded.
    pub(crate) fn abandon(&self, upload: &Upload) {
        match &self.uploads {
            Some(uploads) => uploads.abandoned(upload),
            None => drop(self.abort(upload)),
        }
    }

    fn note_ended(&self, upload: &Upload) -> io::Result<()> {
        self.uploads.as_ref().map_or(Ok(()), |uploads| uploads.ended(upload))
    }

    pub(crate) fn url_of(&self, upload: &Upload, part: Option<u32>) -> io::Result<String> {
        let url = self.client.location.url(&self.key_of(&upload.path)?);
        let part = part.map(|part| format!("partNumber={part}&")).unwrap_or_default();
        Ok(format!("{url}?{part}uploadId={}", crate::location::in_query(&upload.id)))
    }

    /// Uploads a part; parts count from 1. Returns it for `complete`.
    ///
    /// # Errors
    /// The store keeps other bytes, or as of the request.
    pub fn part(&self, upload: &Upload, number: u32, bytes: &[u8]) -> io::Result<Part> {
        let url = self.url_of(upload, Some(number))?;
        let stored = self.send_contents(&url, &HeaderMap::new(), bytes)?;
        Ok(Part { number, etag: Head::of(&stored.headers).etag, crc: stored.crc })
    }

    /// Creates the object of `size` bytes from all parts in order.
    ///
    /// # Errors
    /// The precondition does not hold, the object has another size, or as of the request.
    pub fn complete(
        &self,
        upload: &Upload,
        parts: &[Part],
        (number, size, precondition): (u64, u64, Precondition),
    ) -> Result<(), WriteError> {
        let each = parts.iter().map(|Part { number, etag, crc }| {
            let etag = quick_xml::escape::escape(etag.as_str());
            let crc = crc.iter().map(|it| format!("<ChecksumCRC32C>{it}</ChecksumCRC32C>"));
            let crc: String = crc.collect();
            format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag>{crc}</Part>")
        });
        let open = "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">";
        let body = format!("{open}{}</CompleteMultipartUpload>", each.collect::<String>());
        let url = self.url_of(upload, None)?;
        let send = |headers: HeaderMap| {
            let body = (body.as_bytes(), COPIED_TIME);
            self.send(&Method::POST, &url, &headers, body).map(drop)
        };
        self.put_guarded((&upload.path, precondition, number), &send, HeaderMap::new())?;
        // If recording fails, a later abort of the unknown upload does no harm.
        if self.note_ended(upload).is_err() {
            self.abandon(upload);
        }
        match self.head(&upload.path)? {
            Some((head, _)) if head.number() == number && head.size != size => {
                self.remove(&upload.path)?;
                let text = format!("{} of the {size} bytes", head.size);
                Err(WriteError::Failed(damage(&text)))
            }
            _ => Ok(()),
        }
    }

    /// Aborts an upload: the store deletes its parts.
    ///
    /// # Errors
    /// As of the request.
    pub fn abort(&self, upload: &Upload) -> io::Result<()> {
        let url = self.url_of(upload, None)?;
        self.delete(&url)?;
        self.note_ended(upload)
    }

    pub(crate) fn delete(&self, url: &str) -> io::Result<()> {
        match self.client.query(&Method::DELETE, url, &[], &mut Attempts::new(TIMEOUT)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done.map(drop),
        }
    }

    /// Removes an object if it exists.
    ///
    /// # Errors
    /// As of the request.
    pub fn remove(&self, path: &str) -> io::Result<()> {
        self.delete(&self.client.location.url(&self.key_of(path)?))
    }

    /// Removes a directory without names.
    ///
    /// # Errors
    /// As of the request.
    pub fn remove_directory(&self, path: &str) -> io::Result<()> {
        self.delete(&self.client.location.url(&format!("{}/", self.key_of(path)?)))
    }
}

pub(crate) fn version_of(head: &Head) -> Version {
    let modified = head.attributes.modified.unwrap_or(head.stored);
    Version { number: head.number(), modified, size: head.size }
}

pub(crate) fn metadata(attributes: &Attributes) -> io::Result<HeaderMap> {
    let all = attributes.metadata().map(|(name, value)| (format!("x-amz-meta-{name}"), value));
    map_of(all.iter().map(|(name, value)| (name.as_str(), value)))
}

pub(crate) fn parsed<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    let wrong = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    let text = std::str::from_utf8(bytes).map_err(|error| wrong(error.to_string()))?;
    quick_xml::de::from_str(text).map_err(|error| wrong(error.to_string()))
}
