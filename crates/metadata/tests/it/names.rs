//! Names by inode numbers (`Request::Names`): all that were asked for are found, in any service, in
//! parts, together with the names of directories.

use std::collections::BTreeMap;

use crate::sim::{Answer, World};
use wire::backing::listed;
use wire::codec::{Field as _, Reader};
use wire::names::{FoundName, NamePlace};
use wire::{Credentials, Inode, ShardIndex};

const ROOT: Inode = Inode::ROOT;

/// The names that all services find, and the number of requests.
fn found(world: &mut World, inodes: &[Inode]) -> (BTreeMap<Inode, (Inode, Vec<u8>)>, usize) {
    let mut numbers: Vec<u64> = inodes.iter().map(|inode| inode.0).collect();
    numbers.sort_unstable();
    let numbers: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    let mut services = BTreeMap::new();
    for shard in (0..wire::limits::SHARD_COUNT).map(ShardIndex) {
        services.entry(world.owner(shard)).or_insert(shard);
    }
    let (mut all, mut requests) = (BTreeMap::new(), 0);
    for shard in services.into_values() {
        let mut place = NamePlace::FIRST;
        while place != NamePlace::END {
            let answer = world.call(Credentials::ROOT, shard, &place.request(&numbers));
            let Answer::Bytes(bytes) = answer else { panic!("{answer:?}") };
            let mut reader = Reader::new(&bytes);
            let next = NamePlace::take(&mut reader).expect("a place");
            for FoundName { parent, inode, name, .. } in listed(reader.rest()) {
                all.insert(inode, (parent, name.to_vec()));
            }
            assert_ne!(next, place, "it goes on");
            (place, requests) = (next, requests + 1);
        }
    }
    (all, requests)
}

#[test]
fn names_are_found_in_all_services_with_their_directories() {
    let mut world = World::daemons(4);
    let directory = world.root().wide(ROOT, b"wide").expect("made").inode;
    let names: Vec<Vec<u8>> = (0..5000_u32).map(|at| format!("n{at}").into_bytes()).collect();
    let files: Vec<Inode> =
        names.iter().map(|name| world.root().file(directory, name).expect("made").inode).collect();
    let asked = [files[0], files[2500], files[4999], Inode(u64::MAX >> 1)];
    let (all, _) = found(&mut world, &asked);
    assert_eq!(all.len(), 4, "three files and the directory: {all:?}");
    assert_eq!(all.get(&files[2500]), Some(&(directory, b"n2500".to_vec())));
    assert_eq!(all.get(&directory), Some(&(ROOT, b"wide".to_vec())));
    world.root().unlink(directory, b"n2500").expect("removed");
    let (all, _) = found(&mut world, &asked);
    assert_eq!((all.len(), all.contains_key(&files[2500])), (3, false));
}

#[test]
fn a_request_looks_at_a_bounded_number_of_entries() {
    let mut world = World::single();
    let files: Vec<Inode> = (0..9000_u32)
        .map(|at| world.root().file(ROOT, format!("n{at:060}").as_bytes()).expect("made").inode)
        .collect();
    let (all, requests) = found(&mut world, &[files[8999]]);
    assert_eq!((all.len(), requests), (1, 3));
    // As many names as do not fit an answer.
    let (all, requests) = found(&mut world, &files[..1024]);
    assert_eq!(all.len(), 1024);
    assert!(requests > 3);
}
