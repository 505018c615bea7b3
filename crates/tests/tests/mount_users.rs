//! Mounts of users who are not root: by the system's `fusermount3`, and in a user namespace of their own
//! without it. Stated here: the same commands work for them, and what they may not is said in one line.
//!
//! Needs root, to become somebody else, and `/dev/fuse`, `fusermount3` and namespaces; where one of them
//! is missing each test says so and ends. The device may be closed to users here, so that there is
//! another in a mount namespace, where all of a test happens.

mod support;

use rustix::process::geteuid;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use support::text;

/// Who is nobody else.
const USER: &str = "65534";

/// Directories of a user, `$U`, with the programs in `$U/bin`.
struct World {
    place: tempfile::TempDir,
    name: String,
}

impl World {
    fn new(name: &str) -> Option<World> {
        let what = match () {
            () if !geteuid().is_root() => "root",
            () if !Path::new("/dev/fuse").exists() => "/dev/fuse",
            () if !succeeds("fusermount3 --version") => "fusermount3",
            () if !succeeds("unshare -m true") => "a mount namespace",
            () if !succeeds("cd / && setpriv --reuid 65534 unshare -Urm true") => {
                "a user namespace"
            }
            () => {
                let place = tempfile::tempdir().expect("a directory");
                let open = std::fs::Permissions::from_mode(0o755);
                std::fs::set_permissions(place.path(), open).expect("chmod");
                return Some(World { place, name: format!("t{}-{name}", std::process::id()) });
            }
        };
        eprintln!("there is no {what}: nothing was tested");
        None
    }

    /// What a script of the user says, with all that it needs. `enter` is what runs it.
    fn script(&self, enter: &str, script: &str) -> Output {
        let prepare = "set -e
            mkdir -p $U/bin $U/m $U/n && chown $USER_ID $U $U/m $U/n && chmod 700 $U
            mount --bind $BUILT $U/bin
            [ -e $P/fuse ] || { mknod $P/fuse c 10 229 && chmod 666 $P/fuse; }
            mount --bind $P/fuse /dev/fuse
            cd $U && exec setpriv --reuid $USER_ID --regid $USER_ID --clear-groups $0 sh -c \"$1\"";
        let enter_words = enter.split(' ').filter(|word| !word.is_empty());
        let prepare = prepare.replace("$0", &enter_words.collect::<Vec<_>>().join(" "));
        let mut command = Command::new("unshare");
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("FOREBAY_")) {
            command.env_remove(name);
        }
        command
            .args(["-m", "sh", "-c", &prepare, "sh", script])
            .env("P", self.place.path())
            .env("U", self.user())
            .env("USER_ID", USER)
            .env("BUILT", support::profile())
            .env("HOME", self.user())
            .env("XDG_RUNTIME_DIR", self.user())
            .env("FOREBAY_DIR", self.user())
            .env("FOREBAY_NAME", &self.name)
            .env("FOREBAY_MEMORY", "32MiB")
            .env("FOREBAY_SSD", "0")
            .output()
            .expect("unshare runs")
    }

    fn user(&self) -> PathBuf {
        self.place.path().join("u")
    }

    /// The script's output, where it went well, and nothing of the instance is left.
    fn said(&self, enter: &str, script: &str) -> String {
        let output = self.script(enter, script);
        let said = format!("{}{}", text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{said}");
        let left = std::fs::read_dir("/dev/shm").expect("a listing").flatten();
        let left = left.filter(|entry| entry.file_name().to_string_lossy().contains(&self.name));
        assert_eq!(left.count(), 0, "{said}");
        said
    }
}

fn succeeds(script: &str) -> bool {
    Command::new("sh").args(["-c", script]).output().is_ok_and(|output| output.status.success())
}

/// All that is done with a mount.
const WORK: &str = r#"
set -e
trap 'bin/forebay stop >/dev/null 2>&1 || true' EXIT
bin/forebay start --mount m >/dev/null
echo by-the-mount >m/f
bin/forebay run -- cat /forebay/f
bin/forebay run -- sh -c 'echo by-preload >/forebay/g'
cat m/g
[ "$(stat -c %u m/f m/g m | sort -u)" = "$(id -u)" ]
bin/forebay run --mount n -- sh -c 'cat n/f; ln n/f n/h; chmod 600 n/h; rm n/f; stat -c %a%h n/h'
[ -z "$(ls n)" ]
exec 3<m/g
bin/forebay umount m 2>&1 || true
exec 3<&-
bin/forebay umount m
bin/forebay mount m
bin/forebay stop
ls m
"#;

/// What it says.
fn assert_work(said: &str, world: &World) {
    let (u, name) = (world.user().display().to_string(), &world.name);
    let busy = said.lines().find(|line| line.contains("can not unmount")).unwrap_or_default();
    assert!(busy.contains("in use by sh (process ") && busy.ends_with("or say --lazy"), "{said}");
    let rest: Vec<&str> = said.lines().filter(|line| *line != busy).collect();
    let wanted = format!(
        "by-the-mount\nby-preload\nby-the-mount\n6001\n{u}/m is no longer mounted\ninstance {name} is \
         mounted on {u}/m\ninstance {name} is stopped and removed"
    );
    assert_eq!(rest.join("\n"), wanted);
}

#[test]
fn an_ordinary_user_mounts_by_the_helper() {
    let Some(world) = World::new("helper") else { return };
    assert_work(&world.said("", WORK), &world);
}

#[test]
fn the_root_of_a_user_namespace_needs_no_helper() {
    let Some(world) = World::new("userns") else { return };
    // Hidden, so that nobody can ask it.
    let hidden = format!(
        "for file in $(command -v fusermount3); do mount --bind /dev/null $file; done\n{WORK}"
    );
    assert_work(&world.said("unshare -Urm", &hidden), &world);
}

/// A mount for all, where the kernel gives a mount namespace to take the root from, and where it does
/// not.
const ASIDE: &str = r#"
set -e
trap 'bin/forebay stop >/dev/null 2>&1 || true' EXIT
bin/forebay start >/dev/null
mounted() {
    bin/forebay mount --for-all m >/dev/null
    awk '$5 == ENVIRON["U"] "/m" { print $4 }' /proc/self/mountinfo
    echo $1 >m/f
    cat m/f
    stat -c %i m
    bin/forebay umount m >/dev/null
    ls m
}
mounted aside
echo 0 >/proc/sys/user/max_mnt_namespaces
mounted plainly
"#;

#[test]
fn a_mount_for_all_needs_no_namespace_of_its_own() {
    let Some(world) = World::new("aside") else { return };
    let said = world.said("unshare -Urm", ASIDE);
    assert_eq!(said, "/instance\naside\n1\n/\nplainly\n1\n");
}

/// What is done on a mount inside of an instance that runs outside; numbers of users are those of both.
const BOTH: &str = r#"
set -e
trap 'bin/forebay stop >/dev/null 2>&1 || true' EXIT
bin/forebay start >/dev/null
bin/forebay run -- sh -c 'umask 022; echo outside >/forebay/f; mkdir /forebay/d'
unshare -Urm sh -ec '
    bin/forebay mount m >/dev/null
    stat -c "%n %u %g" m m/f m/d
    cat m/f
    echo inside >>m/f
    chown 0:0 m/f
    chmod 640 m/f
    mkdir m/d/e
    touch m/d/g
    bin/forebay status | grep -c "mount .*: served"
    bin/forebay run -- cat /forebay/f
    bin/forebay umount m >/dev/null'
bin/forebay run -- sh -c 'stat -c "%n %u %g %a" /forebay/f /forebay/d/e /forebay/d/g'
bin/forebay stop >/dev/null
"#;

#[test]
fn a_mount_in_a_user_namespace_shows_an_instance_outside_of_it() {
    let Some(world) = World::new("both") else { return };
    let said = world.said("", BOTH);
    let wanted = format!(
        "m 0 0\nm/f 0 0\nm/d 0 0\noutside\n1\noutside\ninside\n\
         /forebay/f {USER} {USER} 640\n/forebay/d/e {USER} {USER} 755\n/forebay/d/g {USER} {USER} 644\n"
    );
    assert_eq!(said, wanted);
}

#[test]
fn what_a_user_may_not_is_said_in_one_line() {
    let Some(world) = World::new("refused") else { return };
    let script = r#"
        trap 'bin/forebay stop >/dev/null 2>&1' EXIT
        bin/forebay start >/dev/null
        bin/forebay mount / 2>&1
        mkdir closed; chmod 500 closed; bin/forebay mount closed 2>&1
        bin/forebay mount /etc 2>&1
        grep -q '^user_allow_other' /etc/fuse.conf 2>/dev/null || bin/forebay mount --for-all m 2>&1
        bin/forebay mount --trusted m 2>&1
        export PATH=/nowhere
        bin/forebay mount m 2>&1
        [ $? = 1 ] && bin/forebay run --mount -- bin/forebay version 2>&1
    "#;
    let said = world.said("", &format!("{script}\ntrue"));
    let mut lines = said.lines();
    let mut next = |parts: &[&str]| {
        let line = lines.next().unwrap_or_default();
        assert!(parts.iter().all(|part| line.contains(part)), "no {parts:?} in {line:?} of {said}");
    };
    next(&["forebay mount: can not mount: /: take a directory below it"]);
    next(&["closed", "has no write access"]);
    next(&["/etc", "has no write access"]);
    if !std::fs::read_to_string("/etc/fuse.conf")
        .is_ok_and(|text| text.contains("\nuser_allow_other"))
    {
        next(&["for all", "/etc/fuse.conf has the line 'user_allow_other'"]);
    }
    next(&["a trusted mount is for root alone"]);
    next(&["takes the rights of root, or fusermount3 (package fuse3), which is missing"]);
    next(&[
        "can not make: /forebay: Permission denied",
        "name a directory of yours behind --mount",
    ]);
    assert_eq!(lines.next(), None, "{said}");
}
