//! One daemon's part in the cluster: it puts consensus, beats and shipping together.
//!
//! Inputs are functions of `Node`; each appends to a list what the daemon does, in this order. The
//! daemon calls `tick` when `TICK_NANOS` passed at most.
//!
//! | event | steps |
//! |---|---|
//! | a daemon is dead | `beats`: voters miss its beats, no peer reaches it: `Change::Down` |
//! | its services go on | the successor activates its copy, and serves when the old lease has ended |
//! | an owner hands over | it pauses, ships the rest, proposes `Change::HandOver`, and is released |
//! | a follower is missing | `policy` names one, the owner ships a snapshot: `Change::InSync` |
//! | a voter is missing | `voters` names one, which joins; both sets agree, then the next one alone |

mod actions;
mod allowed;
mod balance;
mod beats;
mod copies;
mod lead;
mod messages;
mod services;
mod units;

pub use actions::{Action, Settings, StandbyStep};
pub use balance::BalanceReport;
pub use services::Serving;

use crate::change::Change;
use crate::consensus::{Consensus, Made, Output, TICK_NANOS};
use crate::membership::{Member, Membership, Presence, ServiceIndex};
use crate::shipping::Lane;
use crate::voters::Voter;
use allowed::Allowance;
use balance::Balance;
use beats::Beats;
use encoding::{Decode, Encode};
use lead::Asked;
use messages::Message;
use services::Services;
use units::NodeUnits;
use wire::DaemonIndex;
use wire::codec::Malformed;

/// See the module.
pub struct Node {
    settings: Settings,
    consensus: Option<Consensus>,
    /// The membership that this daemon was told of: a voter has a newer one.
    told: Membership,
    /// Whether that is one which the instance had for sure: changes apply to no other.
    is_confirmed: bool,
    /// `Voter::number` with which this process became a voter last.
    joined_number: u64,
    beats: Beats,
    /// Epoch up to which this daemon, where it leads, told others what concerns them.
    announced: u64,
    /// The encoded membership of an epoch, for all that ask for it.
    encoded: Option<(u64, Vec<u8>)>,
    services: Services,
    units: NodeUnits,
    allowed: Allowance,
    balance: Balance,
    asked: Asked,
    voters_asked_at: i64,
    now: i64,
    ticked_at: i64,
}

/// The newest membership: a voter's own, or the one that it was told of.
fn newest<'a>(consensus: &'a Option<Consensus>, told: &'a Membership) -> &'a Membership {
    let own = consensus.as_ref().map(Consensus::membership);
    own.filter(|own| own.epoch >= told.epoch).unwrap_or(told)
}

impl Node {
    /// The first start of the instance: all daemons are given the same membership and voters, and have
    /// incarnation 1. With a later one this is `restore` without anything stored.
    ///
    /// # Errors
    /// `Malformed` if the settings do not fit each other.
    pub fn begin(settings: Settings, membership: Membership, now: i64) -> Result<Node, Malformed> {
        let own = settings.own;
        let membership = membership.with_voters(&settings.voters);
        // One that starts again without what it stored would vote twice.
        let consensus = if settings.voters.contains(&own) && settings.incarnation == 1 {
            Some(Consensus::begin(own, &settings.voters, &membership, settings.seed)?)
        } else {
            None
        };
        let mut node = Node::with(settings, membership, consensus, now);
        node.is_confirmed = node.settings.incarnation == 1;
        Ok(node)
    }

    /// A later start. `stored` has base and tail as a voter stored them last; `membership` is any that
    /// the instance had, the newer the better.
    ///
    /// # Errors
    /// `Malformed` if the settings do not fit each other, or what is stored.
    pub fn restore(
        settings: Settings,
        stored: Option<(&[u8], &[u8])>,
        membership: Membership,
        now: i64,
    ) -> Result<Node, Malformed> {
        let membership = membership.with_voters(&settings.voters);
        let stored = stored.filter(|(base, _)| !base.is_empty());
        let consensus = stored
            .map(|(base, tail)| Consensus::restore(settings.own, base, tail, settings.seed))
            .transpose()?;
        Ok(Node::with(settings, membership, consensus, now))
    }

    fn with(
        settings: Settings,
        membership: Membership,
        consensus: Option<Consensus>,
        now: i64,
    ) -> Node {
        // A voter goes by what it stored: another membership may be ahead of what it agreed to.
        let is_voter = consensus.as_ref().is_some_and(|it| it.membership().epoch > 0);
        let told = if is_voter { Membership::none() } else { membership };
        let known = newest(&consensus, &told);
        let beats = Beats::new(settings.own, known.members.len(), &known.voters, now);
        Node {
            settings,
            consensus,
            told,
            is_confirmed: false,
            joined_number: 0,
            beats,
            announced: u64::MAX,
            encoded: None,
            services: Services::new(),
            units: NodeUnits::default(),
            allowed: Allowance::default(),
            balance: Balance::default(),
            asked: Asked::new(now),
            voters_asked_at: now,
            now,
            ticked_at: now,
        }
    }

    /// The first actions.
    pub fn start(&mut self, now: i64, out: &mut Vec<Action>) {
        self.now = now;
        let mut outputs = Vec::new();
        if let Some(consensus) = &mut self.consensus {
            consensus.start(&mut outputs);
        }
        self.perform(outputs, out);
        self.adopt(out);
        self.beat(out);
    }

    /// The membership that this daemon knows.
    #[must_use]
    pub fn membership(&self) -> &Membership {
        newest(&self.consensus, &self.told)
    }

    /// Number of the start that this daemon takes part with.
    #[must_use]
    pub const fn incarnation(&self) -> u64 {
        self.settings.incarnation
    }

    /// Whether this daemon is a voter, as far as it knows.
    #[must_use]
    pub fn votes(&self) -> bool {
        self.consensus.as_ref().is_some_and(|consensus| {
            consensus.is_voter() && consensus.membership().epoch >= self.told.epoch
        })
    }

    /// Whether the instance had this membership for sure.
    fn is_sure(&self) -> bool {
        let own = self.consensus.as_ref().map(|consensus| consensus.membership().epoch);
        self.is_confirmed || own.is_some_and(|epoch| epoch >= self.told.epoch)
    }

    /// Whether this daemon leads the consensus.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.consensus.as_ref().is_some_and(Consensus::leads)
    }

    /// Whether this daemon may serve a service at this time.
    #[must_use]
    pub fn serving(&self, service: ServiceIndex, now: i64) -> Serving {
        let Some(seat) = self.membership().seat(service) else { return Serving::Elsewhere };
        let is_owner = seat.owner == Some(self.settings.own) && self.is_present();
        if !is_owner || !self.services.owns(service) {
            return Serving::Elsewhere;
        }
        if self.services.is_paused(service) {
            return Serving::Later;
        }
        // Without followers nobody can take over.
        let is_safe = seat.followers.is_empty() && !seat.is_successor || self.beats.has_lease(now);
        let is_alone = !seat.is_successor || self.services.is_settled(service);
        if is_safe && is_alone { Serving::Yes } else { Serving::Later }
    }

    fn is_present(&self) -> bool {
        self.membership().member(self.settings.own).is_some_and(|member| {
            member.takes_part() && member.incarnation == self.settings.incarnation
        })
    }

    /// Whether this daemon, which was to leave, may end: it has nothing, and nobody needs its vote.
    #[must_use]
    pub fn may_end(&self) -> bool {
        self.consensus.is_none() && self.has_left()
    }

    fn has_left(&self) -> bool {
        self.membership().member(self.settings.own).is_some_and(Member::has_left)
    }

    /// Time passed.
    pub fn tick(&mut self, now: i64, out: &mut Vec<Action>) {
        self.now = now;
        let mut outputs = Vec::new();
        if let Some(consensus) = &mut self.consensus {
            // A process that stood still does not count that time as a leader's silence.
            let late = now - self.ticked_at;
            if late >= TICK_NANOS {
                self.ticked_at =
                    if late < 2 * TICK_NANOS { self.ticked_at + TICK_NANOS } else { now };
                consensus.tick(&mut outputs);
            }
        }
        self.perform(outputs, out);
        if self.beats.is_due(self.services.owns_any(), now) {
            self.beat(out);
        }
        let membership = newest(&self.consensus, &self.told);
        let own = self.settings.own;
        self.services.tick(now, (membership, own), out, &mut self.beats);
        self.send_proposals(out);
        self.send_loads(out);
        let leads = self.leads();
        if self.balance.look(leads, newest(&self.consensus, &self.told), now) {
            self.asked.again();
        }
        if leads {
            self.lead(out);
        }
        self.retire(out);
    }

    fn send_loads(&mut self, out: &mut Vec<Action>) {
        let Some(loads) = self.balance.due(self.now) else { return };
        let bytes = messages::encode_loads(loads);
        let membership = newest(&self.consensus, &self.told);
        for voter in membership.voters.daemons() {
            if voter == self.settings.own {
                self.balance.heard(voter, messages::loads(&bytes), membership);
            } else {
                send(voter, &Message::Loads(&bytes), out);
            }
        }
    }

    /// A daemon that is no voter any more keeps what it stored until a majority of the voters knows the
    /// present ones: until then the others may need its vote to agree on them.
    fn retire(&mut self, out: &mut Vec<Action>) {
        let Some(consensus) = &self.consensus else { return };
        let (name, voters) = (consensus.own(), &self.membership().voters);
        // One that was asked since is perhaps a voter soon, unless it has left.
        let is_late = voters.since > name.number || self.has_left();
        let is_over = !voters.contains(name) && is_late;
        if is_over && self.beats.are_voters_known() {
            (self.is_confirmed, self.told) = (self.is_sure(), self.membership().clone());
            self.consensus = None;
            out.push(Action::Base(Vec::new()));
            out.push(Action::Tail(Vec::new()));
        }
    }

    /// The leader asks this daemon to become a voter: it stores that it is one, so that a later start of
    /// it still is, and says so with its beats. Only then do others count on it.
    fn invited(&mut self, voter: Voter, out: &mut Vec<Action>) -> Result<(), Malformed> {
        let (own, start) = (self.settings.own, self.settings.incarnation);
        // With this start and number it was none before: it has lost no vote.
        let is_new = voter.start == start && voter.number > self.joined_number;
        if voter.daemon != own || !is_new || self.consensus.is_some() || !self.is_present() {
            return Ok(());
        }
        self.joined_number = voter.number;
        let mut consensus = Consensus::join(voter, self.settings.seed)?;
        let mut outputs = Vec::new();
        consensus.start(&mut outputs);
        self.consensus = Some(consensus);
        self.perform(outputs, out);
        self.beat(out);
        Ok(())
    }

    /// A message of another daemon.
    ///
    /// # Errors
    /// `Malformed`: it has no effect.
    pub fn receive(
        &mut self,
        from: DaemonIndex,
        bytes: &[u8],
        now: i64,
        out: &mut Vec<Action>,
    ) -> Result<(), Malformed> {
        self.now = now;
        match Message::from_bytes(bytes)? {
            Message::Consensus(message) => {
                let Some(consensus) = &mut self.consensus else { return Ok(()) };
                if !Consensus::is_for(consensus.own(), message)? {
                    return Ok(());
                }
                let mut outputs = Vec::new();
                let received = consensus.receive(from, message, &mut outputs);
                self.perform(outputs, out);
                received?;
            }
            Message::Propose(list) => self.propose_all(&messages::changes(list)?, out),
            Message::Beat(beat) => self.beaten(from, &beat, out),
            Message::Grant(grant) => {
                self.granted(from, &grant);
            }
            Message::Membership(bytes) => self.learn(Membership::from_bytes(bytes)?, out),
            Message::Changes { since, .. } if since > self.membership().epoch => {
                // It knows more, and answers a beat with it.
                send(from, &Message::Beat(self.own_beat()), out);
            }
            Message::Changes { since, list } => self.catch_up(since, list, out)?,
            Message::Loads(loads) => {
                let membership = newest(&self.consensus, &self.told);
                self.balance.heard(from, messages::loads(loads), membership);
            }
            Message::Space(bytes) => self.heard_space(from, bytes)?,
            Message::Invite(voter) => self.invited(voter, out)?,
            Message::Check { daemon } => {
                if self.membership().member(daemon).is_none() {
                    return Ok(());
                }
                if self.beats.heard_lately(daemon, now) {
                    send(from, &Message::Checked { daemon, is_reached: true }, out);
                } else {
                    self.beats.ask(daemon, from);
                    out.push(Action::Probe(daemon));
                }
            }
            Message::Checked { daemon, is_reached } => {
                self.beats.checked(daemon, from, is_reached);
            }
            Message::Advise(following) => {
                let membership = newest(&self.consensus, &self.told);
                self.services.advise(following, membership, self.settings.own, now, out);
            }
            Message::AdviseUnit(to) => self.advised_unit(to, out),
            Message::Parcel(parcel) => {
                let membership = newest(&self.consensus, &self.told);
                self.services.parcel(from, &parcel, membership, self.settings.own, out);
            }
            Message::Receipt(receipt) => {
                self.services.receipt(from, &receipt, now, out);
                self.send_proposals(out);
            }
        }
        Ok(())
    }

    /// Another daemon's membership.
    fn learn(&mut self, membership: Membership, out: &mut Vec<Action>) {
        let known = self.membership();
        let is_first = !self.is_confirmed && membership.epoch == self.told.epoch;
        if membership.epoch < known.epoch || membership.epoch == known.epoch && !is_first {
            return;
        }
        if self.votes() {
            // A voter applies every change itself, unless it is a voter no more.
            let own = self.consensus.as_ref().map(Consensus::own);
            let is_voter = own.is_some_and(|own| membership.voters.contains(own));
            if is_voter || membership.voters.since <= known.voters.since {
                return;
            }
        }
        self.told = membership;
        self.is_confirmed = true;
        self.adopt(out);
    }

    /// Changes that another daemon made since this epoch.
    fn catch_up(
        &mut self,
        since: u64,
        list: &[u8],
        out: &mut Vec<Action>,
    ) -> Result<(), Malformed> {
        let epoch = self.membership().epoch;
        let changes = Made::list(list)?;
        let Some(known) = epoch.checked_sub(since).and_then(|it| usize::try_from(it).ok()) else {
            return Ok(());
        };
        let changes = changes.into_iter().skip(known);
        if self.votes() {
            let changes: Vec<Made> = changes.collect();
            if changes.iter().any(|made| matches!(made, Made::Voters(_))) {
                let mut membership = self.membership().clone();
                for made in changes {
                    let _ = membership.make(made);
                }
                self.learn(membership, out);
            }
            return Ok(());
        }
        if !self.is_sure() {
            return Ok(());
        }
        if epoch > self.told.epoch {
            self.told = self.membership().clone();
            self.is_confirmed = true;
        }
        // The others applied them to the same membership, so none is refused.
        for made in changes {
            let _ = self.told.make(made);
        }
        if self.told.epoch > epoch {
            self.adopt(out);
        }
        Ok(())
    }

    fn settle(&mut self) {
        let membership = newest(&self.consensus, &self.told);
        self.services.settle(membership, &self.beats);
    }

    /// The answer to `Action::Probe`.
    pub fn probed(
        &mut self,
        daemon: DaemonIndex,
        is_reached: bool,
        now: i64,
        out: &mut Vec<Action>,
    ) {
        self.now = now;
        for asker in self.beats.askers(daemon) {
            send(asker, &Message::Checked { daemon, is_reached }, out);
        }
        self.beats.checked(daemon, self.settings.own, is_reached);
    }

    /// Proposes a change: one that a person asks for, or `Down` where the host says that a daemon ended.
    pub fn propose(&mut self, change: &Change, out: &mut Vec<Action>) {
        self.propose_all(std::slice::from_ref(change), out);
    }

    /// Proposes changes, which are made in this order, as far as they can be: they are stored, sent and
    /// agreed on together.
    pub fn propose_all(&mut self, changes: &[Change], out: &mut Vec<Action>) {
        if changes.is_empty() {
            return;
        }
        let mut outputs = Vec::new();
        let votes = self.votes();
        if let Some(consensus) = self.consensus.as_mut().filter(|_| votes) {
            // Without a leader they are lost, and repeated by their proposer.
            let _ = consensus.propose_all(changes, &mut outputs);
        } else if let Some(voter) = self.beats.nearest_voter() {
            // Any voter knows the leader.
            for some in changes.chunks(messages::CHANGES_MAX) {
                send(voter, &Message::Propose(&messages::encode_changes(some)), out);
            }
        }
        self.perform(outputs, out);
    }

    /// The loads of the services that this daemon owns, as it measured them lately, in any unit. They are
    /// sent once a second.
    pub fn set_loads(&mut self, loads: Vec<(ServiceIndex, u64)>) {
        self.balance.set_own(loads);
    }

    /// The findings of the last look at the loads, where this daemon leads.
    #[must_use]
    pub const fn balance(&self) -> &BalanceReport {
        self.balance.report()
    }

    /// A record was appended to the log of a service that this daemon owns.
    pub fn append(&mut self, service: ServiceIndex, record: &[u8]) {
        self.services.append(service, record);
    }

    /// An operation of a service waits until it is replicated: `Action::Replicated`.
    pub fn wait(&mut self, service: ServiceIndex, ticket: u64, now: i64, out: &mut Vec<Action>) {
        self.now = now;
        self.services.wait(service, ticket, now, out);
        self.send_proposals(out);
    }

    /// The answer to `Action::Slice`: records of the state as it is now, each with its length.
    pub fn slice(&mut self, lane: Lane, batch: &[u8], is_last: bool, out: &mut Vec<Action>) {
        self.services.slice(lane, batch, is_last, self.now, out);
        self.send_proposals(out);
    }

    /// A service does what `Action::Pause` asks for: it begins nothing, and everything that it did was
    /// given to `append`. Only then is it handed over.
    pub fn stands_still(&mut self, service: ServiceIndex, out: &mut Vec<Action>) {
        self.services.stands_still(service, self.now, out);
        self.send_proposals(out);
    }

    /// A service cannot do what `Action::Pause` asks for now: it goes on, and is asked again.
    pub fn cannot_stand_still(&mut self, service: ServiceIndex, out: &mut Vec<Action>) {
        self.services.cannot_stand_still(service, out);
    }

    /// The leader tells daemons what concerns them at once: with their next beat they would learn of it
    /// later.
    fn announce(&mut self, since: u64, out: &mut Vec<Action>) {
        let concerned = self.consensus.as_ref().map(|it| it.concerned_since(since));
        for daemon in concerned.into_iter().flatten() {
            let known = self.beats.epoch_of(daemon);
            self.tell(daemon, known, out);
        }
    }

    fn perform(&mut self, outputs: Vec<Output>, out: &mut Vec<Action>) {
        let epoch = self.consensus.as_ref().map_or(0, |consensus| consensus.membership().epoch);
        let is_changed = outputs.contains(&Output::Changed) && epoch >= self.told.epoch;
        for output in outputs {
            match output {
                Output::Base(bytes) => out.push(Action::Base(bytes)),
                Output::Tail(bytes) => out.push(Action::Tail(bytes)),
                Output::Send { to, message } => send(to, &Message::Consensus(&message), out),
                Output::Changed => {}
            }
        }
        if is_changed {
            if self.leads() {
                // After what this voter stores: where it is the only one, that makes the change.
                self.announce(self.announced, out);
            }
            self.announced = epoch;
            self.adopt(out);
            if self.leads() {
                self.follow_policies(out);
            }
        }
    }

    /// Does what a new membership asks of this daemon.
    fn adopt(&mut self, out: &mut Vec<Action>) {
        let own = self.settings.own;
        let is_present = self.is_present();
        let membership = newest(&self.consensus, &self.told);
        self.beats.resize(membership.members.len(), self.now);
        let has_other_voters = membership.voters != *self.beats.voters();
        if has_other_voters {
            let is_new = membership.voters.has(own) && !self.beats.voters().has(own);
            self.beats.set_voters(&membership.voters, is_new, self.now);
        }
        self.balance.adopt(membership, self.now);
        self.units.adopt(membership);
        self.services.adopt(membership, own, is_present, self.now, out);
        let gone = membership.member(own).is_some_and(|member| {
            let is_down = member.presence == Presence::Down && !member.has_left();
            is_down && member.incarnation == self.settings.incarnation
        });
        let is_waiting = self.services.has_waiting_successors(membership)
            || self.units.is_awaited(membership, own, self.allowed.version());
        if gone {
            // It was declared dead and lives: it comes again, as after a restart.
            self.settings.incarnation += 1;
            self.beats.forget_lease();
        }
        out.push(Action::Changed);
        if is_waiting || has_other_voters {
            // The sooner voters are known to know of it, the sooner this daemon serves.
            self.beat(out);
        }
        self.settle();
        self.send_proposals(out);
    }

    fn send_proposals(&mut self, out: &mut Vec<Action>) {
        let changes = self.services.take_proposals();
        self.propose_all(&changes, out);
    }

    fn own_beat(&self) -> messages::Beat {
        let membership = self.membership();
        messages::Beat {
            incarnation: self.settings.incarnation,
            domain: self.settings.domain,
            began: self.settings.began,
            sent: self.now,
            epoch: if self.is_sure() { membership.epoch } else { 0 },
            voters_since: membership.voters.since,
            votes_as: self.consensus.as_ref().map(Consensus::own),
            has_lease: self.beats.has_lease(self.now),
        }
    }

    fn beat(&mut self, out: &mut Vec<Action>) {
        let (beat, membership) = (self.own_beat(), self.membership());
        let mut receivers: Vec<DaemonIndex> = membership.voters.daemons().collect();
        receivers.extend(self.beats.stranger(self.now).filter(|it| !membership.voters.has(*it)));
        self.beats.sent(self.now);
        for receiver in receivers {
            if receiver == self.settings.own {
                self.beaten(receiver, &beat, out);
            } else {
                send(receiver, &Message::Beat(beat), out);
            }
        }
    }

    /// A beat arrived.
    fn beaten(&mut self, from: DaemonIndex, beat: &messages::Beat, out: &mut Vec<Action>) {
        if self.votes() {
            self.grant(from, beat, out);
        }
        if beat.epoch < self.membership().epoch && from != self.settings.own {
            // One answer is enough, unless those of the leader are lost.
            if !self.votes() || self.leads() || !beat.has_lease {
                self.tell(from, beat.epoch, out);
            }
        }
    }

    /// Tells a daemon what changed since an epoch, or the whole membership.
    fn tell(&mut self, to: DaemonIndex, since: u64, out: &mut Vec<Action>) {
        let votes = self.votes();
        let consensus = self.consensus.as_ref().filter(|_| votes);
        if let Some(list) = consensus.and_then(|it| it.changes_since(since)) {
            send(to, &Message::Changes { since, list: &list }, out);
            return;
        }
        let membership = newest(&self.consensus, &self.told);
        let epoch = membership.epoch;
        if self.encoded.as_ref().is_none_or(|(of, _)| *of != epoch) {
            self.encoded = Some((epoch, membership.to_bytes()));
        }
        if let Some((_, bytes)) = &self.encoded {
            send(to, &Message::Membership(bytes), out);
        }
    }

    /// A voter has answered a beat.
    fn granted(&mut self, from: DaemonIndex, grant: &messages::Grant) {
        self.beats.granted(from, grant, self.settings.incarnation, self.now);
        self.allowed.granted(grant, self.settings.incarnation);
        self.services.allow(self.allowed.epoch());
        self.settle();
    }

    /// This voter answers a beat.
    fn grant(&mut self, from: DaemonIndex, beat: &messages::Beat, out: &mut Vec<Action>) {
        let membership = newest(&self.consensus, &self.told);
        let member = membership.member(from);
        // One that has left serves nothing, and hears so that all know the voters.
        let is_known = member.is_some_and(|member| {
            let is_same = member.incarnation == beat.incarnation;
            member.takes_part() && is_same || member.has_left()
        });
        if !is_known {
            let may_come =
                member.is_some_and(|it| !it.has_left() && it.incarnation < beat.incarnation);
            if self.leads() && may_come {
                self.propose_up(from, beat, out);
            }
            return;
        }
        self.beats.heard(from, beat, self.now);
        if beat.voters_since < membership.voters.since {
            // See `beats`: a lease by older voters.
            return;
        }
        let leads_in = self.consensus.as_ref().and_then(Consensus::leads_in);
        let grant = messages::Grant {
            incarnation: beat.incarnation,
            sent: beat.sent,
            epoch: membership.epoch,
            quiet: self.beats.quiet_nanos(membership, self.now),
            allowed: self.allowed.grant((from, beat.epoch), leads_in, membership),
        };
        if from == self.settings.own {
            self.granted(from, &grant);
        } else {
            send(from, &Message::Grant(grant), out);
        }
    }
}

fn send(to: DaemonIndex, message: &Message<'_>, out: &mut Vec<Action>) {
    out.push(Action::Send { to, message: message.to_bytes() });
}
