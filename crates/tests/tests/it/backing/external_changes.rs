//! External changes of the backing directory under a running instance: seen by programs and by a
//! mount, over one or two daemons; while a file is open here, dirty here, or was written back by
//! the instance; also when a daemon is killed.

use crate::support::backing::{Backing, in_instance, shell, start};
use crate::support::mounted::{Mounted, has_fuse};
use crate::support::{Instance, wait_for};
use std::fs;
use std::io::Write as _;

/// `passed`: waits until cached metadata has expired, which a file that others change shows.
const CONTROL: &str = "
    passed() {
        printf before > $BACKING/control; until [ \"$(cat control)\" = before ]; do :; done
        printf after > $BACKING/control; until [ \"$(cat control)\" = after ]; do :; done
    }";

/// Runs a script in the root of the instance; `$BACKING` is the backing directory.
fn within(instance: &Instance, backing: &Backing, script: &str) -> String {
    in_instance(instance, &format!("BACKING='{}'; {CONTROL}\n{script}", backing.text()))
}

fn with_files() -> Backing {
    let backing = Backing::new();
    fs::create_dir_all(backing.path("d/in")).expect("made");
    for name in ["replaced", "appended", "cut", "removed", "made", "d/in/deep"] {
        fs::write(backing.path(name), "old contents").expect("written");
    }
    fs::remove_file(backing.path("made")).expect("removed");
    backing
}

/// All changes that others may make to files.
fn change(backing: &Backing) {
    fs::write(backing.path(".new"), "replaced").expect("written");
    fs::rename(backing.path(".new"), backing.path("replaced")).expect("renamed");
    let append = |name: &str| fs::OpenOptions::new().append(true).open(backing.path(name));
    append("appended").and_then(|mut file| file.write_all(b" and more")).expect("appended");
    fs::OpenOptions::new()
        .write(true)
        .open(backing.path("cut"))
        .and_then(|file| file.set_len(3))
        .expect("cut");
    fs::remove_file(backing.path("removed")).expect("removed");
    fs::write(backing.path("made"), "made").expect("written");
    fs::write(backing.path("d/in/deep"), "deeply changed").expect("written");
}

const ALL: &str = "for name in replaced appended cut removed made d/in/deep; do
    cat $name 2>/dev/null || echo -n none; echo; done; stat -c %s appended cut";
const OLD: &str =
    "old contents\nold contents\nold contents\nold contents\nnone\nold contents\n12\n12\n";
const NEW: &str = "replaced\nold contents and more\nold\nnone\nmade\ndeeply changed\n21\n3\n";

/// "Changes that others make in the backing directory are seen a second later"
/// (docs/semantics/backing.md): files that are replaced, appended to, truncated, removed and
/// created.
#[test]
fn external_changes_are_seen() {
    for daemons in ["1", "2"] {
        let backing = with_files();
        let instance = start(&format!("behind{daemons}"), daemons, &backing.text());
        let mounted = has_fuse().then(|| Mounted::new(&instance, "behind"));
        assert_eq!(in_instance(&instance, ALL), OLD);
        if let Some(mounted) = &mounted {
            assert_eq!(shell(&mounted.path(""), ALL), OLD, "by a mount");
        }
        change(&backing);
        wait_for("the external changes", || in_instance(&instance, ALL) == NEW);
        if let Some(mounted) = &mounted {
            wait_for("the same on a mount", || shell(&mounted.path(""), ALL) == NEW);
        }
        let names = in_instance(&instance, "ls | LC_ALL=C sort | tr '\\n' ' '");
        assert_eq!(names, "appended cut d made replaced ");
        let daemon = instance.daemon(0);
        daemon.kill();
        daemon.wait();
        instance.start_again();
        assert_eq!(in_instance(&instance, ALL), NEW, "after a kill");
        assert_eq!(
            fs::read_dir(backing.dir.path()).expect("there").count(),
            5,
            "nothing was added"
        );
    }
}

/// "or a miss of one" (docs/semantics/backing.md), in directories that have no names at first, or
/// none left: names that others make are found by name, without a listing.
#[test]
fn external_names_in_empty_directories_are_found() {
    for daemons in ["1", "2"] {
        let backing = Backing::new();
        fs::create_dir_all(backing.path("empty")).expect("made");
        fs::create_dir_all(backing.path("emptied here")).expect("made");
        fs::create_dir_all(backing.path("emptied below")).expect("made");
        for name in ["emptied here/old", "emptied below/old"] {
            fs::write(backing.path(name), "old").expect("written");
        }
        let instance = start(&format!("behindempty{daemons}"), daemons, &backing.text());
        let mounted = has_fuse().then(|| Mounted::new(&instance, "behindempty"));
        let directories = ["empty", "emptied here", "emptied below"];
        assert_eq!(in_instance(&instance, "rm 'emptied here/old'; echo gone"), "gone\n");
        fs::remove_file(backing.path("emptied below/old")).expect("removed");
        let gone = "cat 'emptied below/old' 2>/dev/null || echo gone";
        wait_for("the external removal", || in_instance(&instance, gone) == "gone\n");
        for round in ["first", "second"] {
            for directory in directories {
                let miss = format!("cd '{directory}'; cat theirs-{round} 2>/dev/null || echo none");
                assert_eq!(in_instance(&instance, &miss), "none\n");
                let make = format!("echo x >'{directory}/ours-{round}'; echo made");
                assert_eq!(in_instance(&instance, &make), "made\n");
                for name in ["theirs", "unasked"].map(|name| format!("{directory}/{name}-{round}"))
                {
                    fs::write(backing.path(&name), "theirs").expect("written");
                    let look = format!("cat '{name}' 2>/dev/null || echo none");
                    wait_for(&name, || in_instance(&instance, &look) == "theirs");
                    if let Some(mounted) = &mounted {
                        let what = format!("{name}, on a mount");
                        wait_for(&what, || shell(&mounted.path(""), &look) == "theirs");
                    }
                }
            }
        }
    }
}

const NAMES: &str = "find . -mindepth 1 | sed 's/^..//' | LC_ALL=C sort | tr '\\n' ' '";

/// "New and removed names are listed, too" (docs/semantics/backing.md), by programs and by a mount.
#[test]
fn externally_made_and_removed_names_are_listed() {
    for daemons in ["1", "2"] {
        let backing = with_files();
        let instance = start(&format!("behindlist{daemons}"), daemons, &backing.text());
        let mounted = has_fuse().then(|| Mounted::new(&instance, "behindlist"));
        let by_mount = |names: &str| {
            mounted.as_ref().is_none_or(|mounted| shell(&mounted.path(""), NAMES) == names)
        };
        let old = "appended cut d d/in d/in/deep removed replaced ";
        assert_eq!(in_instance(&instance, NAMES), old);
        assert!(by_mount(old));
        change(&backing);
        fs::create_dir(backing.path("d/new")).expect("made");
        fs::write(backing.path("d/new/in it"), "contents").expect("written");
        fs::remove_file(backing.path("d/in/deep")).expect("removed");
        let ours =
            in_instance(&instance, "mkdir ours; echo ours > ours/f; echo ours > d/g; echo done");
        assert_eq!(ours, "done\n");
        let new = "appended cut d d/g d/in d/new d/new/in it made ours ours/f replaced ";
        wait_for("the external creations and removals", || in_instance(&instance, NAMES) == new);
        wait_for("the same on a mount", || by_mount(new));
        assert_eq!(in_instance(&instance, "cat 'd/new/in it' d/g ours/f"), "contentsours\nours\n");
        let daemon = instance.daemon(0);
        daemon.kill();
        daemon.wait();
        instance.start_again();
        fs::remove_file(backing.path("made")).expect("removed");
        let left = new.replace("made ", "");
        wait_for("the same after a kill", || in_instance(&instance, NAMES) == left);
    }
}

/// A program that has a file open keeps reading the cached version; a later open gets the new one.
#[test]
fn an_open_file_is_unchanged_after_an_external_change() {
    let backing = with_files();
    let instance = start("behindopen", "2", &backing.text());
    let script = "exec 3< replaced; cat replaced; printf '|'
        printf new > $BACKING/.tmp; mv $BACKING/.tmp $BACKING/replaced
        until [ \"$(cat replaced)\" = new ]; do :; done; cat <&3";
    assert_eq!(within(&instance, &backing, script), "old contents|old contents");
    // No part of the old version is cached here, and the backing store has it no more.
    let script = "exec 3< cut; printf new > $BACKING/.tmp; mv $BACKING/.tmp $BACKING/cut
        until [ \"$(cat cut)\" = new ]; do :; done; LC_ALL=C cat <&3 2>&1 || :";
    assert!(within(&instance, &backing, script).contains("Input/output error"));
}

/// Files that were changed, created or removed here stay so until writeback, whatever others do.
#[test]
fn dirty_changes_survive_external_changes() {
    let backing = with_files();
    let location = backing.text();
    let options = ["--memory", "96MiB", "--ssd", "64MiB", "--writeback", "never"];
    let options = [&options[..], &["--backing", &location]].concat();
    let instance = Instance::start("behindunsaved", &options);
    let script = "printf ' and ours' >> appended; rm removed; printf ours > made
        for name in appended removed made; do printf theirs > $BACKING/$name; done; passed
        cat appended; echo; cat made; echo; test -e removed || echo none";
    assert_eq!(within(&instance, &backing, script), "old contents and ours\nours\nnone\n");
    let script =
        "exec 3<> replaced; cat replaced > /dev/null; printf theirs > $BACKING/replaced; passed
        printf ours >&3; cat replaced";
    assert_eq!(within(&instance, &backing, script), "ourscontents", "open for writing");
}

/// The instance's own writeback is no external change, and external changes after it are seen.
#[test]
fn own_writeback_is_no_external_change() {
    let backing = with_files();
    let instance = start("behindsaved", "2", &backing.text());
    let script = "printf ' ours' >> appended; stat -c %i appended
        until grep -q ours $BACKING/appended; do :; done; passed; passed; stat -c %i appended";
    let seen = within(&instance, &backing, script);
    let numbers: Vec<&str> = seen.lines().collect();
    assert!(numbers.len() == 2 && numbers[0] == numbers[1], "{seen}");
    let script = "printf theirs > $BACKING/appended
        until [ \"$(cat appended)\" = theirs ]; do :; done; stat -c %s appended";
    assert_eq!(within(&instance, &backing, script), "6\n");
}

/// A file that was created here and written back follows external changes like any backing file.
#[test]
fn written_back_files_follow_external_changes() {
    let backing = with_files();
    let instance = start("behindmade", "2", &backing.text());
    let mounted = has_fuse().then(|| Mounted::new(&instance, "behindmade"));
    let script = "for name in changed gone d/in/read; do printf ours > $name; done
        for name in changed gone d/in/read; do until [ -s $BACKING/$name ]; do :; done; done
        cat changed; passed";
    assert_eq!(within(&instance, &backing, script), "ours");
    if let Some(mounted) = &mounted {
        assert_eq!(shell(&mounted.path(""), "cat changed d/in/read"), "oursours");
    }
    let script =
        "printf theirs > $BACKING/changed; rm $BACKING/gone; printf new > $BACKING/d/in/.read
        mv $BACKING/d/in/.read $BACKING/d/in/read
        until [ \"$(cat changed)\" = theirs ]; do :; done; until [ ! -e gone ]; do :; done
        until [ \"$(cat d/in/read)\" = new ]; do :; done; printf ' ours' >> changed; cat changed
        until grep -q ours $BACKING/changed; do :; done; cat $BACKING/changed";
    assert_eq!(within(&instance, &backing, script), "theirs ourstheirs ours");
    if let Some(mounted) = &mounted {
        let seen =
            || shell(&mounted.path(""), "cat changed d/in/read; test ! -e gone || echo gone");
        wait_for("the same on a mount", || seen() == "theirs oursnew");
    }
}

/// The lifetime of cached metadata is a setting. An instance with the default reports when it has
/// expired.
#[test]
fn cached_metadata_is_valid_for_the_configured_time() {
    let backing = with_files();
    let location = backing.text();
    let sizes = ["--memory", "64MiB", "--ssd", "0", "--backing", &location];
    let check = |text: &'static str| [&sizes[..], &["--backing-revalidate", text]].concat();
    let long = Instance::start("behindlong", &check("60min"));
    let short = Instance::start("behindshort", &check("1ms"));
    let usual = Instance::start("behindusual", &sizes);
    for instance in [&long, &short, &usual] {
        assert_eq!(in_instance(instance, ALL), OLD);
    }
    change(&backing);
    for instance in [&short, &usual] {
        wait_for("the external changes", || in_instance(instance, ALL) == NEW);
    }
    assert_eq!(in_instance(&long, ALL), OLD, "looked up before the others");
    // A running instance keeps its setting.
    let mut other = long.command("start");
    let output = other.args(check("5s")).output().expect("forebay runs");
    let refused = crate::support::text(&output.stderr);
    assert!(!output.status.success() && refused.contains("backing-revalidate"), "{refused}");
}
