//! The command line of the conductor.

/// What `--help` prints.
pub(crate) const HELP: &str = "\
forebay-bench: measures file systems side by side, repetitions interleaved.

  forebay-bench [OPTION]...
  --on NAME=DIR          measure in a new directory below DIR (repeatable)
  --through NAME=COMMAND start the programs of NAME by this command, split at spaces
  --forebay DAEMONS      start an instance with so many daemons here and measure it (repeatable)
  --forebay-bin FILE     the program forebay (default: FOREBAY_BIN, then beside this one, then PATH)
  --processes LIST       worker processes, for example 1,2 (the default)
  --repetitions N        default 5
  --files N              files per process in the metadata tests, default 10000
  --megabytes N          MiB per process in the data tests, default 64
  --only LIST            groups: metadata,own,shared,fio,mpi (default: all)
  --json FILE            writes all values there too

The file system named tmpfs, or else the first, is what the others are compared with.";

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
    pub(crate) forebay: String,
    pub(crate) processes: Vec<u32>,
    pub(crate) repetitions: u32,
    pub(crate) files: u64,
    pub(crate) megabytes: u64,
    pub(crate) groups: Vec<String>,
    pub(crate) json: Option<String>,
}

/// The groups of tests, in the order in which they run.
pub(crate) const GROUPS: [&str; 5] = ["metadata", "own", "shared", "fio", "mpi"];

impl Settings {
    /// Reads the command line. The error says which word was wrong.
    pub(crate) fn parse(words: &[String]) -> Result<Settings, String> {
        let mut settings = Settings {
            places: Vec::new(),
            instances: Vec::new(),
            forebay: forebay_program(),
            processes: vec![1, 2],
            repetitions: 5,
            files: 10_000,
            megabytes: 64,
            groups: GROUPS.map(String::from).to_vec(),
            json: None,
        };
        let mut words = words.iter();
        while let Some(option) = words.next() {
            let value =
                words.next().ok_or_else(|| format!("{option} needs a value; see --help"))?;
            settings.take(option, value)?;
        }
        if settings.places.is_empty() && settings.instances.is_empty() {
            return Err("nothing to measure: give --on NAME=DIR or --forebay DAEMONS".into());
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
            "--forebay-bin" => self.forebay = value.into(),
            "--processes" => {
                self.processes =
                    value.split(',').map(|word| number(option, word)).collect::<Result<_, _>>()?
            }
            "--repetitions" => self.repetitions = number(option, value)?,
            "--files" => self.files = number(option, value)?,
            "--megabytes" => self.megabytes = number(option, value)?,
            "--only" => self.groups = groups(value)?,
            "--json" => self.json = Some(value.into()),
            _ => return Err(format!("unknown option {option}; see --help")),
        }
        Ok(())
    }
}

fn groups(value: &str) -> Result<Vec<String>, String> {
    let wanted: Vec<String> = value.split(',').map(String::from).collect();
    match wanted.iter().find(|group| !GROUPS.contains(&group.as_str())) {
        Some(unknown) => Err(format!("--only {unknown}: the groups are {}", GROUPS.join(","))),
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
