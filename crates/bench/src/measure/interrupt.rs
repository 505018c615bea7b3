//! Ctrl-C ends a run in order: instances, namespaces and directories are removed as usual.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

static INTERRUPTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Makes signals that would end this program only set a flag, which `check` reads.
pub(crate) fn catch() {
    let flag = INTERRUPTED.get_or_init(Arc::default);
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // If registration fails, the signal still ends the program at once.
        let _ = signal_hook::flag::register(signal, flag.clone());
    }
}

/// Fails if the user has interrupted the run.
pub(crate) fn check() -> Result<(), String> {
    match INTERRUPTED.get() {
        Some(flag) if flag.load(Ordering::Relaxed) => Err("interrupted".into()),
        _ => Ok(()),
    }
}
