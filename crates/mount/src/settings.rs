//! The command line of `forebay-mount`. `forebay mount` writes it, not people.

use crate::device::Rights;
use rustix::fd::{FromRawFd as _, OwnedFd};
use std::ffi::{CString, OsString};
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::str::FromStr;

/// Threads that serve if nothing else is said: a request may wait for other hosts.
const THREADS: usize = 8;

/// How requests come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Transport {
    /// By rings if they can be had, else by `/dev/fuse`.
    Auto,
    /// By rings, or not at all.
    Rings,
    /// By `/dev/fuse`.
    Classic,
}

impl FromStr for Transport {
    type Err = ();

    fn from_str(word: &str) -> Result<Transport, ()> {
        match word {
            "auto" => Ok(Transport::Auto),
            "rings" => Ok(Transport::Rings),
            "classic" => Ok(Transport::Classic),
            _ => Err(()),
        }
    }
}

/// What the starter decided.
#[derive(Debug)]
pub(crate) struct Settings {
    /// Sockets of the instance's daemons on this host.
    pub(crate) run: CString,
    /// The first of these daemons.
    pub(crate) home: u16,
    /// Where to mount.
    pub(crate) at: PathBuf,
    /// Threads that serve.
    pub(crate) threads: usize,
    /// How requests come.
    pub(crate) transport: Transport,
    /// What users may.
    pub(crate) rights: Rights,
    /// The daemons are in another user namespace.
    pub(crate) is_apart: bool,
    /// Descriptor to tell readiness on.
    pub(crate) ready: Option<OwnedFd>,
    /// A pipe: the mount is taken away when nobody can write to it any more.
    pub(crate) while_held: Option<OwnedFd>,
}

impl Settings {
    /// What tables of mounts show beside the place: the instance's name, which its run directory has.
    pub(crate) fn source(&self) -> String {
        let run = self.run.to_string_lossy();
        format!("forebay:{}", run.rsplit('/').next().unwrap_or_default())
    }

    /// Reads the words.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(crate) fn parse(mut words: impl Iterator<Item = OsString>) -> Result<Settings, String> {
        let (mut run, mut home, mut at) = (None, None, None);
        let (mut threads, mut rights, mut ready) = (THREADS, Rights::default(), None);
        let mut is_apart = false;
        let (mut transport, mut while_held) = (Transport::Auto, None);
        while let Some(word) = words.next() {
            let name = word.to_string_lossy().into_owned();
            if name == "--for-all" {
                rights.is_for_all = true;
                continue;
            }
            if name == "--trusted" {
                rights.is_trusted = true;
                continue;
            }
            if name == "--apart" {
                is_apart = true;
                continue;
            }
            let value = words.next().ok_or_else(|| format!("option {name} has no value"))?;
            match name.as_str() {
                "--run" => run = Some(value),
                "--home" => home = Some(read("--home", &value)?),
                "--at" => at = Some(PathBuf::from(value)),
                "--threads" => threads = read::<usize>("--threads", &value)?.clamp(1, 64),
                "--transport" => transport = read("--transport", &value)?,
                "--ready-fd" => ready = Some(descriptor(&name, &value)?),
                "--while-fd" => while_held = Some(descriptor(&name, &value)?),
                _ => return Err(format!("unknown option {name:?}")),
            }
        }
        let run = run.ok_or("option --run is missing")?.into_vec();
        let run = CString::new(run).map_err(|_| "option --run has a NUL in it")?;
        let home = home.ok_or("option --home is missing")?;
        let at = at.ok_or("option --at is missing")?;
        Ok(Settings { run, home, at, threads, transport, rights, is_apart, ready, while_held })
    }
}

fn read<T: FromStr>(name: &str, value: &OsString) -> Result<T, String> {
    let number = value.to_str().and_then(|text| text.parse().ok());
    number.ok_or_else(|| format!("option {name} can not be {value:?}"))
}

/// The starter left this descriptor open for us.
#[expect(unsafe_code, reason = "a number becomes a descriptor")]
fn descriptor(name: &str, value: &OsString) -> Result<OwnedFd, String> {
    let number: i32 = read(name, value)?;
    // SAFETY: it only looks whether there is such a descriptor. WHY: the starter can name it by its
    // number alone.
    let is_open = unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0;
    if number <= 2 || !is_open {
        return Err(format!("option {name} can not be {number}"));
    }
    // SAFETY: it is open, and nothing else in this program, which just began, knows of it.
    // WHY: see above.
    let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
    // Not for the helper that is started.
    let _ = rustix::io::fcntl_setfd(&descriptor, rustix::io::FdFlags::CLOEXEC);
    Ok(descriptor)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Settings, String> {
        Settings::parse(words.iter().map(OsString::from))
    }

    #[test]
    fn words_are_understood_or_named() {
        let all = ["--run", "/run/a", "--home", "3", "--at", "/mnt", "--threads", "900"];
        let settings = parse(&all).expect("all is there");
        assert_eq!((settings.home, settings.threads, settings.rights.is_for_all), (3, 64, false));
        assert_eq!(settings.source(), "forebay:a");
        for (words, said) in [
            (&["--run", "/run/a", "--home", "x"][..], "option --home can not be \"x\""),
            (&["--run"], "option --run has no value"),
            (&["--run", "/run/a", "--home", "0"], "option --at is missing"),
            (&["--what", "1"], "unknown option \"--what\""),
            (&["--transport", "tcp"], "option --transport can not be \"tcp\""),
            (&["--ready-fd", "1"], "option --ready-fd can not be 1"),
            (&["--ready-fd", "1000"], "option --ready-fd can not be 1000"),
            (&["--while-fd", "2"], "option --while-fd can not be 2"),
        ] {
            assert_eq!(parse(words).expect_err("refused"), said);
        }
    }
}
