//! The table of settings.

use wire::limits::{CHUNK_LOG2_MAX, CHUNK_LOG2_MIN, INLINE_BYTES_MAX, MIB, WORKER_COUNT_MAX};

/// What a value must agree on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// Alike on all daemons of an instance, for its life.
    Instance,
    /// May differ between hosts.
    Node,
    /// Of one command or one program.
    Session,
}

/// The type of a value and what is allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Letters, digits, `-`, `_` and `.`, not first; at most 48 bytes: it becomes part of paths.
    Name,
    /// An absolute path without `.` and `..`, not `/` itself.
    Prefix,
    /// A path.
    Path,
    /// Paths with `:` between them.
    Paths,
    /// Words of a command, split as a shell does.
    Command,
    /// An IP address.
    Address,
    /// `tcp`, `libfabric`, or `libfabric:` and the name of a provider.
    Transport,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Bytes in `min..=max`, or 0 if `zero`.
    Size {
        /// Least bytes.
        min: u64,
        /// Most bytes.
        max: u64,
        /// 0 is allowed too: none.
        zero: bool,
        /// `auto` is allowed too.
        auto: bool,
        /// Only powers of two.
        power: bool,
    },
    /// Memory: bytes in `min..=max`, a part of the host's, a range of these, or `auto`.
    Memory {
        /// Least bytes; a range may begin with less.
        min: u64,
        /// Most bytes.
        max: u64,
    },
    /// A number in `min..=max`.
    Count {
        /// Least.
        min: u64,
        /// Most.
        max: u64,
        /// `auto` is allowed too.
        auto: bool,
    },
    /// Microseconds in `min..=max`.
    Duration {
        /// Least.
        min: u64,
        /// Most.
        max: u64,
    },
}

/// A setting's place in the table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(usize)]
#[allow(missing_docs, reason = "each row of the table says what it is")]
pub enum Key {
    Name,
    At,
    Hosts,
    Dir,
    /// The directory whose tree the root shows.
    Backing,
    /// How long what lies there counts as known.
    BackingCheck,
    /// How fast the backing directory is used in the background.
    BackingRate,
    /// When the backing directory is written to.
    WriteBack,
    /// Which history of files that are read is followed and kept.
    History,
    Memory,
    Ssd,
    /// Free memory below which idle files sink (Cn).
    Room,
    /// Free memory below which any do (Cf).
    Reserve,
    /// When a file is idle.
    Idle,
    /// How long a write waits for room.
    Patience,
    /// How fast files move between tiers.
    MoveRate,
    Chunk,
    Spread,
    Placement,
    /// What hosts see of each other's changes.
    Consistency,
    Writes,
    /// `reads`.
    Reads,
    Inline,
    Workers,
    Listen,
    Port,
    Transport,
    Ssh,
    Timeout,
    Log,
    Requests,
}

/// One row.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Where it stands.
    pub key: Key,
    /// Its key in the settings file and, behind `--`, its option.
    pub name: &'static str,
    /// Its environment variable.
    pub variable: &'static str,
    /// What is allowed.
    pub kind: Kind,
    /// The default as one would write it; empty: none.
    pub default: &'static str,
    /// What it counts in.
    pub unit: &'static str,
    /// What must agree on it.
    pub scope: Scope,
    /// One line for people.
    pub help: &'static str,
}

impl Setting {
    /// The row of `key`.
    #[must_use]
    pub const fn of(key: Key) -> &'static Setting {
        &SETTINGS[key as usize]
    }
}

/// Least arena of a daemon: room for a few chunks of the largest size would be 1 GiB, but small
/// instances in tests and containers use small chunks.
const MEMORY_BYTES_MIN: u64 = 16 * MIB;
/// A bound that catches slips of the unit: no node has 1 PiB.
const SPACE_BYTES_MAX: u64 = 1 << 50;
const MINUTE_MICROS: u64 = 60_000_000;

const WRITE_BACK: Kind = Kind::Choice(&["through", "close", "cooling", "end", "never"]);
const RATE: Kind =
    Kind::Size { min: MIB, max: SPACE_BYTES_MAX, zero: true, auto: false, power: false };
/// From 1 ms on.
const WHILE: Kind = Kind::Duration { min: 1000, max: 60 * MINUTE_MICROS };
const PERCENT: Kind = Kind::Count { min: 0, max: 100, auto: true };

const fn row(key: Key, name: &'static str, variable: &'static str, kind: Kind) -> Setting {
    Setting { key, name, variable, kind, default: "", unit: "", scope: Scope::Instance, help: "" }
}

impl Setting {
    const fn with(mut self, default: &'static str, unit: &'static str, scope: Scope) -> Setting {
        self.default = default;
        self.unit = unit;
        self.scope = scope;
        self
    }

    const fn help(mut self, help: &'static str) -> Setting {
        self.help = help;
        self
    }
}

const MEMORY: Kind = Kind::Memory { min: MEMORY_BYTES_MIN, max: SPACE_BYTES_MAX };

const fn space(min: u64, zero: bool) -> Kind {
    Kind::Size { min, max: SPACE_BYTES_MAX, zero, auto: true, power: false }
}

/// All settings, in the order of `Key`.
pub const SETTINGS: [Setting; 31] = [
    row(Key::Name, "name", "FOREBAY_NAME", Kind::Name)
        .with("default", "", Scope::Session)
        .help("Name of the instance"),
    row(Key::At, "at", "FOREBAY_AT", Kind::Prefix)
        .with("/forebay", "", Scope::Session)
        .help("Directory below which programs see the instance; it need not exist"),
    row(Key::Hosts, "hosts", "FOREBAY_HOSTS", Kind::Path)
        .with("", "", Scope::Session)
        .help("File of hosts to start daemons on: a line 'host[:daemons] [address]' each"),
    row(Key::Dir, "dir", "FOREBAY_DIR", Kind::Paths).with("", "", Scope::Node).help(
        "Directory for the SSD target and the log of metadata; without it $TMPDIR, else /tmp; or one on \
         each SSD or HDD of a host, which its daemons take in turn",
    ),
    row(Key::Backing, "backing", "FOREBAY_BACKING", Kind::Path)
        .with("", "", Scope::Instance)
        .help(
            "Directory of a mounted file system, the same on all hosts, whose tree the instance shows; \
             what is made and changed is saved there. Or s3://BUCKET/PREFIX, whose objects it shows as \
             files, and where it is saved as objects",
        ),
    row(Key::BackingCheck, "backing-check", "FOREBAY_BACKING_CHECK", WHILE)
    .with("1s", "time", Scope::Instance)
    .help(
        "So long what was found by a name in the backing directory holds; who opens it after that has it \
         looked for there again, and sees what others changed meanwhile; so does who lists a directory",
    ),
    row(Key::BackingRate, "backing-rate", "FOREBAY_BACKING_RATE", RATE)
        .with("0", "bytes a second", Scope::Instance)
        .help(
            "So much a second of the backing directory's bandwidth the whole instance takes at most, \
             each way, to save files and to bring up what is to be read (forebay stage, --history); \
             what a program reads comes as fast as it can; 0: no bound",
        ),
    row(Key::WriteBack, "write-back", "FOREBAY_WRITE_BACK", WRITE_BACK)
        .with("close", "", Scope::Instance)
        .help(
            "When files are saved in the backing directory: before close and fsync return (through), \
             when nobody has them open to write (close), when they were not changed for a while besides \
             (cooling), at flush and stop or for want of room (end), or never; of the root, and of \
             directories made below unless one is set otherwise (forebay layout)",
        ),
    row(Key::History, "history", "FOREBAY_HISTORY", Kind::Name)
        .with("", "", Scope::Instance)
        .help(
            "Name of a periodic job: which files of the backing directory are read, and in which order, \
             is noted under it at the end, and next time these come up before they are asked for; auto: \
             $SLURM_JOB_NAME, if that is set; without it nothing is noted",
        ),
    row(Key::Memory, "memory", "FOREBAY_MEMORY", MEMORY)
        .with("auto", "bytes per daemon", Scope::Node)
        .help(
            "Memory for files; auto: a quarter of what is available (at most three quarters of \
             what is free in /dev/shm), divided by the daemons of the host; 25%: so much of the \
             host's, divided so; 1GiB..50%: at least and at most so much, and in between half of what \
             programs leave idle, given back as they take it (this needs an SSD)",
        ),
    row(Key::Ssd, "ssd", "FOREBAY_SSD", space(MEMORY_BYTES_MIN, true))
        .with("auto", "bytes per daemon", Scope::Node)
        .help(
            "Space for files in dir, 0 for none; auto: 80 % of what is free there, divided by \
             the daemons of the host, at most 256GiB; none where dir is in memory or on a network",
        ),
    row(Key::Room, "room", "FOREBAY_ROOM", PERCENT)
        .with("50", "percent of memory", Scope::Instance)
        .help(
            "While less of a daemon's memory is free, parts of files that are idle move to its SSD \
             in the background, so that who writes next finds room; 0: nothing moves; auto: so much as \
             writers were seen to need",
        ),
    row(Key::Reserve, "reserve", "FOREBAY_RESERVE", PERCENT)
        .with("10", "percent of memory", Scope::Instance)
        .help(
            "While less than this is free, what is least recently used moves, idle or not; auto: it \
             follows from room, and from how fast memory and SSD were seen to be",
        ),
    row(Key::Idle, "idle", "FOREBAY_IDLE", WHILE)
    .with("500ms", "time", Scope::Instance)
    .help("What was not used for so long is idle"),
    row(Key::Patience, "patience", "FOREBAY_PATIENCE", WHILE)
    .with("10s", "time", Scope::Instance)
    .help(
        "How long a write waits for space at most, while something is on its way to make some (at most \
         two thirds of timeout); else, and then, it fails with ENOSPC",
    ),
    row(Key::MoveRate, "move-rate", "FOREBAY_MOVE_RATE", RATE)
        .with("0", "bytes a second per daemon", Scope::Instance)
        .help(
            "So much a second a daemon moves between memory, SSD and other nodes' memory at most, as \
             long as nobody waits for it: who finds memory full writes to the SSD meanwhile; 0: no bound",
        ),
    row(
        Key::Chunk,
        "chunk",
        "FOREBAY_CHUNK",
        Kind::Size {
            min: 1 << CHUNK_LOG2_MIN,
            max: 1 << CHUNK_LOG2_MAX,
            zero: false,
            auto: false,
            power: true,
        },
    )
    .with("4MiB", "bytes", Scope::Instance)
    .help(
        "Size of the parts that files are cut into to be spread over daemons, unless a directory is \
         set otherwise (forebay layout)",
    ),
    row(Key::Spread, "spread", "FOREBAY_SPREAD", Kind::Choice(&["home", "wide"]))
        .with("home", "", Scope::Instance)
        .help("Entries of a directory: together on one daemon (home) or over all of them (wide)"),
    row(Key::Placement, "placement", "FOREBAY_PLACEMENT", Kind::Choice(&["hash", "local"]))
        .with("hash", "", Scope::Instance)
        .help(
            "Chunks of a file: over all daemons (hash) or on the writer's own (local), unless a \
             directory is set otherwise (forebay layout)",
        ),
    row(Key::Consistency, "consistency", "FOREBAY_CONSISTENCY", Kind::Choice(&["relaxed", "posix"]))
        .with("relaxed", "", Scope::Instance)
        .help(
            "What hosts see of each other's changes: sizes at the writer's close or fsync (relaxed), or \
             all at once (posix); of the root, and of what is made below unless a directory is set \
             otherwise",
        ),
    row(Key::Writes, "writes", "FOREBAY_WRITES", Kind::Choice(&["through", "behind"]))
        .with("through", "", Scope::Instance)
        .help(
            "Writes to other hosts return when they have arrived (through) or before (behind): \
             then other hosts see them after the writer's close or fsync",
        ),
    row(Key::Reads, "reads", "FOREBAY_READS", Kind::Choice(&["asked", "ahead"]))
        .with("asked", "", Scope::Instance)
        .help(
            "Bytes of other hosts are read when they are asked for (asked), or before, for who reads a \
             file from its beginning on (ahead): they may be a second old then",
        ),
    row(
        Key::Inline,
        "inline",
        "FOREBAY_INLINE",
        Kind::Size { min: 0, max: INLINE_BYTES_MAX as u64, zero: true, auto: false, power: false },
    )
    .with("4KiB", "bytes", Scope::Instance)
    .help("Files of other hosts up to this size are kept beside their attributes; 0 for none"),
    row(
        Key::Workers,
        "workers",
        "FOREBAY_WORKERS",
        Kind::Count { min: 1, max: WORKER_COUNT_MAX as u64, auto: true },
    )
    .with("auto", "threads per daemon", Scope::Instance)
    .help("Threads that serve requests; auto: half of the host's processors by daemon, 1 to 4"),
    row(Key::Listen, "listen", "FOREBAY_LISTEN", Kind::Address).with("", "", Scope::Node).help(
        "Address for the other daemons; without it 127.0.0.1, with --hosts the address that \
             the host's name has",
    ),
    row(Key::Port, "port", "FOREBAY_PORT", Kind::Count { min: 0, max: 64_000, auto: false })
        .with("0", "", Scope::Instance)
        .help("Daemon number i listens on this TCP port plus i; 0: on any that is free"),
    row(Key::Transport, "transport", "FOREBAY_TRANSPORT", Kind::Transport)
        .with("tcp", "", Scope::Instance)
        .help(
            "Way of files' bytes between hosts: TCP, or the memory access of a fabric by libfabric \
             with its best provider or the one that is named; where it is not there, TCP",
        ),
    row(Key::Ssh, "ssh", "FOREBAY_SSH", Kind::Command)
        .with("ssh", "", Scope::Session)
        .help("Command that runs another on a host: host and command are appended to it"),
    row(
        Key::Timeout,
        "timeout",
        "FOREBAY_TIMEOUT",
        Kind::Duration { min: 100_000, max: 60 * MINUTE_MICROS },
    )
    .with("30s", "time", Scope::Instance)
    .help("Bound on every wait: of this command, and of programs for a daemon"),
    row(Key::Log, "log", "FOREBAY_LOG", Kind::Choice(&["error", "warn", "info", "debug", "trace"]))
        .with("info", "", Scope::Node)
        .help("How much the daemons write to their logs"),
    row(
        Key::Requests,
        "requests",
        "FOREBAY_REQUESTS",
        Kind::Choice(&["auto", "rings", "classic"]),
    )
    .with("auto", "", Scope::Session)
    .help(
        "Way of the kernel's requests to a mount: rings (FUSE over io_uring), which the kernel offers \
         if its module fuse has enable_uring=Y; classic (/dev/fuse); auto: rings where they can be had",
    ),
];
