//! An instance over a directory (`--backing`): its tree is seen as it lies there, by programs and by a
//! mount, over one or several daemons and hosts; daemons are
//! killed meanwhile; and what can not be read is refused by its reason.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use support::below::{Below, LIST, SUMS, above, said, shell, start};
use support::mounted::{Mounted, has_fuse};
use support::world::{HOSTS, World};
use support::{Instance, Random, setting, text, wait_for};

/// What lies below is seen as it is there.
#[test]
fn what_lies_below_is_seen_as_it_is() {
    let below = Below::with_all_kinds();
    let (list, sums) = (shell(below.place.path(), LIST), shell(below.place.path(), SUMS));
    for daemons in ["1", "2", "4"] {
        let instance = start(&format!("seen{daemons}"), daemons, &below.text());
        assert_eq!(above(&instance, "ls | wc -l; cat a/4096 | wc -c"), "5\n4096\n");
        assert_eq!(above(&instance, LIST), list, "{daemons} daemons");
        assert_eq!(above(&instance, SUMS), sums, "{daemons} daemons");
        assert_eq!(
            above(&instance, "tail -c 5 sparse | od -An -c | tr -d ' '"),
            "\\0\\0\\0\\0\\0\n"
        );
        assert_eq!(above(&instance, "cat odd/link | wc -c; stat -c %h a/b many"), "4096\n3\n2\n");
        if has_fuse() {
            let mounted = Mounted::new(&instance, "seen");
            assert_eq!(shell(&mounted.path(""), LIST), list, "by a mount");
            assert_eq!(shell(&mounted.path(""), SUMS), sums, "by a mount");
        }
    }
    assert_eq!(shell(below.place.path(), LIST), list, "nothing below changed");
}

/// What a writer, a staging or an instance before this one left half done is nobody's.
#[test]
fn what_is_on_its_way_below_is_not_seen() {
    let below = Below::new();
    fs::create_dir_all(below.path("d/.forebay-aside-400000000001/in")).expect("made");
    for name in [".forebay-part-1-2-3-4", ".forebay-aside-1f", "d/.forebay-aside-2"] {
        below.file(name, 1, 100);
    }
    for name in ["file", "d/.forebay-aside-no", "d/x.forebay-conflict-1f"] {
        below.file(name, 2, 100);
    }
    let instance = start("unseen", "2", &below.text());
    let all = "find . -mindepth 1 -printf '%P\n' | LC_ALL=C sort; cat .forebay-aside-1f 2>&1 || :";
    let seen = above(&instance, all);
    let named = "d\nd/.forebay-aside-no\nd/x.forebay-conflict-1f\nfile\n";
    assert!(seen.starts_with(named) && seen.contains("No such file"), "{seen}");
}

#[test]
fn killed_daemons_bring_back_no_name_and_lose_no_byte() {
    let mut random = Random::new(setting("SEED", 1));
    for round in 0..setting("ROUNDS", 4) {
        let below = Below::with_all_kinds();
        let sums = shell(
            below.place.path(),
            "rm many/f5*; find . -type f -size -100M -print0 | \
        LC_ALL=C sort -z | xargs -0 sha256sum; for n in 5 5{0..9} 5{0..9}{0..9}; do \
        echo again > many/f$n; done",
        );
        let instance = start(&format!("killed{round}"), "2", &below.text());
        let script = format!("cd /forebay; rm many/f5*; {SUMS}");
        let mut command = instance.program(&["bash", "-ec", &script]);
        let mut child = command.stdout(std::process::Stdio::piped()).spawn().expect("forebay runs");
        let requests = || -> u64 {
            let daemons = instance.status()["daemons"].as_array().expect("a list").clone();
            daemons.iter().filter_map(|one| one["state"]["requests"].as_u64()).sum()
        };
        for _ in 0..2 {
            let wanted = requests() + random.below(400);
            wait_for("some requests, or the end", || {
                requests() >= wanted || child.try_wait().expect("it is ours").is_some()
            });
            let daemon = instance.daemon(random.below(2) as usize);
            daemon.kill();
            daemon.wait();
            instance.start_again();
        }
        let output = child.wait_with_output().expect("it ends");
        assert!(output.status.success(), "round {round}");
        assert!(text(&output.stdout) == sums, "round {round}: {}", text(&output.stdout));
        assert_eq!(above(&instance, "ls many | sed -n /^f5/p | wc -l"), "0\n", "round {round}");
    }
}

/// A directory is read once. A file that changed below since it was opened is not mixed.
#[test]
fn what_can_not_be_read_is_refused_by_its_reason() {
    let below = Below::new();
    for directory in ["gone", "there"] {
        fs::create_dir(below.path(directory)).expect("made");
    }
    below.file("there/changed", 1, 10_000);
    below.file("there/removed", 2, 10_000);
    below.file("there/shorter", 3, 9_000_000);
    let instance = start("refused", "2", &below.text());
    let refused = |script: &str| {
        let script = format!("cd /forebay; LC_ALL=C {script}");
        let output = instance.program(&["bash", "-c", &script]).output().expect("forebay runs");
        assert!(!output.status.success(), "{script}");
        text(&output.stderr)
    };
    assert_eq!(above(&instance, "ls there | wc -l; head -c 1 there/shorter | wc -c"), "3\n1\n");
    below.file("there/later", 8, 10);
    assert_eq!(above(&instance, "ls there | wc -l"), "3\n", "read once");
    // Whoever has a file open when it is changed.
    for (name, change) in
        [("changed", "printf x >"), ("removed", "rm"), ("shorter", "truncate -s 9")]
    {
        let there = below.path("there").display().to_string();
        let script =
            format!("exec 3< there/{name}; {change} '{there}/{name}'; cat <&3 | tail -c 1");
        assert!(refused(&format!("set -o pipefail; {script}")).contains("Input/output error"));
    }
    assert!(
        instance.daemon_log(0).contains("changed since it was seen")
            || instance.daemon_log(1).contains("changed since it was seen")
    );
    // What nobody needs from below is written all the same.
    above(
        &instance,
        "echo mine > there/changed; cmp there/changed <(echo mine); rm -f there/removed",
    );
    // A directory that is away for a while.
    fs::rename(below.path("gone"), below.path("away")).expect("renamed");
    assert!(refused("ls gone").contains("Input/output error"));
    assert!(refused("cat gone/back").contains("Input/output error"));
    below.file("away/back", 4, 100);
    fs::rename(below.path("away"), below.path("gone")).expect("renamed");
    assert_eq!(above(&instance, "cat gone/back | wc -c"), "100\n");
}

/// `forebay layout` with its words: what it prints, or refuses with.
fn layout(instance: &Instance, words: &[&str]) -> Result<serde_json::Value, String> {
    let place = instance.place.path();
    let mut command = Command::new(support::profile().join("forebay"));
    command.arg("layout").args(words).env("FOREBAY_NAME", &instance.name);
    command.env("XDG_RUNTIME_DIR", place).env("FOREBAY_DIR", place);
    let output = command.output().expect("forebay runs");
    match output.status.success() {
        true => Ok(serde_json::from_slice(&output.stdout).expect("JSON")),
        false => Err(text(&output.stdout) + &text(&output.stderr)),
    }
}

/// What is in a directory goes by that directory, which hands it down to directories; the setting is the
/// root's.
#[test]
fn a_directory_says_when_it_is_saved() {
    let below = Below::new();
    fs::create_dir_all(below.path("d/e")).expect("made");
    let text = below.text();
    let options = ["--memory", "32MiB", "--ssd", "0", "--backing", &text, "--write-back", "never"];
    let instance = Instance::start("when", &options);
    let of = |path: &str| {
        let path = format!("/forebay/{path}");
        layout(&instance, &["get", "--json", &path]).expect("it is there")["write_back"].clone()
    };
    assert_eq!(of("d"), "never");
    let set = |when, path| layout(&instance, &["set", "--json", "--write-back", when, path]);
    assert_eq!(set("end", "/forebay/d").expect("set")["write_back"], "end");
    above(&instance, "mkdir d/made made; touch d/file");
    let all = [of("d/made"), of("d/e"), of("made")];
    assert_eq!(all, ["end", "end", "never"], "made and brought in after that");
    assert_eq!(of("d/file"), serde_json::Value::Null, "it goes by its directory");
    assert!(set("sometimes", "/forebay/d").expect_err("no time").contains("sometimes"));
    let refused = set("end", "/forebay/d/file").expect_err("a file");
    assert!(refused.to_lowercase().contains("not a directory"), "{refused}");
    let script = "import os; os.setxattr('made', 'user.forebay.write_back', b'cooling'); \
                  print(os.getxattr('made', 'user.forebay.write_back').decode(), os.listxattr('made'))";
    assert_eq!(above(&instance, &format!("python3 -c \"{script}\"")), "cooling []\n");
    let without = Instance::start("without", &["--memory", "32MiB", "--ssd", "0"]);
    let refused = layout(&without, &["set", "--json", "--write-back", "end", "/forebay"]);
    let refused = refused.expect_err("nowhere");
    assert!(refused.contains("no backing directory"), "{refused}");
    let shown = layout(&without, &["get", "--json", "/forebay"]).expect("the root");
    assert_eq!(shown["write_back"], serde_json::Value::Null);
}

/// The daemons read as the instance's owner.
#[test]
fn the_instance_reads_as_its_owner() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("not root: nothing stated");
    }
    let below = Below::new();
    let mode = |path: PathBuf, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("set");
    };
    mode(below.place.path().to_owned(), 0o755);
    fs::create_dir(below.path("closed")).expect("made");
    below.file("secret", 1, 100);
    below.file("open", 2, 100);
    mode(below.path("closed"), 0o700);
    mode(below.path("secret"), 0o600);
    let options = ["--memory", "32MiB", "--ssd", "0", "--backing", &below.text()];
    let owner = Some((4711, 4711));
    let instance = Instance::start_as("owner", &options, owner);
    let script = "cd /forebay; cat open | wc -c; LC_ALL=C cat secret closed/x 2>&1; ls -ld closed";
    let output = instance.program(&["bash", "-c", script]).output().expect("forebay runs");
    let said = text(&output.stdout);
    assert!(said.starts_with("100\n") && said.contains("drwx------"), "{said}");
    assert_eq!(said.matches("Permission denied").count(), 2, "{said}");
}

/// Makes names in each way, each in a directory that nobody has looked into: prints what went wrong.
const MAKE: &str = "
import os
ways = [os.mkdir, lambda it: os.symlink('x', it), lambda it: os.link('file', it)]
for number, name in enumerate(['a/', 'b', 'b/', 'none/', 'none']):
    for way in range(3):
        try: ways[way](f'd{number}{way}/{name}')
        except OSError as error: print(name, error.errno, end=' ')
";

/// Whether a name may be made matters after whether it is there, also if that is known below alone.
#[test]
fn that_a_name_exists_is_said_first() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("not root: nothing stated");
    }
    let below = Below::new();
    let tree = "chmod 755 .; touch file; chmod 777 file
                for d in d{0..4}{0..2}; do mkdir -p $d/a; touch $d/b; chmod 555 $d; done";
    shell(below.place.path(), tree);
    let options = ["--memory", "32MiB", "--ssd", "0", "--backing", &below.text()];
    let instance = Instance::start_as("exists", &options, Some((4711, 4711)));
    let script = format!("cd /forebay; exec python3 -c \"{MAKE}\"");
    // EEXIST; EACCES and ENOENT.
    let right = "a/ 17 a/ 17 a/ 17 b 17 b 17 b 17 b/ 17 b/ 17 b/ 17 \
                 none/ 13 none/ 2 none/ 2 none 13 none 13 none 13 ";
    let output = instance.program(&["bash", "-c", &script]).output().expect("forebay runs");
    assert_eq!(said(output, "making"), right);
}

#[test]
fn a_directory_that_is_not_there_is_one_clear_line() {
    let below = Below::new();
    below.file("file", 1, 1);
    for (name, reason) in [("none", "No such file"), ("file", "Not a directory")] {
        let path = below.path(name);
        let mut command = Command::new(support::profile().join("forebay"));
        let place = tempfile::tempdir().expect("a directory");
        let output = command
            .args(["start", "--name", &format!("t{}-none", std::process::id())])
            .args(["--memory", "32MiB", "--ssd", "0", "--backing"])
            .arg(&path)
            .env("XDG_RUNTIME_DIR", place.path())
            .env("FOREBAY_DIR", place.path())
            .output()
            .expect("forebay runs");
        let said = text(&output.stderr);
        assert!(!output.status.success() && said.contains(reason), "{said}");
        assert!(said.contains(path.to_str().expect("letters")), "{said}");
        assert_eq!(fs::read_dir(place.path()).expect("there").count(), 0, "something is left");
    }
}

#[test]
fn each_host_reads_what_lies_below_by_itself() {
    let below = Below::with_all_kinds();
    let path: &'static str = below.text().leak();
    let Some(world) = World::started(&[("FOREBAY_BACKING", path)]) else { return };
    let (list, sums) = (shell(below.place.path(), LIST), shell(below.place.path(), SUMS));
    for host in HOSTS {
        assert_eq!(world.shell(host, &format!("cd /forebay; {LIST}"), ""), list, "on {host}");
        assert_eq!(world.shell(host, &format!("cd /forebay; {SUMS}"), ""), sums, "on {host}");
    }
    // One cuts what others have read, and makes it long again.
    world.shell("b", "cd /forebay/a; truncate -s 100000 5000000; truncate -s 4000000 5000000", "");
    let right = "sha256sum < <(head -c 100000 $1; head -c 3900000 /dev/zero)";
    let right = said(
        Command::new("bash")
            .args(["-c", right, "", below.path("a/5000000").to_str().expect("")])
            .output()
            .expect("bash runs"),
        right,
    );
    for host in HOSTS {
        assert_eq!(world.shell(host, "sha256sum < /forebay/a/5000000", ""), right, "on {host}");
    }
    world.end();
}
