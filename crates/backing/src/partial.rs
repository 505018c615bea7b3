//! A file that is being written: it has a temporary name in its directory until it is complete.
//!
//! A temporary name identifies the process that made it: `.forebay-part-PLACE-PID-START-NUMBER`,
//! all in hexadecimal. PLACE identifies the scope of process ids: a boot of a host and a pid
//! namespace. Within the same place it is known whether the process still runs. Names from other
//! places count as left over one day after their file was last written.
//!
//! A partial file that holds bytes which exist nowhere else must outlive its process. Its name is
//! `.forebay-partial-INODE-OWNER-` followed by PLACE-PID-START-NUMBER. The owner OWNER knows which
//! of its partial files are in use, whichever process made them. For all others such a file counts
//! as left over one month after it was last written, because its process may be dead while its
//! owner is alive.

use crate::attributes::{self, AttributesLost, FileMetadata};
use crate::contents::CopyError;
use crate::dir::Dir;
use crate::node::Node;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Prefix of temporary names.
const PREFIX: &str = ".forebay-part-";
/// Prefix of persistent names.
const LASTING: &str = ".forebay-partial-";
/// Age after which a temporary file of another host is left over.
const FOREIGN_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// Age after which a persistent partial file is left over: no program keeps a file open that long
/// without writeback.
const LASTING_AGE: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// The process that made a temporary name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Maker {
    place: u64,
    pid: u64,
    start: u64,
}

impl Maker {
    /// Parses a temporary name; `None` for other names.
    pub(crate) fn of(name: &OsStr) -> Option<Maker> {
        let rest = name.to_str()?.strip_prefix(PREFIX)?;
        let parts: Option<Vec<u64>> =
            rest.split('-').map(|part| u64::from_str_radix(part, 16).ok()).collect();
        let &[place, pid, start, _] = parts?.as_slice() else { return None };
        Some(Maker { place, pid, start })
    }

    /// This process.
    fn own() -> Maker {
        static OWN: OnceLock<Maker> = OnceLock::new();
        *OWN.get_or_init(|| {
            let text = |path| std::fs::read(path).unwrap_or_default();
            let space = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
            let boot = text("/proc/sys/kernel/random/boot_id");
            let bytes = boot.iter().chain(space.as_os_str().as_bytes());
            // FNV-1a.
            let step = |sum: u64, &byte: &u8| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
            let place = bytes.fold(0xcbf2_9ce4_8422_2325, step);
            let pid = u64::from(std::process::id());
            Maker { place, pid, start: started(pid).unwrap_or(0) }
        })
    }

    /// True if no process writes under this name. Calls `node` only if the process is in another
    /// place.
    pub(crate) fn is_gone(self, node: impl FnOnce() -> io::Result<Node>) -> bool {
        self.is_dead()
            .unwrap_or_else(|| node().is_ok_and(|node| is_old(node.modified(), FOREIGN_AGE)))
    }

    /// `None` if that cannot be known here.
    fn is_dead(self) -> Option<bool> {
        let own = Maker::own();
        // Without /proc the start time is 0.
        let is_here = self.place == own.place && self.start != 0;
        is_here.then(|| self != own && started(self.pid) != Some(self.start))
    }
}

/// True if more than `most` has passed since `modified` (nanoseconds since 1970).
fn is_old(modified: i64, most: Duration) -> bool {
    let written = UNIX_EPOCH + Duration::from_nanos(u64::try_from(modified).unwrap_or(0));
    SystemTime::now().duration_since(written).is_ok_and(|age| age > most)
}

/// Parses a persistent name: inode, owner, and process.
fn lasting(name: &OsStr) -> Option<(u64, u64, Maker)> {
    let mut parts = name.to_str()?.strip_prefix(LASTING)?.splitn(3, '-');
    let mut number = || u64::from_str_radix(parts.next()?, 16).ok();
    let (inode, owner) = (number()?, number()?);
    let maker = Maker::of(OsStr::new(&format!("{PREFIX}{}", parts.next()?)))?;
    Some((inode, owner, maker))
}

/// The inode in a name that `PartialFile::keep` made.
#[must_use]
pub fn inode_of_partial(name: &OsStr) -> Option<u64> {
    lasting(name).map(|(inode, ..)| inode)
}

/// True if a persistent partial file, last written at `modified`, is left over. `owner` has checked
/// that it does not use the file.
#[must_use]
pub fn is_left_over(name: &OsStr, modified: i64, owner: u64) -> bool {
    lasting(name).is_some_and(|(_, name_owner, maker)| {
        name_owner == owner || maker.is_dead() != Some(false) && is_old(modified, LASTING_AGE)
    })
}

/// Start time of a process in kernel ticks; `None` if the process does not exist or is a zombie.
fn started(pid: u64) -> Option<u64> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    // After the program name, which may contain any character.
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(stat.get(end + 1..)?).ok()?;
    let mut words = rest.split_whitespace();
    if words.next()?.starts_with(['Z', 'X']) {
        return None;
    }
    words.nth(18)?.parse().ok()
}

/// A temporary name that is not in use.
fn temporary() -> OsString {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let Maker { place, pid, start } = Maker::own();
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let mut name = PREFIX.to_owned();
    let _ = write!(name, "{place:x}-{pid:x}-{start:x}-{number:x}");
    name.into()
}

/// Whether a rename may replace an existing file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// The name must not exist; if it does, the existing file stays.
    New,
    /// An existing file is replaced, unless it is a directory.
    Replace,
}

/// A file under a temporary name, which is removed on drop unless `commit` succeeded.
#[derive(Debug)]
pub struct TemporaryFile {
    dir: Arc<Dir>,
    name: OsString,
    is_dir: bool,
    is_committed: bool,
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        if !self.is_committed {
            let flags = if self.is_dir { AtFlags::REMOVEDIR } else { AtFlags::empty() };
            let _ = rustix::fs::unlinkat(&self.dir, &self.name, flags);
        }
    }
}

impl TemporaryFile {
    fn new(dir: &Arc<Dir>) -> TemporaryFile {
        let dir = Arc::clone(dir);
        TemporaryFile { dir, name: temporary(), is_dir: false, is_committed: false }
    }

    /// Creates a symbolic link.
    ///
    /// # Errors
    /// As of `symlink`.
    pub fn link(dir: &Arc<Dir>, target: &OsStr) -> io::Result<TemporaryFile> {
        let temporary = TemporaryFile::new(dir);
        rustix::fs::symlinkat(target, dir, &temporary.name)?;
        Ok(temporary)
    }

    /// Creates a pipe, a socket or a device; `mode` includes the type bits.
    ///
    /// # Errors
    /// As of `mknod`; only root may create devices.
    pub fn special(dir: &Arc<Dir>, mode: u32, device: u64) -> io::Result<TemporaryFile> {
        let temporary = TemporaryFile::new(dir);
        let (kind, mode) = (FileType::from_raw_mode(mode), Mode::from_raw_mode(mode & 0o7777));
        rustix::fs::mknodat(dir, &temporary.name, kind, mode, device)?;
        Ok(temporary)
    }

    /// Creates an empty directory with mode 0700.
    ///
    /// # Errors
    /// As of `mkdir`.
    pub fn dir(dir: &Arc<Dir>) -> io::Result<TemporaryFile> {
        let mut temporary = TemporaryFile::new(dir);
        temporary.is_dir = true;
        rustix::fs::mkdirat(dir, &temporary.name, Mode::RWXU)?;
        Ok(temporary)
    }

    /// Sets the metadata. Extended attributes are set on directories only.
    ///
    /// # Errors
    /// As of the system calls.
    pub fn set_metadata(&self, metadata: &FileMetadata) -> io::Result<AttributesLost> {
        if self.is_dir {
            return metadata.put_on(self.dir.dir(Path::new(&self.name))?);
        }
        metadata.put_on_name(&self.dir, &self.name).map(|()| AttributesLost(false))
    }

    /// Its `stat`.
    ///
    /// # Errors
    /// As of `fstatat`.
    pub fn node(&self) -> io::Result<Node> {
        self.dir.node(&self.name)
    }

    /// Renames it to its final name. On failure it is removed.
    ///
    /// # Errors
    /// `Taken`, or as of `rename`.
    pub fn commit(self, name: &OsStr, rename_mode: RenameMode) -> Result<(), CopyError> {
        let dir = Arc::clone(&self.dir);
        self.commit_in(&dir, name, rename_mode)
    }

    /// As `commit`, into any directory of the same file system.
    ///
    /// # Errors
    /// As `commit`.
    pub fn commit_in(
        mut self,
        to: &Dir,
        name: &OsStr,
        rename_mode: RenameMode,
    ) -> Result<(), CopyError> {
        let (dir, own) = (&self.dir, &self.name);
        let replace = || rustix::fs::renameat(dir, own, to, name);
        let done = match rename_mode {
            RenameMode::Replace => replace(),
            RenameMode::New => {
                let new = RenameFlags::NOREPLACE;
                match rustix::fs::renameat_with(dir, own, to, name, new) {
                    // The file system or the kernel lacks RENAME_NOREPLACE.
                    Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => match to.node(name) {
                        Ok(_) => Err(Errno::EXIST),
                        Err(_) => replace(),
                    },
                    done => done,
                }
            }
        };
        match done {
            Ok(()) => {
                self.is_committed = true;
                Ok(())
            }
            Err(Errno::EXIST) if rename_mode == RenameMode::New => Err(CopyError::Taken),
            Err(errno) => Err(CopyError::Write(errno.into())),
        }
    }
}

/// A regular file that is being written.
#[derive(Debug)]
pub struct PartialFile {
    temporary: TemporaryFile,
    file: File,
}

impl PartialFile {
    /// Creates an empty file that will have `mode`. The caller's umask should be 0.
    ///
    /// # Errors
    /// As of `open`.
    pub fn new(dir: &Arc<Dir>, mode: u32) -> io::Result<PartialFile> {
        let temporary = TemporaryFile::new(dir);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        // With the final mode if possible, which saves a call.
        let mode = Mode::from_raw_mode(mode & 0o777 | 0o600);
        match rustix::fs::openat(dir, &temporary.name, flags, mode) {
            Ok(file) => Ok(PartialFile { temporary, file: file.into() }),
            Err(errno) => Err(errno.into()),
        }
    }

    /// A persistent partial file that is open for writing.
    #[must_use]
    pub fn of_existing(dir: &Arc<Dir>, name: &OsStr, file: File) -> PartialFile {
        let (dir, name) = (Arc::clone(dir), name.to_owned());
        PartialFile {
            temporary: TemporaryFile { dir, name, is_dir: false, is_committed: true },
            file,
        }
    }

    /// Gives it a persistent name, so that it outlives this process. `inode` and `owner` are part
    /// of the name.
    ///
    /// # Errors
    /// As of `rename`.
    pub fn keep(&mut self, inode: u64, owner: u64) -> io::Result<OsString> {
        let TemporaryFile { dir, name, is_committed, .. } = &mut self.temporary;
        let rest = name.to_str().and_then(|name| name.strip_prefix(PREFIX)).unwrap_or_default();
        let lasting = OsString::from(format!("{LASTING}{inode:x}-{owner:x}-{rest}"));
        rustix::fs::renameat(&*dir, &*name, &*dir, &lasting)?;
        name.clone_from(&lasting);
        *is_committed = true;
        Ok(lasting)
    }

    /// The open file.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Copies the metadata of `from`; must follow the last write.
    ///
    /// # Errors
    /// As of the system calls.
    pub fn set_metadata(&self, from: &File, node: &Node) -> Result<AttributesLost, CopyError> {
        attributes::copy(from, node, &self.file).map_err(CopyError::Write)
    }

    /// Waits until contents and metadata are on the device.
    ///
    /// # Errors
    /// As of `fsync`.
    pub fn sync(&self) -> Result<(), CopyError> {
        self.file.sync_all().map_err(CopyError::Write)
    }

    /// Renames it to its final name. On failure it is removed.
    ///
    /// # Errors
    /// `Taken`, or as of `rename`.
    pub fn commit(self, name: &OsStr, rename_mode: RenameMode) -> Result<(), CopyError> {
        self.temporary.commit(name, rename_mode)
    }

    /// As `commit`, into any directory of the same file system.
    ///
    /// # Errors
    /// As `commit`.
    pub fn commit_in(
        self,
        to: &Dir,
        name: &OsStr,
        rename_mode: RenameMode,
    ) -> Result<(), CopyError> {
        self.temporary.commit_in(to, name, rename_mode)
    }
}

/// Copies a symbolic link.
///
/// # Errors
/// As of the system calls.
pub fn link(
    from: &Dir,
    node: &Node,
    name: &OsStr,
    to: &Arc<Dir>,
    rename_mode: RenameMode,
) -> Result<(), CopyError> {
    let target = from.link(name).map_err(CopyError::Read)?;
    let temporary = TemporaryFile::link(to, &target).map_err(CopyError::Write)?;
    temporary.set_metadata(&FileMetadata::of_name(node)).map_err(CopyError::Write)?;
    temporary.commit(name, rename_mode)
}

/// Creates a pipe, a socket or a device like another.
///
/// # Errors
/// As of the system calls; only root may create devices.
pub fn special(
    node: &Node,
    name: &OsStr,
    to: &Arc<Dir>,
    rename_mode: RenameMode,
) -> Result<(), CopyError> {
    let (kind, device) = node.special();
    let mode = kind.as_raw_mode() | node.mode();
    let temporary = TemporaryFile::special(to, mode, device).map_err(CopyError::Write)?;
    temporary.set_metadata(&FileMetadata::of_name(node)).map_err(CopyError::Write)?;
    temporary.commit(name, rename_mode)
}

/// Adds a hard link to an existing file; replaces another file of that name.
///
/// # Errors
/// As of `link`; file systems without hard links return EPERM or EOPNOTSUPP.
pub fn hard_link(of: (&Dir, &OsStr), to: &Arc<Dir>, name: &OsStr) -> Result<(), CopyError> {
    let failed = |errno: Errno| CopyError::Write(errno.into());
    match rustix::fs::linkat(of.0, of.1, to, name, AtFlags::empty()) {
        Err(Errno::EXIST) => {}
        done => return done.map_err(failed),
    }
    let identity = |dir: &Dir, name: &OsStr| dir.node(name).map(|node| node.identity);
    let first = identity(of.0, of.1).map_err(CopyError::Write)?;
    if identity(to, name).is_ok_and(|there| there == first) {
        return Ok(());
    }
    let temporary = TemporaryFile::new(to);
    rustix::fs::linkat(of.0, of.1, to, &temporary.name, AtFlags::empty()).map_err(failed)?;
    temporary.commit(name, RenameMode::Replace)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink};
    use std::process::Command;

    struct Place {
        place: tempfile::TempDir,
        dir: Arc<Dir>,
    }

    fn place() -> Place {
        let place = tempfile::tempdir().expect("a directory");
        let dir = Arc::new(Dir::open(place.path()).expect("open"));
        Place { place, dir }
    }

    impl Place {
        fn path(&self, name: &str) -> std::path::PathBuf {
            self.place.path().join(name)
        }

        /// Creates a source file; returns it and its `stat`.
        fn source(&self, name: &str, bytes: &[u8]) -> (File, Node) {
            fs::write(self.path(name), bytes).expect("written");
            let file = self.dir.file(OsStr::new(name)).expect("open");
            let node = Node::of(&file).expect("stat");
            (file, node)
        }

        fn names(&self) -> Vec<String> {
            let all = fs::read_dir(self.place.path()).expect("a listing").flatten();
            let mut all: Vec<_> =
                all.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
            all.sort();
            all
        }
    }

    #[test]
    fn a_file_appears_complete_with_its_attributes_or_not_at_all() {
        let place = place();
        let (file, _) = place.source("from", b"contents");
        fs::set_permissions(place.path("from"), fs::Permissions::from_mode(0o4751)).expect("chmod");
        let node = Node::of(&file).expect("stat");
        let partial = PartialFile::new(&place.dir, node.mode()).expect("made");
        partial.file().write_all_at(b"contents", 0).expect("written");
        assert!(!place.path("to").exists());
        partial.set_metadata(&file, &node).expect("dressed");
        partial.sync().expect("synced");
        partial.commit(OsStr::new("to"), RenameMode::New).expect("landed");
        let (from, to) = (fs::metadata(place.path("from")), fs::metadata(place.path("to")));
        let said = |what: fs::Metadata| (what.mode(), what.mtime(), what.mtime_nsec(), what.len());
        assert_eq!(said(from.expect("stat")), said(to.expect("stat")));
        drop(PartialFile::new(&place.dir, node.mode()).expect("made"));
        assert_eq!(place.names(), ["from", "to"]);
    }

    #[test]
    fn rename_new_fails_on_an_existing_name_and_replace_replaces_it() {
        let place = place();
        let (_, node) = place.source("from", b"");
        let partial = || PartialFile::new(&place.dir, node.mode()).expect("made");
        fs::write(place.path("there"), "old").expect("written");
        fs::create_dir(place.path("folder")).expect("made");
        let there = OsStr::new("there");
        let refused = partial().commit(there, RenameMode::New);
        assert!(matches!(refused, Err(CopyError::Taken)), "{refused:?}");
        assert_eq!(fs::read(place.path("there")).expect("read"), b"old");
        partial().commit(there, RenameMode::Replace).expect("landed");
        assert_eq!(fs::read(place.path("there")).expect("read"), b"");
        partial().commit(OsStr::new("folder"), RenameMode::Replace).expect_err("a directory stays");
        let long = "n".repeat(256);
        partial()
            .commit(OsStr::new(&long), RenameMode::New)
            .expect_err("longer than a name can be");
        assert_eq!(place.names(), ["folder", "from", "there"]);
    }

    #[test]
    fn a_hard_link_replaces_another_file_of_that_name() {
        let place = place();
        place.source("first", b"1");
        fs::write(place.path("other"), "2").expect("written");
        let first = OsStr::new("first");
        for name in ["new", "other", "other"] {
            hard_link((&place.dir, first), &place.dir, OsStr::new(name)).expect("linked");
        }
        assert_eq!(fs::metadata(place.path("first")).expect("stat").nlink(), 3);
        assert_eq!(place.names(), ["first", "new", "other"]);
    }

    #[test]
    fn links_and_pipes_are_copied() {
        let place = place();
        symlink("nowhere", place.path("link")).expect("linked");
        let pipe = Command::new("mkfifo").args(["-m", "640"]).arg(place.path("pipe")).status();
        assert!(pipe.expect("mkfifo runs").success());
        let node = |name: &str| place.dir.node(OsStr::new(name)).expect("stat");
        link(&place.dir, &node("link"), OsStr::new("link"), &place.dir, RenameMode::New)
            .expect_err("its own name is taken");
        fs::create_dir(place.path("to")).expect("made");
        let there = Arc::new(Dir::open(&place.path("to")).expect("open"));
        link(&place.dir, &node("link"), OsStr::new("link"), &there, RenameMode::New).expect("made");
        let made = fs::read_link(place.path("to/link")).expect("a link");
        assert_eq!(made, Path::new("nowhere"));
        special(&node("pipe"), OsStr::new("pipe"), &there, RenameMode::New).expect("made");
        let made = there.node(OsStr::new("pipe")).expect("stat");
        assert_eq!((made.kind, made.mode()), (crate::Kind::Special, 0o640));
        assert!(made.is_as_written(&node("pipe")));
    }

    #[test]
    fn only_files_of_dead_processes_are_swept() {
        let place = place();
        let own = Maker::own();
        let name =
            |maker: Maker| format!("{PREFIX}{:x}-{:x}-{:x}-0", maker.place, maker.pid, maker.start);
        // Process 1 runs, and has another start time than the second maker.
        let living = Maker { pid: 1, start: started(1).expect("there is one"), ..own };
        let reused = Maker { start: living.start + 1, ..living };
        let foreign = Maker { place: own.place ^ 1, ..living };
        let old = Maker { pid: 2, ..foreign };
        let stays = [name(own), name(living), name(foreign), "file".into(), format!("{PREFIX}x")];
        for name in stays.iter().chain(&[name(reused), name(old)]) {
            fs::write(place.path(name), "").expect("written");
        }
        let long_ago = SystemTime::now() - FOREIGN_AGE * 2;
        let file = File::options().write(true).open(place.path(&name(old))).expect("open");
        file.set_modified(long_ago).expect("set");
        let mut names = place.dir.entries().expect("a listing");
        place.dir.sweep(&mut names);
        let mut left: Vec<_> = stays.to_vec();
        left.sort();
        assert_eq!(place.names(), left);
        let mut left_names: Vec<_> = names.into_iter().map(|(name, _)| name).collect();
        left_names.sort();
        assert_eq!(left_names, [format!("{PREFIX}x").as_str(), "file"]);
    }
}
