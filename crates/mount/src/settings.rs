//! The configuration of a mount, as `forebay mount` wrote it, and inherited descriptors.

use crate::device::Rights;
use config::process::Launch;
use config::{MountConfig, ProcessConfig as _};
use std::ffi::CString;
use std::path::Path;

/// Number of serving threads: more than processors would need, because a request may wait for other
/// hosts.
const THREADS: usize = 8;

/// Settings of a mount.
#[derive(Debug)]
pub(crate) struct Settings {
    config: MountConfig,
    /// Directory of the sockets, as `Client::attach` takes it.
    pub(crate) run_text: CString,
    /// Number of serving threads.
    pub(crate) threads: usize,
    /// Permissions of the mount.
    pub(crate) rights: Rights,
    /// Descriptor on which readiness is reported.
    pub(crate) ready_fd: Option<i32>,
}

impl std::ops::Deref for Settings {
    type Target = MountConfig;

    fn deref(&self) -> &MountConfig {
        &self.config
    }
}

impl Settings {
    /// Source that mount tables show: `forebay:` and the instance's name, which its run directory
    /// has.
    pub(crate) fn source(&self) -> String {
        let run = self.run_text.to_string_lossy();
        format!("forebay:{}", run.rsplit('/').next().unwrap_or_default())
    }

    /// Reads the configuration file.
    ///
    /// # Errors
    /// The file cannot be read, or which field is wrong and why.
    pub(crate) fn read(launch: &Launch) -> Result<Settings, String> {
        let config = config_of(&launch.config)
            .map_err(|error| format!("configuration {}: {error}", launch.config.display()))?;
        let run_text = CString::new(config.run.as_os_str().as_encoded_bytes())
            .map_err(|_| "field run contains a NUL")?;
        let rights = Rights { is_for_all: config.is_for_all, is_trusted: config.is_trusted };
        Ok(Settings { config, run_text, threads: THREADS, rights, ready_fd: launch.ready_fd })
    }
}

fn config_of(path: &Path) -> Result<MountConfig, String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    MountConfig::from_json(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreadable_file_is_reported() {
        let launch = Launch { config: "/nowhere".into(), ..Launch::default() };
        let said = "configuration /nowhere: No such file or directory (os error 2)";
        assert_eq!(Settings::read(&launch).map(drop), Err(said.to_owned()));
    }
}
