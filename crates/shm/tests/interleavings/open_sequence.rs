//! Opens and last closes of a file whose shard is on another host: closes are reported at any time
//! later, in any order. While a process that told the shard has the file open, the shard knows it;
//! once none has, and everything is reported, it knows that, too.

use crate::support::{join, memory, spawn};
use shm::host::{HOST_BYTES, HostSegment, VnodeIndex};
use shm::sync::model::{self, Thread};
use std::sync::{Arc, Mutex};
use wire::Inode;

const FILE: Inode = Inode(5);

/// The shard's view of this host; each of its steps is one.
#[derive(Default)]
struct Shard {
    exists: bool,
    /// Largest sequence of an open; none: it is not open there.
    registered: Option<u64>,
    /// Number of processes that have it open and know that the shard knows.
    reported: u32,
}

struct World {
    host: HostSegment,
    shard: Mutex<Shard>,
    /// Closes on their way.
    closes: Mutex<Vec<Thread<()>>>,
}

fn world() -> Arc<World> {
    let host = HostSegment::new(memory(HOST_BYTES)).expect("long enough");
    Arc::new(World { host, shard: Mutex::default(), closes: Mutex::default() })
}

impl World {
    fn shard<R>(&self, step: impl FnOnce(&mut Shard) -> R) -> R {
        step(&mut self.shard.lock().expect("no panic"))
    }

    /// The shard's handling of `Open`.
    fn report_open(&self) {
        let open_sequence = self.host.next_open_sequence();
        self.shard(|shard| {
            shard.registered = shard.registered.max(Some(open_sequence));
            shard.reported += 1;
        });
    }

    /// The shard's handling of `Close`.
    fn receive_close(&self, open_sequence: u64) {
        self.shard(|shard| {
            if shard.registered.is_some_and(|opened| opened <= open_sequence) {
                shard.registered = None;
                assert_eq!(shard.reported, 0, "closed while it is open");
            }
        });
    }

    fn use_and_close(self: &Arc<Self>, vnode: VnodeIndex) {
        // Others run meanwhile.
        assert!(self.host.vnode_find(FILE).is_some(), "open and not found");
        self.shard(|shard| {
            assert!(shard.registered.is_some(), "open, and the shard knows nothing of it");
            shard.reported -= 1;
        });
        let closed = self.host.vnode_close(FILE, vnode).expect("open");
        if closed.last
            && let Some(open_sequence) = self.host.next_close_sequence(FILE)
        {
            let on_its_way = spawn(self, move |world: &World| world.receive_close(open_sequence));
            self.closes.lock().expect("no panic").push(on_its_way);
        }
    }

    fn open_and_close(self: &Arc<Self>) {
        let vnode = self.host.vnode_open(FILE).expect("space");
        self.report_open();
        self.use_and_close(vnode);
    }

    fn create_and_close(self: &Arc<Self>) {
        let made_at = self.host.next_open_sequence();
        self.shard(|shard| {
            shard.exists = true;
            shard.registered = Some(0);
        });
        let vnode = self.host.vnode_open(FILE).expect("space");
        if self.host.was_closed_since(FILE, made_at) {
            self.report_open();
        } else {
            self.shard(|shard| shard.reported += 1);
        }
        self.use_and_close(vnode);
    }

    /// All have closed it, and everything is reported.
    fn check_end(&self, users: impl IntoIterator<Item = Thread<()>>) {
        join(users);
        let closes = std::mem::take(&mut *self.closes.lock().expect("no panic"));
        join(closes);
        assert_eq!(self.shard(|shard| shard.registered), None, "open for ever");
    }
}

fn user(world: &Arc<World>, act: impl FnOnce(&Arc<World>) + Send + 'static) -> Thread<()> {
    let world = Arc::clone(world);
    model::spawn(move || act(&world))
}

#[test]
fn a_close_that_comes_late_ends_no_opening_after_it() {
    model::explore(4000, || {
        let world = world();
        let users = [1, 2, 2].map(|times| {
            user(&world, move |world| (0..times).for_each(|_| world.open_and_close()))
        });
        world.check_end(users);
    });
}

#[test]
fn the_creator_has_a_file_open_though_another_closed_it_before_it_was_counted() {
    model::explore(4000, || {
        let world = world();
        let maker = user(&world, |world| world.create_and_close());
        let others = [(); 2].map(|()| {
            user(&world, |world| {
                if world.shard(|shard| shard.exists) {
                    world.open_and_close();
                }
            })
        });
        let [first, second] = others;
        world.check_end([maker, first, second]);
    });
}
