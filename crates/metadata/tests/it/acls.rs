//! Access control lists: they stay in step with the mode, new files inherit them wherever the
//! directory's inode is, and they survive a crash.

use crate::sim::{Answer, World};
use wire::acl::{ACCESS, DEFAULT};
use wire::attributes::{extra, mode, want};
use wire::errno::Errno;
use wire::request::{create, made, set};
use wire::{Attributes, Credentials, Inode, Layout, Request};

const ROOT: Inode = Inode::ROOT;
const ANYONE: u32 = u32::MAX;

/// A list with a user entry: owner, user 5, group, mask, others.
fn list(owner: u8, user: u8, group: u8, mask: u8, other: u8) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0];
    for (tag, may, id) in [
        (1, owner, ANYONE),
        (2, user, 5),
        (4, group, ANYONE),
        (16, mask, ANYONE),
        (32, other, ANYONE),
    ] {
        bytes.extend([tag, 0, may, 0]);
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

fn set_list(world: &mut World, inode: Inode, name: &[u8], value: &[u8]) -> Answer {
    let request = Request::SetXattr { inode, name, value, flags: 0 };
    world.call(Credentials::ROOT, inode.shard(), &request)
}

fn get_list(world: &mut World, inode: Inode, name: &[u8]) -> Answer {
    world.call(Credentials::ROOT, inode.shard(), &Request::GetXattr { inode, name })
}

fn make(world: &mut World, parent: Inode, name: &[u8], mode: u32) -> Attributes {
    let shard = world.shard_of(parent, name);
    let request = Request::Create {
        parent,
        name,
        mode,
        device: 0,
        flags: create::EXCLUSIVE,
        layout: Layout { stripe_log2: 22, ..Layout::default() },
        target: &[],
    };
    world.call(Credentials::ROOT, shard, &request).attributes()
}

#[test]
fn an_access_list_and_the_mode_stay_in_step() {
    let mut world = World::daemons(1);
    let file = world.root().file(ROOT, b"f").expect("made").inode;
    assert_eq!(set_list(&mut world, file, ACCESS, &list(7, 6, 4, 5, 1)), Answer::Done);
    let found = world.stat(file).expect("there");
    assert_eq!(found.mode & 0o777, 0o751);
    assert!(found.has(extra::ACCESS_ACL | extra::XATTRS) && !found.has(extra::DEFAULT_ACL));
    let change = Request::SetAttributes {
        inode: file,
        mask: set::MODE,
        mode: 0o620,
        uid: 0,
        gid: 0,
        size: 0,
        accessed: 0,
        modified: 0,
    };
    world.call(Credentials::ROOT, file.shard(), &change);
    world.crash(0);
    assert_eq!(get_list(&mut world, file, ACCESS), Answer::Bytes(list(6, 6, 4, 2, 0)));
    let after = world.stat(file).expect("there");
    assert!(after.extras != found.extras, "the time of change shows that the list changed");
    // A list that is equivalent to a mode is stored as the mode.
    let plain = [&[2, 0, 0, 0][..], &[1, 0, 4, 0, 0, 0, 0, 0, 4, 0, 4, 0, 0, 0, 0, 0]].concat();
    let plain = [&plain[..], &[32, 0, 4, 0, 0, 0, 0, 0]].concat();
    assert_eq!(set_list(&mut world, file, ACCESS, &plain), Answer::Done);
    let found = world.stat(file).expect("there");
    assert_eq!((found.mode & 0o777, found.has(extra::XATTRS)), (0o444, false));
    assert_eq!(get_list(&mut world, file, ACCESS), Answer::Refused(Errno::ENODATA));
    let other = Request::SetXattr { inode: file, name: ACCESS, value: &plain, flags: 0 };
    let refused = world.call(Credentials::of(9, 9), file.shard(), &other);
    assert_eq!(refused, Answer::Refused(Errno::EPERM));
}

#[test]
fn files_inherit_the_access_list_of_a_directory_of_another_service() {
    let mut world = World::daemons(3);
    for number in 0..12u8 {
        let name = [b'd', b'a' + number];
        let directory = world.root().directory(ROOT, &name).expect("made").inode;
        // The service that creates this file has a copy of the directory from before the list was
        // set.
        make(&mut world, directory, b"before", mode::REGULAR | 0o666);
        let default = list(7, 6, 5, 7, 0);
        assert_eq!(set_list(&mut world, directory, DEFAULT, &default), Answer::Done);
        let answer = made::with(mode::REGULAR | 0o666, 0o077);
        let file = make(&mut world, directory, b"f", answer);
        assert_eq!(file.mode & 0o777, 0o660, "the list, not the umask");
        assert_eq!(get_list(&mut world, file.inode, ACCESS), Answer::Bytes(list(6, 6, 5, 6, 0)));
        let backing = make(&mut world, directory, b"s", made::with(mode::DIRECTORY | 0o777, 0o077));
        assert_eq!(get_list(&mut world, backing.inode, DEFAULT), Answer::Bytes(default));
        assert!(backing.has(extra::ACCESS_ACL | extra::DEFAULT_ACL));
        let link = make(&mut world, directory, b"p", made::with(mode::FIFO | 0o640, 0o077));
        assert_eq!(link.mode & 0o777, 0o640);
    }
}

#[test]
fn an_access_list_controls_changes_of_a_directory_wherever_it_is() {
    let mut world = World::daemons(3);
    for number in 0..12u8 {
        let name = [b'd', b'a' + number];
        let directory = world.root().directory(ROOT, &name).expect("made").inode;
        let may = want::WRITE | want::EXECUTE;
        let access = list(7, may as u8, 0, 7, 0);
        assert_eq!(set_list(&mut world, directory, ACCESS, &access), Answer::Done);
        assert_eq!(world.user(6, 6).file(directory, b"f").err(), Some(Errno::EACCES));
        let file = world.user(5, 6).file(directory, b"f").expect("the list lets him");
        assert_eq!(file.uid, 5);
        assert_eq!(world.user(6, 6).unlink(directory, b"f").err(), Some(Errno::EACCES));
        assert!(world.user(5, 6).unlink(directory, b"f").is_ok());
        assert_eq!(set_list(&mut world, directory, ACCESS, &list(7, 7, 0, 5, 0)), Answer::Done);
        let masked = world.user(5, 6).file(directory, b"g").err();
        assert_eq!(masked, Some(Errno::EACCES), "masked");
    }
}
