//! The lifecycle of instances, with the real command and a daemon that only reports that it is
//! ready: start, restart, run, stop, on this host and on two hosts that a script simulates. Tested:
//! exit codes, the absence of left-over files, and the texts of failures.

use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Keeps running without a child process, by reading from a descriptor that never gets a byte.
const DAEMON: &str = r#"#!/bin/bash
while [ $# -gt 0 ]; do
    case $1 in
    --config) config=$2 ;;
    --ready-fd) ready=$2 ;;
    esac
    shift 2
done
field() { sed -n "s/^$1\"$2\": \([^,]*\),*$/\1/p" "$config"; }
index=$(field '  ' index)
memory=$(field '  ' memory)
inline=$(field '    ' inline)
timeout=$(field '    ' timeout)
echo "daemon $index, inline $inline, timeout $timeout" >&2
if [ "$memory" = 17825792 ]; then echo 'no space for the arena' >&2; exit 1; fi
eval "echo '{\"ready\":true,\"tcp\":\"127.0.0.1:$((7000 + index))\",\"pid\":$$}' >&$ready; exec $ready>&-"
exec {quiet}<> <(:)
read -r -t 100 -u "$quiet"
"#;

/// Runs the command "on a host": with its own runtime directory. The host `gone` is unreachable.
const SSH: &str = r#"#!/bin/bash
host=$1; shift
if [ "$host" = gone ]; then echo "connect to host gone: no route" >&2; exit 255; fi
mkdir -p "$HOSTS/$host" && XDG_RUNTIME_DIR=$HOSTS/$host exec "$@"
"#;

struct World {
    place: tempfile::TempDir,
    name: String,
}

impl World {
    fn new(name: &str) -> World {
        let place = tempfile::tempdir().expect("a directory");
        for dir in ["run", "data", "lib", "hosts"] {
            fs::create_dir(place.path().join(dir)).expect("a directory");
        }
        let world = World { place, name: format!("test-{}-{name}", std::process::id()) };
        world.program("lib/forebayd", DAEMON);
        world.program("ssh", SSH);
        fs::write(world.path("lib/libforebay_preload.so"), "").expect("written");
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    fn program(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).expect("written");
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o755)).expect("chmod");
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("FOREBAY_")) {
            command.env_remove(name);
        }
        command
            .args(words)
            .env("XDG_RUNTIME_DIR", self.path("run"))
            .env("XDG_CONFIG_HOME", self.path("config"))
            .env("FOREBAY_LIBEXEC", self.path("lib"))
            .env("FOREBAY_DIR", self.path("data"))
            .env("FOREBAY_MEMORY", "16MiB")
            .env("FOREBAY_SSD", "0")
            .env("FOREBAY_ACCESS", "preload")
            .env("FOREBAY_SSH", self.path("ssh"))
            .env("FOREBAY_TIMEOUT", "20s")
            .env("HOSTS", self.path("hosts"));
        command
    }

    fn output(&self, words: &[&str]) -> Output {
        let mut words = words.to_vec();
        if words.first() != Some(&"ls") {
            words.splice(1..1, ["--name", &*self.name]);
        }
        self.command(&words).output().expect("forebay runs")
    }

    fn ok(&self, words: &[&str]) -> Value {
        let output = self.output(words);
        assert!(output.status.success(), "{words:?}: {}", errors(&output));
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    /// Exit code and error text of a command.
    fn fails(&self, words: &[&str]) -> (i32, String) {
        let output = self.output(words);
        (output.status.code().unwrap_or(-1), errors(&output))
    }

    fn assert_nothing_left(&self) {
        for dir in ["run", "data"] {
            let left = fs::read_dir(self.path(dir)).expect("a listing").flatten();
            let left: Vec<_> = left.map(|entry| entry.path()).collect();
            assert!(left.is_empty(), "{left:?}");
        }
        let shared = fs::read_dir("/dev/shm").expect("a listing").flatten();
        let left = shared.filter(|entry| entry.file_name().to_string_lossy().ends_with(&self.name));
        assert_eq!(left.count(), 0);
    }
}

/// Standard error, without the loader's complaint about the empty library.
fn errors(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    text.split_inclusive('\n').filter(|line| !line.starts_with("ERROR: ld.so")).collect()
}

fn pids(status: &Value) -> Vec<i64> {
    let daemons = status["daemons"].as_array().expect("daemons");
    daemons.iter().map(|daemon| daemon["pid"].as_i64().expect("a pid")).collect()
}

#[test]
fn an_instance_starts_restarts_and_stops_without_a_trace() {
    let world = World::new("life");
    assert_eq!(world.fails(&["status"]).0, 3);
    assert_eq!(world.fails(&["stop"]).0, 3);
    let started = world.ok(&["start", "--local", "3", "--json"]);
    assert_eq!((&started["daemons"], &started["started"]), (&3.into(), &3.into()));
    let first = pids(&world.ok(&["status", "--json"]));
    assert_eq!(world.ok(&["start", "--json"])["started"], 0);
    assert_eq!(world.ok(&["ls", "--json"])["instances"][0]["alive"], 3);

    let (code, text) = world.fails(&["start", "--stripe-size", "1MiB"]);
    assert_eq!(code, 1);
    assert!(
        text.contains("runs with stripe-size=4MiB, option --stripe-size asks for 1MiB"),
        "{text}"
    );

    let killed = Command::new("kill").args(["-9", &first[1].to_string()]).status();
    assert!(killed.expect("kill runs").success());
    while world.output(&["status"]).status.success() {}
    assert_eq!(world.fails(&["run", "--", "true"]).0, 1);
    assert_eq!(world.ok(&["start", "--json"])["started"], 1);
    let second = pids(&world.ok(&["status", "--json"]));
    assert_eq!((first[0], first[2]), (second[0], second[2]));
    assert_ne!(first[1], second[1]);

    world.ok(&["stop"]);
    world.assert_nothing_left();
    for pid in second {
        assert!(!Path::new(&format!("/proc/{pid}/exe")).exists());
    }
}

#[test]
fn a_failed_start_shows_the_log_and_leaves_nothing() {
    let world = World::new("fails");
    let (code, text) = world.fails(&["start", "--local", "2", "--memory", "17MiB"]);
    assert_eq!(code, 1);
    assert!(text.starts_with("forebay start: daemon "), "{text}");
    assert!(text.contains("ended before it was ready"), "{text}");
    assert!(text.contains("inline 4096, timeout 20000000\n  no space for the arena"), "{text}");
    world.assert_nothing_left();

    let (code, text) = world.fails(&["start", "--memory", "4Q"]);
    assert_eq!(code, 2);
    assert!(text.contains("memory cannot be \"4Q\": option --memory: give 16MiB"), "{text}");
}

#[test]
fn run_exits_with_the_code_of_its_command() {
    let world = World::new("run");
    let script = |text| world.fails(&["run", "--local", "1", "--", "sh", "-c", text]).0;
    assert_eq!(script("exit 7"), 7);
    assert_eq!(script("kill -TERM $$"), 128 + 15);
    assert_eq!(world.fails(&["run", "--", "no-such-command-here"]).0, 127);
    assert_eq!(world.fails(&["run", "--", "/etc/passwd"]).0, 126);
    let output = world.output(&["run", "--local", "1", "--at", "/x", "--", "sh", "-c", "env; pwd"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let run = world.path("run");
    for expected in
        ["FOREBAY_AT=/x\n", "FOREBAY_HOME=0\n", &format!("FOREBAY_RUN={}", run.display())]
    {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    assert!(text.contains("LD_PRELOAD=") && text.contains("libforebay_preload.so"), "{text}");
    world.assert_nothing_left();
}

#[test]
fn run_says_when_it_makes_an_instance_and_refuses_a_name_that_does_not_run() {
    let world = World::new("typo");
    let (code, text) = world.fails(&["run", "--", "true"]);
    assert_eq!(code, 3);
    assert!(text.contains(&format!("no such instance: {} (option --name)", world.name)), "{text}");
    let (code, text) = world.fails(&["run", "--memory", "16M", "--", "true"]);
    let said = format!("forebay run: no running instance {}: one is made", world.name);
    assert!(code == 0 && text.starts_with(&said), "{text}");
    assert_eq!(world.fails(&["run", "-q", "--local", "1", "--", "true"]), (0, String::new()));
    let unnamed = world.command(&["run", "--", "true"]).output().expect("forebay runs");
    let said = "forebay run: no running instance: one is made for this command and removed with its \
                files afterwards\n";
    assert_eq!((unnamed.status.code(), &*errors(&unnamed)), (Some(0), said));

    world.ok(&["start"]);
    for (words, expected) in [
        (
            &["run", "--timeout", "3s", "--", "true"][..],
            "timeout=20s, option --timeout asks for 3s",
        ),
        (&["run", "--local", "2", "--", "true"], "runs 1 daemon, option --local asks for 2"),
    ] {
        let (code, text) = world.fails(words);
        assert!(code == 1 && text.contains(expected), "{text}");
    }
    assert_eq!(world.fails(&["run", "--timeout", "20s", "--memory", "16M", "--", "true"]).0, 0);
    world.ok(&["stop"]);
    world.assert_nothing_left();
}

#[test]
fn an_instance_for_one_command_is_not_one_that_a_killed_command_left() {
    let world = World::new("left");
    // The shell has the process number that the command has then.
    let script = r#"
        left=$XDG_RUNTIME_DIR/forebay-$(id -u)/run-$$
        mkdir -m 700 "${left%/*}" "$left" && echo '{}' >"$left/instance.json" || exit
        exec "$0" run -- true
    "#;
    let mut shell = Command::new("sh");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_forebay")]);
    for (name, value) in world.command(&[]).get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    let output = shell.output().expect("a shell");
    assert!(output.status.success(), "{}", errors(&output));
    let base = fs::read_dir(world.path("run")).expect("a listing").flatten().next();
    let left = fs::read_dir(base.expect("the left one is in it").path()).expect("a listing");
    assert_eq!(left.flatten().count(), 1, "nothing but the left one");
}

#[test]
fn a_name_may_be_an_argument_and_errors_are_json_on_request() {
    let world = World::new("argument");
    let run = |words: &[&str]| {
        let output = world.command(words).output().expect("forebay runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), text + &errors(&output))
    };
    let name = &*world.name;
    assert_eq!(run(&["start", name, "-m", "16m", "-l", "2"]).0, Some(0));
    assert_eq!(run(&["start", "-n", name]).0, Some(0));
    let (code, text) = run(&["status", name]);
    let expected = format!("instance {name}: 2 daemons without an answer, 2 daemons on 1 host\n");
    assert!(code == Some(0) && text.starts_with(&expected), "{text}");
    let (code, text) = run(&["status", name, "-n", "other"]);
    assert!(code == Some(2) && text.contains("cannot be used with"), "{text}");
    let expected = format!(
        "nothing was saved: instance {name} has no backing directory (use 'forebay stage out')\n"
    );
    assert_eq!(run(&["flush", "--name", name]), (Some(0), expected));
    let (_, text) = run(&["stop", "--dry-run", name]);
    assert_eq!(text, format!("'forebay stop {name}' would remove 0 files, 0 B\n"));
    assert_eq!(run(&["stop", name]).1, format!("stopped instance {name}: 0 files, 0 B removed\n"));
    world.assert_nothing_left();

    for words in [
        &["status", name, "--json"][..],
        &["stage", "in", "--json", "-n", name, "/etc/passwd", "/forebay"],
        &["start", "--json", "--bogus"],
    ] {
        let output = world.command(words).output().expect("forebay runs");
        let line: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert!(line["error"].is_string(), "{line}");
    }
    let (code, text) = run(&["run", "ls"]);
    let tip = "put '--' before the command: 'forebay run -- ls'";
    assert!(code == Some(2) && text.contains(tip), "{text}");
    for words in [&["help"][..], &["help", "run"], &["help", "stage", "in"]] {
        let (code, text) = run(words);
        assert!(code == Some(0) && text.contains("Usage: forebay"), "{text}");
    }
    // No terminal: no colours.
    assert!(!run(&["help"]).1.contains('\x1b') && !run(&["start", "--bogus"]).1.contains('\x1b'));
}

#[test]
fn impossible_settings_are_refused_before_a_daemon_starts() {
    let world = World::new("checks");
    let missing = world.path("missing");
    let file = world.path("ssh");
    for (words, expected) in [
        (["--backing", &*missing.to_string_lossy()], "no such directory: "),
        (["--backing", &*file.to_string_lossy()], "not a directory: "),
        (["--memory", "500TiB"], "too much memory: 500 TiB for 1 daemon: this host has "),
    ] {
        let (code, text) = world.fails(&[&["start"], &words[..]].concat());
        assert!(code == 1 && text.starts_with(&format!("forebay start: {expected}")), "{text}");
        assert!(text.contains("give ") && text.lines().count() == 1, "{text}");
        world.assert_nothing_left();
    }
    world.program("lib/forebayd", "#!/bin/sh\nkill -BUS $$\n");
    let (_, text) = world.fails(&["start"]);
    assert!(text.contains("daemon 0 was killed by SIGBUS (signal 7)"), "{text}");
    world.assert_nothing_left();
}

#[test]
fn an_interrupted_run_stops_its_instance() {
    let world = World::new("signal");
    let begun = world.path("begun");
    let text = format!("trap 'exit 9' TERM; : >{}; while :; do sleep 0.02; done", begun.display());
    let name = world.name.clone();
    let words = ["run", "--name", &name, "--local", "1", "--", "sh", "-c", &text];
    let mut child = world.command(&words).spawn().expect("forebay runs");
    while !begun.exists() {
        assert!(child.try_wait().expect("a child").is_none(), "it ended by itself");
    }
    let sent = Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
    assert!(sent.expect("kill runs").success());
    assert_eq!(child.wait().expect("it ends").code(), Some(9));
    world.assert_nothing_left();
}

/// Nobody reads what a command prints (`forebay run ... 2>&1 | head -n 1`), or there is no room for it:
/// it does its work, and its exit code is the same.
#[test]
fn a_command_whose_output_nobody_takes_does_its_work() {
    let world = World::new("unread");
    let closed = || {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        Stdio::from(writer)
    };
    let full = || Stdio::from(fs::OpenOptions::new().write(true).open("/dev/full").expect("open"));
    // A closed pipe would end the command of `run`, for the loader complains about the empty library
    // there: `starter::a_run_whose_output_nobody_takes_ends_like_any_other`.
    let outputs: [(&dyn Fn() -> Stdio, bool); 2] = [(&closed, false), (&full, true)];
    for (output, runs) in outputs {
        let code = |words: &[&str]| {
            let words = [&words[..1], &["--name", &*world.name], &words[1..]].concat();
            let status = world.command(&words).stdout(output()).stderr(output()).status();
            status.expect("forebay runs").code()
        };
        if runs {
            assert_eq!(code(&["run", "--local", "1", "--", "true"]), Some(0));
            world.assert_nothing_left();
            assert_eq!(code(&["run", "--local", "1", "--", "sh", "-c", "exit 7"]), Some(7));
            world.assert_nothing_left();
        }
        assert_eq!(code(&["status"]), Some(3));
        assert_eq!(code(&["start", "--memory", "a lot"]), Some(2));
        assert_eq!(code(&["start", "--local", "2"]), Some(0));
        assert_eq!(code(&["status", "--json"]), Some(0));
        assert_eq!(code(&["run", "--timeout", "3s", "--", "true"]), Some(1), "it conflicts");
        assert_eq!(code(&["stop"]), Some(0));
        world.assert_nothing_left();
    }
}

#[test]
fn hosts_are_started_together_and_stopped_together() {
    let world = World::new("hosts");
    let file = world.path("nodes");
    let hosts = file.to_string_lossy().into_owned();
    fs::write(&file, "c1:2 127.0.0.1\nc2 127.0.0.1 # one\n").expect("written");
    assert_eq!(world.ok(&["start", "--hosts", &hosts, "--json"])["started"], 3);
    let user = fs::metadata(&file).map(|file| std::os::unix::fs::MetadataExt::uid(&file));
    let run = format!("forebay-{}/{}", user.expect("a file"), world.name);
    for host in ["c1", "c2"] {
        let peers = fs::read_to_string(world.path("hosts").join(host).join(&run).join("peers"));
        assert_eq!(peers.expect("peers").lines().count(), 3, "{host}");
    }
    assert_eq!(world.ok(&["status", "--json"])["daemons"][2]["host"], "c2");
    // A daemon of another host that is dead is reported.
    let killed = pids(&world.ok(&["status", "--json"]))[2];
    let sent = Command::new("kill").args(["-9", &killed.to_string()]).status();
    assert!(sent.expect("kill runs").success());
    while world.output(&["status"]).status.success() {}
    let output = world.output(&["status"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.code() == Some(1) && text.contains("1 daemon dead (restart"), "{text}");
    assert_eq!(world.ok(&["start", "--json"])["started"], 1);
    // The starting host has no daemon: programs run on the other hosts.
    let (code, text) = world.fails(&["run", "--", "true"]);
    assert!(code == 1 && text.contains("no daemon on this host"), "{text}");
    world.ok(&["stop"]);
    world.assert_nothing_left();

    // Two hosts with the same run directory.
    fs::write(&file, "c1 127.0.0.1\nalso-c1 127.0.0.1\n").expect("written");
    std::os::unix::fs::symlink("c1", world.path("hosts").join("also-c1")).expect("a link");
    let (code, text) = world.fails(&["start", "--hosts", &hosts]);
    assert!(code == 1 && text.contains("several hosts have this directory in common"), "{text}");
    fs::remove_file(world.path("hosts").join("also-c1")).expect("removed");
    world.assert_nothing_left();

    fs::write(&file, "c1 127.0.0.1\ngone 127.0.0.1\n").expect("written");
    let (code, text) = world.fails(&["start", "--hosts", &hosts]);
    assert_eq!(code, 1);
    let expected = "forebay start: cannot be reached: host gone: connect to host gone: no route";
    assert!(text.starts_with(expected), "{text}");
    world.assert_nothing_left();
    for host in ["c1", "c2"] {
        assert_eq!(fs::read_dir(world.path("hosts").join(host)).expect("a host").count(), 0);
    }
}
