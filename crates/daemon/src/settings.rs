//! The command line of `forebayd`. It is written by the starter, not by people: every option is
//! given once, as `--name value`; all but `--inline`, `--timeout`, `--writes`, `--transport`,
//! `--backing`, `--backing-check`, `--history`, `--memory-least`, and when pieces sink must be.

use ::below::is_bucket;
use data::sink::Sinking;
use data::thresholds::{Given, Thresholds};
use fabric::bulk::Choice;
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use wire::attributes::{flag, placement, spread, write_back};
use wire::limits::{
    CHUNK_LOG2_MAX, CHUNK_LOG2_MIN, DAEMON_COUNT_MAX, INLINE_BYTES_MAX, WORKER_COUNT_MAX,
};
use wire::{DaemonIndex, Layout};

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
    /// Bytes of it that may always be used, if the rest follows what the node leaves idle.
    pub(crate) memory_least: Option<u64>,
    /// Bytes of the SSD file.
    pub(crate) ssd: u64,
    /// Percent of the arena below which idle pieces sink; 0: none. Without it that sets itself.
    pub(crate) room: Option<u64>,
    /// As `room`, for what is not idle.
    pub(crate) reserve: Option<u64>,
    /// Microseconds after which a piece is idle.
    pub(crate) idle_micros: u64,
    /// How long a write waits for room at most.
    pub(crate) patience_micros: u64,
    /// Bytes a second that are moved between tiers while nobody waits for them; 0: no bound.
    pub(crate) move_rate: u64,
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
    /// The backing directory, or the bucket.
    pub(crate) backing: Option<String>,
    /// For so long a name counts as known after it was looked for there.
    pub(crate) backing_check_micros: u64,
    /// Bytes a second that all daemons bring up from below before they are read; 0: no bound.
    pub(crate) backing_rate: u64,
    /// 1: which files are read is noted.
    pub(crate) history: u8,
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

const NAMES: [&str; 34] = [
    "run",
    "shm",
    "data",
    "index",
    "count",
    "local-first",
    "local-count",
    "memory",
    "memory-least",
    "ssd",
    "room",
    "reserve",
    "idle",
    "patience",
    "move-rate",
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
    "backing",
    "backing-check",
    "backing-rate",
    "write-back",
    "history",
];

/// A daemon that is started again takes a moment; after this long the application had better learn
/// of it.
const TIMEOUT_MICROS: u64 = 30_000_000;

/// After so long a piece is idle.
const IDLE_MICROS: u64 = 500_000;
/// So long what lies below counts as known: short for who waits for what another job wrote, and long
/// enough that a program that opens a file again and again asks nobody.
const BACKING_CHECK_MICROS: u64 = 1_000_000;
/// So long a write waits for room.
const PATIENCE_MICROS: u64 = 10_000_000;

/// Of the root: what it hands down.
fn flags(options: &Options) -> Result<u8, Wrong> {
    let posix = match options.0.contains_key("consistency") {
        true => options.one_of("consistency", &[("relaxed", 0), ("posix", flag::POSIX)])?,
        false => 0,
    };
    if !options.0.contains_key("backing") {
        return Ok(posix);
    }
    let write_back = match options.0.contains_key("write-back") {
        true => options.one_of("write-back", &write_back::NAMES)?,
        false => write_back::CLOSE,
    };
    Ok(Layout { flags: posix, ..Layout::default() }.flags_with_write_back(write_back))
}

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

    /// `None`: auto.
    fn percent(&self, name: &'static str) -> Result<Option<u64>, Wrong> {
        match self.0.get(name).map(String::as_str) {
            Some("auto") => Ok(None),
            _ => self.value_or(name, 0).map(Some),
        }
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
            memory_least: match options.0.contains_key("memory-least") {
                true => Some(options.value("memory-least")?),
                false => None,
            },
            ssd: options.value("ssd")?,
            room: options.percent("room")?,
            reserve: options.percent("reserve")?,
            idle_micros: options.value_or("idle", IDLE_MICROS)?,
            patience_micros: options.value_or("patience", PATIENCE_MICROS)?,
            move_rate: options.value_or("move-rate", 0)?,
            chunk_log2: chunk.checked_ilog2().unwrap_or(0) as u8,
            spread: options.one_of("spread", &[("home", spread::HOME), ("wide", spread::WIDE)])?,
            placement: options
                .one_of("placement", &[("hash", placement::HASH), ("local", placement::LOCAL)])?,
            flags: flags(&options)?,
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
            backing: match options.0.contains_key("backing") {
                true => Some(options.value("backing")?),
                false => None,
            },
            backing_check_micros: options.value_or("backing-check", BACKING_CHECK_MICROS)?,
            backing_rate: options.value_or("backing-rate", 0)?,
            history: match options.0.contains_key("history") {
                true => options.one_of("history", &[("off", 0), ("noted", 1)])?,
                false => 0,
            },
            timeout_micros: options.value_or("timeout", TIMEOUT_MICROS)?,
        };
        settings.check(&options, chunk)?;
        Ok(settings)
    }

    /// How long a write waits for room: whoever sent it is answered before he gives up.
    pub(crate) fn patience_millis(&self) -> u32 {
        let micros = self.patience_micros.min(self.timeout_micros / 3 * 2);
        u32::try_from(micros / 1000).unwrap_or(u32::MAX)
    }

    /// How long a name below counts as known.
    pub(crate) fn check_nanos(&self) -> i64 {
        // Never is not meant, however long it is.
        let nanos = i64::try_from(self.backing_check_micros.saturating_mul(1000));
        nanos.unwrap_or(i64::MAX).min(i64::MAX - 1)
    }

    /// True if bytes of files that are written to can be saved before these are complete.
    pub(crate) fn has_drafts(&self) -> bool {
        self.backing.as_deref().is_some_and(|place| !is_bucket(place))
    }

    /// When pieces sink.
    pub(crate) fn sinking(&self) -> Sinking {
        if self.room == Some(0) {
            return Sinking::NEVER;
        }
        let now = self.thresholds().in_force(self.memory);
        Sinking {
            normal_below_bytes: now.normal_below_bytes,
            forced_below_bytes: now.forced_below_bytes,
            idle_millis: u32::try_from(self.idle_micros / 1000).unwrap_or(u32::MAX),
        }
    }

    /// What of that sets itself.
    pub(crate) fn thresholds(&self) -> Thresholds {
        let forced = if self.room == Some(0) { Some(0) } else { self.reserve };
        Thresholds::new(Given { normal: self.room, forced })
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
            ("memory-least", self.memory_least.is_none_or(|least| least <= self.memory)),
            ("ssd", self.ssd <= u64::MAX >> 1),
            ("room", self.room.is_none_or(|percent| percent <= 100)),
            ("reserve", self.reserve.is_none_or(|percent| percent <= 100)),
            ("inline", self.inline <= INLINE_BYTES_MAX),
            ("timeout", self.timeout_micros > 0),
            (
                "backing",
                self.backing.as_ref().is_none_or(|it| is_bucket(it) || it.starts_with('/')),
            ),
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
    fn what_was_found_below_holds_for_a_while() {
        let nanos = |more: &str| parse(&format!("{LINE} {more}")).expect("right").check_nanos();
        assert_eq!(nanos(""), 1_000_000_000);
        assert_eq!(nanos("--backing-check 1500"), 1_500_000);
        assert_eq!(nanos(&format!("--backing-check {}", u64::MAX)), i64::MAX - 1);
    }

    #[test]
    fn only_what_lies_below_is_written_to() {
        let written = |more: &str| {
            let flags = parse(&format!("{LINE} {more}")).expect("right").flags;
            Layout { flags, ..Layout::default() }.write_back()
        };
        assert_eq!((written(""), written("--write-back end")), (0, 0));
        assert_eq!(written("--backing /b"), write_back::CLOSE);
        assert_eq!(written("--backing s3://b"), write_back::CLOSE);
        assert_eq!(written("--backing /b --write-back cooling"), write_back::COOLING);
        let both = "--backing /b --write-back never --consistency posix";
        assert_eq!(written(both), write_back::NEVER);
        assert_ne!(parse(&format!("{LINE} {both}")).expect("right").flags & flag::POSIX, 0);
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
            (
                "--ssd 0",
                "--backing /b --write-back x --ssd 0",
                "option --write-back can not be \"x\"",
            ),
        ];
        for (from, to, message) in wrong {
            let line = LINE.replace(from, to);
            assert_eq!(parse(&line).map(drop), Err(message.to_owned()), "{line}");
        }
    }
}
