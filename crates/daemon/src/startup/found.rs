//! The state that earlier starts left: the records of starts beside the log and beside the
//! shared memory, and that every file which the earlier daemon had is still there.
//!
//! Not here: the records and the decision, which are `store::starts`; the head of the log and the
//! page of the SSD file, which are checked when these are opened.

use crate::startup::failure::{Failure, StartResult, WithoutCopies};
use crate::startup::settings::Settings;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use store::medium::{Files as _, RealFiles};
use store::starts::{Before, DISK_RECORD, KnownFile, Plan, Start};
use store::{Expected, Identity};

fn failure(error: store::Error) -> Failure {
    Failure::of_file(WithoutCopies::NewInstance)(error)
}

/// See above. It becomes the record of this start once everything is recovered.
pub(crate) struct Found {
    start: Start<RealFiles, RealFiles>,
    identity: Identity,
}

impl Found {
    /// Reads the records, and removes what a first start left that was not completed.
    pub(crate) fn open(settings: &Settings, instance: u64) -> StartResult<Found> {
        store::directory::create(&settings.data).map_err(failure)?;
        store::directory::create(&settings.shm).map_err(failure)?;
        let identity = Identity::of_daemon(instance, settings.index);
        let (disk, memory) = (RealFiles::new(&settings.data), RealFiles::new(&settings.shm));
        let own = format!("d{}.", settings.index);
        let record = format!("{own}starts");
        let kept = [format!("{own}lock"), record.clone()];
        let clear = |disk: &mut RealFiles, memory: &mut RealFiles| {
            remove_all(disk, |name| name != DISK_RECORD)?;
            remove_all(memory, |name| name.starts_with(&own) && !kept.iter().any(|it| it == name))
        };
        let lost_starts = settings.lost_starts;
        let before = match settings.has_started {
            true => Before::Ready { lost_starts },
            false => Before::Nothing { lost_starts },
        };
        let start = Start::open(disk, memory, &record, (identity, before), clear);
        let start = start.map_err(failure)?;
        if let Plan::Continue { memory, .. } = start.plan() {
            for known in &memory.files {
                let path = settings.shm.join(&known.name);
                memory.check(&path, known_file(&path, &known.name)?.as_ref()).map_err(failure)?;
            }
        }
        Ok(Found { start, identity })
    }

    /// Number of this start.
    pub(crate) const fn number(&self) -> u64 {
        self.start.plan().number()
    }

    /// Owner of the daemon's files.
    pub(crate) const fn identity(&self) -> Identity {
        self.identity
    }

    /// Whether the files of an earlier start must be there.
    pub(crate) const fn expected(&self) -> Expected {
        self.start.plan().expected()
    }

    /// Everything is recovered: the next start must find `files` in shared memory.
    pub(crate) fn complete(self, files: Vec<KnownFile>) -> StartResult<()> {
        self.start.complete(files).map_err(failure)
    }
}

/// A file of shared memory as it is now; `None` if it is missing.
fn known_file(path: &Path, name: &str) -> StartResult<Option<KnownFile>> {
    let opened = fs::File::open(path);
    match opened {
        Ok(file) => {
            KnownFile::of(name, &file).map(Some).map_err(|error| Failure::new(error.to_string()))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Failure::new(format!("cannot open {}: {error}", path.display()))),
    }
}

/// Removes the files and directories whose names are chosen.
fn remove_all(files: &mut RealFiles, is_chosen: impl Fn(&str) -> bool) -> store::Result<()> {
    let fail = |path: &Path, errno| store::Error::new("remove", path, store::Kind::Device(errno));
    let names = files.names().map_err(|errno| fail(&files.path(""), errno))?;
    for name in names.iter().filter(|name| is_chosen(name)) {
        let path = files.path(name);
        if fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir()) {
            store::directory::remove(&path)?;
        } else {
            files.remove(name).map_err(|errno| fail(&path, errno))?;
        }
    }
    Ok(())
}
