//! Pages in kernel caches behind mounts of several hosts: mounts and programs open files, read from
//! pages, by mappings and by direct I/O, and write; requests and messages are late, lost,
//! duplicated and reordered; mounts hang; services restart. No read returns data older than a write
//! that completed before the read began; or, of stores by a mapping of a program without a mount, than
//! one of its own host. Clients and mounts are simulated in the steps of the real
//! ones (`client::pages`, `mount/src/kernel_cache/pages.rs`). A failure prints its seed.

mod play;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use crate::sim::shared::{FileRow, Shared};
use crate::sim::{Answer, Random, Sent, World, config};
use metadata::Config;
use wire::codec::Field as _;
use wire::reply::opened;
use wire::request::open;
use wire::watch::{Notice, what};
use wire::{Credentials, Inode, Reader, Reply, Request, ShardIndex};

/// The host of each service.
const HOSTS: [u16; 4] = [0, 0, 2, 3];
/// Host and number of each mount; number 0: the programs of a host.
const USERS: [User; 7] = [(0, 0), (0, 1), (0, 2), (2, 0), (2, 1), (3, 0), (3, 1)];
/// Mounts, and the services of their hosts.
const LISTENERS: [(User, usize); 6] =
    [((0, 1), 0), ((0, 1), 1), ((0, 2), 0), ((0, 2), 1), ((2, 1), 2), ((3, 1), 3)];
const SHARED: u8 = 255;

type User = (u16, u8);

/// An open file.
#[derive(Clone, Copy, Debug)]
struct Open {
    by: User,
    inode: Inode,
    writes: bool,
    /// Reads and writes go through the page cache.
    is_paged: bool,
    /// Number of pending calls.
    calls: u32,
    is_closed: bool,
}

/// The ticket of a request for notices, the last notice carried out, and the notices taken since.
type Listening = (Option<u64>, u64, VecDeque<(u64, Inode)>);

/// A kernel behind a mount, and the program that serves it.
#[derive(Default)]
struct Mount {
    /// Contents of each page, and the number of the fill that brought it.
    pages: BTreeMap<Inode, (u64, u64)>,
    /// Files of which pages were read, or written as a whole, since they were last dropped.
    brought: BTreeSet<Inode>,
    /// Pages with a pending request: they are locked.
    locked: BTreeMap<Inode, u32>,
    filled: BTreeMap<Inode, u64>,
    /// The counter of writers when caching was permitted.
    known: BTreeMap<Inode, u64>,
    /// Files whose pages the invalidation thread has to drop.
    behind: VecDeque<Inode>,
    /// By service: the ticket of its request for notices, the last one carried out, those taken.
    listens: BTreeMap<usize, Listening>,
    stands_still_until: i64,
}

/// Task of one thread.
enum Task {
    Open {
        by: User,
        inode: Inode,
        uses: u8,
        stage: u32,
        before: u64,
        call: Option<Call>,
    },
    Read {
        file: usize,
        maps: bool,
        floor: u64,
        stage: u32,
        seen: u64,
        drops: bool,
        call: Option<Call>,
    },
    /// `is_silent`: by a mapping of a preloaded program.
    Write {
        file: usize,
        is_silent: bool,
        /// The page that it changed before it was sent: it is locked if there was none.
        page: Option<u64>,
        stage: u32,
        value: u64,
        call: Option<Call>,
    },
    Close {
        call: Call,
    },
}

/// A request that is repeated until it is answered.
struct Call {
    sent: Sent,
    tickets: Vec<u64>,
    at: usize,
}

struct Game {
    world: World,
    shared: BTreeMap<u16, Rc<RefCell<Shared>>>,
    mounts: BTreeMap<User, Mount>,
    files: Vec<Inode>,
    open: Vec<Open>,
    tasks: Vec<Task>,
    /// Contents of each file, and the last value written by a completed write.
    bytes: BTreeMap<Inode, u64>,
    returned: BTreeMap<Inode, u64>,
    /// The same for silent stores, by host.
    stored: BTreeMap<(u16, Inode), u64>,
    rounds: u64,
    /// Percentage of opens for writing.
    writers: usize,
    random: Random,
    from_pages: u64,
    cached: u64,
    mapped: u64,
    waited: u64,
    /// Service 0, in a game in which it moves.
    moves: play::Moves,
}

fn seat(daemon: usize) -> Config {
    Config { host: HOSTS[daemon], ..config(daemon as u16, HOSTS.len() as u16, 0, 1) }
}

impl Game {
    fn new(seed: u64) -> Game {
        let mut world = World::of((0..HOSTS.len()).map(seat).collect());
        world.settle();
        let mut files = vec![];
        for number in 0..40 {
            let name = format!("d{number}");
            let made = world.root().directory(Inode::ROOT, name.as_bytes()).expect("made");
            files.push(world.root().file(made.inode, b"f").expect("made").inode);
        }
        // One of each service, and one more.
        let mut seen = BTreeSet::new();
        files.retain(|inode| seen.insert(world.owner(inode.shard())));
        assert!(files.len() > 2, "files of several services");
        let mut random = Random(seed);
        while files.len() > 2 {
            files.swap_remove(random.uniform(files.len()));
        }
        let (mut shared, mut watched) = (BTreeMap::new(), BTreeMap::new());
        for (seat, host) in world.seats.iter_mut().zip(HOSTS) {
            let own: &Rc<RefCell<Shared>> = shared.entry(host).or_default();
            seat.host_view.pages = Rc::clone(own);
            let own: &Rc<RefCell<crate::sim::Watched>> = watched.entry(host).or_default();
            own.borrow_mut().mounts =
                USERS.iter().filter(|user| user.0 == host).map(|user| user.1).collect();
            seat.host_view.watched = Rc::clone(own);
        }
        let mounts = USERS.iter().filter(|user| user.1 != 0).map(|user| (*user, Mount::default()));
        Game {
            world,
            shared,
            mounts: mounts.collect(),
            files,
            open: vec![],
            tasks: vec![],
            bytes: BTreeMap::new(),
            returned: BTreeMap::new(),
            stored: BTreeMap::new(),
            rounds: 0,
            writers: 0,
            random,
            from_pages: 0,
            cached: 0,
            mapped: 0,
            waited: 0,
            moves: play::Moves::default(),
        }
    }

    fn is_local(&self, by: User, inode: Inode) -> bool {
        HOSTS[self.world.owner(inode.shard())] == by.0
    }

    fn row(&self, by: User, inode: Inode) -> FileRow {
        *self.shared[&by.0].borrow().rows.get(&inode).expect("it is open")
    }

    fn change_row(&self, by: User, inode: Inode, change: impl FnOnce(&mut FileRow)) {
        change(self.shared[&by.0].borrow_mut().rows.get_mut(&inode).expect("it is open"));
    }

    fn others(&self, by: User, inode: Inode) -> u8 {
        let counts = self.shared[&by.0].borrow().others.get(&inode).copied().unwrap_or_default();
        let writes = if counts.0 > 0 { opened::OTHERS_WRITE } else { 0 };
        writes | if counts.1 > 0 { opened::OTHERS_CACHE } else { 0 }
    }

    fn open_sequence(&mut self) -> u64 {
        self.rounds += 1;
        self.rounds
    }

    fn call(&mut self, by: User, request: &Request<'_>) -> Call {
        let inode = request.subject().expect("of a file");
        let mut sent = self.world.prepare(Credentials::ROOT, inode.shard(), request);
        (sent.header.host, sent.header.mount) = by;
        Call { sent, tickets: vec![], at: self.world.owner(inode.shard()) }
    }

    /// Sends a request, or takes its answer.
    fn pursue(&mut self, call: &mut Call) -> Option<Answer> {
        let answers = call.tickets.iter().filter_map(|&ticket| self.world.answer(ticket));
        let answer = answers.into_iter().find(|answer| *answer != Answer::Busy);
        if answer.is_none() && (call.tickets.is_empty() || self.random.chance(3)) {
            self.waited += u64::from(!call.tickets.is_empty());
            if !self.world.dead.contains(&call.at) && !self.random.chance(10) {
                call.tickets.push(self.world.send_again(&call.sent));
            }
        }
        answer
    }

    fn begin(&mut self) {
        let by = USERS[self.random.uniform(USERS.len())];
        let inode = self.files[self.random.uniform(self.files.len())];
        if by.1 != 0 && self.stands_still(by) {
            return;
        }
        let mine: Vec<usize> = (0..self.open.len())
            .filter(|&at| self.open[at].by == by && !self.open[at].is_closed)
            .collect();
        let chosen = self.random.uniform(mine.len().max(1));
        let what = if mine.len() > 2 { 3 } else { self.random.uniform(16) };
        match (what, mine.get(chosen).copied()) {
            // It waits for the shard, unless it has begun.
            (0 | 1, _) | (_, None) if self.is_away_from(by, inode) => {}
            (0 | 1, _) | (_, None) => {
                let writes = self.random.chance(self.writers);
                let pages = by.1 != 0 && self.random.chance(80);
                let uses =
                    if writes { open::WRITES } else { 0 } | if pages { open::PAGES } else { 0 };
                self.tasks.push(Task::Open { by, inode, uses, stage: 0, before: 0, call: None });
            }
            (2 | 3, Some(file)) if self.open[file].calls == 0 => self.close(file),
            (4..=9, Some(file)) if self.open[file].writes => {
                self.open[file].calls += 1;
                let is_silent = by.1 == 0 && self.random.chance(30);
                let page = None;
                self.tasks.push(Task::Write {
                    file,
                    is_silent,
                    page,
                    stage: 0,
                    value: 0,
                    call: None,
                });
            }
            (_, Some(file)) => {
                self.open[file].calls += 1;
                let maps = by.1 != 0 && self.random.chance(15);
                let inode = self.open[file].inode;
                let returned = self.returned.get(&inode).copied().unwrap_or(0);
                let floor = returned.max(self.stored.get(&(by.0, inode)).copied().unwrap_or(0));
                self.tasks.push(Task::Read {
                    file,
                    maps,
                    floor,
                    stage: 0,
                    seen: 0,
                    drops: false,
                    call: None,
                });
            }
        }
    }

    fn close(&mut self, file: usize) {
        let Open { by, inode, .. } = self.open[file];
        self.open[file].is_closed = true;
        let left = {
            let mut shared = self.shared[&by.0].borrow_mut();
            let row = shared.rows.get_mut(&inode).expect("it is open");
            row.host_view -= 1;
            row.host_view
        };
        if left == 0 {
            self.shared[&by.0].borrow_mut().rows.remove(&inode);
            if !self.is_local(by, inode) {
                let open_sequence = self.open_sequence();
                let call = self.call(by, &Request::Close { inode, open_sequence });
                self.tasks.push(Task::Close { call });
            }
        }
    }

    fn stands_still(&self, by: User) -> bool {
        self.mounts[&by].stands_still_until > self.world.now
    }

    fn is_only_user(&self, by: User, inode: Inode) -> bool {
        let row = self.row(by, inode);
        (row.writer == 0 || row.writer == by.1) && row.others & opened::OTHERS_WRITE == 0
    }

    fn mark_writer(&mut self, by: User, inode: Inode) {
        let writer = if by.1 == 0 { SHARED } else { by.1 };
        self.change_row(by, inode, |row| {
            let is_first = row.writer == 0 || row.writer == writer;
            row.writer = if is_first { writer } else { SHARED };
        });
    }

    fn count_writer(&mut self, by: User, inode: Inode) -> u64 {
        self.shared[&by.0].borrow_mut().begin_writing(inode)
    }

    /// Returns true after the last step of an open.
    fn step_open(&mut self, task: &mut Task) -> bool {
        let Task::Open { by, inode, uses, stage, before, call } = task else { unreachable!() };
        let (by, inode, uses) = (*by, *inode, *uses);
        let writes = uses & open::WRITES != 0;
        let is_local = self.is_local(by, inode);
        *stage += 1;
        match (*stage, is_local) {
            (1, _) => {
                let mut shared = self.shared[&by.0].borrow_mut();
                shared.rows.entry(inode).or_default().host_view += 1;
            }
            (2, true) => *before = self.shared[&by.0].borrow().writers_ever(inode),
            (3, _) if writes => self.mark_writer(by, inode),
            (4, true) if writes => *before = self.count_writer(by, inode),
            (5, true) if writes => {
                let own = if by.1 == 0 { 0 } else { 1 << by.1 };
                let keep = self.others(by, inode) & opened::OTHERS_CACHE != 0;
                if keep || self.row(by, inode).cachers & !own != 0 {
                    *call = Some(self.call(by, &Request::Unwatch { inode }));
                }
            }
            (5, false) => {
                let open_sequence = self.open_sequence();
                *call = Some(self.call(by, &Request::Open { inode, open_sequence, uses }));
            }
            (6, _) => {
                let Some(call) = call else { return false };
                let Some(answer) = self.pursue(call) else {
                    *stage -= 1;
                    return false;
                };
                let (others, writers) = match answer {
                    Answer::Number(others) => (others as u8 | opened::MAY_CACHE, *before),
                    Answer::Opened(_, writers, others) => (others, writers),
                    other => panic!("{other:?}"),
                };
                *before = writers;
                self.change_row(by, inode, |row| row.others |= others & opened::OTHERS_CACHE);
                if others & opened::MAY_CACHE == 0 {
                    self.opened((by, inode), uses, None);
                    return true;
                }
            }
            (7, _) => {
                let may = uses & open::PAGES != 0
                    && self.is_only_user(by, inode)
                    && !(is_local && self.others(by, inode) & opened::OTHERS_WRITE != 0);
                if !may {
                    self.opened((by, inode), uses, None);
                    return true;
                }
                self.change_row(by, inode, |row| {
                    (row.had_pages, row.cachers) = (true, row.cachers | 1 << by.1);
                    row.is_entered |= !is_local;
                });
            }
            (8, _) => {
                if is_local && self.others(by, inode) & opened::OTHERS_WRITE != 0 {
                    self.opened((by, inode), uses, None);
                    return true;
                }
                self.change_row(by, inode, |row| row.is_entered = true);
                self.opened((by, inode), uses, Some(*before));
                return true;
            }
            _ => {}
        }
        false
    }

    /// `before`: the counter of writers, if pages may be cached.
    fn opened(&mut self, (by, inode): (User, Inode), uses: u8, before: Option<u64>) {
        let writes = uses & open::WRITES != 0;
        if let Some(mount) = self.mounts.get_mut(&by) {
            let now = before.map(|before| before + u64::from(writes));
            let known = now.and_then(|now| mount.known.insert(inode, now));
            if before.is_some() && known == before {
                self.cached += u64::from(mount.pages.contains_key(&inode));
            } else {
                // The kernel drops them as it opens the file.
                mount.pages.remove(&inode);
            }
        }
        let (is_paged, calls, is_closed) = (before.is_some(), 0, false);
        self.open.push(Open { by, inode, writes, is_paged, calls, is_closed });
    }

    /// Before pages are filled. True if that is recorded.
    fn note_pages(&mut self, (by, inode): (User, Inode), call: &mut Option<Call>) -> bool {
        if self.row(by, inode).is_entered {
            self.change_row(by, inode, |row| row.cachers |= 1 << by.1);
            return true;
        }
        let is_local = self.is_local(by, inode);
        if call.is_none() {
            if is_local {
                self.change_row(by, inode, |row| {
                    (row.had_pages, row.cachers) = (true, row.cachers | 1 << by.1);
                });
                if self.others(by, inode) & opened::OTHERS_WRITE == 0 {
                    self.change_row(by, inode, |row| row.is_entered = true);
                    return true;
                }
            }
            let open_sequence = self.open_sequence();
            *call = Some(self.call(by, &Request::Open { inode, open_sequence, uses: open::MAPS }));
        }
        let Some(answer) = self.pursue(call.as_mut().expect("just created")) else { return false };
        let Answer::Opened(_, _, others) = answer else { panic!("{answer:?}") };
        self.change_row(by, inode, |row| {
            row.others |= others & (opened::OTHERS_WRITE | opened::OTHERS_CACHE);
            (row.had_pages, row.is_entered) = (true, true);
            row.cachers |= 1 << by.1;
        });
        self.mapped += 1;
        true
    }

    fn shares(&self, by: User, inode: Inode) -> bool {
        self.row(by, inode).cachers & 1 << by.1 != 0 && !self.is_only_user(by, inode)
    }

    fn is_stored(&self, by: User, inode: Inode) -> bool {
        let row = self.row(by, inode);
        row.cachers & 1 << by.1 != 0 && row.is_stored
    }

    fn lock(&mut self, by: User, inode: Inode) {
        let mount = self.mounts.get_mut(&by).expect("a mount");
        *mount.locked.entry(inode).or_default() += 1;
        *mount.filled.entry(inode).or_default() += 1;
    }

    fn unlock(&mut self, by: User, inode: Inode, bytes: u64, drops: bool) {
        let mount = self.mounts.get_mut(&by).expect("a mount");
        *mount.locked.get_mut(&inode).expect("locked before") -= 1;
        mount.pages.insert(inode, (bytes, mount.filled[&inode]));
        if drops {
            mount.behind.push_back(inode);
        }
    }

    fn step_read(&mut self, task: &mut Task) -> bool {
        let Task::Read { file, maps, floor, stage, seen, drops, call } = task else {
            unreachable!()
        };
        let Open { by, inode, is_paged, .. } = self.open[*file];
        if by.1 != 0 && self.stands_still(by) && *stage != 0 {
            return false;
        }
        let is_locked =
            || self.mounts.get(&by).is_some_and(|m| m.locked.get(&inode).is_some_and(|n| *n > 0));
        *stage += 1;
        match *stage {
            1 if is_paged || *maps => {
                if is_locked() {
                    *stage -= 1;
                } else if let Some(&(cached, _)) = self.mounts[&by].pages.get(&inode) {
                    self.from_pages += 1;
                    *seen = cached;
                    *stage = 5;
                } else if self.stands_still(by) {
                    *stage -= 1;
                } else {
                    self.lock(by, inode);
                }
            }
            1 => {
                *seen = self.bytes.get(&inode).copied().unwrap_or(0);
                *stage = 5;
            }
            2 => {
                self.mounts.get_mut(&by).expect("a mount").brought.insert(inode);
                if self.note_pages((by, inode), call) {
                    *drops |= self.is_stored(by, inode);
                } else {
                    *stage -= 1;
                }
            }
            3 => *seen = self.bytes.get(&inode).copied().unwrap_or(0),
            4 => *drops |= self.is_stored(by, inode),
            5 => self.unlock(by, inode, *seen, *drops),
            _ => {}
        }
        if *stage < 5 {
            return false;
        }
        assert!(
            *seen >= *floor || self.may_be_old(by, inode),
            "{by:?} reads {seen} of {inode:?}, where {floor} was written before"
        );
        self.open[*file].calls -= 1;
        true
    }

    /// The kernel copies bytes of a write into a page, which stays unlocked if it is there. Returns its
    /// number if so; `None`: it is locked.
    fn copy_into_page(&mut self, (by, inode): (User, Inode)) -> Option<Option<u64>> {
        if self.mounts[&by].locked.get(&inode).is_some_and(|count| *count > 0) {
            return None;
        }
        let page = self.mounts[&by].pages.get(&inode).map(|page| page.1);
        if page.is_none() {
            self.lock(by, inode);
        }
        Some(page)
    }

    /// A mapping is made: recorded, then announced. True if that is done.
    fn has_mapped(&mut self, (by, inode): (User, Inode), call: &mut Option<Call>) -> bool {
        if call.is_none() {
            self.change_row(by, inode, |row| row.is_stored = true);
            let row = self.row(by, inode);
            if row.cachers != 0 || row.others & opened::OTHERS_CACHE != 0 {
                *call = Some(self.call(by, &Request::Unwatch { inode }));
            }
        }
        call.as_mut().is_none_or(|call| self.pursue(call).is_some())
    }

    /// The bytes of a write through pages are written. True if it can be answered.
    fn end_paged_write(
        &mut self,
        (by, inode): (User, Inode),
        page: Option<u64>,
        value: u64,
    ) -> bool {
        if page.is_none() {
            let drops = self.is_stored(by, inode);
            self.unlock(by, inode, value, drops);
            return true;
        }
        let is_shared = self.shares(by, inode);
        let mount = self.mounts.get_mut(&by).expect("a mount");
        if is_shared && mount.brought.contains(&inode) {
            return self.has_dropped((by, inode));
        }
        if let Some(here) = mount.pages.get_mut(&inode)
            && Some(here.1) == page
        {
            here.0 = here.0.max(value);
        }
        true
    }

    fn is_dropping(&self, (by, inode): (User, Inode)) -> bool {
        let is_locked = |mount: &Mount| mount.locked.get(&inode).is_some_and(|count| *count > 0);
        let of_host = self.mounts.iter().filter(|(user, _)| user.0 == by.0);
        of_host
            .map(|(_, mount)| mount)
            .any(|mount| is_locked(mount) || mount.behind.contains(&inode))
    }

    fn has_dropped(&mut self, (by, inode): (User, Inode)) -> bool {
        let mount = self.mounts.get_mut(&by).expect("a mount");
        let is_free = mount.locked.get(&inode).is_none_or(|count| *count == 0);
        is_free.then(|| mount.pages.remove(&inode)).is_some()
    }

    fn step_write(&mut self, task: &mut Task) -> bool {
        let Task::Write { file, is_silent, page, stage, value, call } = task else {
            unreachable!()
        };
        let Open { by, inode, is_paged, .. } = self.open[*file];
        if by.1 != 0 && self.stands_still(by) {
            return false;
        }
        *stage += 1;
        match *stage {
            1 if is_paged => match self.copy_into_page((by, inode)) {
                Some(copied) => *page = copied,
                None => *stage -= 1,
            },
            1 if *is_silent && !self.has_mapped((by, inode), call) => *stage -= 1,
            1 => {}
            2 if is_paged => {
                if page.is_none() {
                    self.mounts.get_mut(&by).expect("a mount").brought.insert(inode);
                }
                match self.note_pages((by, inode), call) {
                    true => *call = None,
                    false => *stage -= 1,
                }
            }
            2 => *call = None,
            3 => {
                let bytes = self.bytes.entry(inode).or_default();
                *bytes += 1;
                *value = *bytes;
            }
            // It announces nothing: pages filled by now are dropped at once.
            4 if *is_silent => {
                *stage = if self.is_dropping((by, inode)) { 3 } else { 6 };
            }
            4 => {
                let row = self.row(by, inode);
                let own = if by.1 == 0 { 0 } else { 1 << by.1 };
                if row.cachers & !own != 0 || row.others & opened::OTHERS_CACHE != 0 {
                    *call = Some(self.call(by, &Request::Unwatch { inode }));
                }
            }
            5 => {
                if let Some(call) = call
                    && self.pursue(call).is_none()
                {
                    *stage -= 1;
                }
            }
            6 if is_paged && self.end_paged_write((by, inode), *page, *value) => {}
            6 if is_paged => *stage -= 1,
            // Pages of the same kernel are dropped after a write that bypassed them.
            6 if by.1 != 0 && !self.has_dropped((by, inode)) => *stage -= 1,
            6 => {}
            _ => {
                let returned = match is_silent {
                    true => self.stored.entry((by.0, inode)).or_default(),
                    false => self.returned.entry(inode).or_default(),
                };
                *returned = (*returned).max(*value);
                self.open[*file].calls -= 1;
                return true;
            }
        }
        false
    }

    fn step_task(&mut self) {
        if self.tasks.is_empty() {
            return;
        }
        let place = self.random.uniform(self.tasks.len());
        let mut task = self.tasks.swap_remove(place);
        let is_over = match &mut task {
            Task::Open { .. } => self.step_open(&mut task),
            Task::Read { .. } => self.step_read(&mut task),
            Task::Write { .. } => self.step_write(&mut task),
            Task::Close { call } => self.pursue(call).is_some(),
        };
        if !is_over {
            self.tasks.push(task);
        }
    }

    /// A kernel drops pages, unless they are locked.
    fn drop_pages(&mut self, by: User, inode: Inode) -> bool {
        let mount = self.mounts.get_mut(&by).expect("a mount");
        if mount.locked.get(&inode).is_some_and(|count| *count > 0) {
            return false;
        }
        mount.pages.remove(&inode);
        mount.brought.remove(&inode);
        if let Some(row) = self.shared[&by.0].borrow_mut().rows.get_mut(&inode) {
            row.cachers &= !(1 << by.1);
        }
        true
    }

    /// A mount drops pages as notified, takes notices, or requests them.
    fn listen(&mut self) {
        let (by, at) = LISTENERS[self.random.uniform(LISTENERS.len())];
        if self.stands_still(by) {
            return;
        }
        if let Some(inode) = self.mounts[&by].behind.front().copied()
            && self.drop_pages(by, inode)
        {
            self.mounts.get_mut(&by).expect("a mount").behind.pop_front();
        }
        let (ticket, mut done, mut taken) =
            self.mounts.get_mut(&by).expect("a mount").listens.remove(&at).unwrap_or_default();
        if let Some(bytes) = ticket.and_then(|ticket| self.world.replies.remove(&ticket)) {
            let Ok(Reply::Bytes { bytes }) = Reply::decode(&mut Reader::new(&bytes)) else {
                panic!("notices")
            };
            let mut reader = Reader::new(bytes);
            while !reader.rest().is_empty() {
                let notice = Notice::take(&mut reader).expect("a notice");
                assert_eq!(notice.what, what::BYTES);
                taken.push_back((notice.number, notice.inode));
            }
        } else if ticket.is_some() && taken.is_empty() && !self.random.chance(2) {
            self.mounts.get_mut(&by).expect("a mount").listens.insert(at, (ticket, done, taken));
            return;
        }
        while let Some(&(number, inode)) = taken.front() {
            if !self.drop_pages(by, inode) {
                break;
            }
            done = number;
            taken.pop_front();
        }
        let mut asks = None;
        if taken.is_empty() {
            let shard = (0..1024).map(ShardIndex).find(|&shard| self.world.owner(shard) == at);
            let shard = shard.expect("a shard");
            let mut sent = self.world.prepare(Credentials::ROOT, shard, &Request::Notices { done });
            (sent.header.host, sent.header.mount) = by;
            sent.header.client_id = u64::MAX;
            asks = Some(self.world.send_again(&sent));
        }
        self.mounts.get_mut(&by).expect("a mount").listens.insert(at, (asks, done, taken));
    }
}

fn play(seed: u64, play: impl FnOnce(&mut Game)) -> [u64; 4] {
    let mut game = Game::new(seed);
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| play(&mut game)));
    if let Err(panic) = outcome {
        eprintln!("TEST_SEED={seed}");
        std::panic::resume_unwind(panic);
    }
    [game.from_pages, game.cached, game.mapped, game.returned.values().sum()]
}

#[test]
fn no_read_returns_data_older_than_a_completed_write() {
    let first = crate::sim::simulation::seed(1);
    let mut all = [0; 4];
    for seed in first..first + crate::sim::simulation::rounds(40) {
        let counts = play(seed, |game| game.play(60_000));
        all.iter_mut().zip(counts).for_each(|(all, count)| *all += count);
    }
    let [from_pages, cached, mapped, written] = all;
    eprintln!(
        "{from_pages} reads from pages, {cached} kept over an open, {mapped} maps, {written} writes"
    );
    assert!(
        from_pages > 1000 && cached > 20 && mapped > 100 && written > 1000,
        "much of everything"
    );
}
