//! Objects are made, copied and removed. Each is there complete or not at all.
//!
//! What must not be overwritten is guarded twice: the store is asked what is there, and told what has to
//! be (`If-Match`, `If-None-Match`). A store that knows no such conditions leaves the time between both
//! open.
//!
//! Paths are keys without the prefix and without a slash at the end.

use crate::answers::{Begun, Copied, Head, Page};
use crate::attributes::{Attributes, VERSION};
use crate::client::{Ask, PATIENCE, Tries, map_of};
use crate::tree::{Bucket, DIRECTORY};
use http::{HeaderMap, Method};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use wire::attributes::mode;
use wire::below::Version;

/// A store answers an upload in this time, once it has all of it,
const STORED_TIME: Duration = Duration::from_secs(60);
/// and has copied an object, or put one together, in this.
const COPIED_TIME: Duration = Duration::from_secs(300);
/// What is larger no store copies by one request.
const COPY_BYTES_MAX: u64 = 5 << 30;
/// Bytes of its parts, at least,
const COPY_PART_BYTES: u64 = 1 << 30;
/// and how many an object may have.
const PARTS_MAX: u64 = 10_000;
/// Bytes of the longest key.
const KEY_BYTES_MAX: usize = 1024;
/// Objects of a directory that are copied or removed at once.
const WIDTH: usize = 16;
/// What of an object's headers goes with a copy that gets new metadata.
const KEPT: [&str; 5] = [
    "content-type",
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
];

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

impl Bucket {
    /// The bucket answers.
    ///
    /// # Errors
    /// It does not, or is not there.
    pub fn check(&self) -> io::Result<()> {
        self.page(&self.client.place.prefix, None, ("1", PATIENCE)).map(drop)
    }

    fn key_of(&self, path: &str) -> io::Result<String> {
        let key = self.key(path.as_bytes())?;
        match key.len() > KEY_BYTES_MAX {
            true => Err(io::Error::other("its path is longer than a key in a bucket can be")),
            false => Ok(key),
        }
    }

    fn head(&self, path: &str) -> io::Result<Option<(Head, HeaderMap)>> {
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
    fn page_below(&self, path: &str, token: Option<&str>, keys: &str) -> io::Result<Page> {
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

    fn send(
        &self,
        method: &Method,
        url: &str,
        headers: &HeaderMap,
        (body, patience): (&[u8], Duration),
    ) -> io::Result<(HeaderMap, Vec<u8>)> {
        self.client.tell(&Ask { method, url, headers, body: Some(body), patience }, PATIENCE)
    }

    /// What a request has to say so that nothing else is overwritten.
    fn condition(&self, path: &str, over: Over) -> Result<Option<(&'static str, String)>, Refused> {
        let found = match over {
            Over::Any => return Ok(None),
            Over::Nothing | Over::Known(_) => self.head(path)?,
        };
        match (over, found) {
            (Over::Nothing, None) if !self.is_directory(path)? => {
                Ok(Some(("if-none-match", "*".to_owned())))
            }
            (Over::Known(version), Some((head, _))) if version_of(&head) == version => {
                Ok(Some(("if-match", head.etag)))
            }
            _ => Err(Refused::Taken),
        }
    }

    /// Sends what puts version `number` at a path, guarded.
    fn put_guarded(
        &self,
        (path, over, number): (&str, Over, u64),
        send: &dyn Fn(HeaderMap) -> io::Result<()>,
        mut headers: HeaderMap,
    ) -> Result<(), Refused> {
        let condition = self.condition(path, over)?;
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

    fn begin_with(&self, path: &str, headers: &HeaderMap) -> io::Result<Upload> {
        let url = format!("{}?uploads=", self.client.place.url(&self.key_of(path)?));
        let (_, answer) = self.send(&Method::POST, &url, headers, (&[], STORED_TIME))?;
        let begun: Begun = parsed(&answer)?;
        match begun.upload_id.is_empty() {
            true => Err(io::Error::other("the store begins no upload")),
            false => Ok(Upload { path: path.to_owned(), id: begun.upload_id }),
        }
    }

    fn url_of(&self, upload: &Upload, part: Option<u32>) -> io::Result<String> {
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
        self.put_guarded((&upload.path, over, number), &send, HeaderMap::new())
    }

    /// Gives an upload up: the store forgets its parts.
    ///
    /// # Errors
    /// It does not.
    pub fn abort(&self, upload: &Upload) -> io::Result<()> {
        let url = self.url_of(upload, None)?;
        self.delete(&url)
    }

    fn delete(&self, url: &str) -> io::Result<()> {
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

    /// Gives an object that is there other attributes.
    ///
    /// # Errors
    /// ENOENT: there is none; the store does not.
    pub fn dress(&self, path: &str, attributes: &Attributes) -> io::Result<()> {
        let found = self.head(path)?.ok_or(io::ErrorKind::NotFound)?;
        let number = found.0.number();
        self.copy_object((path, &found), path, &Attributes { number, ..*attributes })
    }

    /// Brings an object elsewhere, where it is the same version. May be done twice.
    ///
    /// # Errors
    /// ENOENT: there is none; EEXIST: something else is there; the store does not.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.copy(from, to)?;
        self.remove(from)
    }

    fn copy(&self, from: &str, to: &str) -> io::Result<()> {
        let found = self.head(from)?.ok_or(io::ErrorKind::NotFound)?;
        match self.head(to)? {
            Some((there, _)) if version_of(&there) == version_of(&found.0) => return Ok(()),
            Some(_) => return Err(io::ErrorKind::AlreadyExists.into()),
            None => {}
        }
        let own = std::fs::metadata("/proc/self")?;
        let said = found.0.said;
        let owner = (own.uid(), own.gid());
        let Version { number, modified, .. } = version_of(&found.0);
        let (uid, gid) = (said.uid.unwrap_or(owner.0), said.gid.unwrap_or(owner.1));
        let is_directory = from.ends_with('/');
        let mode = if is_directory { said.directory_mode() } else { said.file_mode() };
        let attributes = Attributes { mode, uid, gid, modified, number };
        self.copy_object((from, &found), to, &attributes)
    }

    /// The metadata of others stay.
    fn copy_object(
        &self,
        (from, (head, headers)): (&str, &(Head, HeaderMap)),
        to: &str,
        attributes: &Attributes,
    ) -> io::Result<()> {
        let mut all = HeaderMap::new();
        for (name, value) in headers {
            let name_of = name.as_str();
            if name_of.starts_with("x-amz-meta-") || KEPT.contains(&name_of) {
                all.insert(name.clone(), value.clone());
            }
        }
        all.extend(metadata(attributes)?);
        let source = self.source(from, &head.etag)?;
        if head.size > COPY_BYTES_MAX {
            return self.copy_in_parts((&source, head.size), to, (&all, attributes.number));
        }
        all.extend(source);
        let replace = "REPLACE".to_owned();
        all.extend(map_of([("x-amz-metadata-directive", &replace)].into_iter())?);
        let url = self.client.place.url(&self.key_of(to)?);
        self.send(&Method::PUT, &url, &all, (&[], COPIED_TIME)).map(drop)
    }

    fn source(&self, from: &str, etag: &str) -> io::Result<HeaderMap> {
        let source = self.client.place.source(&self.key_of(from)?);
        let etag = etag.to_owned();
        let all = [("x-amz-copy-source", &source), ("x-amz-copy-source-if-match", &etag)];
        map_of(all.into_iter())
    }

    fn copy_in_parts(
        &self,
        (source, size): (&HeaderMap, u64),
        to: &str,
        (headers, number): (&HeaderMap, u64),
    ) -> io::Result<()> {
        let upload = self.begin_with(to, headers)?;
        let done = self.copy_parts(source, size, &upload).and_then(|parts| {
            match self.complete(&upload, &parts, (number, Over::Any)) {
                Ok(()) => Ok(()),
                Err(Refused::Failed(error)) => Err(error),
                Err(Refused::Taken) => Err(io::ErrorKind::AlreadyExists.into()),
            }
        });
        if done.is_err() {
            let _ = self.abort(&upload);
        }
        done
    }

    fn copy_parts(
        &self,
        source: &HeaderMap,
        size: u64,
        upload: &Upload,
    ) -> io::Result<Vec<(u32, String)>> {
        let length = size.div_ceil(PARTS_MAX).max(COPY_PART_BYTES);
        let starts: Vec<u64> = (0..size.div_ceil(length)).map(|number| number * length).collect();
        let parts = each(&starts, &|start: &u64| {
            let part = u32::try_from(start / length + 1).map_err(io::Error::other)?;
            let mut headers = source.clone();
            let range = format!("bytes={start}-{}", size.min(start + length) - 1);
            headers.extend(map_of([("x-amz-copy-source-range", &range)].into_iter())?);
            let url = self.url_of(upload, Some(part))?;
            let (_, answer) = self.send(&Method::PUT, &url, &headers, (&[], COPIED_TIME))?;
            Ok((part, parsed::<Copied>(&answer)?.e_tag))
        });
        parts.into_iter().collect()
    }

    /// Brings all that is below a path below another: all is copied before anything is removed. What was
    /// broken off is gone on with when it is done again.
    ///
    /// # Errors
    /// EEXIST: something else is there; the store does not.
    pub fn rename_directory(&self, from: &str, to: &str) -> io::Result<()> {
        let prefix = format!("{}/", self.key_of(from)?);
        self.key_of(to)?;
        self.each_below(from, &|key| {
            let rest = key.strip_prefix(&prefix).unwrap_or_default();
            let (from, to) = (format!("{from}/{rest}"), format!("{to}/{rest}"));
            match self.copy(&from, &to) {
                // It was removed since it was listed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                // Whatever is said of a directory: it is one.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    if to.ends_with('/') {
                        Ok(())
                    } else {
                        Err(error)
                    }
                }
                done => done,
            }
        })?;
        self.each_below(from, &|key| self.delete(&self.client.place.url(key)))
    }

    fn each_below(
        &self,
        path: &str,
        with: &(dyn Fn(&str) -> io::Result<()> + Sync),
    ) -> io::Result<()> {
        let mut token = None::<String>;
        loop {
            let page = self.page_below(path, token.as_deref(), "1000")?;
            each(&page.contents, &|object| with(&object.key))
                .into_iter()
                .collect::<Result<(), _>>()?;
            token = page.next().map(str::to_owned);
            if token.is_none() {
                return Ok(());
            }
        }
    }
}

fn version_of(head: &Head) -> Version {
    let modified = head.said.modified.unwrap_or(head.stored);
    Version { number: head.number(), modified, size: head.size }
}

fn metadata(attributes: &Attributes) -> io::Result<HeaderMap> {
    let all = attributes.metadata().map(|(name, value)| (format!("x-amz-meta-{name}"), value));
    map_of(all.iter().map(|(name, value)| (name.as_str(), value)))
}

fn parsed<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    let wrong = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    let text = std::str::from_utf8(bytes).map_err(|error| wrong(error.to_string()))?;
    quick_xml::de::from_str(text).map_err(|error| wrong(error.to_string()))
}

/// Does something with each of them, several at a time. In their order.
fn each<T: Sync, U: Send>(all: &[T], with: &(dyn Fn(&T) -> U + Sync)) -> Vec<U> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(all.len()));
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(one) = all.get(number) else { return };
            let one = with(one);
            done.lock().unwrap_or_else(PoisonError::into_inner).push((number, one));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..WIDTH.min(all.len()) {
            scope.spawn(work);
        }
        work();
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, one)| one).collect()
}
