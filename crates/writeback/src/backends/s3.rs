//! The backend for a bucket, by the crate `bucket`. An object is created by one request, or by a
//! multipart upload that one request completes. So there are no temporary names, and an upload that
//! was interrupted is invisible. Multipart uploads are recorded in a file, so that the next daemon
//! aborts those that were abandoned.
//!
//! With `--writeback-verify contents` an object is created under a private name, read back, and copied
//! to its own name within the store: nothing that differs ever has that name.
//!
//! *Invariant:* each object that is written has a unique number in its metadata, and the instance
//! is told of it before. So it can be found out later whether a write was executed, even if the
//! daemon died or the store did not answer.

use crate::backends::{
    Backend, Dir, NewNode, Node, PartialFiles, Precondition, Uncommitted, WriteAt,
};
use crate::state::{WritebackError, WritebackResult, unique_number};
use backing::Tree as _;
use backing::{AttributesLost, CopyError, FileMetadata, Kind};
use bucket::{Attributes, Bucket, Part, Upload, Uploads as _, WriteError};
use config::choice::WritebackVerify;
use rustix::io::Errno;
use std::collections::{BTreeMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use wire::attributes::mode;
use wire::backing::Version;

/// Minimum size of a part of an object, in bytes; smaller objects are written by one request.
const PART_BYTES: u64 = 8 << 20;
/// Maximum number of parts of an object.
const PARTS_MAX: u64 = 10_000;
/// Maximum size of an object in bytes.
const OBJECT_BYTES_MAX: u64 = 5 << 40;
/// Bytes that are read back at a time.
const READ_BYTES: usize = 1 << 20;

/// The objects of a bucket below a prefix.
pub(crate) struct S3Backend {
    bucket: Arc<Bucket>,
    uploads: Arc<Uploads>,
    /// Directories that have an object of their own, as far as this process knows.
    persistent_dirs: Mutex<HashSet<String>>,
    /// Contents are read back.
    verifies: WritebackVerify,
}

impl S3Backend {
    /// Opens `s3://BUCKET[/PREFIX]`. `list` is the file in which uploads are recorded.
    ///
    /// # Errors
    /// As of `Bucket::open`; the list cannot be read.
    pub(crate) fn new(
        text: &str,
        list: PathBuf,
        verifies: WritebackVerify,
    ) -> io::Result<S3Backend> {
        let uploads = Arc::new(Uploads::read(list)?);
        let bucket = Arc::new(Bucket::open(text)?.with_uploads(Arc::clone(&uploads) as _));
        Ok(S3Backend { bucket, uploads, persistent_dirs: Mutex::default(), verifies })
    }

    /// Called before a name is removed, which may be the last: makes the directory persistent.
    fn keep_directory(&self, within: &Dir) -> io::Result<()> {
        let path = path_of(within)?;
        if path.is_empty() || guard(&self.persistent_dirs).contains(path) {
            return Ok(());
        }
        self.bucket.keep_directory(path)?;
        guard(&self.persistent_dirs).insert(path.to_owned());
        Ok(())
    }

    fn forget(&self, path: &str) {
        guard(&self.persistent_dirs).retain(|dir| !is_within(dir, path));
    }
}

/// True for `of` and all paths below it.
fn is_within(path: &str, of: &str) -> bool {
    path.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// True for a name that `Place::aside` made.
fn is_aside(path: &str) -> bool {
    backing::number_of_aside(OsStr::new(path.rsplit('/').next().unwrap_or(path))).is_some()
}

fn guard<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

fn path_of(dir: &Dir) -> io::Result<&str> {
    match dir {
        Dir::S3(path) => Ok(path),
        Dir::Posix(_) => Err(io::ErrorKind::Unsupported.into()),
    }
}

fn path(within: &Dir, name: &OsStr) -> io::Result<String> {
    let within = path_of(within)?;
    let wrong = || io::Error::other("its name is not valid UTF-8, as a bucket requires");
    let name = name.to_str().ok_or_else(wrong)?;
    Ok(if within.is_empty() { name.to_owned() } else { format!("{within}/{name}") })
}

/// Multipart uploads that are not completed, also recorded in a file.
struct Uploads {
    list: PathBuf,
    /// By upload id: the path, and whether the upload is abandoned.
    all: Mutex<BTreeMap<String, (String, bool)>>,
}

impl Uploads {
    fn read(list: PathBuf) -> io::Result<Uploads> {
        let text = match std::fs::read(&list) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => b"{}".to_vec(),
            text => text?,
        };
        // Without a valid list the uploads are unknown.
        let left: BTreeMap<String, String> = serde_json::from_slice(&text).unwrap_or_default();
        let all = left.into_iter().map(|(id, path)| (id, (path, true))).collect();
        Ok(Uploads { list, all: Mutex::new(all) })
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<String, (String, bool)>)) -> io::Result<()> {
        let mut all = guard(&self.all);
        change(&mut all);
        let paths: BTreeMap<_, _> = all.iter().map(|(id, (path, _))| (id, path)).collect();
        let partial = self.list.with_extension("new");
        std::fs::write(&partial, serde_json::to_vec(&paths)?)?;
        std::fs::rename(&partial, &self.list)
    }

    /// Aborts abandoned uploads. A failed abort is repeated in the next round.
    fn forget(&self, bucket: &Bucket) {
        let is_left = |(id, (path, is_left)): (&String, &(String, bool))| {
            is_left.then(|| Upload { path: path.clone(), id: id.clone() })
        };
        let left: Vec<Upload> = guard(&self.all).iter().filter_map(is_left).collect();
        for upload in left {
            if let Err(error) = bucket.abort(&upload) {
                tracing::warn!("cannot abort an upload of {}: {error}", upload.path);
                return;
            }
        }
    }
}

impl bucket::Uploads for Uploads {
    fn started(&self, upload: &Upload) -> io::Result<()> {
        self.change(|all| {
            all.insert(upload.id.clone(), (upload.path.clone(), false));
        })
    }

    fn ended(&self, upload: &Upload) -> io::Result<()> {
        self.change(|all| {
            all.remove(&upload.id);
        })
    }

    fn abandoned(&self, upload: &Upload) {
        if let Some((_, is_left)) = guard(&self.all).get_mut(&upload.id) {
            *is_left = true;
        }
    }
}

/// An object that is being uploaded.
pub(crate) struct Uploading {
    bucket: Arc<Bucket>,
    uploads: Arc<Uploads>,
    attributes: Attributes,
    size: u64,
    /// Where it was begun, and whether it is read back there before it gets its name.
    path: String,
    is_compared: bool,
    /// Ranges that are read back, and their CRC-32C.
    sent: Mutex<Vec<(Range<u64>, u32)>>,
    /// Contents of an object that is written by one request.
    body: Mutex<Vec<u8>>,
    /// The multipart upload, if there is one, and the parts uploaded so far.
    upload: Option<Upload>,
    parts: Mutex<Vec<Part>>,
}

impl fmt::Debug for Uploading {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("Uploading").field("size", &self.size).finish_non_exhaustive()
    }
}

impl Drop for Uploading {
    fn drop(&mut self) {
        if let Some(upload) = &self.upload {
            self.uploads.abandoned(upload);
        }
    }
}

impl Uploading {
    /// The version that it will have.
    pub(crate) fn version(&self) -> Version {
        let Attributes { number, modified, .. } = self.attributes;
        Version { number, modified, size: self.size }
    }

    fn commit(mut self, path: &str, over: Precondition) -> Result<(), WriteError> {
        if self.attributes.mode & mode::TYPE == mode::DIRECTORY {
            return Ok(self.bucket.put_directory(path, &self.attributes)?);
        }
        let over = match over {
            Precondition::Absent => bucket::Precondition::Absent,
            Precondition::Version(version) => bucket::Precondition::Version(version),
        };
        if self.is_compared {
            return self.commit_compared(path, over);
        }
        if self.upload.is_none() {
            return self.put(path, over);
        }
        let (from, bucket) = (self.path.clone(), Arc::clone(&self.bucket));
        if from == path {
            self.complete(over)?;
        } else if over == bucket::Precondition::Absent && is_aside(&from) {
            // No precondition: the name is private to this daemon, so only the daemon itself can
            // have created it.
            self.complete(bucket::Precondition::None)?;
            match bucket.rename(&from, path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    bucket.remove(&from)?;
                    return Err(WriteError::PreconditionFailed);
                }
                renamed => renamed?,
            }
        } else {
            // Completing it under the name where it began would overwrite an object of others.
            return Err(WriteError::PreconditionFailed);
        }
        Ok(())
    }

    fn put(&self, path: &str, over: bucket::Precondition) -> Result<(), WriteError> {
        self.bucket.put(path, &guard(&self.body), &self.attributes, over)
    }

    /// Completes the upload where it was begun.
    fn complete(&mut self, over: bucket::Precondition) -> Result<(), WriteError> {
        let Some(upload) = &self.upload else { return Ok(()) };
        let mut parts = std::mem::take(&mut *guard(&self.parts));
        parts.sort_unstable();
        self.bucket.complete(upload, &parts, (self.attributes.number, self.size, over))?;
        self.upload = None;
        Ok(())
    }

    /// Creates the object under its private name, compares it, and moves it to its own.
    fn commit_compared(mut self, path: &str, over: bucket::Precondition) -> Result<(), WriteError> {
        match self.upload.is_some() {
            true => self.complete(bucket::Precondition::None)?,
            false => self.put(&self.path, bucket::Precondition::None)?,
        }
        let moved = match self.compare() {
            Ok(()) => self.bucket.replace(&self.path, path, over),
            Err(error) => Err(WriteError::Failed(error)),
        };
        if moved.is_err() {
            // An object that is left there is removed before the next attempt.
            let _ = self.bucket.remove(&self.path);
        }
        moved
    }

    /// Reads back what was sent.
    fn compare(&self) -> io::Result<()> {
        // A read of an object that is cut would be tried again and again.
        let size = self.bucket.look_up(&self.path)?.map_or(0, |found| found.version.size);
        if size != self.size {
            let text = format!("the backing store has {size} of the {} bytes", self.size);
            return Err(io::Error::other(text));
        }
        let object = self.bucket.open(self.path.as_bytes(), &self.version())?;
        let mut buffer = vec![0; READ_BYTES];
        for (range, crc) in guard(&self.sent).iter().filter(|(range, _)| !range.is_empty()) {
            let mut found = 0;
            object.read(range.clone(), &mut buffer, &mut |bytes| {
                found = crc32c::crc32c_append(found, bytes);
                Ok(())
            })?;
            if found != *crc {
                let Range { start, end } = range;
                return Err(io::Error::other(format!(
                    "the backing store has other bytes at {start} to {end} than it was given"
                )));
            }
        }
        Ok(())
    }
}

impl Backend for S3Backend {
    fn is_object_store(&self) -> bool {
        true
    }

    fn is_compared_aside(&self) -> bool {
        self.verifies == WritebackVerify::Contents
    }

    fn part_bytes(&self, size: u64) -> u64 {
        size.div_ceil(PARTS_MAX).max(PART_BYTES)
    }

    /// None: an incomplete upload cannot be read.
    fn partials(&self) -> Option<&dyn PartialFiles> {
        None
    }

    fn root(&self) -> io::Result<Dir> {
        self.bucket.check()?;
        self.uploads.forget(&self.bucket);
        Ok(Dir::S3("".into()))
    }

    fn dir(&self, within: &Dir, name: &OsStr) -> io::Result<Dir> {
        Ok(Dir::S3(path(within, name)?.into()))
    }

    fn node(&self, within: &Dir, name: &OsStr) -> io::Result<Option<Node>> {
        let Some(object) = self.bucket.look_up(&path(within, name)?)? else { return Ok(None) };
        let kind = match object.mode & mode::TYPE {
            mode::REGULAR => Kind::File,
            mode::DIRECTORY => Kind::Dir,
            mode::SYMLINK => Kind::Link,
            _ => Kind::Special,
        };
        Ok(Some(Node { kind, version: object.version, links: 1 }))
    }

    fn names(&self, within: &Dir) -> io::Result<Vec<OsString>> {
        let names = self.bucket.names(path_of(within)?)?;
        Ok(names.into_iter().map(OsString::from).collect())
    }

    fn create(
        &self,
        (within, name): (&Dir, &OsStr),
        new: &NewNode,
        metadata: &FileMetadata,
    ) -> io::Result<Uncommitted> {
        let path = path(within, name)?;
        let (kind, size, body) = match new {
            NewNode::File(_, size) if *size > OBJECT_BYTES_MAX => {
                return Err(io::Error::other(
                    "it is larger than the maximum size of an object, 5 TiB",
                ));
            }
            NewNode::File(_, size) => (mode::REGULAR, *size, Vec::new()),
            NewNode::Dir => (mode::DIRECTORY, 0, Vec::new()),
            NewNode::Link(target) => {
                let target = target.as_encoded_bytes().to_vec();
                (mode::SYMLINK, target.len() as u64, target)
            }
            NewNode::Special(kind, _) => match kind & mode::TYPE {
                kind @ (mode::FIFO | mode::SOCKET) => (kind, 0, Vec::new()),
                _ => return Err(io::Error::other("it is a device, which a bucket cannot store")),
            },
        };
        let number = if kind == mode::DIRECTORY { bucket::DIRECTORY } else { unique_number() };
        let attributes = attributes(kind, metadata, number);
        let upload = match size > PART_BYTES {
            true => Some(self.bucket.begin(&path, &attributes)?),
            false => None,
        };
        let (bucket, uploads) = (Arc::clone(&self.bucket), Arc::clone(&self.uploads));
        let (body, parts, sent) = (Mutex::new(body), Mutex::default(), Mutex::default());
        let is_compared = self.is_compared_aside() && kind == mode::REGULAR;
        Ok(Uncommitted::Object(Uploading {
            bucket,
            uploads,
            attributes,
            size,
            path,
            is_compared,
            sent,
            body,
            upload,
            parts,
        }))
    }

    fn write(
        &self,
        partial: &Uncommitted,
        part: &Range<u64>,
        fill: &mut dyn FnMut(&mut WriteAt<'_>) -> WritebackResult<()>,
    ) -> WritebackResult<()> {
        let Uncommitted::Object(uploading) = partial else { return Ok(()) };
        let length = usize::try_from(part.end - part.start).map_err(io::Error::other)?;
        let mut bytes = vec![0; length];
        fill(&mut |some, at| {
            let start = usize::try_from(at - part.start).map_err(io::Error::other)?;
            let target = bytes.get_mut(start..start + some.len());
            target.ok_or(io::ErrorKind::InvalidInput)?.copy_from_slice(some);
            Ok(())
        })?;
        if uploading.is_compared {
            guard(&uploading.sent).push((part.clone(), crc32c::crc32c(&bytes)));
        }
        match &uploading.upload {
            None => *guard(&uploading.body) = bytes,
            Some(upload) => {
                let number = part.start / self.part_bytes(uploading.size) + 1;
                let number = u32::try_from(number).map_err(io::Error::other)?;
                let part =
                    self.bucket.part(upload, number, &bytes).map_err(WritebackError::Backing)?;
                guard(&uploading.parts).push(part);
            }
        }
        Ok(())
    }

    fn read_back(&self, _: &Uncommitted, _: &mut [u8], _: u64) -> io::Result<usize> {
        // Contents are sent when they are committed, and are compared then.
        Err(io::ErrorKind::Unsupported.into())
    }

    fn set_metadata(&self, _: &Uncommitted, metadata: &FileMetadata) -> io::Result<AttributesLost> {
        Ok(AttributesLost(!metadata.extended.is_empty()))
    }

    fn sync(&self, _: &Dir) -> io::Result<()> {
        // A response of the store means that the object is durable.
        Ok(())
    }

    fn commit(
        &self,
        partial: Uncommitted,
        (within, name): (&Dir, &OsStr),
        over: Precondition,
    ) -> Result<(), CopyError> {
        let Uncommitted::Object(uploading) = partial else {
            return Err(CopyError::Write(io::ErrorKind::Unsupported.into()));
        };
        let path = path(within, name).map_err(CopyError::Write)?;
        match uploading.commit(&path, over) {
            Err(WriteError::PreconditionFailed) => Err(CopyError::Taken),
            Err(WriteError::Failed(error)) => Err(CopyError::Write(error)),
            Ok(()) => Ok(()),
        }
    }

    fn rename(&self, from: (&Dir, &OsStr), to: (&Dir, &OsStr)) -> io::Result<()> {
        let (was, is) = (path(from.0, from.1)?, path(to.0, to.1)?);
        if is_within(&is, &was) {
            return Err(Errno::INVAL.into());
        }
        self.keep_directory(from.0)?;
        match self.node(from.0, from.1)?.ok_or(io::ErrorKind::NotFound)?.kind {
            Kind::Dir => {
                self.forget(&was);
                self.bucket.rename_directory(&was, &is)
            }
            _ => self.bucket.rename(&was, &is),
        }
    }

    fn link(&self, _: (&Dir, &OsStr), _: (&Dir, &OsStr)) -> io::Result<()> {
        Err(io::Error::other("it is a hard link, which a bucket cannot store"))
    }

    fn remove(&self, within: &Dir, name: &OsStr, is_dir: bool) -> io::Result<()> {
        let path = path(within, name)?;
        if is_dir && self.bucket.has_names(&path)? {
            return Err(Errno::NOTEMPTY.into());
        }
        self.keep_directory(within)?;
        if is_dir {
            self.forget(&path);
            return self.bucket.remove_directory(&path);
        }
        self.bucket.remove(&path)
    }

    fn update_metadata(
        &self,
        within: &Dir,
        name: &OsStr,
        metadata: &FileMetadata,
    ) -> io::Result<AttributesLost> {
        let path = path(within, name)?;
        let object = self.bucket.look_up(&path)?.ok_or(io::ErrorKind::NotFound)?;
        let attributes = attributes(object.mode & mode::TYPE, metadata, object.version.number);
        match object.mode & mode::TYPE {
            mode::DIRECTORY => self.bucket.put_directory(&path, &attributes)?,
            _ => self.bucket.set_metadata(&path, &attributes)?,
        }
        Ok(AttributesLost(!metadata.extended.is_empty()))
    }

    fn rewrite(
        &self,
        _: &Dir,
        _: &OsStr,
        _: &Uncommitted,
        _: &FileMetadata,
    ) -> Result<(), CopyError> {
        Err(CopyError::Write(io::ErrorKind::Unsupported.into()))
    }
}

fn attributes(kind: u32, metadata: &FileMetadata, number: u64) -> Attributes {
    let FileMetadata { mode, owner: (uid, gid), times: [_, modified], .. } = *metadata;
    Attributes { mode: kind | mode & 0o7777, uid, gid, modified, number }
}
