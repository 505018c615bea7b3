//! `forebay start`: starts an instance.

use crate::command_line::{with_all_settings, with_json, with_name};
use crate::commands::lifecycle::mount;
use crate::commands::rescue::print_report;
use crate::commands::{plural, print_json};
use crate::failure::{Failure, Result};
use crate::instance::cluster::{self, DamagedFiles};
use crate::instance::mounts::{self, MountNamespace, MountRequest};
use crate::state::records::InstanceRecord;
use crate::state::settings;
use clap::{Arg, ArgAction, ArgMatches, Command};
use config::choice::Access;
use config::{Key, Settings};
use serde_json::json;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  forebay start                          one daemon on this host
  forebay start --local 4 --ssd 0        four daemons, memory only
  forebay start --hosts nodes --name a   daemons on each host of the file 'nodes':
                                           node1
                                           node2:2             two daemons
                                           node3 10.0.0.3      address on which it listens
  scontrol show hostnames >nodes         makes such a file in a Slurm job
  forebay start --mount ~/scratch        also mounts it there on each of its hosts: 'forebay mount --help'

If the instance is running, nothing changes, except that dead daemons are restarted with the data that
they left, and that a missing mount is made again with --mount.";

pub(crate) fn command() -> Command {
    let command = Command::new("start").about("Start an instance, or restart its dead daemons");
    let at = mount::at().help("Also mount the instance on this directory, on each of its hosts");
    with_json(with_name(with_all_settings(command.after_long_help(EXAMPLES))))
        .arg(at)
        .arg(
            Arg::new("salvage")
                .long("salvage")
                .help("Start without what is damaged in the files of the daemons, and list what is lost")
                .long_help(
                    "Start without what is damaged in the files of the daemons, and list what is lost. \
                     Everything else can be read and staged out. Files without a name are in \
                     /lost+found; damaged logs are kept beside the new ones. If something is damaged, \
                     daemons that run are restarted",
                )
                .action(ArgAction::SetTrue),
        )
        .arg(mount::for_all().requires("mount"))
        .arg(mount::trusted().requires("mount"))
        .args(mount::identities().map(|one| one.requires("mount")))
}

pub(crate) fn run(given: &ArgMatches) -> Result<u8> {
    let settings = settings::resolve(given)?;
    let at = given.get_one::<PathBuf>("mount").map(|path| mounts::place(path)).transpose()?;
    let requests = settings.word(Key::Requests).to_owned();
    let rights = mount::rights(given);
    let request =
        at.map(|at| MountRequest { at, rights, requests, namespace: MountNamespace::Current });
    let local = given.get_one::<u16>("local").copied();
    let damaged = match given.get_flag("salvage") {
        true => DamagedFiles::Salvage,
        false => DamagedFiles::Refuse,
    };
    let outcome = cluster::start(&settings, local, request.as_ref(), damaged)?;
    let (name, count) = (settings.word(Key::Name), outcome.instance.present());
    let visible = share(&settings, &outcome.instance);
    if given.get_flag("json") {
        print_json(&json!({
            "name": name,
            "daemons": count,
            "started": outcome.started.len(),
            "salvaged": outcome.lost,
            "hosts": outcome.instance.hosts,
            "visible": visible.word(),
            "mount": request.map(|mount| mount.at.to_string_lossy().into_owned()),
            "settings": outcome.instance.config,
        }));
        return Ok(0);
    }
    let daemons = plural(count.into(), "daemon");
    let at = visible.at(&outcome.instance.config.at);
    for (index, before) in &outcome.started {
        if let Some(why) = before {
            errln!("forebay start: daemon {index} had ended: {why}");
        }
    }
    match outcome.started.len() {
        0 => outln!("instance {name} is already running: {daemons}, visible at {at}"),
        new if new == usize::from(count) => {
            outln!("started instance {name}: {daemons}, visible at {at}");
        }
        new => outln!("restarted {new} of {daemons} of instance {name}"),
    }
    if let Some(lost) = &outcome.lost {
        print_report(lost);
    }
    if let Some(mount) = request {
        outln!("mounted on {}", mount.at.display());
    }
    Ok(0)
}

/// The programs of this host that see the instance at `--at`.
enum VisibleTo {
    /// All.
    All,
    /// Commands of `forebay run`, for the reason in the text if it was determined now.
    Commands(Option<String>),
    /// Programs that use the C library, in commands of `forebay run`.
    Preloaded,
}

impl VisibleTo {
    /// For JSON.
    fn word(&self) -> &'static str {
        match self {
            VisibleTo::All => "all",
            VisibleTo::Commands(_) => "commands",
            VisibleTo::Preloaded => "preloaded",
        }
    }

    /// The directory, and the programs that see the instance there, for people.
    fn at(&self, at: &str) -> String {
        match self {
            VisibleTo::All => at.to_owned(),
            VisibleTo::Commands(Some(why)) => {
                format!("{at} to commands of 'forebay run' only: {why}")
            }
            VisibleTo::Commands(None) => format!("{at} to commands of 'forebay run' only"),
            VisibleTo::Preloaded => {
                format!("{at} to commands of 'forebay run' that use the C library")
            }
        }
    }
}

/// Mounts the instance for the commands of each host.
fn share(settings: &Settings, instance: &InstanceRecord) -> VisibleTo {
    if settings.word(Key::Access) == Access::Preload.word() {
        return VisibleTo::Preloaded;
    }
    let at = &instance.config.at;
    let say = |failure: &Failure| {
        let why = failure.text();
        errln!("forebay start: only programs that use the C library see {at}: {why}");
    };
    match cluster::share(instance, settings.word(Key::Requests)) {
        Ok((here, refused)) => {
            refused.iter().for_each(say);
            match here {
                Some(mount) if !mount.is_on_host() => VisibleTo::Commands(mount.why_not_on_host),
                _ => VisibleTo::All,
            }
        }
        Err(failure) => {
            say(&failure);
            VisibleTo::Preloaded
        }
    }
}
