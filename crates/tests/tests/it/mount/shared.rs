//! The mount that all commands of a host share: what `forebay run` gives its command by default, so
//! that every kind of program sees the instance. Users other than root: `users`.
//!
//! Needs root, `/dev/fuse` and mount namespaces; without them the tests are skipped.

use super::commands::static_program;
use crate::support::mounted::{has_ended, has_fuse, is_mounted, umount};
use crate::support::world::{HOSTS, World};
use crate::support::{Instance, kill, profile, text, wait_for};
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// An instance of root whose commands see it at `at`, as by default.
fn start(name: &str, at: &Path) -> Option<Instance> {
    if !has_fuse() {
        return None;
    }
    let at = at.to_str().expect("text");
    let options = ["--memory", "32MiB", "--ssd", "0", "--at", at, "--access", "auto"];
    Some(Instance::start(name, &options))
}

fn run(instance: &Instance, words: &[&str]) -> Output {
    instance.program_by_default(words).output().expect("forebay runs")
}

fn printed(output: &Output) -> String {
    let errors = text(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert_eq!(errors, "");
    text(&output.stdout).trim().to_owned()
}

/// The mounts of the instance, as `status` reports them.
fn mounts(instance: &Instance) -> Vec<(String, i32, String)> {
    let output = instance.command("status").arg("--json").output().expect("forebay runs");
    let status: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let mounts = status["mounts"].as_array().expect("mounts").iter();
    let word = |value: &Value| value.as_str().expect("text").to_owned();
    let row = |mount: &Value| {
        let pid = i32::try_from(mount["pid"].as_i64().expect("a number")).expect("a pid");
        (word(&mount["at"]), pid, word(&mount["state"]))
    };
    mounts.map(row).collect()
}

#[test]
fn every_kind_of_program_sees_the_instance() {
    let place = tempfile::tempdir().expect("a directory");
    let at = place.path().join("at");
    let Some(instance) = start("kinds", &at) else { return };
    // `start` has mounted it, for the whole host, on a directory that it created.
    assert!(is_mounted(&at));
    let program = static_program(place.path());
    let (program, file) = (program.to_str().expect("text"), at.join("f"));
    let output = run(&instance, &[program, file.to_str().expect("text"), "static"]);
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(7), "static\n"));
    // Preloaded programs and all others see the same files.
    let script =
        format!("cat {0}/f; echo shell >{0}/g; {program} {0}/h more; ls {0}", at.display());
    assert_eq!(printed(&run(&instance, &["sh", "-c", &script])), "staticmore\nf\ng\nh");
    assert_eq!(std::fs::read(at.join("g")).expect("read"), b"shell\n");
    let found = mounts(&instance);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0].0.as_str(), found[0].2.as_str()), (at.to_str().expect("text"), "served"));
    drop(instance);
    assert!(has_ended(found[0].1));
    assert!(!at.exists(), "the directory was created for the mount");
}

/// "Nothing that the host has at the path is hidden from programs outside `forebay run`"
/// (docs/semantics/access.md).
#[test]
fn a_directory_with_files_or_another_mount_stays_visible_to_the_host() {
    let place = tempfile::tempdir().expect("a directory");
    let at = place.path().join("at");
    std::fs::create_dir(&at).expect("a directory");
    std::fs::write(at.join("own"), "of the host").expect("written");
    let Some(first) = start("apart", &at) else { return };
    let Some(second) = start("apart", &at) else { return };
    let list = format!("ls {}", at.display());
    for (instance, name) in [(&first, "one"), (&second, "two")] {
        let touch = format!("echo {name} >{}/{name}; {list}", at.display());
        assert_eq!(printed(&run(instance, &["sh", "-c", &touch])), name);
        // A static program, so that it is the kernel that shows the files.
        let all = ["busybox", "sh", "-c", &list];
        if Command::new("busybox").arg("true").output().is_ok() {
            assert_eq!(printed(&run(instance, &all)), name);
        }
    }
    assert!(!is_mounted(&at));
    assert_eq!(std::fs::read_to_string(at.join("own")).expect("read"), "of the host");
    // Commands of one instance share one namespace; nothing else changes for them.
    let script = "readlink /proc/self/ns/mnt /proc/self/ns/user /proc/self/ns/pid; id; pwd; umask";
    let own = Command::new("sh").args(["-c", script]).current_dir(place.path()).output();
    let own = printed(&own.expect("sh runs"));
    let of = |instance: &Instance| {
        let mut command = instance.program_by_default(&["sh", "-c", script]);
        printed(&command.current_dir(place.path()).output().expect("forebay runs"))
    };
    let (one, again, two) = (of(&first), of(&first), of(&second));
    assert_eq!(one, again);
    assert_ne!(one.lines().next(), two.lines().next());
    assert_ne!(one.lines().next(), own.lines().next());
    assert!(one.lines().skip(1).eq(own.lines().skip(1)), "{one}\n{own}");
    let pids: Vec<i32> =
        [&first, &second].map(mounts).iter().flatten().map(|mount| mount.1).collect();
    drop((first, second));
    assert!(pids.len() == 2 && pids.into_iter().all(has_ended));
    assert!(at.join("own").exists());
}

#[test]
fn a_mount_whose_program_was_killed_is_made_again_by_the_next_command() {
    let place = tempfile::tempdir().expect("a directory");
    let (host, private) = (place.path().join("host"), place.path().join("private"));
    std::fs::create_dir(&private).expect("a directory");
    std::fs::write(private.join("own"), "").expect("written");
    for at in [&host, &private] {
        let Some(instance) = start("remade", at) else { return };
        let file = at.join("f").display().to_string();
        printed(&run(&instance, &["sh", "-c", &format!("echo kept >{file}")]));
        let [(_, pid, _)] = mounts(&instance)[..] else { panic!("{:?}", mounts(&instance)) };
        kill(pid);
        wait_for("it is gone", || has_ended(pid));
        // Not preloaded, so that it is the mount that answers.
        let read = ["env", "LD_PRELOAD=", "cat", &file];
        assert_eq!(printed(&run(&instance, &read)), "kept");
        let found = mounts(&instance);
        assert!(found.len() == 1 && found[0].2 == "served" && found[0].1 != pid, "{found:?}");
        drop(instance);
        assert!(has_ended(found[0].1));
    }
    assert!(!host.exists());
}

/// "A mount whose program is killed comes back" (docs/semantics/access.md).
#[test]
fn a_killed_mount_comes_back_while_a_command_runs() {
    let place = tempfile::tempdir().expect("a directory");
    let (host, private) = (place.path().join("host"), place.path().join("private"));
    std::fs::create_dir(&private).expect("a directory");
    std::fs::write(private.join("own"), "").expect("written");
    for at in [&host, &private] {
        let Some(instance) = start("back", at) else { return };
        let [(_, pid, _)] = mounts(&instance)[..] else { panic!("{:?}", mounts(&instance)) };
        // Not preloaded, so that it is the mount that answers.
        let script = format!(
            "readlink /proc/self/ns/mnt; until grep back {}/f 2>/dev/null; do :; done",
            at.display()
        );
        let mut command = instance.program_by_default(&["env", "LD_PRELOAD=", "sh", "-c", &script]);
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut command = command.spawn().expect("forebay runs");
        let mut lines = BufReader::new(command.stdout.take().expect("a pipe")).lines();
        let namespace = lines.next().expect("a line").expect("text");
        kill(pid);
        let is_new = |(_, new, state): &(String, i32, String)| *new != pid && state == "served";
        wait_for("a new mount", || mounts(&instance).iter().any(is_new));
        // Later commands are in the same namespace as the one that runs.
        let script = format!("readlink /proc/self/ns/mnt; echo back >{}/f", at.display());
        assert_eq!(printed(&run(&instance, &["sh", "-c", &script])), namespace);
        assert_eq!(lines.next().expect("a line").expect("text"), "back");
        let mut errors = String::new();
        command.stderr.take().expect("a pipe").read_to_string(&mut errors).expect("text");
        assert!(command.wait().expect("it ends").success(), "{errors}");
        let expected = format!(
            "forebay run: the program of the mount on {} was killed: mounted again\n",
            at.display()
        );
        assert_eq!(errors, expected);
        // A stop also removes a mount whose program was killed.
        let [(_, pid, _)] = mounts(&instance)[..] else { panic!("{:?}", mounts(&instance)) };
        kill(pid);
        wait_for("it is gone", || has_ended(pid));
        drop(instance);
        assert!(!is_mounted(at));
    }
    assert!(!host.exists());
}

#[test]
fn the_ways_of_access_set_what_programs_need() {
    let place = tempfile::tempdir().expect("a directory");
    let at = place.path().join("at");
    let Some(instance) = start("ways", &at) else { return };
    let say = "echo ${FOREBAY_RUN:+preloaded} $FOREBAY_MOUNTED $FOREBAY_AT";
    let forebay = profile().join("forebay");
    let forebay = forebay.to_str().expect("text");
    let ways = ["auto", "mount", "preload"];
    let expected = ["preloaded 1", "1", "preloaded 0"];
    for (outer, outside) in ways.into_iter().zip(expected) {
        let said = |words: &[&str]| {
            let mut command = instance.command("run");
            command.args(["--access", outer, "--"]).args(words);
            printed(&command.output().expect("forebay runs"))
        };
        let shown = |expected: &str| format!("{expected} {}", at.display());
        assert_eq!(said(&["sh", "-c", say]), shown(outside));
        // The command of a command has what that one asks for.
        for (inner, inside) in ways.into_iter().zip(expected) {
            let words = [forebay, "run", "--access", inner, "--", "sh", "-c", say];
            assert_eq!(said(&words), shown(inside), "{outer} {inner}");
        }
    }
}

#[test]
fn daemons_that_a_command_starts_are_not_preloaded() {
    let place = tempfile::tempdir().expect("a directory");
    let Some(instance) = start("outer", &place.path().join("outer")) else { return };
    let (forebay, inner) = (profile().join("forebay"), format!("{}-inner", instance.name));
    let forebay = forebay.to_str().expect("text");
    let at = place.path().join("inner");
    let at = at.to_str().expect("text");
    let nested = |word: &str, options: &[&str]| {
        let words = [&[forebay, word, "--name", &inner], options].concat();
        let output = run(&instance, &words);
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    nested("start", &["--memory", "32MiB", "--ssd", "0", "--at", at]);
    let status: Value = serde_json::from_str(&nested("status", &["--json"])).expect("JSON");
    let pids = [&status["daemons"][0]["pid"], &status["mounts"][0]["pid"]];
    let environments = pids.map(|pid| std::fs::read(format!("/proc/{pid}/environ")));
    nested("stop", &[]);
    for environment in environments {
        let environment = text(&environment.expect("read"));
        let run = environment.split('\0').find_map(|entry| entry.strip_prefix("FOREBAY_RUN="));
        assert_eq!(run, Some(""), "{environment}");
    }
}

#[test]
fn a_command_of_a_command_and_another_name_of_the_path_reach_the_same_mount() {
    let place = tempfile::tempdir().expect("a directory");
    let real = place.path().join("real");
    std::fs::create_dir_all(real.join("at")).expect("a directory");
    std::fs::write(real.join("at/own"), "").expect("written");
    std::os::unix::fs::symlink(&real, place.path().join("link")).expect("a link");
    let at = place.path().join("link/at");
    let Some(instance) = start("same", &at) else { return };
    let program = static_program(place.path());
    let (forebay, file) = (profile().join("forebay"), at.join("f"));
    let [forebay, program, file] =
        [&forebay, &program, &file].map(|path| path.to_str().expect("text"));
    let output = run(&instance, &[forebay, "run", "--", program, file, "words"]);
    assert_eq!((output.status.code(), &*text(&output.stdout)), (Some(7), "words\n"));
    let other = real.join("at/f").display().to_string();
    let read = ["env", "LD_PRELOAD=", "cat", &other];
    assert_eq!(printed(&run(&instance, &read)), "words");
    let found = mounts(&instance);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].0, real.join("at").to_str().expect("text"));
    let refused = text(&umount(&instance, &at, &[]).stderr);
    assert!(refused.contains("only the commands of 'forebay run' see it"), "{refused}");
    assert!(real.join("at/own").exists() && !real.join("at/f").exists());
}

#[test]
fn an_instance_for_one_command_has_a_mount_and_leaves_nothing() {
    if !has_fuse() {
        return;
    }
    let place = tempfile::tempdir().expect("a directory");
    let program = static_program(place.path());
    let dir = tempfile::tempdir().expect("a directory");
    let at = dir.path().join("at");
    let mut command = Command::new(profile().join("forebay"));
    command.args(["run", "--memory", "32MiB", "--ssd", "0", "--at"]).arg(&at).arg("--");
    command.arg(&program).arg(at.join("f")).arg("words");
    command.env("XDG_RUNTIME_DIR", dir.path()).env_remove("FOREBAY_ACCESS");
    let output = command.output().expect("forebay runs");
    let errors = text(&output.stderr);
    assert_eq!((output.status.code(), &*text(&output.stdout)), (Some(7), "words\n"), "{errors}");
    assert!(errors.contains("one is made for this command") && errors.lines().count() == 1);
    let left: Vec<_> = std::fs::read_dir(dir.path()).expect("a listing").flatten().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_mount_made_before_is_used_and_stays() {
    let place = tempfile::tempdir().expect("a directory");
    let Some(instance) = start("before", &place.path().join("at")) else { return };
    let own = place.path().join("own");
    std::fs::create_dir(&own).expect("a directory");
    let output = instance.command("mount").arg(&own).output().expect("forebay runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let before = mounts(&instance);
    let file = own.join("f").display().to_string();
    let mut command = instance.command("run");
    command.args(["--access", "mount", "--at"]).arg(&own).args(["--", "sh", "-c"]);
    command.arg(format!("echo words >{file}; cat {file}"));
    assert_eq!(printed(&command.output().expect("forebay runs")), "words");
    assert_eq!(mounts(&instance), before);
    let output = umount(&instance, &own, &["--lazy"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// Removing a directory also unmounts what other mount namespaces have on it.
#[test]
fn an_instance_keeps_its_mount_when_the_one_that_created_the_directory_stops() {
    let place = tempfile::tempdir().expect("a directory");
    let at = place.path().join("at");
    let Some(first) = start("creator", &at) else { return };
    let Some(second) = start("keeper", &at) else { return };
    let before = mounts(&second);
    printed(&run(&second, &["sh", "-c", &format!("echo kept >{}/f", at.display())]));
    drop(first);
    assert!(at.exists() && !is_mounted(&at));
    let file = at.join("f").display().to_string();
    assert_eq!(printed(&run(&second, &["env", "LD_PRELOAD=", "cat", &file])), "kept");
    assert_eq!(mounts(&second), before);
    drop(second);
    assert!(!at.exists(), "the last one removes it");
}

#[test]
fn start_mounts_it_for_the_commands_of_each_host() {
    if !has_fuse() {
        return;
    }
    let Some(world) = World::new() else { return };
    let nodes = world.path("nodes").to_string_lossy().into_owned();
    let at = world.path("at").to_string_lossy().into_owned();
    std::fs::create_dir(&at).expect("a directory");
    let words = ["start", "--hosts", &nodes, "--access", "auto", "--at", &at];
    assert_eq!(text(&world.on("a", &words).stderr), "");
    let pids = HOSTS.map(|host| {
        let status: Value =
            serde_json::from_str(&world.ok(host, &["status", "--json"])).expect("JSON");
        let mount = &status["mounts"][0];
        assert_eq!((&mount["at"], &mount["state"]), (&(&*at).into(), &"served".into()));
        i32::try_from(mount["pid"].as_i64().expect("a number")).expect("a pid")
    });
    world.ok("a", &["stop"]);
    assert!(pids.into_iter().all(has_ended));
    std::fs::remove_dir(&at).expect("removed");
    world.assert_nothing_left();
}

#[test]
fn many_commands_at_once_make_one_mount() {
    let place = tempfile::tempdir().expect("a directory");
    let at: PathBuf = place.path().join("at");
    std::fs::create_dir(&at).expect("a directory");
    std::fs::write(at.join("own"), "").expect("written");
    if !has_fuse() {
        return;
    }
    let name = at.to_str().expect("text");
    let instance = Instance::start("many", &["--memory", "32MiB", "--ssd", "0", "--at", name]);
    assert_eq!(mounts(&instance), []);
    let write = |number: u32| {
        let script = format!("echo {number} >{}/f{number}", at.display());
        instance.program_by_default(&["sh", "-c", &script]).spawn().expect("forebay runs")
    };
    let all: Vec<_> = (0..8).map(write).collect();
    for mut one in all {
        assert!(one.wait().expect("it ends").success());
    }
    assert_eq!(mounts(&instance).len(), 1);
    assert_eq!(printed(&run(&instance, &["sh", "-c", &format!("ls {name} | wc -l")])), "8");
}

#[test]
fn a_host_without_fuse_gets_one_clear_line() {
    let place = tempfile::tempdir().expect("a directory");
    let Some(instance) = start("refused", &place.path().join("unused")) else { return };
    let at = place.path().join("at");
    let without = |access: &str, words: &[&str]| {
        let script = "mount --bind /dev/null /dev/fuse && exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", script, "sh"]).arg(profile().join("forebay"));
        let started = instance.command("run");
        command.args(started.get_args()).args(["--access", access, "--at"]).arg(&at).arg("--");
        for (name, value) in started.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let output = command.args(words).output().expect("unshare runs");
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let device = "/dev/fuse is not the device of FUSE here";
    let (code, printed, errors) = without("auto", &["echo", "seen"]);
    assert_eq!((code, printed.as_str()), (Some(0), "seen\n"));
    assert!(errors.contains(device) && errors.lines().count() == 1, "{errors}");
    assert!(
        errors.starts_with("forebay run: only programs that use the C library see "),
        "{errors}"
    );
    let program = static_program(place.path());
    let (code, _, errors) = without("auto", &[program.to_str().expect("text"), "f", "text"]);
    assert!(code == Some(126) && errors.contains("static"), "{code:?}: {errors}");
    let (code, printed, errors) = without("mount", &["echo", "seen"]);
    assert_eq!((code, printed.as_str()), (Some(1), ""));
    assert!(errors.contains(device) && errors.lines().count() == 1, "{errors}");
    assert_eq!(without("preload", &["echo", "seen"]), (Some(0), "seen\n".into(), String::new()));
    assert!(!at.exists(), "a directory that was created in vain is removed");
}
