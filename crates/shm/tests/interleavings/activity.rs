//! Counters under all orders of steps: threads that share a block, a gatherer that closes and frees
//! records meanwhile, programs that are killed while they take a block.

use crate::support::{join, memory, spawn};
use shm::activity::{
    ACTIVITY_BYTES, ActivitySegment, Lane, OpClass, OpenWords, Owner, RecordSample, Tags, Taken,
    Transfer,
};
use shm::sync::{AtomicU32, AtomicU64, model};
use std::sync::Arc;
use wire::Inode;

const OWNER: Owner = Owner { pid: 10, started: 7, tags: Tags::NONE, is_by_mount: false };

struct World {
    segment: ActivitySegment,
    place: AtomicU32,
    parent: AtomicU64,
}

impl World {
    fn new() -> Arc<World> {
        let segment = ActivitySegment::new(memory(ACTIVITY_BYTES)).expect("long enough");
        Arc::new(World { segment, place: AtomicU32::new(0), parent: AtomicU64::new(1) })
    }

    fn write(&self, lane: Lane, inode: u64) {
        let open = OpenWords { place: &self.place, inode: Inode(inode), parent: &self.parent };
        let counter = self.segment.begin_transfer(lane, open, Transfer::Write).expect("counters");
        counter.count(0, 10);
    }

    fn records(&self, lane: Lane) -> Vec<RecordSample> {
        let mut all = Vec::new();
        self.segment.each_record(lane.block, &mut |record| all.push(record));
        all
    }

    fn taken(&self) -> Vec<Taken> {
        let mut all = Vec::new();
        self.segment.each_taken(&mut |taken| {
            if taken.block != Lane::NOBODY.block {
                all.push(taken);
            }
        });
        all
    }
}

#[test]
fn threads_that_share_a_block_lose_no_operation() {
    model::explore(2000, || {
        let world = World::new();
        let block = model::uninterrupted(|| world.segment.take(&OWNER, 0).expect("a block"));
        let lane = Lane { block, is_shared: true };
        let threads = [5, 5, 6].map(|inode| {
            spawn(&world, move |world: &World| {
                world.segment.count_call(lane, OpClass::Stat);
                world.write(lane, inode);
                world.write(lane, inode);
            })
        });
        join(threads);
        model::uninterrupted(|| {
            assert_eq!(world.segment.calls(block)[OpClass::Stat as usize].number, 3);
            let records = world.records(lane);
            let of = |inode: u64| {
                let own = records.iter().filter(|record| record.inode == Inode(inode));
                own.fold((0, 0), |sum, record| {
                    (sum.0 + record.writes.number, sum.1 + record.writes.bytes)
                })
            };
            assert_eq!((of(5), of(6)), ((4, 40), (2, 20)));
        });
    });
}

#[test]
fn a_record_that_is_closed_and_freed_meanwhile_has_been_read_whole() {
    model::explore(2000, || {
        let world = World::new();
        let block = model::uninterrupted(|| world.segment.take(&OWNER, 0).expect("a block"));
        let lane = Lane { block, is_shared: false };
        let writer = spawn(&world, move |world: &World| {
            (0..3).for_each(|_| world.write(lane, 5));
        });
        // Passes of the gatherer. It frees what it has read twice the same since it closed it; the
        // writer is not stopped for that long, which `await` stands for.
        let mut kept = 0;
        let closed = world.records(lane).into_iter().find(|record| record.slot > 0);
        if let Some(record) = closed {
            world.segment.close_record(block, &record);
        }
        join([writer]);
        model::uninterrupted(|| {
            for record in world.records(lane) {
                kept += record.writes.number;
                if record.is_closed {
                    world.segment.free_record(block, &record);
                }
            }
            let left = world.records(lane).iter().filter(|record| record.is_closed).count();
            assert_eq!((kept, left), (3, 0));
        });
    });
}

#[test]
fn a_block_whose_program_is_killed_while_it_takes_it_is_freed() {
    model::explore(2000, || {
        let world = World::new();
        let victim = spawn(&world, |world: &World| {
            model::kill_after(40);
            if let Some(block) = world.segment.take(&OWNER, 0) {
                world.segment.count_call(Lane { block, is_shared: false }, OpClass::Open);
            }
        });
        let other = spawn(&world, |world: &World| {
            let owner = Owner { pid: 11, ..OWNER };
            let block = world.segment.take(&owner, 0).expect("a block");
            world.segment.count_call(Lane { block, is_shared: false }, OpClass::Stat);
            block
        });
        let _ = victim.join();
        let others = other.join().expect("not killed");
        model::uninterrupted(|| {
            for taken in world.taken() {
                let is_others = taken.block == others;
                assert_eq!(taken.owner.pid == 11, is_others);
                assert!(is_others || world.segment.free(&taken));
            }
            assert_eq!(world.taken().len(), 1);
            assert_eq!(world.segment.calls(others)[OpClass::Stat as usize].number, 1);
        });
    });
}
