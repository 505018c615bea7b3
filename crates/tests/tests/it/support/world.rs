//! Three separate hosts: network namespaces on one bridge, each with a runtime directory of its
//! own; `FOREBAY_SSH` enters them. Network namespaces need root.

pub(crate) mod switch;

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU16, Ordering};

use serde_json::Value;
use shm::host::HostSegment;

use super::{profile, skip};
use switch::Switch;

/// The names of the hosts.
pub(crate) const HOSTS: [&str; 3] = ["a", "b", "c"];
/// Name of a host that tests add (`World::add_host`).
pub(crate) const SPARE: &str = "d";
/// The last host has two daemons, so that a host's first daemon number is not its index in the
/// file.
const FILE: &str = "a 10.79.0.1\nb 10.79.0.2\nc:2 10.79.0.3\n";

/// Writes without end, each thread in its file, over the first 8 MiB again and again.
pub(crate) const WRITERS: &str = r"
import os, sys, threading
def write(path):
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    block, at = bytes(256 << 10), 0
    while True:
        os.pwrite(fd, block, at)
        at = (at + len(block)) % (8 << 20)
for path in sys.argv[1:]:
    threading.Thread(target=write, args=(path,), daemon=True).start()
print('ready', os.getpid(), flush=True)
for line in sys.stdin: print('ok', flush=True)
os._exit(0)
";

/// Runs a program on a host, in place of ssh. A command that asks a host for what the file `kill-at`
/// names (`World::kill_at`) is killed before, or after.
const ENTER: &str = r#"#!/bin/sh
host=$1; shift; mkdir -p ROOT/$host
export XDG_RUNTIME_DIR=ROOT/$host
if [ -e ROOT/kill-at ] && read moment request <ROOT/kill-at && [ "$2" = "$request" ] &&
    mv ROOT/kill-at ROOT/killed-at 2>/dev/null
then
    [ $moment = before ] || ip netns exec PREFIX$host "$@" >/dev/null
    kill -KILL $PPID
    exit
fi
exec ip netns exec PREFIX$host "$@"
"#;

/// The hosts, and an instance over them.
pub(crate) struct World {
    root: tempfile::TempDir,
    /// Prefix of the names of the namespaces.
    pub(crate) prefix: String,
    /// Settings of the instance.
    pub(crate) settings: Vec<(&'static str, &'static str)>,
    /// In place of the bridge.
    switch: Option<Switch>,
}

impl World {
    /// Hosts without an instance. `None` after a skip note where namespaces are not permitted.
    pub(crate) fn new() -> Option<World> {
        /// Distinguishes the worlds of one process.
        static NUMBER: AtomicU16 = AtomicU16::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let root = tempfile::tempdir().expect("a directory");
        let world = World {
            root,
            prefix: format!("fbt{}x{number}", std::process::id()),
            settings: Vec::new(),
            switch: None,
        };
        let hub = format!("{}hub", world.prefix);
        if !ip(&format!("netns add {hub}")) {
            skip("network namespaces are not permitted here (root and 'ip' are needed)");
            return None;
        }
        let mut done = ip(&format!("-n {hub} link add br0 type bridge"))
            && ip(&format!("-n {hub} link set br0 up"));
        for (number, host) in HOSTS.into_iter().enumerate() {
            done = done && world.add_host(host, number + 1);
        }
        fs::create_dir(world.path("data")).expect("a directory");
        let root = world.root.path().display().to_string();
        let script = ENTER.replace("ROOT", &root).replace("PREFIX", &world.prefix);
        // By a process of its own: while a child of another test holds the file open for writing,
        // as between fork and exec, it cannot be executed.
        let write = ["-c", "printf %s \"$1\" >\"$2\" && chmod 755 \"$2\"", "sh", &script];
        let written = Command::new("sh").args(write).arg(world.path("ssh")).status();
        assert!(written.expect("sh runs").success(), "the script is not written");
        fs::write(world.path("nodes"), FILE).expect("written");
        done.then_some(world)
    }

    /// Adds a host with the address 10.79.0.`number`. False if that is not possible.
    pub(crate) fn add_host(&self, host: &str, number: usize) -> bool {
        let (space, hub) = (format!("{}{host}", self.prefix), format!("{}hub", self.prefix));
        let steps = [
            format!("netns add {space}"),
            format!("-n {space} link set lo up"),
            format!("-n {hub} link add v{host} type veth peer name eth0 netns {space}"),
            format!("-n {hub} link set v{host} master br0 up"),
        ];
        steps.iter().all(|words| ip(words)) && self.has_address(host, number)
    }

    /// With an instance of these settings.
    pub(crate) fn started(settings: &[(&'static str, &'static str)]) -> Option<World> {
        let mut world = World::new()?;
        world.settings = settings.to_vec();
        world.start();
        Some(world)
    }

    /// With an instance of these settings on hosts that have a switch of the test between them and to the
    /// spare host. `None` after a skip note where that is impossible.
    pub(crate) fn switched(settings: &[(&'static str, &'static str)]) -> Option<World> {
        let mut world = World::new()?;
        assert!(world.add_host(SPARE, HOSTS.len() + 1), "a spare host");
        for host in HOSTS.into_iter().chain([SPARE]) {
            assert!(
                ip(&format!("-n {}{host} link del eth0", world.prefix)),
                "{host} is on the bridge"
            );
        }
        world.switch = Switch::new(&world.prefix);
        if world.switch.is_none() {
            skip(
                "a switch in user space is not possible here (python3 and /dev/net/tun are needed)",
            );
            return None;
        }
        for (number, host) in (1..).zip(HOSTS.into_iter().chain([SPARE])) {
            assert!(world.has_address(host, number), "{host} is on the switch");
        }
        world.settings = settings.to_vec();
        world.start();
        Some(world)
    }

    /// The switch of `switched`.
    pub(crate) fn switch(&self) -> &Switch {
        self.switch.as_ref().expect("a world with a switch")
    }

    /// Gives `eth0` of a host its address.
    fn has_address(&self, host: &str, number: usize) -> bool {
        let space = format!("{}{host}", self.prefix);
        ip(&format!("-n {space} addr add 10.79.0.{number}/24 dev eth0"))
            && ip(&format!("-n {space} link set eth0 up"))
    }

    /// With an instance whose directory `/forebay/d` has its files on host b, behind a link of 10 MB/s.
    pub(crate) fn with_slow_link() -> Option<World> {
        let world = World::started(&[])?;
        world.ok("a", &["pool", "create", "far", "--targets", "1"]);
        world.shell("a", "mkdir $1", "/forebay/d");
        world.ok("a", &["layout", "set", "--pool", "far", "/forebay/d"]);
        world.throttle("b", "80mbit", "256kb").then_some(world)
    }

    /// With an instance whose directories all have the mode `posix`.
    pub(crate) fn posix() -> Option<World> {
        World::started(&[("FOREBAY_CONSISTENCY", "posix")])
    }

    /// Starts the instance, or its daemons that are not running.
    pub(crate) fn start(&self) {
        self.ok("a", &["start", "--hosts", &self.path("nodes").to_string_lossy()]);
    }

    /// Stops the instance; nothing of it is left then.
    pub(crate) fn end(&self) {
        self.ok("a", &["stop"]);
        self.assert_nothing_left();
    }

    /// The daemons of a host, as it reports them. Those of all hosts are reported, and the exit code
    /// is 1 if one of them is dead.
    pub(crate) fn daemons(&self, host: &str) -> Vec<Value> {
        let output = self.on(host, &["status", "--json"]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(matches!(output.status.code(), Some(0 | 1)), "on {host}: {output:?}");
        let status: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}"));
        let daemons = status["daemons"].as_array().expect("daemons").iter();
        daemons.filter(|daemon| daemon["host"] == host).cloned().collect()
    }

    /// The status of the first daemon of a host.
    pub(crate) fn daemon(&self, host: &str) -> Value {
        let daemons = self.daemons(host);
        let own = daemons.iter().find(|one| one["state"]["requests"].is_u64());
        own.unwrap_or_else(|| panic!("no daemon of {host}: {daemons:?}")).clone()
    }

    /// The process id of the first daemon of a host.
    pub(crate) fn pid(&self, host: &str) -> u32 {
        let pid = self.daemon(host)["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
        pid.expect("a pid")
    }

    /// Requests that the first daemon of a host has answered or forwarded.
    pub(crate) fn requests(&self, host: &str) -> u64 {
        self.daemon(host)["state"]["requests"].as_u64().expect("a number")
    }

    /// Programs of a host that use the instance and that its first daemon has not found dead.
    pub(crate) fn programs(&self, host: &str) -> usize {
        let user = rustix::process::geteuid().as_raw();
        let number = HOSTS.iter().position(|one| *one == host).expect("a host");
        let path = format!("/dev/shm/forebay-{user}-{}/h{number}/host", self.prefix);
        let path = std::ffi::CString::new(path).expect("a path");
        let (segment, _) = HostSegment::create_or_open(&path).expect("the host segment");
        let mut count = 0;
        segment.process_list(&mut |_| count += 1);
        count
    }

    /// Writes a script for the `exec` of an agent, with values put in for words; returns the
    /// command for the agent.
    pub(crate) fn script(&self, name: &str, text: &str, words: &[(&str, &str)]) -> String {
        let put = |text: String, (word, value): &(&str, &str)| text.replace(word, value);
        let text = words.iter().fold(text.to_owned(), put);
        let path = self.path(name);
        fs::write(&path, text).expect("written");
        format!("exec {}", path.to_string_lossy())
    }

    /// A file in the directory of this world.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// Runs `forebay WORDS` on a host.
    pub(crate) fn on(&self, host: &str, words: &[&str]) -> Output {
        self.command(host, words).output().expect("the script runs")
    }

    /// Runs `forebay WORDS` on the first host, where it is killed `before` or `after` the first of its
    /// requests of a kind to another host, such as `before daemon-start`. It ends no other way.
    pub(crate) fn killed_at(&self, moment: &str, words: &[&str]) {
        fs::write(self.path("kill-at"), format!("{moment}\n")).expect("written");
        let output = self.on("a", words);
        let was_killed = fs::remove_file(self.path("killed-at")).is_ok();
        let signal = output.status.signal();
        assert!(was_killed && signal == Some(9), "{words:?} {moment}: {output:?}");
    }

    /// As `on`, not yet started.
    pub(crate) fn command(&self, host: &str, words: &[&str]) -> Command {
        let mut command = Command::new(self.path("ssh"));
        command
            .arg(host)
            .arg(profile().join("forebay"))
            .args(words)
            .env("FOREBAY_NAME", &self.prefix)
            .env("FOREBAY_SSH", self.path("ssh"))
            .env("FOREBAY_DIR", self.path("data"))
            .env("XDG_DATA_HOME", self.path("state"))
            .env("XDG_STATE_HOME", self.path("state"))
            .env("FOREBAY_MEMORY", "64MiB")
            .env("FOREBAY_SSD", "64MiB")
            .env("FOREBAY_TIMEOUT", "10s")
            .env("FOREBAY_ACCESS", "preload")
            .env("FOREBAY_MONITOR", "off")
            .envs(self.settings.iter().copied());
        command
    }

    /// Output of `forebay WORDS` on a host; it must succeed.
    pub(crate) fn ok(&self, host: &str, words: &[&str]) -> String {
        let output = self.on(host, words);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "on {host} {words:?}: {text}{errors}");
        text
    }

    /// Output of a shell on a host.
    pub(crate) fn shell(&self, host: &str, script: &str, argument: &str) -> String {
        self.ok(host, &["run", "--", "sh", "-c", script, "sh", argument])
    }

    /// Limits what reaches a host to a rate, in words of `tc`: `80mbit`, with bursts of `256kb`. False,
    /// and the test is counted as skipped, where that is not possible.
    pub(crate) fn throttle(&self, host: &str, rate: &str, burst: &str) -> bool {
        let limit = ["tbf", "rate", rate, "burst", burst, "latency", "50ms"];
        self.limit("hub", &format!("v{host}"), &limit)
    }

    /// As `throttle`, for what leaves a host.
    pub(crate) fn throttle_from(&self, host: &str, rate: &str, burst: &str) -> bool {
        let limit = ["tbf", "rate", rate, "burst", burst, "latency", "50ms"];
        self.limit(host, "eth0", &limit)
    }

    fn limit(&self, space: &str, device: &str, limit: &[&str]) -> bool {
        let is_limited = self.queue("add", (space, device), limit);
        if !is_limited {
            skip("links cannot be throttled here ('tc' and 'tbf' are needed)");
        }
        is_limited
    }

    /// Ends `throttle`.
    pub(crate) fn unthrottle(&self, host: &str) {
        let is_done = self.queue("del", ("hub", &format!("v{host}")), &[]);
        assert!(is_done, "the link to {host} stays throttled");
    }

    /// Ends `throttle_from`.
    pub(crate) fn unthrottle_from(&self, host: &str) {
        assert!(self.queue("del", (host, "eth0"), &[]), "the link from {host} stays throttled");
    }

    /// Changes the queue of a device in a namespace.
    fn queue(&self, verb: &str, (space, device): (&str, &str), words: &[&str]) -> bool {
        let space = format!("{}{space}", self.prefix);
        let mut command = Command::new("tc");
        command.args(["-n", &space, "qdisc", verb, "dev", device, "root"]).args(words);
        command.status().is_ok_and(|status| status.success())
    }

    /// Asserts that no file of the instance is left anywhere.
    pub(crate) fn assert_nothing_left(&self) {
        for dir in ["data", "a", "b", "c", SPARE].map(|name| self.path(name)) {
            let left = fs::read_dir(&dir).into_iter().flatten().flatten();
            let left: Vec<_> = left.map(|entry| entry.path()).collect();
            let deep = Command::new("find").args(&left).output().expect("find");
            assert!(left.is_empty(), "{}", String::from_utf8_lossy(&deep.stdout));
        }
        let shared = fs::read_dir("/dev/shm").expect("a listing").flatten();
        let is_ours = |name: &str| name.ends_with(&format!("-{}", self.prefix));
        let left = shared.filter(|entry| is_ours(&entry.file_name().to_string_lossy()));
        assert_eq!(left.count(), 0);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Shows the logs before they are removed.
            let find = ["-name", "*.log", "-exec", "tail", "-v", "-n", "40", "{}", "+"];
            let logs = Command::new("find").arg(self.root.path()).args(find).output();
            logs.iter().for_each(|it| eprintln!("{}", String::from_utf8_lossy(&it.stdout)));
        }
        // A failed test would leave its daemons running.
        let _ = self.on("a", &["stop"]);
        for host in HOSTS.into_iter().chain([SPARE, "hub"]) {
            let _ = ip(&format!("netns del {}{host}", self.prefix));
        }
    }
}

/// Runs `ip`; true if it succeeded.
pub(crate) fn ip(words: &str) -> bool {
    let output = Command::new("ip").args(words.split(' ')).output();
    output.is_ok_and(|output| output.status.success())
}
