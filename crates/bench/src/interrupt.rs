//! Ctrl-C ends a run in order: instances, namespaces and directories go as they do otherwise.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

static WANTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From here on, signals that would end this program only make `check` fail.
pub(crate) fn catch() {
    let wanted = WANTED.get_or_init(Arc::default);
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // Without the handler the signal ends the program at once, as it did before.
        let _ = signal_hook::flag::register(signal, wanted.clone());
    }
}

/// Fails if the user wants to stop.
pub(crate) fn check() -> Result<(), String> {
    match WANTED.get() {
        Some(wanted) if wanted.load(Ordering::Relaxed) => Err("interrupted".into()),
        _ => Ok(()),
    }
}
