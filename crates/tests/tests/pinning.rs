//! Pinned files stay in memory: while much more than it is written, by whomever they are written, and
//! when daemons die; what is let go leaves as any.

mod support;

use serde_json::Value;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use support::agent::Agent;
use support::mounted::{Mounted, has_fuse};
use support::world::World;
use support::{Instance, text, wait_for};
use tests::{content, digest};

const MIB: u64 = 1 << 20;
const FILE: u64 = 8 * MIB;

/// `forebay pin` or `unpin`.
fn say(instance: &Instance, word: &str, paths: &[&str]) -> Result<(), String> {
    let output = instance.command(word).args(paths).output().expect("it runs");
    if output.status.success() { Ok(()) } else { Err(text(&output.stderr)) }
}

fn is_pinned(instance: &Instance, path: &str) -> String {
    let mut command = Command::new(support::profile().join("forebay"));
    command.args(["layout", "get", "--json", path]).env("FOREBAY_NAME", &instance.name);
    let output = command.env("XDG_RUNTIME_DIR", instance.place.path()).output().expect("it runs");
    let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    said["pinned"].as_str().expect("a word").to_owned()
}

/// "What is pinned stays in memory" (docs/semantics.md).
#[test]
fn what_is_pinned_stays_until_it_is_let_go() {
    let options = ["--memory", "32MiB", "--ssd", "512MiB", "--room", "60", "--idle", "1ms"];
    let instance = Instance::start("pinned", &options);
    let mut worker = instance.worker();
    let put = |worker: &mut support::Worker, name: &str, seed: u64| {
        assert_eq!(worker.ask(&format!("put /forebay/{name} {seed} {FILE}")), "ok");
    };
    let flood = |worker: &mut support::Worker| {
        for file in 0..16 {
            put(worker, &format!("f{file}"), file);
        }
        // All but what memory has room for beside the pinned file.
        wait_for("sinking", || {
            let used = instance.figure("ssd_total") - instance.figure("ssd_free");
            used >= 16 * FILE - 24 * MIB
        });
    };
    let drain = |worker: &mut support::Worker| {
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

    // Pinned again, it comes back although nobody uses it.
    assert_eq!(say(&instance, "pin", &["/forebay/d/e/pinned"]), Ok(()));
    wait_for("the file in memory", || instance.figure("bytes_pinned") == FILE);
    assert_eq!(worker.ask("get /forebay/d/e/pinned"), right);
    assert_eq!(worker.ask("unlink /forebay/d/e/pinned"), "ok");
    wait_for("all space back", || instance.used() == 0);
    assert_eq!(instance.figure("bytes_pinned"), 0);
    let absent = say(&instance, "pin", &["/forebay/absent"]).expect_err("it is not there");
    assert!(absent.contains("no such file or directory"), "{absent}");
}

/// "What is made in a pinned directory is pinned" (docs/semantics.md).
/// Small files get their first pieces before they are made, and take no message to be written.
#[test]
fn small_files_of_a_pinned_directory_are_pinned() {
    let instance = Instance::start("small", &["--memory", "32MiB", "--ssd", "64MiB"]);
    let mut worker = instance.worker();
    assert_eq!(worker.ask("mkdir /forebay/d"), "ok");
    assert_eq!(say(&instance, "pin", &["/forebay/d"]), Ok(()));
    for file in 0..500 {
        assert_eq!(worker.ask(&format!("put /forebay/d/f{file} {file} 3000")), "ok");
    }
    wait_for("all pinned", || instance.figure("bytes_pinned") == 500 * 4096);
}

/// "Only owners and root pin" (docs/semantics.md): also by the extended attribute, on a mount.
#[test]
fn only_owners_and_root_may_pin_a_file() {
    if !rustix::process::geteuid().is_root() || !has_fuse() {
        return eprintln!("not root or no /dev/fuse: nothing was tested");
    }
    let instance = Instance::start("owners", &["--memory", "32MiB", "--ssd", "64MiB"]);
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(instance.place.path(), open).expect("changed");
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
    wait_for("it to be let go", || instance.figure("bytes_pinned") == 0);
}

/// What other hosts write is told with the bytes.
#[test]
fn what_other_hosts_write_is_pinned() {
    let Some(world) = World::started(&[("FOREBAY_INLINE", "0")]) else { return };
    let mut seats = ["a", "b"].map(|host| Agent::preloaded(&world, host, "/forebay"));
    seats[0].ok("mkdir d");
    world.ok("a", &["pin", "/forebay/d"]);
    let pinned = || -> u64 {
        let hosts = ["a", "b", "c"].iter();
        hosts.map(|host| world.daemon(host)["state"]["bytes_pinned"].as_u64().expect("bytes")).sum()
    };
    for file in 0..12 {
        seats[1].ok(&format!("open f d/f{file} c"));
        seats[1].ok(&format!("write f d/f{file} 0 60000 7"));
        seats[1].ok("close f");
    }
    wait_for("all of both hosts pinned", || {
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
    wait_for("all to be let go", || pinned() == 0);
    drop(seats);
    world.end();
}
