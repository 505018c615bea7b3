//! `forebay stage in` of paths that are already in the instance or in its backing directory: they
//! are prefetched. Also the paths of `forebay evict`, which takes the same ones.

use crate::commands::lifecycle::run::run_stage_worker;
use crate::failure::{FAILED, Failure, Result, USAGE};
use crate::stage::evict;
use crate::stage::prefetch::{self, PrefetchOptions};
use crate::state::records::HostRecord;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use std::path::{Path, PathBuf};

/// Options that only a prefetch has.
const OF_PREFETCH: [&str; 4] = ["tier", "order", "nodes", "wait"];
/// Options that only a copy has.
const OF_COPIES: [&str; 3] = ["force", "verify", "jobs"];

/// Adds the options of a prefetch.
pub(crate) fn with_prefetch_options(command: Command) -> Command {
    let flag = |name, help| Arg::new(name).long(name).action(ArgAction::SetTrue).help(help);
    let tier = Arg::new("tier").long("tier").value_name("TIER").value_parser(["memory", "ssd"]);
    let nodes =
        Arg::new("nodes").long("nodes").value_name("K").value_parser(value_parser!(u32).range(1..));
    command
        .arg(
            tier.help(
                "Prefetch into memory, and the SSD once memory is full (default), or the SSD",
            ),
        )
        .arg(
            flag("order", "Files are read in the order given: stay just ahead of the reader")
                .conflicts_with("wait"),
        )
        .arg(nodes.requires("order").help("With --order: number of files that are read at a time"))
        .arg(flag("wait", "Prefetch: return when all data has arrived, not at once"))
}

/// Where an instance is visible: on mounts, to preloaded programs, and as its backing directory.
pub(crate) struct InstancePaths {
    /// The last one is where preloaded programs see the instance.
    roots: Vec<PathBuf>,
    backing: Option<PathBuf>,
}

/// On which side a path is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PathSide {
    Instance,
    Backing,
    Elsewhere,
}

/// The operation that the worker carries out on paths of the instance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DataMove {
    /// Into memory or the SSD.
    Prefetch,
    /// Out of them.
    Evict,
}

impl InstancePaths {
    pub(crate) fn new(roots: Vec<PathBuf>, host: &HostRecord) -> InstancePaths {
        InstancePaths { roots, backing: host.config.backing.as_ref().map(PathBuf::from) }
    }

    fn side(&self, path: &Path) -> PathSide {
        let Ok(path) = std::path::absolute(path) else { return PathSide::Elsewhere };
        if self.roots.iter().any(|root| path.starts_with(root)) {
            return PathSide::Instance;
        }
        match &self.backing {
            Some(backing) if path.starts_with(backing) => PathSide::Backing,
            _ => PathSide::Elsewhere,
        }
    }

    /// True if `stage in` of `paths` is a prefetch rather than a copy: all of them are in the
    /// instance or its backing directory.
    ///
    /// # Errors
    /// A path that is neither, without a target directory; an option that belongs to the other
    /// case.
    pub(crate) fn is_prefetch(&self, paths: &[&PathBuf], given: &ArgMatches) -> Result<bool> {
        let sides: Vec<PathSide> = paths.iter().map(|path| self.side(path)).collect();
        let has_target = sides.len() > 1 && sides.last() == Some(&PathSide::Instance);
        let is_copy = has_target && sides.iter().any(|side| *side != PathSide::Instance);
        let is_prefetch = !is_copy && !sides.contains(&PathSide::Elsewhere);
        if !is_prefetch && paths.len() < 2 {
            let source = paths.first().map(|path| format!("{} ", path.display()));
            let at = self.roots.last().map(|root| root.display().to_string());
            let (source, at) = (source.unwrap_or_default(), at.unwrap_or_default());
            let text = format!("say where to copy it: forebay stage in {source}{at}");
            return Err(Failure::with_code(USAGE, text));
        }
        let (wrong, what) = if is_prefetch {
            (&OF_COPIES[..], "copies; these paths are prefetched")
        } else {
            (&OF_PREFETCH[..], "a prefetch; these paths are copied")
        };
        let is_given =
            |name: &&&str| given.value_source(name) == Some(clap::parser::ValueSource::CommandLine);
        match wrong.iter().find(is_given) {
            Some(name) => Err(Failure::with_code(USAGE, format!("--{name} is for {what}"))),
            None => Ok(is_prefetch),
        }
    }

    /// Checks that all paths can be evicted.
    ///
    /// # Errors
    /// A path is neither in the instance nor in its backing directory.
    pub(crate) fn check_evict(&self, paths: &[&PathBuf]) -> Result<()> {
        let wrong = paths.iter().find(|path| self.side(path) == PathSide::Elsewhere);
        let Some(path) = wrong else { return Ok(()) };
        let text = "is neither in the instance nor in its backing directory";
        Err(Failure::with_code(USAGE, format!("{} {text}", path.display())))
    }

    /// A path as the worker sees it.
    fn for_worker(roots: &[PathBuf], path: &Path) -> PathBuf {
        let at = roots.last().cloned().unwrap_or_default();
        let Ok(whole) = std::path::absolute(path) else { return path.to_owned() };
        let rest = roots.iter().find_map(|root| whole.strip_prefix(root).ok());
        rest.map_or(
            whole.clone(),
            |rest| if rest.as_os_str().is_empty() { at } else { at.join(rest) },
        )
    }
}

/// The part of `stage-worker` that does the work.
pub(crate) fn worker_command() -> Command {
    let roots = Arg::new("root").long("root").action(ArgAction::Append);
    let list = Arg::new("list").long("list").value_parser(value_parser!(PathBuf));
    let paths = Arg::new("paths").num_args(0..).value_parser(value_parser!(PathBuf));
    let evict = Arg::new("evict").long("evict").action(ArgAction::SetTrue);
    with_prefetch_options(Command::new("prefetch"))
        .arg(evict)
        .arg(roots.value_parser(value_parser!(PathBuf)))
        .arg(list)
        .arg(paths)
}

/// Runs the worker; its exit code.
pub(crate) fn run(
    data_move: DataMove,
    given: &ArgMatches,
    paths: &[&PathBuf],
    visible: &InstancePaths,
    (name, at): (&str, &str),
) -> Result<u8> {
    run_stage_worker(name, at, |command| {
        command.arg("prefetch");
        match data_move {
            DataMove::Evict => {
                command.arg("--evict");
            }
            DataMove::Prefetch => pass_on(given, command),
        }
        if given.get_flag("json") {
            command.arg("--json");
        }
        if let Some(list) = given.get_one::<PathBuf>("list") {
            command.arg("--list").arg(list);
        }
        for root in visible.backing.iter().chain(&visible.roots) {
            command.arg("--root").arg(root);
        }
        command.arg("--").args(paths);
    })
}

fn pass_on(given: &ArgMatches, command: &mut std::process::Command) {
    for flag in ["order", "wait"] {
        if given.get_flag(flag) {
            command.arg(format!("--{flag}"));
        }
    }
    if let Some(tier) = given.get_one::<String>("tier") {
        command.args(["--tier", tier]);
    }
    if let Some(nodes) = given.get_one::<u32>("nodes") {
        command.arg(format!("--nodes={nodes}"));
    }
}

/// The work of the hidden command.
pub(crate) fn work(given: &ArgMatches) -> Result<u8> {
    let all = |name: &str| -> Vec<PathBuf> {
        given.get_many(name).into_iter().flatten().cloned().collect()
    };
    let (roots, mut paths) = (all("root"), all("paths"));
    if let Some(list) = given.get_one::<PathBuf>("list") {
        let lines = super::stage::read_list(list)?;
        paths = match paths.as_slice() {
            [] => lines,
            [parent] => lines.iter().map(|line| parent.join(line)).collect(),
            _ => {
                let text = "with --list give at most one path: the directory of the listed names";
                return Err(Failure::with_code(USAGE, text));
            }
        };
    }
    let mut seen = Vec::new();
    for path in &paths {
        // A listed path need not be in the instance.
        let is_inside = roots.iter().any(|root| path.starts_with(root));
        seen.push(if is_inside || path.is_relative() {
            InstancePaths::for_worker(&roots, path)
        } else {
            path.clone()
        });
    }
    if given.get_flag("evict") {
        return Ok(if evict::run(&seen).end(given.get_flag("json")) { 0 } else { FAILED });
    }
    let order = given.get_flag("order").then(|| given.get_one("nodes").copied().unwrap_or(1));
    let tier = given.get_one::<String>("tier").map_or("memory", String::as_str).to_owned();
    let options = PrefetchOptions { tier, order, waits: given.get_flag("wait") };
    let summary = prefetch::run(&seen, &options);
    Ok(if summary.end(given.get_flag("json")) { 0 } else { FAILED })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_the_instance_are_prefetched_and_others_are_copied() {
        let visible = InstancePaths {
            roots: ["/mnt/job", "/forebay"].map(PathBuf::from).into(),
            backing: Some(PathBuf::from("/site/ann")),
        };
        let is_prefetch = |words: &[&str]| {
            let command = super::super::stage::command();
            let words = ["stage", "in"].iter().chain(words);
            let given = command.try_get_matches_from(words).expect("words");
            let (_, given) = given.subcommand().expect("in");
            let paths: Vec<PathBuf> =
                given.get_many("paths").into_iter().flatten().cloned().collect();
            let paths: Vec<&PathBuf> = paths.iter().collect();
            visible.is_prefetch(&paths, given).map_err(|failure| failure.code())
        };
        for (words, right) in [
            (&["/forebay/a"][..], Ok(true)),
            (&["/site/ann/a", "/mnt/job/b"], Ok(false)),
            (&["/site/ann/a", "/site/ann/b", "--wait"], Ok(true)),
            (&["/forebay/a", "/mnt/job/b"], Ok(true)),
            (&["--list", "files", "--order"], Ok(true)),
            (&["--list", "files", "/site/ann"], Ok(true)),
            (&["--list", "files", "/site", "/forebay"], Ok(false)),
            (&["/elsewhere/a", "/forebay"], Ok(false)),
            (&["/elsewhere/a"], Err(USAGE)),
            (&["/forebay/a", "--verify"], Err(USAGE)),
            (&["/elsewhere/a", "/forebay", "--tier", "ssd"], Err(USAGE)),
        ] {
            assert_eq!(is_prefetch(words), right, "{words:?}");
        }
        let roots = ["/site/ann", "/mnt/job", "/forebay"].map(PathBuf::from);
        for (path, right) in [
            ("/site/ann/a/b", "/forebay/a/b"),
            ("/mnt/job", "/forebay"),
            ("/forebay/x", "/forebay/x"),
            ("/other", "/other"),
        ] {
            assert_eq!(InstancePaths::for_worker(&roots, Path::new(path)), Path::new(right));
        }
    }
}
