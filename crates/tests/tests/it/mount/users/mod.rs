//! Mounts of users other than root: with the system's `fusermount3`, and in a user namespace of
//! their own without it. The same commands work for them, and a refusal is one clear line.
//!
//! Needs root, to become another user, and `/dev/fuse`, `fusermount3` and namespaces; without one
//! of them the tests are skipped. The device may be closed to users here, so the test creates
//! another one in a mount namespace and runs entirely there.

mod identities;

use crate::support::{skip, text};
use rustix::process::geteuid;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The user `nobody`.
const USER: &str = "65534";

/// Directories of a user, `$U`, with the programs in `$U/bin`.
pub(crate) struct World {
    dir: tempfile::TempDir,
    name: String,
}

impl World {
    pub(crate) fn new(name: &str) -> Option<World> {
        let what = match () {
            () if !geteuid().is_root() => "root",
            () if !Path::new("/dev/fuse").exists() => "/dev/fuse",
            () if !succeeds("fusermount3 --version") => "fusermount3",
            () if !succeeds("unshare -m true") => "a mount namespace",
            () if !succeeds("cd / && setpriv --reuid 65534 unshare -Urm true") => {
                "a user namespace"
            }
            () => {
                let dir = tempfile::tempdir().expect("a directory");
                let open = std::fs::Permissions::from_mode(0o755);
                std::fs::set_permissions(dir.path(), open).expect("chmod");
                return Some(World { dir, name: format!("t{}-{name}", std::process::id()) });
            }
        };
        skip(&format!("{what} is missing"));
        None
    }

    /// Runs a script of the user with everything that it needs; `enter` is the command that runs
    /// it.
    fn script(&self, enter: &str, script: &str) -> Output {
        let prepare = "set -e
            mkdir -p $U/bin $U/m $U/n $U/taken && chown $USER_ID $U $U/* && chmod 700 $U
            mount -t tmpfs none $U/taken && echo of-the-host >$U/taken/own
            echo for-the-group >$P/shared && chgrp 4242 $P/shared && chmod 640 $P/shared
            mount --bind $BUILT $U/bin
            [ -e $P/fuse ] || { mknod $P/fuse c 10 229 && chmod 666 $P/fuse; }
            mount --bind $P/fuse /dev/fuse
            cd $U && exec setpriv --reuid $USER_ID --regid $USER_ID --groups 4242 $0 sh -c \"$1\"";
        let enter_words = enter.split(' ').filter(|word| !word.is_empty());
        let prepare = prepare.replace("$0", &enter_words.collect::<Vec<_>>().join(" "));
        let mut command = Command::new("unshare");
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("FOREBAY_")) {
            command.env_remove(name);
        }
        command
            .args(["-m", "sh", "-c", &prepare, "sh", script])
            .env("P", self.dir.path())
            .env("U", self.user())
            .env("USER_ID", USER)
            .env("BUILT", crate::support::profile())
            .env("HOME", self.user())
            .env("XDG_RUNTIME_DIR", self.user())
            .env("FOREBAY_DIR", self.user())
            .env("FOREBAY_NAME", &self.name)
            .env("FOREBAY_MEMORY", "32MiB")
            .env("FOREBAY_SSD", "0")
            // Scripts that are about the shared mount unset it.
            .env("FOREBAY_ACCESS", "preload")
            .output()
            .expect("unshare runs")
    }

    fn user(&self) -> PathBuf {
        self.dir.path().join("u")
    }

    /// The script's output; it must succeed and leave nothing of the instance.
    pub(crate) fn printed(&self, enter: &str, script: &str) -> String {
        let output = self.script(enter, script);
        let printed = format!("{}{}", text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{printed}");
        let left = std::fs::read_dir("/dev/shm").expect("a listing").flatten();
        let left = left.filter(|entry| entry.file_name().to_string_lossy().contains(&self.name));
        assert_eq!(left.count(), 0, "{printed}");
        printed
    }
}

fn succeeds(script: &str) -> bool {
    Command::new("sh").args(["-c", script]).output().is_ok_and(|output| output.status.success())
}

/// Everything that is done with a mount.
const WORK: &str = r#"
set -e
trap 'bin/forebay stop >/dev/null 2>&1 || true' EXIT
bin/forebay start --mount m >/dev/null
echo by-the-mount >m/f
bin/forebay run -- cat /forebay/f
bin/forebay run -- sh -c 'echo by-preload >/forebay/g'
cat m/g
[ "$(stat -c %u m/f m/g m | sort -u)" = "$(id -u)" ]
bin/forebay run --access mount --at $U/n -- \
    sh -c 'cat n/f; ln n/f n/h; chmod 600 n/h; rm n/f; stat -c %a%h n/h'
bin/forebay umount n >/dev/null
[ -z "$(ls n)" ]
exec 3<m/g
bin/forebay umount m 2>&1 || true
exec 3<&-
bin/forebay umount m
bin/forebay mount m
bin/forebay stop
ls m
"#;

/// Checks the output of `WORK`.
fn assert_work(printed: &str, world: &World) {
    let (u, name) = (world.user().display().to_string(), &world.name);
    let busy = printed.lines().find(|line| line.contains("cannot unmount")).unwrap_or_default();
    assert!(
        busy.contains("in use by sh (process ") && busy.ends_with("or give --lazy"),
        "{printed}"
    );
    let rest: Vec<&str> = printed.lines().filter(|line| *line != busy).collect();
    let expected = format!(
        "by-the-mount\nby-preload\nby-the-mount\n6001\nunmounted {u}/m\nmounted instance {name} on \
         {u}/m\nstopped instance {name}: 2 files, 8.0 KiB removed"
    );
    assert_eq!(rest.join("\n"), expected);
}

#[test]
fn an_ordinary_user_mounts_with_the_helper() {
    let Some(world) = World::new("helper") else { return };
    assert_work(&world.printed("", WORK), &world);
}

#[test]
fn the_root_of_a_user_namespace_needs_no_helper() {
    let Some(world) = World::new("userns") else { return };
    // Hidden, so that nothing can query it.
    let hidden = format!(
        "for file in $(command -v fusermount3); do mount --bind /dev/null $file; done\n{WORK}"
    );
    assert_work(&world.printed("unshare -Urm", &hidden), &world);
}

/// A mount for all users, where the kernel provides a mount namespace for root, and where it does
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
fn a_mount_for_all_users_needs_no_namespace_of_its_own() {
    let Some(world) = World::new("aside") else { return };
    let printed = world.printed("unshare -Urm", ASIDE);
    assert_eq!(printed, "/instance\naside\n1\n/\nplainly\n1\n");
}

/// Work on a mount inside a user namespace, of an instance outside; user numbers are those of both
/// sides.
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
    let printed = world.printed("", BOTH);
    let expected = format!(
        "m 0 0\nm/f 0 0\nm/d 0 0\noutside\n1\noutside\ninside\n\
         /forebay/f {USER} {USER} 640\n/forebay/d/e {USER} {USER} 755\n/forebay/d/g {USER} {USER} 644\n"
    );
    assert_eq!(printed, expected);
}

#[test]
fn a_refused_user_gets_one_clear_line() {
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
    "#;
    let printed = world.printed("", &format!("{script}\ntrue"));
    let mut lines = printed.lines();
    let mut next = |parts: &[&str]| {
        let line = lines.next().unwrap_or_default();
        assert!(
            parts.iter().all(|part| line.contains(part)),
            "no {parts:?} in {line:?} of {printed}"
        );
    };
    next(&["forebay mount: cannot mount: /: use a directory in it"]);
    next(&["closed", "has no write access"]);
    next(&["/etc", "has no write access"]);
    if !std::fs::read_to_string("/etc/fuse.conf")
        .is_ok_and(|text| text.contains("\nuser_allow_other"))
    {
        next(&["for all", "/etc/fuse.conf has the line 'user_allow_other'"]);
    }
    next(&["only root may mount with --trusted"]);
    next(&["takes the rights of root, or fusermount3 (package fuse3), which is missing"]);
    assert_eq!(lines.next(), None, "{printed}");
}

/// Functions of scripts that use the shared mount.
const START: &str = r#"
set -e
unset FOREBAY_ACCESS
# A program that has ended, and an instance that is stopped, are no faults here.
# Not in a substitution, where dash has no jobs.
end() { while read -r job; do kill $job 2>/dev/null || true; done; }
trap 'jobs -p >left; end <left; bin/forebay stop >/dev/null 2>&1 || true' EXIT
start() { bin/forebay start | sed "s/^started instance [^:]*: //"; }
mounted() { bin/forebay status | sed -n 's/^mount .* by process \([0-9]*\): served.*/\1/p'; }
"#;

/// Commands on an instance at a path that does not exist. A program that is not preloaded does the
/// work, so that it is the mount that serves it.
const ABSENT: &str = r#"
export FOREBAY_AT=/absent/$FOREBAY_NAME
start
if ls $FOREBAY_AT 2>/dev/null; then exit 1; fi
say='echo $(id -u) $(id -g) $(umask) $(pwd)'
[ "$(bin/forebay run -- sh -c "$say")" = "$(sh -c "$say")" ]
bin/forebay run -- busybox sh -c \
    'echo by-busybox >$FOREBAY_AT/f; ls $FOREBAY_AT; stat -c "%u %g" $FOREBAY_AT/f'
bin/forebay run -- cat $FOREBAY_AT/f $P/shared

spaces='readlink /proc/self/ns/mnt /proc/self/ns/user'
mkfifo go
bin/forebay run -- sh -c "$spaces"'; echo $$ >new; mv new pid; read line <go' >one & first=$!
until [ -e pid ]; do :; done
bin/forebay run -- sh -c "$spaces"'; tr "\0" "\n" </proc/$(cat pid)/environ | grep ^FOREBAY_MOUNTED' >two
echo >go
wait $first
head -n 2 two | cmp - one
tail -n 1 two
if sh -c "$spaces" | cmp -s - one; then exit 1; fi

rm pid
pid=$(mounted)
bin/forebay run -- busybox sh -c \
    'echo $$ >new; mv new pid; until grep came $FOREBAY_AT/late 2>/dev/null; do :; done' \
    2>said & first=$!
until [ -e pid ]; do :; done
kill -9 $pid
until now=$(mounted); [ "$now" ] && [ "$now" != $pid ]; do :; done
bin/forebay run -- sh -c "$spaces; echo came-back >\$FOREBAY_AT/late" | cmp - one
wait $first
kill -9 $(mounted)
while [ "$(mounted)" ]; do :; done
bin/forebay run -- bin/forebay run -- busybox cat $FOREBAY_AT/f
bin/forebay umount $FOREBAY_AT 2>&1 | grep -o "only the commands.*see it"
"#;

pub(crate) fn has_busybox() -> bool {
    let has = succeeds("busybox true");
    if !has {
        skip("busybox is missing");
    }
    has
}

/// "All commands of a user on a host share one mount, and in a namespace they can access each
/// other" (docs/semantics/access.md): here by the environment in `/proc`.
#[test]
fn commands_share_a_mount_at_a_path_that_does_not_exist() {
    let Some(world) = World::new("absent").filter(|_| has_busybox()) else { return };
    let printed = world.printed("", &format!("{START}{ABSENT}"));
    let expected = format!(
        "1 daemon, visible at /absent/{} to commands of 'forebay run' only: cannot create \
         /absent/{0}: No such file or directory\nf\n{USER} {USER}\nby-busybox\nfor-the-group\n\
         FOREBAY_MOUNTED=1\ncame-back\nby-busybox\nonly the commands of 'forebay run' see it\n",
        world.name
    );
    assert_eq!(printed, expected);
}

/// Directories of the user: an empty one, one that is created, one that is in use, and one on which
/// only `fusermount3` could mount.
const PLACES: &str = r#"
write='echo $0 >$FOREBAY_AT/f; ls $FOREBAY_AT'
busybox=$(command -v busybox)
for place in n new taken; do
    export FOREBAY_AT=$U/$place
    start
    bin/forebay run -- $busybox sh -c "$write" $place
    ls $FOREBAY_AT
    bin/forebay stop >/dev/null
done
[ -d n ] && [ ! -e new ] && cat taken/own
export FOREBAY_AT=$U/n
sed=$(command -v sed) ls=$(command -v ls)
start() { bin/forebay start | $sed "s/^started instance [^:]*: //"; }
PATH=/nowhere
start
bin/forebay run -- $busybox sh -c "$write" alone
$ls n
"#;

#[test]
fn a_mount_is_for_the_host_where_it_hides_nothing() {
    let Some(world) = World::new("places").filter(|_| has_busybox()) else { return };
    let printed = world.printed("", &format!("{START}{PLACES}"));
    let u = world.user().display().to_string();
    let only = "to commands of 'forebay run' only";
    let expected = format!(
        "1 daemon, visible at {u}/n\nf\nf\n1 daemon, visible at {u}/new\nf\nf\n\
         1 daemon, visible at {u}/taken {only}: {u}/taken has a mount of tmpfs\nf\nown\nof-the-host\n\
         1 daemon, visible at {u}/n {only}: cannot mount on {u}/n: that takes the rights of root, or \
         fusermount3 (package fuse3), which is missing\nf\n"
    );
    assert_eq!(printed, expected);
}

/// Run by root of a user namespace, because only that can forbid further ones.
const FORBIDDEN: &str = r#"
echo 0 >/proc/sys/user/max_user_namespaces
exec setpriv --inh-caps=-all --bounding-set=-all sh -c '
    unset FOREBAY_ACCESS
    export FOREBAY_AT=/absent/$FOREBAY_NAME
    bin/forebay start 2>&1
    for access in auto mount preload; do
        for program in busybox env; do
            bin/forebay run --access $access -- $program true 2>&1
            echo $access $program $?
        done
    done
    bin/forebay stop'
"#;

#[test]
fn where_no_mount_is_allowed_one_line_says_why() {
    let Some(world) = World::new("forbidden").filter(|_| has_busybox()) else { return };
    let printed = world.printed("unshare -Ur", FORBIDDEN);
    let at = format!("/absent/{}", world.name);
    let why = format!(
        "cannot create {at}: No such file or directory; this host allows no mounts in user namespaces \
         (user.max_user_namespaces, kernel.unprivileged_userns_clone, AppArmor or SELinux)"
    );
    let only = format!("only programs that use the C library see {at}");
    let busybox = format!(
        "busybox is statically linked: the preload library cannot be loaded into it, so it would not \
         see {at}: "
    );
    let expected = [
        &*format!("forebay start: {only}: {why}"),
        &*format!("visible at {at} to commands of 'forebay run' that use the C library"),
        &*format!("{busybox}it cannot be mounted: {why}"),
        "auto busybox 126",
        &*format!("forebay run: {only}: {why}"),
        "auto env 0",
        &*format!("forebay run: {why}"),
        "mount busybox 1",
        &*format!("forebay run: {why}"),
        "mount env 1",
        &*format!("{busybox}use --access auto"),
        "preload busybox 126",
        "preload env 0",
        "0 files, 0 B removed",
    ];
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines.len(), expected.len(), "{printed}");
    for (line, expected) in lines.into_iter().zip(expected) {
        assert!(line.ends_with(expected), "no {expected:?} in {line:?} of {printed}");
    }
}
