//! Runs of `forebay-mount` that mount nothing: they change layouts, pools and quotas for `forebay`,
//! which does not use shared memory itself, and limits of a user's own jobs.

pub(crate) mod layout;

pub(crate) mod limits;

pub(crate) mod pool;

pub(crate) mod quota;

use client::Client;
use std::ffi::{CString, OsString};
use std::os::unix::ffi::OsStringExt as _;

/// Attaches to the instance with the run directory `run`, by the daemon with the number `home`.
///
/// # Errors
/// The reason, for people.
fn attach(client: &'static Client, run: &OsString, home: &OsString) -> Result<(), String> {
    let home = home.to_str().and_then(|text| text.parse().ok()).ok_or("HOME is not a number")?;
    let run = CString::new(run.clone().into_vec()).map_err(|_| "RUN contains a NUL")?;
    client.attach(&run, b"/", home).map_err(|errno| {
        format!("no daemon answers in {}: {}", run.to_string_lossy(), errno.text())
    })
}
