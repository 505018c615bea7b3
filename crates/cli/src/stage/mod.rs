//! Staging: copies trees between another file system and an instance, and prefetches or evicts
//! files.
//!
//! It runs in a preloaded process of its own, `forebay stage-worker`, to which both sides are
//! directories. One thread finds names (`walk`), others copy files (`copy`; `large` for files that
//! several threads copy). Files that found no space (`retry`) and hard links (`hardlinks`) come
//! after all other files, attributes of directories last. The crate `backing` writes partial files
//! and commits them.

mod walk;

mod copy;

mod large;

mod hardlinks;

mod retry;

mod queue;

mod summary;

pub(crate) mod prefetch;

pub(crate) mod evict;

use backing::Dir;
use copy::CopyContext;
use hardlinks::HardLinks;
use large::Large;
use queue::Queue;
use retry::RetryQueue;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use summary::Summary;

/// How often the progress line changes.
const TICK: Duration = Duration::from_millis(200);

/// A requested copy.
#[derive(Debug)]
pub(crate) struct StageRequest {
    /// `staged in` or `staged out`.
    pub(crate) what: &'static str,
    /// Files and directories to copy.
    pub(crate) sources: Vec<PathBuf>,
    /// Paths relative to the only source; `None`: each source as a whole.
    pub(crate) list: Option<Vec<PathBuf>>,
    /// The target directory.
    pub(crate) into: PathBuf,
    /// How to copy.
    pub(crate) options: CopyOptions,
}

/// How files are copied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CopyOptions {
    /// Threads that copy.
    pub(crate) jobs: usize,
    /// Files that are already there are copied again.
    pub(crate) is_forced: bool,
    /// Copies are read back and compared.
    pub(crate) is_verified: bool,
    /// Files are on the device before they get their names.
    pub(crate) is_durable: bool,
}

/// A source directory and the target directory, as the user named them.
struct StageRoot {
    from: Dir,
    to: Dir,
    /// Path of the source, for people.
    shown: PathBuf,
    /// Path of the target, for people.
    target_shown: PathBuf,
    /// The copied paths are listed, so that a name may occur several times.
    is_listed: bool,
}

impl StageRoot {
    /// The path to which `error` applies, for people: that of the target for failed writes, else
    /// that of the source.
    fn shown(&self, path: &Path, error: &backing::CopyError) -> PathBuf {
        match error {
            backing::CopyError::Write(_) => self.target_shown.join(path),
            _ => self.shown.join(path),
        }
    }
}

/// The directories at `path` under source and target.
struct Pair {
    top: Arc<StageRoot>,
    path: PathBuf,
    from: Dir,
    to: Arc<Dir>,
}

impl Pair {
    /// Opens both directories.
    fn open(top: &Arc<StageRoot>, path: &Path) -> Result<Pair, backing::CopyError> {
        let from = top.from.dir(path).map_err(backing::CopyError::Read)?;
        let to = Arc::new(top.to.dir(path).map_err(backing::CopyError::Write)?);
        Ok(Pair { top: Arc::clone(top), path: path.to_owned(), from, to })
    }
}

/// A name to copy.
struct NameToCopy {
    pair: Arc<Pair>,
    name: OsString,
    kind: backing::Kind,
    /// The target already has the name.
    is_there: bool,
}

impl NameToCopy {
    /// The path to which `error` applies, for people.
    fn shown(&self, error: &backing::CopyError) -> PathBuf {
        self.pair.top.shown(&self.pair.path.join(&self.name), error)
    }
}

/// A task for a copying thread.
enum Task {
    Copy(NameToCopy),
    /// Copies parts of a large file.
    Help(Arc<Large>),
}

/// The state that all threads share.
struct Stage {
    options: CopyOptions,
    queue: Queue<Task>,
    summary: Summary,
    hardlinks: HardLinks,
    retry: RetryQueue,
    /// Directories whose attributes are set at the end, parents first.
    dirs: Mutex<Vec<(Arc<StageRoot>, PathBuf)>>,
}

/// Stages files; failures are printed and counted.
///
/// # Errors
/// The target directory cannot be opened or created.
pub(crate) fn run(request: &StageRequest) -> io::Result<Summary> {
    let options = request.options;
    let is_new = !request.into.exists();
    let into = Dir::open_or_create(&request.into)?;
    backing::clear_umask();
    let stage = Stage {
        options,
        queue: Queue::new(options.jobs),
        summary: Summary::new("stage", request.what),
        hardlinks: HardLinks::default(),
        retry: RetryQueue::default(),
        dirs: Mutex::new(Vec::new()),
    };
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ticker = scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                std::thread::park_timeout(TICK);
                stage.summary.tick();
            }
        });
        let workers: Vec<_> = (0..options.jobs).map(|_| scope.spawn(|| stage.work())).collect();
        stage.walk(request, &into, is_new);
        stage.summary.is_all_found.store(true, Ordering::Relaxed);
        stage.queue.close();
        for worker in workers {
            let _ = worker.join();
        }
        stage.end(&into);
        is_done.store(true, Ordering::Relaxed);
        ticker.thread().unpark();
    });
    Ok(stage.summary)
}

impl Stage {
    /// The work of a copying thread.
    fn work(&self) {
        let mut context = CopyContext::new(self.options);
        loop {
            let next = self.queue.try_next().or_else(|| {
                // Copied files are committed before the thread waits for more.
                self.settle(&mut context);
                self.queue.next()
            });
            match next {
                Some(Task::Copy(name)) => self.name(name, &mut context),
                Some(Task::Help(large)) => self.help(large, &mut context),
                None => return,
            }
        }
    }

    /// The work after all other files.
    fn end(&self, into: &Dir) {
        let mut context = CopyContext::new(self.options);
        self.retry_all(&mut context);
        self.link_all(&mut context);
        self.settle(&mut context);
        let mut dirs = self.dirs.lock().unwrap_or_else(PoisonError::into_inner);
        // Children first, because a directory may become inaccessible to its owner.
        while let Some((top, path)) = dirs.pop() {
            if let Err(error) = self.end_dir(&top, &path) {
                self.summary.fail(&top.shown(&path, &error), &error);
            }
        }
        if self.options.is_durable {
            let _ = into.sync();
        }
    }

    fn end_dir(&self, top: &Arc<StageRoot>, path: &Path) -> Result<(), backing::CopyError> {
        let pair = Pair::open(top, path)?;
        let node = backing::Node::of(&pair.from).map_err(backing::CopyError::Read)?;
        let done = backing::attributes::copy(&pair.from, &node, &*pair.to);
        let backing::AttributesLost(is_lost) = done.map_err(backing::CopyError::Write)?;
        if is_lost {
            summary::count(&self.summary.without_attributes);
        }
        if self.options.is_durable {
            pair.to.sync().map_err(backing::CopyError::Write)?;
        }
        Ok(())
    }
}
