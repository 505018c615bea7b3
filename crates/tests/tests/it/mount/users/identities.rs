//! Callers that are others in the instance than on the host: `--root-squash`, `--map-uids` and
//! `--map-gids`.
//!
//! Needs root, to become other users, `/dev/fuse` and setpriv; without one of them the tests are skipped.

use crate::support::agent::Mount;
use crate::support::mounted::{Mounted, has_fuse, umount};
use crate::support::world::World;
use crate::support::{Instance, skip, text};
use rustix::process::geteuid;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// An instance with two mounts for all users: one as ever, one with options.
struct Two {
    instance: Instance,
    mapped: PathBuf,
}

impl Two {
    fn new(name: &str, options: &[&str]) -> Option<Two> {
        if !geteuid().is_root() || !Path::new("/usr/bin/setpriv").exists() {
            skip("root and setpriv are needed");
            return None;
        }
        if !has_fuse() {
            return None;
        }
        let instance = Instance::start(name, &["--memory", "64MiB", "--ssd", "0"]);
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(instance.dir.path(), open).expect("chmod");
        let mapped = instance.dir.path().join("mapped");
        std::fs::create_dir(&mapped).expect("a directory");
        let mut command = instance.command("mount");
        let output = command.arg("--for-all").args(options).arg(&mapped).output();
        let output = output.expect("forebay runs");
        assert!(output.status.success(), "{}", text(&output.stderr));
        Some(Two { instance, mapped })
    }

    fn end(self) {
        let output = umount(&self.instance, &self.mapped, &[]);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
}

/// The output of a script of a user in a directory, errors included.
fn by(user: u32, groups: &[u32], at: &Path, script: &str) -> String {
    let mut command = Command::new("setpriv");
    let id = user.to_string();
    command.args(["--reuid", &id, "--regid", &id]);
    let groups: Vec<String> = groups.iter().map(u32::to_string).collect();
    match groups.as_slice() {
        [] => command.arg("--clear-groups"),
        some => command.args(["--groups", &some.join(",")]),
    };
    let output = command.args(["sh", "-c", script]).current_dir(at).output().expect("setpriv runs");
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}

/// As `by`, which must print this.
#[track_caller]
fn says(user: u32, at: &Path, script: &str, expected: &str) {
    let said = by(user, &[], at, script);
    assert_eq!(said.trim(), expected, "user {user}: {script}");
}

/// As `by`: each of the commands is refused.
#[track_caller]
fn refused(user: u32, at: &Path, commands: &[&str]) {
    for command in commands {
        let said = by(user, &[], at, &format!("{command} && echo DONE"));
        let is_refused = said.contains("Permission denied") || said.contains("not permitted");
        assert!(is_refused && !said.contains("DONE"), "user {user}: {command}: {said}");
    }
}

/// "Root of the host has no more rights on it than other users" (docs/semantics/mounts.md).
#[test]
fn a_squashed_root_has_the_rights_of_nobody() {
    let Some(two) = Two::new("squash", &["--root-squash"]) else { return };
    let plain = Mounted::new(&two.instance, "plain");
    let (at, mapped) = (plain.at.as_path(), two.mapped.as_path());
    says(
        0,
        at,
        "umask 022; echo root >own; chmod 600 own; echo all >readable; echo g >group; chmod 660 group
         mkdir private public theirs; chmod 777 public; chmod 1777 theirs; echo x >private/open
         chown 1000:1000 private theirs/../private/open; chmod 700 private
         echo t >theirs/one; chown 1000:1000 theirs/one; cp /bin/true tool; chmod 755 tool",
        "",
    );
    // It reads what all may read, and runs what all may run.
    says(0, mapped, "cat readable; ./tool && echo ran; stat -c %u:%g:%a own", "all\nran\n0:0:600");
    refused(
        0,
        mapped,
        &[
            "cat own",
            "cat group",
            "echo more >>readable",
            "ls private",
            "cat private/open",
            "rm -f theirs/one",
            "mv theirs/one theirs/two",
            "chmod 777 own",
            "chown 0:0 theirs/one",
            "touch -d 2001-01-01 readable",
            "mkdir made",
            "ln -s x link",
            "truncate -s 0 own",
            "setfattr -n user.a -v b readable",
        ],
    );
    // Names that another user looked up are not open to it, either.
    says(1000, mapped, "cat private/open; ls private; cat theirs/one", "x\nopen\nt");
    refused(0, mapped, &["cat private/open", "stat private/open", "ls -l private/open"]);
    says(0, mapped, "umask 022; echo new >public/new; cat public/new; rm public/new", "new");
    says(0, mapped, "echo new >public/new; mkdir public/dir", "");
    says(0, at, "stat -c %u:%g public/new public/dir", "65534:65534\n65534:65534");
    says(65534, mapped, "echo more >>public/new; cat public/new", "new\nmore");
    // The other mount is as ever.
    says(0, at, "cat own private/open group; echo more >>readable", "root\nx\ng");
    says(1000, mapped, "echo mine >public/mine; chmod 600 public/mine; cat public/mine", "mine");
    drop(plain);
    two.end();
}

/// "Users of the host stand for users of the instance" (docs/semantics/mounts.md).
#[test]
fn users_and_groups_of_a_host_stand_for_others() {
    let maps = ["--map-uids", "1000:2000:2", "--map-gids", "1000:3000:2"];
    let Some(two) = Two::new("map", &maps) else { return };
    let plain = Mounted::new(&two.instance, "plain");
    let (at, mapped) = (plain.at.as_path(), two.mapped.as_path());
    says(
        0,
        at,
        "umask 022; mkdir public; chmod 1777 public
         echo a >a; chown 2000:3000 a; chmod 600 a; echo b >b; chown 5555:3001 b; chmod 640 b
         echo c >c; chown 5555:5555 c; chmod 660 c; echo r >r; chmod 600 r",
        "",
    );
    let shown = "1000:1000\n65534:1001\n65534:65534\n65534:65534";
    says(0, mapped, "stat -c %u:%g a b c r", shown);
    says(1000, mapped, "cat a; echo more >>a; chmod 640 a; stat -c %a a", "a\n640");
    // By a further group.
    assert_eq!(by(1000, &[1001], mapped, "cat b"), "b\n");
    refused(1000, mapped, &["cat b", "cat c", "cat r"]);
    // Neither the user of that number, nor nobody, to which what has no number belongs, nor root.
    refused(2000, mapped, &["cat a", "cat c"]);
    refused(65534, mapped, &["cat c", "cat b", "chmod 777 c"]);
    assert!(by(1000, &[65534], mapped, "cat c").contains("Permission denied"));
    refused(0, mapped, &["cat a", "cat c", "cat r", "chown 1000 c"]);
    says(1001, mapped, "umask 022; echo n >public/n; mkdir public/d; ln -s x public/l", "");
    says(5, mapped, "echo u >public/u", "");
    let owners = "2001:3001\n2001:3001\n2001:3001\n65534:65534";
    says(0, at, "stat -c %u:%g public/n public/d public/l public/u", owners);
    says(1001, mapped, "stat -c %u:%g public/n; mv public/n public/m; rm public/m", "1001:1001");
    drop(plain);
    two.end();
}

/// A root that the map names has the rights of root; what has no number can be given nothing.
#[test]
fn a_root_that_is_mapped_stays_root() {
    let maps = ["--map-uids", "0:0:1,1000:2000:2", "--map-gids", "0:0:1,1000:3000:2"];
    let Some(two) = Two::new("root", &maps) else { return };
    let plain = Mounted::new(&two.instance, "plain");
    let (at, mapped) = (plain.at.as_path(), two.mapped.as_path());
    says(0, at, "echo c >c; chown 5555:5555 c; chmod 600 c; mkdir d; chmod 700 d; echo x >d/f", "");
    says(0, mapped, "cat c d/f; stat -c %u c d", "c\nx\n65534\n0");
    let said = by(0, &[], mapped, "chown 9999 c; chgrp 9999 c; setfacl -m u:9999:r c");
    assert_eq!(said.matches("Invalid argument").count(), 3, "{said}");
    says(0, mapped, "chown 1001:1001 c; setfacl -m u:1000:r c", "");
    says(0, at, "stat -c %u:%g c; getfacl -cn c | grep user:2", "2001:3001\nuser:2000:r--");
    says(1000, mapped, "cat c; getfacl -cn c | grep user:1", "c\nuser:1000:r--");
    drop(plain);
    two.end();
}

/// The same where names and files are on another host.
#[test]
fn a_squashed_root_has_no_rights_on_files_of_another_host() {
    let Some(world) = World::posix() else { return };
    let Some(plain) = Mount::new(&world, "b") else { return };
    let squashed = Mount::with(&world, "b", &["--root-squash"], &world.path("squashed"));
    let says = |mount: &Mount, script: &str| {
        let output = mount.command(&["sh", "-c", script, &mount.at]).output().expect("sh runs");
        format!("{}{}", text(&output.stdout), text(&output.stderr))
    };
    let prepare = "cd $0; umask 022; mkdir private; echo x >private/open; echo y >own; chmod 600 own
        chown -R 1000:1000 private; chmod 700 private; echo all >readable; ls -l private >/dev/null";
    assert_eq!(says(&plain, prepare), "");
    let attempt = "cd $0; cat readable
        for it in own private/open; do cat $it; done; ls private; touch new";
    let said = says(&squashed, attempt);
    assert!(said.starts_with("all\n"), "{said}");
    assert_eq!(said.matches("Permission denied").count(), 4, "{said}");
    drop(squashed);
    drop(plain);
    world.end();
}

/// An instance of an ordinary user believes no mount about its callers.
#[test]
fn only_root_squashes_root_and_maps_ids() {
    let Some(world) = super::World::new("identities") else { return };
    let script = "trap 'bin/forebay stop >/dev/null' EXIT
        bin/forebay start >/dev/null
        for it in --root-squash '--map-uids 0:1:1' '--map-gids 0:1:1'; do
            bin/forebay mount --for-all $it m 2>&1 && echo DONE
        done
        bin/forebay mount --root-squash m 2>&1 | head -2
        bin/forebay mount --for-all --map-uids 1:2 m 2>&1 | head -2";
    let printed = world.printed("", script);
    assert_eq!(printed.matches("cannot squash root or map ids").count(), 3, "{printed}");
    assert!(!printed.contains("DONE") && printed.contains("--for-all"), "{printed}");
    assert!(printed.contains("is not HOST:INSTANCE:COUNT"), "{printed}");
}
