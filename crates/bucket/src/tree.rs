//! A bucket as a tree: the parts of keys before slashes are directories, objects are files.
//!
//! A directory is listed page by page. For each name the store is queried for what the listing does
//! not contain, several names at once. An object whose key ends with a slash carries the attributes
//! of a directory; a directory without such an object has the attributes of a new one.
//!
//! Keys that are not valid file names (an empty component, `.`, `..`, too long) are not shown, nor
//! is an object whose key is also a directory.

use crate::checksums::Checksums;
use crate::client::{Attempts, Client, FIRST_TIMEOUT, TIMEOUT};
use crate::location::BucketLocation;
use crate::responses::{Head, ListedObject, Page};
use crate::writes::Uploads;
use backing::{Contents, Entry, Tree};
use http::{Method, StatusCode};
use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use wire::attributes::mode;
use wire::backing::Version;
use wire::limits::{NAME_BYTES_MAX, SYMLINK_BYTES_MAX};

/// Number of concurrent requests for contents: a store needs many to be fast.
const WIDTH: usize = 16;
/// Number of names of a listing that are queried concurrently.
const HEADS: usize = 32;

/// A request that delivered this many bytes made progress, so the deadline for the rest starts
/// anew.
const PROGRESS_BYTES: u64 = 64 << 10;

/// Inode number of every directory: a directory is only a prefix of keys, so it never becomes
/// another one.
pub const DIRECTORY: u64 = 1;

/// The objects of a bucket below a prefix.
pub struct Bucket {
    pub(crate) client: Arc<Client>,
    /// Owner of objects without an owner in their metadata.
    owner: (u32, u32),
    /// Time of opening, used as modification time of directories without attributes, in nanoseconds
    /// since 1970.
    opened: i64,
    /// Records multipart uploads.
    pub(crate) uploads: Option<Arc<dyn Uploads>>,
    pub(crate) checksums: Checksums,
}

impl Bucket {
    /// Opens `s3://BUCKET[/PREFIX]` with the endpoint and credentials from the environment of the
    /// process and the AWS configuration of its user.
    ///
    /// # Errors
    /// The name is invalid, the bucket does not exist, or it cannot be listed.
    pub fn open(text: &str) -> io::Result<Bucket> {
        let location = BucketLocation::of(text, &|name| std::env::var(name).ok())?;
        let client = Arc::new(Client::new(location)?);
        let own = std::fs::metadata("/proc/self")?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let opened = i64::try_from(now.as_nanos()).unwrap_or(0);
        let (owner, checksums) = ((own.uid(), own.gid()), Checksums::default());
        let bucket = Bucket { client, owner, opened, uploads: None, checksums };
        bucket.page(&bucket.client.location.prefix, None, ("1", FIRST_TIMEOUT))?;
        Ok(bucket)
    }

    /// Reports all multipart uploads to `uploads` from now on.
    #[must_use]
    pub fn with_uploads(self, uploads: Arc<dyn Uploads>) -> Bucket {
        Bucket { uploads: Some(uploads), ..self }
    }

    pub(crate) fn page(
        &self,
        prefix: &str,
        token: Option<&str>,
        (keys, timeout): (&str, Duration),
    ) -> io::Result<Page> {
        self.page_of(prefix, token, &[("delimiter", "/"), ("max-keys", keys)], timeout)
    }

    pub(crate) fn page_of(
        &self,
        prefix: &str,
        token: Option<&str>,
        more: &[(&str, &str)],
        timeout: Duration,
    ) -> io::Result<Page> {
        let mut query = vec![("list-type", "2"), ("prefix", prefix), ("encoding-type", "url")];
        query.extend(more);
        query.extend(token.map(|token| ("continuation-token", token)));
        // Some stores expect signed parameters in this order.
        query.sort_unstable();
        Page::of(&self.client.query_whole(&self.client.location.query(&query), timeout)?)
    }

    pub(crate) fn key(&self, path: &[u8]) -> io::Result<String> {
        let path = std::str::from_utf8(path);
        let path = path.map_err(|_| io::Error::from(io::ErrorKind::NotFound))?;
        Ok(format!("{}{path}", self.client.location.prefix))
    }

    /// Queries the store for each name; returns the entries in order of their names.
    fn entries(&self, found: Vec<(String, ListedName)>) -> io::Result<Vec<Entry>> {
        let entries =
            backing::try_parallel_map(HEADS, &found, |(name, found)| self.entry(name, found))?;
        Ok(entries.into_iter().flatten().collect())
    }

    /// `None` if it was removed since it was listed.
    fn entry(&self, name: &str, found: &ListedName) -> io::Result<Option<Entry>> {
        let known = match found {
            ListedName::Directory(_) => Head { stored: self.opened, ..Head::default() },
            ListedName::File(object) => Head::of_listed(object),
        };
        let url = self.client.location.url(found.key());
        let head = match self.client.query(&Method::HEAD, &url, &[], &mut Attempts::new(TIMEOUT)) {
            Ok(response) => Head::of(response.headers()),
            Err(error) => match (error.kind(), found) {
                (io::ErrorKind::NotFound, ListedName::File(_)) => return Ok(None),
                // It may be listed but not read, or it is a directory without an object of its own.
                (io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied, _) => known,
                _ => return Err(error),
            },
        };
        let mut entry = self.attributes(name, found, &head);
        if entry.mode & mode::TYPE == mode::SYMLINK {
            entry.target = self.client.query_whole(&url, TIMEOUT)?;
            entry.target.truncate(SYMLINK_BYTES_MAX);
        }
        Ok(Some(entry))
    }

    fn attributes(&self, name: &str, found: &ListedName, head: &Head) -> Entry {
        let attributes = &head.attributes;
        let is_file = matches!(found, ListedName::File(_));
        let modified = attributes.modified.unwrap_or(head.stored);
        Entry {
            name: name.as_bytes().to_vec(),
            mode: if is_file { attributes.file_mode() } else { attributes.directory_mode() },
            uid: attributes.uid.unwrap_or(self.owner.0),
            gid: attributes.gid.unwrap_or(self.owner.1),
            links: if is_file { 1 } else { 2 },
            size: if is_file { head.size } else { 0 },
            accessed: modified,
            modified,
            changed: head.stored,
            born: head.stored,
            device: 0,
            number: if is_file { head.number() } else { DIRECTORY },
            target: Vec::new(),
            extended: Vec::new(),
        }
    }
}

/// A name in a listing.
enum ListedName {
    File(ListedObject),
    /// The key including its slash.
    Directory(String),
}

impl ListedName {
    fn key(&self) -> &str {
        match self {
            ListedName::File(object) => &object.key,
            ListedName::Directory(key) => key,
        }
    }
}

/// Names of a directory, collected from pages. An object is held back until no later page can
/// contain a directory of the same name, because the directory sorts after it.
#[derive(Default)]
struct NameMerger {
    waiting: BTreeMap<String, ListedName>,
    unseen: usize,
}

impl NameMerger {
    /// Adds a page of keys that begin with `prefix`; returns names that cannot appear on later
    /// pages.
    fn take(&mut self, prefix: &str, page: Page) -> Vec<(String, ListedName)> {
        let is_last = page.next().is_none();
        let objects = page.contents.into_iter().map(ListedName::File);
        let directories =
            page.common_prefixes.into_iter().map(|it| ListedName::Directory(it.prefix));
        let mut last = String::new();
        for found in objects.chain(directories) {
            let Some(rest) = found.key().strip_prefix(prefix).filter(|rest| !rest.is_empty())
            else {
                continue;
            };
            last = last.max(rest.to_owned());
            let name = rest.strip_suffix('/').unwrap_or(rest).to_owned();
            if backing::is_temporary(name.as_ref()) {
                // A temporary name.
                continue;
            }
            let is_name = !matches!(&*name, "" | "." | "..") && !name.contains(['/', '\0']);
            let is_other = matches!(found, ListedName::File(_)) && rest.ends_with('/');
            let may_be = is_name && !is_other && name.len() <= NAME_BYTES_MAX;
            let is_unseen = !may_be || self.waiting.insert(name, found).is_some();
            self.unseen += usize::from(is_unseen);
        }
        let waiting = core::mem::take(&mut self.waiting);
        let is_ready = |name: &str| is_last || format!("{name}/") <= last;
        let (ready, waiting) = waiting.into_iter().partition(|(name, _)| is_ready(name));
        self.waiting = waiting;
        let ready: BTreeMap<String, ListedName> = ready;
        ready.into_iter().collect()
    }
}

impl Tree for Bucket {
    fn list(&self, path: &[u8], _: u64, each: &mut dyn FnMut(Entry)) -> io::Result<()> {
        let mut prefix = self.key(path)?;
        if !path.is_empty() {
            prefix.push('/');
        }
        let (mut names, mut token) = (NameMerger::default(), None);
        loop {
            let page = self.page(&prefix, token.as_deref(), ("1000", TIMEOUT))?;
            token = page.next().map(str::to_owned);
            self.entries(names.take(&prefix, page))?.into_iter().for_each(&mut *each);
            if token.is_none() {
                break;
            }
        }
        if names.unseen > 0 {
            let unseen = names.unseen;
            tracing::warn!(prefix, unseen, "keys of the bucket that can be no files are not shown");
        }
        Ok(())
    }

    /// Changes that others make in a bucket are not detected.
    fn look(&self, _: &[u8], _: u64, _: &[u8]) -> io::Result<Option<Entry>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The version is checked by the first read.
    fn open(&self, path: &[u8], version: &Version) -> io::Result<Arc<dyn Contents>> {
        let url = self.client.location.url(&self.key(path)?);
        let Version { number, modified, .. } = *version;
        let client = Arc::clone(&self.client);
        Ok(Arc::new(OpenedObject { client, url, number, modified, etag: OnceLock::new() }))
    }

    fn width(&self) -> usize {
        WIDTH
    }
}

/// A version of an object.
struct OpenedObject {
    client: Arc<Client>,
    url: String,
    number: u64,
    modified: i64,
    /// ETag as the store sends it, once it has answered.
    etag: OnceLock<String>,
}

impl OpenedObject {
    /// Requests a range of this version.
    fn query(
        &self,
        range: &Range<u64>,
        attempts: &mut Attempts,
    ) -> io::Result<impl io::Read + use<>> {
        let mut headers = vec![("range", format!("bytes={}-{}", range.start, range.end - 1))];
        headers.extend(self.etag.get().map(|etag| ("if-match", etag.clone())));
        let response = self.client.query(&Method::GET, &self.url, &headers, attempts)?;
        // Not every store supports `if-match`.
        let head = Head::of(response.headers());
        // Another program may preserve our version field when it writes new contents, but not the
        // modification time.
        let is_unchanged =
            head.attributes.version.is_none() || head.attributes.modified == Some(self.modified);
        if head.etag.is_empty() {
            return Err(io::Error::other("the store does not say which version it sends"));
        }
        if head.number() != self.number || !is_unchanged {
            return Err(io::ErrorKind::StaleNetworkFileHandle.into());
        }
        let etag = head.etag;
        let _ = self.etag.set(etag);
        let starts = response.headers().get("content-range").and_then(|it| it.to_str().ok());
        let starts = starts.and_then(|text| text.strip_prefix("bytes ")?.split_once('-'));
        let start = starts.and_then(|(start, _)| start.trim().parse().ok());
        if response.status() != StatusCode::PARTIAL_CONTENT || start != Some(range.start) {
            return Err(io::Error::other("the store sends another part than was asked for"));
        }
        Ok(response.into_body().into_reader())
    }
}

impl Contents for OpenedObject {
    fn read(
        &self,
        part: Range<u64>,
        buffer: &mut [u8],
        each: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let (mut left, mut attempts) = (part, Attempts::new(TIMEOUT));
        while !left.is_empty() {
            let mut body = self.query(&left, &mut attempts)?;
            let before = left.start;
            let ended = loop {
                if left.is_empty() {
                    // Reading the end of the body returns the connection to the pool.
                    let _ = body.read(&mut [0]);
                    return Ok(());
                }
                let length = (left.end - left.start).min(buffer.len() as u64) as usize;
                match body.read(buffer.get_mut(..length).unwrap_or_default()) {
                    Ok(0) => break io::ErrorKind::UnexpectedEof.into(),
                    Ok(count) => {
                        each(buffer.get(..count).unwrap_or_default())?;
                        left.start += count as u64;
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => break error,
                }
            };
            // The next attempt continues from there.
            if left.start - before >= PROGRESS_BYTES {
                attempts = Attempts::new(TIMEOUT);
            }
            if !attempts.wait_before_retry() {
                return Err(ended);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(keys: &[&str], prefixes: &[&str], next: bool) -> Page {
        let contents = keys.iter().map(|key| format!("<Contents><Key>{key}</Key></Contents>"));
        let common = prefixes
            .iter()
            .map(|it| format!("<CommonPrefixes><Prefix>{it}</Prefix></CommonPrefixes>"));
        let parts: String = contents.chain(common).collect();
        let token = "<NextContinuationToken>t</NextContinuationToken>";
        let text = format!("<R><IsTruncated>{next}</IsTruncated>{token}{parts}</R>");
        Page::of(text.as_bytes()).expect("a page")
    }

    fn taken(names: &mut NameMerger, page: Page) -> Vec<String> {
        let taken = names.take("p/", page).into_iter();
        taken.map(|(name, found)| format!("{name} {}", found.key())).collect()
    }

    #[test]
    fn a_directory_takes_precedence_over_an_object_on_any_page() {
        let mut names = NameMerger::default();
        let first = taken(&mut names, page(&["p/", "p/a", "p/x", "p/x!"], &["p/b/"], true));
        assert_eq!(first, ["a p/a", "b p/b/"]);
        let second = taken(&mut names, page(&["p/x.1", "p/x.2"], &[], true));
        assert_eq!(second, ["x! p/x!", "x.1 p/x.1"]);
        assert_eq!(names.unseen, 0);
        let last = taken(&mut names, page(&["p/x0"], &["p/x/"], false));
        assert_eq!(last, ["x p/x/", "x.2 p/x.2", "x0 p/x0"]);
        assert_eq!(names.unseen, 1);
    }

    #[test]
    fn keys_that_are_not_valid_names_are_counted_and_skipped() {
        let long = format!("p/{}", "n".repeat(256));
        let keys = ["p/.", "p/..", &*long, "elsewhere", "p/good"];
        let mut names = NameMerger::default();
        let seen = taken(&mut names, page(&keys, &["p//", "p/./", "p/../", "p/fine/"], false));
        assert_eq!(seen, ["fine p/fine/", "good p/good"]);
        assert_eq!(names.unseen, 6);
    }
}
