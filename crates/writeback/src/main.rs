//! `forebay-writeback`: saves in the backing directory what is made and changed in an instance.
//!
//! It is a client of the instance like any program, and reads and writes the site's file system as any
//! program does: if that hangs, this process hangs and nothing else. What is unsaved the daemons know,
//! which are asked; so it may be killed at any moment, and the next one goes on.
//!
//! Reading order: the two sides (`sides`), what is told of them (`state`), a round (`round`, then
//! `names`, `contents`, at the rate of `brake`, `changed`, `drafts`, and the last of all, `leaving`), the
//! sides as they are (`instance`, `site` or `objects`), and when rounds are due (`watch`).
#![forbid(unsafe_code)]

mod settings;

mod alone;

mod state;

mod sides;

mod round;

mod scope;

mod names;

mod contents;

mod brake;

mod changed;

mod drafts;

mod leaving;

mod instance;

mod site;

mod objects;

mod watch;

mod wanted;

mod control;

#[cfg(test)]
mod sim;

use client::{At, Client, Follow, Outcome, PathBuffer};
use instance::Instance;
use objects::Objects;
use settings::Settings;
use sides::Lower;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use site::Site;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use watch::{Board, Watch};
use wire::errno::Errno;
use wire::{Credentials, Inode};

/// Exit code for arguments that are not understood.
const NOT_UNDERSTOOD: u8 = 2;
/// The socket in the run directory.
const SOCKET: &str = "writeback.sock";
/// Beside it: uploads to a bucket that are not over.
const UPLOADS: &str = "writeback.uploads";

static CLIENT: Client = Client::new();

fn main() -> ExitCode {
    let settings = match Settings::parse(std::env::args_os().skip(1)) {
        Ok(settings) => settings,
        Err(error) => {
            eprintln!("forebay-writeback: {error}");
            return ExitCode::from(NOT_UNDERSTOOD);
        }
    };
    let level = std::env::var("FOREBAY_LOG").ok().and_then(|level| level.parse().ok());
    tracing_subscriber::fmt()
        .with_max_level(level.unwrap_or(tracing::Level::INFO))
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false)
        .init();
    match run(&settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("forebay-writeback: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(settings: &Settings) -> Result<(), String> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])
        .map_err(|error| format!("can not take signals: {error}"))?;
    below::clear_mask();
    let run = PathBuf::from(settings.run.to_string_lossy().into_owned());
    let alone = alone::take(&run, settings.patience)?;
    let lower = alone::owner(&alone)
        .and_then(|owner| lower(settings, &run, owner))
        .map_err(|error| format!("{}: {error}", settings.backing.display()))?;
    CLIENT
        .attach(&settings.run, b"/", settings.home)
        .map_err(|errno| format!("no daemon answers in {}: {}", run.display(), errno.text()))?;
    let instance = Instance::new(&CLIENT, settings.threads)
        .map_err(|errno| format!("can not use the instance: {}", errno.text()))?;
    let board = Arc::new(Board::new(settings.rate));
    let socket = run.join(SOCKET);
    let listener = control::listen(&socket)
        .map_err(|error| format!("can not listen at {}: {error}", socket.display()))?;
    start("serve", {
        let board = Arc::clone(&board);
        move || control::serve(&listener, &board, &(Arc::new(find) as Arc<control::Find>))
    })?;
    start("wanted", {
        let (board, services) = (Arc::clone(&board), instance.services());
        move || wanted::watch(&CLIENT, &services, &board)
    })?;
    let working = start("work", {
        let (board, idle, threads) = (Arc::clone(&board), settings.idle, settings.threads);
        move || {
            let news = || instance.news();
            let (above, lower, waited) = (&instance, &*lower, &instance);
            Watch { above, news: &news, lower, waited, board, threads, idle }.run();
            instance.end();
        }
    })?;
    if let Some(to) = &settings.ready {
        say_ready(to).map_err(|error| format!("can not say that it is ready: {error}"))?;
    }
    let _ = signals.forever().next();
    board.end();
    let _ = working.join();
    let _ = std::fs::remove_file(&socket);
    Ok(())
}

/// What is by a path in the instance.
fn find(path: &[u8]) -> Result<(Inode, bool), Errno> {
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    let who = Credentials::checked(user.as_raw(), group.as_raw());
    let (at, mut room) = (At::below(Inode::ROOT, path), Box::new(PathBuffer::new()));
    match CLIENT.stat(at, Follow::No, &who, &mut room)? {
        Outcome::Done(found) => Ok((found.inode, found.is_directory())),
        // A link leads out of it.
        _ => Err(Errno::EXDEV),
    }
}

/// What lies below.
fn lower(settings: &Settings, run: &Path, owner: u64) -> std::io::Result<Box<dyn Lower + Send>> {
    match settings.backing.to_str().filter(|text| below::is_bucket(text)) {
        Some(text) => Ok(Box::new(Objects::new(text, run.join(UPLOADS))?)),
        None => Ok(Box::new(Site::new(&settings.backing, owner)?)),
    }
}

fn start<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<std::thread::JoinHandle<T>, String> {
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(work);
    thread.map_err(|error| format!("can not start a thread: {error}"))
}

/// The starter waits for this line, and for the end of the pipe.
fn say_ready(to: &Path) -> std::io::Result<()> {
    std::fs::OpenOptions::new().write(true).open(to)?.write_all(b"{\"ready\":true}\n")
}
