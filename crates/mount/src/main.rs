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

mod aside;

mod nodes;

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

mod through;

mod turns;

mod handles;

mod pins;

mod xattrs;

mod accesses;

mod flags;
mod waits;
mod watches;

mod pages;

mod versions;

mod straight;

mod places;

use aside::Aside;
use client::Client;
use device::Mount;
use handles::Handles;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use serve::{Server, Way};
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
        Some(word) if word == aside::CHILD => {
            let taken = aside::take().map(|()| String::new());
            return show(taken.map_err(|errno| errno.to_string()));
        }
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
    let Begun { mount, server, serving } = begin(settings).inspect_err(|_| CLIENT.end_mount())?;
    say_ready(settings.ready.as_ref());
    if settings.rights.is_for_all {
        let _ = start("users", || quota::count(&CLIENT));
    }
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
    let outcome = serving.join().unwrap_or_else(|_| Err("a thread failed".to_owned()));
    handle.close();
    if let Some(ender) = ender {
        let _ = ender.join();
    }
    server.handles.release();
    CLIENT.end_mount();
    outcome.map_err(|error| format!("{}: {error}", settings.at.display()))
}

/// A mount that is served.
struct Begun {
    mount: Mount,
    server: Arc<Server>,
    serving: Serving,
}

/// The thread that serves, and has others do so, until the mount is gone.
type Serving = JoinHandle<Result<(), String>>;

/// Why it is not mounted.
enum Failed {
    /// As it is said.
    Mount(String),
    /// The kernel agreed on rings, and then did not take them.
    Rings(String),
    /// The kernel does not let us mount aside.
    Aside(String),
}

/// What the kernel was given to mount.
enum Made {
    /// Programs find it already.
    Shown(Mount),
    /// It is to be shown.
    Aside(Aside),
}

impl Made {
    fn new(settings: &Settings, way: Way) -> Result<(Made, OwnedFd), Failed> {
        let (source, rights) = (settings.source(), settings.rights);
        if way.is_aside {
            let made = Aside::new(&source, rights).map_err(Failed::Aside)?;
            return Ok((Made::Aside(made.0), made.1));
        }
        let made = device::mount(&settings.at, &source, rights).map_err(Failed::Mount)?;
        Ok((Made::Shown(made.0), made.1))
    }

    /// Lets programs find it, now that it is served.
    fn show(self, settings: &Settings) -> Result<Mount, Failed> {
        match self {
            Made::Shown(mount) => Ok(mount),
            Made::Aside(aside) => {
                aside.show(&settings.at).map_err(Failed::Aside)?;
                Mount::seen(&settings.at).map_err(Failed::Mount)
            }
        }
    }

    fn end(self) {
        if let Made::Shown(mount) = self {
            mount.end();
        }
    }
}

/// Mounts as well as it can be had: with rings, and for others than the owner aside.
fn begin(settings: &Settings) -> Result<Begun, String> {
    let mut way = Way { transport: settings.transport, is_aside: settings.rights.is_for_all };
    loop {
        match begin_by(settings, way) {
            Ok(begun) => return Ok(begun),
            Err(Failed::Rings(why)) if way.transport == Transport::Auto => {
                tracing::info!(why, "requests come by /dev/fuse, not by rings");
                way.transport = Transport::Classic;
            }
            Err(Failed::Aside(why)) if way.is_aside => {
                tracing::info!(why, "each path of who does not own the root costs a request");
                way.is_aside = false;
            }
            Err(Failed::Mount(error) | Failed::Rings(error) | Failed::Aside(error)) => {
                return Err(error);
            }
        }
    }
}

/// Mounts, agrees with the kernel and serves.
fn begin_by(settings: &Settings, way: Way) -> Result<Begun, Failed> {
    let handles = Handles::new(&CLIENT, identity()).map_err(|errno| {
        Failed::Mount(format!("the instance is full of processes: {}", errno.text()))
    })?;
    let (made, device) = Made::new(settings, way).inspect_err(|_| handles.release())?;
    let said = |error| format!("{}: {error}", settings.at.display());
    let (server, prepared) = match Server::agree(&CLIENT, handles, device, settings, way) {
        Ok(agreed) => agreed,
        Err(error) => {
            made.end();
            return Err(Failed::Mount(said(error)));
        }
    };
    let server = Arc::new(server);
    let rings = match prepared.map(|prepared| prepared.begin(&server)).transpose() {
        Ok(rings) => rings,
        Err(error) => {
            made.end();
            server.handles.release();
            return Err(Failed::Rings(said(error)));
        }
    };
    let (serves, threads) = (Arc::clone(&server), settings.threads);
    let Some(serving) = start("serve", move || serves.run(threads, rings)) else {
        made.end();
        return Err(Failed::Mount("no thread can be started".to_owned()));
    };
    match made.show(settings) {
        Ok(mount) => Ok(Begun { mount, server, serving }),
        Err(failed) => {
            // Nobody has it, so it is gone.
            let _ = serving.join();
            server.handles.release();
            Err(failed)
        }
    }
}

fn start<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<JoinHandle<T>> {
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
