//! `forebay run`: a command that sees the instance, on one that runs or on one made for it.

use crate::command_line::with_all_settings;
use crate::commands::staging::{Staging, with_staging};
use crate::commands::{mount, stage, stop};
use crate::failure::{Failure, NOT_FOUND, NOT_RUNNABLE, Result};
use crate::mounts::{self, Wanted};
use crate::records::{self, Host};
use crate::{directories, host, instance, program, settings};
use clap::{Arg, ArgMatches, Command};
use config::{Key, Settings, Sources};
use rustix::process::{Pid, PidfdFlags, Signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::OsString;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{self, ExitStatus};

const EXAMPLES: &str = "\
Examples:
  forebay run -- sh -c 'tar xf src.tar -C /forebay && make -C /forebay/src'
  forebay run --local 4 --memory 2GiB --at /scratch -- ./simulation /scratch/out
  forebay run --name a -- ls /forebay    on the instance 'a'; srun forebay run .. on every node
  forebay run --stage-in /lustre/ann/in:/forebay --stage-out /forebay/out:/lustre/ann -- ./simulation
  forebay run --mount -- ./static /forebay/out      by a mount, for programs of all kinds
  forebay run --mount ~/m -- ./static ~/m/out       the same where /forebay can not be made

The instance of the name given, or else the one called 'default', is used if it runs. Otherwise one is
made for the command's life, and is removed with all its files afterwards, also if the command is
interrupted. SIGINT, SIGTERM and SIGHUP are passed on to the command.

With --backing all that was written is saved there before the instance is removed; if that can not be
done it is kept, and the exit code is 1, unless --discard says that it may be lost.

What is to be staged in is there before the command begins, else it is not run. What is to be staged out
is, also if the command failed or was ended by a signal; the exit code stays the command's. If not all
could be staged out that is said, and an instance that was made for the command is kept.

Statically linked programs, Go programs and set-uid programs would not see the instance; they are
refused with code 126, unless with --mount: then the command sees the instance through the kernel, as
every program of the host does, see 'forebay mount'. That mount is gone when the command ends. Where the
instance is mounted already it is used as it is, and stays.";

pub(super) fn command() -> Command {
    let words = Arg::new("command")
        .required(true)
        .num_args(1..)
        .last(true)
        .value_name("COMMAND")
        .value_parser(clap::value_parser!(OsString))
        .help("The command and its arguments, behind --");
    let command = Command::new("run").about("Run a command that sees an instance");
    let help =
        "See the instance by a mount on this directory; without DIR on that of --at, which is made";
    let command = with_all_settings(command.after_help(EXAMPLES))
        .arg(mount::at().num_args(0..=1).help(help))
        .arg(mount::for_all().requires("mount"))
        .arg(mount::trusted().requires("mount"))
        .arg(stop::discard())
        .arg(words);
    with_staging(command)
}

pub(super) fn run(given: &ArgMatches) -> Result<u8> {
    let settings = settings::resolve(given)?;
    let at = host::seen_at(&settings)?;
    let words: Vec<&OsString> = given.get_many("command").into_iter().flatten().collect();
    let (first, rest) = words.split_first().ok_or_else(|| Failure::new("no command"))?;
    let file = program::find(first)?;
    let way = match given.contains_id("mount") {
        true => Way::Mount(mount_of(given, &settings, &at)?),
        false => {
            program::check(&file, &at)?;
            Way::Preload(host::beside("libforebay_preload.so")?)
        }
    };
    let mut roots = stage::roots(settings.word(Key::Name), &at)?;
    if let Way::Mount(wanted) = &way {
        roots.insert(0, wanted.at.clone());
    }
    let staging = Staging::of(given, &roots)?;
    // So that an instance of ours is stopped.
    let signals = take_signals()?;
    let (name, is_ours) = provide(given, &settings)?;
    let work = || match &way {
        Way::Preload(library) => start_and_wait(
            // A program sees the name that it was called by, as under a shell.
            prepare(&file, &name, &at, library)?.arg0(first).args(rest),
            &file,
            signals,
        ),
        Way::Mount(wanted) => {
            let mount = mounts::for_command(&name, wanted, settings.timeout())?;
            let mut command = process::Command::new(&file);
            command.env("FOREBAY_NAME", &name).arg0(first).args(rest);
            let code = start_and_wait(&mut command, &file, signals);
            let ended = mount.end(settings.timeout());
            code.and_then(|code| ended.map(|()| code))
        }
    };
    let (outcome, is_out) = match staging.before(&name, &at) {
        Ok(()) => (work(), staging.after(&name, &at)),
        Err(failure) => (Err(failure), true),
    };
    if !is_ours {
        return outcome;
    }
    if !is_out {
        eprintln!(
            "forebay run: instance {name} is kept, for what is not staged out: 'forebay stage out --name \
             {name}' goes on, 'forebay stop --name {name}' removes it"
        );
        return outcome;
    }
    let stopped = instance::stop(&name, settings.timeout(), stop::unsaved(given));
    let code = outcome?;
    stopped?;
    Ok(code)
}

/// How the command sees the instance.
enum Way {
    /// By the library.
    Preload(PathBuf),
    /// By the kernel.
    Mount(Wanted),
}

/// The mount that is asked for: where `--mount` says, else where programs see the instance anyway.
fn mount_of(given: &ArgMatches, settings: &Settings, at: &str) -> Result<Wanted> {
    let named = given.get_one::<PathBuf>("mount");
    let at = named.map_or(Path::new(at), PathBuf::as_path);
    let requests = settings.word(Key::Requests).to_owned();
    let (at, rights) = (mounts::place(at)?, mount::rights(given));
    Ok(Wanted { at, rights, requests, may_be_made: named.is_none() })
}

/// The instance to use, and whether it was made for this command.
fn provide(given: &ArgMatches, settings: &Settings) -> Result<(String, bool)> {
    let name = settings.word(Key::Name).to_owned();
    let run = directories::run(&name)?;
    let here: Option<Host> = records::load(&run, host::RECORD)?;
    if let Some(here) = here {
        let dead = here.daemons.len() - here.count_alive()?;
        if dead > 0 {
            let advice =
                format!("{dead} daemons are dead: 'forebay start --name {name}' starts them");
            return Err(Failure::at("incomplete", format!("instance {name}"), advice));
        }
        return Ok((name, false));
    }
    if instance::load(&name)?.is_some() {
        let advice = "it has no daemon on this host: run the command on one of its hosts";
        return Err(Failure::at("out of reach", format!("instance {name}"), advice));
    }
    let local = given.get_one::<u16>("local").copied();
    if settings.is_given(Key::Name) {
        instance::start(settings, local, None)?;
        return Ok((name, true));
    }
    // A name of its own, so that no other command takes it for one that stays.
    let name = format!("run-{}", process::id());
    let mut sources = Sources::default();
    for setting in &config::SETTINGS {
        let text = settings.written(setting.key);
        if settings.is_given(setting.key) && !text.is_empty() {
            sources.options.insert(setting.key, text);
        }
    }
    sources.options.insert(Key::Name, name.clone());
    instance::start(&Settings::resolve(&sources)?, local, None)?;
    Ok((name, true))
}

/// Runs this program on an instance as its `stage-worker`, with what `fill` adds to it; its exit code.
pub(super) fn run_stage_worker(
    name: &str,
    at: &str,
    fill: impl FnOnce(&mut process::Command),
) -> Result<u8> {
    let signals = take_signals()?;
    let mut command = stage_worker(name, at)?;
    fill(&mut command);
    let own = PathBuf::from(command.get_program());
    start_and_wait(&mut command, &own, signals)
}

/// This program as a `stage-worker` of an instance.
///
/// # Errors
/// There is no such instance on this host, or a file of ours is missing.
pub(crate) fn stage_worker(name: &str, at: &str) -> Result<process::Command> {
    let own = std::env::current_exe()
        .map_err(|error| Failure::at("can not find", "this program", error))?;
    program::check(&own, at)?;
    let library = host::beside("libforebay_preload.so")?;
    let mut command = prepare(&own, name, at, &library)?;
    command.arg("stage-worker");
    Ok(command)
}

/// The environment of the command.
fn prepare(file: &Path, name: &str, at: &str, library: &Path) -> Result<process::Command> {
    let run = directories::run(name)?;
    let host: Option<Host> = records::load(&run, host::RECORD)?;
    let host = host.ok_or_else(|| {
        let advice = "it has no daemon on this host: run the command on one of its hosts";
        Failure::at("out of reach", format!("instance {name}"), advice)
    })?;
    let mut preload = library.as_os_str().to_owned();
    if let Some(before) = std::env::var_os("LD_PRELOAD").filter(|before| !before.is_empty()) {
        preload.push(":");
        preload.push(before);
    }
    let mut command = process::Command::new(file);
    command
        .env("LD_PRELOAD", preload)
        .env("FOREBAY_AT", at)
        .env("FOREBAY_RUN", &run)
        .env("FOREBAY_SITES", &run)
        .env("FOREBAY_HOME", host.first.to_string())
        .env("FOREBAY_NAME", name);
    Ok(command)
}

/// From here on a signal does not end this program.
fn take_signals() -> Result<Signals> {
    Signals::new([SIGINT, SIGTERM, SIGHUP])
        .map_err(|error| Failure::at("can not take signals", "this host", error))
}

/// Starts a program, passes signals on to it and waits; its exit code.
fn start_and_wait(command: &mut process::Command, file: &Path, mut signals: Signals) -> Result<u8> {
    if let Some(number) = signals.pending().next() {
        return Ok(code_of_signal(number));
    }
    let mut child = command.spawn().map_err(|error| {
        let is_missing = error.kind() == std::io::ErrorKind::NotFound;
        let code = if is_missing { NOT_FOUND } else { NOT_RUNNABLE };
        Failure::with_code(code, format!("can not be run: {}: {error}", file.display()))
    })?;
    let pid = Pid::from_child(&child);
    // A handle, because the process's number may be another's as soon as it was waited for.
    let target = rustix::process::pidfd_open(pid, PidfdFlags::empty())
        .map_err(|error| Failure::at("lost the command", file.display(), error))?;
    let handle = signals.handle();
    let status = std::thread::scope(|scope| {
        scope.spawn(move || {
            for number in signals.forever() {
                let signal = match number {
                    // The terminal sends it to the command by itself.
                    SIGINT if is_in_foreground() => continue,
                    SIGINT => Signal::INT,
                    SIGHUP => Signal::HUP,
                    _ => Signal::TERM,
                };
                let _ = rustix::process::pidfd_send_signal(&target, signal);
            }
        });
        let status = child.wait();
        handle.close();
        status
    });
    status.map(code).map_err(|error| Failure::at("lost the command", file.display(), error))
}

/// True if this program is in the group that its terminal sends signals to.
fn is_in_foreground() -> bool {
    let terminal = std::fs::File::open("/dev/tty");
    let group = terminal.ok().and_then(|terminal| rustix::termios::tcgetpgrp(terminal).ok());
    group == Some(rustix::process::getpgrp())
}

/// As shells say it: the code, or 128 and the signal.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.unwrap_or_else(|| code_of_signal(status.signal().unwrap_or(0)))
}

fn code_of_signal(number: i32) -> u8 {
    u8::try_from(number).unwrap_or(0).saturating_add(128)
}
