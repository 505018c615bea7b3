//! A bucket as a tree: directories are what keys have before a slash, files are objects.
//!
//! A directory is listed page by page; of each name in it the store is asked what the listing does not
//! tell, several at once. An object with a slash at the end of its key tells the attributes of a
//! directory.
//! A directory of which nothing is told has the attributes that a new one would have.
//!
//! Not shown are names that no file can have: empty ones, `.` and `..`, and long ones; and an object
//! whose key is a directory as well.

use crate::answers::{Head, Object, Page};
use crate::client::{Client, FIRST_PATIENCE, PATIENCE, Tries};
use crate::place::Place;
use crate::writes::Uploads;
use below::{Contents, Entry, Tree};
use http::{Method, StatusCode};
use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use wire::attributes::mode;
use wire::below::Version;
use wire::limits::{NAME_BYTES_MAX, SYMLINK_BYTES_MAX};

/// Requests that are under way for files: a store is fast by many.
const WIDTH: usize = 16;
/// Names of a listing that are asked for at once.
const HEADS: usize = 32;

/// A request that brought so much was worth it: what is left of its part is asked for as if anew.
const PROGRESS_BYTES: u64 = 64 << 10;

/// The number of each directory: it is nothing but a part of keys, so none is another than it was.
pub const DIRECTORY: u64 = 1;

/// A bucket's objects below a prefix.
pub struct Bucket {
    pub(crate) client: Arc<Client>,
    /// Whose is what nobody's name is on.
    owner: (u32, u32),
    /// When it was opened: as old is a directory of which nothing is told.
    opened: i64,
    /// Who keeps a list of uploads in parts.
    pub(crate) uploads: Option<Arc<dyn Uploads>>,
}

impl Bucket {
    /// What `s3://BUCKET[/PREFIX]` names, with the endpoint and the credentials that the process's
    /// environment and the AWS configuration of its user lead to.
    ///
    /// # Errors
    /// The text names none; there is none; it can not be listed.
    pub fn open(text: &str) -> io::Result<Bucket> {
        let place = Place::of(text, &|name| std::env::var(name).ok())?;
        let client = Arc::new(Client::new(place)?);
        let own = std::fs::metadata("/proc/self")?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let opened = i64::try_from(now.as_nanos()).unwrap_or(0);
        let bucket = Bucket { client, owner: (own.uid(), own.gid()), opened, uploads: None };
        bucket.page(&bucket.client.place.prefix, None, ("1", FIRST_PATIENCE))?;
        Ok(bucket)
    }

    /// Has `uploads` told of all uploads in parts from now on.
    #[must_use]
    pub fn with_uploads(self, uploads: Arc<dyn Uploads>) -> Bucket {
        Bucket { uploads: Some(uploads), ..self }
    }

    pub(crate) fn page(
        &self,
        prefix: &str,
        token: Option<&str>,
        (keys, patience): (&str, Duration),
    ) -> io::Result<Page> {
        self.page_of(prefix, token, &[("delimiter", "/"), ("max-keys", keys)], patience)
    }

    pub(crate) fn page_of(
        &self,
        prefix: &str,
        token: Option<&str>,
        more: &[(&str, &str)],
        patience: Duration,
    ) -> io::Result<Page> {
        let mut query = vec![("list-type", "2"), ("prefix", prefix), ("encoding-type", "url")];
        query.extend(more);
        query.extend(token.map(|token| ("continuation-token", token)));
        // In the order in which some stores sign them.
        query.sort_unstable();
        Page::of(&self.client.ask_whole(&self.client.place.query(&query), patience)?)
    }

    pub(crate) fn key(&self, path: &[u8]) -> io::Result<String> {
        let path = std::str::from_utf8(path);
        let path = path.map_err(|_| io::Error::from(io::ErrorKind::NotFound))?;
        Ok(format!("{}{path}", self.client.place.prefix))
    }

    /// What the store says of each, in the order of names.
    fn entries(&self, found: Vec<(String, Found)>) -> io::Result<Vec<Entry>> {
        let told = below::each_until(HEADS, &found, |(name, found)| self.entry(name, found))?;
        Ok(told.into_iter().flatten().collect())
    }

    /// `None`: it was removed since it was listed.
    fn entry(&self, name: &str, found: &Found) -> io::Result<Option<Entry>> {
        let known = match found {
            Found::Directory(_) => Head { stored: self.opened, ..Head::default() },
            Found::File(object) => Head::of_listed(object),
        };
        let url = self.client.place.url(found.key());
        let head = match self.client.ask(&Method::HEAD, &url, &[], &mut Tries::new(PATIENCE)) {
            Ok(response) => Head::of(response.headers()),
            Err(error) => match (error.kind(), found) {
                (io::ErrorKind::NotFound, Found::File(_)) => return Ok(None),
                // What may be listed and not be looked at; a directory without an object of its own.
                (io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied, _) => known,
                _ => return Err(error),
            },
        };
        let mut entry = self.attributes(name, found, &head);
        if entry.mode & mode::TYPE == mode::SYMLINK {
            entry.target = self.client.ask_whole(&url, PATIENCE)?;
            entry.target.truncate(SYMLINK_BYTES_MAX);
        }
        Ok(Some(entry))
    }

    fn attributes(&self, name: &str, found: &Found, head: &Head) -> Entry {
        let said = &head.said;
        let is_file = matches!(found, Found::File(_));
        let modified = said.modified.unwrap_or(head.stored);
        Entry {
            name: name.as_bytes().to_vec(),
            mode: if is_file { said.file_mode() } else { said.directory_mode() },
            uid: said.uid.unwrap_or(self.owner.0),
            gid: said.gid.unwrap_or(self.owner.1),
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

/// What stands in a listing.
enum Found {
    File(Object),
    /// The key with its slash.
    Directory(String),
}

impl Found {
    fn key(&self) -> &str {
        match self {
            Found::File(object) => &object.key,
            Found::Directory(key) => key,
        }
    }
}

/// Names of a directory as pages bring them. An object waits until no page can bring a directory of its
/// name any more, as that is listed a little later.
#[derive(Default)]
struct Names {
    waiting: BTreeMap<String, Found>,
    unseen: usize,
}

impl Names {
    /// Takes a page of what begins with `prefix`; what is in no later page is returned.
    fn take(&mut self, prefix: &str, page: Page) -> Vec<(String, Found)> {
        let is_last = page.next().is_none();
        let objects = page.contents.into_iter().map(Found::File);
        let directories = page.common_prefixes.into_iter().map(|it| Found::Directory(it.prefix));
        let mut last = String::new();
        for found in objects.chain(directories) {
            let Some(rest) = found.key().strip_prefix(prefix).filter(|rest| !rest.is_empty())
            else {
                continue;
            };
            last = last.max(rest.to_owned());
            let name = rest.strip_suffix('/').unwrap_or(rest).to_owned();
            if below::is_temporary(name.as_ref()) {
                // On its way to another.
                continue;
            }
            let is_name = !matches!(&*name, "" | "." | "..") && !name.contains(['/', '\0']);
            let is_other = matches!(found, Found::File(_)) && rest.ends_with('/');
            let may_be = is_name && !is_other && name.len() <= NAME_BYTES_MAX;
            let is_unseen = !may_be || self.waiting.insert(name, found).is_some();
            self.unseen += usize::from(is_unseen);
        }
        let waiting = core::mem::take(&mut self.waiting);
        let is_ready = |name: &str| is_last || format!("{name}/") <= last;
        let (ready, waiting) = waiting.into_iter().partition(|(name, _)| is_ready(name));
        self.waiting = waiting;
        let ready: BTreeMap<String, Found> = ready;
        ready.into_iter().collect()
    }
}

impl Tree for Bucket {
    fn list(&self, path: &[u8], _: u64, each: &mut dyn FnMut(Entry)) -> io::Result<()> {
        let mut prefix = self.key(path)?;
        if !path.is_empty() {
            prefix.push('/');
        }
        let (mut names, mut token) = (Names::default(), None);
        loop {
            let page = self.page(&prefix, token.as_deref(), ("1000", PATIENCE))?;
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

    /// What others put into a bucket is not followed yet.
    fn look(&self, _: &[u8], _: u64, _: &[u8]) -> io::Result<Option<Entry>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Nothing is asked of the store before it is read.
    fn open(&self, path: &[u8], version: &Version) -> io::Result<Arc<dyn Contents>> {
        let url = self.client.place.url(&self.key(path)?);
        let Version { number, modified, .. } = *version;
        let client = Arc::clone(&self.client);
        Ok(Arc::new(Opened { client, url, number, modified, etag: OnceLock::new() }))
    }

    fn width(&self) -> usize {
        WIDTH
    }
}

/// A version of an object.
struct Opened {
    client: Arc<Client>,
    url: String,
    number: u64,
    modified: i64,
    /// As the store writes it, when it has answered.
    etag: OnceLock<String>,
}

impl Opened {
    /// Asks for what is in a range, of this version.
    fn ask(&self, range: &Range<u64>, tries: &mut Tries) -> io::Result<impl io::Read + use<>> {
        let mut headers = vec![("range", format!("bytes={}-{}", range.start, range.end - 1))];
        headers.extend(self.etag.get().map(|etag| ("if-match", etag.clone())));
        let response = self.client.ask(&Method::GET, &self.url, &headers, tries)?;
        // Not each store knows of `if-match`.
        let head = Head::of(response.headers());
        // Other programs may keep our word for the version, and not the time.
        let is_kept = head.said.version.is_none() || head.said.modified == Some(self.modified);
        if head.etag.is_empty() {
            return Err(io::Error::other("the store does not say which version it sends"));
        }
        if head.number() != self.number || !is_kept {
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

impl Contents for Opened {
    fn read(
        &self,
        part: Range<u64>,
        buffer: &mut [u8],
        each: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let (mut left, mut tries) = (part, Tries::new(PATIENCE));
        while !left.is_empty() {
            let mut body = self.ask(&left, &mut tries)?;
            let before = left.start;
            let ended = loop {
                if left.is_empty() {
                    // Its end is seen by another read, and the connection is free again.
                    let _ = body.read(&mut [0]);
                    return Ok(());
                }
                let room = (left.end - left.start).min(buffer.len() as u64) as usize;
                match body.read(buffer.get_mut(..room).unwrap_or_default()) {
                    Ok(0) => break io::ErrorKind::UnexpectedEof.into(),
                    Ok(count) => {
                        each(buffer.get(..count).unwrap_or_default())?;
                        left.start += count as u64;
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => break error,
                }
            };
            // It goes on from there.
            if left.start - before >= PROGRESS_BYTES {
                tries = Tries::new(PATIENCE);
            }
            if !tries.again() {
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

    fn taken(names: &mut Names, page: Page) -> Vec<String> {
        let taken = names.take("p/", page).into_iter();
        taken.map(|(name, found)| format!("{name} {}", found.key())).collect()
    }

    #[test]
    fn a_directory_has_its_name_before_an_object_whatever_page_it_is_on() {
        let mut names = Names::default();
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
    fn what_can_be_no_name_is_counted_and_left_out() {
        let long = format!("p/{}", "n".repeat(256));
        let keys = ["p/.", "p/..", &*long, "elsewhere", "p/good"];
        let mut names = Names::default();
        let seen = taken(&mut names, page(&keys, &["p//", "p/./", "p/../", "p/fine/"], false));
        assert_eq!(seen, ["fine p/fine/", "good p/good"]);
        assert_eq!(names.unseen, 6);
    }
}
