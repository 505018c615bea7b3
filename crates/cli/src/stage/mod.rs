//! Staging: copying trees between the site's file system and an instance.
//!
//! This runs in a process of its own that is preloaded, `forebay stage-worker`, to which both sides are
//! directories. One thread finds names (`walk`), others copy (`copy`, and `large` for files that several
//! threads copy). What found no room (`again`) and further names of a file (`twins`) come after all
//! files, attributes of directories last. How a file appears is the crate `below`'s.

mod again;

mod copy;

pub(crate) mod give_up;

mod large;

mod queue;

pub(crate) mod rise;

mod tally;

mod twins;

mod walk;

use again::Again;
use below::Folder;
use copy::Kit;
use large::Large;
use queue::Queue;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tally::Tally;
use twins::Twins;

/// How often the line on the terminal changes.
const TICK: Duration = Duration::from_millis(200);

/// What is to be staged.
#[derive(Debug)]
pub(crate) struct Order {
    /// `staged in` or `staged out`.
    pub(crate) what: &'static str,
    /// What is copied.
    pub(crate) sources: Vec<PathBuf>,
    /// Paths below the only source; without it all of each source.
    pub(crate) list: Option<Vec<PathBuf>>,
    /// The directory that it comes to.
    pub(crate) into: PathBuf,
    /// How.
    pub(crate) manner: Manner,
}

/// How it is staged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    /// Threads that copy.
    pub(crate) jobs: usize,
    /// What is there already is copied again.
    pub(crate) is_forced: bool,
    /// Copies are read and compared.
    pub(crate) is_verified: bool,
    /// Files are on the device before they appear.
    pub(crate) is_durable: bool,
}

/// Two directories of which one is copied into the other, as the user named them.
struct Top {
    from: Folder,
    to: Folder,
    /// How the first is called.
    shown: PathBuf,
    /// What is copied is listed: names may be met several times.
    is_listed: bool,
}

/// The directories at `path` below two others.
struct Pair {
    top: Arc<Top>,
    path: PathBuf,
    from: Folder,
    to: Arc<Folder>,
}

impl Pair {
    /// Opens both.
    fn open(top: &Arc<Top>, path: &Path) -> Result<Pair, below::Trouble> {
        let from = top.from.folder(path).map_err(below::Trouble::Read)?;
        let to = Arc::new(top.to.folder(path).map_err(below::Trouble::Write)?);
        Ok(Pair { top: Arc::clone(top), path: path.to_owned(), from, to })
    }
}

/// A name to be copied.
struct Name {
    pair: Arc<Pair>,
    name: OsString,
    kind: below::Kind,
    /// The name is there on the other side.
    is_there: bool,
}

impl Name {
    /// For people.
    fn shown(&self) -> PathBuf {
        self.pair.top.shown.join(&self.pair.path).join(&self.name)
    }
}

/// Something to do for a thread that copies.
enum Task {
    Name(Name),
    /// Help with a large file.
    Help(Arc<Large>),
}

/// All that threads share.
struct Stage {
    manner: Manner,
    queue: Queue<Task>,
    tally: Tally,
    twins: Twins,
    again: Again,
    /// Directories whose attributes are set at the end, those above first.
    folders: Mutex<Vec<(Arc<Top>, PathBuf)>>,
}

/// Stages; what it could not stage is said and counted.
///
/// # Errors
/// The directory that it comes to can not be opened or made.
pub(crate) fn run(order: &Order) -> io::Result<Tally> {
    let manner = order.manner;
    let is_new = !order.into.exists();
    let into = Folder::open_or_make(&order.into)?;
    below::clear_mask();
    let stage = Stage {
        manner,
        queue: Queue::new(manner.jobs),
        tally: Tally::new(order.what),
        twins: Twins::default(),
        again: Again::default(),
        folders: Mutex::new(Vec::new()),
    };
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ticker = scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                std::thread::park_timeout(TICK);
                stage.tally.tick();
            }
        });
        let workers: Vec<_> = (0..manner.jobs).map(|_| scope.spawn(|| stage.work())).collect();
        stage.walk(order, &into, is_new);
        stage.queue.close();
        for worker in workers {
            let _ = worker.join();
        }
        stage.end(&into);
        is_done.store(true, Ordering::Relaxed);
        ticker.thread().unpark();
    });
    Ok(stage.tally)
}

impl Stage {
    /// What each thread does that copies.
    fn work(&self) {
        let mut kit = Kit::new(self.manner);
        loop {
            let next = self.queue.try_next().or_else(|| {
                // Nobody waits for what is ready.
                self.settle(&mut kit);
                self.queue.next()
            });
            match next {
                Some(Task::Name(name)) => self.name(name, &mut kit),
                Some(Task::Help(large)) => self.help(large, &mut kit),
                None => return,
            }
        }
    }

    /// What comes after all files.
    fn end(&self, into: &Folder) {
        let mut kit = Kit::new(self.manner);
        self.copy_again(&mut kit);
        self.name_twins(&mut kit);
        self.settle(&mut kit);
        let mut folders = self.folders.lock().unwrap_or_else(PoisonError::into_inner);
        // A directory that its owner may not enter any more comes after what is in it.
        while let Some((top, path)) = folders.pop() {
            if let Err(trouble) = self.end_folder(&top, &path) {
                self.tally.fail(&top.shown.join(&path), &trouble);
            }
        }
        if self.manner.is_durable {
            let _ = into.sync();
        }
    }

    fn end_folder(&self, top: &Arc<Top>, path: &Path) -> Result<(), below::Trouble> {
        let pair = Pair::open(top, path)?;
        let node = below::Node::of(&pair.from).map_err(below::Trouble::Read)?;
        let done = below::attributes::copy(&pair.from, &node, &*pair.to);
        let below::Lost(is_lost) = done.map_err(below::Trouble::Write)?;
        if is_lost {
            tally::count(&self.tally.bare);
        }
        if self.manner.is_durable {
            pair.to.sync().map_err(below::Trouble::Write)?;
        }
        Ok(())
    }
}
