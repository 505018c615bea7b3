//! `forebay-mount`: serves an instance to the kernel by FUSE, for programs that cannot be
//! preloaded.
//!
//! It is a client of the instance like any program: it attaches to the daemons of its host, looks
//! names up in shared memory, and copies bytes itself. Requests of the kernel arrive by `device` or
//! `rings`; `ops` answers them, one thread per request.
//!
//! The kernel checks permissions (`default_permissions`), so requests to daemons say that they are
//! checked (`Credentials::checked`), and which user owns a new file.
#![warn(clippy::indexing_slicing, clippy::string_slice)]

mod settings;

mod commands;

mod device;

mod users;

mod kernel_cache;

mod server;

mod ops;

mod rings;

mod serve;

use background::log_file::report_error;
use client::{Client, Tags};
use commands::{layout, limits, pool, quota};
use config::choice::RequestPath;
use config::process::Invocation;
use device::Mount;
use device::detached::{self, DetachedMount};
use device::guard::{self, Guard};
use device::namespace;
use rustix::fd::OwnedFd;
use serve::agree::MountMode;
use server::handles::Handles;
use server::{Server, quiesce};
use settings::Settings;
use shm::activity::blocks::label;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Exit code for invalid arguments.
const NOT_UNDERSTOOD: u8 = 2;

static CLIENT: Client = Client::new();

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    match words.next() {
        Some(word) if word == detached::CHILD => {
            let taken = detached::extract().map(|()| String::new());
            return show(taken.map_err(|errno| errno.to_string()));
        }
        Some(word) if word == guard::CHILD => {
            return show(guard::run(words).map(|()| String::new()));
        }
        Some(word) if word == "--limits" => return show(limits::run(words)),
        Some(word) if word == "--layout" => return show(layout::run(&CLIENT, words)),
        Some(word) if word == "--pool" => return show(pool::run(&CLIENT, words)),
        Some(word) if word == "--quota" => return show(quota::run(&CLIENT, words)),
        _ => {}
    }
    let mut settings = match settings() {
        Ok(Some(settings)) => settings,
        Ok(None) => return ExitCode::SUCCESS,
        Err(error) => {
            report_error("forebay-mount: ", &error);
            return ExitCode::from(NOT_UNDERSTOOD);
        }
    };
    background::log_file::begin(settings.instance.log, &settings.run);
    // `forebay mount` reads the error output as soon as the readiness descriptor is closed.
    match run(&mut settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report_error("forebay-mount: ", &error);
            ExitCode::FAILURE
        }
    }
}

/// Prints the output of a command, or its error.
fn show(outcome: Result<String, String>) -> ExitCode {
    match outcome {
        Ok(text) => {
            let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
            let _ = write!(std::io::stdout(), "{text}{end}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            report_error("forebay-mount: ", &error);
            ExitCode::FAILURE
        }
    }
}

/// Mounts, reports readiness, and serves until the mount is gone.
fn run(settings: &mut Settings) -> Result<(), String> {
    if settings.is_private {
        namespace::enter(&settings.at, &settings.run)?;
    }
    let signals = Signals::new([SIGHUP, SIGINT, SIGTERM])
        .map_err(|error| format!("cannot install signal handlers: {error}"))?;
    let prefix = settings.at.as_os_str().as_encoded_bytes();
    CLIENT.attach(&settings.run_text, prefix, settings.home).map_err(|errno| {
        format!("no daemon answers in {}: {}", settings.run.display(), errno.text())
    })?;
    // It counts for the processes that it serves, by its threads.
    CLIENT.note_threads();
    let program = label(b"forebay-mount");
    CLIENT.begin_activity(process_identity(), Tags { program, ..Tags::NONE });
    CLIENT
        .begin_mount(process_identity().0, process_identity().1)
        .map_err(|errno| format!("this host has too many mounts: {}", errno.text()))?;
    quiesce::prepare().map_err(|errno| format!("cannot install signal handlers: {errno}"))?;
    let StartedMount { mount, server, serving } =
        begin(settings).inspect_err(|_| CLIENT.end_mount())?;
    let guard = Arc::new(guard::start(&mount));
    // The starter that is gone has no use for it.
    let _ = background::report_ready(settings.ready_fd, "{\"ready\":true}\n");
    if settings.counts_users {
        let _ = start("users", || quota::count(&CLIENT));
    }
    let handle = signals.handle();
    let ender = start("signals", {
        let (server, guard) = (Arc::clone(&server), Arc::clone(&guard));
        move || end_on_signals(signals, &mount, &server, &guard)
    });
    let outcome = serving.join().unwrap_or_else(|_| Err("a thread failed".to_owned()));
    handle.close();
    if let Some(ender) = ender {
        let _ = ender.join();
    }
    server.handles.release();
    CLIENT.end_mount();
    guard.end();
    outcome.map_err(|error| format!("{}: {error}", settings.at.display()))
}

/// A mount that is being served.
struct StartedMount {
    mount: Mount,
    server: Arc<Server>,
    serving: ServiceThread,
}

/// The main serving thread, which starts the others and ends when the mount is gone.
type ServiceThread = JoinHandle<Result<(), String>>;

/// Why mounting failed.
enum MountError {
    /// For the reason in the text.
    Mount(String),
    /// The kernel agreed on rings and then did not accept them.
    Rings(String),
    /// The kernel does not support detached mounts.
    Detached(String),
}

/// A new file system.
enum NewMount {
    /// It is mounted and visible to programs.
    Attached(Mount),
    /// It is still to be attached.
    Detached(DetachedMount),
}

impl NewMount {
    fn new(settings: &Settings, mount_mode: MountMode) -> Result<(NewMount, OwnedFd), MountError> {
        let (source, rights) = (settings.source(), settings.rights);
        if mount_mode.is_nested {
            let made = DetachedMount::new(&source, rights).map_err(MountError::Detached)?;
            return Ok((NewMount::Detached(made.0), made.1));
        }
        let made = device::mount(&settings.at, &source, rights).map_err(MountError::Mount)?;
        Ok((NewMount::Attached(made.0), made.1))
    }

    /// Makes it visible to programs, once it is served.
    fn show(self, settings: &Settings) -> Result<Mount, MountError> {
        match self {
            NewMount::Attached(mount) => Ok(mount),
            NewMount::Detached(aside) => {
                aside.show(&settings.at).map_err(MountError::Detached)?;
                Mount::find(&settings.at).map_err(MountError::Mount)
            }
        }
    }

    fn end(self) {
        if let NewMount::Attached(mount) = self {
            mount.end();
        }
    }
}

/// Mounts in the best way that the kernel supports: with rings, and detached if other users may use
/// the mount.
fn begin(settings: &Settings) -> Result<StartedMount, String> {
    let mut mount_mode =
        MountMode { requests: settings.requests, is_nested: settings.rights.is_for_all };
    loop {
        match begin_by(settings, mount_mode) {
            Ok(begun) => return Ok(begun),
            Err(MountError::Rings(why)) if mount_mode.requests == RequestPath::Auto => {
                tracing::info!(why, "requests arrive by /dev/fuse, not by rings");
                mount_mode.requests = RequestPath::Classic;
            }
            Err(MountError::Detached(why)) if mount_mode.is_nested => {
                tracing::info!(
                    why,
                    "the kernel does not support detached mounts: path lookups by users other than \
                     the owner cost a request each"
                );
                mount_mode.is_nested = false;
            }
            Err(
                MountError::Mount(error) | MountError::Rings(error) | MountError::Detached(error),
            ) => {
                return Err(error);
            }
        }
    }
}

/// Mounts in one way, negotiates with the kernel, and starts serving.
fn begin_by(settings: &Settings, mount_mode: MountMode) -> Result<StartedMount, MountError> {
    let handles = Handles::new(&CLIENT, process_identity()).map_err(|errno| {
        MountError::Mount(format!("the instance has too many processes: {}", errno.text()))
    })?;
    let (made, device) = NewMount::new(settings, mount_mode).inspect_err(|_| handles.release())?;
    let said = |error| format!("{}: {error}", settings.at.display());
    let (server, prepared) =
        match serve::agree::agree(&CLIENT, handles, device, settings, mount_mode) {
            Ok(agreed) => agreed,
            Err(error) => {
                made.end();
                return Err(MountError::Mount(said(error)));
            }
        };
    let server = Arc::new(server);
    let rings = match prepared.map(|prepared| prepared.begin(&server)).transpose() {
        Ok(rings) => rings,
        Err(error) => {
            made.end();
            server.handles.release();
            return Err(MountError::Rings(said(error)));
        }
    };
    let (serves, threads) = (Arc::clone(&server), settings.threads);
    let Some(serving) = start("serve", move || serve::run(&serves, threads, rings)) else {
        made.end();
        return Err(MountError::Mount(
            "cannot start a thread: raise the limit of processes (ulimit -u)".to_owned(),
        ));
    };
    match made.show(settings) {
        Ok(mount) => Ok(StartedMount { mount, server, serving }),
        Err(failed) => {
            // No process has the detached mount, so it is gone.
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

/// The settings that the command line names; `None`: it asked for a line of text, which is printed.
fn settings() -> Result<Option<Settings>, String> {
    let line = match Invocation::parse(std::env::args_os().skip(1))? {
        Invocation::Run(launch) => return Settings::read(&launch).map(Some),
        Invocation::Version => format!("forebay-mount {}", env!("CARGO_PKG_VERSION")),
        Invocation::Help => {
            "forebay-mount --config FILE [--ready-fd N]: 'forebay mount' runs it".into()
        }
    };
    let _ = writeln!(std::io::stdout(), "{line}");
    Ok(None)
}

/// A signal ends the mount and this process at once, without waiting for programs that have files
/// open or for mount namespaces that have a copy of the mount. Their calls fail from then on.
fn end_on_signals(mut signals: Signals, mount: &Mount, server: &Server, guard: &Guard) {
    if signals.forever().next().is_none() {
        return;
    }
    if mount.end() {
        guard.end();
    } else {
        tracing::info!("unmounting while programs use it: their calls fail from now on");
    }
    server.handles.release();
    CLIENT.end_mount();
    #[expect(clippy::exit, reason = "the thread that serves may wait for the kernel for ever")]
    std::process::exit(0);
}

/// Process id and start time of this process, by which daemons detect its death.
fn process_identity() -> (u32, u64) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let rest = stat.rfind(')').and_then(|end| stat.get(end + 2..)).unwrap_or_default();
    // Field 22 of the line; `rest` begins with field 3.
    let started = rest.split(' ').nth(19).and_then(|field| field.parse().ok()).unwrap_or(0);
    (std::process::id(), started)
}
