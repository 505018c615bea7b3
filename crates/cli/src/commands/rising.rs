//! `forebay stage in` of paths that lie in the instance, or below its backing directory: they come up.
//! And `forebay stage drop`, the other way.

use crate::commands::run::run_stage_worker;
use crate::failure::{FAILED, Failure, Result, USAGE};
use crate::records::Host;
use crate::stage::give_up;
use crate::stage::rise::{self, Manner};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use std::path::{Path, PathBuf};

/// Options that only this has.
const OWN: [&str; 4] = ["tier", "order", "nodes", "wait"];
/// Options that only a copy has.
const OF_COPIES: [&str; 3] = ["force", "verify", "jobs"];

/// The options.
pub(super) fn with_rising(command: Command) -> Command {
    let flag = |name, help| Arg::new(name).long(name).action(ArgAction::SetTrue).help(help);
    let tier = Arg::new("tier").long("tier").value_name("TIER").value_parser(["memory", "ssd"]);
    let nodes =
        Arg::new("nodes").long("nodes").value_name("K").value_parser(value_parser!(u32).range(1..));
    command
        .arg(tier.help("Bring up to: memory while it has room and else the SSD (default), or ssd"))
        .arg(
            flag("order", "Files are read in the order given: stay just ahead of who reads them")
                .conflicts_with("wait"),
        )
        .arg(nodes.requires("order").help("With --order: so many files are read at a time"))
        .arg(flag("wait", "Bring up: return when all is there, not at once"))
}

/// Where an instance is seen, on mounts, by programs, and as its backing directory.
pub(super) struct Places {
    /// The last is where programs see it.
    roots: Vec<PathBuf>,
    backing: Option<PathBuf>,
}

/// What a path is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    Instance,
    Backing,
    Elsewhere,
}

impl Places {
    pub(super) fn new(roots: Vec<PathBuf>, host: &Host) -> Places {
        Places { roots, backing: host.wanted.backing.as_ref().map(PathBuf::from) }
    }

    fn side(&self, path: &Path) -> Side {
        let Ok(path) = std::path::absolute(path) else { return Side::Elsewhere };
        if self.roots.iter().any(|root| path.starts_with(root)) {
            return Side::Instance;
        }
        match &self.backing {
            Some(backing) if path.starts_with(backing) => Side::Backing,
            _ => Side::Elsewhere,
        }
    }

    /// True if what was said is no copy: all lies there already.
    ///
    /// # Errors
    /// An option that does not go with it.
    pub(super) fn is_rise(&self, paths: &[&PathBuf], given: &ArgMatches) -> Result<bool> {
        let sides: Vec<Side> = paths.iter().map(|path| self.side(path)).collect();
        let comes_to_it = sides.len() > 1 && sides.last() == Some(&Side::Instance);
        let is_copy = comes_to_it && sides.iter().any(|side| *side != Side::Instance);
        let is_rise = !is_copy && !sides.contains(&Side::Elsewhere);
        if !is_rise && paths.len() < 2 {
            let text = "a copy needs the directory of the instance that it comes to; what comes up \
                        without one lies in the instance, or below its backing directory";
            return Err(Failure::with_code(USAGE, text));
        }
        let (wrong, what) =
            if is_rise { (&OF_COPIES[..], "copies") } else { (&OWN[..], "what is there") };
        let is_said =
            |name: &&&str| given.value_source(name) == Some(clap::parser::ValueSource::CommandLine);
        match wrong.iter().find(is_said) {
            Some(name) => Err(Failure::with_code(USAGE, format!("--{name} is for {what}"))),
            None => Ok(is_rise),
        }
    }

    /// # Errors
    /// There are other paths.
    pub(super) fn check_drop(&self, paths: &[&PathBuf]) -> Result<()> {
        let wrong = paths.iter().find(|path| self.side(path) == Side::Elsewhere);
        let Some(path) = wrong else { return Ok(()) };
        let text = "lies neither in the instance nor below its backing directory";
        Err(Failure::with_code(USAGE, format!("{} {text}", path.display())))
    }

    /// A path as the worker sees it.
    fn seen(roots: &[PathBuf], path: &Path) -> PathBuf {
        let at = roots.last().cloned().unwrap_or_default();
        let Ok(whole) = std::path::absolute(path) else { return path.to_owned() };
        let rest = roots.iter().find_map(|root| whole.strip_prefix(root).ok());
        rest.map_or(
            whole.clone(),
            |rest| if rest.as_os_str().is_empty() { at } else { at.join(rest) },
        )
    }
}

/// What `stage` starts for it.
pub(super) fn worker_command() -> Command {
    let seen = Arg::new("seen").long("seen").action(ArgAction::Append);
    let list = Arg::new("list").long("list").value_parser(value_parser!(PathBuf));
    let paths = Arg::new("paths").num_args(0..).value_parser(value_parser!(PathBuf));
    let drops = Arg::new("drop").long("drop").action(ArgAction::SetTrue);
    with_rising(Command::new("rise"))
        .arg(drops)
        .arg(seen.value_parser(value_parser!(PathBuf)))
        .arg(list)
        .arg(paths)
}

/// Starts the worker, which brings up or drops (`word`); its exit code.
pub(super) fn run(
    word: &str,
    given: &ArgMatches,
    paths: &[&PathBuf],
    places: &Places,
    (name, at): (&str, &str),
) -> Result<u8> {
    run_stage_worker(name, at, |command| {
        command.arg("rise");
        if word == "drop" {
            command.arg("--drop");
        } else {
            pass_on(given, command);
        }
        if given.get_flag("json") {
            command.arg("--json");
        }
        if let Some(list) = given.get_one::<PathBuf>("list") {
            command.arg("--list").arg(list);
        }
        for root in places.backing.iter().chain(&places.roots) {
            command.arg("--seen").arg(root);
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

/// What the worker does.
pub(super) fn work(given: &ArgMatches) -> Result<u8> {
    let all = |name: &str| -> Vec<PathBuf> {
        given.get_many(name).into_iter().flatten().cloned().collect()
    };
    let (roots, mut paths) = (all("seen"), all("paths"));
    if let Some(list) = given.get_one::<PathBuf>("list") {
        let lines = super::stage::read_list(list)?;
        paths = match paths.as_slice() {
            [] => lines,
            [above] => lines.iter().map(|line| above.join(line)).collect(),
            _ => {
                let text = "with --list there is one path at most, below which the lines are";
                return Err(Failure::with_code(USAGE, text));
            }
        };
    }
    let mut seen = Vec::new();
    for path in &paths {
        // A line may say anything.
        let is_inside = roots.iter().any(|root| path.starts_with(root));
        seen.push(if is_inside || path.is_relative() {
            Places::seen(&roots, path)
        } else {
            path.clone()
        });
    }
    if given.get_flag("drop") {
        return Ok(if give_up::run(&seen).end(given.get_flag("json")) { 0 } else { FAILED });
    }
    let order = given.get_flag("order").then(|| given.get_one("nodes").copied().unwrap_or(1));
    let tier = given.get_one::<String>("tier").map_or("memory", String::as_str).to_owned();
    let tally = rise::run(&seen, &Manner { tier, order, waits: given.get_flag("wait") });
    Ok(if tally.end(given.get_flag("json")) { 0 } else { FAILED })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_there_comes_up_and_other_things_are_copied() {
        let places = Places {
            roots: ["/mnt/job", "/forebay"].map(PathBuf::from).into(),
            backing: Some(PathBuf::from("/site/ann")),
        };
        let said = |words: &[&str]| {
            let command = super::super::stage::command();
            let words = ["stage", "in"].iter().chain(words);
            let given = command.try_get_matches_from(words).expect("words");
            let (_, given) = given.subcommand().expect("in");
            let paths: Vec<PathBuf> =
                given.get_many("paths").into_iter().flatten().cloned().collect();
            places.is_rise(&paths.iter().collect::<Vec<_>>(), given).map_err(|one| one.code())
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
            assert_eq!(said(words), right, "{words:?}");
        }
        let roots = ["/site/ann", "/mnt/job", "/forebay"].map(PathBuf::from);
        for (path, right) in [
            ("/site/ann/a/b", "/forebay/a/b"),
            ("/mnt/job", "/forebay"),
            ("/forebay/x", "/forebay/x"),
            ("/other", "/other"),
        ] {
            assert_eq!(Places::seen(&roots, Path::new(path)), Path::new(right));
        }
    }
}
