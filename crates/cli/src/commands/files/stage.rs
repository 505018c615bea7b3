//! `forebay stage`: copies files between other file systems and an instance. The copying process is
//! `forebay stage-worker`, which is started like any program of the instance.

use crate::command_line::{with_json, with_settings};
use crate::commands::files::prefetch::{self, DataMove, InstancePaths};
use crate::commands::files::profile;
use crate::commands::lifecycle::run::run_stage_worker;
use crate::failure::{FAILED, Failure, Result, USAGE};
use crate::instance::host;
use crate::instance::mounts;
use crate::stage::{self, CopyOptions, StageRequest};
use crate::state::directories;
use crate::state::records::{self, HostRecord};
use crate::state::settings;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use config::Key;
use std::ffi::OsString;
use std::io::{BufReader, Read};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// More threads than this do not make any host faster.
const JOBS_MAX: u16 = 256;

const EXAMPLES: &str = "\
Examples:
  forebay stage in /lustre/ann/input /forebay            to /forebay/input, as 'cp -a' does
  forebay stage in /lustre/ann/input/. /forebay/in       its contents, to /forebay/in
  forebay stage in --list files /lustre/ann /forebay     the files in /lustre/ann that 'files' lists
  forebay stage out /forebay/results /lustre/ann         to /lustre/ann/results
  forebay stage out --json --verify /forebay/results /lustre/ann

With a backing directory, here /lustre/ann, the instance shows its files at once and reads them from there
when programs need them. 'stage in' of such files, without a target directory, prefetches them:
  forebay stage in /forebay/input                        into memory, in the background
  forebay stage in --wait /lustre/ann/input/mesh.h5      by its backing name; returns when it has arrived
  forebay stage in --order --list files                  the list is in the order in which the files are
                                                         read: stays just ahead of the reader
'forebay evict' frees their memory and SSD space again.

The last path of a copy is a directory, which is created if it is missing. Trees are copied with modes,
times, user extended attributes, access control lists, hard links, pipes and holes, and with owners where
that is permitted. Symbolic links in a tree are copied, not followed. A file that exists with the same
size and modification time is skipped, so that an interrupted copy can be continued with the same
command; one that differs is replaced.

A file appears under its name only when it is complete; with 'out' it is also on the device by then. Until
then it is called .forebay-part-*; the next staging to that directory removes what a killed one left
behind. A file that changes while it is copied is copied once more, then reported as failed. Each failure
is one line; the other files are still copied, and the exit code is 1.

The host on which the command runs makes the copy.";

/// The direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Into the instance.
    In,
    /// Out of the instance.
    Out,
}

impl Direction {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Direction::In => "in",
            Direction::Out => "out",
        }
    }

    fn of(word: &str) -> Direction {
        if word == "in" { Direction::In } else { Direction::Out }
    }
}

pub(crate) fn command() -> Command {
    let keys = [Key::Name, Key::At];
    let into = Command::new("in")
        .about("Copy files into an instance, or prefetch files of its backing directory")
        .override_usage(
            "forebay stage in [OPTIONS] SOURCE... DIRECTORY\n       forebay stage in [OPTIONS] PATH...",
        );
    let into = prefetch::with_prefetch_options(into);
    let out = Command::new("out")
        .about("Copy files of an instance to another file system")
        .override_usage("forebay stage out [OPTIONS] SOURCE... DIRECTORY");
    let all = |command| with_json(with_copy_options(with_settings(command, &keys), 0));
    Command::new("stage")
        .about("Copy files into an instance or out of it")
        .after_long_help(EXAMPLES)
        .subcommand_required(true)
        .subcommand(all(into))
        .subcommand(all(out))
}

/// The hidden command that `stage` starts.
pub(crate) fn worker_command() -> Command {
    let direction = |name| with_json(with_copy_options(Command::new(name), 2));
    Command::new("stage-worker")
        .hide(true)
        .about("Copy files as a program of an instance")
        .subcommand_required(true)
        .subcommand(with_json(prefetch::worker_command()))
        .subcommand(profile::worker_command())
        .subcommand(direction("in"))
        .subcommand(direction("out"))
}

fn with_copy_options(command: Command, paths_min: usize) -> Command {
    let flag = |name, help| Arg::new(name).long(name).action(ArgAction::SetTrue).help(help);
    let jobs = Arg::new("jobs")
        .short('j')
        .long("jobs")
        .value_name("N")
        .help("Threads that copy; default: one per CPU");
    let command = command.arg(jobs.value_parser(value_parser!(u16).range(1..=i64::from(JOBS_MAX))));
    with_paths(command, paths_min, "Files and directories to copy, and last the target directory")
        .arg(flag("force", "Also copy files that the target already has"))
        .arg(flag("verify", "Read each copy back and compare it before it gets its name"))
}

pub(crate) fn with_paths(command: Command, paths_min: usize, what: &'static str) -> Command {
    let list =
        Arg::new("list").long("list").value_name("FILE").value_parser(value_parser!(PathBuf));
    let list = list.help(
        "File with one path per line (or separated by NUL), relative to the source if there is one; -: \
         standard input",
    );
    let paths = Arg::new("paths").required(paths_min > 0).num_args(paths_min..).value_name("PATH");
    command.arg(list).arg(paths.value_parser(value_parser!(PathBuf)).help(what))
}

/// A copy whose paths are checked and, in the instance, are as the worker sees them.
#[derive(Debug)]
pub(crate) struct CopyPlan {
    direction: Direction,
    words: Vec<OsString>,
}

impl CopyPlan {
    /// `roots`: the directories under which the instance is visible; the last one is that of the
    /// worker.
    ///
    /// # Errors
    /// A path is on the wrong side.
    pub(crate) fn new(
        direction: Direction,
        sources: &[&PathBuf],
        into: &Path,
        options: Vec<OsString>,
        roots: &[PathBuf],
    ) -> Result<CopyPlan> {
        let mut words = options;
        words.push("--".into());
        for source in sources {
            words.push(side(source, direction == Direction::Out, roots)?);
        }
        words.push(side(into, direction == Direction::In, roots)?);
        Ok(CopyPlan { direction, words })
    }

    /// Runs the copy on an instance, with these standard streams; its exit code.
    pub(crate) fn run(&self, name: &str, at: &str, streams: [Stdio; 2]) -> Result<u8> {
        run_stage_worker(name, at, |command| {
            let [input, output] = streams;
            command.arg(self.direction.word()).args(&self.words).stdin(input).stdout(output);
        })
    }
}

/// A path as the worker sees it. `is_inside`: whether it must, or must not, be in the instance.
fn side(path: &Path, is_inside: bool, roots: &[PathBuf]) -> Result<OsString> {
    let mut whole = std::path::absolute(path)
        .map_err(|error| Failure::at("cannot find", path.display(), error))?
        .into_os_string();
    // `absolute` drops the suffix that stands for the contents of a directory.
    if path.as_os_str() == "." || path.as_os_str().as_bytes().ends_with(b"/.") {
        whole.push("/.");
    }
    let rest = roots.iter().filter_map(|root| {
        let rest = whole.as_bytes().strip_prefix(root.as_os_str().as_bytes())?;
        (rest.is_empty() || rest.starts_with(b"/")).then_some(rest)
    });
    // With nested roots, the innermost one applies.
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
            let why = format!("the instance is visible at {}", at.display());
            Err(usage("not in the instance", &whole, &why))
        }
        (Some(_), false) => Err(usage("in the instance", &whole, "use 'cp' to copy within it")),
    }
}

fn usage(what: &str, path: &OsString, why: &str) -> Failure {
    Failure::with_code(USAGE, format!("{what}: {}: {why}", path.display()))
}

/// The directories under which the instance is visible: mounts, and last that of preloaded
/// programs.
pub(crate) fn roots(name: &str, at: &str) -> Result<Vec<PathBuf>> {
    let mounted = mounts::all(&directories::run(name)?)?;
    let mut roots: Vec<_> = mounted.into_iter().map(|(mount, _)| mount.at).collect();
    roots.push(PathBuf::from(at));
    Ok(roots)
}

pub(crate) fn run(given: &ArgMatches) -> Result<u8> {
    let (word, given) = given.subcommand().ok_or_else(|| Failure::new("in or out?"))?;
    let settings = settings::resolve(given)?;
    let (name, at) = (settings.word(Key::Name), host::visible_at(&settings)?);
    let at = at.as_str();
    let Some(host) = records::load::<HostRecord>(&directories::run(name)?, host::RECORD)? else {
        return Err(Failure::no_instance(name));
    };
    let paths: Vec<&PathBuf> = given.get_many("paths").into_iter().flatten().collect();
    if paths.is_empty() && !given.contains_id("list") || paths.len() < 2 && word == "out" {
        return Err(Failure::with_code(USAGE, "say what to stage, and where to"));
    }
    let visible = InstancePaths::new(roots(name, at)?, &host);
    if word == "in" && visible.is_prefetch(&paths, given)? {
        return prefetch::run(DataMove::Prefetch, given, &paths, &visible, (name, at));
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
    let (into, sources) = paths.split_last().ok_or_else(|| Failure::new("no paths given"))?;
    if given.contains_id("list") && sources.len() != 1 {
        let text = "with --list give one source: the directory of the listed names";
        return Err(Failure::with_code(USAGE, text));
    }
    let plan = CopyPlan::new(Direction::of(word), sources, into, options, &roots(name, at)?)?;
    plan.run(name, at, [Stdio::inherit(), Stdio::inherit()])
}

/// The work of the hidden command.
pub(crate) fn work(given: &ArgMatches) -> Result<u8> {
    let (word, given) = given.subcommand().ok_or_else(|| Failure::new("in or out?"))?;
    match word {
        "prefetch" => return prefetch::work(given),
        "follow-profile" => return profile::work(given),
        _ => {}
    }
    let direction = Direction::of(word);
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = given.get_one::<u16>("jobs").map_or(cpus, |&jobs| jobs.into());
    let options = CopyOptions {
        jobs: jobs.min(JOBS_MAX.into()),
        is_forced: given.get_flag("force"),
        is_verified: given.get_flag("verify"),
        is_durable: direction == Direction::Out,
    };
    let list = given.get_one::<PathBuf>("list").map(|file| read_list(file)).transpose()?;
    let paths: Vec<&PathBuf> = given.get_many("paths").into_iter().flatten().collect();
    let (into, sources) = paths.split_last().ok_or_else(|| Failure::new("no paths given"))?;
    let request = StageRequest {
        what: if direction == Direction::In { "staged in" } else { "staged out" },
        sources: sources.iter().copied().cloned().collect(),
        list,
        into: into.to_path_buf(),
        options,
    };
    raise_limit();
    let summary = stage::run(&request)
        .map_err(|error| Failure::at("cannot stage to", into.display(), error))?;
    Ok(if summary.end(given.get_flag("json")) { 0 } else { FAILED })
}

/// Raises the limit on open files to the maximum.
fn raise_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
}

/// The paths in a list: one per line, or separated by NUL if the file contains one.
pub(crate) fn read_list(file: &Path) -> Result<Vec<PathBuf>> {
    let failed = |error| Failure::at("cannot read the list", file.display(), error);
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

    fn planned(direction: Direction, source: &str, into: &str) -> Result<Vec<OsString>> {
        let roots = ["/mnt/job", "/forebay"].map(PathBuf::from);
        let plan = CopyPlan::new(
            direction,
            &[&PathBuf::from(source)],
            Path::new(into),
            Vec::new(),
            &roots,
        );
        plan.map(|plan| plan.words)
    }

    #[test]
    fn paths_are_checked_and_translated_for_the_worker() {
        let cases = [
            (Direction::In, "/data/in", "/forebay", ["--", "/data/in", "/forebay"]),
            (Direction::In, "/data/in/.", "/mnt/job/a", ["--", "/data/in/.", "/forebay/a"]),
            (Direction::Out, "/mnt/job/a/.", "/data", ["--", "/forebay/a/.", "/data"]),
            (Direction::Out, "/forebay/./a//b", "/forebays", ["--", "/forebay/a/b", "/forebays"]),
        ];
        for (direction, source, into, words) in cases {
            assert_eq!(planned(direction, source, into).expect(source), words);
        }
        for (direction, source, into) in [
            (Direction::In, "/data", "/elsewhere"),
            (Direction::In, "/forebay/a", "/forebay/b"),
            (Direction::Out, "/forebay/a", "/mnt/job/b"),
            (Direction::Out, "/data", "/elsewhere"),
        ] {
            assert_eq!(planned(direction, source, into).expect_err(source).code(), USAGE);
        }
    }
}
