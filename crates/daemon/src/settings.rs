//! The command line of `forebayd`. It is written by the starter, not by people: every option is
//! given once, as `--name value`; all but `--inline`, `--timeout`, `--writes` and `--transport`
//! must be.

use fabric::bulk::Choice;
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use wire::DaemonIndex;
use wire::attributes::{flag, placement, spread};
use wire::limits::{
    CHUNK_LOG2_MAX, CHUNK_LOG2_MIN, DAEMON_COUNT_MAX, INLINE_BYTES_MAX, WORKER_COUNT_MAX,
};

/// What the starter decided.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Sockets, secret.
    pub(crate) run: PathBuf,
    /// Named shared memory.
    pub(crate) shm: PathBuf,
    /// Logs and SSD file: a directory of this daemon's own.
    pub(crate) data: PathBuf,
    /// This daemon.
    pub(crate) index: DaemonIndex,
    /// Daemons of the instance.
    pub(crate) count: u16,
    /// First daemon of this host; also the number of the host.
    pub(crate) local_first: u16,
    /// Daemons of this host.
    pub(crate) local_count: u16,
    /// Bytes of the arena.
    pub(crate) memory: u64,
    /// Bytes of the SSD file.
    pub(crate) ssd: u64,
    /// log2 of the chunk size.
    pub(crate) chunk_log2: u8,
    /// `wire::attributes::spread` of the root.
    pub(crate) spread: u8,
    /// `wire::attributes::placement` of the root.
    pub(crate) placement: u8,
    /// Bits of `wire::attributes::flag` of the root.
    pub(crate) flags: u8,
    /// Worker threads.
    pub(crate) workers: usize,
    /// Where to listen for peers.
    pub(crate) listen: SocketAddr,
    /// The file of the peers' addresses.
    pub(crate) peers: PathBuf,
    /// Who may attach, beside root.
    pub(crate) owner: u32,
    /// Descriptor to tell readiness on.
    pub(crate) ready_fd: u32,
    /// 1: writes of clients to other hosts return before they have arrived.
    pub(crate) write_behind: u8,
    /// 1: bytes of other hosts are fetched ahead of readers.
    pub(crate) read_ahead: u8,
    /// Largest contents that are kept in an inode record.
    pub(crate) inline: usize,
    /// What moves the bytes of files between daemons.
    pub(crate) transport: Choice,
    /// Bound on every wait of a client, in microseconds.
    pub(crate) timeout_micros: u64,
}

/// What is wrong with the command line.
#[derive(Debug)]
pub(crate) enum Wrong {
    Unknown(String),
    NoValue(String),
    Twice(String),
    Missing(&'static str),
    Value(&'static str, String),
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wrong::Unknown(name) => write!(f, "unknown option {name:?}"),
            Wrong::NoValue(name) => write!(f, "option {name} has no value"),
            Wrong::Twice(name) => write!(f, "option {name} is given twice"),
            Wrong::Missing(name) => write!(f, "option --{name} is missing"),
            Wrong::Value(name, value) => write!(f, "option --{name} can not be {value:?}"),
        }
    }
}

const NAMES: [&str; 23] = [
    "run",
    "shm",
    "data",
    "index",
    "count",
    "local-first",
    "local-count",
    "memory",
    "ssd",
    "chunk",
    "spread",
    "placement",
    "consistency",
    "writes",
    "reads",
    "workers",
    "listen",
    "peers",
    "owner",
    "ready-fd",
    "inline",
    "timeout",
    "transport",
];

/// A daemon that is started again takes a moment; after this long the application had better learn
/// of it.
const TIMEOUT_MICROS: u64 = 30_000_000;

struct Options(BTreeMap<&'static str, String>);

impl Options {
    fn of(mut words: impl Iterator<Item = String>) -> Result<Options, Wrong> {
        let mut options = BTreeMap::new();
        while let Some(word) = words.next() {
            let name = word
                .strip_prefix("--")
                .and_then(|word| NAMES.iter().copied().find(|name| *name == word));
            let Some(name) = name else { return Err(Wrong::Unknown(word)) };
            let Some(value) = words.next() else { return Err(Wrong::NoValue(word)) };
            if options.insert(name, value).is_some() {
                return Err(Wrong::Twice(word));
            }
        }
        Ok(Options(options))
    }

    fn text(&self, name: &'static str) -> Result<&str, Wrong> {
        self.0.get(name).map(String::as_str).ok_or(Wrong::Missing(name))
    }

    fn value<T: FromStr>(&self, name: &'static str) -> Result<T, Wrong> {
        let text = self.text(name)?;
        text.parse().map_err(|_| Wrong::Value(name, text.to_owned()))
    }

    fn value_or<T: FromStr>(&self, name: &'static str, otherwise: T) -> Result<T, Wrong> {
        if self.0.contains_key(name) { self.value(name) } else { Ok(otherwise) }
    }

    fn one_of(&self, name: &'static str, known: &[(&str, u8)]) -> Result<u8, Wrong> {
        let text = self.text(name)?;
        let found = known.iter().find(|(word, _)| *word == text);
        found.map(|(_, number)| *number).ok_or_else(|| Wrong::Value(name, text.to_owned()))
    }

    fn wrong(&self, name: &'static str) -> Wrong {
        Wrong::Value(name, self.0.get(name).cloned().unwrap_or_default())
    }
}

impl Settings {
    /// Reads the command line without the program's name.
    pub(crate) fn parse(words: impl Iterator<Item = String>) -> Result<Settings, Wrong> {
        let options = Options::of(words)?;
        let chunk: u64 = options.value("chunk")?;
        let settings = Settings {
            run: options.value("run")?,
            shm: options.value("shm")?,
            data: options.value("data")?,
            index: DaemonIndex(options.value("index")?),
            count: options.value("count")?,
            local_first: options.value("local-first")?,
            local_count: options.value("local-count")?,
            memory: options.value("memory")?,
            ssd: options.value("ssd")?,
            chunk_log2: chunk.checked_ilog2().unwrap_or(0) as u8,
            spread: options.one_of("spread", &[("home", spread::HOME), ("wide", spread::WIDE)])?,
            placement: options
                .one_of("placement", &[("hash", placement::HASH), ("local", placement::LOCAL)])?,
            flags: match options.0.contains_key("consistency") {
                true => options.one_of("consistency", &[("relaxed", 0), ("posix", flag::POSIX)])?,
                false => 0,
            },
            write_behind: match options.0.contains_key("writes") {
                true => options.one_of("writes", &[("through", 0), ("behind", 1)])?,
                false => 0,
            },
            read_ahead: match options.0.contains_key("reads") {
                true => options.one_of("reads", &[("asked", 0), ("ahead", 1)])?,
                false => 0,
            },
            workers: options.value("workers")?,
            listen: options.value("listen")?,
            peers: options.value("peers")?,
            owner: options.value("owner")?,
            ready_fd: options.value("ready-fd")?,
            inline: options.value_or("inline", INLINE_BYTES_MAX)?,
            transport: options.value_or("transport", Choice::Tcp)?,
            timeout_micros: options.value_or("timeout", TIMEOUT_MICROS)?,
        };
        settings.check(&options, chunk)?;
        Ok(settings)
    }

    fn check(&self, options: &Options, chunk: u64) -> Result<(), Wrong> {
        let local_end = u32::from(self.local_first) + u32::from(self.local_count);
        let local = u32::from(self.local_first)..local_end;
        let rules = [
            ("count", self.count > 0 && self.count <= DAEMON_COUNT_MAX),
            ("index", self.index.0 < self.count),
            ("local-first", local.contains(&u32::from(self.index.0))),
            ("local-count", local_end <= u32::from(self.count)),
            ("chunk", chunk.is_power_of_two()),
            ("chunk", (CHUNK_LOG2_MIN..=CHUNK_LOG2_MAX).contains(&self.chunk_log2)),
            ("workers", (1..=WORKER_COUNT_MAX).contains(&self.workers)),
            ("memory", usize::try_from(self.memory).is_ok() && self.memory <= u64::MAX >> 1),
            ("ssd", self.ssd <= u64::MAX >> 1),
            ("inline", self.inline <= INLINE_BYTES_MAX),
            ("timeout", self.timeout_micros > 0),
        ];
        match rules.iter().find(|(_, holds)| !holds) {
            Some((name, _)) => Err(options.wrong(name)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "--run /r --shm /s --data /d --index 1 --count 2 --local-first 0 \
        --local-count 2 --memory 1048576 --ssd 0 --chunk 4194304 --spread home --placement hash \
        --workers 2 --listen 127.0.0.1:0 --peers /r/peers --owner 1000 --ready-fd 3";

    fn parse(line: &str) -> Result<Settings, String> {
        Settings::parse(line.split_whitespace().map(str::to_owned))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_whole_line_is_taken() {
        let settings = parse(LINE).expect("right");
        assert_eq!((settings.chunk_log2, settings.index.0, settings.workers), (22, 1, 2));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let wrong = [
            ("--index 1", "--index 2", "option --index can not be \"2\""),
            ("4194304", "4194305", "option --chunk can not be \"4194305\""),
            ("--spread home", "", "option --spread is missing"),
            ("--spread home", "--spread far", "option --spread can not be \"far\""),
            ("--ready-fd 3", "--ready-fd", "option --ready-fd has no value"),
            ("--ready-fd 3", "--ready-fd 3 --ready-fd 3", "option --ready-fd is given twice"),
            ("--ready-fd 3", "--ready-fd 3 --transport x", "option --transport can not be \"x\""),
        ];
        for (from, to, message) in wrong {
            let line = LINE.replace(from, to);
            assert_eq!(parse(&line).map(drop), Err(message.to_owned()), "{line}");
        }
    }
}
