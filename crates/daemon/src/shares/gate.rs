//! Which requests of a session wait, and for which account they count. On the threads of workers.
//!
//! The user and group are the kernel's word on the socket of the session. The job and the program are
//! what the process wrote beside its counters (`shm::activity`), before its first request of a file. A
//! mount asks for other processes: a slot names the block that the mount keeps for its process, with
//! user, group and job as the kernel says them. Only the instance's owner and root have sessions, so a
//! session may say so.
//!
//! All requests that move bytes to or from other hosts wait, so that jobs share what there is. Others
//! wait if a rule with more than limits of bytes matches them. Locks, closes and questions of daemons
//! never wait: others may wait for them.

use crate::sessions::client_session::ClientSession;
use crate::shares::Shares;
use crate::shares::accounts::{JobAccount, ShareRange};
use crate::shares::inbox::HeldRequest;
use qos::rules::{Facts, Operation};
use qos::scheduler::{Limits, Work};
use shm::activity::Tags;
use shm::activity::blocks::{JOB_BYTES, Label, PROGRAM_BYTES};
use std::sync::atomic::Ordering::Acquire;
use std::sync::{Arc, PoisonError};
use wire::codec::Reader;
use wire::{DaemonIndex, Header, Inode, Request};

/// A request as the gate sees it.
struct SeenRequest {
    operation: Operation,
    /// Of bytes that move.
    moved: Option<(u64, ShareRange)>,
}

fn moved(inode: Inode, offset: u64, bytes: u64) -> Option<(u64, ShareRange)> {
    Some((bytes, ShareRange::at(inode, offset)))
}

/// The request as the gate sees it; `None`: it never waits.
fn see(request: &Request<'_>, client: &ClientSession) -> Option<SeenRequest> {
    let (operation, moved) = match *request {
        Request::Open { .. } => (Operation::Open, None),
        Request::Create { .. } | Request::CreateNameless { .. } | Request::Link { .. } => {
            (Operation::Create, None)
        }
        Request::Lookup { .. }
        | Request::GetAttributes { .. }
        | Request::Walk { .. }
        | Request::ReadLink { .. }
        | Request::GetXattr { .. }
        | Request::ListXattr { .. } => (Operation::Stat, None),
        Request::ReadDirectory { .. } => (Operation::List, None),
        Request::Unlink { .. } | Request::RemoveDirectory { .. } => (Operation::Unlink, None),
        Request::Rename { .. } => (Operation::Rename, None),
        Request::SetAttributes { .. } | Request::SetXattr { .. } | Request::RemoveXattr { .. } => {
            (Operation::SetAttributes, None)
        }
        Request::Read { inode, offset, length, .. }
        | Request::Fetch { inode, offset, length, .. } => {
            (Operation::Read, moved(inode, offset, u64::from(length)))
        }
        Request::Store { inode, offset, length, .. } => {
            (Operation::Write, moved(inode, offset, u64::from(length)))
        }
        Request::Write { inode, offset, bytes, .. } => {
            (Operation::Write, moved(inode, offset, bytes.len() as u64))
        }
        Request::Push { buffer } => {
            let pushed = client.slots.bounce_buffers().pushed_write(buffer)?;
            (Operation::Write, moved(pushed.inode, pushed.offset, u64::from(pushed.length)))
        }
        _ => return None,
    };
    Some(SeenRequest { operation, moved })
}

/// Place of an operation in `SessionAccounts`.
fn place_of(operation: Operation) -> usize {
    Operation::ALL.iter().position(|&(_, one)| one == operation).unwrap_or(0)
}

/// The text of a label.
fn text<const N: usize>(label: &Label<N>) -> &[u8] {
    let length = label.iter().position(|&byte| byte == 0).unwrap_or(N);
    label.get(..length).unwrap_or_default()
}

/// A number for a job under a rule (FNV-1a).
fn number_of(job: &[u8], rule: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    job.iter().chain(b"\0").chain(rule).fold(0xcbf2_9ce4_8422_2325, step)
}

impl Shares {
    /// Whether a request of a session waits until its share and its limits let it start; then it is
    /// with the dispatcher.
    #[cold]
    pub(crate) fn must_wait(
        &self,
        client: &Arc<ClientSession>,
        slot: usize,
        worker: usize,
        bytes: &[u8],
    ) -> bool {
        let mut reader = Reader::new(bytes);
        let Ok(header) = Header::decode(&mut reader) else { return false };
        let Ok(request) = Request::decode(&mut reader) else { return false };
        let Some(seen) = see(&request, client) else { return false };
        let account = self.account_of(client, slot, seen.operation);
        if seen.moved.is_none() && !account.limits_operations {
            return false;
        }
        let work = match (seen.moved, seen.operation) {
            (None, _) => Work::Metadata,
            (Some(_), Operation::Read) => Work::Read,
            (Some(_), _) => Work::Write,
        };
        let (bytes, range) = seen.moved.unzip();
        self.hold(HeldRequest {
            client: Arc::clone(client),
            slot: slot as u16,
            worker,
            account,
            work,
            daemon: DaemonIndex(header.daemon),
            bytes: bytes.unwrap_or(0),
            range,
        })
    }

    /// The account of a session's requests of one kind, for the process behind a slot.
    fn account_of(
        &self,
        client: &ClientSession,
        slot: usize,
        operation: Operation,
    ) -> Arc<JobAccount> {
        let mut accounts = client.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        let accounts = &mut *accounts;
        let generation = self.generation.load(Acquire);
        if accounts.generation != generation {
            accounts.own = Default::default();
            accounts.by_block.clear();
            accounts.generation = generation;
        }
        let place = place_of(operation);
        let origin = client.slots.origin(slot);
        if let Some(taken) = origin.and_then(|block| self.activity.taken_by_mount(block)) {
            let (word, known) = accounts.by_block.entry(taken.block).or_default();
            if *word != taken.word {
                (*word, *known) = (taken.word, Default::default());
            }
            let Tags { job, program, uid, gid, .. } = taken.owner.tags;
            let make = || Arc::new(self.find_account((uid, gid), Some(&(job, program)), operation));
            return match known.get_mut(place) {
                Some(known) => Arc::clone(known.get_or_insert_with(make)),
                None => make(),
            };
        }
        if let Some(Some(known)) = accounts.own.get(place) {
            return Arc::clone(known);
        }
        let peer = &client.session.peer;
        if accounts.names.is_none() {
            accounts.names = self.names_of(peer.pid);
        }
        let by = (peer.uid, peer.gid);
        let found = Arc::new(self.find_account(by, accounts.names.as_ref(), operation));
        // A process that has not said its name yet is asked again.
        if accounts.names.is_some()
            && let Some(entry) = accounts.own.get_mut(place)
        {
            *entry = Some(Arc::clone(&found));
        }
        found
    }

    /// Job and program of a process, as it says.
    fn names_of(&self, pid: u32) -> Option<(Label<JOB_BYTES>, Label<PROGRAM_BYTES>)> {
        let mut found = None;
        self.activity.each_taken(&mut |taken| {
            let Tags { job, program, .. } = taken.owner.tags;
            let is_it = taken.owner.pid == pid && !taken.owner.is_by_mount && !taken.is_ended;
            if is_it && program != Tags::NONE.program {
                found = Some((job, program));
            }
        });
        found
    }

    fn find_account(
        &self,
        (uid, gid): (u32, u32),
        names: Option<&(Label<JOB_BYTES>, Label<PROGRAM_BYTES>)>,
        operation: Operation,
    ) -> JobAccount {
        let (job, program) =
            names.map_or((&b""[..], &b""[..]), |(job, program)| (text(job), text(program)));
        let facts = Facts { uid, gid, job, program, dir: b"", tag: b"", operation };
        let rules = self.rules.read().unwrap_or_else(PoisonError::into_inner);
        let rule = rules.rules.find_rule(&facts);
        // All jobs of the user are one then.
        let job = if rule.is_some_and(|rule| rule.scope() == qos::rules::Scope::User) {
            b""
        } else {
            job
        };
        let limits_operations = rule.is_some_and(|rule| {
            let only_bytes = Limits {
                operations_per_second_max: 0,
                in_flight_max: 0,
                weight: Limits::default().weight,
                ..rule.limits()
            };
            only_bytes != rule.limits()
        });
        let rule = rule.map(|rule| rule.name().to_owned());
        let number = number_of(job, rule.as_deref().unwrap_or_default().as_bytes());
        let job = String::from_utf8_lossy(job).into_owned();
        JobAccount { user: uid, job, number, rule, limits_operations }
    }
}
