//! Invalid bytes: records of a damaged log, messages of a peer, unsolicited answers. They are
//! refused or applied as they are, and the service continues.

use crate::sim::{World, config, dump};
use metadata::{Input, Now, Service};
use proptest::prelude::*;
use wire::Inode;
use wire::errno::Errno;

const ROOT: Inode = Inode::ROOT;

/// Two services after operations of most kinds, and the messages between them.
fn busy() -> (World, Vec<Vec<u8>>) {
    let mut world = World::daemons(2);
    let made: Vec<_> = (0..6u8).map(|n| world.root().directory(ROOT, &[b'd', b'0' + n])).collect();
    for (n, directory) in made.into_iter().enumerate() {
        let directory = directory.expect("made").inode;
        world.root().file(directory, b"f").expect("made");
        let to = format!("moved-{n}");
        world.root().rename((directory, b"f"), (ROOT, to.as_bytes()), 0).expect("renamed");
    }
    let wide = world.root().wide(ROOT, b"wide").expect("made").inode;
    world.root().file(wide, b"a").expect("made");
    world.root().unlink(wide, b"a").expect("removed");
    let sent = world.messages.clone();
    (world, sent)
}

fn damage(bytes: &mut [u8], changes: &[(usize, u8)]) {
    for (at, to) in changes {
        let length = bytes.len().max(1);
        if let Some(byte) = bytes.get_mut(at % length) {
            *byte = *to;
        }
    }
}

fn changes() -> impl Strategy<Value = Vec<(usize, u8)>> {
    let byte = prop_oneof![any::<u8>(), 0u8..32, Just(255)];
    proptest::collection::vec((any::<usize>(), byte), 1..6)
}

/// Replays as many records as possible, and starts.
fn replay_and_start(records: &[Vec<u8>]) {
    let mut service = Service::new(config(0, 2, 0, 1));
    if records.iter().any(|record| service.replay(record).is_err()) {
        return;
    }
    let mut again = Service::new(config(0, 2, 0, 1));
    again.replay(&dump(&service)).expect("a record of the service");
    let mut third = Service::new(config(0, 2, 0, 1));
    third.replay(&dump(&again)).expect("a record of the service");
    assert_eq!(dump(&third), dump(&again));
    service.step(Now::of(1), Input::Tick, &mut crate::sim::HostState::default(), &mut Vec::new());
}

#[test]
fn counts_of_a_directory_saturate() {
    let (mut world, _) = busy();
    let mut bytes = vec![1];
    for group in [77u32, 78] {
        bytes.push(0x0b);
        bytes.extend(ROOT.0.to_le_bytes());
        bytes.extend(group.to_le_bytes());
        [1, u64::MAX, u64::MAX, 0].iter().for_each(|n: &u64| bytes.extend(n.to_le_bytes()));
    }
    world.seats[0].log.push(bytes);
    world.crash(0);
    let root = world.stat(ROOT).expect("it is there");
    assert_eq!((root.size, root.links), (u64::MAX, u32::MAX));
    assert!(world.root().file(ROOT, b"more").is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_record_is_applied_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        replay_and_start(std::slice::from_ref(&bytes));
        replay_and_start(&[[&[1], &*bytes].concat()]);
    }

    #[test]
    fn damaged_records_are_applied_or_refused(which: usize, changes in changes()) {
        let (world, _) = busy();
        let mut log = world.seats[0].log.clone();
        let which = which % log.len();
        damage(&mut log[which], &changes);
        replay_and_start(&log);
    }

    #[test]
    fn any_message_of_a_peer_is_survived(
        bytes in proptest::collection::vec(any::<u8>(), 0..120), which: usize, changes in changes(),
    ) {
        let (mut world, sent) = busy();
        let mut damaged = sent[which % sent.len()].clone();
        damage(&mut damaged, &changes);
        let mut effects = Vec::new();
        for message in [&bytes, &damaged] {
            let seat = &mut world.seats[0];
            let input = Input::Peer { message };
            seat.service.step(Now::of(world.now), input, &mut seat.host_view, &mut effects);
        }
        // The records logged meanwhile restore the same state.
        let logged = effects.into_iter().filter_map(|effect| match effect {
            metadata::Effect::Log(record) => Some(record),
            _ => None,
        });
        world.seats[0].log.extend(logged);
        let mut again = Service::new(config(0, 2, 0, 1));
        for record in &world.seats[0].log {
            again.replay(record).expect("a record of the service");
        }
        prop_assert_eq!(dump(&again), dump(&world.seats[0].service));
        let seat = &mut world.seats[0];
        let unknown = Input::DataDone { token: u64::MAX, result: Err(Errno::EIO) };
        seat.service.step(Now::of(world.now), unknown, &mut seat.host_view, &mut Vec::new());
    }
}
