//! How long a file of the mode `posix` is while several hosts have it open.
//!
//! A host notes in shared memory what it writes, and tells it late (`shm::host::lengths`). Whoever wants
//! to know how long a file is, or when it was written, is answered after all hosts that may write to it
//! said what they did not tell yet: a *glimpse*. And a file is cut after all hosts that have it open
//! counted that in their rows: then what was begun there before notes nothing, and begins anew.
//!
//! States of a cut: begun (hosts are asked to count its beginning) -> the targets cut -> over (hosts are
//! told to count its end). Both are sent again until they are answered; only the first is waited for.
//!
//! Words and answers of a host, and what its clients ask for, come in the order in which they were sent:
//! they share a connection. Hence
//! 1. What a host said before it counted the beginning of a cut is before the cut: it does not count
//!    while the host owes that answer, nor if the cut began after the host was asked.
//! 2. A host knows of the end of a cut before its clients are answered anything that came after.
//! 3. Who asks for a cut is not told of it: his own daemon counts it as the request and its answer pass
//!    by (`set::COUNTED`).
//!
//! A host that does not answer for as long as the instance waits for anything is *silent*: it is asked
//! on, but not waited for. What it did not tell comes when it does.

use std::collections::BTreeMap;

use wire::limits::FILE_BYTES_MAX;
use wire::{Attributes, DaemonIndex, Inode};

use crate::directory::RESEND_NANOS;
use crate::effect::Effect;
use crate::host_word::HostWord;
use crate::live::{Again, Ask, Fact, Step, Stop, Wait};
use crate::mounts::Changing;
use crate::peer::Message;
use crate::record::Record;
use crate::service::Service;

/// A host that was not asked for so long begins anew: nobody waited for it since.
const FORGOTTEN_NANOS: i64 = 10_000_000_000;

/// Hosts are asked what they did not tell, for one job.
#[derive(Clone, Debug)]
pub(crate) struct Glimpse {
    inode: Inode,
    /// 0: not parked yet.
    pub(crate) job: u64,
    /// Who has not answered.
    left: Vec<u16>,
    /// The file was cut since: the answers are about what was before.
    is_void: bool,
    again: Again,
}

/// The last cut of a file, as long as a host owes an answer about it.
#[derive(Clone, Debug)]
pub(crate) struct Cut {
    /// Names it in words and answers; also what its targets are asked under.
    token: u64,
    size: u64,
    /// Who has not counted its beginning.
    begin: Vec<u16>,
    /// Who has not counted its end.
    end: Vec<u16>,
    /// The targets are cutting, or have.
    is_sent: bool,
    /// The targets have cut.
    is_over: bool,
    again: Again,
}

/// Since when a host owes an answer, and when it was asked last.
#[derive(Clone, Copy, Debug)]
struct Owing {
    since: i64,
    asked: i64,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Sizes {
    pub(crate) glimpses: BTreeMap<u64, Glimpse>,
    cuts: BTreeMap<Inode, Cut>,
    owing: BTreeMap<u16, Owing>,
}

impl Sizes {
    fn note_asked(&mut self, host: u16, now: i64) {
        let owing = self.owing.entry(host).or_insert(Owing { since: now, asked: now });
        if now.saturating_sub(owing.asked) > FORGOTTEN_NANOS {
            owing.since = now;
        }
        owing.asked = now;
    }
}

impl Service {
    /// Before anything is said, or decided, by how long a file is or when it was written: what hosts did
    /// not tell of that is told. Of the asker's own host only he knows, and has told.
    pub(crate) fn settle_size(&mut self, ask: &Ask<'_>, inode: Inode) -> Step<()> {
        let Some(node) = self.state.inodes.get(inode) else { return Ok(()) };
        let attributes = node.attributes;
        if !is_glimpsed(&attributes) {
            return Ok(());
        }
        if self.live.busy.contains_key(&inode) {
            return Err(Stop::Wait(Wait::Data(inode)));
        }
        if !ask.facts.contains(&Fact::Glimpsed(inode)) {
            self.glimpse(ask, inode)?;
        }
        self.take_row(ask, &attributes)
    }

    /// As `settle_size`, where an answer may also say nothing of the file: false then.
    pub(crate) fn is_settled(&mut self, ask: &Ask<'_>, attributes: &Attributes) -> bool {
        let inode = attributes.inode;
        if !is_glimpsed(attributes) {
            return true;
        }
        let is_known = !self.live.busy.contains_key(&inode)
            && self.writers_but(inode, ask.header.host).next().is_none();
        is_known && self.take_row(ask, attributes).is_ok()
    }

    /// Takes over what this host wrote to a file and did not tell, for who is on another.
    fn take_row(&mut self, ask: &Ask<'_>, attributes: &Attributes) -> Step<()> {
        if ask.header.host == self.config.host {
            return Ok(());
        }
        let inode = attributes.inode;
        let Some(end) = ask.hands.untold(inode).filter(|&end| end != 0) else { return Ok(()) };
        self.check_row(inode)?;
        self.take_end(attributes, end);
        self.tell_mounts_of(ask, inode);
        self.io.push(Effect::Told { inode, end });
        Ok(())
    }

    /// A file was written up to `end`.
    fn take_end(&mut self, old: &Attributes, end: u64) {
        let mut attributes = *old;
        attributes.size = old.size.max(end.min(FILE_BYTES_MAX));
        attributes.changed = self.stamp(old.changed);
        attributes.modified = attributes.changed;
        self.put(&Record::PutAttributes { attributes });
    }

    /// Other hosts that have a file open and may write to it.
    pub(crate) fn writers_but(
        &self,
        inode: Inode,
        host: u16,
    ) -> impl Iterator<Item = u16> + use<'_> {
        let hosts = self.state.hosts.get(&inode).into_iter().flatten();
        hosts.filter(move |known| known.writes && known.host != host).map(|known| known.host)
    }

    /// True if what the index says of a file may be old: other hosts write to it.
    pub(crate) fn is_written_elsewhere(&self, attributes: &Attributes) -> bool {
        attributes.is_posix()
            && attributes.is_regular()
            && self.writers_but(attributes.inode, self.config.host).next().is_some()
    }

    fn is_silent(&self, host: u16) -> bool {
        let silence = self.config.silence_nanos;
        let owing = self.live.sizes.owing.get(&host);
        owing.is_some_and(|owing| self.live.now.saturating_sub(owing.since) > silence)
    }

    fn glimpse(&mut self, ask: &Ask<'_>, inode: Inode) -> Step<()> {
        let hosts: Vec<u16> = self.writers_but(inode, ask.header.host).collect();
        if hosts.is_empty() {
            return Ok(());
        }
        let (token, now) = (self.new_sequence(), self.live.now);
        let again = Again::after(now, RESEND_NANOS);
        let left: Vec<u16> = hosts.iter().copied().filter(|&host| !self.is_silent(host)).collect();
        for &host in &hosts {
            self.ask_host(host, &HostWord::Glimpse { from: self.live.address, token, inode });
        }
        if left.is_empty() {
            return Ok(());
        }
        let glimpse = Glimpse { inode, job: 0, left, is_void: false, again };
        self.live.sizes.glimpses.insert(token, glimpse);
        self.live.wake_at(again.at);
        Err(Stop::Wait(Wait::Glimpse(token)))
    }

    fn ask_host(&mut self, host: u16, word: &HostWord) {
        self.live.sizes.note_asked(host, self.live.now);
        self.tell_host(host, word);
    }

    fn tell_host(&mut self, host: u16, word: &HostWord) {
        let bytes = word.encode();
        self.io.push(Effect::Host { to: DaemonIndex(host), bytes });
    }

    /// What a host says of the size of a file.
    pub(crate) fn take_size(&mut self, message: &Message<'_>) {
        match *message {
            Message::Glimpsed { host, token, inode, end } => {
                self.glimpsed(host, token, inode, end);
            }
            Message::CutBegun { host, token, inode } => self.cut_begun(host, token, inode),
            Message::CutEnded { host, token, inode } => self.cut_ended(host, token, inode),
            _ => {}
        }
    }

    /// A host says up to where it wrote a file without telling; 0: not at all.
    fn glimpsed(&mut self, host: u16, token: u64, inode: Inode, end: u64) {
        self.live.sizes.owing.remove(&host);
        let owes = self.live.sizes.cuts.get(&inode).is_some_and(|cut| cut.begin.contains(&host));
        let Some(glimpse) = self.live.sizes.glimpses.get_mut(&token) else { return };
        if glimpse.inode != inode || !glimpse.left.contains(&host) {
            return;
        }
        glimpse.left.retain(|&other| other != host);
        let counts = end != 0 && !glimpse.is_void && !owes;
        if counts && let Some(node) = self.state.inodes.get(inode) {
            let attributes = node.attributes;
            self.take_end(&attributes, end);
            self.tell_far_mounts(None, &Changing::Attributes(inode));
            self.tell_host(host, &HostWord::Told { inode, end });
        }
        self.end_glimpse(token);
    }

    /// If nobody is left to answer, the job goes on.
    fn end_glimpse(&mut self, token: u64) {
        let is_over = |glimpse: &Glimpse| glimpse.left.iter().all(|&host| self.is_silent(host));
        if !self.live.sizes.glimpses.get(&token).is_some_and(is_over) {
            return;
        }
        let Some(glimpse) = self.live.sizes.glimpses.remove(&token) else { return };
        if let Some(job) = self.live.jobs.get_mut(&glimpse.job) {
            job.facts.push(Fact::Glimpsed(glimpse.inode));
            self.live.woken.insert(glimpse.job);
        }
    }

    /// Before the targets cut a file: hosts that have it open count that. True if they have, or there is
    /// none. `by`: the host that asked for it.
    pub(crate) fn begin_far_cut(&mut self, inode: Inode, token: u64, size: u64, by: u16) -> bool {
        let Some(node) = self.state.inodes.get(inode) else { return true };
        if !node.attributes.is_posix() {
            return true;
        }
        let glimpses = self.live.sizes.glimpses.values_mut();
        glimpses
            .filter(|glimpse| glimpse.inode == inode)
            .for_each(|glimpse| glimpse.is_void = true);
        let hosts = self.state.hosts.get(&inode).into_iter().flatten();
        let begin: Vec<u16> = hosts.map(|known| known.host).filter(|&host| host != by).collect();
        // Who asks may not know of the end of the cut before.
        let before = self.live.sizes.cuts.remove(&inode).map_or(Vec::new(), |cut| cut.end);
        let mut end = begin.clone();
        end.extend(before.into_iter().filter(|&host| host == by));
        if end.is_empty() {
            return true;
        }
        for &host in &begin {
            let from = self.live.address;
            self.ask_host(host, &HostWord::BeginCut { from, token, inode, size });
        }
        let is_sent = begin.iter().all(|&host| self.is_silent(host));
        let again = Again::after(self.live.now, RESEND_NANOS);
        self.live.wake_at(again.at);
        let cut = Cut { token, size, begin, end, is_sent, is_over: false, again };
        self.live.sizes.cuts.insert(inode, cut);
        is_sent
    }

    /// True if other hosts than `by` have a file of the mode `posix` open: each change of its size is a
    /// cut, as they may have written more.
    pub(crate) fn is_cut_far(&self, attributes: &Attributes, by: u16) -> bool {
        let hosts = self.state.hosts.get(&attributes.inode).into_iter().flatten();
        attributes.is_posix() && hosts.into_iter().any(|known| known.host != by)
    }

    /// A host has counted the beginning of a cut.
    fn cut_begun(&mut self, host: u16, token: u64, inode: Inode) {
        self.live.sizes.owing.remove(&host);
        let Some(cut) = self.live.sizes.cuts.get_mut(&inode) else { return };
        if cut.token != token || !cut.begin.contains(&host) {
            return;
        }
        cut.begin.retain(|&other| other != host);
        let (is_over, size) = (cut.is_over, cut.size);
        if is_over {
            // It was silent; the others are told already.
            self.tell_end(host, token, inode, size);
        }
        self.go_on_with_cut(inode);
    }

    /// If nobody is left to count the beginning of a cut, the targets cut.
    fn go_on_with_cut(&mut self, inode: Inode) {
        let is_due = |cut: &Cut| !cut.is_sent && cut.begin.iter().all(|&host| self.is_silent(host));
        if !self.live.sizes.cuts.get(&inode).is_some_and(is_due) {
            return;
        }
        if let Some(cut) = self.live.sizes.cuts.get_mut(&inode) {
            cut.is_sent = true;
            let token = cut.token;
            self.send_to_targets(token);
        }
    }

    /// The targets have cut: hosts count its end.
    pub(crate) fn end_far_cut(&mut self, inode: Inode, token: u64) {
        let Some(cut) = self.live.sizes.cuts.get_mut(&inode) else { return };
        if cut.token != token {
            return;
        }
        cut.is_over = true;
        cut.again = Again::after(self.live.now, RESEND_NANOS);
        let (size, at) = (cut.size, cut.again.at);
        let told: Vec<u16> =
            cut.end.iter().copied().filter(|host| !cut.begin.contains(host)).collect();
        self.live.wake_at(at);
        told.into_iter().for_each(|host| self.tell_end(host, token, inode, size));
    }

    fn tell_end(&mut self, host: u16, token: u64, inode: Inode, size: u64) {
        let from = self.live.address;
        self.ask_host(host, &HostWord::EndCut { from, token, inode, size });
    }

    /// A host has counted the end of a cut.
    fn cut_ended(&mut self, host: u16, token: u64, inode: Inode) {
        self.live.sizes.owing.remove(&host);
        let Some(cut) = self.live.sizes.cuts.get_mut(&inode) else { return };
        if cut.token == token && !cut.begin.contains(&host) {
            cut.end.retain(|&other| other != host);
            if cut.end.is_empty() && cut.is_over {
                self.live.sizes.cuts.remove(&inode);
            }
        }
    }

    /// True if what a host said of a file was sent before it counted a cut that has begun here: it is cut
    /// off.
    pub(crate) fn is_before_cut(&self, host: u16, inode: Inode) -> bool {
        self.live.sizes.cuts.get(&inode).is_some_and(|cut| cut.begin.contains(&host))
    }

    /// A host has a file open no longer: nobody there knows how long it is.
    pub(crate) fn forget_sizes(&mut self, host: u16, inode: Inode) {
        let glimpses = self.live.sizes.glimpses.iter_mut();
        let mut tokens = Vec::new();
        for (&token, glimpse) in glimpses.filter(|(_, glimpse)| glimpse.inode == inode) {
            glimpse.left.retain(|&other| other != host);
            tokens.push(token);
        }
        tokens.into_iter().for_each(|token| self.end_glimpse(token));
        if let Some(cut) = self.live.sizes.cuts.get_mut(&inode) {
            cut.begin.retain(|&other| other != host);
            cut.end.retain(|&other| other != host);
            if cut.end.is_empty() && cut.is_over {
                self.live.sizes.cuts.remove(&inode);
                return;
            }
        }
        self.go_on_with_cut(inode);
    }

    /// What time brings: who does not answer is asked again, and waited for no longer than anything is.
    pub(crate) fn send_sizes_again(&mut self) {
        let (now, from) = (self.live.now, self.live.address);
        let jobs = &self.live.jobs;
        self.live.sizes.glimpses.retain(|_, glimpse| jobs.contains_key(&glimpse.job));
        let (mut words, mut tokens, mut inodes) = (Vec::new(), Vec::new(), Vec::new());
        for (&token, glimpse) in &mut self.live.sizes.glimpses {
            let inode = glimpse.inode;
            if glimpse.again.is_due(now) {
                let word = HostWord::Glimpse { from, token, inode };
                words.extend(glimpse.left.iter().map(|&host| (host, word)));
            }
            tokens.push((token, glimpse.again.at));
        }
        for (&inode, cut) in &mut self.live.sizes.cuts {
            let (token, size) = (cut.token, cut.size);
            if cut.again.is_due(now) {
                let begin = HostWord::BeginCut { from, token, inode, size };
                words.extend(cut.begin.iter().map(|&host| (host, begin)));
                let end = HostWord::EndCut { from, token, inode, size };
                let is_told = |host: &&u16| cut.is_over && !cut.begin.contains(host);
                words.extend(cut.end.iter().filter(is_told).map(|&host| (host, end)));
            }
            inodes.push((inode, cut.again.at));
        }
        for (host, word) in words {
            self.ask_host(host, &word);
        }
        for (token, at) in tokens {
            self.live.wake_at(at);
            self.end_glimpse(token);
        }
        for (inode, at) in inodes {
            self.live.wake_at(at);
            self.go_on_with_cut(inode);
        }
    }

    /// At a start: whom the last one told of the beginning of a cut, and not of its end, is unknown. What
    /// the targets are asked anew is told anew; of all else the end is.
    pub(crate) fn begin_sizes(&mut self) {
        let pending: Vec<Inode> = self.state.pending.values().map(|one| one.inode).collect();
        let again = Again::after(self.live.now, 0);
        let open: Vec<(Inode, Vec<u16>, u64)> = self
            .state
            .hosts
            .iter()
            .filter(|(inode, _)| !pending.contains(inode))
            .filter_map(|(&inode, hosts)| {
                let attributes = self.state.inodes.get(inode)?.attributes;
                let hosts = hosts.iter().map(|known| known.host).collect();
                attributes.is_posix().then_some((inode, hosts, attributes.size))
            })
            .collect();
        for (inode, end, size) in open {
            let token = self.new_sequence();
            let begin = Vec::new();
            let cut = Cut { token, size, begin, end, is_sent: true, is_over: true, again };
            self.live.sizes.cuts.insert(inode, cut);
        }
    }
}

/// True if hosts may know more of a file than its shard.
const fn is_glimpsed(attributes: &Attributes) -> bool {
    attributes.is_posix() && attributes.is_regular() && !attributes.is_inline()
}
