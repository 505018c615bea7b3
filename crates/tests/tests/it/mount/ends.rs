//! Impossible mounts and unmounts, and the ends of mounts: each refusal is one line that says what
//! to do, and no end of a mount leaves anything behind or blocks anything.
//!
//! Needs root and `/dev/fuse`; without them the tests are skipped.

use crate::support::mounted::{
    Mounted, has_ended, has_fuse, is_dead, is_mounted, try_mount, umount, umount_idle,
};
use crate::support::{Instance, kill, text, wait_for};
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// The one line that a refused command prints.
fn printed(output: &Output) -> String {
    let printed = text(&output.stderr);
    assert!(!output.status.success() && printed.lines().count() == 1, "{printed}");
    printed
}

fn assert_said(output: &Output, parts: &[&str]) {
    let printed = printed(output);
    assert!(parts.iter().all(|part| printed.contains(part)), "no {parts:?} in {printed}");
}

fn assert_done(output: &Output) {
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// The server of an unmounted mount has ended, or ends with the last mount namespace that
/// concurrent tests created meanwhile.
fn assert_ends(mounted: &Mounted<'_>) {
    wait_for("the end of its server", || has_ended(mounted.pid));
}

/// A script in a mount namespace of its own, as root there.
fn apart(instance: &Instance, script: &str) -> Output {
    let mut forebay = instance.command("mount");
    forebay.arg(instance.dir.path().join("apart"));
    let words = std::iter::once(forebay.get_program()).chain(forebay.get_args());
    let variables = forebay.get_envs().filter_map(|(name, value)| Some((name, value?)));
    Command::new("unshare")
        .args(["-m", "sh", "-c", script])
        .args(words)
        .envs(variables)
        .output()
        .expect("unshare runs")
}

#[test]
fn an_impossible_mount_is_refused_in_one_line() {
    if !has_fuse() {
        return;
    }
    let instance = Instance::start("bad", &["--memory", "64MiB"]);
    let other = Instance::start("other", &["--memory", "64MiB"]);
    let dir = instance.dir.path();
    assert_said(&try_mount(&instance, &dir.join("absent")), &["no such directory", "create it"]);
    let deep = dir.join("absent/inside");
    assert_said(&try_mount(&instance, &deep), &["no such directory", "create it first"]);
    fs::write(dir.join("file"), "").expect("written");
    assert_said(&try_mount(&instance, &dir.join("file")), &["is not a directory"]);
    assert_said(&try_mount(&instance, Path::new("/")), &["use a directory in it"]);
    assert_said(&try_mount(&instance, Path::new("/proc")), &["/proc already has a mount of proc"]);
    let mounted = Mounted::new(&instance, "m");
    let already = format!("already has a mount of instance {}", instance.name);
    assert_said(&try_mount(&instance, &mounted.at), &[&already]);
    // The mount is in another user's directory of records, so its instance is not known.
    assert_said(&try_mount(&other, &mounted.at), &["already has a mount of an instance"]);
    // Another name of the same mount point.
    symlink(&mounted.at, dir.join("link")).expect("a link");
    assert_said(&try_mount(&instance, &dir.join("link")), &[&already]);
    // At another path it may be mounted once more.
    let second = Mounted::new(&instance, "n");
    fs::write(second.path("f"), "x").expect("written");
    assert_eq!(fs::read(mounted.path("f")).expect("read"), b"x");
    let nobody = Command::new(crate::support::profile().join("forebay"))
        .args(["mount", "--name", "no-such-instance"])
        .arg(&second.at)
        .env("XDG_RUNTIME_DIR", dir)
        .output()
        .expect("forebay runs");
    assert_said(&nobody, &["no such instance: no-such-instance"]);
    kill(second.pid);
    wait_for("the end of its mount", || is_dead(&second.at));
    assert_said(&try_mount(&instance, &second.at), &["whose program is gone", "forebay umount"]);
}

#[test]
fn a_missing_fuse_device_is_reported_in_one_line() {
    if !has_fuse() || !rustix::process::geteuid().is_root() {
        return;
    }
    let instance = Instance::start("device", &["--memory", "64MiB"]);
    fs::create_dir(instance.dir.path().join("apart")).expect("a directory");
    let without =
        "mkdir $FOREBAY_DIR/dev && mount --bind /dev $FOREBAY_DIR/dev && mount -t tmpfs dev /dev &&
        mkdir /dev/shm && mount --bind $FOREBAY_DIR/dev/shm /dev/shm && touch /dev/null &&
        mount --bind $FOREBAY_DIR/dev/null /dev/null && exec $0 \"$@\"";
    let output = apart(&instance, without);
    assert_said(&output, &["there is no /dev/fuse here", "load the module fuse"]);
    let another = "mount --bind /dev/null /dev/fuse && exec $0 \"$@\"";
    assert_said(&apart(&instance, another), &["is not the device of FUSE here", "load the module"]);
    // Root without the right to mount, as in most containers.
    let tied = "setpriv=$(command -v setpriv); PATH=/nowhere
        exec $setpriv --bounding-set -sys_admin --inh-caps -sys_admin $0 \"$@\"";
    assert_said(&apart(&instance, tied), &["takes the rights of root, or fusermount3", "missing"]);
}

#[test]
fn an_impossible_unmount_is_refused_in_one_line() {
    if !has_fuse() || !rustix::process::geteuid().is_root() {
        return;
    }
    let instance = Instance::start("unmount", &["--memory", "64MiB"]);
    let mounted = Mounted::new(&instance, "m");
    let busy = |parts: &[&str]| assert_said(&umount(&instance, &mounted.at, &[]), parts);
    let in_use = format!("(process {})", std::process::id());
    let open = File::create(mounted.path("open")).expect("made");
    busy(&["cannot unmount", "in use by ", &in_use, "or give --lazy"]);
    drop(open);
    let mut inside =
        Command::new("sleep").arg("60").current_dir(&mounted.at).spawn().expect("sleep");
    busy(&[&format!("in use by sleep (process {})", inside.id())]);
    inside.kill().and_then(|()| inside.wait()).expect("it ends");
    fs::create_dir(mounted.path("inside")).expect("made");
    let tmpfs = |words: &[&str]| {
        let status = Command::new(words[0]).args(&words[1..]).arg(mounted.path("inside")).status();
        assert!(status.expect("it runs").success());
    };
    tmpfs(&["mount", "-t", "tmpfs", "tmpfs"]);
    busy(&["/m/inside is mounted in it: unmount that first"]);
    assert_said(&umount(&instance, &mounted.path("inside"), &[]), &["it is a mount of tmpfs"]);
    tmpfs(&["umount"]);
    assert_done(&umount_idle(&instance, &mounted.at));
    assert_ends(&mounted);
    assert_said(&umount(&instance, &mounted.at, &[]), &["nothing is mounted there"]);
}

#[test]
fn a_lazy_unmount_still_serves_open_files() {
    if !has_fuse() {
        return;
    }
    let instance = Instance::start("lazy", &["--memory", "64MiB"]);
    let mounted = Mounted::new(&instance, "m");
    let mut open = File::options()
        .create_new(true)
        .read(true)
        .write(true)
        .open(mounted.path("open"))
        .expect("made");
    assert_done(&umount(&instance, &mounted.at, &["--lazy"]));
    assert!(!is_mounted(&mounted.at));
    assert_eq!(instance.status()["mounts"][0]["state"], "leaving");
    open.write_all(b"still served").expect("written");
    drop(open);
    assert_ends(&mounted);
    let mounted = Mounted::new(&instance, "m");
    assert_eq!(fs::read(mounted.path("open")).expect("read"), b"still served");
}

#[test]
fn a_mount_copied_to_another_namespace_is_served_until_the_stop() {
    if !has_fuse() || !rustix::process::geteuid().is_root() {
        return;
    }
    let instance = Instance::start("copy", &["--memory", "64MiB"]);
    let mounted = Mounted::new(&instance, "m");
    fs::write(mounted.path("f"), "x").expect("written");
    let read = "echo there; while read name; do echo $(cat $name 2>&1); done";
    let mut other = Command::new("unshare")
        .args(["-m", "sh", "-c", read])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("unshare runs");
    let mut input = other.stdin.take().expect("a pipe");
    let mut output = BufReader::new(other.stdout.take().expect("a pipe")).lines();
    let mut line = || output.next().and_then(Result::ok).unwrap_or_default();
    assert_eq!(line(), "there");
    // The command does not wait for the end of the server, which would take half a minute.
    let done = umount_idle(&instance, &mounted.at);
    assert_done(&done);
    let printed = text(&done.stdout);
    assert!(printed.contains("still has it in another mount namespace"), "{printed}");
    assert!(!has_ended(mounted.pid) && !is_mounted(&mounted.at));
    fs::write(mounted.at.join("f"), "inside").expect("written");
    let name = format!("{}\n", mounted.path("f").display());
    input.write_all(name.as_bytes()).expect("asked");
    assert_eq!(line(), "x");
    assert_done(&instance.command("stop").args(["--timeout", "60min"]).output().expect("it runs"));
    input.write_all(name.as_bytes()).expect("asked");
    let printed = line();
    // Not connected, or the connection was aborted.
    let ends = ["Transport endpoint is not connected", "Software caused connection abort"];
    assert!(ends.iter().any(|end| printed.contains(end)), "{printed}");
    drop(input);
    other.wait().expect("it ends");
    instance.start_again();
}

#[test]
fn a_stop_does_not_wait_for_programs_on_the_mount() {
    if !has_fuse() {
        return;
    }
    let instance = Instance::start("stop", &["--memory", "64MiB"]);
    let (idle, used) = (Mounted::new(&instance, "idle"), Mounted::new(&instance, "used"));
    let left = Mounted::new(&instance, "left");
    let mut files: Vec<File> = [&used, &left]
        .map(|mounted| {
            let mut options = File::options();
            let name = mounted.path("open");
            let mut file = options.create(true).truncate(false).read(true).write(true).open(name);
            file.as_mut().expect("open").write_all(b"x").expect("written");
            file.expect("open")
        })
        .into();
    assert_done(&umount(&instance, &left.at, &["--lazy"]));
    // Waiting for the programs would take an hour.
    let output =
        instance.command("stop").args(["--timeout", "60min"]).output().expect("forebay runs");
    assert_done(&output);
    for file in &mut files {
        let error = file.read(&mut [0]).expect_err("it is gone");
        // Not connected, or the connection was aborted.
        assert!(matches!(error.raw_os_error(), Some(107 | 103)), "{error}");
    }
    for mounted in [idle, used, left] {
        assert_eq!(fs::read_dir(&mounted.at).expect("a plain directory again").count(), 0);
        assert!(has_ended(mounted.pid), "its server has ended");
    }
    instance.start_again();
}

#[test]
fn a_killed_mount_leaves_nothing_behind() {
    if !has_fuse() {
        return;
    }
    let instance = Instance::start("killed", &["--memory", "64MiB"]);
    let files = instance.files();
    let mounted = Mounted::new(&instance, "m");
    let mut open = File::create_new(mounted.path("gone")).expect("made");
    open.write_all(&vec![1; 3_000_000]).expect("written");
    open.lock().expect("locked");
    fs::remove_file(mounted.path("gone")).expect("removed");
    assert!(instance.used() > 0, "it is open");
    kill(mounted.pid);
    wait_for("the end of its mount", || is_dead(&mounted.at));
    let error = open.write(b"x").expect_err("nobody serves it");
    assert_eq!(error.raw_os_error(), Some(107), "{error}");
    assert_eq!(instance.status()["mounts"][0]["state"], "dead");
    // Also while programs still have files open, which fail from then on.
    assert_done(&umount(&instance, &mounted.at, &["--lazy"]));
    assert_eq!(fs::read_dir(&mounted.at).expect("a plain directory again").count(), 0);
    instance.assert_nothing_left(files, "killed");
    let mounted = Mounted::new(&instance, "m");
    kill(mounted.pid);
    wait_for("the end of its mount", || is_dead(&mounted.at));
    assert_done(&umount_idle(&instance, &mounted.at));
    assert!(!is_mounted(&mounted.at));
    assert_eq!(instance.status()["mounts"].as_array().map(Vec::len), Some(0));
    // A mount that is still there ends with the instance.
    let mounted = Mounted::new(&instance, "m");
    kill(mounted.pid);
    wait_for("the end of its mount", || is_dead(&mounted.at));
    assert_done(&instance.command("stop").output().expect("forebay runs"));
    assert!(!is_mounted(&mounted.at));
    instance.start_again();
}

/// The server that a command started, as soon as it exists.
fn server_of(command: &mut Child) -> i32 {
    let children = format!("/proc/{0}/task/{0}/children", command.id());
    loop {
        let pids = fs::read_to_string(&children).unwrap_or_default();
        if let Some(pid) = pids.split_whitespace().next() {
            return pid.parse().expect("a pid");
        }
        // On a busy machine the command may have ended before its child was looked for: then it says
        // which process serves the mount.
        if let Some(status) = command.try_wait().expect("a child") {
            let mut printed = String::new();
            let mut output = command.stdout.take().expect("piped");
            std::io::Read::read_to_string(&mut output, &mut printed).expect("read");
            assert!(status.success(), "it started no server: {printed}");
            let printed: serde_json::Value = serde_json::from_str(&printed).expect("JSON");
            return printed["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).expect("a pid");
        }
    }
}

#[test]
fn a_mount_killed_during_startup_leaves_nothing() {
    if !has_fuse() {
        return;
    }
    let instance = Instance::start("early", &["--memory", "64MiB"]);
    let at = instance.dir.path().join("m");
    fs::create_dir(&at).expect("made");
    let mut begun = 0;
    for millis in (0..80).step_by(4) {
        let mut command = instance.command("mount");
        command.args(["--for-all", "--json"]).arg(&at);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut command = command.spawn().expect("forebay runs");
        let pid = server_of(&mut command);
        std::thread::sleep(Duration::from_millis(millis));
        kill(pid);
        let output = command.wait_with_output().expect("it ends");
        let printed = format!("{}{}", text(&output.stdout), text(&output.stderr));
        // It may also end between its message and the check of its process.
        let ended = [
            "was killed by SIGKILL (signal 9)",
            "ended before it was ready",
            "ended immediately after it was ready",
        ];
        assert!(
            output.status.success() || ended.iter().any(|how| printed.contains(how)),
            "{printed}"
        );
        wait_for("the end of the new server", || has_ended(pid));
        if is_mounted(&at) {
            begun += 1;
            assert_done(&umount_idle(&instance, &at));
        }
        assert_eq!(fs::read_dir(&at).expect("a plain directory").count(), 0);
    }
    println!("{begun} of 20 were mounted");
    let mounted = Mounted::new(&instance, "m");
    fs::write(mounted.path("f"), b"x").expect("written");
}
