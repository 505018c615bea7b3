//! Lock releases by processes that are killed at any step: a program that closes, and the daemon
//! that dismantles the table of a dead one.

use crate::support::{memory, spawn};
use shm::host::releases::Due;
use shm::host::{HOST_BYTES, HostSegment, OfdIndex, Tenant};
use shm::sync::model;
use shm::sync::{AtomicU32, is_dead};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use wire::Inode;

const FILE: Inode = Inode(5);
const OWNER: u64 = 77;

fn host() -> HostSegment {
    HostSegment::new(memory(HOST_BYTES)).expect("long enough")
}

fn due(host: &HostSegment) -> Vec<Due> {
    let mut all = Vec::new();
    host.release_list(&is_dead, &mut |due| all.push(due));
    all
}

struct World {
    host: HostSegment,
    /// How often the shard was told.
    reported: AtomicU32,
    noted: AtomicU32,
}

impl World {
    /// A scan of the daemon; the shard answers at once.
    fn look(&self) {
        for due in due(&self.host) {
            assert_eq!((due.inode, due.owner), (FILE, OWNER));
            self.reported.fetch_add(1, SeqCst);
            self.host.release_answered(due.entry);
        }
    }
}

#[test]
fn a_noted_release_is_sent_by_its_writer_or_the_daemon() {
    model::explore(4000, || {
        let world = World { host: host(), reported: AtomicU32::new(0), noted: AtomicU32::new(0) };
        let world = Arc::new(world);
        let victim = spawn(&world, |world: &World| {
            model::kill_after(16);
            let entry = world.host.release_note(FILE, OWNER).expect("space");
            world.noted.store(1, SeqCst);
            world.reported.fetch_add(1, SeqCst);
            world.host.release_clear(entry);
        });
        let unlucky = spawn(&world, |world: &World| {
            let entry = world.host.release_note(FILE, OWNER).expect("space");
            world.host.release_hand_over(entry);
            assert!(world.host.is_handed_over(FILE, OWNER) || world.reported.load(SeqCst) != 0);
        });
        world.look();
        unlucky.join().expect("not killed");
        world.look();
        let before = world.reported.load(SeqCst);
        assert!(before >= 1, "a release that was handed over is sent");
        let was_killed = victim.join().is_none();
        world.look();
        let (reported, noted) = (world.reported.load(SeqCst), world.noted.load(SeqCst));
        assert!(reported > noted, "killed {was_killed}: reported {reported}");
        assert!(due(&world.host).is_empty() && !world.host.is_handed_over(FILE, OWNER));
        let entries: Vec<_> = model::uninterrupted(|| {
            (0..16).map_while(|_| world.host.release_note(FILE, OWNER)).collect()
        });
        assert_eq!(entries.len(), 16, "all entries of the bucket are free again");
    });
}

/// The work of a daemon's reaper on a table, as far as it concerns locks.
fn dismantle(host: &HostSegment, tenant: Tenant) {
    let (process, generation) = (tenant.process, tenant.generation);
    if host.process_take_over(process, generation).is_err() {
        return;
    }
    host.process_each(process, &mut |fd, file, _| {
        assert!(host.release_leave(FILE, host.owner_of_tenant(0, tenant)));
        let is_last = || host.file(file).is_ok_and(|words| words.refs.load(SeqCst) <= 1);
        assert!(!is_last() || host.release_leave(FILE, host.owner_of_file(0, file)));
        if host.process_take(process, fd).is_some() && host.file_release(file) == Ok(true) {
            assert!(host.release_leave(FILE, host.owner_of_file(0, file)));
            host.file_free(file).expect("a row");
        }
    });
    host.process_free(process, generation).expect("ours");
}

fn tenants(host: &HostSegment) -> Vec<Tenant> {
    let mut all = Vec::new();
    host.process_list(&mut |tenant| all.push(tenant));
    all
}

#[test]
fn a_daemon_that_is_killed_leaves_the_rest_of_a_table_to_the_next() {
    model::explore(1500, || {
        let host = Arc::new(host());
        let (tenant, own, shared) = model::uninterrupted(|| {
            let open = || {
                let vnode = host.vnode_open(FILE).expect("space");
                host.file_allocate(FILE, vnode, 0).expect("space")
            };
            let (own, shared): (OfdIndex, OfdIndex) = (open(), open());
            let process = host.process_register(100, 7).expect("space");
            for (fd, file) in [(3, own), (4, shared), (2000, own)] {
                host.process_set(process, fd, Some((file, false))).expect("space");
            }
            // `own` by two descriptors, `shared` by another process as well.
            host.file_retain(own);
            host.file_retain(shared);
            (tenants(&host)[0], own, shared)
        });
        let owners = [
            host.owner_of_tenant(0, tenant),
            host.owner_of_file(0, own),
            host.owner_of_file(0, shared),
        ];
        let answered = Arc::new(Mutex::new(Vec::new()));
        let victim = spawn(&host, move |host: &HostSegment| {
            model::kill_after(120);
            dismantle(host, tenant);
        });
        // The other process closes it meanwhile, and tells the shard itself if it was the last.
        if host.file_release(shared) == Ok(true) {
            answered.lock().expect("no panic").push(owners[2]);
        }
        let was_killed = victim.join().is_none();
        model::uninterrupted(|| {
            for tenant in tenants(&host) {
                dismantle(&host, tenant);
            }
            let mut answered = answered.lock().expect("no panic");
            answered.extend(due(&host).into_iter().map(|due| due.owner));
            assert!(answered.contains(&owners[0]), "the process's locks end");
            for (file, owner) in [(own, owners[1]), (shared, owners[2])] {
                // A kill between a descriptor and its count leaves the count.
                let left = host.file(file).expect("a row").refs.load(SeqCst);
                assert!(left == 0 || was_killed);
                assert!(answered.contains(&owner) || left != 0, "the open file's locks end");
            }
            assert!(tenants(&host).is_empty(), "the table is free");
        });
    });
}
