//! What others change in the backing directory while an instance is over it: seen by programs and by a
//! mount, over one or two daemons; while a file is open here, unsaved here, or was saved by us; when a
//! daemon is killed.

mod support;

use std::fs;
use std::io::Write as _;
use support::below::{Below, above, shell, start};
use support::mounted::{Mounted, has_fuse};
use support::{Instance, wait_for};

/// `passed`: a term went by, as a file that others change says.
const CONTROL: &str = "
    passed() {
        printf before > $BELOW/control; until [ \"$(cat control)\" = before ]; do :; done
        printf after > $BELOW/control; until [ \"$(cat control)\" = after ]; do :; done
    }";

/// A script in the root of the instance that knows the directory below.
fn within(instance: &Instance, below: &Below, script: &str) -> String {
    above(instance, &format!("BELOW='{}'; {CONTROL}\n{script}", below.text()))
}

fn with_files() -> Below {
    let below = Below::new();
    fs::create_dir_all(below.path("d/in")).expect("made");
    for name in ["replaced", "appended", "cut", "removed", "made", "d/in/deep"] {
        fs::write(below.path(name), "old contents").expect("written");
    }
    fs::remove_file(below.path("made")).expect("removed");
    below
}

/// All of what others may do to files.
fn change(below: &Below) {
    fs::write(below.path(".new"), "replaced").expect("written");
    fs::rename(below.path(".new"), below.path("replaced")).expect("renamed");
    let append = |name: &str| fs::OpenOptions::new().append(true).open(below.path(name));
    append("appended").and_then(|mut file| file.write_all(b" and more")).expect("appended");
    fs::OpenOptions::new()
        .write(true)
        .open(below.path("cut"))
        .and_then(|file| file.set_len(3))
        .expect("cut");
    fs::remove_file(below.path("removed")).expect("removed");
    fs::write(below.path("made"), "made").expect("written");
    fs::write(below.path("d/in/deep"), "deeply changed").expect("written");
}

const ALL: &str = "for name in replaced appended cut removed made d/in/deep; do
    cat $name 2>/dev/null || echo -n none; echo; done; stat -c %s appended cut";
const OLD: &str =
    "old contents\nold contents\nold contents\nold contents\nnone\nold contents\n12\n12\n";
const NEW: &str = "replaced\nold contents and more\nold\nnone\nmade\ndeeply changed\n21\n3\n";

/// "What others change below is seen by who looks for a name a second later" (docs/semantics.md):
/// what they replace, append to, cut, remove and make.
#[test]
fn what_others_change_is_seen() {
    for daemons in ["1", "2"] {
        let below = with_files();
        let instance = start(&format!("behind{daemons}"), daemons, &below.text());
        let mounted = has_fuse().then(|| Mounted::new(&instance, "behind"));
        assert_eq!(above(&instance, ALL), OLD);
        if let Some(mounted) = &mounted {
            assert_eq!(shell(&mounted.path(""), ALL), OLD, "by a mount");
        }
        change(&below);
        wait_for("what others changed", || above(&instance, ALL) == NEW);
        if let Some(mounted) = &mounted {
            wait_for("the same by a mount", || shell(&mounted.path(""), ALL) == NEW);
        }
        let names = above(&instance, "ls | LC_ALL=C sort | tr '\\n' ' '");
        assert_eq!(names, "appended cut d made replaced ");
        let daemon = instance.daemon(0);
        daemon.kill();
        daemon.wait();
        instance.start_again();
        assert_eq!(above(&instance, ALL), NEW, "after a kill");
        assert_eq!(fs::read_dir(below.place.path()).expect("there").count(), 5, "none was added");
    }
}

const NAMES: &str = "find . -mindepth 1 | sed 's/^..//' | LC_ALL=C sort | tr '\\n' ' '";

/// "What others make and remove is listed, too" (docs/semantics.md), by programs and by a mount.
#[test]
fn what_others_make_and_remove_is_listed() {
    for daemons in ["1", "2"] {
        let below = with_files();
        let instance = start(&format!("behindlist{daemons}"), daemons, &below.text());
        let mounted = has_fuse().then(|| Mounted::new(&instance, "behindlist"));
        let by_mount = |names: &str| {
            mounted.as_ref().is_none_or(|mounted| shell(&mounted.path(""), NAMES) == names)
        };
        let old = "appended cut d d/in d/in/deep removed replaced ";
        assert_eq!(above(&instance, NAMES), old);
        assert!(by_mount(old));
        change(&below);
        fs::create_dir(below.path("d/new")).expect("made");
        fs::write(below.path("d/new/in it"), "contents").expect("written");
        fs::remove_file(below.path("d/in/deep")).expect("removed");
        let ours = above(&instance, "mkdir ours; echo ours > ours/f; echo ours > d/g; echo done");
        assert_eq!(ours, "done\n");
        let new = "appended cut d d/g d/in d/new d/new/in it made ours ours/f replaced ";
        wait_for("what others made and removed", || above(&instance, NAMES) == new);
        wait_for("the same by a mount", || by_mount(new));
        assert_eq!(above(&instance, "cat 'd/new/in it' d/g ours/f"), "contentsours\nours\n");
        let daemon = instance.daemon(0);
        daemon.kill();
        daemon.wait();
        instance.start_again();
        fs::remove_file(below.path("made")).expect("removed");
        let left = new.replace("made ", "");
        wait_for("the same after a kill", || above(&instance, NAMES) == left);
    }
}

/// Who has a file open reads on in what is here of it; who opens it then has the new one.
#[test]
fn a_file_that_is_open_stays_what_it_was() {
    let below = with_files();
    let instance = start("behindopen", "2", &below.text());
    let script = "exec 3< replaced; cat replaced; printf '|'
        printf new > $BELOW/.tmp; mv $BELOW/.tmp $BELOW/replaced
        until [ \"$(cat replaced)\" = new ]; do :; done; cat <&3";
    assert_eq!(within(&instance, &below, script), "old contents|old contents");
    // Nothing of it is here, and nothing is below any more.
    let script = "exec 3< cut; printf new > $BELOW/.tmp; mv $BELOW/.tmp $BELOW/cut
        until [ \"$(cat cut)\" = new ]; do :; done; LC_ALL=C cat <&3 2>&1 || :";
    assert!(within(&instance, &below, script).contains("Input/output error"));
}

/// What was changed, made or removed here and is not saved stays, whatever others do.
#[test]
fn what_is_unsaved_here_stays() {
    let below = with_files();
    let backing = below.text();
    let options = ["--memory", "96MiB", "--ssd", "64MiB", "--write-back", "never"];
    let options = [&options[..], &["--backing", &backing]].concat();
    let instance = Instance::start("behindunsaved", &options);
    let script = "printf ' and ours' >> appended; rm removed; printf ours > made
        for name in appended removed made; do printf theirs > $BELOW/$name; done; passed
        cat appended; echo; cat made; echo; test -e removed || echo none";
    assert_eq!(within(&instance, &below, script), "old contents and ours\nours\nnone\n");
    let script =
        "exec 3<> replaced; cat replaced > /dev/null; printf theirs > $BELOW/replaced; passed
        printf ours >&3; cat replaced";
    assert_eq!(within(&instance, &below, script), "ourscontents", "open to be written to");
}

/// What was saved by us is no change of others, and what others change of it then is seen.
#[test]
fn what_we_saved_is_no_change_of_others() {
    let below = with_files();
    let instance = start("behindsaved", "2", &below.text());
    let script = "printf ' ours' >> appended; stat -c %i appended
        until grep -q ours $BELOW/appended; do :; done; passed; passed; stat -c %i appended";
    let seen = within(&instance, &below, script);
    let numbers: Vec<&str> = seen.lines().collect();
    assert!(numbers.len() == 2 && numbers[0] == numbers[1], "{seen}");
    let script = "printf theirs > $BELOW/appended
        until [ \"$(cat appended)\" = theirs ]; do :; done; stat -c %s appended";
    assert_eq!(within(&instance, &below, script), "6\n");
}

/// What was made here and lies below by now is others' to change as what always lay there.
#[test]
fn what_was_made_here_and_saved_is_followed() {
    let below = with_files();
    let instance = start("behindmade", "2", &below.text());
    let mounted = has_fuse().then(|| Mounted::new(&instance, "behindmade"));
    let script = "for name in changed gone d/in/read; do printf ours > $name; done
        for name in changed gone d/in/read; do until [ -s $BELOW/$name ]; do :; done; done
        cat changed; passed";
    assert_eq!(within(&instance, &below, script), "ours");
    if let Some(mounted) = &mounted {
        assert_eq!(shell(&mounted.path(""), "cat changed d/in/read"), "oursours");
    }
    let script = "printf theirs > $BELOW/changed; rm $BELOW/gone; printf new > $BELOW/d/in/.read
        mv $BELOW/d/in/.read $BELOW/d/in/read
        until [ \"$(cat changed)\" = theirs ]; do :; done; until [ ! -e gone ]; do :; done
        until [ \"$(cat d/in/read)\" = new ]; do :; done; printf ' ours' >> changed; cat changed
        until grep -q ours $BELOW/changed; do :; done; cat $BELOW/changed";
    assert_eq!(within(&instance, &below, script), "theirs ourstheirs ours");
    if let Some(mounted) = &mounted {
        let seen =
            || shell(&mounted.path(""), "cat changed d/in/read; test ! -e gone || echo gone");
        wait_for("the same by a mount", || seen() == "theirs oursnew");
    }
}

/// How long what was found holds is a setting. An instance with the default says when that is over.
#[test]
fn what_was_found_holds_for_the_time_that_is_set() {
    let below = with_files();
    let backing = below.text();
    let sizes = ["--memory", "64MiB", "--ssd", "0", "--backing", &backing];
    let check = |text: &'static str| [&sizes[..], &["--backing-check", text]].concat();
    let long = Instance::start("behindlong", &check("60min"));
    let short = Instance::start("behindshort", &check("1ms"));
    let usual = Instance::start("behindusual", &sizes);
    for instance in [&long, &short, &usual] {
        assert_eq!(above(instance, ALL), OLD);
    }
    change(&below);
    for instance in [&short, &usual] {
        wait_for("what others changed", || above(instance, ALL) == NEW);
    }
    assert_eq!(above(&long, ALL), OLD, "looked at before the others");
    // An instance that runs keeps what it has.
    let mut other = long.command("start");
    let output = other.args(check("5s")).output().expect("forebay runs");
    let refused = support::text(&output.stderr);
    assert!(!output.status.success() && refused.contains("backing-check"), "{refused}");
}
