//! All of an instance, over all of its hosts: started, started again, stopped.

use crate::directories::{self, Lock};
use crate::failure::{Failure, Result, USAGE};
use crate::hosts;
use crate::lend::{self, Lent, Order};
use crate::mounts::{self, Wish};
use crate::progress::Progress;
use crate::records::{self, Answer, Host, Instance, Job, MemoryWish, Part, VERSION, Wanted};
use crate::writeback::{self, Told};
use crate::{history, host, remote, resources};
use config::{Key, SETTINGS, Settings};
use std::path::Path;
use std::time::Duration;

/// The record of all of an instance.
pub(crate) const RECORD: &str = "instance.json";

/// A drain that goes on is not cut off before; one that stands still is, on its host.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// What `start` found and did.
#[derive(Debug)]
pub(crate) struct Started {
    /// The instance, running.
    pub(crate) instance: Instance,
    /// Daemons that were started by this call.
    pub(crate) fresh: usize,
}

/// The instance `name`, `None` if there is none.
///
/// # Errors
/// Its record can not be read.
pub(crate) fn load(name: &str) -> Result<Option<Instance>> {
    records::load(&directories::run(name)?, RECORD)
}

/// The hosts that the command line asks for; `None`: it does not say.
fn asked(settings: &Settings, local: Option<u16>) -> Result<Option<Vec<Part>>> {
    let listen = settings.text(Key::Listen);
    let file = settings.text(Key::Hosts).filter(|_| local.is_none());
    if let Some(file) = file {
        let text = std::fs::read_to_string(file).map_err(|error| {
            let origin = settings.origin(Key::Hosts);
            let text = format!("can not read the hosts file: {file}: {error} ({origin})");
            Failure::with_code(USAGE, text)
        })?;
        return hosts::parts(&hosts::parse(&text, file)?, listen).map(Some);
    }
    let listen = listen.unwrap_or("127.0.0.1").to_owned();
    let part = |count| Part { host: String::new(), listen, first: 0, daemons: vec![], count };
    Ok(local.map(|count| vec![part(count)]))
}

fn memory_wish(settings: &Settings) -> Option<MemoryWish> {
    let text = settings.text(Key::Memory).map(|text| MemoryWish::Text(text.to_owned()));
    settings.number(Key::Memory).map(MemoryWish::Bytes).or(text)
}

fn wanted(settings: &Settings, parts: &[Part]) -> Wanted {
    let most = parts.iter().map(|part| part.count).max().unwrap_or(1);
    let absolute = |dir: &str| {
        let path = std::path::absolute(dir).unwrap_or_else(|_| dir.into());
        path.to_string_lossy().into_owned()
    };
    Wanted {
        at: settings.word(Key::At).to_owned(),
        dir: settings.text(Key::Dir).map(|text| {
            let all: Vec<String> = text.split(':').map(absolute).collect();
            all.join(":")
        }),
        backing: settings.text(Key::Backing).map(|text| match below::is_bucket(text) {
            true => text.to_owned(),
            false => absolute(text),
        }),
        backing_check: settings.number(Key::BackingCheck).unwrap_or(0),
        backing_rate: settings.number(Key::BackingRate).unwrap_or(0),
        write_back: settings.word(Key::WriteBack).to_owned(),
        history: history::wanted(settings.text(Key::History)),
        memory: memory_wish(settings),
        ssd: settings.number(Key::Ssd),
        room: settings.number(Key::Room),
        reserve: settings.number(Key::Reserve),
        idle: settings.number(Key::Idle).unwrap_or(0),
        patience: settings.number(Key::Patience).unwrap_or(0),
        move_rate: settings.number(Key::MoveRate).unwrap_or(0),
        chunk: settings.number(Key::Chunk).unwrap_or(0),
        spread: settings.word(Key::Spread).to_owned(),
        placement: settings.word(Key::Placement).to_owned(),
        consistency: settings.word(Key::Consistency).to_owned(),
        writes: settings.word(Key::Writes).to_owned(),
        reads: settings.word(Key::Reads).to_owned(),
        inline: settings.number(Key::Inline).unwrap_or(0),
        workers: settings.number(Key::Workers).unwrap_or_else(|| resources::workers(most)),
        port: settings.number(Key::Port).unwrap_or(0),
        transport: settings.word(Key::Transport).to_owned(),
        log: settings.word(Key::Log).to_owned(),
        timeout: settings.number(Key::Timeout).unwrap_or(0),
    }
}

/// What is asked for and differs from what runs: an option that would have no effect is refused.
fn conflict(running: &Instance, settings: &Settings, asked: Option<&[Part]>) -> Result<()> {
    let name = &running.name;
    let places = |parts: &[Part]| -> Vec<_> {
        parts.iter().map(|part| (part.host.clone(), part.count)).collect()
    };
    if asked.is_some_and(|asked| places(asked) != places(&running.hosts)) {
        let text = format!(
            "conflict: instance {name} runs {} daemons on {} hosts, others are asked for: stop it \
             first, or give another --name",
            running.count(),
            running.hosts.len()
        );
        return Err(Failure::new(text));
    }
    let wish = serde_json::to_value(wanted(settings, asked.unwrap_or(&running.hosts)));
    let have = serde_json::to_value(&running.wanted);
    let (Ok(wish), Ok(have)) = (wish, have) else { return Ok(()) };
    for setting in SETTINGS.iter().filter(|setting| settings.is_given(setting.key)) {
        // Where programs see it, and how long a command waits, is each command's own affair.
        let is_own = matches!(setting.key, Key::At | Key::Timeout | Key::Log);
        let field = setting.name.replace('-', "_");
        let (Some(wish), Some(have)) = (wish.get(&field), have.get(&field)) else {
            continue;
        };
        if wish != have && !is_own {
            let text = format!(
                "conflict: instance {name} runs with {}={have}, {} asks for {}: stop it first, or \
                 give another --name",
                setting.name,
                settings.origin(setting.key),
                settings.written(setting.key)
            );
            return Err(Failure::new(text));
        }
    }
    Ok(())
}

/// Makes an instance run as the settings say. One that runs stays; its dead daemons are started
/// again on what they left. `local`: daemons on this host, if the command line says so. With `mount` it
/// is mounted there on each of its hosts.
///
/// # Errors
/// What went wrong first. What this call started is stopped again then.
pub(crate) fn start(
    settings: &Settings,
    local: Option<u16>,
    mount: Option<&Wish>,
) -> Result<Started> {
    let name = settings.word(Key::Name);
    let run = directories::run(name)?;
    let timeout = settings.timeout();
    let lock = Lock::take(name, timeout)?;
    let (mut instance, is_new) = match known_or_planned(settings, local) {
        Ok(found) => found,
        Err(failure) => {
            // Refused before there was anything of it: the lock is all that is there.
            if std::fs::symlink_metadata(&run).is_err() {
                lock.remove();
            }
            return Err(failure);
        }
    };
    let outcome = make(&mut instance, &run, is_new);
    let outcome = outcome.and_then(|fresh| mount_on_each(&instance, mount).map(|()| fresh));
    if is_new && outcome.is_ok() {
        history::follow(&instance);
    }
    if outcome.is_err() && is_new {
        // Every host removes what it made when its own start fails; the others are told here.
        let _ = stop_hosts(&instance, timeout);
        let _ = directories::remove(&run);
        lock.remove();
    }
    Ok(Started { fresh: outcome?, instance })
}

/// The instance as it is recorded, or as it will be; true for the latter.
fn known_or_planned(settings: &Settings, local: Option<u16>) -> Result<(Instance, bool)> {
    let parts = asked(settings, local)?;
    if let Some(instance) = load(settings.word(Key::Name))? {
        conflict(&instance, settings, parts.as_deref())?;
        return Ok((instance, false));
    }
    let parts = match parts {
        Some(parts) => parts,
        None => asked(settings, Some(1))?.unwrap_or_default(),
    };
    Ok((plan(settings, parts)?, true))
}

fn plan(settings: &Settings, parts: Vec<Part>) -> Result<Instance> {
    let ssh = config::parse::words(settings.word(Key::Ssh)).unwrap_or_default();
    let wanted = wanted(settings, &parts);
    let name = settings.word(Key::Name).to_owned();
    Ok(Instance { version: VERSION, name, uid: directories::user(), ssh, wanted, hosts: parts })
}

/// Starts what does not run on each host, and tells all of all. Number of daemons started.
fn make(instance: &mut Instance, run: &Path, is_new: bool) -> Result<usize> {
    directories::make_private(run)?;
    let secret = match std::fs::read_to_string(run.join("secret")) {
        Ok(secret) if !is_new => secret.trim().to_owned(),
        _ => new_secret()?,
    };
    directories::write_whole(&run.join("secret"), &format!("{secret}\n"))?;
    // Written before anything runs: `stop` finds what is left if this command is killed.
    records::store(run, RECORD, instance)?;
    let hosts = on_each(instance, "starting", |part, progress| {
        start_part(instance, part, &secret, progress)
    })?;
    let mut fresh = 0;
    for (part, host) in instance.hosts.iter_mut().zip(hosts) {
        fresh += host.daemons.iter().filter(|daemon| daemon.fresh).count();
        part.daemons = host.daemons;
        part.daemons.iter_mut().for_each(|daemon| daemon.fresh = false);
    }
    let lines: String =
        instance.daemons().map(|(_, one)| format!("{} {}\n", one.index, one.tcp)).collect();
    on_each(instance, "connecting", |part, _| peers_part(instance, part, &lines))?;
    records::store(run, RECORD, instance)?;
    Ok(fresh)
}

/// 32 random bytes in hexadecimal digits.
fn new_secret() -> Result<String> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)
        .map_err(|error| Failure::at("no random bytes", "this host", error))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Does `work` for each host at the same time; all answers, or the first failure.
fn on_each<T: Send>(
    instance: &Instance,
    verb: &str,
    work: impl Fn(&Part, &mut Progress) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let what = format!("{verb} {} daemons", instance.count());
    if let [only] = instance.hosts.as_slice() {
        return Ok(vec![work(only, &mut Progress::new(what))?]);
    }
    let work = &work;
    std::thread::scope(|scope| {
        let all: Vec<_> = instance
            .hosts
            .iter()
            .enumerate()
            .map(|(place, part)| {
                // One line is enough on a terminal.
                let what = if place == 0 { what.clone() } else { String::new() };
                scope.spawn(move || work(part, &mut Progress::new(what)))
            })
            .collect();
        let answers = all.into_iter().map(|one| {
            one.join().unwrap_or_else(|_| Err(Failure::new("a thread of this command ended")))
        });
        // All are waited for, so that nothing starts behind the back of a clean-up.
        answers.collect::<Vec<_>>().into_iter().collect()
    })
}

fn timeout(instance: &Instance) -> Duration {
    Duration::from_micros(instance.wanted.timeout)
}

fn start_part(
    instance: &Instance,
    part: &Part,
    secret: &str,
    progress: &mut Progress,
) -> Result<Host> {
    let job = Job {
        version: VERSION,
        name: instance.name.clone(),
        count: instance.count(),
        first: part.first,
        local_count: part.count,
        listen: part.listen.clone(),
        secret: secret.to_owned(),
        wanted: instance.wanted.clone(),
    };
    if part.host.is_empty() {
        return host::start(&job, progress);
    }
    let work = serde_json::to_string(&job)
        .map_err(|error| Failure::at("can not write", "the work of a host", error))?;
    let answer = remote::call(&instance.ssh, &part.host, "daemon-start", &work, timeout(instance))?;
    match serde_json::from_str(&answer) {
        Ok(Answer::Host(host)) => Ok(*host),
        Ok(Answer::Error(text)) => Err(Failure::new(text).on_host(&part.host)),
        _ => Err(Failure::at("answer makes no sense", "daemon-start", answer).on_host(&part.host)),
    }
}

fn peers_part(instance: &Instance, part: &Part, lines: &str) -> Result<()> {
    if part.host.is_empty() {
        return host::peers(&instance.name, lines);
    }
    let work = serde_json::json!({ "name": instance.name, "peers": lines }).to_string();
    simple(instance, part, "daemon-peers", &work)
}

fn mount_on_each(instance: &Instance, wish: Option<&Wish>) -> Result<()> {
    let Some(wish) = wish else { return Ok(()) };
    on_each(instance, "mounting", |part, progress| {
        if part.host.is_empty() {
            let patience = timeout(instance);
            return mounts::ensure(&instance.name, wish, patience, progress);
        }
        let work = serde_json::json!({
            "name": instance.name,
            "at": wish.at,
            "rights": wish.rights,
            "requests": wish.requests,
            "patience": instance.wanted.timeout,
        });
        simple(instance, part, "daemon-mount", &work.to_string())
    })
    .map(|_| ())
}

/// A call whose answer is `{"error":TEXT}` or anything else for success.
fn simple(instance: &Instance, part: &Part, command: &str, work: &str) -> Result<()> {
    // A stop waits for daemons that do not end by themselves, and kills them.
    let limit = timeout(instance) + Duration::from_secs(10);
    let answer = remote::call(&instance.ssh, &part.host, command, work, limit)?;
    match serde_json::from_str(&answer) {
        Ok(Answer::Error(text)) => Err(Failure::new(text).on_host(&part.host)),
        _ => Ok(()),
    }
}

/// A host and what its daemons hold.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// Its name; empty: this one.
    pub(crate) host: String,
    /// Its daemons.
    pub(crate) daemons: Vec<Lent>,
}

impl Node {
    /// Its name for people.
    pub(crate) fn name(&self) -> &str {
        if self.host.is_empty() { "here" } else { &self.host }
    }

    /// Bytes that its daemons may hold.
    pub(crate) fn allowance(&self) -> u64 {
        self.daemons.iter().map(|daemon| daemon.allowance).sum()
    }

    /// Bytes in files.
    pub(crate) fn used(&self) -> u64 {
        self.daemons.iter().map(|daemon| daemon.used).sum()
    }
}

/// What the daemons of all hosts hold; on another host than the starter's those of this host.
///
/// # Errors
/// There is no such instance, or a host does not answer.
pub(crate) fn memory(name: &str, timeout: Duration) -> Result<Vec<Node>> {
    let Some(instance) = load(name)? else {
        return Ok(vec![Node { host: String::new(), daemons: lend::look(name, timeout)? }]);
    };
    on_each(&instance, "asking", |part, progress| {
        let daemons = lend_part(&instance, part, None, timeout, progress)?;
        Ok(Node { host: part.host.clone(), daemons })
    })
}

/// Gives each of the nodes its orders and waits, `patience` at most.
///
/// # Errors
/// A host does not answer.
pub(crate) fn lend(
    name: &str,
    nodes: Vec<Node>,
    orders: &[Vec<Order>],
    patience: Duration,
) -> Result<Vec<Node>> {
    let told: Vec<(&Node, &Vec<Order>)> =
        nodes.iter().zip(orders).filter(|(_, orders)| !orders.is_empty()).collect();
    let Some(instance) = load(name)? else {
        let mut progress = Progress::new("giving memory back");
        let each = told.into_iter().map(|(node, orders)| {
            let daemons = lend::carry_out(name, orders, patience, &mut progress)?;
            Ok(Node { host: node.host.clone(), daemons })
        });
        return each.collect();
    };
    let done = on_each(&instance, "lending memory of", |part, progress| {
        let Some((node, orders)) = told.iter().find(|(node, _)| node.host == part.host) else {
            return Ok(None);
        };
        let daemons = lend_part(&instance, part, Some(orders), patience, progress)?;
        Ok(Some(Node { host: node.host.clone(), daemons }))
    })?;
    Ok(done.into_iter().flatten().collect())
}

fn lend_part(
    instance: &Instance,
    part: &Part,
    orders: Option<&[Order]>,
    patience: Duration,
    progress: &mut Progress,
) -> Result<Vec<Lent>> {
    if part.host.is_empty() {
        return match orders {
            Some(orders) => lend::carry_out(&instance.name, orders, patience, progress),
            None => lend::look(&instance.name, patience),
        };
    }
    let micros = u64::try_from(patience.as_micros()).unwrap_or(u64::MAX);
    let work = serde_json::json!({ "name": instance.name, "orders": orders, "patience": micros });
    let command = "daemon-lend";
    let answer = remote::call(&instance.ssh, &part.host, command, &work.to_string(), patience)?;
    match serde_json::from_str(&answer) {
        Ok(Answer::Lent(lent)) => Ok(lent),
        Ok(Answer::Error(text)) => Err(Failure::new(text).on_host(&part.host)),
        _ => Err(Failure::at("answer makes no sense", command, answer).on_host(&part.host)),
    }
}

/// What a daemon noted of files that are read, from a byte on: a part, empty at its end.
///
/// # Errors
/// Its host does not answer.
pub(crate) fn noted(instance: &Instance, part: &Part, index: u16, from: u64) -> Result<String> {
    if part.host.is_empty() {
        return history::noted(&instance.name, index, from);
    }
    let work = serde_json::json!({ "name": instance.name, "index": index, "from": from });
    let (command, limit) = ("daemon-noted", timeout(instance));
    let answer = remote::call(&instance.ssh, &part.host, command, &work.to_string(), limit)?;
    match serde_json::from_str(&answer) {
        Ok(Answer::Noted(text)) => Ok(text),
        Ok(Answer::Error(text)) => Err(Failure::new(text).on_host(&part.host)),
        _ => Err(Failure::at("answer makes no sense", command, answer).on_host(&part.host)),
    }
}

fn stop_hosts(instance: &Instance, patience: Duration) -> Result<()> {
    let done = on_each(instance, "stopping", |part, progress| {
        // One result for each host: the others are stopped even if one can not be reached.
        Ok(if part.host.is_empty() {
            host::stop(&instance.name, patience, progress)
        } else {
            let patience = patience.as_micros();
            let work = serde_json::json!({ "name": instance.name, "patience": patience });
            simple(instance, part, "daemon-stop", &work.to_string())
        })
    })?;
    done.into_iter().collect()
}

/// Has all of an instance saved in its backing directory. What its writer says, if it is on this host;
/// without a backing directory there is nothing to save.
///
/// # Errors
/// There is no such instance; not all is saved, or can be.
pub(crate) fn flush(name: &str, paths: &[String], patience: Duration) -> Result<Option<Told>> {
    let run = directories::run(name)?;
    let here: Option<Host> = records::load(&run, host::RECORD)?;
    let Some(instance) = load(name)? else {
        // Started on another host; the writer may be here.
        let host = here.ok_or_else(|| Failure::no_instance(name))?;
        if !host.wanted.has_writer() {
            return Ok(None);
        }
        if host.first != 0 {
            let why = "its writer is on the host of its first daemon: flush it there";
            return Err(Failure::at("out of reach", format!("instance {name}"), why));
        }
        return writeback::flush(&run, paths, patience, &mut Progress::new("saving")).map(Some);
    };
    drain(&instance, paths, patience)
}

/// See `flush`.
fn drain(instance: &Instance, paths: &[String], patience: Duration) -> Result<Option<Told>> {
    let first = instance.hosts.iter().find(|part| part.first == 0);
    let Some(part) = first.filter(|_| instance.wanted.has_writer()) else { return Ok(None) };
    let run = directories::run(&instance.name)?;
    if part.host.is_empty() {
        return writeback::flush(&run, paths, patience, &mut Progress::new("saving")).map(Some);
    }
    let micros = patience.as_micros();
    let work = serde_json::json!({ "name": instance.name, "patience": micros, "paths": paths });
    let work = work.to_string();
    let answer = remote::call(&instance.ssh, &part.host, "daemon-flush", &work, DRAIN_TIME_MAX)?;
    match serde_json::from_str(&answer) {
        Ok(Answer::Error(text)) => Err(Failure::new(text).on_host(&part.host)),
        _ => Ok(None),
    }
}

/// What becomes of what is not saved in the backing directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unsaved {
    /// It is saved first, or the instance stays.
    Save,
    /// It is lost.
    Discard,
}

/// Stops an instance and removes all that it had. How many daemons it was meant to have.
///
/// # Errors
/// There is none; not all is saved; a host can not be reached, or something can not be removed: then the
/// record stays, and `stop` can be tried again.
pub(crate) fn stop(name: &str, patience: Duration, unsaved: Unsaved) -> Result<u16> {
    let run = directories::run(name)?;
    if std::fs::symlink_metadata(&run).is_err() {
        return Err(Failure::no_instance(name));
    }
    let lock = Lock::take(name, patience)?;
    let Some(instance) = load(name)? else {
        if let Some(host) = records::load::<Host>(&run, host::RECORD)? {
            let count = host.daemons.len();
            let why = format!(
                "{count} daemons of it are here, it was started on another host: stop it there"
            );
            return Err(Failure::at("not the starter", format!("instance {name}"), why));
        }
        // A start was killed before it wrote anything that counts.
        directories::remove(&run)?;
        lock.remove();
        return Err(Failure::no_instance(name));
    };
    if unsaved == Unsaved::Save {
        drain(&instance, &[], patience).map_err(|failure| {
            let advice = "the instance stays; --discard drops what is not saved";
            Failure::new(format!("{}: {advice}", failure.text()))
        })?;
    }
    history::keep(&instance);
    stop_hosts(&instance, patience)?;
    directories::remove(&run)?;
    lock.remove();
    Ok(instance.count())
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::Sources;

    fn settings(options: &[(Key, &str)]) -> Settings {
        let mut sources = Sources::default();
        for (key, text) in options {
            sources.options.insert(*key, (*text).to_owned());
        }
        Settings::resolve(&sources).expect("allowed")
    }

    #[test]
    fn a_secret_is_64_digits_and_never_the_same() {
        let (one, other) = (new_secret().expect("random"), new_secret().expect("random"));
        assert!(one.len() == 64 && one.bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert_ne!(one, other);
    }

    #[test]
    fn only_what_is_asked_for_can_conflict() {
        let first = settings(&[(Key::Chunk, "1MiB"), (Key::Memory, "64MiB")]);
        let parts = asked(&first, Some(2)).expect("parts").expect("parts");
        let running = plan(&first, parts).expect("a plan");
        let check = |options: &[(Key, &str)], local: Option<u16>| {
            let settings = settings(options);
            let parts = asked(&settings, local).expect("parts");
            conflict(&running, &settings, parts.as_deref()).map_err(|failure| failure.text().into())
        };
        assert_eq!(check(&[], None), Ok::<(), String>(()));
        assert_eq!(check(&[(Key::Chunk, "1024KiB"), (Key::At, "/x")], Some(2)), Ok(()));
        let text = check(&[(Key::Chunk, "2MiB")], None).expect_err("a conflict");
        let wanted = "runs with chunk=1048576, option --chunk asks for 2MiB: stop it first";
        assert!(text.contains(wanted), "{text}");
        assert!(check(&[(Key::Memory, "auto")], None).is_err());
        assert!(check(&[], Some(3)).expect_err("a conflict").contains("2 daemons on 1 hosts"));
    }
}
