//! The record of a daemon's starts: how often it started, and which files it must find again.
//!
//! There are two: `starts` beside the log, which survives the death of the node, and one beside the
//! shared memory, which is lost with it. So the next start knows whether its memory is that of the
//! log, is gone, or is that of another instance.
//!
//!   nothing --1--> began --2--> made --3--> stored --> ready
//!
//!   1. disk: number 0, flushed           A start that finds it begins anew: nothing was acknowledged.
//!   2. all files; memory: number n - 1
//!   3. disk: number n, flushed; memory: number n
//!
//! Invariants:
//!  1. A daemon is ready only after 3.
//!  2. The number of the memory is that of the disk or one less.
//!  3. A record is whole or absent: `whole::replace`.
//!  4. Where the starter knows that the daemon was ready, no start begins anew.
//!  5. A start in the place of a lost daemon finds no record of that one: its number would be no higher.
//!
//! A record is text, so that people can read it; its last line is the CRC-32C of the others:
//!
//! ```text
//! forebay starts 1
//! instance 00a1b2c3d4e5f607
//! part 0001ffff
//! number 3
//! file 8 67108864 4711 d1.arena
//! crc32c 89abcdef
//! ```
//!
//! Zeros follow, up to a multiple of 4096 bytes. A `file` line has the device, the length and the inode
//! number of a file that must still be that one, and its name.

use crate::error::{Error, Kind, Result, errno};
use crate::identity::{Expected, Identity};
use crate::medium::{Files, Medium as _};
use crate::whole::{self, Survives};
use core::fmt::Write as _;
use rustix::fd::AsFd;
use std::path::Path;
use wire::Errno;

/// First line. The number changes with the meaning of the others.
const TITLE: &str = "forebay starts 1";
/// Longest record: 128 files with names of 200 bytes.
const RECORD_BYTES_MAX: u64 = 64 << 10;
/// Its length is a multiple of this, so that the next one fits the same space.
const BLOCK_BYTES: usize = 4096;
const SUFFIX_NEW: &str = ".new";

/// A file that must still be the same one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KnownFile {
    /// Its name in the directory.
    pub name: String,
    /// Device that it is on.
    pub device: u64,
    /// Inode number there.
    pub inode: u64,
    /// Its length.
    pub length: u64,
}

impl KnownFile {
    /// Describes an open file.
    ///
    /// # Errors
    /// The operating system's error.
    pub fn of(name: &str, fd: impl AsFd) -> wire::errno::Result<KnownFile> {
        let stat = rustix::fs::fstat(fd).map_err(errno)?;
        let length = u64::try_from(stat.st_size).map_err(|_| Errno::EIO)?;
        Ok(KnownFile { name: name.into(), device: stat.st_dev, inode: stat.st_ino, length })
    }
}

/// The record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StartRecord {
    /// The daemon.
    pub identity: Identity,
    /// Number of its starts; 0: the first one is not complete.
    pub number: u64,
    /// Files that it must find again.
    pub files: Vec<KnownFile>,
}

impl StartRecord {
    fn encode(&self) -> String {
        let Identity { instance, part } = self.identity;
        let number = self.number;
        let mut text =
            format!("{TITLE}\ninstance {instance:016x}\npart {part:08x}\nnumber {number}\n");
        for KnownFile { name, device, inode, length } in &self.files {
            // A string takes any line.
            let _ = writeln!(text, "file {device} {length} {inode} {name}");
        }
        let crc = crc32c::crc32c(text.as_bytes());
        let _ = writeln!(text, "crc32c {crc:08x}");
        let padding = text.len().next_multiple_of(BLOCK_BYTES) - text.len();
        text.extend(core::iter::repeat_n('\0', padding));
        text
    }

    /// Parses a record. Only what `encode` writes is one.
    fn decode(text: &str) -> Option<StartRecord> {
        let mut lines = text.lines();
        let mut field = |word: &str| lines.next()?.strip_prefix(word);
        field(TITLE)?;
        let instance = u64::from_str_radix(field("instance ")?, 16).ok()?;
        let part = u32::from_str_radix(field("part ")?, 16).ok()?;
        let number = field("number ")?.parse().ok()?;
        let mut files = Vec::new();
        while let Some(file) = field("file ") {
            let mut words = file.splitn(4, ' ');
            let mut number = || words.next()?.parse::<u64>().ok();
            let (device, length, inode) = (number()?, number()?, number()?);
            files.push(KnownFile { name: words.next()?.into(), device, inode, length });
        }
        let record = StartRecord { identity: Identity { instance, part }, number, files };
        (record.encode() == text).then_some(record)
    }

    /// Reads the record `name`; `None` if there is none.
    ///
    /// # Errors
    /// `Corrupt` if it is not a record; `Foreign` if it is that of another daemon, unless its first
    /// start was not complete.
    pub fn read<F: Files>(
        files: &mut F,
        name: &str,
        identity: Identity,
    ) -> Result<Option<StartRecord>> {
        let path = files.path(name);
        let fail = |kind| Error::new("read the record of starts", &path, kind);
        let device = |errno| fail(Kind::Device(errno));
        let file = match files.open(name) {
            Ok(file) => file,
            Err(Errno::ENOENT) => return Ok(None),
            Err(errno) => return Err(device(errno)),
        };
        let corrupt = fail(Kind::Corrupt { offset: 0, sequence: 0 });
        let length = file.length();
        if length > RECORD_BYTES_MAX {
            return Err(corrupt);
        }
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
        let count = file.read(0, &mut bytes).map_err(device)?;
        bytes.truncate(count);
        let record = String::from_utf8(bytes).ok().and_then(|text| StartRecord::decode(&text));
        let record = record.ok_or(corrupt)?;
        if record.identity != identity && record.number > 0 {
            return Err(fail(Kind::Foreign));
        }
        Ok(Some(record))
    }

    /// Stores the record as `name`, in place of an earlier one.
    ///
    /// # Errors
    /// The device's error; the earlier one may still be there.
    pub fn store<F: Files>(&self, files: &mut F, name: &str, survives: Survives) -> Result<()> {
        let path = files.path(name);
        let text = self.encode();
        let new = format!("{name}{SUFFIX_NEW}");
        let stored = whole::replace(files, &new, name, text.as_bytes(), survives);
        stored.map_err(|errno| {
            Error::new("store the record of starts", &path, Kind::Device(errno))
        })?;
        // The next start must not need room on a full device. Without this it may, and says so.
        let _ = whole::allocate(files, &new, text.len() as u64);
        Ok(())
    }

    /// Checks what the file at `path` is now, `None` if it is missing.
    ///
    /// # Errors
    /// `Foreign` if it is another file, `Missing` if there is none, `Length` if it is shorter or longer
    /// than it was.
    pub fn check(&self, path: &Path, found: Option<&KnownFile>) -> Result<()> {
        let fail = |kind| Error::new("find a file of an earlier start again", path, kind);
        let Some(found) = found else { return Err(fail(Kind::Missing)) };
        let known = self.files.iter().find(|known| known.name == found.name);
        let known = known.ok_or_else(|| fail(Kind::Foreign))?;
        if (known.device, known.inode) != (found.device, found.inode) {
            return Err(fail(Kind::Foreign));
        }
        if known.length != found.length {
            let (found, expected) = (found.length, known.length);
            return Err(fail(Kind::Length { found, expected }));
        }
        Ok(())
    }
}

/// How a start goes on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Plan {
    /// It is the first one. Files of one that was not completed are removed.
    First {
        /// As in `Before::Nothing`.
        lost_starts: u64,
    },
    /// It continues what the daemon of start `number` left; `memory` are its files in shared memory.
    Continue {
        /// Number of the last complete start.
        number: u64,
        /// The record beside the shared memory.
        memory: StartRecord,
    },
}

impl Plan {
    /// Whether the files of an earlier start must be there.
    #[must_use]
    pub const fn expected(&self) -> Expected {
        match self {
            Plan::First { .. } => Expected::New,
            Plan::Continue { .. } => Expected::Existing,
        }
    }

    /// Number of the start.
    #[must_use]
    pub const fn number(&self) -> u64 {
        match self {
            Plan::First { lost_starts } => lost_starts.saturating_add(1),
            Plan::Continue { number, .. } => *number + 1,
        }
    }
}

/// The daemon's earlier starts, as the record of its starter says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Before {
    /// No daemon was ready that has files here.
    Nothing {
        /// Starts of an earlier daemon of this identity, which lost everything. The number of this one is
        /// higher.
        lost_starts: u64,
    },
    /// A daemon was ready: its records must be there.
    Ready {
        /// As in `Nothing`.
        lost_starts: u64,
    },
}

/// Name of the record beside the log.
pub const DISK_RECORD: &str = "starts";

/// A start between its two records: the files that it creates or opens are made between `open` and
/// `complete`.
pub struct Start<D, M> {
    disk: D,
    memory: M,
    /// Name of the record beside the shared memory.
    memory_record: String,
    identity: Identity,
    plan: Plan,
}

impl<D: Files, M: Files> Start<D, M> {
    /// Reads the records of `identity` in the directory of the log and, as `memory_record`, in that
    /// of the shared memory. Before a first start, `clear` removes what one that was not completed has
    /// left in both, but for the records.
    ///
    /// # Errors
    /// A record that is missing, damaged, old or of another instance; the device's error.
    pub fn open(
        mut disk: D,
        mut memory: M,
        memory_record: &str,
        (identity, before): (Identity, Before),
        clear: impl FnOnce(&mut D, &mut M) -> Result<()>,
    ) -> Result<Start<D, M>> {
        let on_disk = StartRecord::read(&mut disk, DISK_RECORD, identity)?;
        let in_memory = StartRecord::read(&mut memory, memory_record, identity)?;
        let root = disk.path("");
        let names = disk.names();
        let names = names.map_err(|errno| Error::new("list", &root, Kind::Device(errno)))?;
        let is_record = |name: &String| {
            name.strip_prefix(DISK_RECORD).is_some_and(|rest| rest.is_empty() || rest == SUFFIX_NEW)
        };
        let has_files = names.iter().any(|name| !is_record(name));
        let paths = (disk.path(DISK_RECORD), memory.path(memory_record));
        let plan = plan((on_disk, in_memory), has_files, before, (&paths.0, &paths.1))?;
        if matches!(plan, Plan::First { .. }) {
            let none = StartRecord { identity, number: 0, files: Vec::new() };
            none.store(&mut disk, DISK_RECORD, Survives::Node)?;
            clear(&mut disk, &mut memory)?;
        }
        let memory_record = memory_record.to_owned();
        Ok(Start { disk, memory, memory_record, identity, plan })
    }

    /// How the start goes on.
    pub const fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Everything is made or recovered. `files`: those in shared memory that the next start must find
    /// again. The daemon may be ready once this returns.
    ///
    /// # Errors
    /// The device's error.
    pub fn complete(mut self, files: Vec<KnownFile>) -> Result<()> {
        let (identity, number) = (self.identity, self.plan.number());
        let disk = StartRecord { identity, number, files: Vec::new() };
        let mut memory = StartRecord { identity, number: number - 1, files };
        memory.store(&mut self.memory, &self.memory_record, Survives::Daemon)?;
        disk.store(&mut self.disk, DISK_RECORD, Survives::Node)?;
        memory.number = number;
        memory.store(&mut self.memory, &self.memory_record, Survives::Daemon)
    }
}

/// Decides from the two records, whose paths are `disk_path` and `memory_path`, what a start does.
/// `has_files`: there are other files beside the log.
fn plan(
    (disk, memory): (Option<StartRecord>, Option<StartRecord>),
    has_files: bool,
    before: Before,
    (disk_path, memory_path): (&Path, &Path),
) -> Result<Plan> {
    let fail = |path: &Path, kind| Err(Error::new("continue the instance", path, kind));
    let old = |found, expected| Kind::Old { found, expected };
    let (is_first, lost_starts) = match before {
        Before::Nothing { lost_starts } => (true, lost_starts),
        Before::Ready { lost_starts } => (false, lost_starts),
    };
    let first = Plan::First { lost_starts };
    match (disk.map(|record| record.number), memory) {
        (None, None) if is_first && !has_files => Ok(first),
        (None, _) => fail(disk_path, Kind::Missing),
        (Some(0), None) if is_first => Ok(first),
        (Some(0), Some(memory)) if is_first && memory.number == lost_starts => Ok(first),
        (Some(_), None) => fail(memory_path, Kind::MemoryGone),
        (Some(0), Some(memory)) => fail(disk_path, old(0, memory.number.max(1))),
        (Some(number), Some(_)) if number <= lost_starts => {
            fail(disk_path, old(number, lost_starts + 1))
        }
        (Some(number), Some(memory)) if memory.number > number => {
            fail(disk_path, old(number, memory.number))
        }
        (Some(number), Some(memory)) if memory.number + 1 < number => {
            fail(memory_path, old(memory.number, number - 1))
        }
        (Some(number), Some(memory)) => Ok(Plan::Continue { number, memory }),
    }
}
