//! An attacker on the network between hosts `a` and `b` of a `World`: every byte between their daemons
//! passes through it, unseen by both, because each of them finds the other's address where it is.
//!
//! Two more network namespaces make that possible. `near` has the address of `b` on the bridge, where
//! `a` is; `far` has the address of `a` on a wire of its own to `b`. A connection that arrives in one
//! is continued from the other.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::Random;
use super::world::{World, ip};

/// Where daemon 0 of `a` and daemon 1 of `b` listen.
const PORT: u16 = 7310;
const A: SocketAddr = address(1, PORT);
const B: SocketAddr = address(2, PORT + 1);

const fn address(host: u8, port: u16) -> SocketAddr {
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(10, 79, 0, host)), port)
}

/// Something done to the bytes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attack {
    /// One bit is flipped.
    Flip,
    /// Some bytes are left out.
    LeaveOut,
    /// Two parts change their places.
    Reorder,
    /// Bytes are sent twice.
    Duplicate,
    /// Bytes of an earlier moment are sent again.
    Replay,
    /// Bytes of nobody are added.
    Inject,
    /// The connection ends in the middle.
    Cut,
}

impl Attack {
    pub(crate) const ALL: [Attack; 7] = [
        Attack::Flip,
        Attack::LeaveOut,
        Attack::Reorder,
        Attack::Duplicate,
        Attack::Replay,
        Attack::Inject,
        Attack::Cut,
    ];
}

/// The direction of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    AToB,
    BToA,
}

/// State of the attacker.
struct Attacker {
    /// The next attack: on bytes of this direction, of which at least so many come at once.
    next: Option<(Attack, Way, usize)>,
    /// Bytes of earlier connections, for each direction.
    recorded: [Vec<u8>; 2],
    /// Most bytes that came at once, for each direction.
    largest: [usize; 2],
    random: Random,
}

impl Attacker {
    /// Returns the bytes that are sent in place of `bytes`, and whether the connection ends after it.
    fn pass(&mut self, way: Way, bytes: &[u8]) -> (Vec<u8>, bool) {
        let due = self.next.take_if(|(_, on, least)| *on == way && bytes.len() >= *least);
        let largest = self.largest.get_mut(way as usize).expect("two directions");
        *largest = bytes.len().max(*largest);
        let earlier = self.recorded.get_mut(way as usize).expect("two directions");
        let mut sent = bytes.to_vec();
        let (length, mut is_end) = (bytes.len(), false);
        let at = usize::try_from(self.random.uniform(length as u64)).expect("a position");
        match due.map(|(attack, ..)| attack) {
            None => {}
            Some(Attack::Flip) => sent[at] ^= 1 << self.random.uniform(8),
            Some(Attack::LeaveOut) => drop(sent.drain(at..length.min(at + 16))),
            // Parts of different lengths, and of different bytes, as both are encrypted.
            Some(Attack::Reorder) => sent.rotate_left(at.max(1)),
            Some(Attack::Duplicate) => sent.extend_from_slice(bytes),
            Some(Attack::Replay) => drop(sent.splice(..0, earlier.iter().copied())),
            Some(Attack::Inject) => drop(sent.splice(..0, [0, 0x40, 7, 7, 7])),
            Some(Attack::Cut) => (is_end, _) = (true, sent.truncate(at)),
        }
        // Of a record before the attack, for `Replay`.
        *earlier = bytes.get(..bytes.len().min(4096)).expect("shorter").to_vec();
        (sent, is_end)
    }
}

/// The attacker.
pub(crate) struct Middle {
    prefix: String,
    attacker: Arc<Mutex<Attacker>>,
}

/// A world whose hosts `a` and `b` have the attacker between them, and an instance with a daemon on each.
/// `None` after a skip note where namespaces are not permitted.
pub(crate) fn world(seed: u64) -> Option<(World, Middle)> {
    let mut world = World::new()?;
    let prefix = world.prefix.clone();
    let (near, far) = (format!("{prefix}near"), format!("{prefix}far"));
    let done = [
        format!("netns add {near}"),
        format!("netns add {far}"),
        format!("-n {near} link set lo up"),
        format!("-n {far} link set lo up"),
        // `b` leaves the bridge, and `near` takes its place.
        format!("-n {prefix}b link del eth0"),
        format!("-n {prefix}hub link add vnear type veth peer name eth0 netns {near}"),
        format!("-n {prefix}hub link set vnear master br0 up"),
        format!("-n {near} addr add 10.79.0.2/24 dev eth0"),
        format!("-n {near} link set eth0 up"),
        format!("-n {far} link add eth0 type veth peer name eth0 netns {prefix}b"),
        format!("-n {far} addr add 10.79.0.1/24 dev eth0"),
        format!("-n {far} link set eth0 up"),
        format!("-n {prefix}b addr add 10.79.0.2/24 dev eth0"),
        format!("-n {prefix}b link set eth0 up"),
    ]
    .iter()
    .all(|words| ip(words));
    assert!(done, "the network is not made");
    let random = Random::new(seed);
    let attacker = Attacker { next: None, recorded: Default::default(), largest: [0; 2], random };
    let middle = Middle { prefix, attacker: Arc::new(Mutex::new(attacker)) };
    middle.listen(&near, B, &far, Way::AToB);
    middle.listen(&far, A, &near, Way::BToA);
    std::fs::write(world.path("nodes"), "a 10.79.0.1\nb 10.79.0.2\n").expect("written");
    world.settings = vec![("FOREBAY_PORT", "7310"), ("FOREBAY_CONSISTENCY", "posix")];
    world.start();
    Some((world, middle))
}

/// Moves the calling thread into a network namespace.
fn enter(space: &str) -> std::io::Result<()> {
    let file = std::fs::File::open(format!("/run/netns/{space}"))?;
    Ok(move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?)
}

impl Middle {
    fn attacker(&self) -> MutexGuard<'_, Attacker> {
        self.attacker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Prepares an attack on the next read of this direction that has `least` bytes or more.
    pub(crate) fn prepare(&self, attack: Attack, way: Way, least: usize) {
        self.attacker().next = Some((attack, way, least));
    }

    /// Most bytes that came at once from `a` and from `b`, for messages.
    pub(crate) fn largest(&self) -> [usize; 2] {
        self.attacker().largest
    }

    /// True if the attack that was prepared has happened.
    pub(crate) fn has_happened(&self) -> bool {
        self.attacker().next.is_none()
    }

    /// Takes the connections to `to` that arrive in `here`, and continues them from `there`.
    fn listen(&self, here: &str, to: SocketAddr, there: &str, way: Way) {
        let (here, there) = (here.to_owned(), there.to_owned());
        let attacker = Arc::clone(&self.attacker);
        let (ready, is_ready) = std::sync::mpsc::channel();
        thread::spawn(move || {
            enter(&here).expect("root may");
            let listener = TcpListener::bind(to).expect("the address is here");
            ready.send(()).expect("waited for");
            for from in listener.incoming().map_while(Result::ok) {
                let (attacker, there) = (Arc::clone(&attacker), there.clone());
                thread::spawn(move || {
                    // The dialler sees the end if there is nobody, or the test is over.
                    let wait = Duration::from_secs(10);
                    let onward = enter(&there).and_then(|()| TcpStream::connect_timeout(&to, wait));
                    if let Ok(onward) = onward {
                        both_ways(&attacker, &from, &onward, way);
                    }
                });
            }
        });
        is_ready.recv().expect("it listens");
    }
}

fn both_ways(attacker: &Mutex<Attacker>, dialler: &TcpStream, acceptor: &TcpStream, way: Way) {
    let back = if way == Way::AToB { Way::BToA } else { Way::AToB };
    thread::scope(|scope| {
        scope.spawn(|| pass(attacker, dialler, acceptor, way));
        scope.spawn(|| pass(attacker, acceptor, dialler, back));
    });
}

/// Passes bytes on until the connection ends.
fn pass(attacker: &Mutex<Attacker>, mut from: &TcpStream, mut to: &TcpStream, way: Way) {
    let mut buffer = vec![0; 1 << 17];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let bytes = buffer.get(..count).expect("read");
        let mut locked = attacker.lock().unwrap_or_else(PoisonError::into_inner);
        let (sent, is_end) = locked.pass(way, bytes);
        drop(locked);
        if to.write_all(&sent).is_err() || is_end {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

impl Drop for Middle {
    fn drop(&mut self) {
        // Threads of this process hold the namespaces until it ends; their names go at once.
        for space in ["near", "far"] {
            let _ = ip(&format!("netns del {}{space}", self.prefix));
        }
    }
}
