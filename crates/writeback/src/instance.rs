//! The instance, as a client of its daemons.

use crate::sides::{Above, Dirty, PartAsked, Sink};
use crate::state::{Lies, Place, Row, Standing, Tried, Trouble};
use crate::wanted::Waited;
use below::Dress;
use client::{At, Client, Follow, OfdIndex, Outcome, PathBuffer, Position, ProcessIndex};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CString, OsString};
use std::ops::Range;
use std::os::unix::ffi::OsStringExt as _;
use std::sync::{Mutex, PoisonError};
use wire::attributes::{extra, mode};
use wire::below::{News, Standing as Told, UnsavedName, Wanted, listed};
use wire::codec::{Field as _, Reader};
use wire::errno::{Errno, Result};
use wire::limits::{PATH_BYTES_MAX, SHARD_COUNT, XATTR_SIZE_MAX};
use wire::{Attributes, Credentials, DaemonIndex, Inode, Request, ShardIndex};

/// Bytes that are read and written at once.
const BUFFER_BYTES: usize = 1 << 20;
/// Names, or inodes, that are listed in one round; those behind come when some of these are saved.
const LISTED_MAX: usize = 1 << 20;
/// No service has this number of news.
const NO_NEWS: u64 = u64::MAX;

const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

/// A client of the instance's owner.
pub(crate) struct Instance {
    client: &'static Client,
    process: ProcessIndex,
    /// Places of open files in this process's table, by which the daemons close them if it is killed.
    places: Mutex<Vec<u32>>,
    /// One shard of each service.
    services: Vec<ShardIndex>,
    who: Credentials,
}

impl Instance {
    /// With an attached client.
    ///
    /// # Errors
    /// `ENFILE` if the host has too many processes; `EIO`.
    pub(crate) fn new(client: &'static Client, threads: usize) -> Result<Instance> {
        let mut services = BTreeMap::new();
        for shard in (0..SHARD_COUNT).map(ShardIndex) {
            let (daemon, worker) = client.service_with(shard)?;
            services.entry((daemon.0, worker)).or_insert(shard);
        }
        let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
        let (pid, started) = identity();
        Ok(Instance {
            client,
            process: client.register(pid, started)?,
            places: Mutex::new((0..u32::try_from(threads).unwrap_or(1)).collect()),
            services: services.into_values().collect(),
            who: Credentials::checked(user.as_raw(), group.as_raw()),
        })
    }

    /// A number of each service that is another when something became unsaved, and how many names and
    /// inodes are unsaved.
    ///
    /// # Errors
    /// A service does not answer.
    pub(crate) fn news(&self) -> Result<(Vec<u64>, u64)> {
        let (mut numbers, mut unsaved) = (Vec::new(), 0);
        for &shard in &self.services {
            let request = Request::AwaitUnsaved { seen: NO_NEWS };
            let news = self.client.ask_of_below(shard, &request, |bytes| {
                News::take(&mut Reader::new(bytes)).map_err(|_| Errno::EIO)
            })?;
            numbers.push(news.number);
            unsaved += news.names + news.inodes;
        }
        Ok((numbers, unsaved))
    }

    /// A shard of each service.
    pub(crate) fn services(&self) -> Vec<ShardIndex> {
        self.services.clone()
    }

    /// Closes what is open.
    pub(crate) fn end(&self) {
        let _ = self.client.release_process(self.process);
    }

    fn tell(&self, inode: Inode, request: &Request<'_>) -> Result<()> {
        self.client.tell_of_below(inode.shard(), request)
    }

    fn open(&self, inode: Inode) -> Result<Open<'_>> {
        let place = self.places().pop().ok_or(Errno::EMFILE)?;
        let opened = self.client.open_inode(inode, 0, &self.who);
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
        let listed = self.client.list_xattr(at, Follow::Never, &mut names, &self.who, &mut path)?;
        names.truncate(within(listed)?);
        let mut all = Vec::new();
        for name in names.split(|&byte| byte == 0).filter(|name| is_kept(name)) {
            let mut value = vec![0; XATTR_SIZE_MAX];
            let named = (name, &mut *value);
            match self.client.get_xattr(at, Follow::Never, named, &self.who, &mut path) {
                Ok(length) => value.truncate(within(length)?),
                // Taken away meanwhile.
                Err(Errno::ENODATA) => continue,
                Err(errno) => return Err(errno),
            }
            all.push((CString::new(name).map_err(|_| Errno::EIO)?, value));
        }
        Ok(all)
    }

    /// Copies what is in `start..end`, as far as the file goes. Where that is.
    fn copy_range(&self, from: &Open<'_>, to: &mut Sink<'_>, range: (u64, u64)) -> Tried<u64> {
        let (mut at, end) = range;
        let mut buffer = vec![0; BUFFER_BYTES];
        while at < end {
            let room = usize::try_from(end - at).unwrap_or(usize::MAX).min(BUFFER_BYTES);
            let room = buffer.get_mut(..room).unwrap_or_default();
            let read = self.client.read(from.file, room, Position::At(at))?;
            if read == 0 {
                break;
            }
            to(room.get(..read).unwrap_or_default(), at)?;
            at += read as u64;
        }
        Ok(at)
    }

    /// As `copy_range`, of what has to be there.
    fn copy_whole(&self, from: &Open<'_>, to: &mut Sink<'_>, range: (u64, u64)) -> Tried<()> {
        match self.copy_range(from, to, range)? == range.1.max(range.0) {
            true => Ok(()),
            // It was cut meanwhile.
            false => Err(Trouble::Again),
        }
    }
}

/// An open file.
struct Open<'a> {
    of: &'a Instance,
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
    /// The next bytes that are no hole, from `at` on.
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

/// Of users, what a program may do, and access lists.
fn is_kept(name: &[u8]) -> bool {
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

impl Above for Instance {
    fn rows(&self) -> Result<Vec<Row>> {
        let mut rows: Vec<Row> = Vec::new();
        for &shard in &self.services {
            let mut last = Place::of(Inode::NONE, b"");
            loop {
                let request = Request::UnsavedNames { parent: last.parent, name: last.bytes() };
                let part: Vec<Row> = self.client.ask_of_below(shard, &request, |bytes| {
                    Ok(listed::<UnsavedName<'_>>(bytes).map(|row| Row::of(&row)).collect())
                })?;
                let Some(row) = part.last() else { break };
                last = row.place.clone();
                rows.extend(part);
                if rows.len() >= LISTED_MAX {
                    return Ok(rows);
                }
            }
        }
        Ok(rows)
    }

    fn changed(&self) -> Result<Vec<Standing>> {
        let mut all: Vec<Standing> = Vec::new();
        for &shard in &self.services {
            let mut after = Inode::NONE;
            loop {
                let request = Request::UnsavedInodes { after };
                let part: Vec<Standing> = self.client.ask_of_below(shard, &request, |bytes| {
                    Ok(listed::<Told<'_>>(bytes).map(|one| Standing::of(&one)).collect())
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

    fn standing(&self, inode: Inode) -> Result<Option<Standing>> {
        let request = Request::Standing { inode };
        let told = self.client.ask_of_below(inode.shard(), &request, |bytes| {
            listed::<Told<'_>>(bytes).next().map(|one| Standing::of(&one)).ok_or(Errno::EIO)
        });
        match told {
            Err(Errno::ESTALE) => Ok(None),
            told => told.map(Some),
        }
    }

    fn saving(&self, inode: Inode, lies: &Lies) -> Result<()> {
        self.tell(inode, &Request::Saving { inode, lies: lies.told() })
    }

    fn wrote(&self, inode: Inode, lies: &Lies) -> Result<()> {
        self.tell(inode, &Request::Wrote { inode, lies: lies.told() })
    }

    fn not_written(&self, inode: Inode) -> Result<()> {
        self.tell(inode, &Request::NotWritten { inode })
    }

    fn gone(&self, inode: Inode) -> Result<()> {
        self.tell(inode, &Request::Gone { inode })
    }

    fn saved(&self, place: &Place, from: Inode, to: Inode) -> Result<()> {
        let (parent, name) = (place.parent, place.bytes());
        let request = Request::Saved { parent, name, from, to };
        let directory = self.standing(parent)?.and_then(|standing| standing.attributes);
        if let Some(directory) = directory {
            let shard = Client::shard_of_name(&directory, name);
            return self.client.tell_of_below(shard, &request);
        }
        // It is gone, and who had its names is not known any more; others have none of them.
        for &shard in &self.services {
            match self.client.tell_of_below(shard, &request) {
                Ok(()) | Err(Errno::EAGAIN) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    fn drafted(&self, inode: Inode, is_new: bool, lies: &Lies) -> Result<()> {
        let is_new = u8::from(is_new);
        self.tell(inode, &Request::Drafted { inode, is_new, lies: lies.told() })
    }

    fn undrafted(&self, inode: Inode) -> Result<()> {
        self.tell(inode, &Request::Undrafted { inode })
    }

    fn begin_saving(&self, of: &Attributes, part: &PartAsked) -> Result<Vec<Dirty>> {
        let (inode, mut all) = (of.inode, Vec::new());
        self.client.each_target_of_below(of, &mut |target| {
            let mut offset = part.offset;
            loop {
                let before = all.len();
                let &PartAsked { number, most, .. } = part;
                let request = Request::BeginSaving { inode, number, offset, most };
                self.client.begin_saving(target, &request, &mut |range| {
                    all.push(Dirty { target, range });
                })?;
                match all.get(before..).and_then(|new| new.last()) {
                    // There may be more.
                    Some(last) if number == 0 => offset = last.range.end,
                    _ => return Ok(()),
                }
            }
        })?;
        all.sort_by_key(|one| one.range.start);
        Ok(all)
    }

    fn end_saving(&self, of: &Attributes, part: (u64, u64), dirty: &[Dirty]) -> Result<()> {
        let targets: BTreeSet<DaemonIndex> = dirty.iter().map(|one| one.target).collect();
        for target in targets {
            match self.client.end_saving(target, of.inode, part) {
                // It stays as it is, and is saved again.
                Ok(()) | Err(Errno::EAGAIN) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    fn copy_all(&self, of: &Attributes, part: Range<u64>, to: &mut Sink<'_>) -> Tried<u64> {
        self.copy_range(&self.open(of.inode)?, to, (part.start, part.end))
    }

    fn dress(&self, of: &Attributes) -> Result<Dress> {
        let Attributes { mode, uid, gid, accessed, modified, .. } = *of;
        Ok(Dress {
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

    fn copy(&self, of: &Attributes, part: Range<u64>, to: &mut Sink<'_>) -> Tried<()> {
        let from = self.open(of.inode)?;
        if !of.is_sparse() && !of.inode.is_from_below() {
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

impl Waited for Instance {
    fn wanted(&self) -> Vec<Wanted> {
        let of = |&shard| {
            self.client.ask_of_below(shard, &Request::Wanted {}, |bytes| {
                Ok(listed::<Wanted>(bytes).collect::<Vec<_>>())
            })
        };
        // Who waits where no service answers asks again.
        self.services.iter().flat_map(|shard| of(shard).unwrap_or_default()).collect()
    }

    fn settled(&self, wanted: Wanted, errno: Errno) {
        let Wanted { inode, number } = wanted;
        // As well.
        let _ = self.tell(inode, &Request::Settled { inode, number, errno });
    }
}

/// Number and start of this process, as daemons look for it when it is gone.
fn identity() -> (u32, u64) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let rest = stat.rfind(')').and_then(|end| stat.get(end + 2..)).unwrap_or_default();
    // Field 22 of the line; the rest begins with field 3.
    let started = rest.split(' ').nth(19).and_then(|field| field.parse().ok()).unwrap_or(0);
    (std::process::id(), started)
}
