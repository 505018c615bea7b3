//! Command line of the benchmark.

use crate::measure::quiet;

/// Output of `--help`.
pub(crate) const HELP: &str = "\
forebay-bench: measures file systems side by side, with interleaved repetitions.

  forebay-bench [OPTION]...
  --on NAME=DIR          measure in a new directory under DIR (repeatable)
  --through NAME=COMMAND start the programs of NAME by this command, split at spaces
  --forebay DAEMONS      start an instance of this many daemons here and measure it (repeatable)
  --mount DAEMONS        as --forebay, but mounted, twice: with each way of passing kernel requests,
                         classic and rings, if the kernel offers them (repeatable)
  --forebay-bin FILE     the program forebay (default: FOREBAY_BIN, then beside this one, then PATH)
  --only LIST            groups of tests (default: all groups listed below)
  --seldom LIST          file systems and groups that only the first repetition measures
  --repetitions N        default 5
  --processes LIST       worker processes of metadata and own, default 1,2,16; the other groups use
                         only numbers up to 2. More than 2 processes share the work of 2.
  --files N              files per process in the metadata tests, default 10000
  --entries N            entries of the directory that is listed, default 100000
  --megabytes N          MiB per process in the data tests, default 64
  --hosts LIST           numbers of hosts in scaling, default 1,2,4,8,16
  --seconds N            duration of the slow request in shares, default 10; its other loads take a third;
                         time after a death in replicas; windows of growth take half of it
  --settle MILLISECONDS  longest wait for a quiet machine before each measurement, default 1000
  --json FILE            also write all values to FILE
  --history FILE         append a line of JSON with the date, the commit, the targets and all medians
  --plot FILE            plot the history as an SVG
  --check FILE           compare each ratio with a reference, list what is worse by more than its
                         spread, and fail if anything is
  --reference FILE       write the ratios as a reference, and widen the spreads of the one that is there

  forebay-bench plot HISTORY FILE
                         plot a history as an SVG

Groups that run on each file system:
  metadata  files in one directory: create, stat, open+close, list, unlink; the same with 3901 bytes
  list      one long directory, listed with the attributes of each entry
  own       blocks of 1 MiB, 64 KiB and 8 KiB in a file per process; 8 KiB at random in it
  shared    the same in one file for all processes
  hard-own, hard-shared
            blocks of 47008 bytes, in a file per process and interleaved in one file for all
  io500     the phases of IO500 in its order with their scores, by IOR and mdtest if they are on PATH,
            else by own workers; find always by own workers. Not an official score: phases and sizes
            are small
  fio, mpi  fio, mdtest and IOR, if they are on PATH
  In metadata, list, own, shared and hard, phases that change nothing (and random 8 KiB writes) repeat
  for at least a tenth of a second.
Groups that run once, on instances of their own:
  profile   client instructions of each operation, by callgrind
  remote    two hosts, emulated by network namespaces (needs root): metadata on the remote host against
            socket round trips, 4 MiB blocks against iperf3, or else against own sockets
  two-mounts
            the same two hosts, each with a mount, in mode posix: a byte written on one and read on the
            other, and blocks interleaved in one file against a file each
  scaling   1 to 16 hosts with 5 % of a CPU each for their daemon and their programs together (needs
            root and cgroups), each in a directory of its own; and, without a limit, all in one
            directory spread over all daemons: work per CPU second
  shares    five hosts, emulated by network namespaces, each of which sends 200 Mbit/s (needs root and
            tc): jobs that read files of other hosts, with a rule of forebay qos and without
  followers three hosts, emulated by network namespaces (needs root): metadata on the own host, without
            followers and with one, by either --metadata-sync
  replicas  five hosts, emulated by network namespaces (needs root and tc), with one copy of all data
            and with two: calls while a host dies, or two; bytes over links of 200 Mbit/s; how fast 64
            times --megabytes are copied anew
  growth    eight hosts, emulated by network namespaces (needs root and cgroups), each with a tenth of a
            CPU: an instance on four of them grows to eight and returns to four while programs work on
            names and bytes; and a host that serves everything gives half of it to another one

The file system named tmpfs, or else the first one, is the baseline of the others. The last table
compares the results with the targets for instances of one and four daemons: give --forebay 1,
--forebay 4 and a tmpfs to measure all of them.";

/// One file system to measure.
#[derive(Clone, Debug)]
pub(crate) struct FileSystem {
    pub(crate) name: String,
    pub(crate) directory: String,
    /// Command prefix of each program; empty for a mounted file system.
    pub(crate) through: Vec<String>,
}

/// The parsed command line.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) systems: Vec<FileSystem>,
    /// Numbers of daemons of the instances to start.
    pub(crate) instances: Vec<u32>,
    /// Numbers of daemons of the instances to start and mount.
    pub(crate) mounts: Vec<u32>,
    pub(crate) forebay: String,
    pub(crate) processes: Vec<u32>,
    pub(crate) repetitions: u32,
    pub(crate) files: u64,
    pub(crate) entries: u64,
    pub(crate) megabytes: u64,
    pub(crate) groups: Vec<String>,
    /// Numbers of emulated hosts.
    pub(crate) hosts: Vec<u32>,
    /// Duration of the slow request in the group `shares`, of the time after a death in `replicas`, and
    /// of two windows in `growth`.
    pub(crate) seconds: u64,
    /// Longest wait for a quiet machine, in milliseconds.
    pub(crate) settle_millis: u64,
    /// File systems and groups that only the first repetition measures.
    pub(crate) seldom: Vec<String>,
    pub(crate) json: Option<String>,
    pub(crate) history: Option<String>,
    pub(crate) plot: Option<String>,
    /// File to compare the ratios of this run with.
    pub(crate) check: Option<String>,
    /// File to write or widen with the ratios of this run.
    pub(crate) reference: Option<String>,
}

/// The groups of tests, in the order in which they run.
const GROUPS: [&str; 17] = [
    "metadata",
    "list",
    "own",
    "shared",
    "hard-own",
    "hard-shared",
    "io500",
    "fio",
    "mpi",
    "profile",
    "remote",
    "two-mounts",
    "scaling",
    "shares",
    "followers",
    "replicas",
    "growth",
];
/// Groups that run once, on instances of their own.
const STANDALONE_GROUPS: [&str; 8] =
    ["profile", "remote", "two-mounts", "scaling", "shares", "followers", "replicas", "growth"];

/// Above this number of processes the total work stays constant: 16 processes do the same work as
/// 2.
const PROCESSES_WITH_FULL_WORK: u32 = 2;

impl Settings {
    /// Parses the command line. The error names the wrong word.
    pub(crate) fn parse(words: &[String]) -> Result<Settings, String> {
        let mut settings = Settings {
            systems: Vec::new(),
            instances: Vec::new(),
            mounts: Vec::new(),
            forebay: forebay_program(),
            processes: vec![1, 2, 16],
            repetitions: 5,
            files: 10_000,
            entries: 100_000,
            megabytes: 64,
            groups: GROUPS.map(String::from).to_vec(),
            hosts: vec![1, 2, 4, 8, 16],
            seconds: 10,
            settle_millis: quiet::WAIT_MILLIS_MAX,
            seldom: Vec::new(),
            json: None,
            history: None,
            plot: None,
            check: None,
            reference: None,
        };
        let mut words = words.iter();
        while let Some(option) = words.next() {
            let value =
                words.next().ok_or_else(|| format!("{option} needs a value; see --help"))?;
            settings.take(option, value)?;
        }
        let is_placeless = settings.systems.is_empty()
            && settings.instances.is_empty()
            && settings.mounts.is_empty();
        if is_placeless && settings.groups_per_system().next().is_some() {
            return Err(
                "nothing to measure: give --on NAME=DIR, --forebay or --mount DAEMONS".into()
            );
        }
        if settings.plot.is_some() && settings.history.is_none() {
            return Err("--plot needs --history FILE".into());
        }
        Ok(settings)
    }

    fn take(&mut self, option: &str, value: &str) -> Result<(), String> {
        match option {
            "--on" => {
                let (name, directory) = pair(option, value)?;
                self.systems.push(FileSystem { name, directory, through: Vec::new() });
            }
            "--through" => {
                let (name, command) = pair(option, value)?;
                let system = self.systems.iter_mut().find(|system| system.name == name);
                let system = system
                    .ok_or_else(|| format!("--through {name}: give --on {name}=DIR before it"))?;
                system.through = command.split_whitespace().map(String::from).collect();
            }
            "--forebay" => self.instances.push(number(option, value)?),
            "--mount" => self.mounts.push(number(option, value)?),
            "--forebay-bin" => self.forebay = value.into(),
            "--processes" => self.processes = numbers(option, value)?,
            "--hosts" => self.hosts = numbers(option, value)?,
            "--seconds" => self.seconds = number(option, value)?,
            "--settle" => self.settle_millis = number(option, value)?,
            "--repetitions" => self.repetitions = number(option, value)?,
            "--files" => self.files = number(option, value)?,
            "--entries" => self.entries = number(option, value)?,
            "--megabytes" => self.megabytes = number(option, value)?,
            "--only" => self.groups = groups(value)?,
            "--seldom" => self.seldom = value.split(',').map(String::from).collect(),
            "--json" => self.json = Some(value.into()),
            "--history" => self.history = Some(value.into()),
            "--plot" => self.plot = Some(value.into()),
            "--check" => self.check = Some(value.into()),
            "--reference" => self.reference = Some(value.into()),
            _ => return Err(format!("unknown option {option}; see --help")),
        }
        Ok(())
    }

    /// The groups that run on each file system.
    pub(crate) fn groups_per_system(&self) -> impl Iterator<Item = &String> {
        self.groups.iter().filter(|group| !STANDALONE_GROUPS.contains(&group.as_str()))
    }

    /// The numbers of processes with which a group is measured.
    pub(crate) fn process_counts(&self, group: &str) -> Vec<u32> {
        match group {
            "metadata" | "own" => self.processes.clone(),
            // Listing needs one process, sharing needs two.
            "list" => vec![1],
            "hard-own" | "hard-shared" | "io500" => vec![PROCESSES_WITH_FULL_WORK],
            _ => {
                let few = self.processes.iter().filter(|&&n| n <= PROCESSES_WITH_FULL_WORK);
                few.copied().collect()
            }
        }
    }

    /// Files that each of `processes` workers creates.
    pub(crate) fn files_per_process(&self, group: &str, processes: u32) -> u64 {
        if group == "list" { self.entries } else { part(self.files, processes) }
    }

    /// MiB that each of `processes` workers writes.
    pub(crate) fn megabytes_per_process(&self, processes: u32) -> u64 {
        part(self.megabytes, processes)
    }
}

/// Share of one process, where `amount` is the share of each of two processes.
fn part(amount: u64, processes: u32) -> u64 {
    let sharing = u64::from(processes.max(PROCESSES_WITH_FULL_WORK));
    (amount * u64::from(PROCESSES_WITH_FULL_WORK) / sharing).max(1)
}

fn groups(value: &str) -> Result<Vec<String>, String> {
    let selected: Vec<String> = value.split(',').map(String::from).collect();
    match selected.iter().find(|group| !GROUPS.contains(&group.as_str())) {
        Some(_) => Err(format!("--only {value}: the groups are {}", GROUPS.join(","))),
        None => Ok(selected),
    }
}

fn pair(option: &str, value: &str) -> Result<(String, String), String> {
    let (name, rest) =
        value.split_once('=').ok_or_else(|| format!("{option} {value}: expected NAME=..."))?;
    Ok((name.into(), rest.into()))
}

/// Parses a number above zero.
fn number<T: std::str::FromStr + PartialOrd + From<u8>>(
    option: &str,
    value: &str,
) -> Result<T, String> {
    match value.parse::<T>() {
        Ok(number) if number >= T::from(1) => Ok(number),
        _ => Err(format!("{option} {value}: expected a number above 0")),
    }
}

fn numbers(option: &str, value: &str) -> Result<Vec<u32>, String> {
    value.split(',').map(|word| number(option, word)).collect()
}

fn forebay_program() -> String {
    if let Ok(program) = std::env::var("FOREBAY_BIN") {
        return program;
    }
    let beside = std::env::current_exe().ok().map(|program| program.with_file_name("forebay"));
    match beside {
        Some(program) if program.exists() => program.to_string_lossy().into_owned(),
        _ => "forebay".into(),
    }
}

#[cfg(test)]
mod tests {
    //! From command line to work per process.
    use super::*;

    fn parsed(words: &str) -> Result<Settings, String> {
        let words: Vec<String> = words.split(' ').map(String::from).collect();
        Settings::parse(&words)
    }

    #[test]
    fn many_processes_share_the_work_of_two() {
        let settings = parsed("--on a=/x --files 1000 --megabytes 64").expect("right");
        assert_eq!(settings.process_counts("metadata"), [1, 2, 16]);
        assert_eq!(settings.process_counts("shared"), [1, 2]);
        assert_eq!(settings.files_per_process("metadata", 1), 1000);
        assert_eq!(settings.files_per_process("metadata", 16), 125);
        assert_eq!(settings.megabytes_per_process(16), 8);
        assert_eq!(settings.files_per_process("list", 1), 100_000);
    }

    #[test]
    fn the_error_names_the_wrong_option() {
        for (words, what) in [
            ("--on a", "--on a: expected NAME="),
            ("--through b=x", "give --on b=DIR before it"),
            ("--only own,none", "--only own,none: the groups are"),
            ("--files 0", "expected a number above 0"),
            ("--what 1", "unknown option --what"),
            ("--files", "--files needs a value"),
            ("--on a=/x --plot f", "needs --history FILE"),
            ("--files 1", "nothing to measure"),
        ] {
            let text = parsed(words).expect_err(words);
            assert!(text.contains(what), "{words}: {text}");
        }
        let settings = parsed("--on a=/x --through a=p,q").expect("right");
        assert_eq!(settings.systems[0].through, ["p,q"]);
    }
}
