//! A file that is being written: under a temporary name beside its own, until it is complete.
//!
//! A temporary name says who made it: `.forebay-part-PLACE-PID-START-NUMBER`, all in hex. PLACE
//! stands for where process numbers mean the same: a boot of a host, and a name space of processes.
//! There a maker that is gone is known to be; what other places left is taken for left over a day
//! after it was last written.
//!
//! What is to be kept over the end of its maker, as it has bytes that are nowhere else, has a lasting
//! name: `.forebay-draft-INODE-OWNER-` and the same. OWNER knows which of them are in use, whichever
//! process makes them. For others it is left over a month after it was last written, as its maker may be
//! dead and its owner alive.

use crate::attributes::{self, Dress, Lost};
use crate::contents::Trouble;
use crate::folder::Folder;
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

/// How temporary names begin.
const PREFIX: &str = ".forebay-part-";
/// How lasting names begin.
const LASTING: &str = ".forebay-draft-";
/// What another host left is not being written any more.
const FOREIGN_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// Nobody has had a file open for so long without having it saved.
const LASTING_AGE: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Which process made a temporary name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Maker {
    place: u64,
    pid: u64,
    start: u64,
}

impl Maker {
    /// The maker of a name; `None` if it is no temporary one.
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

    /// True if nothing writes under this name any more. What it is is looked at only if need be.
    pub(crate) fn is_gone(self, node: impl FnOnce() -> io::Result<Node>) -> bool {
        self.is_dead()
            .unwrap_or_else(|| node().is_ok_and(|node| is_old(node.modified(), FOREIGN_AGE)))
    }

    /// `None`: that can not be known here.
    fn is_dead(self) -> Option<bool> {
        let own = Maker::own();
        // Without /proc no process has a start.
        let is_here = self.place == own.place && self.start != 0;
        is_here.then(|| self != own && started(self.pid) != Some(self.start))
    }
}

/// Nothing was written for so long to what was modified then.
fn is_old(modified: i64, most: Duration) -> bool {
    let written = UNIX_EPOCH + Duration::from_nanos(u64::try_from(modified).unwrap_or(0));
    SystemTime::now().duration_since(written).is_ok_and(|age| age > most)
}

/// A lasting name: of which inode, whose, and who made it.
fn lasting(name: &OsStr) -> Option<(u64, u64, Maker)> {
    let mut parts = name.to_str()?.strip_prefix(LASTING)?.splitn(3, '-');
    let mut number = || u64::from_str_radix(parts.next()?, 16).ok();
    let (inode, owner) = (number()?, number()?);
    let maker = Maker::of(OsStr::new(&format!("{PREFIX}{}", parts.next()?)))?;
    Some((inode, owner, maker))
}

/// Of which inode a name is that `Draft::keep` gave.
#[must_use]
pub fn inode_of_kept(name: &OsStr) -> Option<u64> {
    lasting(name).map(|(inode, ..)| inode)
}

/// True if a kept draft that was modified then, and that `owner` does not use, is left over.
#[must_use]
pub fn is_left_over(name: &OsStr, modified: i64, owner: u64) -> bool {
    lasting(name).is_some_and(|(_, whose, maker)| {
        whose == owner || maker.is_dead() != Some(false) && is_old(modified, LASTING_AGE)
    })
}

/// When a process began, in the kernel's ticks; `None` if there is none, or only its remains.
fn started(pid: u64) -> Option<u64> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    // Behind the program's name, which may hold anything.
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(stat.get(end + 1..)?).ok()?;
    let mut words = rest.split_whitespace();
    if words.next()?.starts_with(['Z', 'X']) {
        return None;
    }
    words.nth(18)?.parse().ok()
}

/// A name that nobody has.
fn temporary() -> OsString {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let Maker { place, pid, start } = Maker::own();
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let mut name = PREFIX.to_owned();
    let _ = write!(name, "{place:x}-{pid:x}-{start:x}-{number:x}");
    name.into()
}

/// What a name may be for what comes under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Landing {
    /// It is nobody's: if it turns out to be, what has it stays.
    New,
    /// What has it is replaced, unless it is a directory.
    Replace,
}

/// Something under a temporary name, which is removed if it does not `land`.
#[derive(Debug)]
pub struct Temporary {
    folder: Arc<Folder>,
    name: OsString,
    is_folder: bool,
    is_landed: bool,
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.is_landed {
            let flags = if self.is_folder { AtFlags::REMOVEDIR } else { AtFlags::empty() };
            let _ = rustix::fs::unlinkat(&self.folder, &self.name, flags);
        }
    }
}

impl Temporary {
    fn new(folder: &Arc<Folder>) -> Temporary {
        let folder = Arc::clone(folder);
        Temporary { folder, name: temporary(), is_folder: false, is_landed: false }
    }

    /// A symbolic link.
    ///
    /// # Errors
    /// As of `symlink`.
    pub fn link(folder: &Arc<Folder>, target: &OsStr) -> io::Result<Temporary> {
        let temporary = Temporary::new(folder);
        rustix::fs::symlinkat(target, folder, &temporary.name)?;
        Ok(temporary)
    }

    /// A pipe, a socket or a device, by `mode` with the bits of its kind.
    ///
    /// # Errors
    /// As of `mknod`; devices are root's.
    pub fn special(folder: &Arc<Folder>, mode: u32, device: u64) -> io::Result<Temporary> {
        let temporary = Temporary::new(folder);
        let (kind, mode) = (FileType::from_raw_mode(mode), Mode::from_raw_mode(mode & 0o7777));
        rustix::fs::mknodat(folder, &temporary.name, kind, mode, device)?;
        Ok(temporary)
    }

    /// An empty directory that its maker alone may enter.
    ///
    /// # Errors
    /// As of `mkdir`.
    pub fn folder(folder: &Arc<Folder>) -> io::Result<Temporary> {
        let mut temporary = Temporary::new(folder);
        temporary.is_folder = true;
        rustix::fs::mkdirat(folder, &temporary.name, Mode::RWXU)?;
        Ok(temporary)
    }

    /// Gives it its attributes. Sets of extended ones are for directories.
    ///
    /// # Errors
    /// As of the calls.
    pub fn dress(&self, dress: &Dress) -> io::Result<Lost> {
        if self.is_folder {
            return dress.put_on(self.folder.folder(Path::new(&self.name))?);
        }
        dress.put_on_name(&self.folder, &self.name).map(|()| Lost(false))
    }

    /// What it is.
    ///
    /// # Errors
    /// As of `fstatat`.
    pub fn node(&self) -> io::Result<Node> {
        self.folder.node(&self.name)
    }

    /// Gives it its name. If that fails nothing of it is left.
    ///
    /// # Errors
    /// `Taken`, or as of `rename`.
    pub fn land(self, name: &OsStr, landing: Landing) -> Result<(), Trouble> {
        let folder = Arc::clone(&self.folder);
        self.land_in(&folder, name, landing)
    }

    /// As `land`, in any directory of the same file system.
    ///
    /// # Errors
    /// As `land`.
    pub fn land_in(mut self, to: &Folder, name: &OsStr, landing: Landing) -> Result<(), Trouble> {
        let (folder, own) = (&self.folder, &self.name);
        let replace = || rustix::fs::renameat(folder, own, to, name);
        let done = match landing {
            Landing::Replace => replace(),
            Landing::New => {
                let new = RenameFlags::NOREPLACE;
                match rustix::fs::renameat_with(folder, own, to, name, new) {
                    // A file system, or a kernel, without it.
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
                self.is_landed = true;
                Ok(())
            }
            Err(Errno::EXIST) if landing == Landing::New => Err(Trouble::Taken),
            Err(errno) => Err(Trouble::Write(errno.into())),
        }
    }
}

/// A regular file that is being written.
#[derive(Debug)]
pub struct Draft {
    temporary: Temporary,
    file: File,
}

impl Draft {
    /// An empty file of what will have `mode`. The caller's mask for modes should be 0.
    ///
    /// # Errors
    /// As of `open`.
    pub fn new(folder: &Arc<Folder>, mode: u32) -> io::Result<Draft> {
        let temporary = Temporary::new(folder);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        // With the mode that it will have if that is possible: one call less.
        let mode = Mode::from_raw_mode(mode & 0o777 | 0o600);
        match rustix::fs::openat(folder, &temporary.name, flags, mode) {
            Ok(file) => Ok(Draft { temporary, file: file.into() }),
            Err(errno) => Err(errno.into()),
        }
    }

    /// One that was kept, and is open to be written to.
    #[must_use]
    pub fn of_kept(folder: &Arc<Folder>, name: &OsStr, file: File) -> Draft {
        let (folder, name) = (Arc::clone(folder), name.to_owned());
        Draft { temporary: Temporary { folder, name, is_folder: false, is_landed: true }, file }
    }

    /// Gives it a lasting name: it stays, whatever becomes of this process. `inode` and `owner` name it.
    ///
    /// # Errors
    /// As of `rename`.
    pub fn keep(&mut self, inode: u64, owner: u64) -> io::Result<OsString> {
        let Temporary { folder, name, is_landed, .. } = &mut self.temporary;
        let rest = name.to_str().and_then(|name| name.strip_prefix(PREFIX)).unwrap_or_default();
        let lasting = OsString::from(format!("{LASTING}{inode:x}-{owner:x}-{rest}"));
        rustix::fs::renameat(&*folder, &*name, &*folder, &lasting)?;
        name.clone_from(&lasting);
        *is_landed = true;
        Ok(lasting)
    }

    /// What is written to.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Gives it the attributes of `from`, after the last write.
    ///
    /// # Errors
    /// As of the calls.
    pub fn dress(&self, from: &File, node: &Node) -> Result<Lost, Trouble> {
        attributes::copy(from, node, &self.file).map_err(Trouble::Write)
    }

    /// Waits until it is on the device with its attributes.
    ///
    /// # Errors
    /// As of `fsync`.
    pub fn sync(&self) -> Result<(), Trouble> {
        self.file.sync_all().map_err(Trouble::Write)
    }

    /// Gives it its name. If that fails nothing of it is left.
    ///
    /// # Errors
    /// `Taken`, or as of `rename`.
    pub fn land(self, name: &OsStr, landing: Landing) -> Result<(), Trouble> {
        self.temporary.land(name, landing)
    }

    /// As `land`, in any directory of the same file system.
    ///
    /// # Errors
    /// As `land`.
    pub fn land_in(self, to: &Folder, name: &OsStr, landing: Landing) -> Result<(), Trouble> {
        self.temporary.land_in(to, name, landing)
    }
}

/// Makes a symbolic link as another is.
///
/// # Errors
/// As of the calls.
pub fn link(
    from: &Folder,
    node: &Node,
    name: &OsStr,
    to: &Arc<Folder>,
    landing: Landing,
) -> Result<(), Trouble> {
    let target = from.link(name).map_err(Trouble::Read)?;
    let temporary = Temporary::link(to, &target).map_err(Trouble::Write)?;
    temporary.dress(&Dress::of_name(node)).map_err(Trouble::Write)?;
    temporary.land(name, landing)
}

/// Makes a pipe, a socket or a device as another is.
///
/// # Errors
/// As of the calls; devices are root's.
pub fn special(
    node: &Node,
    name: &OsStr,
    to: &Arc<Folder>,
    landing: Landing,
) -> Result<(), Trouble> {
    let (kind, device) = node.special();
    let mode = kind.as_raw_mode() | node.mode();
    let temporary = Temporary::special(to, mode, device).map_err(Trouble::Write)?;
    temporary.dress(&Dress::of_name(node)).map_err(Trouble::Write)?;
    temporary.land(name, landing)
}

/// Gives a file that is there another name.
///
/// # Errors
/// As of `link`; file systems without it say EPERM or EOPNOTSUPP.
pub fn another_name(of: (&Folder, &OsStr), to: &Arc<Folder>, name: &OsStr) -> Result<(), Trouble> {
    let failed = |errno: Errno| Trouble::Write(errno.into());
    match rustix::fs::linkat(of.0, of.1, to, name, AtFlags::empty()) {
        Err(Errno::EXIST) => {}
        done => return done.map_err(failed),
    }
    let identity = |folder: &Folder, name: &OsStr| folder.node(name).map(|node| node.identity);
    let first = identity(of.0, of.1).map_err(Trouble::Write)?;
    if identity(to, name).is_ok_and(|there| there == first) {
        return Ok(());
    }
    let temporary = Temporary::new(to);
    rustix::fs::linkat(of.0, of.1, to, &temporary.name, AtFlags::empty()).map_err(failed)?;
    temporary.land(name, Landing::Replace)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink};
    use std::process::Command;

    struct Place {
        place: tempfile::TempDir,
        folder: Arc<Folder>,
    }

    fn place() -> Place {
        let place = tempfile::tempdir().expect("a directory");
        let folder = Arc::new(Folder::open(place.path()).expect("open"));
        Place { place, folder }
    }

    impl Place {
        fn path(&self, name: &str) -> std::path::PathBuf {
            self.place.path().join(name)
        }

        /// A file, and what is known of it.
        fn source(&self, name: &str, bytes: &[u8]) -> (File, Node) {
            fs::write(self.path(name), bytes).expect("written");
            let file = self.folder.file(OsStr::new(name)).expect("open");
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
        let draft = Draft::new(&place.folder, node.mode()).expect("made");
        draft.file().write_all_at(b"contents", 0).expect("written");
        assert!(!place.path("to").exists());
        draft.dress(&file, &node).expect("dressed");
        draft.sync().expect("synced");
        draft.land(OsStr::new("to"), Landing::New).expect("landed");
        let (from, to) = (fs::metadata(place.path("from")), fs::metadata(place.path("to")));
        let said = |what: fs::Metadata| (what.mode(), what.mtime(), what.mtime_nsec(), what.len());
        assert_eq!(said(from.expect("stat")), said(to.expect("stat")));
        drop(Draft::new(&place.folder, node.mode()).expect("made"));
        assert_eq!(place.names(), ["from", "to"]);
    }

    #[test]
    fn a_new_name_takes_nobodys_and_a_replaced_one_is_replaced() {
        let place = place();
        let (_, node) = place.source("from", b"");
        let draft = || Draft::new(&place.folder, node.mode()).expect("made");
        fs::write(place.path("there"), "old").expect("written");
        fs::create_dir(place.path("folder")).expect("made");
        let there = OsStr::new("there");
        let refused = draft().land(there, Landing::New);
        assert!(matches!(refused, Err(Trouble::Taken)), "{refused:?}");
        assert_eq!(fs::read(place.path("there")).expect("read"), b"old");
        draft().land(there, Landing::Replace).expect("landed");
        assert_eq!(fs::read(place.path("there")).expect("read"), b"");
        draft().land(OsStr::new("folder"), Landing::Replace).expect_err("a directory stays");
        let long = "n".repeat(256);
        draft().land(OsStr::new(&long), Landing::New).expect_err("longer than a name can be");
        assert_eq!(place.names(), ["folder", "from", "there"]);
    }

    #[test]
    fn another_name_replaces_what_is_no_name_of_the_file() {
        let place = place();
        place.source("first", b"1");
        fs::write(place.path("other"), "2").expect("written");
        let first = OsStr::new("first");
        for name in ["new", "other", "other"] {
            another_name((&place.folder, first), &place.folder, OsStr::new(name)).expect("linked");
        }
        assert_eq!(fs::metadata(place.path("first")).expect("stat").nlink(), 3);
        assert_eq!(place.names(), ["first", "new", "other"]);
    }

    #[test]
    fn links_and_pipes_are_made_as_they_are() {
        let place = place();
        symlink("nowhere", place.path("link")).expect("linked");
        let pipe = Command::new("mkfifo").args(["-m", "640"]).arg(place.path("pipe")).status();
        assert!(pipe.expect("mkfifo runs").success());
        let node = |name: &str| place.folder.node(OsStr::new(name)).expect("stat");
        link(&place.folder, &node("link"), OsStr::new("link"), &place.folder, Landing::New)
            .expect_err("its own name is taken");
        fs::create_dir(place.path("to")).expect("made");
        let there = Arc::new(Folder::open(&place.path("to")).expect("open"));
        link(&place.folder, &node("link"), OsStr::new("link"), &there, Landing::New).expect("made");
        let made = fs::read_link(place.path("to/link")).expect("a link");
        assert_eq!(made, Path::new("nowhere"));
        special(&node("pipe"), OsStr::new("pipe"), &there, Landing::New).expect("made");
        let made = there.node(OsStr::new("pipe")).expect("stat");
        assert_eq!((made.kind, made.mode()), (crate::Kind::Special, 0o640));
        assert!(made.is_as_written(&node("pipe")));
    }

    #[test]
    fn what_the_dead_left_is_swept_and_nothing_else() {
        let place = place();
        let own = Maker::own();
        let name =
            |maker: Maker| format!("{PREFIX}{:x}-{:x}-{:x}-0", maker.place, maker.pid, maker.start);
        // The first process lives, and began at another moment.
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
        let mut names = place.folder.entries().expect("a listing");
        place.folder.sweep(&mut names);
        let mut left: Vec<_> = stays.to_vec();
        left.sort();
        assert_eq!(place.names(), left);
        let mut told: Vec<_> = names.into_iter().map(|(name, _)| name).collect();
        told.sort();
        assert_eq!(told, [format!("{PREFIX}x").as_str(), "file"]);
    }
}
