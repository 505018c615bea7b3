//! The instance as the daemon reaches it: as a client of its daemons.

use crate::backends::WriteAt;
use crate::instance::{BeginRange, DirtyRange, Instance};
use crate::state::{BackingLocation, DirtyName, Place, SyncState, WritebackError, WritebackResult};
use crate::urgent::UrgentRequests;
use backing::FileMetadata;
use client::{At, Client, Follow, OfdIndex, Outcome, PathBuffer, Position, ProcessIndex};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CString, OsString};
use std::ops::Range;
use std::os::unix::ffi::OsStringExt as _;
use std::sync::{Mutex, PoisonError};
use wire::attributes::{extra, mode};
use wire::backing::{
    CleanRequest, DirtyName as WireDirtyName, DirtyStatus, SyncState as WireSyncState, listed,
};
use wire::codec::{Field as _, Reader};
use wire::errno::{Errno, Result};
use wire::limits::{PATH_BYTES_MAX, SHARD_COUNT, XATTR_SIZE_MAX};
use wire::{Attributes, Credentials, DaemonIndex, Inode, Request, ShardIndex};

/// Size of the buffer of reads, in bytes.
const BUFFER_BYTES: usize = 1 << 20;
/// Maximum number of names, and of inodes, listed per round; a later round lists the rest.
const LISTED_MAX: usize = 1 << 20;
/// A value that no service's counter of news has.
const NO_NEWS: u64 = u64::MAX;

const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

/// A client with the rights of the instance's owner.
pub(crate) struct InstanceClient {
    client: &'static Client,
    process: ProcessIndex,
    /// Free slots in the descriptor table of this process. The daemons close the files in it if the
    /// process is killed.
    places: Mutex<Vec<u32>>,
    /// One shard of each service.
    services: Vec<ShardIndex>,
    caller: Credentials,
}

/// For each service a number that changes when something becomes dirty, and the total count of dirty
/// names and inodes. `services`: one shard of each.
///
/// # Errors
/// A service does not answer.
pub(crate) fn news(client: &Client, services: &[ShardIndex]) -> Result<(Vec<u64>, u64)> {
    let (mut numbers, mut dirty) = (Vec::new(), 0);
    for &shard in services {
        let request = Request::AwaitDirty { seen: NO_NEWS };
        let news = client.query_backing(shard, &request, |bytes| {
            DirtyStatus::take(&mut Reader::new(bytes)).map_err(|_| Errno::EIO)
        })?;
        numbers.push(news.number);
        dirty += news.names + news.inodes;
    }
    Ok((numbers, dirty))
}

impl InstanceClient {
    /// `client` must be attached.
    ///
    /// # Errors
    /// `ENFILE` if the host has too many processes; `EIO`.
    pub(crate) fn new(client: &'static Client, threads: usize) -> Result<InstanceClient> {
        let mut services = BTreeMap::new();
        for shard in (0..SHARD_COUNT).map(ShardIndex) {
            let (daemon, worker) = client.service_with(shard)?;
            services.entry((daemon.0, worker)).or_insert(shard);
        }
        let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
        let (pid, started) = identity();
        Ok(InstanceClient {
            client,
            process: client.register(pid, started)?,
            places: Mutex::new((0..u32::try_from(threads).unwrap_or(1)).collect()),
            services: services.into_values().collect(),
            caller: Credentials::checked(user.as_raw(), group.as_raw()),
        })
    }

    /// See `news`.
    ///
    /// # Errors
    /// A service does not answer.
    pub(crate) fn news(&self) -> Result<(Vec<u64>, u64)> {
        news(self.client, &self.services)
    }

    /// One shard of each service.
    pub(crate) fn services(&self) -> Vec<ShardIndex> {
        self.services.clone()
    }

    /// Closes all open files.
    pub(crate) fn end(&self) {
        let _ = self.client.release_process(self.process);
    }

    fn tell(&self, inode: Inode, request: &Request<'_>) -> Result<()> {
        self.client.send_backing(inode.shard(), request)
    }

    fn open(&self, inode: Inode) -> Result<Open<'_>> {
        let place = self.places().pop().ok_or(Errno::EMFILE)?;
        let opened = self.client.open_inode(inode, 0, &self.caller);
        let added = opened.and_then(|outcome| match outcome {
            Outcome::Done(opened) => {
                let added = self.client.fd_set(self.process, place, Some((opened.ofd, true)));
                added.map(|_before| opened.ofd)
            }
            _ => Err(Errno::EIO),
        });
        match added {
            Ok(file) => Ok(Open { of: self, file, place }),
            Err(errno) => {
                self.places().push(place);
                Err(errno)
            }
        }
    }

    fn places(&self) -> std::sync::MutexGuard<'_, Vec<u32>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn extended(&self, of: &Attributes) -> Result<Vec<(CString, Vec<u8>)>> {
        if !of.has(extra::XATTRS) || !(of.is_regular() || of.is_directory()) {
            return Ok(Vec::new());
        }
        let (at, mut path) = (At::itself(of.inode), Box::new(PathBuffer::new()));
        let mut names = vec![0; XATTR_SIZE_MAX];
        let listed =
            self.client.list_xattr(at, Follow::Never, &mut names, &self.caller, &mut path)?;
        names.truncate(within(listed)?);
        let mut all = Vec::new();
        for name in names.split(|&byte| byte == 0).filter(|name| is_written_back(name)) {
            let mut value = vec![0; XATTR_SIZE_MAX];
            let named = (name, &mut *value);
            match self.client.get_xattr(at, Follow::Never, named, &self.caller, &mut path) {
                Ok(length) => value.truncate(within(length)?),
                // It was removed in the meantime.
                Err(Errno::ENODATA) => continue,
                Err(errno) => return Err(errno),
            }
            all.push((CString::new(name).map_err(|_| Errno::EIO)?, value));
        }
        Ok(all)
    }

    /// Copies a range, up to the end of the file; returns where the copy ended.
    fn copy_range(
        &self,
        from: &Open<'_>,
        to: &mut WriteAt<'_>,
        range: (u64, u64),
    ) -> WritebackResult<u64> {
        let (mut at, end) = range;
        let mut buffer = vec![0; BUFFER_BYTES];
        while at < end {
            let length = usize::try_from(end - at).unwrap_or(usize::MAX).min(BUFFER_BYTES);
            let part = buffer.get_mut(..length).unwrap_or_default();
            let read = self.client.read(from.file, part, Position::At(at))?;
            if read == 0 {
                break;
            }
            to(part.get(..read).unwrap_or_default(), at)?;
            at += read as u64;
        }
        Ok(at)
    }

    /// As `copy_range`, but the file must not end before the range.
    fn copy_whole(
        &self,
        from: &Open<'_>,
        to: &mut WriteAt<'_>,
        range: (u64, u64),
    ) -> WritebackResult<()> {
        match self.copy_range(from, to, range)? == range.1.max(range.0) {
            true => Ok(()),
            // The file was truncated in the meantime.
            false => Err(WritebackError::Changed),
        }
    }
}

/// An open file.
struct Open<'a> {
    of: &'a InstanceClient,
    file: OfdIndex,
    place: u32,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if let Some(file) = self.of.client.fd_take(self.of.process, self.place) {
            let _ = self.of.client.close(file, self.of.process);
        }
        self.of.places().push(self.place);
    }
}

impl Open<'_> {
    /// The next data range at or after `at`.
    fn data(&self, at: u64, size: u64) -> Result<Option<(u64, u64)>> {
        let seek = |from, whence| {
            let offset = i64::try_from(from).map_err(|_| Errno::EFBIG)?;
            self.of.client.seek(self.file, offset, whence)
        };
        let start = match seek(at, SEEK_DATA) {
            Ok(start) if start < size => start,
            Ok(_) | Err(Errno::ENXIO) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        match seek(start, SEEK_HOLE) {
            Ok(end) => Ok(Some((start, end.min(size)))),
            Err(Errno::ENXIO) => Ok(None),
            Err(errno) => Err(errno),
        }
    }
}

/// True for attributes that are written back: `user.*`, file capabilities, access control lists.
fn is_written_back(name: &[u8]) -> bool {
    name.starts_with(b"user.")
        || name == b"security.capability"
        || name == wire::acl::ACCESS
        || name == wire::acl::DEFAULT
}

fn within<T>(outcome: Outcome<T>) -> Result<T> {
    match outcome {
        Outcome::Done(done) => Ok(done),
        _ => Err(Errno::EIO),
    }
}

impl Instance for InstanceClient {
    fn dirty_names(&self) -> Result<Vec<DirtyName>> {
        let mut dirty_names: Vec<DirtyName> = Vec::new();
        for &shard in &self.services {
            let mut last = Place::of(Inode::NONE, b"");
            loop {
                let request = Request::DirtyNames { parent: last.parent, name: last.bytes() };
                let part: Vec<DirtyName> = self.client.query_backing(shard, &request, |bytes| {
                    Ok(listed::<WireDirtyName<'_>>(bytes)
                        .map(|dirty_name| DirtyName::of(&dirty_name))
                        .collect())
                })?;
                let Some(dirty_name) = part.last() else { break };
                last = dirty_name.place.clone();
                dirty_names.extend(part);
                if dirty_names.len() >= LISTED_MAX {
                    return Ok(dirty_names);
                }
            }
        }
        Ok(dirty_names)
    }

    fn dirty_inodes(&self) -> Result<Vec<SyncState>> {
        let mut all: Vec<SyncState> = Vec::new();
        for &shard in &self.services {
            let mut after = Inode::NONE;
            loop {
                let request = Request::DirtyInodes { after };
                let part: Vec<SyncState> = self.client.query_backing(shard, &request, |bytes| {
                    Ok(listed::<WireSyncState<'_>>(bytes).map(|one| SyncState::of(&one)).collect())
                })?;
                let Some(last) = part.last() else { break };
                after = last.inode;
                all.extend(part);
                if all.len() >= LISTED_MAX {
                    return Ok(all);
                }
            }
        }
        Ok(all)
    }

    fn sync_state(&self, inode: Inode) -> Result<Option<SyncState>> {
        let request = Request::SyncState { inode };
        let found = self.client.query_backing(inode.shard(), &request, |bytes| {
            listed::<WireSyncState<'_>>(bytes)
                .next()
                .map(|one| SyncState::of(&one))
                .ok_or(Errno::EIO)
        });
        match found {
            Err(Errno::ESTALE) => Ok(None),
            found => found.map(Some),
        }
    }

    fn writing(&self, inode: Inode, location: &BackingLocation) -> Result<()> {
        self.tell(inode, &Request::Writing { inode, location: location.to_message() })
    }

    fn wrote(&self, inode: Inode, location: &BackingLocation) -> Result<()> {
        self.tell(inode, &Request::Wrote { inode, location: location.to_message() })
    }

    fn not_written(&self, inode: Inode) -> Result<()> {
        self.tell(inode, &Request::NotWritten { inode })
    }

    fn gone(&self, inode: Inode) -> Result<()> {
        self.tell(inode, &Request::Gone { inode })
    }

    fn name_written(&self, place: &Place, from: Inode, to: Inode) -> Result<()> {
        let (parent, name) = (place.parent, place.bytes());
        let request = Request::NameWritten { parent, name, from, to };
        let directory = self.sync_state(parent)?.and_then(|sync_state| sync_state.attributes);
        if let Some(directory) = directory {
            let shard = Client::shard_of_name(&directory, name);
            return self.client.send_backing(shard, &request);
        }
        // The directory is gone, so the shard of the name is unknown; services without the name
        // refuse.
        for &shard in &self.services {
            match self.client.send_backing(shard, &request) {
                Ok(()) | Err(Errno::EAGAIN) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    fn note_partial(&self, inode: Inode, is_new: bool, location: &BackingLocation) -> Result<()> {
        let is_new = u8::from(is_new);
        self.tell(inode, &Request::NotePartial { inode, is_new, location: location.to_message() })
    }

    fn forget_partial(&self, inode: Inode) -> Result<()> {
        self.tell(inode, &Request::ForgetPartial { inode })
    }

    fn may_evict(&self, inode: Inode) -> bool {
        !self.client.has_copies_of(inode)
    }

    fn begin_writeback(&self, of: &Attributes, part: &BeginRange) -> Result<Vec<DirtyRange>> {
        let (inode, mut all) = (of.inode, Vec::new());
        if !self.may_evict(inode) {
            // Its targets have other bytes than its copies. All of it may differ.
            let range = part.offset..of.size.max(part.offset);
            return Ok(vec![DirtyRange { target: DaemonIndex(0), range }]);
        }
        self.client.each_backing_target(of, &mut |target| {
            let mut offset = part.offset;
            loop {
                let before = all.len();
                let &BeginRange { number, most, .. } = part;
                let request = Request::BeginWriteback { inode, number, offset, most };
                self.client.begin_writeback(target, &request, &mut |range| {
                    all.push(DirtyRange { target, range });
                })?;
                match all.get(before..).and_then(|new| new.last()) {
                    // There may be more ranges.
                    Some(last) if number == 0 => offset = last.range.end,
                    _ => return Ok(()),
                }
            }
        })?;
        all.sort_by_key(|one| one.range.start);
        Ok(all)
    }

    fn end_writeback(&self, of: &Attributes, part: (u64, u64), dirty: &[DirtyRange]) -> Result<()> {
        if !self.may_evict(of.inode) {
            return Ok(());
        }
        let targets: BTreeSet<DaemonIndex> = dirty.iter().map(|one| one.target).collect();
        for target in targets {
            match self.client.end_writeback(target, of.inode, part) {
                // The range stays dirty and is written again.
                Ok(()) | Err(Errno::EAGAIN) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    fn copy_all(
        &self,
        of: &Attributes,
        part: Range<u64>,
        to: &mut WriteAt<'_>,
    ) -> WritebackResult<u64> {
        self.copy_range(&self.open(of.inode)?, to, (part.start, part.end))
    }

    fn metadata(&self, of: &Attributes) -> Result<FileMetadata> {
        let Attributes { mode, uid, gid, accessed, modified, .. } = *of;
        Ok(FileMetadata {
            mode: mode & mode::PERMISSIONS,
            owner: (uid, gid),
            times: [accessed, modified],
            extended: self.extended(of)?,
        })
    }

    fn target(&self, of: &Attributes) -> Result<OsString> {
        let mut target = vec![0; PATH_BYTES_MAX];
        let length = self.client.link_target_of(of.inode, &mut target)?;
        target.truncate(length);
        Ok(OsString::from_vec(target))
    }

    fn copy(&self, of: &Attributes, part: Range<u64>, to: &mut WriteAt<'_>) -> WritebackResult<()> {
        let from = self.open(of.inode)?;
        if !of.is_sparse() && !of.inode.is_backed() {
            return self.copy_whole(&from, to, (part.start, part.end));
        }
        let mut at = part.start;
        while let Some((start, end)) = from.data(at, part.end)? {
            self.copy_whole(&from, to, (start, end))?;
            at = end;
        }
        Ok(())
    }
}

impl UrgentRequests for InstanceClient {
    fn requests(&self) -> Vec<CleanRequest> {
        let of = |&shard| {
            self.client.query_backing(shard, &Request::CleanRequests {}, |bytes| {
                Ok(listed::<CleanRequest>(bytes).collect::<Vec<_>>())
            })
        };
        // A waiter of a service that does not answer asks again.
        self.services.iter().flat_map(|shard| of(shard).unwrap_or_default()).collect()
    }

    fn settled(&self, request: CleanRequest, errno: Errno) {
        let CleanRequest { inode, number } = request;
        // If this fails, the waiter asks again.
        let _ = self.tell(inode, &Request::Settled { inode, number, errno });
    }

    fn begin_for_space(&self) {
        self.client.begin_urgent_work();
    }

    fn end_for_space(&self) {
        self.client.end_urgent_work();
    }
}

/// Process id and start time of this process, by which daemons detect its death.
fn identity() -> (u32, u64) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let rest = stat.rfind(')').and_then(|end| stat.get(end + 2..)).unwrap_or_default();
    // Field 22 of the line; `rest` begins with field 3.
    let started = rest.split(' ').nth(19).and_then(|field| field.parse().ok()).unwrap_or(0);
    (std::process::id(), started)
}
