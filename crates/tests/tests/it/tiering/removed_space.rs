//! A nearly full instance: space of files that were removed, or replaced by `rename`, is available
//! to the next writer at once, although a mount of this host or of another has looked at them.
//! Network namespaces need root, a mount needs `/dev/fuse`; without them the tests check less.

use crate::support::agent::{Agent, Mount};
use crate::support::mounted::{Mounted, UringEnabled, has_fuse};
use crate::support::world::World;
use crate::support::{Instance, text};
use std::path::Path;
use std::process::Command;

/// Writes a file of `size` bytes and removes it, then a file that a new one replaces, again and
/// again.
const LOOP: &str = r#"
import os, sys
directory, rounds, size, new_size = sys.argv[1], *map(int, sys.argv[2:])
def put(name, left):
    fd = os.open(name, os.O_CREAT | os.O_WRONLY)
    while left: left -= os.write(fd, bytes(min(left, 1 << 20)))
    os.close(fd)
for n in range(rounds):
    name = f'{directory}/{n % 3}'
    put(name, size)
    os.unlink(name)
for n in range(rounds):
    put(directory + '/new', new_size)
    os.rename(directory + '/new', directory + '/old')
os.unlink(directory + '/old')
"#;

fn repeat(mut command: Command, at: &Path, daemons: u64, what: &str) {
    // Of 16 MiB at each daemon; stripes are spread well, but not evenly.
    let mib = |part: u64| ((part * daemons) << 20).to_string();
    let rounds = testkit::rounds(15).to_string();
    let words = [rounds, mib(11), mib(6)];
    let output = command.arg(LOOP).arg(at).args(words).output().expect("python3 runs");
    assert!(output.status.success(), "{what}: {}", text(&output.stderr));
}

/// "Space of removed files is free for the next writer" (docs/semantics/durability.md).
#[test]
fn space_of_removed_files_is_free_for_the_next_writer() {
    for daemons in [1, 4] {
        let count = daemons.to_string();
        let options =
            ["--memory", "16MiB", "--ssd", "0", "--stripe-size", "64KiB", "--local", &count];
        let instance = Instance::start(&format!("full-{daemons}"), &options);
        let program = instance.program(&["python3", "-c"]);
        repeat(program, Path::new("/forebay"), daemons, "preloaded");
        if !has_fuse() {
            continue;
        }
        for transport in ["classic", "rings"] {
            if transport == "classic" || UringEnabled::is_available() {
                let mount = Mounted::by(&instance, transport, transport);
                let mut program = Command::new("python3");
                program.arg("-c");
                repeat(program, &mount.at, daemons, transport);
            }
        }
    }
}

#[test]
fn space_of_removed_files_is_free_though_a_remote_mount_looked_at_them() {
    let options =
        [("FOREBAY_MEMORY", "16MiB"), ("FOREBAY_SSD", "0"), ("FOREBAY_STRIPE_SIZE", "64KiB")];
    let Some(world) = World::started(&[&options[..], &[("FOREBAY_TIMEOUT", "10s")]].concat())
    else {
        return;
    };
    let Some(mount) = Mount::new(&world, "b") else { return };
    let (mut remote, mut local) = (Agent::on(&mount), Agent::preloaded(&world, "a", "/forebay"));
    local.ok("mkdir d");
    for round in 0..testkit::rounds(15) / 3 {
        // Of four daemons' 64 MiB.
        for (name, size) in [("gone", 44 << 20), ("new", 24 << 20)] {
            local.ok(&format!("open f d/{name} c"));
            assert_eq!(local.ask(&format!("write f - 0 {size} 7")), "ok", "{name}, round {round}");
            local.ok("close f");
            if name == "gone" {
                remote.ok("stat d/gone");
                local.ok("unlink d/gone");
            }
        }
        local.ok("rename d/new d/old");
        remote.ok("stat d/old");
        remote.ok("open f d/new c");
        assert_eq!(remote.ask(&format!("write f - 0 {} 7", 24 << 20)), "ok", "round {round}");
        remote.ok("close f");
        local.ok("rename d/new d/old");
        remote.ok("stat d/old");
        local.ok("unlink d/old");
    }
    drop((remote, local, mount));
    world.end();
}
