//! A bucket, by the crate `bucket`: an object is made by one request, or by an upload in parts that is
//! completed by one. So nothing is under a temporary name, and what a killed writer began is nowhere to
//! be seen; of uploads a list is kept, so that the next writer has the store forget them.
//!
//! *Invariant:* what is put has a number in its metadata that no other has, and the instance is told of
//! it before. So whether it was done can be found out afterwards, whoever has died or not answered.

use crate::sides::{Draft, Drafts, Folder, Lower, New, Node, Over, Sink};
use crate::state::{Tried, Trouble as Failure};
use below::{Dress, Kind, Lost, Trouble};
use bucket::{Attributes, Bucket, Refused, Upload, Uploads as _};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use wire::attributes::mode;
use wire::below::Version;

/// Bytes of a part of an object; what is not larger is put whole.
const PART_BYTES: u64 = 8 << 20;
/// Parts that an object may have.
const PARTS_MAX: u64 = 10_000;
/// Bytes of the largest object.
const OBJECT_BYTES_MAX: u64 = 5 << 40;

/// A bucket's objects below a prefix.
pub(crate) struct Objects {
    bucket: Arc<Bucket>,
    uploads: Arc<Uploads>,
    /// Directories that stay without names, as far as this process knows.
    kept: Mutex<HashSet<String>>,
}

impl Objects {
    /// What `s3://BUCKET[/PREFIX]` names. `list` is the file that uploads are noted in.
    ///
    /// # Errors
    /// As of `Bucket::open`; the list can not be read.
    pub(crate) fn new(text: &str, list: PathBuf) -> io::Result<Objects> {
        let uploads = Arc::new(Uploads::read(list)?);
        let bucket = Arc::new(Bucket::open(text)?.with_uploads(Arc::clone(&uploads) as _));
        Ok(Objects { bucket, uploads, kept: Mutex::default() })
    }

    /// Its last name is about to go: it stays.
    fn keep(&self, within: &Folder) -> io::Result<()> {
        let path = path_of(within)?;
        if path.is_empty() || guard(&self.kept).contains(path) {
            return Ok(());
        }
        self.bucket.keep_directory(path)?;
        guard(&self.kept).insert(path.to_owned());
        Ok(())
    }

    fn forget(&self, path: &str) {
        guard(&self.kept).retain(|kept| !is_within(kept, path));
    }
}

/// True for a path and what is below it.
fn is_within(path: &str, of: &str) -> bool {
    path.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// True for a name that `Place::aside` made.
fn is_aside(path: &str) -> bool {
    below::number_aside(OsStr::new(path.rsplit('/').next().unwrap_or(path))).is_some()
}

fn guard<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

fn path_of(folder: &Folder) -> io::Result<&str> {
    match folder {
        Folder::Objects(path) => Ok(path),
        Folder::Site(_) => Err(io::ErrorKind::Unsupported.into()),
    }
}

fn path(within: &Folder, name: &OsStr) -> io::Result<String> {
    let within = path_of(within)?;
    let wrong = || io::Error::other("its name is no UTF-8, as keys in a bucket are");
    let name = name.to_str().ok_or_else(wrong)?;
    Ok(if within.is_empty() { name.to_owned() } else { format!("{within}/{name}") })
}

/// A number that nothing had before.
pub(crate) fn fresh() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Uploads in parts that are not over, in a file as well.
struct Uploads {
    list: PathBuf,
    /// Path of each, and whether nobody goes on with it.
    all: Mutex<BTreeMap<String, (String, bool)>>,
}

impl Uploads {
    fn read(list: PathBuf) -> io::Result<Uploads> {
        let text = match std::fs::read(&list) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => b"{}".to_vec(),
            text => text?,
        };
        // What was cut short names none that can be known.
        let left: BTreeMap<String, String> = serde_json::from_slice(&text).unwrap_or_default();
        let all = left.into_iter().map(|(id, path)| (id, (path, true))).collect();
        Ok(Uploads { list, all: Mutex::new(all) })
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<String, (String, bool)>)) -> io::Result<()> {
        let mut all = guard(&self.all);
        change(&mut all);
        let paths: BTreeMap<_, _> = all.iter().map(|(id, (path, _))| (id, path)).collect();
        let draft = self.list.with_extension("new");
        std::fs::write(&draft, serde_json::to_vec(&paths)?)?;
        std::fs::rename(&draft, &self.list)
    }

    /// Has the store forget those that nobody goes on with. What it does not forget now it will.
    fn forget(&self, bucket: &Bucket) {
        let is_left = |(id, (path, is_left)): (&String, &(String, bool))| {
            is_left.then(|| Upload { path: path.clone(), id: id.clone() })
        };
        let left: Vec<Upload> = guard(&self.all).iter().filter_map(is_left).collect();
        for upload in left {
            if let Err(error) = bucket.abort(&upload) {
                tracing::warn!("an upload of {} is not forgotten: {error}", upload.path);
                return;
            }
        }
    }
}

impl bucket::Uploads for Uploads {
    fn begun(&self, upload: &Upload) -> io::Result<()> {
        self.change(|all| {
            all.insert(upload.id.clone(), (upload.path.clone(), false));
        })
    }

    fn over(&self, upload: &Upload) -> io::Result<()> {
        self.change(|all| {
            all.remove(&upload.id);
        })
    }

    fn left(&self, upload: &Upload) {
        if let Some((_, is_left)) = guard(&self.all).get_mut(&upload.id) {
            *is_left = true;
        }
    }
}

/// An object before it is there.
pub(crate) struct Uploading {
    bucket: Arc<Bucket>,
    uploads: Arc<Uploads>,
    attributes: Attributes,
    size: u64,
    /// Of what is put whole.
    body: Mutex<Vec<u8>>,
    /// Of what is uploaded in parts: that, and the parts that are there.
    upload: Option<Upload>,
    parts: Mutex<Vec<(u32, String)>>,
}

impl fmt::Debug for Uploading {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("Uploading").field("size", &self.size).finish_non_exhaustive()
    }
}

impl Drop for Uploading {
    fn drop(&mut self) {
        if let Some(upload) = &self.upload {
            self.uploads.left(upload);
        }
    }
}

impl Uploading {
    /// What it will be.
    pub(crate) fn version(&self) -> Version {
        let Attributes { number, modified, .. } = self.attributes;
        Version { number, modified, size: self.size }
    }

    fn land(mut self, path: &str, over: Over) -> Result<(), Refused> {
        if self.attributes.mode & mode::TYPE == mode::DIRECTORY {
            return Ok(self.bucket.put_directory(path, &self.attributes)?);
        }
        let over = match over {
            Over::New => bucket::Over::Nothing,
            Over::Known(version) => bucket::Over::Known(version),
        };
        let Some(upload) = self.upload.clone() else {
            let body = guard(&self.body);
            return self.bucket.put(path, &body, &self.attributes, over);
        };
        let mut parts = std::mem::take(&mut *guard(&self.parts));
        parts.sort_unstable();
        let number = self.attributes.number;
        if upload.path == path {
            self.bucket.complete(&upload, &parts, (number, over))?;
        } else if over == bucket::Over::Nothing && is_aside(&upload.path) {
            // The name is the writer's own: what is there nobody else has put there.
            self.bucket.complete(&upload, &parts, (number, bucket::Over::Any))?;
            match self.bucket.rename(&upload.path, path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    self.bucket.remove(&upload.path)?;
                    return Err(Refused::Taken);
                }
                renamed => renamed?,
            }
        } else {
            // Where it was begun it would come over what others have put there.
            return Err(Refused::Taken);
        }
        self.upload = None;
        Ok(())
    }
}

impl Lower for Objects {
    fn is_far(&self) -> bool {
        true
    }

    fn part_bytes(&self, size: u64) -> u64 {
        size.div_ceil(PARTS_MAX).max(PART_BYTES)
    }

    /// What is uploaded of an object can not be read before it is complete.
    fn drafts(&self) -> Option<&dyn Drafts> {
        None
    }

    fn root(&self) -> io::Result<Folder> {
        self.bucket.check()?;
        self.uploads.forget(&self.bucket);
        Ok(Folder::Objects("".into()))
    }

    fn folder(&self, within: &Folder, name: &OsStr) -> io::Result<Folder> {
        Ok(Folder::Objects(path(within, name)?.into()))
    }

    fn node(&self, within: &Folder, name: &OsStr) -> io::Result<Option<Node>> {
        let Some(object) = self.bucket.look(&path(within, name)?)? else { return Ok(None) };
        let kind = match object.mode & mode::TYPE {
            mode::REGULAR => Kind::File,
            mode::DIRECTORY => Kind::Folder,
            mode::SYMLINK => Kind::Link,
            _ => Kind::Special,
        };
        Ok(Some(Node { kind, version: object.version, links: 1 }))
    }

    fn names(&self, within: &Folder) -> io::Result<Vec<OsString>> {
        let names = self.bucket.names(path_of(within)?)?;
        Ok(names.into_iter().map(OsString::from).collect())
    }

    fn draft(
        &self,
        (within, name): (&Folder, &OsStr),
        new: &New,
        dress: &Dress,
    ) -> io::Result<Draft> {
        let path = path(within, name)?;
        let (kind, size, body) = match new {
            New::File(_, size) if *size > OBJECT_BYTES_MAX => {
                return Err(io::Error::other("it is larger than an object can be: 5 TiB"));
            }
            New::File(_, size) => (mode::REGULAR, *size, Vec::new()),
            New::Folder => (mode::DIRECTORY, 0, Vec::new()),
            New::Link(target) => {
                let target = target.as_encoded_bytes().to_vec();
                (mode::SYMLINK, target.len() as u64, target)
            }
            New::Special(kind, _) => match kind & mode::TYPE {
                kind @ (mode::FIFO | mode::SOCKET) => (kind, 0, Vec::new()),
                _ => return Err(io::Error::other("it is a device: no object in a bucket can be")),
            },
        };
        let number = if kind == mode::DIRECTORY { bucket::DIRECTORY } else { fresh() };
        let attributes = attributes(kind, dress, number);
        let upload = match size > PART_BYTES {
            true => Some(self.bucket.begin(&path, &attributes)?),
            false => None,
        };
        let (bucket, uploads) = (Arc::clone(&self.bucket), Arc::clone(&self.uploads));
        let (body, parts) = (Mutex::new(body), Mutex::default());
        Ok(Draft::Object(Uploading { bucket, uploads, attributes, size, body, upload, parts }))
    }

    fn write(
        &self,
        draft: &Draft,
        part: &Range<u64>,
        fill: &mut dyn FnMut(&mut Sink<'_>) -> Tried<()>,
    ) -> Tried<()> {
        let Draft::Object(uploading) = draft else { return Ok(()) };
        let length = usize::try_from(part.end - part.start).map_err(io::Error::other)?;
        let mut bytes = vec![0; length];
        fill(&mut |some, at| {
            let start = usize::try_from(at - part.start).map_err(io::Error::other)?;
            let room = bytes.get_mut(start..start + some.len());
            room.ok_or(io::ErrorKind::InvalidInput)?.copy_from_slice(some);
            Ok(())
        })?;
        match &uploading.upload {
            None => *guard(&uploading.body) = bytes,
            Some(upload) => {
                let number = part.start / self.part_bytes(uploading.size) + 1;
                let number = u32::try_from(number).map_err(io::Error::other)?;
                let etag = self.bucket.part(upload, number, &bytes).map_err(Failure::Below)?;
                guard(&uploading.parts).push((number, etag));
            }
        }
        Ok(())
    }

    fn dress(&self, _: &Draft, dress: &Dress) -> io::Result<Lost> {
        Ok(Lost(!dress.extended.is_empty()))
    }

    fn sync(&self, _: &Folder) -> io::Result<()> {
        // What a store has answered it has.
        Ok(())
    }

    fn land(
        &self,
        draft: Draft,
        (within, name): (&Folder, &OsStr),
        over: Over,
    ) -> Result<(), Trouble> {
        let Draft::Object(uploading) = draft else {
            return Err(Trouble::Write(io::ErrorKind::Unsupported.into()));
        };
        let path = path(within, name).map_err(Trouble::Write)?;
        match uploading.land(&path, over) {
            Err(Refused::Taken) => Err(Trouble::Taken),
            Err(Refused::Failed(error)) => Err(Trouble::Write(error)),
            Ok(()) => Ok(()),
        }
    }

    fn rename(&self, from: (&Folder, &OsStr), to: (&Folder, &OsStr)) -> io::Result<()> {
        let (was, is) = (path(from.0, from.1)?, path(to.0, to.1)?);
        if is_within(&is, &was) {
            return Err(Errno::INVAL.into());
        }
        self.keep(from.0)?;
        match self.node(from.0, from.1)?.ok_or(io::ErrorKind::NotFound)?.kind {
            Kind::Folder => {
                self.forget(&was);
                self.bucket.rename_directory(&was, &is)
            }
            _ => self.bucket.rename(&was, &is),
        }
    }

    fn link(&self, _: (&Folder, &OsStr), _: (&Folder, &OsStr)) -> io::Result<()> {
        Err(io::Error::other("it is another name of a file: a bucket has one for each object"))
    }

    fn remove(&self, within: &Folder, name: &OsStr, is_folder: bool) -> io::Result<()> {
        let path = path(within, name)?;
        if is_folder && self.bucket.has_names(&path)? {
            return Err(Errno::NOTEMPTY.into());
        }
        self.keep(within)?;
        if is_folder {
            self.forget(&path);
            return self.bucket.remove_directory(&path);
        }
        self.bucket.remove(&path)
    }

    fn dress_there(&self, within: &Folder, name: &OsStr, dress: &Dress) -> io::Result<Lost> {
        let path = path(within, name)?;
        let object = self.bucket.look(&path)?.ok_or(io::ErrorKind::NotFound)?;
        let attributes = attributes(object.mode & mode::TYPE, dress, object.version.number);
        match object.mode & mode::TYPE {
            mode::DIRECTORY => self.bucket.put_directory(&path, &attributes)?,
            _ => self.bucket.dress(&path, &attributes)?,
        }
        Ok(Lost(!dress.extended.is_empty()))
    }

    fn rewrite(&self, _: &Folder, _: &OsStr, _: &Draft, _: &Dress) -> Result<(), Trouble> {
        Err(Trouble::Write(io::ErrorKind::Unsupported.into()))
    }
}

fn attributes(kind: u32, dress: &Dress, number: u64) -> Attributes {
    let Dress { mode, owner: (uid, gid), times: [_, modified], .. } = *dress;
    Attributes { mode: kind | mode & 0o7777, uid, gid, modified, number }
}
