//! The names of a running daemon: its socket in the run directory, and its files in shared memory.
//! Session managers and cleaners of temporary directories remove them while it runs
//! (`/run/user/UID` at the last logout, `/dev/shm` by RemoveIPC, `/tmp` after days). The daemon
//! looks every few seconds.
//!
//! A run directory that is gone is made again, with the records that it had: programs and commands
//! find the instance there as before. Shared memory that is gone cannot get its names back: what is
//! mapped goes on, but a daemon that is started later cannot take it over. So only the lock gets a
//! new name, by which `forebay stop` and `start` find this daemon, and `status` says so.

use crate::sessions::acceptor::Look;
use crate::startup::failure::{StartResult, failed};
use crate::startup::instance_lock::InstanceLock;
use crate::startup::settings::Settings;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Files of the run directory that are made again, by their names or the ends of their names.
const RECORDS: [&str; 4] = ["secret", "peers", ".json", ".config"];
/// Records that are there as long as a daemon runs.
const ALWAYS: [&str; 2] = ["secret", "host.json"];
/// Larger files are no records.
const RECORD_BYTES_MAX: u64 = 4 << 20;

/// See the module.
pub(crate) struct Places {
    run: PathBuf,
    socket: PathBuf,
    log: PathBuf,
    arena: PathBuf,
    arena_bytes: u64,
    lock: InstanceLock,
    is_memory_gone: bool,
    /// Contents of the records, and the time of the directory when they were read.
    records: BTreeMap<OsString, Vec<u8>>,
    read_at: Option<SystemTime>,
    /// It could not be made again; said once.
    has_failed: bool,
}

impl Places {
    /// The places of a daemon that listens at `socket`.
    pub(crate) fn new(settings: &Settings, socket: PathBuf, lock: InstanceLock) -> Places {
        Places {
            run: settings.run.clone(),
            log: settings.run.join(format!("d{}.log", settings.index)),
            socket,
            arena: arena_path(settings),
            arena_bytes: settings.memory,
            lock,
            is_memory_gone: false,
            records: BTreeMap::new(),
            read_at: None,
            has_failed: false,
        }
    }

    /// Looks, and makes again what is gone.
    pub(crate) fn look(&mut self) -> Look {
        if self.lock.is_named() == Some(false) {
            self.name_lock();
        }
        self.check_arena();
        let listener = match fs::symlink_metadata(&self.socket) {
            Ok(_) => {
                self.read_records();
                None
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.make_again(),
            Err(_) => None,
        };
        Look { listener, is_memory_gone: self.is_memory_gone }
    }

    /// A program of the owner can cut the arena by a stray call on a descriptor that the library
    /// holds for it. Nothing of it can be trusted then.
    fn check_arena(&self) {
        let length = fs::metadata(&self.arena).map_or(self.arena_bytes, |found| found.len());
        if length < self.arena_bytes {
            tracing::error!("{}: the daemon aborts", cut(&self.arena, length, self.arena_bytes));
            std::process::abort();
        }
    }

    fn name_lock(&mut self) {
        match self.lock.name_again() {
            Ok(()) => {
                self.is_memory_gone = true;
                tracing::error!(
                    "the instance's files in /dev/shm were removed: programs go on, but a daemon \
                     that ends cannot be restarted: save the files that matter"
                );
            }
            Err(error) => tracing::warn!("the files in /dev/shm were removed: {error}"),
        }
    }

    /// Reads the records that changed since they were read last.
    fn read_records(&mut self) {
        let changed = fs::metadata(&self.run).and_then(|found| found.modified()).ok();
        if changed.is_none() || changed == self.read_at {
            return;
        }
        let mut records = BTreeMap::new();
        for entry in fs::read_dir(&self.run).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let text = name.to_string_lossy();
            let is_file = entry
                .metadata()
                .is_ok_and(|found| found.is_file() && found.len() <= RECORD_BYTES_MAX);
            if is_file
                && RECORDS.iter().any(|record| text.ends_with(record))
                && let Ok(contents) = fs::read(entry.path())
            {
                records.insert(name, contents);
            }
        }
        let is_there = |name: &&str| records.contains_key(OsStr::new(name));
        let was_there = |name: &&str| self.records.contains_key(OsStr::new(name));
        if ALWAYS.iter().any(|name| was_there(name) && !is_there(name)) {
            // The directory is being emptied.
            let _ = self.write_records();
            return;
        }
        (self.records, self.read_at) = (records, changed);
    }

    fn make_again(&mut self) -> Option<UnixListener> {
        match self.try_make_again() {
            Ok(listener) => {
                // Without it, lines go to the removed file.
                let _ = background::log_file::go_on_in(&self.log);
                tracing::warn!(
                    directory = %self.run.display(),
                    "the run directory was removed, it is made again"
                );
                self.has_failed = false;
                Some(listener)
            }
            Err(error) => {
                if !self.has_failed {
                    tracing::warn!("the run directory was removed: {error}; trying on");
                }
                self.has_failed = true;
                None
            }
        }
    }

    fn try_make_again(&self) -> StartResult<UnixListener> {
        for directory in self.run.parent().into_iter().chain([self.run.as_path()]) {
            store::directory::create(directory).map_err(failed("make it again"))?;
        }
        self.write_records()?;
        listen(&self.socket)
    }

    /// Writes the records that are missing.
    fn write_records(&self) -> StartResult<()> {
        for (name, contents) in &self.records {
            let mut options = OpenOptions::new();
            let made = options.write(true).create_new(true).mode(0o600).open(self.run.join(name));
            match made {
                Ok(mut file) => file.write_all(contents).map_err(failed("write a record"))?,
                // By another daemon of this host.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed("write a record")(error)),
            }
        }
        Ok(())
    }
}

/// Path of the arena.
fn arena_path(settings: &Settings) -> PathBuf {
    settings.shm.join(format!("d{}.arena", settings.index))
}

/// Text about an arena that is too short.
fn cut(arena: &Path, length: u64, expected: u64) -> String {
    let arena = arena.display();
    format!("a program cut {arena} to {length} of {expected} bytes: the files in memory are lost")
}

/// The socket gets its name by a rename, so that it never exists without a listener.
pub(crate) fn listen(path: &Path) -> StartResult<UnixListener> {
    let new = path.with_extension("new");
    let doing = || format!("listen on {}", path.display());
    let _ = fs::remove_file(&new);
    let listener = UnixListener::bind(&new).map_err(failed(doing()))?;
    fs::rename(&new, path).map_err(failed(doing()))?;
    Ok(listener)
}
