//! The command line of the conductor.

/// What `--help` prints.
pub(crate) const HELP: &str = "\
forebay-bench: measures file systems side by side, repetitions interleaved.

  forebay-bench [OPTION]...
  --on NAME=DIR          measure in a new directory below DIR (repeatable)
  --through NAME=COMMAND start the programs of NAME by this command, split at spaces
  --forebay DAEMONS      start an instance with so many daemons here and measure it (repeatable)
  --mount DAEMONS        the same, twice, as mounts with the kernel's requests by each way: classic
                         and rings, which the kernel has to offer (repeatable)
  --forebay-bin FILE     the program forebay (default: FOREBAY_BIN, then beside this one, then PATH)
  --only LIST            groups of tests (default: all that are named below)
  --seldom LIST          places and groups that only the first repetition measures
  --repetitions N        default 5
  --processes LIST       worker processes of metadata and own, default 1,2,16; the other groups take
                         what does not exceed 2. More than 2 share the work that 2 have.
  --files N              files per process in the metadata tests, default 10000
  --entries N            entries of the directory that is listed, default 100000
  --megabytes N          MiB per process in the data tests, default 64
  --hosts LIST           numbers of hosts in scaling, default 1,2,4,8,16
  --json FILE            writes all values there too
  --history FILE         appends a line of JSON with the date, the commit, the bars and all medians
  --plot FILE            draws the history as an SVG

  forebay-bench plot HISTORY FILE
                         draws a history as an SVG

Groups, in each place:
  metadata  files in one directory: create, stat, open+close, list, unlink; the same with 3901 bytes
  list      one long directory, listed with the attributes of each entry
  own       1 MiB, 64 KiB, 8 KiB blocks, a file per process; 8 KiB at random inside it
  shared    the same, one file for all
  hard-own, hard-shared
            blocks of 47008 bytes, in a file per process and in turn in one file for all
  io500     the phases of IO500 in its order with their scores, by IOR and mdtest where they are on
            PATH, else by our own; find by our own. No official score: phases and sizes are small
  fio, mpi  fio, mdtest and IOR, where they are on PATH
  In metadata, list, own, shared and hard, what changes nothing (and 8 KiB writes at random) is gone
  through again until a tenth of a second is over.
Groups that run once, on instances of their own:
  profile   instructions of each operation in the client, by callgrind
  remote    two hosts, emulated by network namespaces (needs root): metadata of the other host beside
            round trips of a socket, 4 MiB blocks beside iperf3, or else beside a socket of our own
  two-mounts
            the same two hosts, each with a mount, in mode posix: a byte that is written on one and read
            on the other, and blocks in turn in one file beside a file each
  scaling   1 to 16 hosts with 5 % of a processor each, for their daemon and their programs together
            (needs root and cgroups), each in a directory of its own; and, without a limit, all in one
            directory over all daemons: the work that a second of a processor does

The file system named tmpfs, or else the first, is what the others are compared with. The last table
sets what was measured beside the bars for instances of one and four daemons: give --forebay 1 and
--forebay 4 and a tmpfs for all of it.";

/// One file system to measure.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) name: String,
    pub(crate) directory: String,
    /// The command in front of each program, empty for a mounted file system.
    pub(crate) through: Vec<String>,
}

/// Everything that the command line says.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) places: Vec<Place>,
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
    /// Places and groups of the first repetition only.
    pub(crate) seldom: Vec<String>,
    pub(crate) json: Option<String>,
    pub(crate) history: Option<String>,
    pub(crate) plot: Option<String>,
}

/// The groups of tests, in the order in which they run.
const GROUPS: [&str; 13] = [
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
];
/// Those that run once, on instances of their own.
const GROUPS_OF_THEIR_OWN: [&str; 4] = ["profile", "remote", "two-mounts", "scaling"];

/// With more processes than this the work of so many is divided: 16 against 2 is the same work.
const PROCESSES_WITH_FULL_WORK: u32 = 2;

impl Settings {
    /// Reads the command line. The error says which word was wrong.
    pub(crate) fn parse(words: &[String]) -> Result<Settings, String> {
        let mut settings = Settings {
            places: Vec::new(),
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
            seldom: Vec::new(),
            json: None,
            history: None,
            plot: None,
        };
        let mut words = words.iter();
        while let Some(option) = words.next() {
            let value =
                words.next().ok_or_else(|| format!("{option} needs a value; see --help"))?;
            settings.take(option, value)?;
        }
        let is_placeless = settings.places.is_empty()
            && settings.instances.is_empty()
            && settings.mounts.is_empty();
        if is_placeless && settings.groups_in_places().next().is_some() {
            return Err(
                "nothing to measure: give --on NAME=DIR, --forebay or --mount DAEMONS".into()
            );
        }
        if settings.plot.is_some() && settings.history.is_none() {
            return Err("--plot draws a history: give --history FILE, too".into());
        }
        Ok(settings)
    }

    fn take(&mut self, option: &str, value: &str) -> Result<(), String> {
        match option {
            "--on" => {
                let (name, directory) = pair(option, value)?;
                self.places.push(Place { name, directory, through: Vec::new() });
            }
            "--through" => {
                let (name, command) = pair(option, value)?;
                let place = self.places.iter_mut().find(|place| place.name == name);
                let place = place
                    .ok_or_else(|| format!("--through {name}: give --on {name}=DIR before it"))?;
                place.through = command.split_whitespace().map(String::from).collect();
            }
            "--forebay" => self.instances.push(number(option, value)?),
            "--mount" => self.mounts.push(number(option, value)?),
            "--forebay-bin" => self.forebay = value.into(),
            "--processes" => self.processes = numbers(option, value)?,
            "--hosts" => self.hosts = numbers(option, value)?,
            "--repetitions" => self.repetitions = number(option, value)?,
            "--files" => self.files = number(option, value)?,
            "--entries" => self.entries = number(option, value)?,
            "--megabytes" => self.megabytes = number(option, value)?,
            "--only" => self.groups = groups(value)?,
            "--seldom" => self.seldom = value.split(',').map(String::from).collect(),
            "--json" => self.json = Some(value.into()),
            "--history" => self.history = Some(value.into()),
            "--plot" => self.plot = Some(value.into()),
            _ => return Err(format!("unknown option {option}; see --help")),
        }
        Ok(())
    }

    /// The groups that are measured in each place.
    pub(crate) fn groups_in_places(&self) -> impl Iterator<Item = &String> {
        self.groups.iter().filter(|group| !GROUPS_OF_THEIR_OWN.contains(&group.as_str()))
    }

    /// The numbers of processes with which a group is measured.
    pub(crate) fn processes_of(&self, group: &str) -> Vec<u32> {
        match group {
            "metadata" | "own" => self.processes.clone(),
            // One process lists; and what is about sharing needs two.
            "list" => vec![1],
            "hard-own" | "hard-shared" | "io500" => vec![PROCESSES_WITH_FULL_WORK],
            _ => {
                let few = self.processes.iter().filter(|&&n| n <= PROCESSES_WITH_FULL_WORK);
                few.copied().collect()
            }
        }
    }

    /// Files that each of `processes` makes.
    pub(crate) fn files_of(&self, group: &str, processes: u32) -> u64 {
        if group == "list" { self.entries } else { part(self.files, processes) }
    }

    /// MiB that each of `processes` writes.
    pub(crate) fn megabytes_of(&self, processes: u32) -> u64 {
        part(self.megabytes, processes)
    }
}

/// What each process does of an amount that each of two does.
fn part(amount: u64, processes: u32) -> u64 {
    let sharing = u64::from(processes.max(PROCESSES_WITH_FULL_WORK));
    (amount * u64::from(PROCESSES_WITH_FULL_WORK) / sharing).max(1)
}

fn groups(value: &str) -> Result<Vec<String>, String> {
    let wanted: Vec<String> = value.split(',').map(String::from).collect();
    match wanted.iter().find(|group| !GROUPS.contains(&group.as_str())) {
        Some(_) => Err(format!("--only {value}: the groups are {}", GROUPS.join(","))),
        None => Ok(wanted),
    }
}

fn pair(option: &str, value: &str) -> Result<(String, String), String> {
    let (name, rest) =
        value.split_once('=').ok_or_else(|| format!("{option} {value}: expected NAME=..."))?;
    Ok((name.into(), rest.into()))
}

/// A number above zero.
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
    //! How the words of the command line become work.
    use super::*;

    fn parsed(words: &str) -> Result<Settings, String> {
        let words: Vec<String> = words.split(' ').map(String::from).collect();
        Settings::parse(&words)
    }

    #[test]
    fn many_processes_share_the_work_of_two() {
        let settings = parsed("--on a=/x --files 1000 --megabytes 64").expect("right");
        assert_eq!(settings.processes_of("metadata"), [1, 2, 16]);
        assert_eq!(settings.processes_of("shared"), [1, 2]);
        assert_eq!(settings.files_of("metadata", 1), 1000);
        assert_eq!(settings.files_of("metadata", 16), 125);
        assert_eq!(settings.megabytes_of(16), 8);
        assert_eq!(settings.files_of("list", 1), 100_000);
    }

    #[test]
    fn wrong_words_are_named() {
        for (words, what) in [
            ("--on a", "--on a: expected NAME="),
            ("--through b=x", "give --on b=DIR before it"),
            ("--only own,none", "--only own,none: the groups are"),
            ("--files 0", "expected a number above 0"),
            ("--what 1", "unknown option --what"),
            ("--files", "--files needs a value"),
            ("--on a=/x --plot f", "give --history FILE, too"),
            ("--files 1", "nothing to measure"),
        ] {
            let text = parsed(words).expect_err(words);
            assert!(text.contains(what), "{words}: {text}");
        }
        let settings = parsed("--on a=/x --through a=p,q").expect("right");
        assert_eq!(settings.places[0].through, ["p,q"]);
    }
}
