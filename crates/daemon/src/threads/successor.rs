//! A service that this daemon took over: its copy is replayed, and it runs on a thread of its own until
//! this daemon owns it no more. A service of a worker is replayed on a thread, too, where services move,
//! and then given to the worker.
//!
//!   replay -> wait for the lease -> serve, while there is the lease -> end    `run`
//!
//! It has no sessions, no index and no operations in shared memory: programs reach it by requests, those
//! of this host too. Without the lease nothing is carried out and nothing is sent, since another daemon
//! may serve it; messages wait meanwhile. At the end requests that wait are to be sent again.

use crate::members::engine::{ServiceLog, Succession};
use crate::shard::Shard;
use crate::shared::Shared;
use crate::shared::inbox::WorkerMessage;
use crate::shared::reply::LOST_MICROS;
use crate::shared::taken_inbox::TakenInbox;
use crate::startup::{Failure, OwnServices, Salvages, StartResult, check_epoch, replay_copy};
use crate::threads::worker::Workers;
use metadata::Config;
use placement::ServiceName;
use std::collections::VecDeque;
use std::sync::atomic::Ordering::Acquire;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use wire::codec::Reader;
use wire::errno::Errno;
use wire::{Header, Request};

/// Longest sleep without a deadline.
const SLEEP_MAX: Duration = Duration::from_secs(60);
/// How long a service without the lease waits before it looks again.
const LEASE_PAUSE: Duration = Duration::from_millis(5);
/// The host of a service that was taken over: none has programs that reach it but by requests.
const NO_HOST: u16 = u16::MAX;

/// The threads of services that were taken over.
pub(crate) struct Successors {
    /// Settings of this daemon's services.
    config: Config,
    salvages: Arc<Salvages>,
    /// Where services move.
    own: Option<Arc<OwnServices>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Successors {
    /// None yet.
    pub(crate) fn new(config: Config, own: Option<OwnServices>) -> Successors {
        let salvages = own.as_ref().map_or_else(Arc::default, OwnServices::salvages);
        let (own, threads) = (own.map(Arc::new), Mutex::new(Vec::new()));
        Successors { config, salvages, own, threads }
    }

    /// Starts the thread of a service.
    pub(crate) fn begin(
        &self,
        shared: &Arc<Shared>,
        workers: &Arc<Workers>,
        succession: Succession,
    ) {
        let ServiceName { first, worker } = succession.name;
        let of = (config_of(&self.config, succession.name), Arc::clone(&self.salvages));
        let own = self.own.clone().filter(|_| succession.number < workers.count());
        let (number, epoch) = (succession.number, succession.epoch);
        let (shared, workers) = (Arc::clone(shared), Arc::clone(workers));
        let all = Arc::clone(&shared);
        let thread = thread::Builder::new().name(format!("d{}w{worker}", first.0));
        let run = move || match own {
            Some(own) => begin_own(&shared, &own, &workers, &succession),
            None => run(&shared, of, &succession),
        };
        match thread.spawn(run) {
            Ok(thread) => {
                let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
                threads.retain(|thread| !thread.is_finished());
                threads.push(thread);
            }
            Err(error) => {
                all.inboxes.note_failure(number, epoch, format!("no thread: {error}"));
            }
        }
    }

    /// Waits for the threads to end, which were told to.
    pub(crate) fn await_ends(&self) {
        let threads = &mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        for thread in std::mem::take(threads) {
            let _ = thread.join();
        }
    }
}

/// Settings of a service that this daemon takes over.
fn config_of(own: &Config, name: ServiceName) -> Config {
    let ServiceName { first, worker } = name;
    let (host, host_daemons, worker) = (NO_HOST, 0, usize::from(worker));
    Config { first, host, host_daemons, worker, ..own.clone() }
}

/// Replays the log of a worker's service, and gives the service to the worker, which ends it.
fn begin_own(shared: &Shared, own: &OwnServices, workers: &Workers, succession: &Succession) {
    let Succession { number, epoch, .. } = *succession;
    let Some(tenure) = shared.inboxes.tenure(number).filter(|tenure| tenure.begin(epoch)) else {
        return;
    };
    let began = Instant::now();
    match own.recover(number, &succession.log, epoch) {
        Ok(mut shard) => {
            shard.meet_host(shared, epoch);
            let replay_ms = began.elapsed().as_millis();
            tracing::info!(worker = number, epoch, replay_ms, "the service of a worker goes on");
            forget_shipments(shared, number);
            workers.give(number, shard, epoch);
            // From here on clients may read the index, while there is the lease.
            tenure.ready(epoch);
            let _ = shared.inboxes.bells.wake(number);
            note_replayed(shared, number, epoch);
        }
        Err(failure) => {
            shared.inboxes.note_end(number, None);
            shared.inboxes.note_failure(number, epoch, why_unserved(shared, failure));
        }
    }
}

/// The line about a service that cannot go on here.
fn why_unserved(shared: &Shared, failure: Failure) -> String {
    match shared.units {
        // It goes on at another daemon.
        Some(_) => failure.text,
        None => failure.without_copies().text,
    }
}

/// The thread of the membership waits for this.
fn note_replayed(shared: &Shared, number: usize, epoch: u64) {
    shared.inboxes.note_replayed(number, epoch);
    if let Some(members) = &shared.members {
        members.wake();
    }
}

/// No thread has the service now.
fn forget_shipments(shared: &Shared, number: usize) {
    if let Some(shipments) = shared.shipments() {
        shipments.forget(number);
    }
}

fn run(shared: &Shared, (config, salvages): (Config, Arc<Salvages>), succession: &Succession) {
    let Succession { name: ServiceName { first, worker }, number, epoch, .. } = *succession;
    let Some(inbox) = shared.inboxes.tenure(number).filter(|inbox| inbox.begin(epoch)) else {
        return;
    };
    let (mut left, mut log, began) = (VecDeque::new(), None, Instant::now());
    match replay(config, succession, &salvages) {
        Ok(mut shard) => {
            let (first, replay_ms) = (first.0, began.elapsed().as_millis());
            tracing::info!(first, worker, epoch, replay_ms, "a service goes on at this daemon");
            forget_shipments(shared, number);
            note_replayed(shared, number, epoch);
            left = serve(shared, inbox, succession, &mut shard);
            shard.give_up(shared);
            shard.end(shared);
            log = Some(shard.into_journal());
        }
        Err(failure) => {
            shared.inboxes.note_failure(number, epoch, why_unserved(shared, failure));
        }
    }
    left.append(&mut shared.inboxes.note_end(number, log));
    shared.metrics.forget_service(number);
    for note in left {
        if let WorkerMessage::Request { to, .. } = note {
            // It is sent again, to the next owner.
            shared.busy(to, LOST_MICROS);
        }
    }
    shared.net.sender.flush_all();
}

/// The service as its copy has it.
fn replay(config: Config, succession: &Succession, salvages: &Salvages) -> StartResult<Shard> {
    let Succession { home, number, epoch, .. } = *succession;
    let ServiceLog::Copy(log) = &succession.log else {
        return Err(Failure::new("it was never followed".to_owned()));
    };
    check_epoch(epoch)?;
    let (mut service, log) = replay_copy(config, number, log, salvages)?;
    service.take_over(epoch, home);
    Ok(Shard::taken_over(number, service, log, epoch))
}

/// Runs the service until it is given up. Returns the messages that it has not handled.
fn serve(
    shared: &Shared,
    inbox: &TakenInbox,
    succession: &Succession,
    shard: &mut Shard,
) -> VecDeque<WorkerMessage> {
    let (mut notes, mut pause, mut has_begun) = (VecDeque::new(), Duration::ZERO, false);
    while inbox.take(pause, &mut notes) && !shared.stopping.load(Acquire) {
        let me = shared.net.router.me;
        if shared.net.number_of(succession.name, me).is_none() {
            pause = LEASE_PAUSE;
            continue;
        }
        if !has_begun {
            shard.begin(shared);
            shared.inboxes.note_ready(succession.number, succession.epoch);
            has_begun = true;
        }
        shard.send_unsent(shared);
        for note in notes.drain(..) {
            take_note(shared, shard, note);
        }
        pause = match shard.tick(shared) {
            Some(micros) => Duration::from_micros(micros).min(SLEEP_MAX),
            None => SLEEP_MAX,
        };
        if shard.keep_log_short() {
            pause = Duration::ZERO;
        } else {
            shard.publish(shared);
        }
        shared.net.sender.flush_all();
    }
    notes
}

fn take_note(shared: &Shared, shard: &mut Shard, note: WorkerMessage) {
    match note {
        WorkerMessage::Request { bytes, to } => {
            let mut reader = Reader::new(&bytes);
            match (Header::decode(&mut reader), Request::decode(&mut reader)) {
                (Ok(header), Ok(request)) => shard.request(shared, &header, request, to),
                _ => shared.refuse(to, Errno::EPROTO),
            }
        }
        WorkerMessage::Peer(bytes) => shard.take_peer_message(shared, &bytes),
        WorkerMessage::ClientGone { first, count } => shard.client_gone(shared, first, count),
        WorkerMessage::Withdrawn { client_id, sequence } => {
            shard.withdrawn(shared, client_id, sequence);
        }
        WorkerMessage::HostGone { host } => shard.host_gone(shared, host),
        WorkerMessage::HostLost(gone) => shard.host_lost(shared, gone),
        note => {
            // Nothing else is sent to a service.
            let other = shard.take_answer(shared, note);
            debug_assert!(other.is_none(), "a message of a session or of the target");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::members::copies::{Copies, ENTRY_BYTES};
    use crate::shard::host_view::NoHostView;
    use crate::shard::tickets::Tickets;
    use crate::shared::owners::Numbers;
    use cluster::membership::ServiceIndex;
    use cluster::node::StandbyStep;
    use cluster::shipping::{Position, put_record};
    use config::process::Salvage;
    use metadata::{Effect, Input, Now, Service, TargetPresence};
    use placement::Map;
    use shm::Segment;
    use std::path::Path;
    use store::For;
    use wire::attributes::mode;
    use wire::{Credentials, DaemonIndex, Inode, JobWord, Layout, Reply};

    /// The service of daemon 0, which daemon 1 follows.
    const SERVICE: ServiceIndex = ServiceIndex(0);
    const NUMBERS: Numbers = Numbers::new(DaemonIndex(1), 2, 1);

    fn config(daemon: u16) -> Config {
        let (first, map) = (DaemonIndex(daemon), Map::initial(2).expect("two daemons"));
        Config { first, daemon: first, host: daemon, map, ..Config::single() }
    }

    fn copies(directory: &Path) -> Copies {
        let path = std::ffi::CString::new(directory.join("entries").to_str().expect("text"));
        let path = path.expect("no zero");
        let segment = Segment::create(&path, 2 * ENTRY_BYTES).expect("mapped").0;
        Copies::new(directory.to_owned(), (7, NUMBERS), segment)
    }

    /// Steps the service: its record, and the file that it answers with.
    fn step(service: &mut Service, now: i64, input: Input<'_>) -> (Vec<u8>, Option<Inode>) {
        let (tickets, mut effects) = (Tickets::default(), Vec::new());
        let presence = &|_| TargetPresence::Here;
        let mut host_view = NoHostView { tickets: &tickets, units: None, members: None, presence };
        service.step(Now::of(now), input, &mut host_view, &mut effects);
        let (mut record, mut inode) = (Vec::new(), None);
        for effect in effects {
            match effect {
                Effect::Log(bytes) => record = bytes,
                Effect::Reply { bytes, .. } => {
                    let reply = Reply::decode(&mut Reader::new(&bytes)).expect("a reply");
                    let Reply::Created { attributes } = reply else { panic!("refused: {reply:?}") };
                    inode = Some(attributes.inode);
                }
                _ => {}
            }
        }
        (record, inode)
    }

    fn create(service: &mut Service, now: i64, name: &[u8]) -> (Vec<u8>, Inode) {
        let header = Header {
            shard: 0,
            daemon: 0,
            epoch: 1,
            client_id: 1,
            sequence: now.unsigned_abs(),
            host: 1,
            mount: 0,
            job: JobWord::NONE,
            caller: Credentials::ROOT,
        };
        let (parent, mode, layout) = (Inode::ROOT, mode::REGULAR | 0o600, Layout::default());
        let (device, flags, target) = (0, 0, &[][..]);
        let request = Request::Create { parent, name, mode, device, flags, layout, target };
        let input = Input::Request { ticket: 1, header: &header, request };
        let (record, inode) = step(service, now, input);
        (record, inode.expect("it is answered at once"))
    }

    fn succeed(copies: &mut Copies, epoch: u64) -> StartResult<Shard> {
        succeed_with(copies, epoch, &Salvages::default())
    }

    fn succeed_with(copies: &mut Copies, epoch: u64, salvages: &Salvages) -> StartResult<Shard> {
        let log = copies.take_over(SERVICE, epoch).expect("a copy");
        let (name, number) = (NUMBERS.service_name(SERVICE), NUMBERS.of(SERVICE));
        let log = ServiceLog::Copy(log);
        let succession = Succession { name, home: Some(name.first.0), number, epoch, log };
        replay(config_of(&config(1), name), &succession, salvages)
    }

    fn batch(record: &[u8]) -> Vec<u8> {
        let mut batch = Vec::new();
        put_record(&mut batch, record);
        batch
    }

    #[test]
    fn a_service_goes_on_from_its_copy_and_from_its_own_log_after_a_start() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut owner = Service::new(config(0));
        let (root, _) = step(&mut owner, 1, Input::Tick);
        let (one, of_one) = create(&mut owner, 2, b"one");
        // The owner dies before this is shipped.
        let (_, of_lost) = create(&mut owner, 3, b"lost");
        let mut all = copies(directory.path());
        let steps = [
            StandbyStep::Begin,
            StandbyStep::Slice(batch(&root)),
            StandbyStep::Complete,
            StandbyStep::Records(batch(&one)),
        ];
        steps.iter().for_each(|step| all.store(SERVICE, step).expect("stored"));
        all.note(SERVICE, Some(Position { epoch: 1, records: 2, is_exact: true }));

        let mut shard = succeed(&mut all, 2).expect("it is replayed");
        assert!(shard.is_taken_over() && shard.worker == NUMBERS.of(SERVICE));
        assert_eq!(shard.service.entry_of(Inode::ROOT, b"one"), Some(of_one));
        assert_eq!(shard.service.entry_of(Inode::ROOT, b"lost"), None);
        let (two, of_two) = create(&mut shard.service, 4, b"two");
        assert!(
            of_two.sequence() > of_lost.sequence(),
            "numbers of lost files are not given again"
        );
        shard.reserve_step(For::Any).expect("space");
        shard.performers.log.append_records(&two);
        drop(shard);
        // The daemon is killed and starts again.
        drop(all);
        let mut all = copies(directory.path());
        assert!(all.open(2).is_empty());
        let shard = succeed(&mut all, 3).expect("it is replayed");
        let entry = |name: &[u8]| shard.service.entry_of(Inode::ROOT, name);
        assert_eq!(
            [entry(b"one"), entry(b"two"), entry(b"lost")],
            [Some(of_one), Some(of_two), None]
        );
    }

    #[test]
    fn a_service_that_was_followed_goes_on_without_a_replay() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut owner = Service::new(config(0));
        let (root, _) = step(&mut owner, 1, Input::Tick);
        let (one, of_one) = create(&mut owner, 2, b"one");
        let (two, of_two) = create(&mut owner, 3, b"two");
        let mut all = copies(directory.path());
        let steps = [
            StandbyStep::Begin,
            StandbyStep::Slice(batch(&root)),
            StandbyStep::Records(batch(&one)),
            StandbyStep::Complete,
            // Another snapshot is coming, and is never complete.
            StandbyStep::Begin,
            StandbyStep::Slice(batch(&root)),
            StandbyStep::Records(batch(&two)),
        ];
        steps.iter().for_each(|step| all.store(SERVICE, step).expect("stored"));
        let position = Position { epoch: 1, records: 2, is_exact: true };
        all.note(SERVICE, Some(position));
        // The same of a daemon that was started again since.
        drop(all);
        let mut all = copies(directory.path());
        assert_eq!(all.open(2), [(SERVICE, Position { is_exact: false, ..position })]);

        let log = all.take_over(SERVICE, 2).expect("a copy");
        let followed = log.followed.take().expect("its state is known");
        let service = Service::with(config(1), followed.state);
        let entry = |name: &[u8]| service.entry_of(Inode::ROOT, name);
        assert_eq!([entry(b"one"), entry(b"two")], [Some(of_one), Some(of_two)]);

        // A record of another version: the replay says what is wrong.
        let mut all = copies(directory.path());
        all.note(SERVICE, None);
        let strange = StandbyStep::Records(batch(b"strange"));
        for step in [StandbyStep::Begin, StandbyStep::Complete, strange] {
            all.store(SERVICE, &step).expect("stored");
        }
        all.note(SERVICE, Some(Position { epoch: 3, records: 1, is_exact: true }));
        let log = all.take_over(SERVICE, 4).expect("a copy");
        assert!(log.followed.take().is_none());
    }

    #[test]
    fn a_service_that_had_too_many_owners_is_not_served() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut all = copies(directory.path());
        for step in [StandbyStep::Begin, StandbyStep::Complete] {
            all.store(SERVICE, &step).expect("stored");
        }
        all.note(SERVICE, Some(Position { epoch: 1, records: 0, is_exact: true }));
        assert!(succeed(&mut all, metadata::EPOCH_MAX).is_ok());
        assert!(succeed(&mut all, metadata::EPOCH_MAX + 1).is_err(), "numbers would come again");
    }

    #[test]
    fn a_copy_that_is_damaged_is_not_served() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut all = copies(directory.path());
        for step in [StandbyStep::Begin, StandbyStep::Complete] {
            all.store(SERVICE, &step).expect("stored");
        }
        all.note(SERVICE, Some(Position { epoch: 1, records: 0, is_exact: true }));
        let log = all.take_over(SERVICE, 2).expect("a copy");
        std::fs::remove_dir_all(&log.directory).expect("removed");
        std::fs::create_dir(&log.directory).expect("made");
        assert!(succeed(&mut all, 3).is_err(), "a log that there was is missing");
    }

    #[test]
    fn a_salvage_goes_on_from_a_damaged_copy_and_repairs_it_once() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut owner = Service::new(config(0));
        let (root, _) = step(&mut owner, 1, Input::Tick);
        let (one, _) = create(&mut owner, 2, b"damaged-name");
        let (two, of_two) = create(&mut owner, 3, b"two");
        let mut all = copies(directory.path());
        let steps = [
            StandbyStep::Begin,
            StandbyStep::Slice(batch(&root)),
            StandbyStep::Complete,
            StandbyStep::Records(batch(&one)),
            StandbyStep::Records(batch(&two)),
        ];
        steps.iter().for_each(|step| all.store(SERVICE, step).expect("stored"));
        all.note(SERVICE, Some(Position { epoch: 1, records: 3, is_exact: true }));
        drop(all);
        let files = std::fs::read_dir(directory.path().join("copy-d0w0")).expect("a log");
        let [file] =
            files.map(|it| it.expect("read").path()).collect::<Vec<_>>().try_into().expect("one");
        let mut bytes = std::fs::read(&file).expect("read");
        let name = b"damaged-name";
        let at = bytes.windows(name.len()).position(|it| it == name).expect("the record");
        bytes[at] ^= 1;
        std::fs::write(&file, bytes).expect("written");

        let mut all = copies(directory.path());
        assert!(
            succeed(&mut all, 2).is_err(),
            "records are lost, and nobody said that they may be"
        );
        let salvages = Salvages::new(Some(Salvage { round: 2, repairs: Vec::new() }));
        for epoch in [2, 3] {
            let shard = succeed_with(&mut all, epoch, &salvages).expect("it is replayed");
            assert_eq!(shard.service.entry_of(Inode::ROOT, b"two"), Some(of_two));
            assert_eq!(shard.service.entry_of(Inode::ROOT, name), None);
        }
        let kept = std::fs::read_dir(directory.path().join("copy-d0w0")).expect("a log");
        let is_aside = |name: &str| name.starts_with("damaged-2-");
        let aside = kept
            .filter(|it| it.as_ref().is_ok_and(|it| it.file_name().to_str().is_some_and(is_aside)));
        assert_eq!(aside.count(), 1, "the damaged log, once");
    }
}
