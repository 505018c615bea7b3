//! pjdfstest on mounts: the POSIX rules of the calls on files, as root with tests as other users,
//! and as an ordinary user on a mount of root and on a mount of its own. A test may fail only if it
//! fails on tmpfs, too.
//!
//! The program comes from the package registry; `make test` installs it in `target/tools`. Needs
//! `/dev/fuse`; without it the tests are skipped.

use crate::support::mounted::{Mounted, has_fuse};
use crate::support::{Instance, skip, text};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Unprivileged user and group that every system has.
const NOBODY: u32 = 65534;
/// Users that the suite uses for operations of unprivileged users.
const OTHERS: [&str; 2] = ["nobody", "daemon"];

/// A copy of the suite and its settings where all users reach them, and a directory of another file
/// system.
struct Suite {
    dir: tempfile::TempDir,
    second: tempfile::TempDir,
    owner: Option<(u32, u32)>,
}

/// Results of the tests.
struct Counts {
    passed: usize,
    skipped: usize,
    failed: BTreeSet<String>,
    all: String,
}

/// The group of a user of the system, by name.
fn group_of(user: &str) -> String {
    let field = |file: &str, dir: usize, value: &str, expected: usize| {
        let all = std::fs::read_to_string(file).expect("readable");
        let rows = all.lines().map(|line| line.split(':').collect::<Vec<_>>());
        let found = rows.into_iter().find(|row| row.get(dir) == Some(&value));
        found.and_then(|row| row.get(expected).map(|&field| field.to_owned()))
    };
    let group = field("/etc/passwd", 0, user, 3).expect("every system has the user");
    field("/etc/group", 2, &group, 0).expect("every system has this group")
}

impl Suite {
    fn new(owner: Option<(u32, u32)>) -> Suite {
        let profile = crate::support::profile();
        let program = profile.parent().unwrap_or(&profile).join("tools/bin/pjdfstest");
        assert!(program.exists(), "{} is missing: make soak installs it", program.display());
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let second = tempfile::tempdir().expect("a directory");
        let suite = Suite { dir, second, owner };
        set_mode(suite.dir.path(), 0o755);
        suite.give(suite.second.path());
        // By another process: a child of a concurrent test could hold a file that this process
        // wrote open for a moment, and then it cannot be executed.
        let copied = Command::new("cp").args([&program, &suite.path("pjdfstest")]).status();
        assert!(copied.expect("cp runs").success());
        for remounts in [false, true] {
            let path = suite.path(Suite::settings(remounts));
            std::fs::write(path, settings_of(remounts)).expect("written");
        }
        // Without it, `mount` calls a helper of the file system for a change of options.
        let mount = suite.path("mount");
        std::fs::write(
            &mount,
            "#!/bin/sh\nPATH=/sbin:/usr/sbin:/bin:/usr/bin exec mount -i \"$@\"\n",
        )
        .expect("written");
        set_mode(&mount, 0o755);
        suite
    }

    const fn settings(remounts: bool) -> &'static str {
        if remounts { "remounts.toml" } else { "settings.toml" }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A directory that the suite may use.
    fn directory(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(&path).expect("a directory");
        self.give(&path);
        path
    }

    fn give(&self, path: &Path) {
        if let Some((user, group)) = self.owner {
            std::os::unix::fs::chown(path, Some(user), Some(group)).expect("root may");
        }
    }

    /// Runs the suite in `at`; as root, the tests that remount `at` run separately, because others
    /// leave files open.
    fn run(&self, at: &Path) -> Counts {
        let mut counts = self.run_part(at, false, &[]);
        if rustix::process::geteuid().is_root() && self.owner.is_none() {
            let more = self.run_part(at, true, &["erofs"]);
            counts.passed += more.passed;
            counts.skipped -= more.passed + more.failed.len();
            counts.failed.extend(more.failed);
            counts.all += &more.all;
        }
        counts
    }

    fn run_part(&self, at: &Path, remounts: bool, patterns: &[&str]) -> Counts {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new(self.path("pjdfstest"));
        let settings = self.path(Suite::settings(remounts));
        command
            .args(["--configuration-file".as_ref(), settings.as_os_str()])
            .args(["--secondary-fs".as_ref(), self.second.path().as_os_str()])
            .args(["--path".as_ref(), at.as_os_str()])
            .args(patterns)
            .env("PATH", format!("{}:{path}", self.dir.path().display()))
            .current_dir("/");
        if let Some((user, group)) = self.owner {
            command.uid(user).gid(group);
        }
        let output = command.output().expect("pjdfstest runs");
        let counts = Counts::of(text(&output.stdout));
        let Counts { passed, skipped, failed, all } = &counts;
        let summary = all.lines().rfind(|line| line.starts_with("Summary: ")).unwrap_or("none");
        let printed = format!("{} failed, {skipped} skipped, {passed} passed", failed.len());
        assert!(summary.contains(&printed), "not {printed}: {summary}\n{}", text(&output.stderr));
        counts
    }
}

/// The settings of the suite.
fn settings_of(remounts: bool) -> String {
    let mut settings = String::from("[features]\n");
    for feature in ["posix_fallocate", "rename_ctime", "utime_now", "utimensat"] {
        writeln!(settings, "{feature} = {{}}").expect("written");
    }
    let others = OTHERS.map(|user| format!("[\"{user}\", \"{}\"]", group_of(user))).join(", ");
    writeln!(settings, "[settings]\nnaptime = 0.01\nallow_remount = {remounts}").expect("written");
    writeln!(settings, "[dummy_auth]\nentries = [{others}]").expect("written");
    settings
}

impl Counts {
    /// Parses the output of the suite: a line `NAME ok`, `NAME skipped` or `NAME FAILED` for each
    /// test.
    fn of(all: String) -> Counts {
        let mut counts = Counts { passed: 0, skipped: 0, failed: BTreeSet::new(), all };
        for line in counts.all.lines() {
            let mut words = line.split_whitespace();
            match (words.next(), words.next(), words.next()) {
                (Some(_), Some("ok"), None) => counts.passed += 1,
                (Some(_), Some("skipped"), None) => counts.skipped += 1,
                (Some(name), Some("FAILED"), None) => {
                    counts.failed.insert(name.to_owned());
                }
                _ => {}
            }
        }
        counts
    }

    /// Prints the result; asserts that no test fails that passed on `local`, and that every test
    /// that ran there ran here.
    fn compare(&self, caller: &str, local: &Counts) {
        let Counts { passed, skipped, failed, .. } = self;
        let printed = format!("{passed} passed, {skipped} skipped, {} failed", failed.len());
        // Not by a macro, whose output is captured: this is also shown when the test passes.
        writeln!(std::io::stderr(), "pjdfstest {caller}: {printed}").expect("standard error");
        let ours: Vec<_> = failed.difference(&local.failed).collect();
        assert!(ours.is_empty(), "{caller}: {ours:?}\n{}", self.all);
        assert!(local.passed > 0, "nothing ran on tmpfs: {}", local.all);
        assert_eq!(
            *skipped, local.skipped,
            "{caller}: fewer tests passed than on tmpfs\n{}",
            self.all
        );
    }
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("changed");
}

#[test]
fn pjdfstest_passes_on_a_mount_as_root() {
    if !has_fuse() {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        skip("not root: only the part of an ordinary user is tested");
        return;
    }
    let suite = Suite::new(None);
    let tmpfs = Tmpfs::mount(suite.directory("tmpfs"));
    let local = suite.run(&tmpfs.at);
    for daemons in ["1", "3"] {
        let options = ["--local", daemons, "--memory", "128MiB"];
        let instance = Instance::start(&format!("posix{daemons}"), &options);
        set_mode(instance.dir.path(), 0o755);
        let mounted = Mounted::new(&instance, "m");
        suite.run(&mounted.at).compare(&format!("as root, {daemons} daemons"), &local);
    }
}

#[test]
fn pjdfstest_passes_on_a_mount_as_an_ordinary_user() {
    if !has_fuse() {
        return;
    }
    let is_root = rustix::process::geteuid().is_root();
    let owner = is_root.then_some((NOBODY, NOBODY));
    let suite = Suite::new(owner);
    let local = suite.run(&suite.directory("tmpfs"));
    if is_root {
        let instance = Instance::start("all", &["--memory", "128MiB"]);
        set_mode(instance.dir.path(), 0o755);
        let mounted = Mounted::new(&instance, "m");
        let own_mount = mounted.path("own");
        std::fs::create_dir(&own_mount).expect("made");
        suite.give(&own_mount);
        suite.run(&own_mount).compare("as an ordinary user on a mount of root", &local);
    }
    let device = std::fs::metadata("/dev/fuse").expect("it is there").permissions().mode();
    if is_root && (device & 0o6 != 0o6 || !is_reachable(&crate::support::profile())) {
        skip("ordinary users cannot mount here: only a mount of root is tested");
        return;
    }
    let instance = Instance::start_as("user", &["--memory", "128MiB"], owner);
    let mounted = Mounted::new(&instance, "m");
    suite.run(&mounted.at).compare("as an ordinary user on a mount of its own", &local);
}

/// True if every user may enter all directories of the path.
fn is_reachable(path: &Path) -> bool {
    let modes = path.ancestors().flat_map(std::fs::metadata);
    modes.into_iter().all(|found| found.permissions().mode() & 0o1 != 0)
}

/// A tmpfs of its own, which may be remounted without harm to others.
struct Tmpfs {
    at: PathBuf,
}

impl Tmpfs {
    fn mount(at: PathBuf) -> Tmpfs {
        let output = Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&at).output();
        let output = output.expect("mount runs");
        assert!(output.status.success(), "{}", text(&output.stderr));
        Tmpfs { at }
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.at).output();
    }
}
