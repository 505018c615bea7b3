//! Three hosts that are apart: network namespaces on one bridge, each with a runtime directory of
//! its own; `FOREBAY_SSH` enters them. Namespaces need root.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU16, Ordering};

use serde_json::Value;
use shm::host::HostSegment;

use super::profile;

/// Their names.
pub(crate) const HOSTS: [&str; 3] = ["a", "b", "c"];
/// Of the last host two daemons, so that a host's first number is not its place in the file.
const FILE: &str = "a 10.79.0.1\nb 10.79.0.2\nc:2 10.79.0.3\n";

/// The hosts, and an instance over them.
pub(crate) struct World {
    place: tempfile::TempDir,
    /// Begins the names of the namespaces.
    pub(crate) prefix: String,
    /// Settings of the instance.
    pub(crate) settings: Vec<(&'static str, &'static str)>,
}

impl World {
    /// Without an instance. `None`, and said, if namespaces are not permitted.
    pub(crate) fn new() -> Option<World> {
        /// Tells those of one process apart.
        static NUMBER: AtomicU16 = AtomicU16::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let place = tempfile::tempdir().expect("a directory");
        let world = World {
            place,
            prefix: format!("fbt{}x{number}", std::process::id()),
            settings: Vec::new(),
        };
        let hub = format!("{}hub", world.prefix);
        if !ip(&format!("netns add {hub}")) {
            eprintln!("skipped: no network namespaces here (root and 'ip' are needed)");
            return None;
        }
        let mut done = ip(&format!("-n {hub} link add br0 type bridge"))
            && ip(&format!("-n {hub} link set br0 up"));
        for (number, host) in HOSTS.into_iter().enumerate() {
            let space = format!("{}{host}", world.prefix);
            for words in [
                format!("netns add {space}"),
                format!("-n {space} link set lo up"),
                format!("-n {hub} link add v{host} type veth peer name eth0 netns {space}"),
                format!("-n {hub} link set v{host} master br0 up"),
                format!("-n {space} addr add 10.79.0.{}/24 dev eth0", number + 1),
                format!("-n {space} link set eth0 up"),
            ] {
                done = done && ip(&words);
            }
        }
        fs::create_dir(world.path("data")).expect("a directory");
        let script = format!(
            "#!/bin/sh\nhost=$1; shift; mkdir -p {0}/$host\n\
             XDG_RUNTIME_DIR={0}/$host exec ip netns exec {1}$host \"$@\"\n",
            world.place.path().display(),
            world.prefix
        );
        // By a process of its own: while a child of another test holds the file open for writing, as
        // between fork and exec, it can not be run.
        let write = ["-c", "printf %s \"$1\" >\"$2\" && chmod 755 \"$2\"", "sh", &script];
        let written = Command::new("sh").args(write).arg(world.path("ssh")).status();
        assert!(written.expect("sh runs").success(), "the script is not written");
        fs::write(world.path("nodes"), FILE).expect("written");
        done.then_some(world)
    }

    /// With an instance of these settings.
    pub(crate) fn started(settings: &[(&'static str, &'static str)]) -> Option<World> {
        let mut world = World::new()?;
        world.settings = settings.to_vec();
        world.start();
        Some(world)
    }

    /// With an instance, all of whose directories are of the mode `posix`.
    pub(crate) fn posix() -> Option<World> {
        World::started(&[("FOREBAY_CONSISTENCY", "posix")])
    }

    /// Starts the instance, or those of its daemons that are gone.
    pub(crate) fn start(&self) {
        self.ok("a", &["start", "--hosts", &self.path("nodes").to_string_lossy()]);
    }

    /// Stops the instance, of which nothing is left then.
    pub(crate) fn end(&self) {
        self.ok("a", &["stop"]);
        self.assert_nothing_left();
    }

    /// What the status says of the first daemon of a host.
    pub(crate) fn daemon(&self, host: &str) -> Value {
        let text = self.ok(host, &["status", "--json"]);
        let status: Value = serde_json::from_str(&text).expect("JSON");
        let daemons = status["daemons"].as_array().expect("daemons");
        let mut own = daemons.iter().filter(|daemon| daemon["state"]["requests"].is_u64());
        own.next().unwrap_or_else(|| panic!("no daemon of this host: {text}")).clone()
    }

    /// The process of the first daemon of a host.
    pub(crate) fn pid(&self, host: &str) -> u32 {
        let pid = self.daemon(host)["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
        pid.expect("a pid")
    }

    /// Requests that the first daemon of a host has answered or passed on.
    pub(crate) fn requests(&self, host: &str) -> u64 {
        self.daemon(host)["state"]["requests"].as_u64().expect("a number")
    }

    /// Programs of a host that use the instance and of which its first daemon has not found that they are
    /// dead.
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

    /// A script for the `exec` of an agent, with values put in for words; what the agent is to be told.
    pub(crate) fn script(&self, name: &str, text: &str, words: &[(&str, &str)]) -> String {
        let put = |text: String, (word, value): &(&str, &str)| text.replace(word, value);
        let text = words.iter().fold(text.to_owned(), put);
        let path = self.path(name);
        fs::write(&path, text).expect("written");
        format!("exec {}", path.to_string_lossy())
    }

    /// A file beside the instance's.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    /// `forebay` with its words, on a host.
    pub(crate) fn on(&self, host: &str, words: &[&str]) -> Output {
        self.command(host, words).output().expect("the script runs")
    }

    /// As `on`, to be run.
    pub(crate) fn command(&self, host: &str, words: &[&str]) -> Command {
        let mut command = Command::new(self.path("ssh"));
        command
            .arg(host)
            .arg(profile().join("forebay"))
            .args(words)
            .env("FOREBAY_NAME", &self.prefix)
            .env("FOREBAY_SSH", self.path("ssh"))
            .env("FOREBAY_DIR", self.path("data"))
            .env("FOREBAY_MEMORY", "64MiB")
            .env("FOREBAY_SSD", "64MiB")
            .env("FOREBAY_TIMEOUT", "4s")
            .envs(self.settings.iter().copied());
        command
    }

    /// What `forebay` says on a host; it must succeed.
    pub(crate) fn ok(&self, host: &str, words: &[&str]) -> String {
        let output = self.on(host, words);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "on {host} {words:?}: {text}{errors}");
        text
    }

    /// What a shell on a host says.
    pub(crate) fn shell(&self, host: &str, script: &str, argument: &str) -> String {
        self.ok(host, &["run", "--", "sh", "-c", script, "sh", argument])
    }

    /// No file of the instance is left anywhere.
    pub(crate) fn assert_nothing_left(&self) {
        for folder in ["data", "a", "b", "c"].map(|name| self.path(name)) {
            let left = fs::read_dir(&folder).into_iter().flatten().flatten();
            let left: Vec<_> = left.map(|entry| entry.path()).collect();
            let deep = Command::new("find").args(&left).output().expect("find");
            assert!(left.is_empty(), "{}", String::from_utf8_lossy(&deep.stdout));
        }
        let shared = fs::read_dir("/dev/shm").expect("a listing").flatten();
        let is_ours = |name: &str| name.contains(&self.prefix);
        let left = shared.filter(|entry| is_ours(&entry.file_name().to_string_lossy()));
        assert_eq!(left.count(), 0);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Before they are removed.
            let find = ["-name", "*.log", "-exec", "tail", "-v", "-n", "40", "{}", "+"];
            let logs = Command::new("find").arg(self.place.path()).args(find).output();
            logs.iter().for_each(|it| eprintln!("{}", String::from_utf8_lossy(&it.stdout)));
        }
        // A failed test leaves its daemons otherwise.
        let _ = self.on("a", &["stop"]);
        for host in HOSTS.into_iter().chain(["hub"]) {
            let _ = ip(&format!("netns del {}{host}", self.prefix));
        }
    }
}

/// The command `ip`; true if it succeeded.
pub(crate) fn ip(words: &str) -> bool {
    let output = Command::new("ip").args(words.split(' ')).output();
    output.is_ok_and(|output| output.status.success())
}
