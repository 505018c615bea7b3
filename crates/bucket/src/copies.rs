//! Copies inside the store: to change the metadata of an object, and to move it, which is a copy
//! and a removal. Objects too large for one copy request are copied in parts.
//!
//! *Invariant:* an object that others put at the destination, however late, is not overwritten, as
//! far as the store supports conditional requests.

use crate::attributes::Attributes;
use crate::client::map_of;
use crate::responses::{CopyResponse, Head};
use crate::tree::Bucket;
use crate::writes::{
    Condition, Part, Precondition, Upload, WriteError, condition_of, metadata, parsed, version_of,
};
use backing::{parallel_map, try_parallel_map};
use http::{HeaderMap, Method};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;
use wire::backing::Version;

/// Timeout of a copy, and of the completion of a multipart upload.
pub(crate) const COPIED_TIME: Duration = Duration::from_secs(300);
/// Largest object that one copy request can copy, in bytes.
const COPY_BYTES_MAX: u64 = 5 << 30;
/// Minimum size of a part of a larger one, in bytes,
const COPY_PART_BYTES: u64 = 1 << 30;
/// and maximum number of parts.
const PARTS_MAX: u64 = 10_000;
/// Number of objects, or parts of an object, that are copied concurrently.
pub(crate) const WIDTH: usize = 16;
/// Headers of an object that are preserved when a copy replaces its metadata.
const COPIED_HEADERS: [&str; 5] = [
    "content-type",
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
];

/// The attributes of an object, for a copy of it.
fn attributes_of(path: &str, head: &Head) -> io::Result<Attributes> {
    let own = std::fs::metadata("/proc/self")?;
    let stored = head.attributes;
    let Version { number, modified, .. } = version_of(head);
    let (uid, gid) = (stored.uid.unwrap_or(own.uid()), stored.gid.unwrap_or(own.gid()));
    let is_directory = path.ends_with('/');
    let mode = if is_directory { stored.directory_mode() } else { stored.file_mode() };
    Ok(Attributes { mode, uid, gid, modified, number })
}

/// True if something else is at the destination of a copy than was expected.
fn is_changed(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::StaleNetworkFileHandle)
}

impl Bucket {
    /// Replaces the attributes of an object.
    ///
    /// # Errors
    /// ENOENT: it does not exist. ESTALE: it has changed. Otherwise as of the request.
    pub fn set_metadata(&self, path: &str, attributes: &Attributes) -> io::Result<()> {
        let found = self.head(path)?.ok_or(io::ErrorKind::NotFound)?;
        let precondition = Precondition::Version(version_of(&found.0));
        let number = found.0.number();
        let attributes = Attributes { number, ..*attributes };
        let condition = condition_of(Some(&found.0));
        self.copy_object((path, &found), (path, precondition, condition), &attributes)
    }

    /// Moves an object, which keeps its version. Idempotent.
    ///
    /// # Errors
    /// ENOENT: it does not exist. EEXIST: another object is at the destination. Otherwise as of the
    /// request.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.copy(from, to)?;
        self.remove(from)
    }

    /// Moves an object to a path for which the precondition holds. It keeps its version.
    ///
    /// # Errors
    /// The precondition does not hold, or as of the requests.
    pub fn replace(
        &self,
        from: &str,
        to: &str,
        precondition: Precondition,
    ) -> Result<(), WriteError> {
        let found = self.head(from)?.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let condition = self.condition(to, precondition)?.ok_or(WriteError::PreconditionFailed)?;
        let attributes = attributes_of(from, &found.0)?;
        match self.copy_object((from, &found), (to, precondition, condition), &attributes) {
            Ok(()) => Ok(self.remove(from)?),
            Err(error) if is_changed(&error) => Err(WriteError::PreconditionFailed),
            Err(error) => Err(WriteError::Failed(error)),
        }
    }

    fn copy(&self, from: &str, to: &str) -> io::Result<()> {
        let found = self.head(from)?.ok_or(io::ErrorKind::NotFound)?;
        match self.head(to)? {
            Some((there, _)) if version_of(&there) == version_of(&found.0) => return Ok(()),
            Some(_) => return Err(io::ErrorKind::AlreadyExists.into()),
            None => {}
        }
        let attributes = attributes_of(from, &found.0)?;
        self.copy_object(
            (from, &found),
            (to, Precondition::Absent, condition_of(None)),
            &attributes,
        )
    }

    /// Copies an object; metadata fields of other programs are preserved.
    fn copy_object(
        &self,
        (from, (head, headers)): (&str, &(Head, HeaderMap)),
        (to, precondition, condition): (&str, Precondition, Condition),
        attributes: &Attributes,
    ) -> io::Result<()> {
        let mut all = HeaderMap::new();
        for (name, value) in headers {
            let name_of = name.as_str();
            if name_of.starts_with("x-amz-meta-") || COPIED_HEADERS.contains(&name_of) {
                all.insert(name.clone(), value.clone());
            }
        }
        all.extend(metadata(attributes)?);
        let source = self.source(from, &head.etag)?;
        let number = attributes.number;
        if head.size > COPY_BYTES_MAX {
            return self.copy_in_parts((&source, head.size), (to, precondition), (&all, number));
        }
        all.extend(source);
        let replace = "REPLACE".to_owned();
        all.extend(map_of([("x-amz-metadata-directive", &replace)].into_iter())?);
        let url = self.client.location.url(&self.key_of(to)?);
        let send = |headers: HeaderMap| {
            self.send(&Method::PUT, &url, &headers, (&[], COPIED_TIME)).map(drop)
        };
        match self.send_guarded((to, Some(condition), number), &send, all.clone()) {
            Ok(()) => Ok(()),
            Err(WriteError::Failed(error)) => Err(error),
            Err(WriteError::PreconditionFailed) if precondition != Precondition::Absent => {
                match self.head(to)? {
                    // The store applies the condition on the destination to the source.
                    Some((there, _))
                        if from != to
                            && Precondition::Version(version_of(&there)) == precondition =>
                    {
                        send(all)
                    }
                    _ => Err(io::ErrorKind::StaleNetworkFileHandle.into()),
                }
            }
            Err(WriteError::PreconditionFailed) => match self.head(to)? {
                Some(_) => Err(io::ErrorKind::AlreadyExists.into()),
                // Either the source has changed, and this fails as well, or the store applies the
                // condition on the destination to the source.
                None => send(all),
            },
        }
    }

    fn source(&self, from: &str, etag: &str) -> io::Result<HeaderMap> {
        let source = self.client.location.source(&self.key_of(from)?);
        let etag = etag.to_owned();
        let all = [("x-amz-copy-source", &source), ("x-amz-copy-source-if-match", &etag)];
        map_of(all.into_iter())
    }

    fn copy_in_parts(
        &self,
        (source, size): (&HeaderMap, u64),
        (to, precondition): (&str, Precondition),
        (headers, number): (&HeaderMap, u64),
    ) -> io::Result<()> {
        let upload = self.begin_copy(to, headers)?;
        let done = self.copy_parts(source, size, &upload).and_then(|parts| {
            match self.complete(&upload, &parts, (number, size, precondition)) {
                Ok(()) => Ok(()),
                Err(WriteError::Failed(error)) => Err(error),
                Err(WriteError::PreconditionFailed) => Err(io::ErrorKind::AlreadyExists.into()),
            }
        });
        if done.is_err() {
            self.abandon(&upload);
        }
        done
    }

    fn copy_parts(&self, source: &HeaderMap, size: u64, upload: &Upload) -> io::Result<Vec<Part>> {
        let length = size.div_ceil(PARTS_MAX).max(COPY_PART_BYTES);
        let starts: Vec<u64> = (0..size.div_ceil(length)).map(|number| number * length).collect();
        try_parallel_map(WIDTH, &starts, |start| {
            let number = u32::try_from(start / length + 1).map_err(io::Error::other)?;
            let mut headers = source.clone();
            let range = format!("bytes={start}-{}", size.min(start + length) - 1);
            headers.extend(map_of([("x-amz-copy-source-range", &range)].into_iter())?);
            let url = self.url_of(upload, Some(number))?;
            let (_, answer) = self.send(&Method::PUT, &url, &headers, (&[], COPIED_TIME))?;
            Ok(Part { number, etag: parsed::<CopyResponse>(&answer)?.e_tag, crc: None })
        })
    }

    /// Moves all objects below a path: copies all before it removes any. An interrupted move
    /// continues when it is repeated.
    ///
    /// # Errors
    /// EEXIST: another object is at a destination. Otherwise as of the requests.
    pub fn rename_directory(&self, from: &str, to: &str) -> io::Result<()> {
        let prefix = format!("{}/", self.key_of(from)?);
        self.key_of(to)?;
        self.each_listed(from, &|key| {
            let rest = key.strip_prefix(&prefix).unwrap_or_default();
            let (from, to) = (format!("{from}/{rest}"), format!("{to}/{rest}"));
            match self.copy(&from, &to) {
                // It was removed since it was listed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                // The object of a directory only carries attributes; both mean the same directory.
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
        self.each_listed(from, &|key| self.delete(&self.client.location.url(key)))
    }

    fn each_listed(
        &self,
        path: &str,
        with: &(dyn Fn(&str) -> io::Result<()> + Sync),
    ) -> io::Result<()> {
        let mut token = None::<String>;
        loop {
            let page = self.list_page(path, token.as_deref(), "1000")?;
            parallel_map(WIDTH, &page.contents, |object| with(&object.key))
                .into_iter()
                .collect::<Result<(), _>>()?;
            token = page.next().map(str::to_owned);
            if token.is_none() {
                return Ok(());
            }
        }
    }
}
