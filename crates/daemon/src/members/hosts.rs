//! Whether the host of a dead owner is gone, for the services that this daemon took over from it: none of
//! its daemons takes part, and for as long as a program waits it acknowledged nothing
//! (`docs/decisions/194-open-files-of-a-dead-owners-host.md`).
//!
//! A host is asked by connections to the addresses of its daemons. One that lives accepts or refuses,
//! also when its daemons were killed. The answer may take long, so a thread asks.

use cluster::membership::Membership;
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

/// How long a host may take to answer.
const ANSWER_TIME: Duration = Duration::from_millis(500);
/// How often a host is asked.
const ASK_NANOS: i64 = 1_000_000_000;

/// A host of which no daemon takes part.
struct Silence {
    /// Since when it acknowledged nothing.
    since: i64,
    asked_at: i64,
    /// An answer is on its way. There is one at most.
    is_asked: bool,
    /// It was asked since, in vain.
    is_unanswered: bool,
}

/// The silence of hosts.
struct Silences {
    /// The first daemon of each daemon's host, which is the number of the host.
    firsts: Vec<u16>,
    gone_nanos: i64,
    of_hosts: BTreeMap<u16, Silence>,
}

impl Silences {
    /// Looks at these hosts: those that are gone, and those that are to be asked.
    fn look(
        &mut self,
        membership: &Membership,
        hosts: &BTreeSet<u16>,
        now: i64,
    ) -> (BTreeSet<u16>, Vec<u16>) {
        let members = self.firsts.iter().zip(membership.daemons());
        let here = members.filter(|(_, (_, member))| member.takes_part()).map(|(&host, _)| host);
        let here: BTreeSet<u16> = here.collect();
        self.of_hosts.retain(|host, _| hosts.contains(host) && !here.contains(host));
        let (mut gone, mut due) = (BTreeSet::new(), Vec::new());
        for &host in hosts.difference(&here) {
            let silence = self.of_hosts.entry(host).or_insert(Silence {
                since: now,
                asked_at: i64::MIN,
                is_asked: false,
                is_unanswered: false,
            });
            if silence.is_unanswered && now - silence.since >= self.gone_nanos {
                gone.insert(host);
            }
            if !silence.is_asked && now.saturating_sub(silence.asked_at) >= ASK_NANOS {
                silence.asked_at = now;
                due.push(host);
            }
        }
        (gone, due)
    }

    /// A host is asked.
    fn asks(&mut self, host: u16) {
        if let Some(silence) = self.of_hosts.get_mut(&host) {
            silence.is_asked = true;
        }
    }

    /// A host answered, or did not.
    fn answered(&mut self, host: u16, is_acknowledged: bool, now: i64) {
        let Some(silence) = self.of_hosts.get_mut(&host) else { return };
        (silence.is_asked, silence.is_unanswered) = (false, !is_acknowledged);
        if is_acknowledged {
            silence.since = now;
        }
    }
}

/// See the module.
pub(super) struct Hosts {
    silences: Silences,
    /// The file of addresses.
    peers: PathBuf,
    answer: Sender<(u16, bool)>,
    answers: Receiver<(u16, bool)>,
}

impl Hosts {
    /// `firsts` has the first daemon of each daemon's host, `peers` the addresses of the daemons. A host
    /// that is silent for `gone_nanos` is gone.
    pub(super) fn new(firsts: Vec<u16>, peers: PathBuf, gone_nanos: i64) -> Hosts {
        let (answer, answers) = channel();
        let silences = Silences { firsts, gone_nanos, of_hosts: BTreeMap::new() };
        Hosts { silences, peers, answer, answers }
    }

    /// The number of a daemon's host.
    pub(super) fn of(&self, daemon: u16) -> Option<u16> {
        self.silences.firsts.get(usize::from(daemon)).copied()
    }

    /// Looks at these hosts. Returns those that are gone.
    pub(super) fn look(
        &mut self,
        membership: &Membership,
        hosts: &BTreeSet<u16>,
        now: i64,
    ) -> BTreeSet<u16> {
        while let Ok((host, is_acknowledged)) = self.answers.try_recv() {
            self.silences.answered(host, is_acknowledged, now);
        }
        let (gone, due) = self.silences.look(membership, hosts, now);
        for host in due {
            if self.ask(host) {
                self.silences.asks(host);
            }
        }
        gone
    }

    /// Asks a host, on a thread. False: there is none.
    fn ask(&self, host: u16) -> bool {
        let text = std::fs::read_to_string(&self.peers).unwrap_or_default();
        let firsts = &self.silences.firsts;
        let addresses = addresses(&text, |daemon| firsts.get(daemon) == Some(&host));
        let answer = self.answer.clone();
        let asks = move || {
            let is_acknowledged = addresses.into_iter().any(acknowledges);
            // Nobody takes it once the thread of the membership has ended.
            let _ = answer.send((host, is_acknowledged));
        };
        thread::Builder::new().name("reach".to_owned()).spawn(asks).is_ok()
    }
}

/// Daemons and their addresses, from lines of both.
fn with_addresses(text: &str) -> impl Iterator<Item = (u16, SocketAddr)> {
    text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
    })
}

/// The addresses of some daemons.
fn addresses(text: &str, is_one: impl Fn(usize) -> bool) -> Vec<SocketAddr> {
    with_addresses(text)
        .filter(|&(daemon, _)| is_one(daemon.into()))
        .map(|(_, address)| address)
        .collect()
}

/// The daemons that have an address in this file: those that have left have none.
pub(super) fn listed_in(peers: &Path) -> BTreeSet<u16> {
    let text = std::fs::read_to_string(peers).unwrap_or_default();
    with_addresses(&text).map(|(daemon, _)| daemon).collect()
}

/// Whether the host at this address accepts or refuses a connection.
fn acknowledges(address: SocketAddr) -> bool {
    let connected = TcpStream::connect_timeout(&address, ANSWER_TIME);
    connected.map_or_else(
        |error| matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset),
        |_| true,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::change::{Change, LastAllowed};
    use std::net::TcpListener;
    use wire::DaemonIndex;

    const GONE_NANOS: i64 = 30_000_000_000;
    /// Daemons 0 and 1 are on one host, 2 and 3 on another.
    const FIRSTS: [u16; 4] = [0, 0, 2, 2];

    fn membership() -> Membership {
        Membership::initial(&[0, 1, 2, 3], 4, 1, false).expect("suitable")
    }

    fn down(membership: &mut Membership, daemon: u16) {
        let down = Change::Down {
            daemon: DaemonIndex(daemon),
            incarnation: 1,
            known: LastAllowed::UNKNOWN,
        };
        membership.apply(&down).expect("it takes part");
    }

    fn silences() -> Silences {
        let (firsts, gone_nanos) = (FIRSTS.to_vec(), GONE_NANOS);
        Silences { firsts, gone_nanos, of_hosts: BTreeMap::new() }
    }

    /// Looks at host 0 for some time, each question of which has this answer. Returns when it was gone.
    fn gone_at(
        silences: &mut Silences,
        membership: &Membership,
        seconds: std::ops::Range<i64>,
        is_acknowledged: bool,
    ) -> Option<i64> {
        let hosts = BTreeSet::from([0]);
        for second in seconds {
            let now = second * ASK_NANOS;
            let (gone, due) = silences.look(membership, &hosts, now);
            for host in due {
                silences.asks(host);
                silences.answered(host, is_acknowledged, now);
            }
            if gone.contains(&0) {
                return Some(second);
            }
        }
        None
    }

    #[test]
    fn a_host_is_gone_when_it_was_silent_for_as_long_as_a_program_waits() {
        let (mut silences, mut membership) = (silences(), membership());
        down(&mut membership, 0);
        assert_eq!(gone_at(&mut silences, &membership, 0..100, false), None, "daemon 1 lives");
        down(&mut membership, 1);
        assert_eq!(gone_at(&mut silences, &membership, 100..400, true), None, "the host lives");
        assert_eq!(gone_at(&mut silences, &membership, 400..500, false), Some(429));
        let up = Change::Up {
            daemon: DaemonIndex(1),
            incarnation: 2,
            domain: 1,
            is_empty: false,
            known: LastAllowed::UNKNOWN,
        };
        membership.apply(&up).expect("it was down");
        assert_eq!(gone_at(&mut silences, &membership, 500..501, false), None);
        let gone_again =
            Change::Down { daemon: DaemonIndex(1), incarnation: 2, known: LastAllowed::UNKNOWN };
        membership.apply(&gone_again).expect("it takes part");
        assert_eq!(gone_at(&mut silences, &membership, 501..600, false), Some(531), "anew");
    }

    #[test]
    fn a_host_that_nobody_could_ask_is_not_gone() {
        let (mut silences, mut membership) = (silences(), membership());
        [0, 1].iter().for_each(|&daemon| down(&mut membership, daemon));
        let hosts = BTreeSet::from([0]);
        for second in 0..100 {
            let (gone, due) = silences.look(&membership, &hosts, second * ASK_NANOS);
            assert!(gone.is_empty() && due == [0]);
        }
        // One question at a time.
        let mut count = 0;
        for second in 100..200 {
            let (gone, due) = silences.look(&membership, &hosts, second * ASK_NANOS);
            assert!(gone.is_empty());
            count += due.len();
            due.into_iter().for_each(|host| silences.asks(host));
        }
        assert_eq!(count, 1);
    }

    #[test]
    fn a_host_refuses_for_a_daemon_that_was_killed() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let address = listener.local_addr().expect("bound");
        let text = format!("0 {address}\n1 127.0.0.1:9\nx\n2\n");
        assert_eq!(addresses(&text, |daemon| daemon == 0), [address]);
        assert_eq!(with_addresses(&text).map(|it| it.0).collect::<Vec<_>>(), [0, 1]);
        assert!(acknowledges(address));
        drop(listener);
        assert!(acknowledges(address), "nothing listens there, and the host says so");
    }
}
