//! An instance over a directory (`--backing`): programs and a mount see its tree unchanged, over
//! one or several daemons and hosts; daemons are killed meanwhile; unreadable files are refused
//! with the reason.

use crate::support::backing::{Backing, LIST, SUMS, in_instance, printed, shell, start};
use crate::support::mounted::{Mounted, has_fuse};
use crate::support::world::{HOSTS, World};
use crate::support::{Instance, Random, skip, text, wait_for};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

/// "The backing directory is shown as it is" (docs/semantics/backing.md).
#[test]
fn backing_files_look_as_they_are() {
    let backing = Backing::with_all_kinds();
    let (list, sums) = (shell(backing.dir.path(), LIST), shell(backing.dir.path(), SUMS));
    for daemons in ["1", "2", "4"] {
        let instance = start(&format!("seen{daemons}"), daemons, &backing.text());
        assert_eq!(in_instance(&instance, "ls | wc -l; cat a/4096 | wc -c"), "5\n4096\n");
        assert_eq!(in_instance(&instance, LIST), list, "{daemons} daemons");
        assert_eq!(in_instance(&instance, SUMS), sums, "{daemons} daemons");
        assert_eq!(
            in_instance(&instance, "tail -c 5 sparse | od -An -c | tr -d ' '"),
            "\\0\\0\\0\\0\\0\n"
        );
        assert_eq!(
            in_instance(&instance, "cat odd/link | wc -c; stat -c %h a/b many"),
            "4096\n3\n2\n"
        );
        if has_fuse() {
            let mounted = Mounted::new(&instance, "seen");
            assert_eq!(shell(&mounted.path(""), LIST), list, "by a mount");
            assert_eq!(shell(&mounted.path(""), SUMS), sums, "by a mount");
        }
    }
    assert_eq!(shell(backing.dir.path(), LIST), list, "nothing changed in the backing directory");
}

/// A directory looks the same before and after it is read for the first time: an archiver fails if one
/// grows meanwhile.
#[test]
fn a_tree_that_was_never_read_is_archived_without_a_warning() {
    const ARCHIVE: &str = "stat -c '%n %s %h %b %Y %Z' a a/b many odd > /tmp/before-$$; \
                           tar cf - a many odd > /tmp/archive-$$; \
                           stat -c '%n %s %h %b %Y %Z' a a/b many odd | diff /tmp/before-$$ - && \
                           rm /tmp/before-$$ /tmp/archive-$$";
    let backing = Backing::with_all_kinds();
    let instance = start("archive", "2", &backing.text());
    assert_eq!(in_instance(&instance, ARCHIVE), "");
    if has_fuse() {
        let instance = start("archive-mount", "2", &backing.text());
        let mounted = Mounted::new(&instance, "archive");
        assert_eq!(shell(&mounted.path(""), ARCHIVE), "", "by a mount");
    }
}

/// Temporary files that a writer, a staging or an earlier instance left are not shown.
#[test]
fn temporary_files_in_the_backing_store_are_hidden() {
    let backing = Backing::new();
    fs::create_dir_all(backing.path("d/.forebay-aside-400000000001/in")).expect("made");
    for name in [".forebay-part-1-2-3-4", ".forebay-aside-1f", "d/.forebay-aside-2"] {
        backing.file(name, 1, 100);
    }
    for name in ["file", "d/.forebay-aside-no", "d/x.forebay-conflict-1f"] {
        backing.file(name, 2, 100);
    }
    let instance = start("unseen", "2", &backing.text());
    let all = "find . -mindepth 1 -printf '%P\n' | LC_ALL=C sort; cat .forebay-aside-1f 2>&1 || :";
    let seen = in_instance(&instance, all);
    let named = "d\nd/.forebay-aside-no\nd/x.forebay-conflict-1f\nfile\n";
    assert!(seen.starts_with(named) && seen.contains("No such file"), "{seen}");
}

#[test]
fn killed_daemons_revive_no_removed_name_and_lose_no_byte() {
    let mut random = Random::new(testkit::seed(1));
    for round in 0..testkit::rounds(2) {
        let backing = Backing::with_all_kinds();
        let sums = shell(
            backing.dir.path(),
            "rm many/f5*; find . -type f -size -100M -print0 | \
        LC_ALL=C sort -z | xargs -0 sha256sum; for n in 5 5{0..9} 5{0..9}{0..9}; do \
        echo again > many/f$n; done",
        );
        let instance = start(&format!("killed{round}"), "2", &backing.text());
        let script = format!("cd /forebay; rm many/f5*; {SUMS}");
        let mut command = instance.program(&["bash", "-ec", &script]);
        let mut child = command.stdout(std::process::Stdio::piped()).spawn().expect("forebay runs");
        let requests = || -> u64 {
            let daemons = instance.status()["daemons"].as_array().expect("a list").clone();
            daemons.iter().filter_map(|one| one["state"]["requests"].as_u64()).sum()
        };
        for _ in 0..2 {
            let expected = requests() + random.uniform(400);
            wait_for("some requests, or the end", || {
                requests() >= expected
                    || child.try_wait().expect("it belongs to the instance").is_some()
            });
            let daemon = instance.daemon(random.uniform(2) as usize);
            daemon.kill();
            daemon.wait();
            instance.start_again();
        }
        let output = child.wait_with_output().expect("it ends");
        assert!(output.status.success(), "round {round}");
        assert!(text(&output.stdout) == sums, "round {round}: {}", text(&output.stdout));
        assert_eq!(
            in_instance(&instance, "ls many | sed -n /^f5/p | wc -l"),
            "0\n",
            "round {round}"
        );
    }
}

/// A directory is read once. A file that changed in the backing store since it was opened is not
/// mixed.
#[test]
fn unreadable_files_are_refused_with_the_reason() {
    let backing = Backing::new();
    for directory in ["gone", "there"] {
        fs::create_dir(backing.path(directory)).expect("made");
    }
    backing.file("there/changed", 1, 10_000);
    backing.file("there/removed", 2, 10_000);
    backing.file("there/shorter", 3, 9_000_000);
    let instance = start("refused", "2", &backing.text());
    let refused = |script: &str| {
        let script = format!("cd /forebay; LC_ALL=C {script}");
        let output = instance.program(&["bash", "-c", &script]).output().expect("forebay runs");
        assert!(!output.status.success(), "{script}");
        text(&output.stderr)
    };
    assert_eq!(
        in_instance(&instance, "ls there | wc -l; head -c 1 there/shorter | wc -c"),
        "3\n1\n"
    );
    backing.file("there/later", 8, 10);
    assert_eq!(in_instance(&instance, "ls there | wc -l"), "3\n", "a single read");
    // A program has the file open when it changes.
    for (name, change) in
        [("changed", "printf x >"), ("removed", "rm"), ("shorter", "truncate -s 9")]
    {
        let there = backing.path("there").display().to_string();
        let script =
            format!("exec 3< there/{name}; {change} '{there}/{name}'; cat <&3 | tail -c 1");
        assert!(refused(&format!("set -o pipefail; {script}")).contains("Input/output error"));
    }
    assert!(
        instance.daemon_log(0).contains("is missing or has changed")
            || instance.daemon_log(1).contains("is missing or has changed")
    );
    // Complete overwrites need nothing from the backing store and succeed.
    in_instance(
        &instance,
        "echo mine > there/changed; cmp there/changed <(echo mine); rm -f there/removed",
    );
    // The directory is away for a while.
    fs::rename(backing.path("gone"), backing.path("away")).expect("renamed");
    assert!(refused("ls gone").contains("Input/output error"));
    assert!(refused("cat gone/back").contains("Input/output error"));
    backing.file("away/back", 4, 100);
    fs::rename(backing.path("away"), backing.path("gone")).expect("renamed");
    assert_eq!(in_instance(&instance, "cat gone/back | wc -c"), "100\n");
}

/// `forebay layout WORDS`: the JSON that it prints, or its error.
pub(super) fn layout(instance: &Instance, words: &[&str]) -> Result<serde_json::Value, String> {
    let dir = instance.dir.path();
    let mut command = Command::new(crate::support::profile().join("forebay"));
    command.arg("layout").args(words).env("FOREBAY_NAME", &instance.name);
    command.env("XDG_RUNTIME_DIR", dir).env("FOREBAY_DIR", dir);
    let output = command.output().expect("forebay runs");
    match output.status.success() {
        true => Ok(serde_json::from_slice(&output.stdout).expect("JSON")),
        false => Err(text(&output.stdout) + &text(&output.stderr)),
    }
}

/// "The writeback mode belongs to a directory and is inherited" (docs/semantics/backing.md):
/// the setting is the root's.
#[test]
fn a_directory_has_a_writeback_mode_that_is_inherited() {
    let backing = Backing::new();
    fs::create_dir_all(backing.path("d/e")).expect("made");
    let text = backing.text();
    let options = ["--memory", "32MiB", "--ssd", "0", "--backing", &text, "--writeback", "never"];
    let instance = Instance::start("when", &options);
    let of = |path: &str| {
        let path = format!("/forebay/{path}");
        layout(&instance, &["get", "--json", &path]).expect("it is there")["writeback"].clone()
    };
    assert_eq!(of("d"), "never");
    let set = |when, path| layout(&instance, &["set", "--json", "--writeback", when, path]);
    assert_eq!(set("end", "/forebay/d").expect("set")["writeback"], "end");
    in_instance(&instance, "mkdir d/made made; touch d/file");
    let all = [of("d/made"), of("d/e"), of("made")];
    assert_eq!(all, ["end", "end", "never"], "created and staged in later");
    assert_eq!(of("d/file"), serde_json::Value::Null, "its directory is renamed");
    assert!(set("sometimes", "/forebay/d").expect_err("no time").contains("sometimes"));
    let refused = set("end", "/forebay/d/file").expect_err("a file");
    assert!(refused.to_lowercase().contains("not a directory"), "{refused}");
    let script = "import os; os.setxattr('made', 'user.forebay.writeback', b'idle'); \
                  print(os.getxattr('made', 'user.forebay.writeback').decode(), os.listxattr('made'))";
    assert_eq!(in_instance(&instance, &format!("python3 -c \"{script}\"")), "idle []\n");
    let without = Instance::start("without", &["--memory", "32MiB", "--ssd", "0"]);
    let refused = layout(&without, &["set", "--json", "--writeback", "end", "/forebay"]);
    let refused = refused.expect_err("nowhere");
    assert!(refused.contains("no backing store"), "{refused}");
    let shown = layout(&without, &["get", "--json", "/forebay"]).expect("the root");
    assert_eq!(shown["writeback"], serde_json::Value::Null);
}

/// "The daemons read as the instance's owner" (docs/semantics/backing.md).
#[test]
fn the_instance_reads_as_its_owner() {
    if !rustix::process::geteuid().is_root() {
        return skip("root is needed");
    }
    let backing = Backing::new();
    let mode = |path: PathBuf, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("set");
    };
    mode(backing.dir.path().to_owned(), 0o755);
    fs::create_dir(backing.path("closed")).expect("made");
    backing.file("secret", 1, 100);
    backing.file("open", 2, 100);
    mode(backing.path("closed"), 0o700);
    mode(backing.path("secret"), 0o600);
    let options = ["--memory", "32MiB", "--ssd", "0", "--backing", &backing.text()];
    let owner = Some((4711, 4711));
    let instance = Instance::start_as("owner", &options, owner);
    let script = "cd /forebay; cat open | wc -c; LC_ALL=C cat secret closed/x 2>&1; ls -ld closed";
    let output = instance.program(&["bash", "-c", script]).output().expect("forebay runs");
    let printed = text(&output.stdout);
    assert!(printed.starts_with("100\n") && printed.contains("drwx------"), "{printed}");
    assert_eq!(printed.matches("Permission denied").count(), 2, "{printed}");
}

/// Creates names in each possible way, each in a directory that is not cached: prints the errors.
const MAKE: &str = "
import os
ways = [os.mkdir, lambda it: os.symlink('x', it), lambda it: os.link('file', it)]
for number, name in enumerate(['a/', 'b', 'b/', 'none/', 'none']):
    for way in range(3):
        try: ways[way](f'd{number}{way}/{name}')
        except OSError as error: print(name, error.errno, end=' ')
";

/// EEXIST takes precedence over missing permission, also where only the backing store knows the
/// name.
#[test]
fn an_existing_name_is_reported_before_other_errors() {
    if !rustix::process::geteuid().is_root() {
        return skip("root is needed");
    }
    let backing = Backing::new();
    let tree = "chmod 755 .; touch file; chmod 777 file
                for d in d{0..4}{0..2}; do mkdir -p $d/a; touch $d/b; chmod 555 $d; done";
    shell(backing.dir.path(), tree);
    let options = ["--memory", "32MiB", "--ssd", "0", "--backing", &backing.text()];
    let instance = Instance::start_as("exists", &options, Some((4711, 4711)));
    let script = format!("cd /forebay; exec python3 -c \"{MAKE}\"");
    // EEXIST; EACCES and ENOENT.
    let right = "a/ 17 a/ 17 a/ 17 b 17 b 17 b 17 b/ 17 b/ 17 b/ 17 \
                 none/ 13 none/ 2 none/ 2 none 13 none 13 none 13 ";
    let output = instance.program(&["bash", "-c", &script]).output().expect("forebay runs");
    assert_eq!(printed(output, "making"), right);
}

#[test]
fn a_missing_backing_directory_is_one_clear_line() {
    let backing = Backing::new();
    backing.file("file", 1, 1);
    for (name, reason) in [("none", "no such directory"), ("file", "not a directory")] {
        let path = backing.path(name);
        let mut command = Command::new(crate::support::profile().join("forebay"));
        let dir = tempfile::tempdir().expect("a directory");
        let output = command
            .args(["start", "--name", &format!("t{}-none", std::process::id())])
            .args(["--memory", "32MiB", "--ssd", "0", "--backing"])
            .arg(&path)
            .env("XDG_RUNTIME_DIR", dir.path())
            .env("FOREBAY_DIR", dir.path())
            .output()
            .expect("forebay runs");
        let printed = text(&output.stderr);
        assert!(!output.status.success() && printed.contains(reason), "{printed}");
        assert!(printed.contains(path.to_str().expect("letters")), "{printed}");
        assert_eq!(fs::read_dir(dir.path()).expect("there").count(), 0, "something is left");
    }
}

#[test]
fn each_host_reads_the_backing_store_itself() {
    let backing = Backing::with_all_kinds();
    let path: &'static str = backing.text().leak();
    let Some(world) = World::started(&[("FOREBAY_BACKING", path)]) else { return };
    let (list, sums) = (shell(backing.dir.path(), LIST), shell(backing.dir.path(), SUMS));
    for host in HOSTS {
        assert_eq!(world.shell(host, &format!("cd /forebay; {LIST}"), ""), list, "on {host}");
        assert_eq!(world.shell(host, &format!("cd /forebay; {SUMS}"), ""), sums, "on {host}");
    }
    // One host truncates a file that others have read, and extends it again.
    world.shell("b", "cd /forebay/a; truncate -s 100000 5000000; truncate -s 4000000 5000000", "");
    let right = "sha256sum < <(head -c 100000 $1; head -c 3900000 /dev/zero)";
    let right = printed(
        Command::new("bash")
            .args(["-c", right, "", backing.path("a/5000000").to_str().expect("")])
            .output()
            .expect("bash runs"),
        right,
    );
    for host in HOSTS {
        assert_eq!(world.shell(host, "sha256sum < /forebay/a/5000000", ""), right, "on {host}");
    }
    world.end();
}
