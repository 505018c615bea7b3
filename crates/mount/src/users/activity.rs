//! The processes from which requests of the kernel come, each with its job, tag and rank as
//! its environment says. Counters are in `shm::activity`.
//!
//! A thread of a process is looked up in `/proc` at its first request, and again when a second has
//! passed, because its number may belong to another process by then. A process of another user may
//! hide its environment; it belongs to no job then. Pages that the kernel writes on its own behalf are
//! those of the process that opened the file; its other requests are counted for nobody.

use client::{CallTimer, Client, OpClass, Tags};
use fuse::Operation;
use shm::activity::blocks::{Label, PROGRAM_BYTES, label};
use shm::activity::{ActivitySegment, Lane, Owner};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use wire::Inode;
use wire::errno::Errno;
use wire::job::{JOB_VARIABLES, RANK_VARIABLES, TAG_VARIABLE};

use crate::settings::Settings;
use crate::users::admission::{Admission, AdmittedRequest};
use crate::users::id_map::Owners;

/// How long a thread's process is taken for the same.
const CHECKED_TIME: Duration = Duration::from_secs(1);
/// How long a request waits for what `/proc` says of its process: of an unknown one, and of one whose
/// block is known. The first request of a program comes before the kernel locks its state.
const LOOK_TIMES: [Duration; 2] = [Duration::from_millis(200), Duration::from_millis(5)];
/// Threads and processes that are remembered.
const KNOWN_MAX: usize = 4096;

/// A block of a process.
#[derive(Clone, Copy)]
struct KnownBlock {
    lane: Lane,
    /// Its word when it was taken: when that changed, the block is another's.
    word: u64,
    /// Number of the user's job for `admission`.
    account: u8,
}

impl KnownBlock {
    /// That of operations of nobody.
    fn nobodys(segment: &ActivitySegment) -> KnownBlock {
        KnownBlock { lane: Lane::NOBODY, word: segment.word_of(Lane::NOBODY.block), account: 0 }
    }

    /// It is still that of the process.
    fn is_valid(&self, segment: &ActivitySegment) -> bool {
        segment.word_of(self.lane.block) == self.word
    }
}

#[derive(Default)]
struct Known {
    /// By thread, and when it was looked up.
    threads: HashMap<u32, (KnownBlock, Instant)>,
    /// By pid, start time and program.
    processes: HashMap<(u32, u64, Label<PROGRAM_BYTES>), KnownBlock>,
}

/// Blocks of calling processes.
#[derive(Default)]
pub(crate) struct CallerActivity {
    known: Mutex<Known>,
    /// By handle of a file that is open for writing, the block of the process that opened it.
    openers: Mutex<HashMap<u64, KnownBlock>>,
    admission: Admission,
    /// A process counts for the user of the instance to which its own is mapped: as its files do.
    owners: Owners,
}

/// A call that has begun: how it is counted, if it is, and the place that it has among those of its job.
#[derive(Default)]
pub(crate) struct BegunCall<'a> {
    counted: Option<(OpClass, CallTimer<'a>)>,
    /// The directory in which it names something.
    directory: Option<Inode>,
    _admitted: Option<AdmittedRequest<'a>>,
}

/// A process as `/proc` shows it.
#[derive(Debug, PartialEq, Eq)]
struct CallingProcess {
    pid: u32,
    started: u64,
    tags: Tags,
}

impl CallingProcess {
    /// The process of a thread, with job, tag and rank from its environment. Start time and name are
    /// those of its first thread. It may wait for the mount: `soon`.
    fn of(thread: u32) -> Option<CallingProcess> {
        let read = |id: u32, name: &str| std::fs::read_to_string(format!("/proc/{id}/{name}")).ok();
        let mut status = read(thread, "status")?;
        let pid = field_of(&status, "Tgid:")?.parse().ok()?;
        if pid != thread {
            status = read(pid, "status")?;
        }
        let stat = read(pid, "stat")?;
        // Field 22 of the line; what follows the last parenthesis begins with field 3.
        let rest = stat.get(stat.rfind(')')? + 2..)?;
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let first_of = |name| field_of(&status, name)?.split_whitespace().next()?.parse().ok();
        let tags = Tags {
            program: label(field_of(&status, "Name:")?.as_bytes()),
            uid: first_of("Uid:")?,
            gid: first_of("Gid:")?,
            ..tags_in(&environment)
        };
        Some(CallingProcess { pid, started: rest.split(' ').nth(19)?.parse().ok()?, tags })
    }
}

/// The answer of `look`, by a thread of its own; `None` if there is none within `limit`. `/proc` waits
/// for a process that executes, maps or touches a file, and that may wait for this mount: a thread that
/// serves must not wait for it.
fn soon<T: Send + 'static>(
    limit: Duration,
    look: impl FnOnce() -> Option<T> + Send + 'static,
) -> Option<T> {
    let (to, from) = mpsc::sync_channel(1);
    let reader = thread::Builder::new().name("callers".to_owned()).spawn(move || to.send(look()));
    reader.ok().and_then(|_| from.recv_timeout(limit).ok()).flatten()
}

/// A field of a status as `/proc` shows it.
fn field_of<'s>(status: &'s str, name: &str) -> Option<&'s str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

/// Job, tag and rank in an environment as `/proc` shows it.
fn tags_in(environment: &[u8]) -> Tags {
    let value = |name: &&str| {
        let mut entries = environment.split(|&byte| byte == 0);
        let value =
            entries.find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
        value.filter(|value| !value.is_empty())
    };
    let rank =
        RANK_VARIABLES.iter().find_map(value).and_then(|rank| std::str::from_utf8(rank).ok());
    let job = JOB_VARIABLES.iter().find_map(value).unwrap_or_default();
    let tag = value(&TAG_VARIABLE).unwrap_or_default();
    let rank = rank.and_then(|rank| rank.parse().ok());
    Tags { job: label(job), tag: label(tag), rank, ..Tags::NONE }
}

impl CallerActivity {
    /// Of a mount, without callers yet.
    pub(crate) fn of(settings: &Settings) -> CallerActivity {
        CallerActivity { owners: Owners::of(settings), ..CallerActivity::default() }
    }

    /// Has the calling thread of this program count for the process of a thread, waits until a request
    /// of its job may be carried out, and begins a call.
    pub(crate) fn begin<'a>(
        &'a self,
        client: &'a Client,
        (thread, node): (u32, Inode),
        operation: &Operation<'_>,
    ) -> BegunCall<'a> {
        let Some(segment) = client.activity().filter(|_| may_be_counted(operation)) else {
            client.count_in(Lane::NOBODY);
            return BegunCall::default();
        };
        let block = match *operation {
            Operation::Write { handle, .. } if thread == 0 => self.block_of_opener(segment, handle),
            _ => self.block_of(segment, thread),
        };
        let block = block.unwrap_or_else(|| KnownBlock::nobodys(segment));
        client.count_in(block.lane);
        let _admitted = Some(self.admission.enter(block.account));
        let class = class_of(operation).filter(|_| thread != 0);
        let counted = class.map(|class| (class, client.begin_call()));
        BegunCall { counted, directory: names_something(operation).then_some(node), _admitted }
    }

    /// Counts a call that `begin` began.
    pub(crate) fn end(client: &Client, call: BegunCall<'_>, outcome: Result<usize, Errno>) {
        let Some((class, timer)) = call.counted else { return };
        let result = outcome.map_or_else(|errno| -i64::from(errno.0), |_| 0);
        if client.end_call(timer, class, result)
            && let Some(directory) = call.directory
            && client.is_directory_due()
        {
            client.note_directory(directory);
        }
    }

    /// Notes that the process for which the calling thread counts has opened a file for writing.
    pub(crate) fn note_opener(&self, client: &Client, handle: u64) {
        let (Some(segment), Some(block)) = (client.activity(), client.counted_block()) else {
            return;
        };
        if let Some(taken) = segment.taken_by_mount(block) {
            let lane = Lane { block, is_shared: true };
            let account = taken.owner.tags.account();
            self.openers().insert(handle, KnownBlock { lane, word: taken.word, account });
        }
    }

    /// A handle is closed.
    pub(crate) fn forget_opener(&self, handle: u64) {
        self.openers().remove(&handle);
    }

    fn openers(&self) -> MutexGuard<'_, HashMap<u64, KnownBlock>> {
        self.openers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn block_of_opener(&self, segment: &ActivitySegment, handle: u64) -> Option<KnownBlock> {
        self.openers().get(&handle).copied().filter(|block| block.is_valid(segment))
    }

    /// The block of the process of a thread; `None`: it has none.
    fn block_of(&self, segment: &ActivitySegment, thread: u32) -> Option<KnownBlock> {
        if thread == 0 {
            return None;
        }
        let is_valid = |block: &KnownBlock| block.is_valid(segment);
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = known().threads.get(&thread).copied().filter(|(block, _)| is_valid(block));
        if let Some((block, _)) = seen.filter(|(_, checked)| checked.elapsed() < CHECKED_TIME) {
            return Some(block);
        }
        let [unknown, again] = LOOK_TIMES;
        let limit = if seen.is_some() { again } else { unknown };
        let process = soon(limit, move || CallingProcess::of(thread));
        let mut known = known();
        if known.threads.len() >= KNOWN_MAX {
            known.threads.clear();
        }
        if known.processes.len() >= KNOWN_MAX {
            known.processes.retain(|_, block| is_valid(block));
        }
        let block = match process {
            Some(mut process) => {
                let Tags { uid, gid, .. } = process.tags;
                process.tags.uid = self.owners.user_of_caller(uid);
                process.tags.gid = self.owners.group_of_caller(gid);
                let key = (process.pid, process.started, process.tags.program);
                let block = known.processes.get(&key).copied().filter(is_valid);
                let block = block.or_else(|| take(segment, &process))?;
                known.processes.insert(key, block);
                block
            }
            // It waits for this mount, so its number is not another's yet.
            None => match seen {
                Some((block, _)) => block,
                None => KnownBlock::nobodys(segment),
            },
        };
        known.threads.insert(thread, (block, Instant::now()));
        Some(block)
    }
}

fn take(segment: &ActivitySegment, process: &CallingProcess) -> Option<KnownBlock> {
    let CallingProcess { pid, started, tags } = *process;
    let owner = Owner { pid, started, tags, is_by_mount: true };
    let lane = Lane { block: segment.take(&owner, pid)?, is_shared: true };
    Some(KnownBlock { lane, word: segment.word_of(lane.block), account: tags.account() })
}

/// False for what a process also requests while it executes a program, which closes files: `/proc` waits
/// for that, so the process must not be looked up. The kernel's own requests are of nobody.
const fn may_be_counted(operation: &Operation<'_>) -> bool {
    use Operation::{BatchForget, Destroy, Flush, Forget, Interrupt, Retrieved};
    !matches!(
        operation,
        Flush { .. } | Forget { .. } | BatchForget(_) | Interrupt { .. } | Retrieved | Destroy
    )
}

/// The class of a request that may be counted; `None`: reads and writes count themselves.
const fn class_of(operation: &Operation<'_>) -> Option<OpClass> {
    Some(match operation {
        Operation::Open { .. } | Operation::OpenDirectory { .. } => OpClass::Open,
        Operation::Create { .. }
        | Operation::TemporaryFile { .. }
        | Operation::MakeDirectory { .. }
        | Operation::MakeNode { .. }
        | Operation::Symlink { .. }
        | Operation::Link { .. } => OpClass::Create,
        Operation::Lookup { .. } | Operation::GetAttributes { .. } | Operation::ReadLink => {
            OpClass::Stat
        }
        Operation::ReadDirectory { .. } => OpClass::ReadDirectory,
        Operation::Unlink { .. } | Operation::RemoveDirectory { .. } => OpClass::Unlink,
        Operation::Rename { .. } => OpClass::Rename,
        Operation::Sync { .. } | Operation::SyncDirectory { .. } => OpClass::Sync,
        Operation::Release { .. } | Operation::ReleaseDirectory { .. } => OpClass::Close,
        Operation::Read { .. } | Operation::Write { .. } => return None,
        _ => OpClass::Other,
    })
}

/// Whether an operation names an entry of its node.
const fn names_something(operation: &Operation<'_>) -> bool {
    matches!(
        operation,
        Operation::Lookup { .. }
            | Operation::Symlink { .. }
            | Operation::MakeNode { .. }
            | Operation::MakeDirectory { .. }
            | Operation::Unlink { .. }
            | Operation::RemoveDirectory { .. }
            | Operation::Rename { .. }
            | Operation::Link { .. }
            | Operation::Create { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use shm::Segment;
    use shm::activity::ACTIVITY_BYTES;

    #[test]
    fn job_tag_and_rank_are_read_from_an_environment() {
        let tags = |job: &[u8], tag: &[u8], rank: Option<u32>| Tags {
            job: label(job),
            tag: label(tag),
            rank,
            ..Tags::NONE
        };
        let text = b"A=1\0SLURM_JOB_ID=77\0SLURM_PROCID=3\0FOREBAY_TAG=half\0";
        assert_eq!(tags_in(text), tags(b"77", b"half", Some(3)));
        let text = b"SLURM_JOB_ID=77\0FOREBAY_JOB=x\0PMI_RANK=no\0FOREBAY_TAG=\0";
        assert_eq!(tags_in(text), tags(b"x", b"", None));
        let text = b"FOREBAY_JOB=\0PBS_JOBID=9.server\0FOREBAY_JOBS=2\0FOREBAY_TAGS=3\0";
        assert_eq!(tags_in(text), tags(b"9.server", b"", None));
        assert_eq!(tags_in(b""), tags(b"", b"", None));
    }

    #[test]
    fn a_look_that_waits_for_the_mount_is_given_up() {
        let (answer, request) = mpsc::channel::<u32>();
        let look = move || request.recv().ok();
        assert_eq!(soon(LOOK_TIMES[1], look), None, "it waits for an answer that comes later");
        drop(answer);
        assert_eq!(soon(Duration::from_secs(60), || Some(7)), Some(7));
    }

    #[test]
    fn threads_of_a_process_share_its_block() {
        let (segment, _) = Segment::nameless(c"test", ACTIVITY_BYTES).expect("memory");
        let segment = ActivitySegment::new(segment).expect("a segment");
        let callers = CallerActivity::default();
        let own = std::process::id();
        let lane_of =
            |thread| callers.block_of(&segment, thread).map_or(Lane::NOBODY, |block| block.lane);
        let first = lane_of(own);
        assert!(first.is_shared && first != Lane::NOBODY);
        let thread = thread::scope(|scope| scope.spawn(|| lane_of(shm::wait::thread_id())).join());
        assert_eq!(thread.expect("no panic"), first);
        let process = CallingProcess::of(own).expect("it runs");
        assert_eq!((process.pid, CallingProcess::of(0)), (own, None));
        assert_eq!(lane_of(0), Lane::NOBODY);
        let mut taken = None;
        segment.each_taken(&mut |block| {
            if block.block == first.block {
                taken = Some(block);
            }
        });
        let taken = taken.expect("its block");
        assert_eq!((taken.owner.pid, taken.owner.is_by_mount), (own, true));
        assert!(segment.free(&taken), "as when the process ended");
        let next = lane_of(own);
        assert!(next != Lane::NOBODY, "a freed block is not used again");
        assert_ne!(segment.word_of(next.block), taken.word);
    }
}
