//! Objects are made and removed. Each is there complete or not at all.
//!
//! What must not be overwritten is guarded twice: the store is asked what is there, and told what has to
//! be (`If-Match`, `If-None-Match`). A store that knows no such conditions leaves the time between both
//! open.
//!
//! Paths are keys without the prefix and without a slash at the end.

use crate::answers::{Begun, Head, Page};
use crate::attributes::{Attributes, VERSION};
use crate::client::{Ask, PATIENCE, Tries, map_of};
use crate::copies::COPIED_TIME;
use crate::tree::{Bucket, DIRECTORY};
use http::{HeaderMap, Method};
use std::io;
use std::time::Duration;
use wire::attributes::mode;
use wire::below::Version;

/// A store answers an upload in this time, once it has all of it.
const STORED_TIME: Duration = Duration::from_secs(60);
/// Bytes of the longest key.
const KEY_BYTES_MAX: usize = 1024;
/// What is at a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Object {
    /// Kind and permissions.
    pub mode: u32,
    /// Which version it is; of a directory its number alone counts.
    pub version: Version,
}

/// What may be at a path where something is put.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Over {
    /// Nothing.
    Nothing,
    /// This version.
    Known(Version),
    /// Anything: it is ours to replace.
    Any,
}

/// Why nothing was put.
#[derive(Debug)]
pub enum Refused {
    /// Something else is there.
    Taken,
    /// It may or may not have been done.
    Failed(io::Error),
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Refused {
        Refused::Failed(error)
    }
}

/// An object that is uploaded in parts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Upload {
    /// Its path.
    pub path: String,
    /// What the store calls the upload.
    pub id: String,
}

/// Keeps a list of uploads in parts, so that the store can be told to forget those that nobody goes on
/// with.
pub trait Uploads: Send + Sync {
    /// It has begun.
    ///
    /// # Errors
    /// It can not be noted.
    fn begun(&self, upload: &Upload) -> io::Result<()>;
    /// The store knows of it no more.
    ///
    /// # Errors
    /// It can not be noted.
    fn over(&self, upload: &Upload) -> io::Result<()>;
    /// Nobody goes on with it.
    fn left(&self, upload: &Upload);
}

/// A header that says what has to be where something is put.
pub(crate) type Condition = (&'static str, String);

/// For what is there.
pub(crate) fn condition_of(there: Option<&Head>) -> Condition {
    match there {
        None => ("if-none-match", "*".to_owned()),
        Some(head) => ("if-match", head.etag.clone()),
    }
}

impl Bucket {
    /// The bucket answers.
    ///
    /// # Errors
    /// It does not, or is not there.
    pub fn check(&self) -> io::Result<()> {
        self.page(&self.client.place.prefix, None, ("1", PATIENCE)).map(drop)
    }

    pub(crate) fn key_of(&self, path: &str) -> io::Result<String> {
        let key = self.key(path.as_bytes())?;
        match key.len() > KEY_BYTES_MAX {
            true => Err(io::Error::other("its path is longer than a key in a bucket can be")),
            false => Ok(key),
        }
    }

    pub(crate) fn head(&self, path: &str) -> io::Result<Option<(Head, HeaderMap)>> {
        let url = self.client.place.url(&self.key_of(path)?);
        match self.client.ask(&Method::HEAD, &url, &[], &mut Tries::new(PATIENCE)) {
            Ok(response) => Ok(Some((Head::of(response.headers()), response.headers().clone()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What is at a path: an object, or else a directory.
    ///
    /// # Errors
    /// The store does not say.
    pub fn look(&self, path: &str) -> io::Result<Option<Object>> {
        if let Some((head, _)) = self.head(path)? {
            let (mode, version) = (head.said.file_mode(), version_of(&head));
            return Ok(Some(Object { mode, version }));
        }
        let version = Version { number: DIRECTORY, modified: 0, size: 0 };
        let directory = Object { mode: mode::DIRECTORY | 0o755, version };
        Ok(self.is_directory(path)?.then_some(directory))
    }

    fn is_directory(&self, path: &str) -> io::Result<bool> {
        let page = self.page_below(path, None, "1")?;
        Ok(!page.contents.is_empty())
    }

    /// All keys below a path, a page of them.
    pub(crate) fn page_below(
        &self,
        path: &str,
        token: Option<&str>,
        keys: &str,
    ) -> io::Result<Page> {
        let prefix = format!("{}/", self.key_of(path)?);
        self.page_of(&prefix, token, &[("max-keys", keys)], PATIENCE)
    }

    /// True if a directory has names.
    ///
    /// # Errors
    /// The store does not say.
    pub fn has_names(&self, path: &str) -> io::Result<bool> {
        let own = format!("{}/", self.key_of(path)?);
        let page = self.page_below(path, None, "2")?;
        Ok(page.contents.iter().any(|object| object.key != own))
    }

    /// The names in a directory.
    ///
    /// # Errors
    /// The store does not say.
    pub fn names(&self, path: &str) -> io::Result<Vec<String>> {
        let prefix = format!("{}/", self.key_of(path)?);
        let (mut names, mut token) = (Vec::new(), None::<String>);
        loop {
            let page = self.page(&prefix, token.as_deref(), ("1000", PATIENCE))?;
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
        (body, patience): (&[u8], Duration),
    ) -> io::Result<(HeaderMap, Vec<u8>)> {
        self.client.tell(&Ask { method, url, headers, body: Some(body), patience }, PATIENCE)
    }

    /// What a request has to say so that nothing else is overwritten.
    fn condition(&self, path: &str, over: Over) -> Result<Option<Condition>, Refused> {
        let found = match over {
            Over::Any => return Ok(None),
            Over::Nothing | Over::Known(_) => self.head(path)?,
        };
        match (over, found) {
            (Over::Nothing, None) if !self.is_directory(path)? => Ok(Some(condition_of(None))),
            (Over::Known(version), Some((head, _))) if version_of(&head) == version => {
                Ok(Some(condition_of(Some(&head))))
            }
            _ => Err(Refused::Taken),
        }
    }

    /// Sends what puts version `number` at a path, guarded.
    fn put_guarded(
        &self,
        (path, over, number): (&str, Over, u64),
        send: &dyn Fn(HeaderMap) -> io::Result<()>,
        headers: HeaderMap,
    ) -> Result<(), Refused> {
        let condition = self.condition(path, over)?;
        self.send_guarded((path, condition, number), send, headers)
    }

    /// The same with a condition that is known.
    pub(crate) fn send_guarded(
        &self,
        (path, condition, number): (&str, Option<Condition>, u64),
        send: &dyn Fn(HeaderMap) -> io::Result<()>,
        mut headers: HeaderMap,
    ) -> Result<(), Refused> {
        let plain = headers.clone();
        headers.extend(map_of(condition.iter().map(|(name, value)| (*name, value)))?);
        let error = match send(headers) {
            // Not each store has conditions.
            Err(error) if error.kind() == io::ErrorKind::Unsupported && condition.is_some() => {
                match send(plain) {
                    Ok(()) => return Ok(()),
                    Err(error) => error,
                }
            }
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        // The answer may have been lost, and the same sent again.
        match self.head(path)? {
            Some((head, _)) if head.number() == number => Ok(()),
            _ if error.kind() == io::ErrorKind::StaleNetworkFileHandle => Err(Refused::Taken),
            _ => Err(Refused::Failed(error)),
        }
    }

    /// Puts an object at a path.
    ///
    /// # Errors
    /// Something else is there; the store does not take it.
    pub fn put(
        &self,
        path: &str,
        bytes: &[u8],
        attributes: &Attributes,
        over: Over,
    ) -> Result<(), Refused> {
        let url = self.client.place.url(&self.key_of(path)?);
        let send = |headers: HeaderMap| {
            self.send(&Method::PUT, &url, &headers, (bytes, STORED_TIME)).map(drop)
        };
        self.put_guarded((path, over, attributes.number), &send, metadata(attributes)?)
    }

    /// Makes a directory, or gives it attributes.
    ///
    /// # Errors
    /// The store does not take it.
    pub fn put_directory(&self, path: &str, attributes: &Attributes) -> io::Result<()> {
        let url = self.client.place.url(&format!("{}/", self.key_of(path)?));
        let mut headers = metadata(attributes)?;
        headers.remove(format!("x-amz-meta-{VERSION}"));
        self.send(&Method::PUT, &url, &headers, (&[], STORED_TIME)).map(drop)
    }

    /// A directory stays when its last name goes.
    ///
    /// # Errors
    /// The store does not take the object that says so.
    pub fn keep_directory(&self, path: &str) -> io::Result<()> {
        let url = self.client.place.url(&format!("{}/", self.key_of(path)?));
        match self.client.ask(&Method::HEAD, &url, &[], &mut Tries::new(PATIENCE)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            known => return known.map(drop),
        }
        self.send(&Method::PUT, &url, &HeaderMap::new(), (&[], STORED_TIME)).map(drop)
    }

    /// Begins an upload in parts.
    ///
    /// # Errors
    /// The store does not take it.
    pub fn begin(&self, path: &str, attributes: &Attributes) -> io::Result<Upload> {
        self.begin_with(path, &metadata(attributes)?)
    }

    pub(crate) fn begin_with(&self, path: &str, headers: &HeaderMap) -> io::Result<Upload> {
        let url = format!("{}?uploads=", self.client.place.url(&self.key_of(path)?));
        let (_, answer) = self.send(&Method::POST, &url, headers, (&[], STORED_TIME))?;
        let begun: Begun = parsed(&answer)?;
        match begun.upload_id.is_empty() {
            true => Err(io::Error::other("the store begins no upload")),
            false => self.note(Upload { path: path.to_owned(), id: begun.upload_id }),
        }
    }

    fn note(&self, upload: Upload) -> io::Result<Upload> {
        if let Some(Err(error)) = self.uploads.as_ref().map(|uploads| uploads.begun(&upload)) {
            let _ = self.abort(&upload);
            let text = format!("can not note that an upload begins: {error}");
            return Err(io::Error::new(error.kind(), text));
        }
        Ok(upload)
    }

    /// Nobody goes on with it: it is forgotten later, or at once where no list of them is kept.
    pub(crate) fn leave(&self, upload: &Upload) {
        match &self.uploads {
            Some(uploads) => uploads.left(upload),
            None => drop(self.abort(upload)),
        }
    }

    fn note_over(&self, upload: &Upload) -> io::Result<()> {
        self.uploads.as_ref().map_or(Ok(()), |uploads| uploads.over(upload))
    }

    pub(crate) fn url_of(&self, upload: &Upload, part: Option<u32>) -> io::Result<String> {
        let url = self.client.place.url(&self.key_of(&upload.path)?);
        let part = part.map(|part| format!("partNumber={part}&")).unwrap_or_default();
        Ok(format!("{url}?{part}uploadId={}", crate::place::in_query(&upload.id)))
    }

    /// Uploads a part; parts count from 1. What `complete` has to be told of it.
    ///
    /// # Errors
    /// The store does not take it.
    pub fn part(&self, upload: &Upload, part: u32, bytes: &[u8]) -> io::Result<String> {
        let url = self.url_of(upload, Some(part))?;
        let headers = &HeaderMap::new();
        let (headers, _) = self.send(&Method::PUT, &url, headers, (bytes, STORED_TIME))?;
        Ok(Head::of(&headers).etag)
    }

    /// Puts an object at its path, of all its parts in order.
    ///
    /// # Errors
    /// Something else is there; the store does not take it.
    pub fn complete(
        &self,
        upload: &Upload,
        parts: &[(u32, String)],
        (number, over): (u64, Over),
    ) -> Result<(), Refused> {
        let each = parts.iter().map(|(part, etag)| {
            let etag = quick_xml::escape::escape(etag.as_str());
            format!("<Part><PartNumber>{part}</PartNumber><ETag>{etag}</ETag></Part>")
        });
        let open = "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">";
        let body = format!("{open}{}</CompleteMultipartUpload>", each.collect::<String>());
        let url = self.url_of(upload, None)?;
        let send = |headers: HeaderMap| {
            let body = (body.as_bytes(), COPIED_TIME);
            self.send(&Method::POST, &url, &headers, body).map(drop)
        };
        self.put_guarded((&upload.path, over, number), &send, HeaderMap::new())?;
        // Should that fail the store is asked once more to forget what it does not know.
        if self.note_over(upload).is_err() {
            self.leave(upload);
        }
        Ok(())
    }

    /// Gives an upload up: the store forgets its parts.
    ///
    /// # Errors
    /// It does not.
    pub fn abort(&self, upload: &Upload) -> io::Result<()> {
        let url = self.url_of(upload, None)?;
        self.delete(&url)?;
        self.note_over(upload)
    }

    pub(crate) fn delete(&self, url: &str) -> io::Result<()> {
        match self.client.ask(&Method::DELETE, url, &[], &mut Tries::new(PATIENCE)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done.map(drop),
        }
    }

    /// Removes an object, if there is one.
    ///
    /// # Errors
    /// The store does not.
    pub fn remove(&self, path: &str) -> io::Result<()> {
        self.delete(&self.client.place.url(&self.key_of(path)?))
    }

    /// Removes a directory without names.
    ///
    /// # Errors
    /// The store does not.
    pub fn remove_directory(&self, path: &str) -> io::Result<()> {
        self.delete(&self.client.place.url(&format!("{}/", self.key_of(path)?)))
    }
}

pub(crate) fn version_of(head: &Head) -> Version {
    let modified = head.said.modified.unwrap_or(head.stored);
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
