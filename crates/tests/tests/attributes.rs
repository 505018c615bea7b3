//! Extended attributes and access lists of what lies in the backing directory: shown as they are there,
//! obeyed, changed here as on a local disk, and kept below whatever else of a file is changed here.

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;
use support::below::{Below, above, shell, start};
use support::mounted::{Mounted, has_fuse};
use support::{text, wait_for};

/// What is said of them.
const ALL: &str = "LC_ALL=C; find . -mindepth 1 -type f -o -mindepth 1 -type d | sort | \
    while read -r f; do echo $f; getfattr -d -m '^(user|security\\.capability)' -e hex $f; \
    getfacl -cnp $f; done";

/// Files and directories with attributes and lists, as far as the file system takes them.
fn tree(at: &Path) {
    let big = "x".repeat(3000);
    shell(
        at,
        &format!(
            "mkdir d d/in; for f in plain some list both d/deep wide; do echo $f > $f; done
            setfattr -n user.some -v thing some; setfattr -n user.empty some
            setfattr -n user.big -v {big} both; setfattr -n user.of.directory -v 1 d
            setfacl -m u:1:rw,g:2:r,m::rw list || :; setfacl -m u:3:r both || :
            setfacl -d -m u:1:rx,g:2:rwx d || :; setfacl -m u:1:rwx d || :
            setfacl -m g::-,g:2:rw,o::- wide || :"
        ),
    );
}

#[test]
fn what_files_below_carry_is_shown_changed_and_kept() {
    for daemons in ["1", "2"] {
        let (below, copy) = (Below::new(), Below::new());
        tree(below.place.path());
        tree(copy.place.path());
        let seen = shell(copy.place.path(), ALL);
        assert!(seen.contains("user.some=0x7468696e67"), "extended attributes: {seen}");
        let instance = start(&format!("carried{daemons}"), daemons, &below.text());
        assert_eq!(above(&instance, ALL), seen);
        if has_fuse() {
            let mounted = Mounted::new(&instance, "carried");
            assert_eq!(shell(&mounted.path(""), ALL), seen, "by a mount");
        }
        // Also what changes something else of a file, or its contents alone.
        let script = "chmod 640 list; chmod 700 d; echo more >> both; touch d/new; mkdir d/newer
            setfattr -x user.empty some; setfattr -n user.other -v 2 some; mv wide d/wide
            setfacl -m u:4:rw plain || :; setfacl -b both || :; truncate -s 0 d/deep";
        above(&instance, script);
        shell(copy.place.path(), script);
        let after = shell(copy.place.path(), ALL);
        assert_eq!(above(&instance, ALL), after, "changed here");
        let output = instance.command("flush").output().expect("forebay runs");
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(shell(below.place.path(), ALL), after, "saved");
        // What is another file there has others.
        let script = "echo new > d/.new; setfattr -n user.new -v 3 d/.new; mv d/.new some";
        shell(below.place.path(), script);
        shell(copy.place.path(), script);
        let replaced = shell(copy.place.path(), ALL);
        wait_for("another file to be seen", || above(&instance, ALL) == replaced);
    }
}

/// Who is named in a list below may do through a mount for all what it says, and nobody more.
#[test]
fn lists_below_are_obeyed() {
    let below = Below::new();
    let path = below.place.path();
    shell(
        path,
        "chmod 755 .; for f in a b; do echo $f > $f; chmod 600 $f; done; setfacl -m u:1:r a",
    );
    // The mode of it alone would let the group read it.
    shell(path, "chgrp 2 b; setfacl -m g::-,u:3:r b");
    let is_root = rustix::process::geteuid().is_root();
    if !is_root || !has_fuse() {
        eprintln!("skipped: root and /dev/fuse are needed");
        return;
    }
    let instance = start("obeyed", "2", &below.text());
    fs::set_permissions(instance.place.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("set");
    let mounted = Mounted::new(&instance, "obeyed");
    for (name, user, group, may) in [
        ("a", 1, 9, true),
        ("a", 4, 9, false),
        ("b", 3, 9, true),
        ("b", 4, 2, false),
        ("b", 4, 9, false),
    ] {
        let mut command = Command::new("setpriv");
        command.arg(format!("--reuid={user}")).arg(format!("--regid={group}"));
        let output = command.args(["--clear-groups", "cat"]).arg(mounted.path(name)).output();
        let output = output.expect("setpriv runs");
        let why = text(&output.stderr);
        assert_eq!(output.status.success(), may, "{name} by {user}, group {group}: {why}");
    }
}
