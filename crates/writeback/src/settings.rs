//! The configuration of the writeback daemon, as its starter wrote it.

use config::{ProcessConfig as _, WritebackConfig};
use std::ffi::CString;
use std::path::Path;
use std::time::Duration;

/// Settings of the writeback daemon.
#[derive(Debug)]
pub(crate) struct Settings {
    config: WritebackConfig,
    /// Descriptor on which to report readiness.
    pub(crate) ready_fd: Option<i32>,
}

impl std::ops::Deref for Settings {
    type Target = WritebackConfig;

    fn deref(&self) -> &WritebackConfig {
        &self.config
    }
}

impl Settings {
    /// Reads the configuration file `path`.
    ///
    /// # Errors
    /// It cannot be read, or which field of it is wrong and why.
    pub(crate) fn read(path: &Path, ready_fd: Option<i32>) -> Result<Settings, String> {
        let text = std::fs::read_to_string(path).map_err(|error| error.to_string());
        let config = text.and_then(|text| WritebackConfig::from_json(&text));
        let config =
            config.map_err(|error| format!("configuration {}: {error}", path.display()))?;
        Ok(Settings { config, ready_fd })
    }

    /// The run directory, as `Client::attach` takes it.
    ///
    /// # Errors
    /// It contains a NUL.
    pub(crate) fn run_text(&self) -> Result<CString, String> {
        CString::new(self.run.as_os_str().as_encoded_bytes())
            .map_err(|_| "field run contains a NUL".to_owned())
    }

    /// The backing directory or bucket.
    pub(crate) fn backing(&self) -> &str {
        self.instance.backing.as_deref().unwrap_or_default()
    }

    /// In directories with mode `idle` a file is written this long after its last change.
    pub(crate) fn idle_age(&self) -> Duration {
        Duration::from_micros(self.instance.demote_idle_age)
    }

    /// How long to wait for an earlier daemon that has not ended: half as long as the starter
    /// waits, so that this daemon can still report why it cannot start.
    pub(crate) fn lock_timeout(&self) -> Duration {
        Duration::from_micros(self.instance.timeout / 2)
    }
}
