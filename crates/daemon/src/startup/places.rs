//! The names of a running daemon: its socket in the run directory, and its files in shared memory.
//! Session managers and cleaners of temporary directories remove them while it runs
//! (`/run/user/UID` at the last logout, `/dev/shm` by RemoveIPC, `/tmp` after days). The daemon
//! looks every few seconds.
//!
//! A run directory that is gone is made again, with the records that it had: programs and commands
//! find the instance there as before. Shared memory that is gone cannot get its names back: what is
//! mapped goes on, but a daemon that is started later cannot take it over. So only the lock gets a
//! new name, by which `forebay stop` and `start` find this daemon, and `status` says so.
//!
//! At each look it also sees whether the file of addresses is another one: then a daemon has come in the
//! place of a lost one (`net::peers`).

use crate::sessions::acceptor::Look;
use crate::startup::failure::{StartResult, failed};
use crate::startup::instance_lock::InstanceLock;
use crate::startup::run_records::RunRecords;
use crate::startup::settings::Settings;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// See the module.
pub(crate) struct Places {
    run: PathBuf,
    socket: PathBuf,
    log: PathBuf,
    arena: PathBuf,
    arena_bytes: u64,
    lock: InstanceLock,
    is_memory_gone: bool,
    records: RunRecords,
    /// The file of addresses, and which file it was at the last look: inode and time of the last change.
    peers: PathBuf,
    peers_seen: Option<(u64, i64, i64)>,
    /// It could not be made again; said once.
    has_failed: bool,
}

impl Places {
    /// The places of a daemon that listens at `socket`.
    pub(crate) fn new(settings: &Settings, socket: PathBuf, lock: InstanceLock) -> Places {
        Places {
            run: settings.run.clone(),
            log: settings.run.join(format!("d{}.log", settings.index)),
            records: RunRecords::new(&settings.run, socket.with_extension("record")),
            socket,
            arena: arena_path(settings),
            arena_bytes: settings.memory,
            lock,
            is_memory_gone: false,
            peers: settings.peers.clone(),
            peers_seen: None,
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
                self.records.read();
                None
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.make_again(),
            Err(_) => None,
        };
        let has_new_addresses = self.has_new_addresses();
        Look { listener, is_memory_gone: self.is_memory_gone, has_new_addresses }
    }

    fn has_new_addresses(&mut self) -> bool {
        let found = fs::metadata(&self.peers).ok();
        let found = found.map(|it| (it.ino(), it.mtime(), it.mtime_nsec()));
        let is_new = found.is_some() && found != self.peers_seen;
        self.peers_seen = found.or(self.peers_seen);
        is_new
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
        self.records.write().map_err(failed("write a record"))?;
        listen(&self.socket)
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
