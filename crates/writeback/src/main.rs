//! `forebay-writeback`: the writeback daemon. It writes what is created and changed in an instance
//! to the backing store.
//!
//! It is a client of the instance like any program, and uses the file system of the site like any
//! program: if that hangs, only this process hangs. The daemons of the instance keep the record of
//! what is dirty, so this process may be killed at any moment and the next one continues.
//!
//! Reading order: the types (`state`), the instance (`instance`), the backing store (`backends`), a
//! round that makes the two equal (`round`, at the rate of `rate_limiter`), when rounds run
//! (`scheduler`, and `urgent` for clients that wait), and what commands ask (`progress`,
//! `control`).
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing, clippy::string_slice)]

mod settings;

mod instance_lock;

mod state;

mod instance;

mod backends;

mod round;

mod rate_limiter;

mod progress;

mod scheduler;

mod urgent;

mod control;

#[cfg(test)]
mod sim;

use backends::Backend;
use backends::posix::PosixBackend;
use backends::s3::S3Backend;
use background::log_file::{self, report_error};
use background::report_ready;
use client::{At, Client, Follow, Outcome, PathBuffer};
use config::choice::WritebackOrder;
use config::process::Invocation;
use control::InstanceQueries;
use instance::client::InstanceClient;
use progress::Progress;
use scheduler::Scheduler;
use settings::Settings;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use wire::errno::Errno;
use wire::{Credentials, Inode};

/// Exit code for invalid arguments.
const NOT_UNDERSTOOD: u8 = 2;
/// Name of the control socket in the run directory.
const SOCKET: &str = "writeback.sock";
/// Name of the file in the run directory that records multipart uploads.
const UPLOADS: &str = "writeback.uploads";

static CLIENT: Client = Client::new();

fn main() -> ExitCode {
    let settings = match settings() {
        Ok(Some(settings)) => settings,
        Ok(None) => return ExitCode::SUCCESS,
        Err(error) => {
            report_error("forebay-writeback: ", &error);
            return ExitCode::from(NOT_UNDERSTOOD);
        }
    };
    log_file::begin(settings.instance.log, &settings.run);
    match run(&settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report_error("forebay-writeback: ", &error);
            ExitCode::FAILURE
        }
    }
}

/// The settings that the command line names; `None`: it asked for a line of text, which is printed.
fn settings() -> Result<Option<Settings>, String> {
    let line = match Invocation::parse(std::env::args_os().skip(1))? {
        Invocation::Run(launch) => {
            return Settings::read(&launch.config, launch.ready_fd).map(Some);
        }
        Invocation::Version => format!("forebay-writeback {}", env!("CARGO_PKG_VERSION")),
        Invocation::Help => {
            "forebay-writeback --config FILE [--ready-fd N]: 'forebay start' runs it".to_owned()
        }
    };
    let _ = writeln!(std::io::stdout(), "{line}");
    Ok(None)
}

fn run(settings: &Settings) -> Result<(), String> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])
        .map_err(|error| format!("cannot install signal handlers: {error}"))?;
    backing::clear_umask();
    let run = settings.run.clone();
    let lock = instance_lock::take(&run, settings.lock_timeout())?;
    let backend = instance_lock::owner(&lock)
        .and_then(|owner| backend(settings, &run, owner))
        .map_err(|error| format!("{}: {error}", settings.backing()))?;
    CLIENT
        .attach(&settings.run_text()?, b"/", settings.home)
        .map_err(|errno| format!("no daemon answers in {}: {}", run.display(), errno.text()))?;
    let instance = InstanceClient::new(&CLIENT, settings.threads)
        .map_err(|errno| format!("cannot use the instance: {}", errno.text()))?;
    let progress = Arc::new(Progress::new(settings.instance.backing_rate));
    let socket = run.join(SOCKET);
    let listener = control::listen(&socket)
        .map_err(|error| format!("cannot listen at {}: {error}", socket.display()))?;
    start("serve", {
        let (progress, services) = (Arc::clone(&progress), instance.services());
        let count_dirty = move || Some(instance::client::news(&CLIENT, &services).ok()?.1);
        let queries = InstanceQueries { find: Box::new(find), count_dirty: Box::new(count_dirty) };
        move || control::serve(&listener, &progress, &Arc::new(queries))
    })?;
    start("urgent", {
        let (progress, services) = (Arc::clone(&progress), instance.services());
        move || urgent::watch(&CLIENT, &services, &progress)
    })?;
    let working = start("work", {
        let (progress, idle, threads) =
            (Arc::clone(&progress), settings.idle_age(), settings.threads);
        let order = settings.instance.writeback_order;
        let verifies = settings.instance.writeback_verify;
        move || {
            let news = || instance.news();
            let (instance, backend, urgent) = (&instance, &*backend, &instance);
            let is_by_sets = order == WritebackOrder::Sets;
            let scheduler = Scheduler {
                instance,
                news: &news,
                backend,
                urgent,
                progress,
                threads,
                idle,
                is_by_sets,
                verifies,
            };
            scheduler.run();
            instance.end();
        }
    })?;
    report_ready(settings.ready_fd, "{\"ready\":true}\n")
        .map_err(|error| format!("cannot report readiness: {error}"))?;
    let _ = signals.forever().next();
    progress.end();
    let _ = working.join();
    let _ = std::fs::remove_file(&socket);
    Ok(())
}

/// Looks up a path in the instance: its inode, and whether it is a directory.
fn find(path: &[u8]) -> Result<(Inode, bool), Errno> {
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    let caller = Credentials::checked(user.as_raw(), group.as_raw());
    let (at, mut path_buffer) = (At::relative(Inode::ROOT, path), Box::new(PathBuffer::new()));
    match CLIENT.stat(at, Follow::No, &caller, &mut path_buffer)? {
        Outcome::Done(found) => Ok((found.inode, found.is_directory())),
        // A symbolic link leads out of the instance.
        _ => Err(Errno::EXDEV),
    }
}

/// Opens the backing store.
fn backend(
    settings: &Settings,
    run: &Path,
    owner: u64,
) -> std::io::Result<Box<dyn Backend + Send>> {
    let backing = settings.backing();
    match backing::is_bucket(backing) {
        true => {
            let verifies = settings.instance.writeback_verify;
            Ok(Box::new(S3Backend::new(backing, run.join(UPLOADS), verifies)?))
        }
        false => Ok(Box::new(PosixBackend::new(Path::new(backing), owner)?)),
    }
}

fn start<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<std::thread::JoinHandle<T>, String> {
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(work);
    thread.map_err(|error| format!("cannot start a thread: {error}"))
}
