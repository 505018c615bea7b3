//! `forebay run`: runs a command that sees an instance, a running one or one made for the command.

use crate::command_line::with_all_settings;
use crate::commands::files::stage;
use crate::commands::lifecycle::run_report;
use crate::commands::lifecycle::run_staging::{RunStaging, with_staging};
use crate::commands::lifecycle::stop;
use crate::commands::plural;
use crate::commands::qos::{self, JobRate};
use crate::failure::{FAILED, Failure, NO_INSTANCE, NOT_FOUND, NOT_RUNNABLE, Result, USAGE};
use crate::instance::cluster::{self, DamagedFiles};
use crate::instance::host;
use crate::instance::mounts::shared::{self, SharedMount, SharedMountRequest};
use crate::instance::plan;
use crate::process::program;
use crate::state::directories;
use crate::state::records::{self, HostRecord};
use crate::state::settings;
use clap::{Arg, ArgAction, ArgMatches, Command};
use config::choice::Access;
use config::{Key, Origin, Settings, Sources};
use rustix::process::{Pid, PidfdFlags, Signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{self, ExitStatus};

const EXAMPLES: &str = "\
Examples:
  forebay run -- sh -c 'tar xf src.tar -C /forebay && make -C /forebay/src'
  forebay run --local 4 --memory 2GiB --at /scratch -- ./simulation /scratch/out
  forebay run --name a -- ls /forebay    on the instance 'a'; srun forebay run .. on every node
  forebay run --stage-in /lustre/ann/in:/forebay --stage-out /forebay/out:/lustre/ann -- ./simulation
  forebay run --access preload -- ./app  without a mount, for programs that use the C library

The command uses the instance 'default' if that is running. Otherwise an instance is made for the
command, and is removed with all its files when the command ends or is interrupted; a line says so. With
--name or FOREBAY_NAME the instance must be running, unless options of 'start' such as --memory are given:
then one is made with that name. Options that differ from those of a running instance are refused. SIGINT,
SIGTERM and SIGHUP are passed on to the command.

With --backing, all changes are written back before the instance is removed. If that fails, the instance
is kept and the exit code is 1, unless --discard is given.

The operations of the command on this host are counted under the name of its job: 'forebay job list'.
When the command ends, 'forebay report' has them, and if something about them should be changed, the
first three findings are shown; --quiet leaves both out.

Staging in happens before the command starts; if it fails, the command is not run. Staging out also
happens if the command failed or was killed. If not everything could be staged out, a message says so, the
exit code is 1 if the command's was 0, and an instance that was made for the command is kept.

All kinds of programs see the instance: it is mounted on --at, once for all commands of a user on this
host, until 'forebay stop'. Over the mount, a preloaded library serves programs that use the C library,
without the kernel. If --at is in use, or this user may not mount there, the mount is visible to commands
of 'forebay run' only, in a mount namespace that they share. There, a user other than root sees ids of
other users and groups as nobody and nogroup, and set-id programs of other users have no rights. Where
this host allows no mount, a line says so, only programs that use the C library see the instance, and
statically linked programs, Go programs and set-id programs are refused with exit code 126.";

pub(crate) fn command() -> Command {
    let words = Arg::new("command")
        .required(true)
        .num_args(1..)
        .last(true)
        .value_name("COMMAND")
        .value_parser(clap::value_parser!(OsString))
        .help("The command and its arguments, after --");
    let command = Command::new("run").about("Run a command that sees an instance");
    let quiet = Arg::new("quiet").short('q').long("quiet").action(ArgAction::SetTrue);
    let command = with_all_settings(command.after_long_help(EXAMPLES))
        .arg(
            quiet.help("Do not say that an instance is made for the command; no report of its job"),
        )
        .arg(stop::discard())
        .arg(job_option())
        .arg(tag_option())
        .arg(qos::max_rate_option())
        .arg(words);
    with_staging(command)
}

pub(crate) fn run(given: &ArgMatches) -> Result<u8> {
    let settings = settings::resolve(given)?;
    let at = host::visible_at(&settings)?;
    let words: Vec<&OsString> = given.get_many("command").into_iter().flatten().collect();
    let (first, rest) = words.split_first().ok_or_else(|| Failure::new("no command given"))?;
    let file = program::find(first)?;
    let access = Access::of(settings.word(Key::Access)).unwrap_or(Access::Auto);
    if access == Access::Preload {
        program::check(&file, &at, "use --access auto")?;
    }
    let library = host::component("libforebay_preload.so")?;
    let (job, tag) = (job_of(given)?, tag_of(given)?);
    qos::rate_of(given)?;
    let staging = RunStaging::of(given, &stage::roots(settings.word(Key::Name), &at)?)?;
    // From here on signals are handled, so that an instance made for this command is stopped.
    let signals = take_signals()?;
    let (name, is_temporary) = provide(given, &settings)?;
    let work = || {
        let mount = enter(&name, &at, access, &settings, &file)?;
        let is_mount_only = match access {
            Access::Mount => true,
            Access::Auto => mount.is_some() && program::is_foreign(&file),
            Access::Preload => false,
        };
        let mut command = if is_mount_only {
            mounted(&file, &name, &at, &library)
        } else {
            preloaded(&file, &name, &at, &library)?
        };
        command.env("FOREBAY_MOUNTED", if mount.is_some() { "1" } else { "0" });
        command.env(JOB_VARIABLE, &job).envs(tag.map(|tag| (TAG_VARIABLE, tag)));
        // The program gets the name by which it was called, as from a shell.
        start_and_wait(command.arg0(first).args(rest), &file, signals, mount)
    };
    let limited = || {
        let limit = JobRate::of(given, &settings, &name, &job)?;
        let outcome = work();
        if let Some(limit) = limit {
            limit.end();
        }
        outcome
    };
    let (outcome, is_staged_out) = match staging.before(&name, &at) {
        Ok(()) => (limited(), staging.after(&name, &at)),
        Err(failure) => (Err(failure), true),
    };
    // A failure of the command itself tells more.
    let outcome = match outcome {
        Ok(0) if !is_staged_out => Ok(FAILED),
        other => other,
    };
    if outcome.is_ok() && !given.get_flag("quiet") {
        run_report::show(&settings, &name, &job);
    }
    if !is_temporary {
        return outcome;
    }
    if !is_staged_out {
        errln!(
            "forebay run: instance {name} is kept because not everything was staged out: continue with \
             'forebay stage out --name {name}', or remove it with 'forebay stop --name {name}'"
        );
        return outcome;
    }
    let stopped = cluster::stop(&name, settings.timeout(), stop::dirty_data(given));
    let code = outcome?;
    stopped?;
    Ok(code)
}

/// The variable that names the job of a process.
const JOB_VARIABLE: &str = "FOREBAY_JOB";
/// Variables of schedulers that do.
const SCHEDULER_VARIABLES: [&str; 3] = ["SLURM_JOB_ID", "FLUX_JOB_ID", "PBS_JOBID"];
/// Longest name of a job.
const JOB_BYTES_MAX: usize = 64;

fn job_option() -> Arg {
    Arg::new("job").long("job").value_name("NAME").help(
        "Name of the job that the command belongs to, for 'forebay job' and reports; by default that of \
         the scheduler, or one of its own",
    )
}

/// The variable with the tag of a process.
const TAG_VARIABLE: &str = "FOREBAY_TAG";
/// Longest tag.
const TAG_BYTES_MAX: usize = 32;

fn tag_option() -> Arg {
    Arg::new("tag").long("tag").value_name("WORD").help(
        "A word for rules of 'forebay qos', such as the phase of a job; by default the variable \
         FOREBAY_TAG",
    )
}

/// The tag of the command, if one is given.
///
/// # Errors
/// It is empty or too long.
fn tag_of(given: &ArgMatches) -> Result<Option<&String>> {
    let tag = given.get_one::<String>("tag");
    let is_plain =
        |tag: &String| !tag.contains(|letter: char| letter.is_control() || letter == ' ');
    match tag {
        Some(tag) if !(1..=TAG_BYTES_MAX).contains(&tag.len()) || !is_plain(tag) => {
            let why = format!("give 1 to {TAG_BYTES_MAX} bytes without spaces");
            Err(Failure::with_code(USAGE, format!("invalid value: {tag:?} for --tag: {why}")))
        }
        _ => Ok(tag),
    }
}

/// The job of the command: as given, as inherited, as the scheduler says, or one of its own.
///
/// # Errors
/// The given name is empty or too long.
fn job_of(given: &ArgMatches) -> Result<String> {
    if let Some(job) = given.get_one::<String>("job") {
        return match job.len() {
            1..=JOB_BYTES_MAX if !job.contains(char::is_control) => Ok(job.clone()),
            _ => {
                let why = format!("give 1 to {JOB_BYTES_MAX} bytes without control characters");
                Err(Failure::with_code(USAGE, format!("invalid value: {job:?} for --job: {why}")))
            }
        };
    }
    let mut variables = [JOB_VARIABLE].into_iter().chain(SCHEDULER_VARIABLES);
    let set = variables.find_map(|name| std::env::var(name).ok().filter(|job| !job.is_empty()));
    let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    Ok(set.unwrap_or_else(|| format!("run-{}-{}", process::id(), host())))
}

/// Moves this process to where the shared mount of the instance is; `None`: without a mount.
///
/// # Errors
/// The command needs the mount, and this host does not allow it.
fn enter(
    name: &str,
    at: &str,
    access: Access,
    settings: &Settings,
    file: &Path,
) -> Result<Option<SharedMount>> {
    if access == Access::Preload {
        return Ok(None);
    }
    let request = SharedMountRequest {
        name: name.to_owned(),
        at: at.into(),
        requests: settings.word(Key::Requests).to_owned(),
        timeout: settings.timeout(),
    };
    match shared::enter(request) {
        Ok(mount) => Ok(Some(mount)),
        Err(failure) if access == Access::Mount => Err(failure),
        Err(failure) => {
            let why = failure.text();
            program::check(file, at, &format!("it cannot be mounted: {why}"))?;
            errln!("forebay run: only programs that use the C library see {at}: {why}");
            Ok(None)
        }
    }
}

/// The name of the instance to use, and whether it was made for this command.
fn provide(given: &ArgMatches, settings: &Settings) -> Result<(String, bool)> {
    let name = settings.word(Key::Name).to_owned();
    let local = given.get_one::<u16>("local").copied();
    let run = directories::run(&name)?;
    let here: Option<HostRecord> = records::load(&run, host::RECORD)?;
    if let Some(here) = here {
        let dead = here.daemons.len() - here.count_alive()?;
        if dead > 0 {
            let dead = plural(dead as u64, "dead daemon");
            let advice = format!("{dead}: restart with 'forebay start --name {name}'");
            return Err(Failure::at("incomplete", format!("instance {name}"), advice));
        }
        plan::check_options(&name, &here.config, settings)?;
        if let Some(count) = local.filter(|&count| count != here.count) {
            let runs = plural(here.count.into(), "daemon");
            let text = format!(
                "conflict: instance {name} runs {runs}, option --local asks for {count}: stop it \
                 first, or give another --name"
            );
            return Err(Failure::new(text));
        }
        return Ok((name, false));
    }
    if cluster::load(&name)?.is_some() {
        let advice = "it has no daemon on this host: run the command on one of its hosts";
        return Err(Failure::at("not available", format!("instance {name}"), advice));
    }
    let is_quiet = given.get_flag("quiet");
    let made = |name: &str| {
        if !is_quiet {
            errln!(
                "forebay run: no running instance{name}: one is made for this command and removed \
                 with its files afterwards"
            );
        }
    };
    if settings.is_given(Key::Name) {
        if local.is_none() && !has_start_option(settings) {
            let origin = settings.origin(Key::Name);
            let text = format!(
                "no such instance: {name} ({origin}): start it with 'forebay start --name {name}', or \
                 give options of 'start', such as --memory, to make one for this command"
            );
            return Err(Failure::with_code(NO_INSTANCE, text));
        }
        made(&format!(" {name}"));
        cluster::start(settings, local, None, DamagedFiles::Refuse)?;
        return Ok((name, true));
    }
    made("");
    let name = unused_name()?;
    let mut sources = Sources::default();
    for setting in &config::SETTINGS {
        let text = settings.written(setting.key);
        if settings.is_given(setting.key) && !text.is_empty() {
            sources.options.insert(setting.key, text);
        }
    }
    sources.options.insert(Key::Name, name.clone());
    cluster::start(&Settings::resolve(&sources)?, local, None, DamagedFiles::Refuse)?;
    Ok((name, true))
}

/// A name that no other command uses as a persistent instance. A command that was killed leaves its
/// instance, and this process may have the number of that one.
fn unused_name() -> Result<String> {
    let own = format!("run-{}", process::id());
    let mut name = own.clone();
    for number in 2_u32.. {
        if directories::run(&name)?.symlink_metadata().is_err() {
            break;
        }
        name = format!("{own}-{number}");
    }
    Ok(name)
}

/// True if the command line has an option that describes a new instance.
fn has_start_option(settings: &Settings) -> bool {
    let others = [Key::Name, Key::At, Key::Timeout, Key::Requests, Key::Access, Key::Ssh, Key::Log];
    let mut keys = config::SETTINGS.iter().map(|setting| setting.key);
    keys.any(|key| !others.contains(&key) && matches!(settings.origin(key), Origin::Option(_)))
}

/// Runs this program on an instance as `stage-worker`, with the arguments that `fill` adds; its
/// exit code.
pub(crate) fn run_stage_worker(
    name: &str,
    at: &str,
    fill: impl FnOnce(&mut process::Command),
) -> Result<u8> {
    let signals = take_signals()?;
    let mut command = stage_worker(name, at)?;
    fill(&mut command);
    let own = PathBuf::from(command.get_program());
    start_and_wait(&mut command, &own, signals, None)
}

/// This program as a `stage-worker` of an instance.
///
/// # Errors
/// There is no such instance on this host, or a file of Forebay is missing.
pub(crate) fn stage_worker(name: &str, at: &str) -> Result<process::Command> {
    let own = std::env::current_exe()
        .map_err(|error| Failure::at("cannot find", "this program", error))?;
    program::check(&own, at, "install a dynamically linked forebay")?;
    let library = host::component("libforebay_preload.so")?;
    let mut command = preloaded(&own, name, at, &library)?;
    // Set by another `forebay run` whose command this one is in.
    command.arg("stage-worker").env("FOREBAY_MOUNTED", "0");
    Ok(command)
}

/// The command, which sees the instance through a mount alone.
fn mounted(file: &Path, name: &str, at: &str, library: &Path) -> process::Command {
    let mut command = process::Command::new(file);
    // In the command of another `forebay run` the library adds itself; without a run directory it
    // does nothing.
    command.env("FOREBAY_NAME", name).env("FOREBAY_AT", at).env("FOREBAY_RUN", "");
    match others_preloaded(library) {
        others if others.is_empty() => command.env_remove("LD_PRELOAD"),
        others => command.env("LD_PRELOAD", others.join(OsStr::new(":"))),
    };
    command
}

/// The command with the environment in which the preload library serves it.
fn preloaded(file: &Path, name: &str, at: &str, library: &Path) -> Result<process::Command> {
    let run = directories::run(name)?;
    let host: Option<HostRecord> = records::load(&run, host::RECORD)?;
    let host = host.ok_or_else(|| {
        let advice = "it has no daemon on this host: run the command on one of its hosts";
        Failure::at("not available", format!("instance {name}"), advice)
    })?;
    let mut libraries = others_preloaded(library);
    libraries.insert(0, library.as_os_str().to_owned());
    let mut command = process::Command::new(file);
    command
        .env("LD_PRELOAD", libraries.join(OsStr::new(":")))
        .env("ASAN_OPTIONS", sanitizer_options())
        .env("FOREBAY_AT", at)
        .env("FOREBAY_RUN", &run)
        .env("FOREBAY_SITES", &run)
        .env("FOREBAY_HOME", host.first.to_string())
        .env("FOREBAY_NAME", name);
    Ok(command)
}

/// The options of AddressSanitizer, which otherwise refuses to start after another library.
fn sanitizer_options() -> OsString {
    let mut options = std::env::var_os("ASAN_OPTIONS").unwrap_or_default();
    if !options.is_empty() {
        options.push(":");
    }
    options.push("verify_asan_link_order=0");
    options
}

/// The libraries in `LD_PRELOAD` other than `library`.
fn others_preloaded(library: &Path) -> Vec<OsString> {
    let list = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    let words = list.as_bytes().split(|byte| b": ".contains(byte)).map(OsStr::from_bytes);
    let others = words.filter(|word| !word.is_empty() && *word != library.as_os_str());
    others.map(OsStr::to_owned).collect()
}

/// Handles signals, so that they no longer end this program.
fn take_signals() -> Result<Signals> {
    Signals::new([SIGINT, SIGTERM, SIGHUP])
        .map_err(|error| Failure::at("cannot handle signals", "this host", error))
}

/// Starts a program, passes signals on to it, keeps its mount, and waits; its exit code.
fn start_and_wait(
    command: &mut process::Command,
    file: &Path,
    mut signals: Signals,
    mount: Option<SharedMount>,
) -> Result<u8> {
    if let Some(number) = signals.pending().next() {
        return Ok(code_of_signal(number));
    }
    let mut child = command.spawn().map_err(|error| {
        let is_missing = error.kind() == std::io::ErrorKind::NotFound;
        let code = if is_missing { NOT_FOUND } else { NOT_RUNNABLE };
        Failure::with_code(code, format!("cannot run {}: {error}", file.display()))
    })?;
    let pid = Pid::from_child(&child);
    // A handle, because the pid may be reused as soon as the process has been waited for.
    let target = rustix::process::pidfd_open(pid, PidfdFlags::empty())
        .map_err(|error| Failure::at("cannot wait for the command", file.display(), error))?;
    let handle = signals.handle();
    let status = std::thread::scope(|scope| {
        let target = &target;
        scope.spawn(move || {
            for number in signals.forever() {
                let signal = match number {
                    // The terminal also sends it to the command.
                    SIGINT if is_in_foreground() => continue,
                    SIGINT => Signal::INT,
                    SIGHUP => Signal::HUP,
                    _ => Signal::TERM,
                };
                let _ = rustix::process::pidfd_send_signal(target, signal);
            }
        });
        if let Some(mount) = mount {
            mount.keep(target);
        }
        let status = child.wait();
        handle.close();
        status
    });
    status
        .map(code)
        .map_err(|error| Failure::at("cannot wait for the command", file.display(), error))
}

/// True if this program is in the foreground process group of its terminal.
fn is_in_foreground() -> bool {
    let terminal = std::fs::File::open("/dev/tty");
    let group = terminal.ok().and_then(|terminal| rustix::termios::tcgetpgrp(terminal).ok());
    group == Some(rustix::process::getpgrp())
}

/// As in shells: the exit code, or 128 plus the signal.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.unwrap_or_else(|| code_of_signal(status.signal().unwrap_or(0)))
}

fn code_of_signal(number: i32) -> u8 {
    u8::try_from(number).unwrap_or(0).saturating_add(128)
}
