//! A mount for the life of one command: `forebay run --mount`.

use super::{Mount, RECORD, Rights, State, Wish, all, end, start};
use crate::directories;
use crate::failure::{Failure, Result};
use crate::progress::Progress;
use crate::records::{self, Host};
use std::io::{ErrorKind, PipeWriter};
use std::path::PathBuf;
use std::time::Duration;

/// A mount that a command wants.
#[derive(Debug)]
pub(crate) struct Wanted {
    /// Where.
    pub(crate) at: PathBuf,
    /// What users may.
    pub(crate) rights: Rights,
    /// Way of the kernel's requests.
    pub(crate) requests: String,
    /// The directory is made if it is missing.
    pub(crate) may_be_made: bool,
}

/// A mount for a command's life. It goes, too, if this program is killed.
#[derive(Debug)]
pub(crate) struct Brief {
    at: PathBuf,
    /// None: it was there before, and stays.
    held: Option<PipeWriter>,
    is_made: bool,
}

impl Brief {
    /// Takes it away; who has a file open there, behind the command's back, is served on.
    ///
    /// # Errors
    /// As `end`.
    pub(crate) fn end(self, patience: Duration) -> Result<()> {
        if self.held.is_some() {
            let _elsewhere = end(&self.at, true, patience)?;
        }
        if self.is_made {
            let _ = std::fs::remove_dir(&self.at);
        }
        Ok(())
    }
}

/// Mounts the instance `name` for a command, unless it is mounted there already.
///
/// # Errors
/// As `start`.
pub(crate) fn for_command(name: &str, wanted: &Wanted, patience: Duration) -> Result<Brief> {
    let run = directories::run(name)?;
    let host: Option<Host> = records::load(&run, RECORD)?;
    let host = host.ok_or_else(|| Failure::no_instance(name))?;
    let Wanted { at, rights, requests, may_be_made } = wanted;
    let is_there = |(mount, state): &(Mount, State)| {
        mount.at == *at && !mount.is_brief && *state == State::Served
    };
    if all(&run)?.iter().any(is_there) {
        return Ok(Brief { at: at.clone(), held: None, is_made: false });
    }
    let is_made = *may_be_made
        && match std::fs::create_dir(at) {
            Ok(()) => true,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => false,
            Err(error) => {
                let advice = format!("{error}: name a directory of yours behind --mount");
                return Err(Failure::at("can not make", at.display(), advice));
            }
        };
    let mounted = std::io::pipe()
        .map_err(|error| Failure::at("can not make", "a pipe", error))
        .and_then(|(pipe, held)| {
            let (at, requests) = (at.clone(), requests.clone());
            let wish = Wish { at, rights: *rights, requests, while_held: Some(pipe) };
            start(&run, &host, &wish, patience, &mut Progress::new("mounting")).map(|_| held)
        });
    if mounted.is_err() && is_made {
        let _ = std::fs::remove_dir(at);
    }
    mounted.map(|held| Brief { at: at.clone(), held: Some(held), is_made })
}
