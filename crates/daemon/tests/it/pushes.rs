//! Writes behind to files with copies: bounce buffers that a client handed over arrive at all copies,
//! once and in their order, whatever is killed meanwhile, and are counted in the open inode until then.

use crate::namespace::register;
use crate::support::{Client, Instance, To, bytes_of, wait_until};
use shm::bounce::Pushed;
use shm::host::{Vnode, VnodeIndex};
use wire::attributes::mode::REGULAR;
use wire::errno::Errno;
use wire::{DaemonIndex, Inode, Request, client_id};

const STRIPE_LOG2: u8 = 16;
const BLOCK: u64 = 4096;

/// A program that has a file open.
struct Pusher {
    client: Client,
    inode: Inode,
    row: VnodeIndex,
    target: DaemonIndex,
}

impl Pusher {
    fn new(instance: &Instance, daemon: u16, target: u16) -> Pusher {
        let client = Client::attach(&instance.socket(daemon)).expect("attached");
        register(&client, std::process::id());
        let name = format!("of{daemon}at{target}");
        let made = client.create(&client.root(), name.as_bytes(), REGULAR | 0o600);
        let inode = made.expect("created").inode;
        let row = client.host.vnode_open(inode).expect("open");
        Pusher { client, inode, row, target: DaemonIndex(target) }
    }

    fn vnode(&self) -> &Vnode {
        self.client.host.vnode(self.row).expect("an entry")
    }

    /// Hands over bytes, of this stamp, in a buffer that the daemon has not heard of.
    fn hand_over(&self, (offset, length): (u64, u64), byte: u8, stamp: u64) -> u8 {
        let through = self.client.welcome.client_id >> client_id::START_SHIFT;
        let mut buffer = self.client.session.bounce_buffers().try_free().expect("a buffer");
        buffer.fill(&vec![byte; length as usize]).expect("fits");
        let Pusher { inode, row: vnode, target, .. } = *self;
        let (stripe_log2, length) = (STRIPE_LOG2, length as u32);
        let pushed = Pushed { inode, vnode, target, stripe_log2, offset, length, stamp };
        buffer.describe(&pushed).and_then(|()| buffer.begin_counting()).expect("taken");
        let epoch = self.vnode().begin_push(through).expect("nobody waits");
        let number = buffer.index();
        buffer.push(epoch).expect("taken");
        number
    }

    /// Tells the daemon of it.
    fn announce(&self, buffer: u8) {
        self.client.call(To::Target(self.target), &Request::Push { buffer }).expect("taken");
    }

    fn push(&self, block: u64, byte: u8) {
        self.announce(self.hand_over((block * BLOCK, BLOCK), byte, block + 1));
    }

    fn await_arrival(&self) {
        let buffers = self.client.session.bounce_buffers();
        wait_until("everything has arrived", || {
            !self.vnode().has_pending() && !buffers.has_pushes()
        });
    }

    fn assert_block(&self, by: &Client, block: u64, byte: u8) {
        let (inode, stripe_log2, offset) = (self.inode, STRIPE_LOG2, block * BLOCK);
        let read = Request::Read { inode, stripe_log2, offset, length: BLOCK as u32 };
        let reply = by.call(To::Target(self.target), &read).expect("read");
        let bytes = bytes_of(&reply);
        let is_right = bytes.len() as u64 == BLOCK && bytes.iter().all(|it| *it == byte);
        assert!(is_right, "block {block} is {:?}", bytes.first());
    }
}

/// A worker finds requests by their slots, and may come to a newer one first.
#[test]
fn pushes_of_the_same_bytes_arrive_in_their_order() {
    let instance = Instance::start_with_copies(3, 2, &[]);
    let pusher = Pusher::new(&instance, 2, 0);
    for block in 0..8 {
        let place = (block * BLOCK, BLOCK);
        let older = pusher.hand_over(place, 1, 100);
        let newer = pusher.hand_over(place, 2, 101);
        pusher.announce(newer);
        pusher.announce(older);
    }
    pusher.await_arrival();
    let other = Client::attach(&instance.socket(1)).expect("attached");
    (0..8).for_each(|block| pusher.assert_block(&other, block, 2));
    assert_eq!(pusher.vnode().take_failure(), Ok(()));
}

#[test]
fn what_was_pushed_arrives_although_its_primary_is_killed() {
    let mut instance = Instance::start_with_copies(3, 2, &[]);
    let pusher = Pusher::new(&instance, 2, 0);
    (0..8).for_each(|block| pusher.push(16 * block, 1));
    // Some are under way, and the rest is sent to a daemon of which nobody knows yet that it is dead.
    instance.kill(0);
    (0..16).for_each(|block| pusher.push(16 * block, 2));
    pusher.await_arrival();
    assert_eq!(pusher.vnode().take_failure(), Ok(()));
    (0..16).for_each(|block| pusher.assert_block(&pusher.client, 16 * block, 2));
    instance.spawn(0);
    instance.tell_peers();
    let other = Client::attach(&instance.socket(1)).expect("attached");
    (0..16).for_each(|block| pusher.assert_block(&other, 16 * block, 2));
}

#[test]
fn what_a_client_pushed_before_it_died_arrives() {
    let instance = Instance::start_with_copies(3, 2, &[]);
    let (lives, dies) = (Pusher::new(&instance, 1, 0), Pusher::new(&instance, 2, 0));
    let buffer = dies.hand_over((0, BLOCK), 7, 2);
    dies.hand_over((0, BLOCK), 6, 1);
    dies.announce(buffer);
    dies.hand_over((16 * BLOCK, BLOCK), 8, 3);
    let Pusher { client, inode, target, .. } = dies;
    drop(client);
    let left = Pusher { inode, target, ..lives };
    let arrived = |block: u64| {
        let (inode, stripe_log2, offset) = (left.inode, STRIPE_LOG2, block * BLOCK);
        let read = Request::Read { inode, stripe_log2, offset, length: 1 };
        left.client.call(To::Target(target), &read).is_ok_and(|reply| bytes_of(&reply) == [8])
    };
    wait_until("the last push has arrived", || arrived(16));
    left.assert_block(&left.client, 0, 7);
}

#[test]
fn a_push_that_is_none_is_an_error_of_its_file() {
    let instance = Instance::start_with_copies(3, 2, &[]);
    let pusher = Pusher::new(&instance, 2, 0);
    let (stripe, buffer) = (1 << STRIPE_LOG2, 256 << 10);
    // Of two stripes, of the end of one buffer's place and the begin of the next, of no byte.
    for (offset, length) in [(stripe - 1, 2), (buffer - 1, 2), (0, 0)] {
        pusher.announce(pusher.hand_over((offset, length), 3, 1));
        pusher.await_arrival();
        assert_eq!(pusher.vnode().take_failure(), Err(Errno::EINVAL), "{offset} {length}");
    }
    pusher.push(0, 4);
    pusher.await_arrival();
    assert_eq!(pusher.vnode().take_failure(), Ok(()));
    pusher.assert_block(&pusher.client, 0, 4);
}
