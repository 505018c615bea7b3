//! The processes that use a mount: those that have a file or directory there open, mapped, or as
//! their working directory.

use fuse::table::{self, Mounted};
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Time limit for reading the maps of all processes. Processes that cannot be read are not
/// reported.
const MAPS_TIME_MAX: Duration = Duration::from_secs(1);

/// Processes that use a mount, as far as this user may see them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MountUsers {
    all: Vec<(i32, String)>,
}

impl fmt::Display for MountUsers {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((pid, name)) = self.all.first() else { return write!(to, "a program") };
        write!(to, "{name} (process {pid})")?;
        match self.all.len() - 1 {
            0 => Ok(()),
            1 => write!(to, " and another"),
            others => write!(to, " and {others} others"),
        }
    }
}

/// The users of the mount at `at`, whose file system has the device number `device`.
pub(crate) fn of(at: &Path, device: &str) -> MountUsers {
    let mut all = others();
    let deadline = Instant::now() + MAPS_TIME_MAX;
    all.retain(|(_, process)| has_open(process, at) || maps(process, device, deadline));
    named(all)
}

/// Processes that have the file system `device` mounted in a mount namespace of their own.
pub(crate) fn with_mount(device: &str) -> Option<MountUsers> {
    elsewhere(|row| row.is_ours() && row.device == device)
}

/// True if another mount namespace has a file system other than `device` mounted at `at`. It would
/// be unmounted if the directory were removed.
pub(crate) fn is_mounted_on(at: &Path, device: &str) -> bool {
    elsewhere(|row| row.at == at.as_os_str().as_bytes() && row.device != device).is_some()
}

/// Processes in other mount namespaces whose mount table has such a row, one of each namespace.
fn elsewhere(is_it: impl Fn(&Mounted) -> bool) -> Option<MountUsers> {
    let space = |process: &Path| fs::read_link(process.join("ns/mnt")).ok();
    let ours = space(Path::new("/proc/self"));
    let mut seen = Vec::from([ours]);
    let mut all = others();
    all.retain(|(_, process)| {
        let space = space(process);
        if space.is_none() || seen.contains(&space) {
            return false;
        }
        let table = fs::read(process.join("mountinfo")).unwrap_or_default();
        // Another process of the namespace is read if this one has just ended.
        if !table.is_empty() {
            seen.push(space);
        }
        table::read(&table).any(|row| is_it(&row))
    });
    (!all.is_empty()).then(|| named(all))
}

/// All processes except this one.
fn others() -> Vec<(i32, PathBuf)> {
    let own = std::process::id().cast_signed();
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse::<i32>().ok();
    let all = fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(number);
    all.filter(|&pid| pid != own).map(|pid| (pid, format!("/proc/{pid}").into())).collect()
}

fn named(processes: Vec<(i32, PathBuf)>) -> MountUsers {
    let name = |process: &Path| fs::read(process.join("comm")).unwrap_or_default();
    let text = |name: Vec<u8>| String::from_utf8_lossy(&name).trim_end().to_owned();
    let all = processes.into_iter().map(|(pid, process)| (pid, text(name(&process))));
    let mut all: Vec<_> = all.collect();
    all.sort_unstable();
    MountUsers { all }
}

/// Reads only links and opens nothing, because the mount may not answer.
fn has_open(process: &Path, at: &Path) -> bool {
    let leads_there = |link: &Path| fs::read_link(link).is_ok_and(|path| path.starts_with(at));
    if ["cwd", "root", "exe"].into_iter().any(|name| leads_there(&process.join(name))) {
        return true;
    }
    let open = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    open.into_iter().any(|entry| leads_there(&entry.path()))
}

/// The kernel does not show the maps of a process while one of them changes, which may wait for a
/// page of this very mount. So a separate thread reads them; it ends with this program at the
/// latest.
fn maps(process: &Path, device: &str, deadline: Instant) -> bool {
    let (sender, receiver) = mpsc::channel();
    let table = process.join("maps");
    let read = move || sender.send(fs::read(table).unwrap_or_default());
    let timeout = deadline.saturating_duration_since(Instant::now());
    let read = std::thread::Builder::new().spawn(read).ok();
    let maps = read.and_then(|_| receiver.recv_timeout(timeout).ok()).unwrap_or_default();
    maps.split(|&byte| byte == b'\n').any(|line| is_map_of(line, device))
}

/// `begin-end rights offset major:minor inode path`, the device in hexadecimal digits.
fn is_map_of(line: &[u8], device: &str) -> bool {
    let word = line.split(|&byte| byte == b' ').nth(3).map(OsStr::from_bytes);
    let hexadecimal = |part: &str| u32::from_str_radix(part, 16).ok();
    let mapped = word.and_then(OsStr::to_str).and_then(|word| word.split_once(':'));
    let mapped = mapped.and_then(|(major, minor)| hexadecimal(major).zip(hexadecimal(minor)));
    mapped.is_some_and(|(major, minor)| format!("{major}:{minor}") == device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_its_working_directory_there_is_found() {
        let place = tempfile::tempdir().expect("a directory");
        let at = place.path().canonicalize().expect("a path");
        assert_eq!(of(&at, "no:device").to_string(), "a program");
        let mut child =
            std::process::Command::new("sleep").arg("60").current_dir(&at).spawn().expect("sleep");
        let found = of(&at, "no:device");
        child.kill().and_then(|()| child.wait()).expect("it ends");
        assert_eq!(found.to_string(), format!("sleep (process {})", child.id()));
        let three = MountUsers { all: vec![(7, "cat".into()), (8, "a".into()), (9, "b".into())] };
        assert_eq!(three.to_string(), "cat (process 7) and 2 others");
    }

    #[test]
    fn the_device_of_a_map_is_read() {
        let line = b"7f00-7f01 rw-s 00000000 00:39 12                         /m/f";
        assert!(is_map_of(line, "0:57") && !is_map_of(line, "0:39"));
        assert!(!is_map_of(b"", "0:0") && !is_map_of(b"what is that line here", "0:0"));
    }
}
