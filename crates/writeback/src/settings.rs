//! The command line of `forebay-writeback`. `forebay start` writes it, not people.

use std::ffi::{CString, OsString};
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// What the starter decided.
#[derive(Debug)]
pub(crate) struct Settings {
    /// Sockets of the instance's daemons on this host; ours comes there.
    pub(crate) run: CString,
    /// The first of these daemons.
    pub(crate) home: u16,
    /// The backing directory.
    pub(crate) backing: PathBuf,
    /// What is not changed for so long is cool.
    pub(crate) idle: Duration,
    /// Bytes a second that are saved; 0: as many as can be.
    pub(crate) rate: u64,
    /// Threads that copy.
    pub(crate) threads: usize,
    /// An earlier writer that has not quite ended is waited for so long.
    pub(crate) patience: Duration,
    /// Where to tell readiness: `/dev/fd/N`.
    pub(crate) ready: Option<PathBuf>,
}

impl Settings {
    /// Reads the words.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(crate) fn parse(mut words: impl Iterator<Item = OsString>) -> Result<Settings, String> {
        let (mut run, mut home, mut backing) = (None, None, None);
        let (mut idle, mut threads, mut ready) = (Duration::ZERO, 1, None);
        let (mut patience, mut rate) = (Duration::ZERO, 0);
        while let Some(word) = words.next() {
            let name = word.to_string_lossy().into_owned();
            let value = words.next().ok_or_else(|| format!("option {name} has no value"))?;
            match name.as_str() {
                "--run" => run = Some(value),
                "--home" => home = Some(read(&name, &value)?),
                "--backing" => backing = Some(PathBuf::from(value)),
                "--idle" => idle = Duration::from_micros(read(&name, &value)?),
                "--rate" => rate = read(&name, &value)?,
                "--threads" => threads = read::<usize>(&name, &value)?.clamp(1, 64),
                "--patience" => patience = Duration::from_micros(read(&name, &value)?),
                "--ready-fd" => {
                    let number: u32 = read(&name, &value)?;
                    ready = Some(PathBuf::from(format!("/proc/self/fd/{number}")));
                }
                _ => return Err(format!("unknown option {name:?}")),
            }
        }
        let run = run.ok_or("option --run is missing")?.into_vec();
        Ok(Settings {
            run: CString::new(run).map_err(|_| "option --run has a NUL in it")?,
            home: home.ok_or("option --home is missing")?,
            backing: backing.ok_or("option --backing is missing")?,
            idle,
            rate,
            threads,
            patience,
            ready,
        })
    }
}

fn read<T: FromStr>(name: &str, value: &OsString) -> Result<T, String> {
    let number = value.to_str().and_then(|text| text.parse().ok());
    number.ok_or_else(|| format!("option {name} can not be {value:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_understood_or_named() {
        let parse = |words: &[&str]| Settings::parse(words.iter().map(OsString::from));
        let all = ["--run", "/r", "--home", "3", "--backing", "/b", "--threads", "900"];
        let settings = parse(&all).expect("all is there");
        assert_eq!((settings.home, settings.threads), (3, 64));
        for (words, said) in [
            (&["--run", "/r", "--home", "x"][..], "option --home can not be \"x\""),
            (&["--run"], "option --run has no value"),
            (&["--run", "/r", "--home", "0"], "option --backing is missing"),
            (&["--what", "1"], "unknown option \"--what\""),
        ] {
            assert_eq!(parse(words).expect_err("refused"), said);
        }
    }
}
