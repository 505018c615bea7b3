//! Extended attributes and access control lists of files in the backing directory: shown unchanged,
//! enforced, changed in the instance as on a local disk, and preserved in the backing store
//! whatever else of a file changes.

use crate::support::backing::{Backing, in_instance, shell, start};
use crate::support::mounted::{Mounted, has_fuse};
use crate::support::{skip, text, wait_for};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Prints all attributes and access control lists of a tree.
const ALL: &str = "LC_ALL=C; find . -mindepth 1 -type f -o -mindepth 1 -type d | sort | \
    while read -r f; do echo $f; getfattr -d -m '^(user|security\\.capability)' -e hex $f; \
    getfacl -cnp $f; done";

/// Files and directories with attributes and access control lists, as far as the file system
/// supports them.
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
fn metadata_of_backing_files_is_shown_changed_and_preserved() {
    for daemons in ["1", "2"] {
        let (backing, copy) = (Backing::new(), Backing::new());
        tree(backing.dir.path());
        tree(copy.dir.path());
        let seen = shell(copy.dir.path(), ALL);
        assert!(seen.contains("user.some=0x7468696e67"), "extended attributes: {seen}");
        let instance = start(&format!("carried{daemons}"), daemons, &backing.text());
        assert_eq!(in_instance(&instance, ALL), seen);
        if has_fuse() {
            let mounted = Mounted::new(&instance, "carried");
            assert_eq!(shell(&mounted.path(""), ALL), seen, "by a mount");
        }
        // These changes concern other metadata, or only the contents.
        let script = "chmod 640 list; chmod 700 d; echo more >> both; touch d/new; mkdir d/newer
            setfattr -x user.empty some; setfattr -n user.other -v 2 some; mv wide d/wide
            setfacl -m u:4:rw plain || :; setfacl -b both || :; truncate -s 0 d/deep";
        in_instance(&instance, script);
        shell(copy.dir.path(), script);
        let after = shell(copy.dir.path(), ALL);
        assert_eq!(in_instance(&instance, ALL), after, "changed here");
        let output = instance.command("flush").output().expect("forebay runs");
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(shell(backing.dir.path(), ALL), after, "saved");
        // A different file under the same name has different attributes.
        let script = "echo new > d/.new; setfattr -n user.new -v 3 d/.new; mv d/.new some";
        shell(backing.dir.path(), script);
        shell(copy.dir.path(), script);
        let replaced = shell(copy.dir.path(), ALL);
        wait_for("another file to be seen", || in_instance(&instance, ALL) == replaced);
    }
}

/// A user named in an access control list of the backing store gets exactly the listed rights
/// through a mount, and no other user does.
#[test]
fn access_control_lists_of_backing_files_are_enforced() {
    let backing = Backing::new();
    let path = backing.dir.path();
    shell(
        path,
        "chmod 755 .; for f in a b; do echo $f > $f; chmod 600 $f; done; setfacl -m u:1:r a",
    );
    // The mode bits alone would let the group read the file.
    shell(path, "chgrp 2 b; setfacl -m g::-,u:3:r b");
    let is_root = rustix::process::geteuid().is_root();
    if !is_root || !has_fuse() {
        skip("root and /dev/fuse are needed");
        return;
    }
    let instance = start("obeyed", "2", &backing.text());
    fs::set_permissions(instance.dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
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
