//! Pinned files stay in memory: while more data than memory is written, whichever host writes them,
//! and when daemons die; unpinned files are demoted like any other.

use crate::support::agent::Agent;
use crate::support::mounted::{Mounted, has_fuse};
use crate::support::world::World;
use crate::support::{Instance, skip, text, wait_for};
use serde_json::Value;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use testkit::{content, digest};

const MIB: u64 = 1 << 20;
const FILE: u64 = 8 * MIB;

/// `forebay pin` or `unpin`.
fn say(instance: &Instance, word: &str, paths: &[&str]) -> Result<(), String> {
    let output = instance.command(word).args(paths).output().expect("it runs");
    if output.status.success() { Ok(()) } else { Err(text(&output.stderr)) }
}

fn is_pinned(instance: &Instance, path: &str) -> String {
    let mut command = Command::new(crate::support::profile().join("forebay"));
    command.args(["layout", "get", "--json", path]).env("FOREBAY_NAME", &instance.name);
    let output = command.env("XDG_RUNTIME_DIR", instance.dir.path()).output().expect("it runs");
    let printed: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    printed["pinned"].as_str().expect("a word").to_owned()
}

#[rustfmt::skip]
const OPTIONS: [&str; 8] = [
    "--memory", "32MiB", "--ssd", "512MiB",
    "--demote-low-watermark", "60", "--demote-idle-age", "1ms",
];

/// "Pinned files stay in memory" (docs/semantics/durability.md).
#[test]
fn pinned_files_stay_in_memory_until_unpinned() {
    let instance = Instance::start("pinned", &OPTIONS);
    let mut worker = instance.worker();
    let put = |worker: &mut crate::support::Worker, name: &str, seed: u64| {
        assert_eq!(worker.ask(&format!("put /forebay/{name} {seed} {FILE}")), "ok");
    };
    let flood = |worker: &mut crate::support::Worker| {
        for file in 0..16 {
            put(worker, &format!("f{file}"), file);
        }
        // Everything that does not fit memory beside the pinned file.
        wait_for("demotion", || {
            let used = instance.figure("ssd_total") - instance.figure("ssd_free");
            used >= 16 * FILE - 24 * MIB
        });
    };
    let drain = |worker: &mut crate::support::Worker| {
        for file in 0..16 {
            assert_eq!(worker.ask(&format!("unlink /forebay/f{file}")), "ok");
        }
    };
    let right = format!("ok {FILE} {}", digest(&content(99, 0, FILE)));

    assert_eq!(worker.ask("mkdir /forebay/d"), "ok");
    assert_eq!(worker.ask("mkdir /forebay/d/old"), "ok");
    assert_eq!(say(&instance, "pin", &["/forebay/d"]), Ok(()));
    assert_eq!(worker.ask("mkdir /forebay/d/e"), "ok");
    put(&mut worker, "d/e/pinned", 99);
    for (path, word) in [("d", "yes"), ("d/e", "yes"), ("d/e/pinned", "yes"), ("d/old", "no")] {
        assert_eq!(is_pinned(&instance, &format!("/forebay/{path}")), word, "{path}");
    }
    flood(&mut worker);
    wait_for("the pinned file in memory", || instance.figure("bytes_pinned") == FILE);
    drain(&mut worker);
    wait_for("the others gone", || instance.figure("memory_used") == FILE);

    // A kill changes nothing.
    let daemon = instance.daemon(0);
    daemon.kill();
    daemon.wait();
    instance.start_again();
    flood(&mut worker);
    wait_for("the pinned file in memory", || instance.figure("bytes_pinned") == FILE);
    assert_eq!(worker.ask("get /forebay/d/e/pinned"), right);

    assert_eq!(say(&instance, "unpin", &["/forebay/d/e/pinned"]), Ok(()));
    wait_for("nothing pinned", || instance.figure("bytes_pinned") == 0);
    drain(&mut worker);
    flood(&mut worker);
    drain(&mut worker);
    wait_for("the file on the SSD", || instance.figure("memory_used") == 0);

    // Pinned again, it is promoted although nothing accesses it.
    assert_eq!(say(&instance, "pin", &["/forebay/d/e/pinned"]), Ok(()));
    wait_for("the file in memory", || instance.figure("bytes_pinned") == FILE);
    assert_eq!(worker.ask("get /forebay/d/e/pinned"), right);
    assert_eq!(worker.ask("unlink /forebay/d/e/pinned"), "ok");
    wait_for("all space to be freed", || instance.used() == 0);
    wait_for("the counter to follow", || instance.figure("bytes_pinned") == 0);
    let absent = say(&instance, "pin", &["/forebay/absent"]).expect_err("it is not there");
    assert!(absent.contains("no such file or directory"), "{absent}");
}

/// "New entries of a pinned directory are pinned" (docs/semantics/durability.md). The first extents
/// of small files are preallocated, so writing them takes no message.
#[test]
fn small_files_of_a_pinned_directory_are_pinned() {
    let instance = Instance::start("small", &["--memory", "32MiB", "--ssd", "64MiB"]);
    let mut worker = instance.worker();
    assert_eq!(worker.ask("mkdir /forebay/d"), "ok");
    assert_eq!(say(&instance, "pin", &["/forebay/d"]), Ok(()));
    for file in 0..500 {
        assert_eq!(worker.ask(&format!("put /forebay/d/f{file} {file} 3000")), "ok");
    }
    wait_for("all to be pinned", || instance.figure("bytes_pinned") == 500 * 4096);
}

/// "Only the owner and root may pin" (docs/semantics/durability.md): also by the extended
/// attribute, on a mount.
#[test]
fn only_owners_and_root_may_pin_a_file() {
    if !rustix::process::geteuid().is_root() || !has_fuse() {
        return skip("root and /dev/fuse are needed");
    }
    let instance = Instance::start("owners", &["--memory", "32MiB", "--ssd", "64MiB"]);
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(instance.dir.path(), open).expect("changed");
    let mounted = Mounted::new(&instance, "m");
    let path = mounted.path("f");
    std::fs::write(&path, b"bytes of Ann").expect("written");
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o666))
        .expect("changed");
    std::os::unix::fs::chown(&path, Some(1001), Some(1001)).expect("root may");
    let python = |uid: u32, code: &str| {
        let mut command = Command::new("python3");
        let script = format!("import os\np, k = {path:?}, 'user.forebay.pinned'\n{code}");
        let output = command.args(["-c", &script]).uid(uid).gid(uid).current_dir("/");
        let output = output.output().expect("it runs");
        format!("{}{}", text(&output.stdout), text(&output.stderr))
    };
    let set = "try: os.setxattr(p, k, b'yes')\nexcept OSError as e: print(e.errno)\n\
               print(os.getxattr(p, k))";
    assert_eq!(python(1002, set), "1\nb'no'\n");
    assert_eq!(instance.figure("bytes_pinned"), 0);
    assert_eq!(python(1001, set), "b'yes'\n");
    wait_for("it to be pinned", || instance.figure("bytes_pinned") > 0);
    let wrong = "try: os.setxattr(p, k, b'1')\nexcept OSError as e: print(e.errno)";
    assert_eq!(python(1001, wrong), "22\n");
    assert_eq!(python(1001, "os.setxattr(p, k, b'no')\nprint(os.getxattr(p, k))"), "b'no'\n");
    wait_for("it to be unpinned", || instance.figure("bytes_pinned") == 0);
}

/// Writes of other hosts carry the pinned flag with the bytes.
#[test]
fn writes_of_other_hosts_are_pinned() {
    let Some(world) = World::started(&[("FOREBAY_INLINE", "0")]) else { return };
    let mut agents = ["a", "b"].map(|host| Agent::preloaded(&world, host, "/forebay"));
    agents[0].ok("mkdir d");
    world.ok("a", &["pin", "/forebay/d"]);
    let pinned = || -> u64 {
        let hosts = ["a", "b", "c"].iter();
        hosts.map(|host| world.daemon(host)["state"]["bytes_pinned"].as_u64().expect("bytes")).sum()
    };
    for file in 0..12 {
        agents[1].ok(&format!("open f d/f{file} c"));
        agents[1].ok(&format!("write f d/f{file} 0 60000 7"));
        agents[1].ok("close f");
    }
    wait_for("all of both hosts to be pinned", || {
        let is_pinned = |host: &str| {
            let state = &world.daemon(host)["state"];
            state["bytes_pinned"].as_u64() > Some(0)
                && state["bytes_pinned"] == state["memory_used"]
        };
        is_pinned("a") && is_pinned("b")
    });
    for file in 0..12 {
        world.ok("b", &["unpin", &format!("/forebay/d/f{file}")]);
    }
    wait_for("all to be unpinned", || pinned() == 0);
    drop(agents);
    world.end();
}
