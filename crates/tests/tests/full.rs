//! A nearly full instance: space of files that were removed, or replaced by `rename`, is there for who
//! writes next, at once, though a mount looked at them, of this host or of another. Namespaces need
//! root, a mount needs `/dev/fuse`; without, the tests say so and state what is left.

mod support;

use std::path::Path;
use std::process::Command;
use support::agent::{Agent, Mount};
use support::mounted::{Mounted, Offered, has_fuse};
use support::world::World;
use support::{Instance, setting, text};

/// Writes a file of so many bytes and removes it, then one that a new one replaces, again and again.
const LOOP: &str = r#"
import os, sys
place, rounds, much, half = sys.argv[1], *map(int, sys.argv[2:])
def put(name, size):
    fd = os.open(name, os.O_CREAT | os.O_WRONLY)
    while size: size -= os.write(fd, bytes(min(size, 1 << 20)))
    os.close(fd)
for n in range(rounds):
    name = f'{place}/{n % 3}'
    put(name, much)
    os.unlink(name)
for n in range(rounds):
    put(place + '/new', half)
    os.rename(place + '/new', place + '/old')
os.unlink(place + '/old')
"#;

fn repeat(mut command: Command, at: &Path, daemons: u64, what: &str) {
    // Of 16 MiB at each daemon; chunks spread well, but not evenly.
    let mib = |part: u64| ((part * daemons) << 20).to_string();
    let rounds = setting("ROUNDS", 30).to_string();
    let words = [rounds, mib(11), mib(6)];
    let output = command.arg(LOOP).arg(at).args(words).output().expect("python3 runs");
    assert!(output.status.success(), "{what}: {}", text(&output.stderr));
}

/// "Space of a file that is gone is there for who writes next" (docs/semantics.md).
#[test]
fn a_full_instance_has_room_for_who_removed_a_file() {
    for daemons in [1, 4] {
        let count = daemons.to_string();
        let room = ["--memory", "16MiB", "--ssd", "0", "--chunk", "64KiB", "--local", &count];
        let instance = Instance::start(&format!("full-{daemons}"), &room);
        let program = instance.program(&["python3", "-c"]);
        repeat(program, Path::new("/forebay"), daemons, "preloaded");
        if !has_fuse() {
            continue;
        }
        for way in ["classic", "rings"] {
            if way == "classic" || Offered::can_be() {
                let mount = Mounted::by(&instance, way, way);
                let mut program = Command::new("python3");
                program.arg("-c");
                repeat(program, &mount.at, daemons, way);
            }
        }
    }
}

#[test]
fn and_so_it_has_where_a_mount_of_another_host_looked_at_the_file() {
    let room = [("FOREBAY_MEMORY", "16MiB"), ("FOREBAY_SSD", "0"), ("FOREBAY_CHUNK", "64KiB")];
    let Some(world) = World::started(&[&room[..], &[("FOREBAY_TIMEOUT", "10s")]].concat()) else {
        return;
    };
    let Some(mount) = Mount::new(&world, "b") else { return };
    let (mut far, mut near) = (Agent::on(&mount), Agent::preloaded(&world, "a", "/forebay"));
    near.ok("mkdir d");
    for round in 0..setting("ROUNDS", 30) / 3 {
        // Of four daemons' 64 MiB.
        for (name, size) in [("gone", 44 << 20), ("new", 24 << 20)] {
            near.ok(&format!("open f d/{name} c"));
            assert_eq!(near.ask(&format!("write f - 0 {size} 7")), "ok", "{name}, round {round}");
            near.ok("close f");
            if name == "gone" {
                far.ok("stat d/gone");
                near.ok("unlink d/gone");
            }
        }
        near.ok("rename d/new d/old");
        far.ok("stat d/old");
        far.ok("open f d/new c");
        assert_eq!(far.ask(&format!("write f - 0 {} 7", 24 << 20)), "ok", "round {round}");
        far.ok("close f");
        near.ok("rename d/new d/old");
        far.ok("stat d/old");
        near.ok("unlink d/old");
    }
    drop((far, near, mount));
    world.end();
}
