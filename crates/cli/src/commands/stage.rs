//! `forebay stage`: between the site's file system and an instance. What copies is `forebay
//! stage-worker`, started as any program of the instance.

use crate::command_line::{with_json, with_settings};
use crate::commands::history;
use crate::commands::rising::{self, Places};
use crate::commands::run::run_stage_worker;
use crate::failure::{FAILED, Failure, Result, USAGE};
use crate::records::{self, Host};
use crate::stage::{self, Manner, Order};
use crate::{directories, host, mounts, settings};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use config::Key;
use std::ffi::OsString;
use std::io::{BufReader, Read};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// Threads beyond which no machine gains.
const JOBS_MAX: u16 = 256;

const EXAMPLES: &str = "\
Examples:
  forebay stage in /lustre/ann/input /forebay            to /forebay/input, as 'cp -a' does
  forebay stage in /lustre/ann/input/. /forebay/in       what is in it, to /forebay/in
  forebay stage in --list files /lustre/ann /forebay     what the lines of 'files' name below /lustre/ann
  forebay stage out /forebay/results /lustre/ann         to /lustre/ann/results
  forebay stage out --json --verify /forebay/results /lustre/ann

With a backing directory, here /lustre/ann, its files are in the instance at once and are read from there
when a program asks. What 'in' is told of those, with no directory to copy it to, comes up before:
  forebay stage in /forebay/input                        to memory, in the background
  forebay stage in --wait /lustre/ann/input/mesh.h5      by its name below; returns when it is there
  forebay stage in --order --list files                  the lines name files in the order in which they
                                                         are read: just ahead of who reads them
  forebay stage drop /forebay/input                      and gone again, to be read from there next time;
                                                         what lies nowhere else stays

Copies: the last path is a directory, which is made if it is missing. Trees come with modes, owners
where that is permitted, times, extended attributes of users, access lists, further names of a file,
pipes and holes.
No symbolic link in a tree is followed. What is there with the same size and time of the last write is
left as it is, so that what was interrupted goes on when it is said again; what differs is replaced.

A file appears under its name complete or not at all; 'out' has it on the device before. Until then it
is called .forebay-part-*; the next staging to that directory removes what a killed one left. A file
that changes while it is copied is copied once more, then given up. What can not be staged is said in
one line each, the rest goes on, and the exit code is 1.

The copy is made by the host on which the command runs.";

/// The two ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Into the instance.
    In,
    /// Out of it.
    Out,
}

impl Way {
    pub(super) fn word(self) -> &'static str {
        match self {
            Way::In => "in",
            Way::Out => "out",
        }
    }

    fn of(word: &str) -> Way {
        if word == "in" { Way::In } else { Way::Out }
    }
}

pub(super) fn command() -> Command {
    let keys = [Key::Name, Key::At];
    let into = Command::new("in")
        .about("Copy files into an instance, or have what it shows of its backing directory come up")
        .override_usage(
            "forebay stage in [OPTIONS] SOURCE... DIRECTORY\n       forebay stage in [OPTIONS] PATH...",
        );
    let into = rising::with_rising(into);
    let out = Command::new("out")
        .about("Copy files of an instance to the site's file system")
        .override_usage("forebay stage out [OPTIONS] SOURCE... DIRECTORY");
    let all = |command| with_json(with_manner(with_settings(command, &keys), 0));
    let drops = Command::new("drop")
        .about("Give up what the instance has of its backing directory's files; it is read there again")
        .override_usage("forebay stage drop [OPTIONS] PATH...");
    let drops = with_json(with_paths(
        with_settings(drops, &keys),
        0,
        "Files and directories of the instance, or below its backing directory",
    ));
    Command::new("stage")
        .about("Copy files into an instance or out of it")
        .after_help(EXAMPLES)
        .subcommand_required(true)
        .subcommand(all(into))
        .subcommand(all(out))
        .subcommand(drops)
}

/// What `stage` starts; not for people.
pub(super) fn worker_command() -> Command {
    let way = |name| with_json(with_manner(Command::new(name), 2));
    Command::new("stage-worker")
        .hide(true)
        .about("Copy files, seeing an instance")
        .subcommand_required(true)
        .subcommand(with_json(rising::worker_command()))
        .subcommand(history::worker_command())
        .subcommand(way("in"))
        .subcommand(way("out"))
}

fn with_manner(command: Command, paths_min: usize) -> Command {
    let flag = |name, help| Arg::new(name).long(name).action(ArgAction::SetTrue).help(help);
    let jobs =
        Arg::new("jobs").long("jobs").value_name("N").help("Threads that copy; one for each CPU");
    let command = command.arg(jobs.value_parser(value_parser!(u16).range(1..=i64::from(JOBS_MAX))));
    with_paths(command, paths_min, "What is copied, and last the directory that it comes to")
        .arg(flag("force", "Copy also what is there already"))
        .arg(flag("verify", "Read each copy back and compare it before it appears"))
}

fn with_paths(command: Command, paths_min: usize, what: &'static str) -> Command {
    let list =
        Arg::new("list").long("list").value_name("FILE").value_parser(value_parser!(PathBuf));
    let list = list.help(
        "What its lines name, below the source if there is one, in this order; -: standard input",
    );
    let paths = Arg::new("paths").required(paths_min > 0).num_args(paths_min..).value_name("PATH");
    command.arg(list).arg(paths.value_parser(value_parser!(PathBuf)).help(what))
}

/// What is to be copied where, checked; the instance's paths are as the worker sees them.
#[derive(Debug)]
pub(super) struct Plan {
    way: Way,
    words: Vec<OsString>,
}

impl Plan {
    /// `roots`: where the instance is seen, of which the last is where the worker sees it.
    ///
    /// # Errors
    /// A path is on the wrong side.
    pub(super) fn new(
        way: Way,
        sources: &[&PathBuf],
        into: &Path,
        options: Vec<OsString>,
        roots: &[PathBuf],
    ) -> Result<Plan> {
        let mut words = options;
        words.push("--".into());
        for source in sources {
            words.push(side(source, way == Way::Out, roots)?);
        }
        words.push(side(into, way == Way::In, roots)?);
        Ok(Plan { way, words })
    }

    /// Runs it on an instance, with these ways in and out; its exit code.
    pub(super) fn run(&self, name: &str, at: &str, ends: [Stdio; 2]) -> Result<u8> {
        run_stage_worker(name, at, |command| {
            let [input, output] = ends;
            command.arg(self.way.word()).args(&self.words).stdin(input).stdout(output);
        })
    }
}

/// A path as the worker sees it, which must be in the instance, or must not.
fn side(path: &Path, is_inside: bool, roots: &[PathBuf]) -> Result<OsString> {
    let mut whole = std::path::absolute(path)
        .map_err(|error| Failure::at("can not find", path.display(), error))?
        .into_os_string();
    // What is in a directory, which is lost on the way.
    if path.as_os_str() == "." || path.as_os_str().as_bytes().ends_with(b"/.") {
        whole.push("/.");
    }
    let rest = roots.iter().filter_map(|root| {
        let rest = whole.as_bytes().strip_prefix(root.as_os_str().as_bytes())?;
        (rest.is_empty() || rest.starts_with(b"/")).then_some(rest)
    });
    // The longest root is the one that programs meet.
    let rest = rest.min_by_key(|rest| rest.len());
    let at = roots.last().map(|root| root.as_os_str().to_owned()).unwrap_or_default();
    match (rest, is_inside) {
        (Some(rest), true) => {
            let mut seen = at;
            seen.push(OsString::from_vec(rest.to_vec()));
            Ok(seen)
        }
        (None, false) => Ok(whole),
        (None, true) => {
            let why = format!("the instance is seen at {}", at.display());
            Err(usage("not of the instance", &whole, &why))
        }
        (Some(_), false) => Err(usage("in the instance", &whole, "'cp' copies within it")),
    }
}

fn usage(what: &str, path: &OsString, why: &str) -> Failure {
    Failure::with_code(USAGE, format!("{what}: {}: {why}", path.display()))
}

/// Where the instance is seen: on mounts, and by preloaded programs.
pub(super) fn roots(name: &str, at: &str) -> Result<Vec<PathBuf>> {
    let mounted = mounts::all(&directories::run(name)?)?;
    let mut roots: Vec<_> = mounted.into_iter().map(|(mount, _)| mount.at).collect();
    roots.push(PathBuf::from(at));
    Ok(roots)
}

pub(super) fn run(given: &ArgMatches) -> Result<u8> {
    let (word, given) = given.subcommand().ok_or_else(|| Failure::new("in or out?"))?;
    let settings = settings::resolve(given)?;
    let (name, at) = (settings.word(Key::Name), host::seen_at(&settings)?);
    let at = at.as_str();
    let Some(host) = records::load::<Host>(&directories::run(name)?, host::RECORD)? else {
        return Err(Failure::no_instance(name));
    };
    let paths: Vec<&PathBuf> = given.get_many("paths").into_iter().flatten().collect();
    if paths.is_empty() && !given.contains_id("list") || paths.len() < 2 && word == "out" {
        return Err(Failure::with_code(USAGE, "what is to be staged, and where to?"));
    }
    let places = Places::new(roots(name, at)?, &host);
    let is_here = match word {
        "in" => places.is_rise(&paths, given)?,
        "drop" => places.check_drop(&paths).map(|()| true)?,
        _ => false,
    };
    if is_here {
        return rising::run(word, given, &paths, &places, (name, at));
    }
    let mut options = Vec::new();
    for flag in ["force", "verify", "json"] {
        if given.get_flag(flag) {
            options.push(format!("--{flag}").into());
        }
    }
    if let Some(jobs) = given.get_one::<u16>("jobs") {
        options.push(format!("--jobs={jobs}").into());
    }
    if let Some(list) = given.get_one::<PathBuf>("list") {
        options.extend(["--list".into(), list.clone().into_os_string()]);
    }
    let (into, sources) = paths.split_last().ok_or_else(|| Failure::new("no paths"))?;
    if given.contains_id("list") && sources.len() != 1 {
        let text = "with --list there is one source, below which the lines are";
        return Err(Failure::with_code(USAGE, text));
    }
    let plan = Plan::new(Way::of(word), sources, into, options, &roots(name, at)?)?;
    plan.run(name, at, [Stdio::inherit(), Stdio::inherit()])
}

/// What the worker does.
pub(super) fn work(given: &ArgMatches) -> Result<u8> {
    let (word, given) = given.subcommand().ok_or_else(|| Failure::new("in or out?"))?;
    match word {
        "rise" => return rising::work(given),
        "follow" => return history::work(given),
        _ => {}
    }
    let way = Way::of(word);
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = given.get_one::<u16>("jobs").map_or(cpus, |&jobs| jobs.into());
    let manner = Manner {
        jobs: jobs.min(JOBS_MAX.into()),
        is_forced: given.get_flag("force"),
        is_verified: given.get_flag("verify"),
        is_durable: way == Way::Out,
    };
    let list = given.get_one::<PathBuf>("list").map(|file| read_list(file)).transpose()?;
    let paths: Vec<&PathBuf> = given.get_many("paths").into_iter().flatten().collect();
    let (into, sources) = paths.split_last().ok_or_else(|| Failure::new("no paths"))?;
    let order = Order {
        what: if way == Way::In { "staged in" } else { "staged out" },
        sources: sources.iter().copied().cloned().collect(),
        list,
        into: into.to_path_buf(),
        manner,
    };
    raise_limit();
    let tally = stage::run(&order)
        .map_err(|error| Failure::at("can not be staged to", into.display(), error))?;
    Ok(if tally.end(given.get_flag("json")) { 0 } else { FAILED })
}

/// Files that may be open at a time: as many as are permitted.
fn raise_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
}

/// The lines of a file, each a path; if there is a NUL in it, these part its paths.
pub(super) fn read_list(file: &Path) -> Result<Vec<PathBuf>> {
    let failed = |error| Failure::at("can not read the list", file.display(), error);
    let input: Box<dyn Read> = match file.as_os_str() == "-" {
        true => Box::new(std::io::stdin()),
        false => Box::new(std::fs::File::open(file).map_err(failed)?),
    };
    let mut bytes = Vec::new();
    BufReader::new(input).read_to_end(&mut bytes).map_err(failed)?;
    let end = if bytes.contains(&0) { 0 } else { b'\n' };
    let lines = bytes.split(|byte| *byte == end).filter(|line| !line.is_empty());
    Ok(lines.map(|line| PathBuf::from(OsString::from_vec(line.to_vec()))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(way: Way, source: &str, into: &str) -> Result<Vec<OsString>> {
        let roots = ["/mnt/job", "/forebay"].map(PathBuf::from);
        let plan = Plan::new(way, &[&PathBuf::from(source)], Path::new(into), Vec::new(), &roots);
        plan.map(|plan| plan.words)
    }

    #[test]
    fn paths_are_on_their_sides_and_as_the_worker_sees_them() {
        let cases = [
            (Way::In, "/data/in", "/forebay", ["--", "/data/in", "/forebay"]),
            (Way::In, "/data/in/.", "/mnt/job/a", ["--", "/data/in/.", "/forebay/a"]),
            (Way::Out, "/mnt/job/a/.", "/data", ["--", "/forebay/a/.", "/data"]),
            (Way::Out, "/forebay/./a//b", "/forebays", ["--", "/forebay/a/b", "/forebays"]),
        ];
        for (way, source, into, words) in cases {
            assert_eq!(planned(way, source, into).expect(source), words);
        }
        for (way, source, into) in [
            (Way::In, "/data", "/elsewhere"),
            (Way::In, "/forebay/a", "/forebay/b"),
            (Way::Out, "/forebay/a", "/mnt/job/b"),
            (Way::Out, "/data", "/elsewhere"),
        ] {
            assert_eq!(planned(way, source, into).expect_err(source).code(), USAGE);
        }
    }
}
