//! `forebay-mount`: serves an instance to the kernel, for programs that can not be preloaded.
//!
//! It is a client of the instance like any program: it attaches to the daemons of its host, looks
//! names up in shared memory, and copies bytes itself. What the kernel asks comes by `device`, is
//! answered by `answer` and the modules below it, by one thread for each request at a time.
//!
//! The kernel checks permissions (`default_permissions`), so requests to daemons say that it did
//! (`Credentials::checked`), and whose a new file is.
#![deny(unsafe_code)]

mod settings;

mod layout;

mod quota;

mod device;

mod serve;

mod rings;

mod answer;

mod attributes;

mod names;

/// The others that ask.
mod callers;
mod owners;

mod files;

mod directories;

mod locks;

mod turns;

mod handles;

mod pins;

mod xattrs;

mod accesses;

mod watches;

mod pages;

mod versions;

mod straight;

mod places;

use client::Client;
use device::Mount;
use handles::Handles;
use rings::Rings;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use serve::Server;
use settings::{Settings, Transport};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Exit code for arguments that are not understood.
const NOT_UNDERSTOOD: u8 = 2;

static CLIENT: Client = Client::new();

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    match words.next() {
        Some(word) if word == "--layout" => return show(layout::run(&CLIENT, words)),
        Some(word) if word == "--quota" => return show(quota::run(&CLIENT, words)),
        _ => {}
    }
    let mut settings = match Settings::parse(std::env::args_os().skip(1)) {
        Ok(settings) => settings,
        Err(error) => {
            eprintln!("forebay-mount: {error}");
            return ExitCode::from(NOT_UNDERSTOOD);
        }
    };
    log_to_stderr();
    // The starter reads what failed as soon as the descriptor of readiness is closed.
    match run(&mut settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("forebay-mount: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Says what was asked for, or why it can not be said.
fn show(outcome: Result<String, String>) -> ExitCode {
    match outcome {
        Ok(text) => {
            let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
            let _ = write!(std::io::stdout(), "{text}{end}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("forebay-mount: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Mounts, says so, serves until the mount is gone.
fn run(settings: &mut Settings) -> Result<(), String> {
    let signals = Signals::new([SIGHUP, SIGINT, SIGTERM])
        .map_err(|error| format!("can not take signals: {error}"))?;
    let prefix = settings.at.as_os_str().as_encoded_bytes();
    CLIENT.attach(&settings.run, prefix, settings.home).map_err(|errno| {
        format!("no daemon answers in {}: {}", settings.run.to_string_lossy(), errno.text())
    })?;
    CLIENT
        .begin_mount(identity().0, identity().1)
        .map_err(|errno| format!("this host has too many mounts: {}", errno.text()))?;
    turns::prepare().map_err(|errno| format!("can not take signals: {errno}"))?;
    let begun = match begin(settings, settings.transport) {
        Err(Failed::Rings(why)) if settings.transport == Transport::Auto => {
            tracing::info!(why, "requests come by /dev/fuse, not by rings");
            begin(settings, Transport::Classic)
        }
        begun => begun,
    };
    let Begun { mount, server, rings } = begun.map_err(|failed| {
        CLIENT.end_mount();
        match failed {
            Failed::Mount(error) | Failed::Rings(error) => error,
        }
    })?;
    say_ready(settings.ready.as_ref());
    let mount = Arc::new(mount);
    let handle = signals.handle();
    let ender = start("signals", {
        let (mount, server) = (Arc::clone(&mount), Arc::clone(&server));
        move || end_on_signals(signals, &mount, &server)
    });
    if let Some(pipe) = settings.while_held.take() {
        // It waits as long as this program lives.
        let _ = start("holder", move || end_with_holder(&pipe, &mount));
    }
    let outcome = server.run(settings.threads, rings);
    handle.close();
    if let Some(ender) = ender {
        let _ = ender.join();
    }
    server.handles.release();
    CLIENT.end_mount();
    outcome.map_err(|error| format!("{}: {error}", settings.at.display()))
}

/// A mount that is agreed on with the kernel.
struct Begun {
    mount: Mount,
    server: Arc<Server>,
    rings: Option<Rings>,
}

/// Why it is not mounted.
enum Failed {
    /// As it is said.
    Mount(String),
    /// The kernel agreed on rings, and then did not take them.
    Rings(String),
}

/// Mounts, and agrees with the kernel.
fn begin(settings: &Settings, transport: Transport) -> Result<Begun, Failed> {
    let handles = Handles::new(&CLIENT, identity()).map_err(|errno| {
        Failed::Mount(format!("the instance is full of processes: {}", errno.text()))
    })?;
    let (mount, device) =
        device::mount(&settings.at, &settings.source(), settings.rights).map_err(Failed::Mount)?;
    let failed = |error| {
        mount.end();
        format!("{}: {error}", settings.at.display())
    };
    let (server, prepared) = Server::agree(&CLIENT, handles, device, settings, transport)
        .map_err(|error| Failed::Mount(failed(error)))?;
    let server = Arc::new(server);
    let rings = prepared.map(|prepared| prepared.begin(&server)).transpose().map_err(|error| {
        server.handles.release();
        Failed::Rings(failed(error))
    })?;
    Ok(Begun { mount, server, rings })
}

fn start(name: &str, work: impl FnOnce() + Send + 'static) -> Option<JoinHandle<()>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work).ok()
}

fn log_to_stderr() {
    let level = std::env::var("FOREBAY_LOG").ok().and_then(|level| level.parse().ok());
    tracing_subscriber::fmt()
        .with_max_level(level.unwrap_or(tracing::Level::INFO))
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false)
        .init();
}

/// A signal ends the mount, and this program at once: nobody may have to wait for those who have files
/// open, or for other mount namespaces that have a copy of the mount. Their calls fail from then on.
fn end_on_signals(mut signals: Signals, mount: &Mount, server: &Server) {
    if signals.forever().next().is_none() {
        return;
    }
    if !mount.end() {
        tracing::info!("the mount ends while programs use it: their calls fail from now on");
    }
    server.handles.release();
    CLIENT.end_mount();
    std::process::exit(0);
}

/// The mount goes with the command that it is for; who has a file open behind its back goes on.
fn end_with_holder(pipe: &OwnedFd, mount: &Mount) {
    let mut byte = [0];
    while matches!(rustix::io::read(pipe, &mut byte), Ok(1..) | Err(Errno::INTR)) {}
    mount.end();
}

fn say_ready(to: Option<&OwnedFd>) {
    if let Some(to) = to {
        let _ = rustix::io::write(to, b"{\"ready\":true}\n");
    }
    let _ = std::io::stdout().flush();
}

/// Number and start of this process, as daemons look for it when it is gone.
fn identity() -> (u32, u64) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let rest = stat.rfind(')').and_then(|end| stat.get(end + 2..)).unwrap_or_default();
    // Field 22 of the line; the rest begins with field 3.
    let started = rest.split(' ').nth(19).and_then(|field| field.parse().ok()).unwrap_or(0);
    (std::process::id(), started)
}
