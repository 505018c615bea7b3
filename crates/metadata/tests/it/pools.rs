//! Pools of targets (`pools::registry`, `pools::choice`): changes reach all services, whatever is lost
//! or restarts, and a new file goes to the target that the pool chooses, alike for equal inputs. And the
//! targets of files without a pool.

use crate::sim::{Answer, World};
use metadata::{HostMessage, Input, TargetPresence};
use wire::attributes::{mode, placement};
use wire::limits::DAEMON_COUNT_MAX;
use wire::pool::{POOL_ID_MAX, PoolEntry, PoolTarget};
use wire::request::set;
use wire::{
    Attributes, Credentials, DaemonIndex, Errno, Inode, Layout, Reader, Request, ShardIndex, Writer,
};

const REGISTRY: ShardIndex = ShardIndex(0);

fn targets(all: &[(u16, u64)]) -> Vec<u8> {
    let mut bytes = vec![0; all.len() * PoolTarget::BYTES];
    let mut writer = Writer::new(&mut bytes);
    for &(target, max_perf) in all {
        PoolTarget { target: DaemonIndex(target), max_perf, is_measured: false }
            .encode(&mut writer);
    }
    bytes
}

fn set_pool(world: &mut World, name: &str, all: &[(u16, u64)]) -> Answer {
    let request = Request::SetPool { name: name.as_bytes(), targets: &targets(all) };
    world.call(Credentials::ROOT, REGISTRY, &request)
}

/// Number, name and number of targets of each pool.
fn list(world: &mut World) -> Vec<(u8, String, usize)> {
    let (mut all, mut after) = (vec![], 0);
    loop {
        let answer = world.call(Credentials::ROOT, REGISTRY, &Request::Pools { after });
        let Answer::Bytes(bytes) = answer else { panic!("{answer:?}") };
        if bytes.is_empty() {
            return all;
        }
        let mut reader = Reader::new(&bytes);
        while !reader.rest().is_empty() {
            let PoolEntry { id, name, targets } = PoolEntry::decode(&mut reader).expect("a pool");
            let name = String::from_utf8(name.to_vec()).expect("text");
            all.push((id, name, wire::pool::targets(targets).count()));
            after = id;
        }
    }
}

fn use_pool(world: &mut World, directory: Inode, pool: u8) -> Result<Attributes, Errno> {
    let request = Request::SetAttributes {
        inode: directory,
        mask: set::POOL,
        mode: 0,
        uid: 0,
        gid: 0,
        size: Layout { pool, ..Layout::default() }.word(),
        accessed: 0,
        modified: 0,
    };
    world.root().inode(directory, &request)
}

/// Creates a file that is open from then on; gives it and its target.
fn create(world: &mut World, directory: Inode, name: &str) -> (Inode, u16) {
    let made = world.root().make(directory, name.as_bytes(), mode::REGULAR | 0o644).expect("made");
    let layout = world.stat(made.inode).expect("there").layout;
    assert_eq!(layout.placement, placement::LOCAL, "{name}");
    for seat in &mut world.seats {
        seat.host_view.open.insert(made.inode);
    }
    (made.inode, layout.place)
}

fn close(world: &mut World, inode: Inode) {
    for seat in &mut world.seats {
        seat.host_view.open.remove(&inode);
    }
}

fn directory_with(world: &mut World, name: &str, pool: u8) -> Inode {
    let made = world.root().directory(Inode::ROOT, name.as_bytes()).expect("made").inode;
    use_pool(world, made, pool).expect("set");
    made
}

#[test]
fn files_go_where_max_perf_by_open_files_is_largest() {
    let chosen = |world: &mut World, name: &str| -> Vec<u16> {
        let directory = directory_with(world, name, 1);
        let mut first = None;
        let mut all: Vec<u16> = (0..6)
            .map(|file| {
                let (inode, target) = create(world, directory, &format!("f{file}"));
                first.get_or_insert(inode);
                target
            })
            .collect();
        // The first file's target has one open file less: it is next.
        close(world, first.expect("one"));
        all.push(create(world, directory, "more").1);
        all
    };
    let mut worlds = [World::daemons(4), World::daemons(4)];
    let both = worlds.each_mut().map(|world| {
        let made = set_pool(world, "mixed", &[(1, 100), (3, 300)]);
        assert_eq!(made, Answer::Number(1));
        chosen(world, "a")
    });
    // 300 / 1, 300 / 2, then 100 / 1 before 300 / 3, of equal ones the first of the pool.
    assert_eq!(both[0], [3, 3, 1, 3, 3, 3, 3]);
    assert_eq!(both[0], both[1], "equal inputs, equal choices");
}

#[test]
fn directories_inherit_the_pool_and_others_do_not_have_it() {
    let mut world = World::daemons(3);
    assert_eq!(set_pool(&mut world, "two", &[(2, 5)]), Answer::Number(1));
    let directory = directory_with(&mut world, "d", 1);
    let below = world.root().directory(directory, b"below").expect("made").inode;
    assert_eq!(world.stat(below).expect("there").layout.pool, 1);
    assert_eq!(create(&mut world, below, "f").1, 2);
    let link = world.root().make(below, b"pipe", mode::FIFO | 0o644).expect("made");
    assert_eq!(world.stat(link.inode).expect("there").layout.pool, 0);

    let plain = world.root().directory(Inode::ROOT, b"plain").expect("made").inode;
    let file = world.root().make(plain, b"f", mode::REGULAR | 0o644).expect("made").inode;
    let layout = world.stat(file).expect("there").layout;
    assert_eq!((layout.pool, layout.placement), (0, placement::HASH));

    assert_eq!(use_pool(&mut world, plain, 2), Err(Errno::ENOENT));
    assert_eq!(use_pool(&mut world, file, 1), Err(Errno::ENOTDIR));
    // Files stay where they are, new ones go where the layout says.
    use_pool(&mut world, below, 0).expect("set");
    let file = world.root().make(below, b"g", mode::REGULAR | 0o644).expect("made").inode;
    assert_eq!(world.stat(file).expect("there").layout.placement, placement::HASH);
}

#[test]
fn bad_pools_are_refused() {
    let mut world = World::daemons(3);
    for bad in [&[(3, 1)][..], &[(0, 1), (0, 2)], &[(0, 1), (1, 0)], &[(DAEMON_COUNT_MAX, 1)]] {
        assert_eq!(set_pool(&mut world, "bad", bad), Answer::Refused(Errno::EINVAL), "{bad:?}");
    }
    let request = Request::SetPool { name: b"p", targets: &targets(&[(0, 1)]) };
    let answer = world.call(Credentials::of(7, 7), REGISTRY, &request);
    assert_eq!(answer, Answer::Refused(Errno::EPERM));
    assert_eq!(set_pool(&mut world, "none yet", &[]), Answer::Refused(Errno::ENOENT));
    assert_eq!(set_pool(&mut world, "p", &[(0, 1)]), Answer::Number(1));
    // The same again is the same pool, as a request that is repeated must be.
    assert_eq!(set_pool(&mut world, "p", &[(0, 1)]), Answer::Number(1));
    assert_eq!(set_pool(&mut world, "p", &[(1, 1)]), Answer::Refused(Errno::EEXIST));
    assert_eq!(list(&mut world), [(1, "p".to_owned(), 1)]);
}

#[test]
fn changes_reach_all_services_whatever_is_lost_or_restarts() {
    let mut world = World::daemons(3);
    // The first announcement is lost, and the registry is killed before it repeats it.
    let request = Request::SetPool { name: b"p", targets: &targets(&[(2, 9)]) };
    let ticket = world.send(Credentials::ROOT, REGISTRY, &request);
    world.queue.clear();
    assert_eq!(world.answer(ticket), None, "not before all know it");
    let registry = world.owner(REGISTRY);
    world.crash(registry);
    world.settle();
    assert_eq!(set_pool(&mut world, "p", &[(2, 9)]), Answer::Number(1));
    // All services know it after a restart of each, and files of each go to its target.
    for at in 0..3 {
        world.crash(at);
    }
    world.settle();
    for number in 0..6 {
        let directory = directory_with(&mut world, &format!("d{number}"), 1);
        assert_eq!(create(&mut world, directory, "f").1, 2);
    }
    // Its directories have no pool when it is deleted.
    assert_eq!(set_pool(&mut world, "p", &[]), Answer::Number(1));
    assert_eq!(list(&mut world), []);
    let directory = world.root().look(Inode::ROOT, b"d0").expect("there").inode;
    let file = world.root().make(directory, b"g", mode::REGULAR | 0o644).expect("made").inode;
    let layout = world.stat(file).expect("there").layout;
    assert_eq!((layout.pool, layout.placement), (0, placement::HASH));
    // Its number is not given to another one yet.
    assert_eq!(set_pool(&mut world, "q", &[(0, 1)]), Answer::Number(2));
}

#[test]
fn numbers_of_deleted_pools_are_given_again_in_their_order() {
    let mut world = World::daemons(2);
    for id in 1..=POOL_ID_MAX {
        let made = set_pool(&mut world, &format!("p{id}"), &[(0, 1), (1, 1)]);
        assert_eq!(made, Answer::Number(u64::from(id)));
    }
    assert_eq!(list(&mut world).len(), usize::from(POOL_ID_MAX));
    assert_eq!(set_pool(&mut world, "more", &[(0, 1)]), Answer::Refused(Errno::ENOSPC));
    for name in ["p9", "p3"] {
        assert!(matches!(set_pool(&mut world, name, &[]), Answer::Number(_)), "{name}");
    }
    assert_eq!(set_pool(&mut world, "more", &[(0, 1)]), Answer::Number(9));
    assert_eq!(set_pool(&mut world, "again", &[(0, 1)]), Answer::Number(3));
    let registry = world.owner(REGISTRY);
    world.crash(registry);
    assert_eq!(list(&mut world)[8], (9, "more".to_owned(), 1));
}

/// Reports of one host (that of no target) for some seconds, each file with its bytes per second.
fn report(world: &mut World, seconds: u64, rates: &[(Inode, u64)]) {
    for _ in 0..seconds {
        world.now += 1_000_000_000;
        let all: Vec<_> = rates.iter().map(|&(inode, bytes)| (inode, bytes, 900_000_000)).collect();
        let number = world.now.cast_unsigned();
        let message = HostMessage::transfers((100, 1), number, 1000, &all);
        for at in 0..world.seats.len() {
            world.step(at, Input::Peer { message: &message });
        }
    }
}

#[test]
fn a_slow_target_is_found_and_avoided_and_returns() {
    let mut world = World::daemons(3);
    assert_eq!(set_pool(&mut world, "p", &[(0, 500), (1, 500), (2, 500)]), Answer::Number(1));
    let directory = directory_with(&mut world, "d", 1);
    let files: Vec<(Inode, u16)> =
        (0..3).map(|file| create(&mut world, directory, &format!("f{file}"))).collect();
    assert_eq!(files.iter().map(|file| file.1).collect::<Vec<_>>(), [0, 1, 2]);
    let [a, b, c] = [files[0].0, files[1].0, files[2].0];

    report(&mut world, 20, &[(a, 100_000_000), (b, 90_000_000), (c, 80_000_000)]);
    assert_eq!(world.target_health, [], "all are alike");
    report(&mut world, 6, &[(a, 100_000_000), (b, 20_000_000), (c, 80_000_000)]);
    assert_eq!(world.target_health, [], "still in the window that began before");
    report(&mut world, 4, &[(a, 100_000_000), (b, 20_000_000), (c, 80_000_000)]);
    assert_eq!(world.target_health, [(1, true)]);
    let is_told = |told: &(u32, Vec<u32>)| *told == (1, vec![0, 2]);
    assert!(!world.targets_left.is_empty() && world.targets_left.iter().all(is_told));
    let targets: Vec<u16> =
        (0..6).map(|file| create(&mut world, directory, &format!("g{file}")).1).collect();
    assert_eq!(targets, [0, 2, 0, 2, 0, 2]);
    // Its peers have more open files than it can make up for: it is chosen as soon as it is well.
    report(&mut world, 9, &[(a, 100_000_000), (b, 95_000_000), (c, 80_000_000)]);
    assert_eq!(world.target_health, [(1, true), (1, false)]);
    let told = world.targets_left.len();
    report(&mut world, 2, &[(a, 100_000_000), (b, 95_000_000), (c, 80_000_000)]);
    assert_eq!(world.targets_left.len(), told, "it is well");
    assert_eq!(create(&mut world, directory, "h").1, 1);
    // A slow target that nobody uses gets files again, which show whether it is well.
    report(&mut world, 12, &[(a, 100_000_000), (b, 20_000_000), (c, 80_000_000)]);
    assert_eq!(world.target_health.last(), Some(&(1, true)));
    world.now += 40_000_000_000;
    create(&mut world, directory, "i");
    assert_eq!(world.target_health.last(), Some(&(1, false)));
    // A pool that is deleted has no slow target.
    report(&mut world, 12, &[(a, 100_000_000), (b, 20_000_000), (c, 80_000_000)]);
    assert_eq!(world.target_health.last(), Some(&(1, true)));
    set_pool(&mut world, "p", &[]);
    assert_eq!(world.target_health.last(), Some(&(1, false)));
}

/// All hosts see these targets so, a moment later.
fn see(world: &mut World, absent: &[(u32, TargetPresence)]) {
    world.now += 1_000_000_000;
    for seat in &mut world.seats {
        seat.host_view.absent = absent.iter().copied().collect();
    }
}

#[test]
fn a_target_that_is_down_gets_no_new_file_while_another_is_up() {
    use TargetPresence::{Away, Gone};
    let mut world = World::daemons(4);
    let all = [(0, 1000), (1, 10), (2, 10)];
    assert_eq!(set_pool(&mut world, "p", &all), Answer::Number(1));
    let directory = directory_with(&mut world, "d", 1);
    let chosen = |world: &mut World, name: &str| create(world, directory, name).1;
    assert_eq!(chosen(&mut world, "a"), 0);
    see(&mut world, &[(0, Away)]);
    assert_eq!(["b", "c", "e"].map(|name| chosen(&mut world, name)), [1, 2, 1]);
    see(&mut world, &[]);
    assert_eq!(chosen(&mut world, "f"), 0, "it is back");
    // Files wait for one that may come back, and for none that has left.
    see(&mut world, &[(0, Gone), (1, Away), (2, Away)]);
    assert_eq!(["g", "h"].map(|name| chosen(&mut world, name)), [2, 1]);
    see(&mut world, &[(0, Gone), (1, Gone), (2, Gone)]);
    let made = world.root().make(directory, b"i", mode::REGULAR | 0o644).expect("made");
    let layout = world.stat(made.inode).expect("there").layout;
    assert_eq!((layout.pool, layout.placement), (0, placement::HASH), "the pool has no target");
    assert_eq!(list(&mut world), [(1, "p".to_owned(), 3)]);
}

#[test]
fn bytes_of_a_slow_target_go_to_none_that_left() {
    let mut world = World::daemons(3);
    assert_eq!(set_pool(&mut world, "p", &[(0, 500), (1, 500), (2, 500)]), Answer::Number(1));
    let directory = directory_with(&mut world, "d", 1);
    let [a, b, c] = ["a", "b", "c"].map(|name| create(&mut world, directory, name).0);
    see(&mut world, &[(2, TargetPresence::Gone)]);
    create(&mut world, directory, "e");
    report(&mut world, 20, &[(a, 100_000_000), (b, 20_000_000), (c, 80_000_000)]);
    assert_eq!(world.target_health, [(1, true)]);
    let is_told = |told: &(u32, Vec<u32>)| *told == (1, vec![0]);
    assert!(!world.targets_left.is_empty() && world.targets_left.iter().all(is_told));
}

#[test]
fn a_service_that_is_added_learns_the_pools_and_its_target_may_be_in_one() {
    let mut world = World::growing(2, 3);
    assert_eq!(set_pool(&mut world, "two", &[(0, 5), (1, 5)]), Answer::Number(1));
    assert_eq!(set_pool(&mut world, "new", &[(2, 5)]), Answer::Refused(Errno::EINVAL));
    assert!(world.seats[2].log.is_empty(), "nobody knew of it");
    world.grow(3);
    world.settle();
    assert!(!world.seats[2].log.is_empty(), "it keeps what it was told");
    assert_eq!(set_pool(&mut world, "new", &[(2, 5)]), Answer::Number(2));
    let directory = directory_with(&mut world, "d", 2);
    assert_eq!(create(&mut world, directory, "f").1, 2);
}

#[test]
fn the_bytes_of_a_new_file_are_on_targets_that_there_are() {
    let mut world = World::daemons(3);
    let group = placement::group(2).expect("a group");
    let expect = |world: &mut World, of_kinds: [(u8, u16, u16); 6]| {
        for (placement, place, given) in of_kinds {
            let layout = Layout { placement, place, ..Layout::default() };
            let (parent, name) = (Inode::ROOT, &b"f"[..]);
            let (mode, device, flags, target) = (mode::REGULAR | 0o600, 0, 0, &b""[..]);
            let request = Request::Create { parent, name, mode, device, flags, layout, target };
            let shard = world.shard_of(Inode::ROOT, name);
            let made = world.call(Credentials::ROOT, shard, &request).attributes().layout;
            assert_eq!((made.placement, made.place), (placement, given), "{place} was asked for");
            world.root().unlink(Inode::ROOT, name).expect("it is there");
        }
    };
    let (local, hash) = (placement::LOCAL, placement::HASH);
    let before = [
        (local, 2, 2),
        (local, 7, 1),
        (local, 4, 1),
        (hash, 2, 0),
        (hash, 60_000, 0),
        (group, 4, 0),
    ];
    expect(&mut world, before);
    world.grow(5);
    let after = [
        (local, 2, 2),
        (local, 7, 2),
        (local, 4, 4),
        (hash, 0, 5),
        (hash, 60_000, 5),
        (group, 4, 5),
    ];
    expect(&mut world, after);
}
