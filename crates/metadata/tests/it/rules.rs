//! The rules of POSIX as Linux file systems implement them, one service: errors and their order,
//! permissions, links, times, renames. Each test is a rule.

use crate::sim::{Answer, Client, NOTHING, Sent, World};
use wire::attributes::mode;
use wire::errno::Errno;
use wire::request::{rename, set, walk};
use wire::{Attributes, Credentials, Inode, Layout, Request, ShardIndex};

const ROOT: Inode = Inode::ROOT;

#[test]
fn a_new_file_has_its_creators_owner_and_is_found() {
    let mut world = World::single();
    let made = world.user(10, 20).file(ROOT, b"a").expect("made");
    assert_eq!((made.uid, made.gid, made.links, made.size), (10, 20, 1, 0));
    assert!(made.is_inline());
    assert_eq!(world.root().look(ROOT, b"a"), Ok(made));
    assert_eq!(world.root().look(ROOT, b"b"), Err(Errno::ENOENT));
    assert_eq!(world.root().file(ROOT, b"a"), Err(Errno::EEXIST));
    assert_eq!(world.root().make_flags(ROOT, b"a", mode::REGULAR, 0), Ok(made));
}

/// Several names in one request give the same as one by one, up to another service, a file that is
/// no directory, or the end.
#[test]
fn a_walk_equals_successive_lookups() {
    for mut world in [World::single(), World::daemons(3)] {
        let mut here = ROOT;
        for name in [b"a", b"b", b"c"] {
            let wide = world.root().wide(here, b"w").expect("made").inode;
            for file in [&b"1"[..], b"2", b"3"] {
                world.root().file(wide, file).expect("made");
            }
            world.root().make(here, b"l", mode::SYMLINK | 0o777).expect("made");
            here = world.root().directory(here, name).expect("made").inode;
        }
        world.root().file(here, b"f").expect("made");
        let mut fewest = usize::MAX;
        for path in
            ["a/b/c/f", "a//b/", "a/l/x", "w/1", "w/2", "a/w/3", "a/b/w/2/x", "none", "a/b/no/f"]
        {
            let names: Vec<&[u8]> =
                path.as_bytes().split(|&b| b == b'/').filter(|name| !name.is_empty()).collect();
            let mut one_by_one = vec![];
            let mut at = ROOT;
            for name in &names {
                let found = world.root().look(at, name);
                one_by_one.push(found);
                match found {
                    Ok(found) if found.is_directory() => at = found.inode,
                    _ => break,
                }
            }
            let (found, requests) = walked(&mut world, &names);
            assert_eq!(found, one_by_one, "{path}");
            fewest = fewest.min(requests);
        }
        assert_eq!(fewest, 1);
    }
}

/// The result of each name for a client, and the number of requests.
fn walked(world: &mut World, names: &[&[u8]]) -> (Vec<Result<Attributes, Errno>>, usize) {
    let caller = Credentials::ROOT;
    let (mut found, mut requests) = (vec![], 0);
    let mut from = walk::DIRECTORY;
    while found.len() < names.len() {
        let rest = names[found.len()..].join(&b'/');
        let last: Option<Attributes> = found.last().copied().and_then(Result::ok);
        let directory = last.map_or(ROOT, |last| last.inode);
        let shard = match from {
            walk::DIRECTORY => directory.shard(),
            _ => world.shard_of(directory, names[found.len()]),
        };
        let request = Request::Walk { directory, from, names: &rest };
        let Answer::Walked(absent, mut chain) = world.call(caller, shard, &request) else {
            panic!("no walk")
        };
        requests += 1;
        if from == walk::DIRECTORY {
            assert_eq!(chain.remove(0), world.stat(directory).expect("there"));
        }
        let is_file = chain.last().is_some_and(|last| !last.is_directory());
        assert!(from == walk::DIRECTORY || absent || !chain.is_empty());
        from = walk::ENTRY;
        found.extend(chain.into_iter().map(Ok));
        if absent {
            found.push(Err(Errno::ENOENT));
        }
        if absent || is_file {
            break;
        }
    }
    (found, requests)
}

#[test]
fn names_are_checked() {
    let mut world = World::single();
    let long = [b'x'; 256];
    assert_eq!(world.root().file(ROOT, &long), Err(Errno::ENAMETOOLONG));
    assert_eq!(world.root().file(ROOT, b"a/b"), Err(Errno::EINVAL));
    assert!(world.root().file(ROOT, &long[..255]).is_ok());
}

#[test]
fn creating_needs_write_and_search_permission() {
    let mut world = World::single();
    let d = world.user(10, 20).directory(ROOT, b"d").expect("made").inode;
    assert_eq!(world.user(11, 21).file(d, b"a"), Err(Errno::EACCES));
    assert!(world.user(10, 99).file(d, b"a").is_ok());
    world.user(10, 20).chmod(d, 0o600).expect("the owner may");
    assert_eq!(world.user(10, 20).file(d, b"b"), Err(Errno::EACCES));
    assert_eq!(world.user(10, 20).unlink(d, b"a"), Err(Errno::EACCES));
    assert_eq!(world.user(10, 20).file(d, b"a"), Err(Errno::EEXIST), "before the permission");
    assert!(world.root().unlink(d, b"a").is_ok());
}

#[test]
fn creating_in_a_file_or_a_removed_directory_fails() {
    let mut world = World::single();
    let file = world.root().file(ROOT, b"f").expect("made");
    let d = world.root().directory(ROOT, b"d").expect("made");
    let request = |parent| Request::Create {
        parent,
        name: b"x",
        mode: mode::REGULAR,
        device: 0,
        flags: 1,
        layout: Layout::default(),
        target: b"",
    };
    let root = Credentials::ROOT;
    let shard = file.inode.shard();
    assert_eq!(world.call(root, shard, &request(file.inode)), Answer::Refused(Errno::ENOTDIR));
    world.root().rmdir(ROOT, b"d").expect("empty");
    assert_eq!(world.call(root, shard, &request(d.inode)), Answer::Refused(Errno::ENOENT));
}

#[test]
fn a_sticky_directory_lets_owners_delete() {
    let mut world = World::single();
    let d = world.user(1, 1).make(ROOT, b"d", mode::DIRECTORY | 0o1777).expect("made").inode;
    world.user(2, 2).file(d, b"two").expect("made");
    world.user(3, 3).file(d, b"three").expect("made");
    assert_eq!(world.user(3, 3).unlink(d, b"two"), Err(Errno::EPERM));
    assert_eq!(world.user(3, 3).rename((d, b"two"), (d, b"x"), 0), Err(Errno::EPERM));
    assert_eq!(world.user(3, 3).rename((d, b"three"), (d, b"two"), 0), Err(Errno::EPERM));
    assert!(world.user(2, 2).unlink(d, b"two").is_ok());
    assert!(world.user(1, 1).unlink(d, b"three").is_ok(), "the directory's owner");
}

/// A kernel that checked the request may have known another file by the name.
#[test]
fn a_sticky_directory_lets_owners_delete_even_if_a_kernel_has_checked() {
    for mut world in [World::single(), World::daemons(3)] {
        let d = world.user(1, 1).make(ROOT, b"d", mode::DIRECTORY | 0o1777).expect("made").inode;
        for name in [b"a", b"b", b"c", b"e", b"f", b"g"] {
            world.user(2, 2).file(d, name).expect("made");
            world.user(3, 3).file(d, &[b'_', name[0]]).expect("made");
            assert_eq!(world.checked(3, 3).unlink(d, name), Err(Errno::EPERM));
            assert_eq!(world.checked(3, 3).rename((d, name), (d, b"x"), 0), Err(Errno::EPERM));
            let over = world.checked(3, 3).rename((d, &[b'_', name[0]]), (d, name), 0);
            assert_eq!(over, Err(Errno::EPERM));
        }
        assert!(world.checked(2, 2).unlink(d, b"a").is_ok());
        assert!(world.checked(1, 1).unlink(d, b"b").is_ok(), "the directory's owner");
        assert!(world.checked(0, 0).unlink(d, b"c").is_ok());
        world.user(2, 2).directory(d, b"s").expect("made");
        assert_eq!(world.checked(3, 3).rmdir(d, b"s"), Err(Errno::EPERM));
        assert!(world.checked(2, 2).rmdir(d, b"s").is_ok());
    }
}

/// A kernel that checked the request may have compared a former owner.
#[test]
fn a_former_owner_changes_nothing_even_if_a_kernel_has_checked() {
    let mut world = World::single();
    let f = world.user(2, 2).file(ROOT, b"f").expect("made").inode;
    let given = Attributes { uid: 3, gid: 3, ..NOTHING };
    world.root().set(f, set::UID | set::GID, given).expect("given away");
    let group = Attributes { gid: 2, ..NOTHING };
    let changes = [
        (set::MODE, Attributes { mode: 0o4777, ..NOTHING }),
        (set::GID, group),
        (set::ACCESSED | set::MODIFIED, NOTHING),
        (set::MODIFIED_NOW, NOTHING),
    ];
    for (mask, change) in changes {
        assert_eq!(world.checked(2, 2).set(f, mask, change), Err(Errno::EPERM), "{mask:#x}");
        assert!(world.checked(3, 3).set(f, mask, change).is_ok(), "{mask:#x}");
        assert!(world.checked(0, 0).set(f, mask, change).is_ok(), "{mask:#x}");
    }
    let user = Attributes { uid: 2, ..NOTHING };
    assert_eq!(world.checked(2, 2).set(f, set::UID, user), Err(Errno::EPERM));
    // With write permission, of which the kernel reminds itself.
    assert!(world.checked(2, 2).set(f, set::ACCESSED_NOW | set::MODIFIED_NOW, NOTHING).is_ok());
}

#[test]
fn links_and_times_of_directories_follow_their_entries() {
    let mut world = World::single();
    let d = world.root().directory(ROOT, b"d").expect("made");
    assert_eq!((d.links, d.parent), (2, ROOT));
    assert_eq!(world.stat(ROOT).expect("there").links, 3);
    world.root().directory(d.inode, b"s").expect("made");
    world.root().file(d.inode, b"f").expect("made");
    let after = world.stat(d.inode).expect("there");
    assert_eq!((after.links, after.size), (3, 2));
    assert!(after.modified > d.modified && after.changed > d.changed);
    assert_eq!(world.root().rmdir(ROOT, b"d"), Err(Errno::ENOTEMPTY));
    world.root().rmdir(d.inode, b"s").expect("empty");
    world.root().unlink(d.inode, b"f").expect("there");
    assert_eq!(world.stat(d.inode).expect("there").links, 2);
    world.root().rmdir(ROOT, b"d").expect("empty");
    assert_eq!(world.stat(ROOT).expect("there").links, 2);
    assert_eq!(world.stat(d.inode), Err(Errno::ESTALE));
}

/// The inode of a directory of the root may be another service's than its entries.
#[test]
fn times_of_directories_are_current_where_their_entries_are_elsewhere() {
    let mut world = World::daemons(3);
    let mut elsewhere = 0;
    for number in 0..12_u8 {
        let name = [b'd', b'a' + number];
        let d = match number % 4 {
            0 => world.root().wide(ROOT, &name).expect("made"),
            _ => world.root().directory(ROOT, &name).expect("made"),
        };
        let mut last = world.stat(d.inode).expect("there");
        for file in [b"a", b"b", b"c", b"e"] {
            world.root().file(d.inode, file).expect("made");
            let shard = world.shard_of(d.inode, file);
            elsewhere += u32::from(world.owner(shard) != world.owner(d.inode.shard()));
            let now = world.stat(d.inode).expect("there");
            assert_eq!(now.size, last.size + 1);
            assert!(now.modified > last.modified && now.changed > last.changed);
            last = now;
        }
        world.root().unlink(d.inode, b"a").expect("there");
        let given = Attributes { modified: 5, ..NOTHING };
        world.root().set(d.inode, set::MODIFIED, given).expect("set");
        let set = world.stat(d.inode).expect("there");
        world.settle();
        assert_eq!(world.stat(d.inode), Ok(set), "a late tally changes a time that was set");
        assert_eq!((set.modified, set.size), (5, 3));
    }
    assert!(elsewhere > 0, "no entry is elsewhere");
}

#[test]
fn files_and_directories_do_not_replace_each_other() {
    let mut world = World::single();
    world.root().directory(ROOT, b"d").expect("made");
    world.root().file(ROOT, b"f").expect("made");
    assert_eq!(world.root().unlink(ROOT, b"d"), Err(Errno::EISDIR));
    assert_eq!(world.root().rmdir(ROOT, b"f"), Err(Errno::ENOTDIR));
    assert_eq!(world.root().rename((ROOT, b"d"), (ROOT, b"f"), 0), Err(Errno::ENOTDIR));
    assert_eq!(world.root().rename((ROOT, b"f"), (ROOT, b"d"), 0), Err(Errno::EISDIR));
    assert_eq!(world.user(5, 5).make(ROOT, b"c", mode::CHARACTER), Err(Errno::EPERM));
    assert_eq!(world.root().make(ROOT, b"x", 0o17_0000), Err(Errno::EINVAL));
}

#[test]
fn files_inherit_the_group_of_a_set_group_id_directory() {
    let mut world = World::single();
    let d = world.user(1, 7).make(ROOT, b"d", mode::DIRECTORY | 0o2777).expect("made").inode;
    let s = world.user(2, 2).directory(d, b"s").expect("made");
    assert_eq!((s.gid, s.mode & mode::SET_GID), (7, mode::SET_GID));
    let f = world.user(2, 2).make(d, b"f", mode::REGULAR | 0o2755).expect("made");
    assert_eq!((f.gid, f.mode & mode::SET_GID), (7, 0), "not a member of the group");
}

#[test]
fn hard_links_are_counted() {
    let mut world = World::single();
    let f = world.root().file(ROOT, b"f").expect("made");
    let d = world.root().directory(ROOT, b"d").expect("made");
    world.root().link(f.inode, ROOT, b"g").expect("linked");
    let after = world.stat(f.inode).expect("there");
    assert_eq!(after.links, 2);
    assert!(after.changed > f.changed && after.modified == f.modified);
    assert_eq!(world.root().link(f.inode, ROOT, b"g"), Err(Errno::EEXIST));
    assert_eq!(world.root().link(d.inode, ROOT, b"h"), Err(Errno::EPERM));
    assert_eq!(world.root().rename((ROOT, b"f"), (ROOT, b"g"), 0), Ok(NOTHING), "does nothing");
    assert!(world.root().look(ROOT, b"f").is_ok());
    world.root().unlink(ROOT, b"f").expect("there");
    assert_eq!(world.stat(f.inode).expect("there").links, 1);
    world.root().unlink(ROOT, b"g").expect("there");
    assert_eq!(world.stat(f.inode), Err(Errno::ESTALE));
    assert_eq!(world.root().link(f.inode, ROOT, b"k"), Err(Errno::ENOENT));
}

#[test]
fn a_deleted_file_lives_while_it_is_open() {
    let mut world = World::single();
    let f = world.root().file(ROOT, b"f").expect("made").inode;
    world.seats[0].host_view.open.insert(f);
    world.root().unlink(ROOT, b"f").expect("there");
    assert_eq!(world.stat(f).expect("an orphan").links, 0);
    assert_eq!(world.seats[0].service.orphans().collect::<Vec<_>>(), [f]);
    world.root().inode(f, &Request::Reap { inode: f }).expect("answered");
    assert!(world.stat(f).is_ok(), "still open");
    assert_eq!(world.root().link(f, ROOT, b"g"), Err(Errno::ENOENT), "as Linux");
    world.crash(0);
    assert!(world.stat(f).is_ok(), "until somebody reaps it");
    world.seats[0].host_view.open.clear();
    world.root().inode(f, &Request::Reap { inode: f }).expect("answered");
    assert_eq!(world.stat(f), Err(Errno::ESTALE));
    assert_eq!(world.seats[0].service.orphans().count(), 0);
}

#[test]
fn a_deleted_file_lives_while_another_host_has_it_open() {
    let mut world = World::single();
    let f = world.root().file(ROOT, b"f").expect("made").inode;
    let root = Credentials::ROOT;
    let mut open =
        world.prepare(root, f.shard(), &Request::Open { inode: f, open_sequence: 1, uses: 0 });
    open.header.host = 9;
    world.send_again(&open);
    world.root().unlink(ROOT, b"f").expect("there");
    world.crash(0);
    assert_eq!(world.stat(f).expect("an orphan").links, 0);
    let mut close = world.prepare(root, f.shard(), &Request::Close { inode: f, open_sequence: 2 });
    close.header.host = 9;
    world.send_again(&close);
    assert_eq!(world.stat(f), Err(Errno::ESTALE));
}

/// Messages of another host are reordered: a close that is older than an opening ends nothing.
#[test]
fn a_late_close_ends_no_later_opening() {
    let mut world = World::single();
    let f = world.root().file(ROOT, b"f").expect("made").inode;
    let tell = |world: &mut World, host: u16, request: &Request<'_>| {
        let mut sent = world.prepare(Credentials::ROOT, f.shard(), request);
        sent.header.host = host;
        world.send_again(&sent);
    };
    tell(&mut world, 9, &Request::Open { inode: f, open_sequence: 3, uses: 0 });
    tell(&mut world, 9, &Request::Open { inode: f, open_sequence: 7, uses: 0 });
    tell(&mut world, 9, &Request::Open { inode: f, open_sequence: 4, uses: 0 });
    tell(&mut world, 8, &Request::Open { inode: f, open_sequence: 1, uses: 0 });
    world.root().unlink(ROOT, b"f").expect("there");
    tell(&mut world, 9, &Request::Close { inode: f, open_sequence: 5 });
    tell(&mut world, 8, &Request::Close { inode: f, open_sequence: 2 });
    assert_eq!(world.stat(f).expect("host 9 has it open").links, 0);
    world.crash(0);
    tell(&mut world, 9, &Request::Close { inode: f, open_sequence: 6 });
    assert!(world.stat(f).is_ok(), "host 9 has it open");
    tell(&mut world, 9, &Request::Close { inode: f, open_sequence: 8 });
    assert_eq!(world.stat(f), Err(Errno::ESTALE));
}

/// A client that created a file but may not open it, or never learns of it, sends no close.
#[test]
fn a_create_of_an_existing_file_registers_no_host() {
    let mut world = World::single();
    let f = world.root().file(ROOT, b"f").expect("made").inode;
    let (mode, device, layout) = (mode::REGULAR | 0o600, 0, Layout::default());
    let flags = wire::request::create::OPEN;
    let create =
        Request::Create { parent: ROOT, name: b"f", mode, device, flags, layout, target: &[] };
    let mut again = world.prepare(Credentials::ROOT, f.shard(), &create);
    again.header.host = 9;
    world.send_again(&again);
    world.root().unlink(ROOT, b"f").expect("there");
    assert_eq!(world.stat(f), Err(Errno::ESTALE));
}

#[test]
fn a_nameless_file_gets_a_name_once() {
    let mut world = World::single();
    let layout = Layout::default();
    let request = Request::CreateNameless { parent: ROOT, mode: 0o600, layout };
    let f = world.root().entry(ROOT, b"", &request).expect("made");
    assert_eq!((f.links, f.mode), (0, mode::REGULAR | 0o600));
    world.root().link(f.inode, ROOT, b"f").expect("linked");
    assert_eq!(world.stat(f.inode).expect("there").links, 1);
    world.seats[0].host_view.open.insert(f.inode);
    world.root().unlink(ROOT, b"f").expect("there");
    assert_eq!(world.root().link(f.inode, ROOT, b"g"), Err(Errno::ENOENT));
}

#[test]
fn renaming_replaces_and_moves() {
    let mut world = World::single();
    let a = world.root().directory(ROOT, b"a").expect("made").inode;
    let b = world.root().directory(ROOT, b"b").expect("made").inode;
    let s = world.root().directory(a, b"s").expect("made").inode;
    let f = world.root().file(a, b"f").expect("made").inode;
    let g = world.root().file(b, b"g").expect("made").inode;
    world.root().rename((a, b"s"), (b, b"s"), 0).expect("moved");
    assert_eq!(world.stat(s).expect("there").parent, b);
    assert_eq!(world.stat(a).expect("there").links, 2);
    assert_eq!(world.stat(b).expect("there").links, 3);
    world.root().rename((a, b"f"), (b, b"g"), 0).expect("moved");
    assert_eq!(world.stat(g), Err(Errno::ESTALE));
    assert_eq!(world.root().look(b, b"g").map(|found| found.inode), Ok(f));
    assert_eq!(world.root().rename((ROOT, b"b"), (s, b"x"), 0), Err(Errno::EINVAL));
    assert_eq!(world.root().rename((b, b"s"), (ROOT, b"b"), 0), Err(Errno::ENOTEMPTY));
    assert_eq!(world.root().rename((b, b"s"), (ROOT, b"a"), 0), Ok(NOTHING), "an empty one");
    assert_eq!(world.stat(a), Err(Errno::ESTALE));
    assert_eq!(world.stat(ROOT).expect("there").links, 4);
    assert_eq!(world.stat(b).expect("there").links, 2);
    assert_eq!(world.root().rename((ROOT, b"no"), (ROOT, b"x"), 0), Err(Errno::ENOENT));
}

#[test]
fn rename_flags() {
    let mut world = World::single();
    let d = world.root().directory(ROOT, b"d").expect("made").inode;
    let e = world.root().directory(ROOT, b"e").expect("made").inode;
    let f = world.root().file(d, b"f").expect("made").inode;
    let s = world.root().directory(e, b"s").expect("made").inode;
    let mut root = world.root();
    assert_eq!(root.rename((d, b"f"), (e, b"s"), rename::NO_REPLACE), Err(Errno::EEXIST));
    assert_eq!(root.rename((d, b"f"), (e, b"no"), rename::EXCHANGE), Err(Errno::ENOENT));
    assert_eq!(root.rename((d, b"f"), (e, b"s"), 3), Err(Errno::EINVAL));
    assert_eq!(root.rename((ROOT, b"e"), (e, b"s"), rename::EXCHANGE), Err(Errno::EINVAL));
    root.rename((d, b"f"), (e, b"s"), rename::EXCHANGE).expect("exchanged");
    assert_eq!(root.look(d, b"f").map(|found| found.inode), Ok(s));
    assert_eq!(root.look(e, b"s").map(|found| found.inode), Ok(f));
    assert_eq!(world.stat(d).expect("there").links, 3);
    assert_eq!(world.stat(e).expect("there").links, 2);
    assert_eq!(world.stat(s).expect("there").parent, d);
}

#[test]
fn moving_a_directory_needs_write_permission_on_it() {
    let mut world = World::single();
    let a = world.user(1, 1).make(ROOT, b"a", mode::DIRECTORY | 0o777).expect("made").inode;
    let b = world.user(1, 1).make(ROOT, b"b", mode::DIRECTORY | 0o777).expect("made").inode;
    world.user(1, 1).make(a, b"s", mode::DIRECTORY | 0o555).expect("made");
    assert_eq!(world.user(1, 1).rename((a, b"s"), (b, b"s"), 0), Err(Errno::EACCES));
    assert!(world.user(1, 1).rename((a, b"s"), (a, b"t"), 0).is_ok(), "its parent stays");
}

fn owners(client: &mut Client<'_>, inode: Inode, uid: u32, gid: u32) -> crate::sim::Outcome {
    client.set(inode, set::UID | set::GID, Attributes { uid, gid, ..NOTHING })
}

#[test]
fn changing_mode_and_owner() {
    let mut world = World::single();
    let f = world.user(1, 1).make(ROOT, b"f", mode::REGULAR | 0o6755).expect("made").inode;
    assert_eq!(world.user(2, 2).chmod(f, 0o777), Err(Errno::EPERM));
    assert_eq!(world.user(1, 2).chmod(f, 0o2755).map(|a| a.mode & 0o7777), Ok(0o755));
    world.user(1, 1).chmod(f, 0o6755).expect("the owner");
    assert_eq!(owners(&mut world.user(1, 1), f, 2, 1), Err(Errno::EPERM));
    assert_eq!(owners(&mut world.user(1, 1), f, 1, 9), Err(Errno::EPERM));
    let mut member = Credentials::of(1, 1);
    (member.group_count, member.groups[0]) = (1, 9);
    let mut member = Client { world: &mut world, caller: member };
    let changed = owners(&mut member, f, 1, 9).expect("a member of the group");
    assert_eq!((changed.gid, changed.mode & 0o7777), (9, 0o755), "set-id bits are gone");
    let given = owners(&mut world.root(), f, 5, 5).expect("root may");
    assert_eq!((given.uid, given.gid), (5, 5));
}

#[test]
fn changing_times() {
    let mut world = World::single();
    let f = world.user(1, 1).make(ROOT, b"f", mode::REGULAR | 0o666).expect("made");
    let given = Attributes { accessed: -5, modified: 7, ..NOTHING };
    let both = set::ACCESSED | set::MODIFIED;
    let now = set::ACCESSED_NOW | set::MODIFIED_NOW;
    assert_eq!(world.user(2, 2).set(f.inode, both, given), Err(Errno::EPERM));
    let set = world.user(1, 1).set(f.inode, both, given).expect("the owner");
    assert_eq!((set.accessed, set.modified), (-5, 7));
    assert!(set.changed > f.changed);
    let touched = world.user(2, 2).set(f.inode, now, NOTHING).expect("a writer");
    assert!(touched.modified == touched.changed && touched.accessed == touched.changed);
    assert!(touched.changed > set.changed);
    world.user(1, 1).chmod(f.inode, 0o644).expect("the owner");
    assert_eq!(world.user(2, 2).set(f.inode, now, NOTHING), Err(Errno::EACCES));
}

#[test]
fn listing_resumes_and_is_in_order_of_hash() {
    let mut world = World::single();
    let d = world.root().directory(ROOT, b"d").expect("made").inode;
    let mut names: Vec<Vec<u8>> = (0..200).map(|n| format!("name{n}").into_bytes()).collect();
    for name in &names {
        world.root().file(d, name).expect("made");
    }
    let listed = world.root().list(d);
    names.sort_by_key(|name| wire::hash::NameHash::of(d, name));
    assert_eq!(listed, names);
}

#[test]
fn symbolic_links_are_read() {
    let mut world = World::single();
    let l = world.root().make(ROOT, b"l", mode::SYMLINK | 0o777).expect("made");
    assert_eq!(l.size, 6);
    let request = Request::ReadLink { inode: l.inode };
    let read = world.call(Credentials::ROOT, l.inode.shard(), &request);
    assert_eq!(read, Answer::Bytes(b"target".to_vec()));
    let request = Request::ReadLink { inode: ROOT };
    let read = world.call(Credentials::ROOT, ROOT.shard(), &request);
    assert_eq!(read, Answer::Refused(Errno::EINVAL));
}

#[test]
fn top_directories_take_shards_in_turn_and_children_inherit() {
    let mut world = World::single();
    let places: Vec<u16> = (0..5u8)
        .map(|n| world.root().directory(ROOT, &[b'a' + n]).expect("made").layout.place)
        .collect();
    assert_eq!(places, [0, 1, 2, 3, 4]);
    world.crash(0);
    let next = world.root().directory(ROOT, b"z").expect("made");
    assert_eq!(next.layout.place, 5);
    let s = world.root().directory(next.inode, b"s").expect("made");
    assert_eq!((s.layout.place, s.inode.shard().0), (5, 5));
}

#[test]
fn memory_has_a_limit() {
    let mut config = crate::sim::config(0, 1, 0, 1);
    config.metadata_bytes_max = 10_000;
    let mut world = World::of(vec![config]);
    let made = (0..100u8).take_while(|&n| world.root().file(ROOT, &[n + 100]).is_ok()).count();
    assert!((10..60).contains(&made), "made={made}");
    world.root().unlink(ROOT, &[100]).expect("deleting still works");
    assert!(world.root().file(ROOT, b"again").is_ok());
}

#[test]
fn a_duplicate_request_is_executed_once() {
    let mut world = World::single();
    let request = Request::Create {
        parent: ROOT,
        name: b"f",
        mode: mode::REGULAR,
        device: 0,
        flags: 1,
        layout: Layout::default(),
        target: b"",
    };
    let sent = world.prepare(Credentials::ROOT, ROOT.shard(), &request);
    let first = world.send_again(&sent);
    world.crash(0);
    let second = world.send_again(&sent);
    let made = world.answer(first).expect("answered");
    assert_eq!(world.answer(second), Some(made.clone()));
    let client_id = sent.header.client_id;
    world.step(0, metadata::Input::ClientGone { first: client_id, count: 1 });
    world.crash(0);
    let third = world.send_again(&sent);
    assert_eq!(world.answer(third), Some(Answer::Refused(Errno::EEXIST)));
}

/// A file in a directory of one daemon, and a directory of another that it is to be moved to.
fn about_to_move(world: &mut World) -> (Attributes, Attributes) {
    let mut directories = vec![];
    for name in [b"a", b"b", b"c", b"d"] {
        directories.push(world.root().directory(ROOT, name).expect("made"));
    }
    let owner = |one: &Attributes| world.owner(ShardIndex(one.layout.place));
    let from = *directories.iter().find(|one| owner(one) == 0).expect("one of the first daemon");
    let to = *directories.iter().find(|one| owner(one) == 1).expect("one of the second");
    world.root().file(from.inode, b"f").expect("made");
    (from, to)
}

fn prepare_move(world: &mut World, from: &Attributes, to: &Attributes) -> Sent {
    let request = Request::Rename {
        parent: from.inode,
        name: b"f",
        new_parent: to.inode,
        new_name: b"g",
        flags: 0,
    };
    world.prepare(Credentials::ROOT, ShardIndex(from.layout.place), &request)
}

/// True if the file is at its destination in the end.
fn has_moved(world: &mut World, from: &Attributes, to: &Attributes) -> bool {
    let there = world.root().look(to.inode, b"g").is_ok();
    assert_eq!(world.root().look(from.inode, b"f").is_ok(), !there, "once, in one place");
    there
}

#[test]
fn a_waiting_request_of_a_killed_process_is_not_begun() {
    for its_session_is_over in [false, true] {
        let mut world = World::daemons(2);
        let (from, to) = about_to_move(&mut world);
        let sent = prepare_move(&mut world, &from, &to);
        let ticket = world.send_again(&sent);
        assert_eq!(world.answer(ticket), None, "the other daemon is queried first");
        if its_session_is_over {
            world.step(0, metadata::Input::ClientGone { first: 7, count: 1 });
        } else {
            world.seats[0].host_view.killed.insert(ticket);
        }
        world.settle();
        assert_eq!(world.answer(ticket), Some(Answer::Busy));
        assert!(!has_moved(&mut world, &from, &to));
    }
}

#[test]
fn a_withdrawn_request_is_not_begun_and_others_are_unaffected() {
    for (further_client, further_number) in [(0, 0), (1, 0), (0, 1)] {
        let mut world = World::daemons(2);
        let (from, to) = about_to_move(&mut world);
        let sent = prepare_move(&mut world, &from, &to);
        let ticket = world.send_again(&sent);
        let client_id = sent.header.client_id + further_client;
        let sequence = sent.header.sequence + further_number;
        world.step(0, metadata::Input::Withdrawn { client_id, sequence });
        world.settle();
        let is_it = further_client + further_number == 0;
        let expected = if is_it { Answer::Busy } else { Answer::Done };
        assert_eq!(world.answer(ticket), Some(expected));
        assert_eq!(has_moved(&mut world, &from, &to), !is_it);
    }
}

#[test]
fn a_transaction_in_its_vote_is_aborted_when_its_process_is_killed() {
    let mut world = World::daemons(2);
    let (from, to) = about_to_move(&mut world);
    let sent = prepare_move(&mut world, &from, &to);
    let ticket = world.send_again(&sent);
    let is_voted_on = |world: &World| world.seats[1].service.deadline().is_some();
    while world.answer(ticket).is_none() && !is_voted_on(&world) {
        let (at, bytes) = world.queue.remove(0);
        world.step(at, metadata::Input::Peer { message: &bytes });
    }
    assert_eq!(world.answer(ticket), None, "the vote is under way");
    world.step(0, metadata::Input::ClientGone { first: 7, count: 1 });
    assert_eq!(world.answer(ticket), Some(Answer::Busy));
    world.settle();
    assert!(!has_moved(&mut world, &from, &to));
    assert!(world.seats.iter().all(|seat| seat.service.deadline().is_none()), "nothing is held");
}

/// Delivers the oldest messages until a request is answered; commits are still on their way.
fn until_answered(world: &mut World, ticket: u64) {
    while world.answer(ticket).is_none() {
        world.settle_for(1);
    }
}

#[test]
fn a_listing_waits_for_an_answered_but_unfinished_change() {
    let mut world = World::daemons(2);
    let (from, to) = about_to_move(&mut world);
    // Names before and after the new one.
    let names: Vec<[u8; 1]> = (b'h'..=b'p').map(|letter| [letter]).collect();
    for name in &names {
        world.root().file(to.inode, name).expect("made");
    }
    let sent = prepare_move(&mut world, &from, &to);
    let moved = world.send_again(&sent);
    until_answered(&mut world, moved);
    assert_eq!(world.answer(moved), Some(Answer::Done));
    let shard = ShardIndex(to.layout.place);
    let list = |world: &mut World, after| {
        let request =
            Request::ReadDirectory { directory: to.inode, after, last: u64::MAX, bytes: 8192 };
        world.send(Credentials::ROOT, shard, &request)
    };
    let first = list(&mut world, 0);
    let mut after = 0;
    let mut listed = vec![];
    if let Some(Answer::Entries(more, entries, _)) = world.answer(first) {
        assert!(more, "this is not all");
        after = entries.last().expect("the names before it").0;
        listed.extend(entries.into_iter().map(|entry| entry.3));
    }
    let second = list(&mut world, after);
    assert_eq!(world.answer(second), None, "the next name is not known yet");
    world.settle();
    let Some(Answer::Entries(false, entries, _)) = world.answer(second) else {
        panic!("{:?}", world.answer(second))
    };
    listed.extend(entries.into_iter().map(|entry| entry.3));
    listed.sort();
    let mut expected = vec![b"g".to_vec()];
    expected.extend(names.iter().map(|name| name.to_vec()));
    assert_eq!(listed, expected);
}

#[test]
fn a_listing_of_a_wide_directory_misses_no_new_name() {
    let mut world = World::daemons(2);
    let place = world.root().directory(ROOT, b"home").expect("made");
    let wide = world.root().wide(ROOT, b"wide").expect("made");
    let local = world.owner(ShardIndex(place.layout.place));
    // In a shard of the other daemon that is not its first.
    let is_remote = |world: &mut World, name: &[u8]| {
        let shard = world.shard_of_name(wide.inode, name);
        world.owner(shard) != local && shard.0 >= 512
    };
    let name = (b'a'..=b'z').map(|letter| [letter]).find(|name| is_remote(&mut world, name));
    let name = name.expect("a name of the other daemon");
    world.root().file(place.inode, b"f").expect("made");
    let request = Request::Rename {
        parent: place.inode,
        name: b"f",
        new_parent: wide.inode,
        new_name: &name,
        flags: 0,
    };
    let moved = world.send(Credentials::ROOT, ShardIndex(place.layout.place), &request);
    until_answered(&mut world, moved);
    let first = (0..512).map(ShardIndex).find(|&shard| world.owner(shard) != local);
    let parts = placement::locate::parts(&wide, 0);
    let part = parts.into_iter().find(|part| Some(part.shard) == first).expect("one");
    let (directory, after, last) = (wide.inode, part.after, part.last);
    let request = Request::ReadDirectory { directory, after, last, bytes: 8192 };
    let answer = world.call(Credentials::ROOT, part.shard, &request);
    let Answer::Entries(false, entries, next) = answer else { panic!("{answer:?}") };
    assert!(entries.is_empty());
    assert_eq!(next, world.shard_of_name(wide.inode, &name).0);
    world.settle();
    assert_eq!(world.root().list(wide.inode), [name.to_vec()]);
}

#[test]
fn a_listing_after_the_last_name_is_empty() {
    let mut world = World::single();
    world.root().file(ROOT, b"a").expect("made");
    for after in [u64::MAX >> 1, u64::MAX - 1, u64::MAX] {
        let request = Request::ReadDirectory { directory: ROOT, after, last: u64::MAX, bytes: 300 };
        let answer = world.call(Credentials::ROOT, ROOT.shard(), &request);
        assert_eq!(answer, Answer::Entries(false, vec![], wire::limits::SHARD_COUNT), "{after}");
    }
}

/// `relatime`: a read updates an access time that is not later than the last change, and nothing
/// else.
#[test]
fn a_read_updates_the_access_time_by_relatime() {
    let mut world = World::daemons(1);
    let file = world.root().file(ROOT, b"f").expect("made").inode;
    let read = |world: &mut World| {
        let request = Request::SetAttributes {
            inode: file,
            mask: set::READ,
            mode: 0,
            uid: 0,
            gid: 0,
            size: 0,
            accessed: 0,
            modified: 0,
        };
        // Any user with read permission may do this.
        world.call(Credentials::of(9, 9), file.shard(), &request).attributes()
    };
    let made = world.stat(file).expect("there");
    let first = read(&mut world);
    assert!(first.accessed > made.changed);
    assert_eq!((first.modified, first.changed), (made.modified, made.changed));
    assert_eq!(read(&mut world), first, "it was read since it was changed");
    world.now += 25 * 60 * 60 * 1_000_000_000;
    let next_day = read(&mut world);
    assert!(next_day.accessed > first.accessed);
    assert_eq!(next_day.changed, first.changed);
    world.crash(0);
    assert_eq!(world.stat(file), Ok(next_day));
}
