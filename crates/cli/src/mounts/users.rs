//! Who uses a mount: programs that have a file or a directory there.

use fuse::table;
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How long the maps of all processes are looked at. Who can not be looked at is not named.
const PATIENCE: Duration = Duration::from_secs(1);

/// Programs that use a mount, as far as this user may see them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Users {
    all: Vec<(i32, String)>,
}

impl fmt::Display for Users {
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

/// Those of the mount at `at`, whose file system has the number `device`.
pub(crate) fn of(at: &Path, device: &str) -> Users {
    let mut all = others();
    let until = Instant::now() + PATIENCE;
    all.retain(|(_, process)| has_there(process, at) || maps(process, device, until));
    named(all)
}

/// Processes that have the file system `device` mounted in a mount namespace of their own.
pub(crate) fn with_mount(device: &str) -> Option<Users> {
    let space = |process: &Path| fs::read_link(process.join("ns/mnt")).ok();
    let ours = space(Path::new("/proc/self"));
    let mut seen = Vec::from([ours]);
    let mut all = others();
    all.retain(|(_, process)| {
        let space = space(process);
        if space.is_none() || seen.contains(&space) {
            return false;
        }
        seen.push(space);
        let table = fs::read(process.join("mountinfo")).unwrap_or_default();
        table::read(&table).any(|row| row.is_ours() && row.device == device)
    });
    (!all.is_empty()).then(|| named(all))
}

/// All processes but this one, which has what its starter has.
fn others() -> Vec<(i32, PathBuf)> {
    let own = std::process::id().cast_signed();
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse::<i32>().ok();
    let all = fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(number);
    all.filter(|&pid| pid != own).map(|pid| (pid, format!("/proc/{pid}").into())).collect()
}

fn named(processes: Vec<(i32, PathBuf)>) -> Users {
    let name = |process: &Path| fs::read(process.join("comm")).unwrap_or_default();
    let text = |name: Vec<u8>| String::from_utf8_lossy(&name).trim_end().to_owned();
    let all = processes.into_iter().map(|(pid, process)| (pid, text(name(&process))));
    let mut all: Vec<_> = all.collect();
    all.sort_unstable();
    Users { all }
}

/// Links are read and nothing is opened: the mount itself may not answer.
fn has_there(process: &Path, at: &Path) -> bool {
    let leads_there = |link: &Path| fs::read_link(link).is_ok_and(|path| path.starts_with(at));
    if ["cwd", "root", "exe"].into_iter().any(|name| leads_there(&process.join(name))) {
        return true;
    }
    let open = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    open.into_iter().any(|entry| leads_there(&entry.path()))
}

/// The kernel shows maps when nobody changes them: not while that waits for a page which this very mount
/// does not bring. So a thread looks, which ends with this program at the latest.
fn maps(process: &Path, device: &str, until: Instant) -> bool {
    let (tell, told) = mpsc::channel();
    let table = process.join("maps");
    let read = move || tell.send(fs::read(table).unwrap_or_default());
    let patience = until.saturating_duration_since(Instant::now());
    let read = std::thread::Builder::new().spawn(read).ok();
    let maps = read.and_then(|_| told.recv_timeout(patience).ok()).unwrap_or_default();
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
    fn who_has_a_file_there_is_found() {
        let place = tempfile::tempdir().expect("a directory");
        let at = place.path().canonicalize().expect("a path");
        assert_eq!(of(&at, "no:device").to_string(), "a program");
        let mut child =
            std::process::Command::new("sleep").arg("60").current_dir(&at).spawn().expect("sleep");
        let found = of(&at, "no:device");
        child.kill().and_then(|()| child.wait()).expect("it ends");
        assert_eq!(found.to_string(), format!("sleep (process {})", child.id()));
        let three = Users { all: vec![(7, "cat".into()), (8, "a".into()), (9, "b".into())] };
        assert_eq!(three.to_string(), "cat (process 7) and 2 others");
    }

    #[test]
    fn lines_of_maps_are_understood() {
        let line = b"7f00-7f01 rw-s 00000000 00:39 12                         /m/f";
        assert!(is_map_of(line, "0:57") && !is_map_of(line, "0:39"));
        assert!(!is_map_of(b"", "0:0") && !is_map_of(b"what is that line here", "0:0"));
    }
}
