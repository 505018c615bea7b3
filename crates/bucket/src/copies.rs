//! Objects are copied by the store: to give one other metadata, and to bring it elsewhere, which is a
//! copy and a removal. What is too large for one request is copied in parts.
//!
//! *Invariant:* what others put where a copy goes, however late, is not overwritten, as far as the store
//! knows conditions.

use crate::answers::{Copied, Head};
use crate::attributes::Attributes;
use crate::client::map_of;
use crate::tree::Bucket;
use crate::writes::{Condition, Over, Refused, Upload, condition_of, metadata, parsed, version_of};
use below::{each, each_until};
use http::{HeaderMap, Method};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;
use wire::below::Version;

/// A store has copied an object, or put one together, in this time.
pub(crate) const COPIED_TIME: Duration = Duration::from_secs(300);
/// What is larger no store copies by one request.
const COPY_BYTES_MAX: u64 = 5 << 30;
/// Bytes of its parts, at least,
const COPY_PART_BYTES: u64 = 1 << 30;
/// and how many an object may have.
const PARTS_MAX: u64 = 10_000;
/// Objects, or parts of one, that are copied at once.
pub(crate) const WIDTH: usize = 16;
/// What of an object's headers goes with a copy that gets new metadata.
const KEPT: [&str; 5] = [
    "content-type",
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
];

impl Bucket {
    /// Gives an object that is there other attributes.
    ///
    /// # Errors
    /// ENOENT: there is none; ESTALE: it is another by now; the store does not.
    pub fn dress(&self, path: &str, attributes: &Attributes) -> io::Result<()> {
        let found = self.head(path)?.ok_or(io::ErrorKind::NotFound)?;
        let over = Over::Known(version_of(&found.0));
        let number = found.0.number();
        let attributes = Attributes { number, ..*attributes };
        let condition = condition_of(Some(&found.0));
        self.copy_object((path, &found), (path, over, condition), &attributes)
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
        self.copy_object((from, &found), (to, Over::Nothing, condition_of(None)), &attributes)
    }

    /// The metadata of others stay.
    fn copy_object(
        &self,
        (from, (head, headers)): (&str, &(Head, HeaderMap)),
        (to, over, condition): (&str, Over, Condition),
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
        let number = attributes.number;
        if head.size > COPY_BYTES_MAX {
            return self.copy_in_parts((&source, head.size), (to, over), (&all, number));
        }
        all.extend(source);
        let replace = "REPLACE".to_owned();
        all.extend(map_of([("x-amz-metadata-directive", &replace)].into_iter())?);
        let url = self.client.place.url(&self.key_of(to)?);
        let send = |headers: HeaderMap| {
            self.send(&Method::PUT, &url, &headers, (&[], COPIED_TIME)).map(drop)
        };
        match self.send_guarded((to, Some(condition), number), &send, all.clone()) {
            Ok(()) => Ok(()),
            Err(Refused::Failed(error)) => Err(error),
            Err(Refused::Taken) if over != Over::Nothing => {
                Err(io::ErrorKind::StaleNetworkFileHandle.into())
            }
            Err(Refused::Taken) => match self.head(to)? {
                Some(_) => Err(io::ErrorKind::AlreadyExists.into()),
                // The source is another by now, and this fails as well; or there are stores that take
                // the condition for one of the source.
                None => send(all),
            },
        }
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
        (to, over): (&str, Over),
        (headers, number): (&HeaderMap, u64),
    ) -> io::Result<()> {
        let upload = self.begin_with(to, headers)?;
        let done = self.copy_parts(source, size, &upload).and_then(|parts| {
            match self.complete(&upload, &parts, (number, over)) {
                Ok(()) => Ok(()),
                Err(Refused::Failed(error)) => Err(error),
                Err(Refused::Taken) => Err(io::ErrorKind::AlreadyExists.into()),
            }
        });
        if done.is_err() {
            self.leave(&upload);
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
        each_until(WIDTH, &starts, |start| {
            let part = u32::try_from(start / length + 1).map_err(io::Error::other)?;
            let mut headers = source.clone();
            let range = format!("bytes={start}-{}", size.min(start + length) - 1);
            headers.extend(map_of([("x-amz-copy-source-range", &range)].into_iter())?);
            let url = self.url_of(upload, Some(part))?;
            let (_, answer) = self.send(&Method::PUT, &url, &headers, (&[], COPIED_TIME))?;
            Ok((part, parsed::<Copied>(&answer)?.e_tag))
        })
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
            each(WIDTH, &page.contents, |object| with(&object.key))
                .into_iter()
                .collect::<Result<(), _>>()?;
            token = page.next().map(str::to_owned);
            if token.is_none() {
                return Ok(());
            }
        }
    }
}
