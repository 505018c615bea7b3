//! The table of settings.

use crate::choice::{
    Access, Consistency, LogLevel, MetadataSync, Monitoring, Placement, RemoteReads, RemoteWrites,
    RequestPath, SameDomain, Spread, Wire, WritebackMode, WritebackOrder, WritebackVerify,
};
use wire::limits::{INLINE_BYTES_MAX, MIB, STRIPE_LOG2_MAX, STRIPE_LOG2_MIN, WORKER_COUNT_MAX};

/// Which daemons and commands must use the same value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// The same on all daemons of an instance, for its lifetime.
    Instance,
    /// May differ between hosts.
    Node,
    /// Of one command or one program.
    Session,
}

/// The type of a value and what is allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Letters, digits, `-`, `_` and `.`, beginning with a letter or digit; at most 48 bytes,
    /// because it becomes part of paths.
    Name,
    /// An absolute path without `.` and `..`, other than `/` itself.
    Prefix,
    /// A path.
    Path,
    /// Paths separated by `:`.
    Paths,
    /// A command line, split into words as a shell does.
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
    /// Memory: bytes in `min..=max`, a percentage of the host's memory, a range of these, or
    /// `auto`.
    Memory {
        /// Least bytes; the lower end of a range may be smaller.
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

/// A setting, and its index in the table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(usize)]
#[allow(missing_docs, reason = "each row of the table says what it is")]
pub enum Key {
    Name,
    At,
    Hosts,
    Domains,
    Followers,
    MetadataSync,
    SameDomain,
    Replicas,
    Dir,
    Backing,
    BackingRevalidate,
    BackingRate,
    Writeback,
    WritebackOrder,
    WritebackVerify,
    Profile,
    Memory,
    Ssd,
    /// Free memory below which idle extents are demoted (Cn).
    DemoteLowWatermark,
    /// Free memory below which any extent is demoted (Cf).
    DemoteMinWatermark,
    DemoteIdleAge,
    EnospcTimeout,
    TieringRate,
    ScrubRate,
    StripeSize,
    Spread,
    SpreadEntries,
    Placement,
    Consistency,
    RemoteWrites,
    RemoteReads,
    Inline,
    Workers,
    MetadataShare,
    Listen,
    Port,
    Transport,
    Wire,
    Ssh,
    Timeout,
    Log,
    Access,
    Requests,
    Monitor,
    MonitorDb,
    MonitorKeep,
    MonitorSize,
}

/// One row.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Its index in the table.
    pub key: Key,
    /// Its key in the settings file and, after `--`, its option.
    pub name: &'static str,
    /// Its environment variable.
    pub variable: &'static str,
    /// The allowed values.
    pub kind: Kind,
    /// The default, as a user would write it; empty: none.
    pub default: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// Where it must be the same.
    pub scope: Scope,
    /// Its heading in `--help`; `None` for common settings.
    pub heading: Option<&'static str>,
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

/// Smallest arena of a daemon. A few stripes of the largest size would need 1 GiB, but small
/// instances in tests and containers use small stripes.
const MEMORY_BYTES_MIN: u64 = 16 * MIB;
/// Catches mistakes in the unit: no node has 1 PiB.
const SPACE_BYTES_MAX: u64 = 1 << 50;
const MINUTE_MICROS: u64 = 60_000_000;

const WRITEBACK: Kind = Kind::Choice(WritebackMode::WORDS);
const RATE: Kind =
    Kind::Size { min: MIB, max: SPACE_BYTES_MAX, zero: true, auto: false, power: false };
/// From 1 ms to an hour.
const DURATION: Kind = Kind::Duration { min: 1000, max: 60 * MINUTE_MICROS };
const PERCENT: Kind = Kind::Count { min: 0, max: 100, auto: true };

// Headings in `--help`.
const BACKING: &str = "Backing directory";
const TIERING: &str = "Tiering between memory and SSD";
const LAYOUT: &str = "Layout and consistency";
const DAEMONS: &str = "Hosts and daemons";
const HISTORY: &str = "History of jobs and load";

const fn row(key: Key, name: &'static str, variable: &'static str, kind: Kind) -> Setting {
    Setting {
        key,
        name,
        variable,
        kind,
        default: "",
        unit: "",
        scope: Scope::Instance,
        heading: None,
        help: "",
    }
}

impl Setting {
    const fn with(mut self, default: &'static str, unit: &'static str, scope: Scope) -> Setting {
        self.default = default;
        self.unit = unit;
        self.scope = scope;
        self
    }

    const fn under(mut self, heading: &'static str) -> Setting {
        self.heading = Some(heading);
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
pub const SETTINGS: [Setting; 47] = [
    row(Key::Name, "name", "FOREBAY_NAME", Kind::Name)
        .with("default", "", Scope::Session)
        .help("Name of the instance"),
    row(Key::At, "at", "FOREBAY_AT", Kind::Prefix)
        .with("/forebay", "", Scope::Session)
        .help("Directory under which programs see the instance; it need not exist"),
    row(Key::Hosts, "hosts", "FOREBAY_HOSTS", Kind::Path)
        .with("", "", Scope::Session)
        .under(DAEMONS)
        .help("File of hosts to start daemons on, one 'host[:daemons] [address]' per line"),
    row(Key::Domains, "domains", "FOREBAY_DOMAINS", Kind::Path)
        .with("", "", Scope::Instance)
        .under(DAEMONS)
        .help(
            "Failure domains: a file with 'host domain' on each line, or auto (each host is one; the \
             racks of Slurm if the hosts are in three or more). With it daemons agree on which of them \
             are alive, and 'forebay status' shows those that are not",
        ),
    row(Key::Followers, "followers", "FOREBAY_FOLLOWERS", Kind::Count { min: 0, max: 2, auto: false })
        .with("0", "followers", Scope::Instance)
        .under(DAEMONS)
        .help(
            "How many other daemons, each in another failure domain, keep a copy of the log of each \
             metadata service. Requires --domains",
        ),
    row(
        Key::MetadataSync,
        "metadata-sync",
        "FOREBAY_METADATA_SYNC",
        Kind::Choice(MetadataSync::WORDS),
    )
    .with("batch", "", Scope::Instance)
    .under(DAEMONS)
    .help(
        "When followers have a change of metadata: at fsync or sync, and 100 ms after it at the latest \
         (batch), or before the operation returns (always). With always no operation completes in \
         shared memory. Requires --followers",
    ),
    row(
        Key::SameDomain,
        "same-domain",
        "FOREBAY_SAME_DOMAIN",
        Kind::Choice(SameDomain::WORDS),
    )
    .with("off", "", Scope::Instance)
    .under(DAEMONS)
    .help(
        "Whether copies may be in one failure domain (on), as for tests on one host. Off: daemons in at \
         least as many failure domains as there are copies are required",
    ),
    row(Key::Replicas, "replicas", "FOREBAY_REPLICAS", Kind::Count { min: 1, max: 3, auto: false })
        .with("1", "copies", Scope::Instance)
        .under(DAEMONS)
        .help(
            "Copies of the bytes of each file, in different failure domains: with 2 or 3 a daemon may \
             die without loss of data, and what it had is copied anew. Files that were found in the \
             directory of --backing have one. Requires --domains and, for each copy but one, a \
             follower; not with a range as --memory",
        ),
    row(Key::Dir, "dir", "FOREBAY_DIR", Kind::Paths).with("", "", Scope::Node).help(
        "Directory for the SSD tier and the metadata log, $TMPDIR or /tmp if it is not set. Give one \
         directory on each SSD or HDD of the host, and its daemons use them in turn",
    ),
    row(Key::Backing, "backing", "FOREBAY_BACKING", Kind::Path)
        .with("", "", Scope::Instance)
        .under(BACKING)
        .help(
            "Directory of a mounted file system, the same path on all hosts: the instance shows its \
             files, and changes are written back to it. Or s3://BUCKET/PREFIX: the instance shows the \
             objects as files, and changes are written back as objects",
        ),
    row(Key::BackingRevalidate, "backing-revalidate", "FOREBAY_BACKING_REVALIDATE", DURATION)
        .with("1s", "time", Scope::Instance)
        .under(BACKING)
        .help(
            "How long a name that was looked up in the backing directory is trusted. After that, the \
             next open or listing checks the directory again and sees the changes of other programs",
        ),
    row(Key::BackingRate, "backing-rate", "FOREBAY_BACKING_RATE", RATE)
        .with("0", "bytes per second", Scope::Instance)
        .under(BACKING)
        .help(
            "Upper limit for the writeback and prefetch traffic of the whole instance with the backing \
             directory, per direction. Reads that a program waits for are not limited. 0: no limit",
        ),
    row(Key::Writeback, "writeback", "FOREBAY_WRITEBACK", WRITEBACK)
        .with("close", "", Scope::Instance)
        .under(BACKING)
        .help(
            "When changed files are written back to the backing directory: before close and fsync \
             return (through), when no program has them open for writing (close), when they have also \
             not changed for a while (idle), at flush and stop or when space is short (end), or never. \
             It is the mode of the root; new directories inherit it, and 'forebay layout' changes it",
        ),
    row(
        Key::WritebackOrder,
        "writeback-order",
        "FOREBAY_WRITEBACK_ORDER",
        Kind::Choice(WritebackOrder::WORDS),
    )
    .with("found", "", Scope::Instance)
    .under(BACKING)
    .help(
        "In which order new contents of files are written back: as they are found (found), or by sets \
         (sets), for backing stores that prefer few writers. Then files of one user in one directory are \
         a job, jobs that write about equally often are a set, one job of a set is written at a time, \
         and a set with ten times the period has a tenth of the bandwidth",
    ),
    row(
        Key::WritebackVerify,
        "writeback-verify",
        "FOREBAY_WRITEBACK_VERIFY",
        Kind::Choice(WritebackVerify::WORDS),
    )
    .with("length", "", Scope::Instance)
    .under(BACKING)
    .help(
        "The part of a file that is compared with the backing store before it counts as saved: its \
         length (length), or its contents as well (contents), which are read back. A file that differs \
         stays changed, is named by flush and stop, and is written again. Objects are uploaded with a \
         checksum in both cases; with contents each has a temporary name until it was read back",
    ),
    row(Key::Profile, "profile", "FOREBAY_PROFILE", Kind::Name)
        .with("", "", Scope::Instance)
        .under(BACKING)
        .help(
            "Name of a periodic job. Which files of the backing directory it reads, in which order, is \
             recorded under this name when the instance stops; the next instance with the name \
             prefetches them. auto: $SLURM_JOB_NAME, if it is set. Nothing is recorded without a name",
        ),
    row(Key::Memory, "memory", "FOREBAY_MEMORY", MEMORY)
        .with("auto", "bytes per daemon", Scope::Node)
        .help(
            "Memory for files. auto: a quarter of the available memory, at most three quarters of the \
             free space in /dev/shm, divided among the daemons of the host. 25%: this share of the \
             host's memory, divided in the same way. 1GiB..50%: at least and at most this much; in \
             between it follows half of the memory that programs leave idle and is given back when \
             they need it (requires an SSD)",
        ),
    row(Key::Ssd, "ssd", "FOREBAY_SSD", space(MEMORY_BYTES_MIN, true))
        .with("auto", "bytes per daemon", Scope::Node)
        .help(
            "Space for files in --dir, 0 for none. auto: 80 % of the free space there, divided among \
             the daemons of the host, at most 256GiB; none if the directory is in memory or on a \
             network file system",
        ),
    row(
        Key::DemoteLowWatermark,
        "demote-low-watermark",
        "FOREBAY_DEMOTE_LOW_WATERMARK",
        PERCENT,
    )
    .with("50", "percent of memory", Scope::Instance)
    .under(TIERING)
    .help(
        "When less than this percentage of a daemon's memory is free, idle data moves to its SSD in \
         the background, so that the next writes find free memory. 0: nothing is moved. auto: as much \
         as writers have needed so far",
    ),
    row(
        Key::DemoteMinWatermark,
        "demote-min-watermark",
        "FOREBAY_DEMOTE_MIN_WATERMARK",
        PERCENT,
    )
    .with("10", "percent of memory", Scope::Instance)
    .under(TIERING)
    .help(
        "When less than this percentage of a daemon's memory is free, the least recently used data \
         moves to the SSD even if it is in use. auto: derived from the low watermark and the measured \
         bandwidths of memory and SSD",
    ),
    row(Key::DemoteIdleAge, "demote-idle-age", "FOREBAY_DEMOTE_IDLE_AGE", DURATION)
        .with("500ms", "time", Scope::Instance)
        .under(TIERING)
        .help("Data that has not been used for this long counts as idle"),
    row(Key::EnospcTimeout, "enospc-timeout", "FOREBAY_ENOSPC_TIMEOUT", DURATION)
        .with("10s", "time", Scope::Instance)
        .under(TIERING)
        .help(
            "How long a write waits while space is being freed for it, at most two thirds of --timeout. \
             After that, or at once if no space can be freed, it fails with ENOSPC",
        ),
    row(Key::TieringRate, "tiering-rate", "FOREBAY_TIERING_RATE", RATE)
        .with("0", "bytes per second per daemon", Scope::Instance)
        .under(TIERING)
        .help(
            "Upper limit for what a daemon moves in the background between memory, SSD and the memory \
             of other nodes. It does not apply while a program waits for the move; a writer that finds \
             memory full writes to the SSD directly. 0: no limit",
        ),
    row(Key::ScrubRate, "scrub-rate", "FOREBAY_SCRUB_RATE", RATE)
        .with("8MiB", "bytes per second per daemon", Scope::Instance)
        .under(TIERING)
        .help(
            "Rate at which a daemon reads its data on the SSD in the background and compares the \
             checksums, so that damage is found before a program meets it. 0: it does not",
        ),
    row(
        Key::StripeSize,
        "stripe-size",
        "FOREBAY_STRIPE_SIZE",
        Kind::Size {
            min: 1 << STRIPE_LOG2_MIN,
            max: 1 << STRIPE_LOG2_MAX,
            zero: false,
            auto: false,
            power: true,
        },
    )
    .with("4MiB", "bytes", Scope::Instance)
    .under(LAYOUT)
    .help(
        "Unit in which files are spread over daemons, unless 'forebay layout' sets another one for a \
         directory",
    ),
    row(Key::Spread, "spread", "FOREBAY_SPREAD", Kind::Choice(Spread::WORDS))
        .with("home", "", Scope::Instance)
        .under(LAYOUT)
        .help(
            "Where the entries of a directory are: on one daemon (home), on all of them (wide), or on \
             one and, while the directory is used, on all once it has grown (auto)",
        ),
    row(
        Key::SpreadEntries,
        "spread-entries",
        "FOREBAY_SPREAD_ENTRIES",
        Kind::Count { min: 16, max: 65_536, auto: false },
    )
    .with("4096", "entries", Scope::Instance)
    .under(LAYOUT)
    .help("With --spread auto: a directory is spread over all daemons once it has so many entries"),
    row(Key::Placement, "placement", "FOREBAY_PLACEMENT", Kind::Choice(Placement::WORDS))
        .with("hash", "", Scope::Instance)
        .under(LAYOUT)
        .help(
            "Where the stripes of a file are: on all daemons (hash) or on the writer's own (local), \
             unless 'forebay layout' says otherwise for a directory",
        ),
    row(Key::Consistency, "consistency", "FOREBAY_CONSISTENCY", Kind::Choice(Consistency::WORDS))
        .with("relaxed", "", Scope::Instance)
        .under(LAYOUT)
        .help(
            "When hosts see each other's changes: sizes at the writer's close or fsync (relaxed), or \
             everything at once (posix). It is the mode of the root; new files and directories inherit \
             it, and 'forebay layout' changes it",
        ),
    row(
        Key::RemoteWrites,
        "remote-writes",
        "FOREBAY_REMOTE_WRITES",
        Kind::Choice(RemoteWrites::WORDS),
    )
    .with("through", "", Scope::Instance)
    .under(LAYOUT)
    .help(
        "Writes to other hosts, and with --replicas to files with copies wherever these are, return when \
         the data has arrived (through) or before (behind). With behind, other hosts see the data after \
         the writer's close or fsync, which wait until all copies have it",
    ),
    row(
        Key::RemoteReads,
        "remote-reads",
        "FOREBAY_REMOTE_READS",
        Kind::Choice(RemoteReads::WORDS),
    )
    .with("demand", "", Scope::Instance)
    .under(LAYOUT)
    .help(
        "Data of other hosts is fetched when a program reads it (demand), or ahead of a program that \
         reads a file from its start (readahead). With readahead it may be a second old",
    ),
    row(
        Key::Inline,
        "inline",
        "FOREBAY_INLINE",
        Kind::Size { min: 0, max: INLINE_BYTES_MAX as u64, zero: true, auto: false, power: false },
    )
    .with("4KiB", "bytes", Scope::Instance)
    .under(LAYOUT)
    .help("Files of other hosts up to this size are kept beside their attributes; 0 for none"),
    row(
        Key::Workers,
        "workers",
        "FOREBAY_WORKERS",
        Kind::Count { min: 1, max: WORKER_COUNT_MAX as u64, auto: true },
    )
    .with("auto", "threads per daemon", Scope::Instance)
    .under(DAEMONS)
    .help("Threads that serve requests. auto: half of the host's CPUs per daemon, 1 to 4"),
    row(
        Key::MetadataShare,
        "metadata-share",
        "FOREBAY_METADATA_SHARE",
        Kind::Count { min: 10, max: 90, auto: false },
    )
    .with("50", "percent of a worker's time", Scope::Instance)
    .under(DAEMONS)
    .help(
        "Part of the time of a thread that serves requests which those for names and attributes get \
         while requests for data wait there, too. The time that one kind does not need goes to the other",
    ),
    row(Key::Listen, "listen", "FOREBAY_LISTEN", Kind::Address)
        .with("", "", Scope::Node)
        .under(DAEMONS)
        .help(
            "Address on which daemons listen for each other. Default: 127.0.0.1, or with --hosts the \
             address of the host's name",
        ),
    row(Key::Port, "port", "FOREBAY_PORT", Kind::Count { min: 0, max: 64_000, auto: false })
        .with("0", "", Scope::Instance)
        .under(DAEMONS)
        .help("Daemon i listens on this TCP port plus i; 0: on any free port"),
    row(Key::Transport, "transport", "FOREBAY_TRANSPORT", Kind::Transport)
        .with("tcp", "", Scope::Instance)
        .under(DAEMONS)
        .help(
            "Transport for file data between hosts: tcp, or RDMA by libfabric with its best provider or \
             the one named; hosts without it use TCP",
        ),
    row(Key::Wire, "wire", "FOREBAY_WIRE", Kind::Choice(Wire::WORDS))
        .with("authenticated", "", Scope::Instance)
        .under(DAEMONS)
        .help(
            "Protection between hosts: authenticated (no byte by TCP can be changed, repeated or added; \
             file data by RDMA can), encrypted (also unreadable, and no RDMA), or trusted (none after \
             the daemons have proven the secret: for networks that only trusted users reach)",
        ),
    row(Key::Ssh, "ssh", "FOREBAY_SSH", Kind::Command)
        .with("ssh", "", Scope::Session)
        .under(DAEMONS)
        .help("Command that runs another command on a host; host and command are appended to it"),
    row(
        Key::Timeout,
        "timeout",
        "FOREBAY_TIMEOUT",
        Kind::Duration { min: 100_000, max: 60 * MINUTE_MICROS },
    )
    .with("30s", "time", Scope::Instance)
    .help("Limit on every wait: of this command, and of programs for a daemon"),
    row(Key::Log, "log", "FOREBAY_LOG", Kind::Choice(LogLevel::WORDS))
        .with("info", "", Scope::Node)
        .under(DAEMONS)
        .help("Level of the daemons' logs"),
    row(Key::Access, "access", "FOREBAY_ACCESS", Kind::Choice(Access::WORDS))
        .with("auto", "", Scope::Session)
        .help(
            "How a command sees the instance: mount (on --at, for all programs), preload (faster, for \
             programs that use the C library), or auto (both, as far as this host allows)",
        ),
    row(
        Key::Requests,
        "requests",
        "FOREBAY_REQUESTS",
        Kind::Choice(RequestPath::WORDS),
    )
    .with("auto", "", Scope::Session)
    .help(
        "How the kernel passes requests to a mount: rings (FUSE over io_uring, if the kernel module fuse \
         has enable_uring=Y), classic (/dev/fuse), or auto (rings where they are available)",
    ),
    row(Key::Monitor, "monitor", "FOREBAY_MONITOR", Kind::Choice(Monitoring::WORDS))
        .with("on", "", Scope::Session)
        .under(HISTORY)
        .help(
            "Whether 'forebay start' also starts a process that records the instance in the history: on \
             or off",
        ),
    row(Key::MonitorDb, "monitor-db", "FOREBAY_MONITOR_DB", Kind::Path)
        .with("", "", Scope::Session)
        .under(HISTORY)
        .help(
            "File of the history of jobs, load and events, or postgres://USER@HOST/DATABASE for a \
             server of the site, whose password is in ~/.pgpass or the file that PGPASSFILE names. \
             Default: $XDG_DATA_HOME/forebay/history.db, or ~/.local/share/forebay/history.db",
        ),
    row(
        Key::MonitorKeep,
        "monitor-keep",
        "FOREBAY_MONITOR_KEEP",
        Kind::Count { min: 1, max: 36_500, auto: false },
    )
    .with("30", "days", Scope::Session)
    .under(HISTORY)
    .help(
        "How long jobs, advice, events and figures of each minute are kept. Those of each second are \
         kept for an hour",
    ),
    row(
        Key::MonitorSize,
        "monitor-size",
        "FOREBAY_MONITOR_SIZE",
        Kind::Size { min: MIB, max: SPACE_BYTES_MAX, zero: false, auto: false, power: false },
    )
    .with("256MiB", "bytes", Scope::Session)
    .under(HISTORY)
    .help("Largest size of the file of the history; when it is reached, the oldest entries go"),
];
