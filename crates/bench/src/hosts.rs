//! Hosts that are emulated on this one: a network namespace each, on one bridge, with a runtime
//! directory of its own and, where it is wanted, a share of a processor (`quota`).
//!
//! A script stands for ssh: it enters a host. All of it goes when the value goes.

use crate::external;
use crate::quota::Quota;
use crate::settings::Place;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

/// Some hosts, and the instance that runs over all of them once it is started.
pub(crate) struct Hosts {
    folder: PathBuf,
    /// Begins the names of all namespaces and cgroups, and is the instance's.
    prefix: String,
    count: usize,
    program: String,
    quotas: Vec<Quota>,
    is_started: bool,
}

/// What a daemon says of itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct State {
    /// Files whose inodes live there.
    pub(crate) files: u64,
    /// Free bytes of its memory.
    pub(crate) memory_free: u64,
}

impl Hosts {
    /// Makes `count` hosts; `program` is forebay. The inner error says what this machine lacks.
    pub(crate) fn new(
        program: &str,
        purpose: &str,
        count: usize,
    ) -> Result<Result<Hosts, &'static str>, String> {
        let prefix = format!("fbb{}{purpose}", std::process::id());
        let hub = format!("{prefix}hub");
        if !external::installed("ip") || !ip(&format!("netns add {hub}")) {
            return Ok(Err("needs root, and ip of iproute2"));
        }
        let folder = std::env::temp_dir().join(&prefix);
        let hosts = Hosts {
            folder,
            prefix,
            count,
            program: program.into(),
            quotas: Vec::new(),
            is_started: false,
        };
        hosts.connect(&hub)?;
        hosts.write_files().map_err(|error| format!("{}: {error}", hosts.folder.display()))?;
        Ok(Ok(hosts))
    }

    fn connect(&self, hub: &str) -> Result<(), String> {
        let mut lines =
            vec![format!("-n {hub} link add br0 type bridge"), format!("-n {hub} link set br0 up")];
        for host in 0..self.count {
            let space = self.name(host);
            lines.extend([
                format!("netns add {space}"),
                format!("-n {space} link set lo up"),
                format!("-n {hub} link add v{host} type veth peer name eth0 netns {space}"),
                format!("-n {hub} link set v{host} master br0 up"),
                format!("-n {space} addr add {}/24 dev eth0", address(host)),
                format!("-n {space} link set eth0 up"),
            ]);
        }
        match lines.iter().find(|line| !ip(line)) {
            Some(line) => Err(format!("failed: ip {line}")),
            None => Ok(()),
        }
    }

    /// The script that stands for ssh, and the file of hosts.
    fn write_files(&self) -> std::io::Result<()> {
        fs::create_dir(&self.folder)?;
        fs::create_dir(self.folder.join("data"))?;
        let folder = self.folder.display();
        let procs = Quota::procs("$host");
        // With a share, a host is one processor: the kernel hands a share out to each processor in
        // turn, and a program that waits on one would take what its daemon needs on another.
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let script = format!(
            "#!/bin/sh\nhost=$1; shift; mkdir -p {folder}/$host\n\
             if [ -e {procs} ]; then\n\
             echo $$ >{procs}\n\
             taskset -cp $((${{host##*[!0-9]}} % {processors})) $$ >/dev/null\n\
             fi\n\
             XDG_RUNTIME_DIR={folder}/$host exec ip netns exec $host \"$@\"\n"
        );
        fs::write(self.script(), script)?;
        fs::set_permissions(self.script(), fs::Permissions::from_mode(0o755))?;
        let line = |host| format!("{} {}\n", self.name(host), address(host));
        fs::write(self.folder.join("nodes"), (0..self.count).map(line).collect::<String>())
    }

    /// Gives each host a group whose share of a processor can be limited. The inner error says what
    /// this machine lacks.
    pub(crate) fn with_quotas(mut self) -> Result<Hosts, &'static str> {
        for host in 0..self.count {
            self.quotas.push(Quota::new(&self.name(host))?);
        }
        Ok(self)
    }

    /// From here on each host has its share of a processor and no more.
    pub(crate) fn limit(&self) -> Result<(), String> {
        self.quotas.iter().try_for_each(Quota::limit)
    }

    /// Seconds of processors that all hosts have used together.
    pub(crate) fn used(&self) -> f64 {
        self.quotas.iter().map(Quota::used).sum()
    }

    /// Each host may use what there is.
    pub(crate) fn unlimit(&self) -> Result<(), String> {
        self.quotas.iter().try_for_each(Quota::unlimit)
    }

    /// Starts an instance with one daemon on each host.
    pub(crate) fn start(&mut self, settings: &[(&str, &str)]) -> Result<(), String> {
        let nodes = self.folder.join("nodes").to_string_lossy().into_owned();
        let mut command = self.forebay(0, &["start", "--hosts", &nodes]);
        command.envs(settings.iter().copied());
        self.is_started = true;
        external::output(&mut command, "forebay start")?;
        // All were started from the first host, where `ip netns exec` has mounted another /sys: without
        // this they would live on its share.
        (0..self.quotas.len()).try_for_each(|host| self.settle(host))
    }

    /// Puts the daemon of a host into the host's group, and on its processor.
    fn settle(&self, host: usize) -> Result<(), String> {
        let status = self.status(host)?;
        let daemons = status["daemons"].as_array().into_iter().flatten();
        let own = daemons.into_iter().find(|daemon| daemon["index"] == host as u64);
        let pid = own.and_then(|daemon| daemon["pid"].as_u64());
        let pid = pid.ok_or_else(|| format!("no pid of host {host}: {status}"))?.to_string();
        if let Some(quota) = self.quotas.get(host) {
            quota.take(&pid)?;
        }
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let mut command = Command::new("taskset");
        command.args(["-acp", &(host % processors).to_string(), &pid]);
        external::output(&mut command, "taskset").map(drop)
    }

    /// Ends the instance; another can be started then.
    pub(crate) fn stop(&mut self) -> Result<(), String> {
        self.is_started = false;
        external::output(&mut self.forebay(0, &["stop"]), "forebay stop").map(drop)
    }

    fn status(&self, host: usize) -> Result<Value, String> {
        let text = external::output(&mut self.forebay(host, &["status", "--json"]), "forebay")?;
        serde_json::from_str(&text).map_err(|error| format!("forebay status: {error}"))
    }

    /// The daemon of a host.
    pub(crate) fn state(&self, host: usize) -> Result<State, String> {
        let status = self.status(host)?;
        // Of the others it says where they are, or nothing.
        let daemons = status["daemons"].as_array().into_iter().flatten();
        let own = daemons.into_iter().find(|daemon| daemon["index"] == host as u64);
        let of = |name: &str| own.and_then(|daemon| daemon["state"][name].as_u64());
        match (of("files"), of("memory_free")) {
            (Some(files), Some(memory_free)) => Ok(State { files, memory_free }),
            _ => Err(format!("forebay status: {status}")),
        }
    }

    /// How to see the instance from a host.
    pub(crate) fn place(&self, host: usize) -> Place {
        let mut through = self.through(host);
        through.extend([&self.program, "run", "--name", &self.prefix, "--"].map(String::from));
        Place { name: "forebay".into(), directory: "/forebay".into(), through }
    }

    /// Mounts the instance on a host, and says how to see the mount: it is in a mount namespace
    /// of that host's own.
    pub(crate) fn mount(&self, host: usize) -> Result<Place, String> {
        let at = self.folder.join(format!("mount{host}"));
        fs::create_dir(&at).map_err(|error| format!("{}: {error}", at.display()))?;
        let directory = at.to_string_lossy().into_owned();
        let mut command = self.forebay(host, &["mount", "--json", &directory]);
        let said = external::output(&mut command, "forebay mount")?;
        let said: Value =
            serde_json::from_str(&said).map_err(|error| format!("forebay mount: {error}"))?;
        let pid = said["pid"].as_u64().ok_or_else(|| format!("forebay mount: {said}"))?;
        let through = ["nsenter", "-m", "-t", &pid.to_string()].map(String::from).to_vec();
        Ok(Place { name: "mounts".into(), directory, through })
    }

    /// The command in front of a program that is to run on a host.
    pub(crate) fn through(&self, host: usize) -> Vec<String> {
        vec![self.script().to_string_lossy().into_owned(), self.name(host)]
    }

    fn name(&self, host: usize) -> String {
        format!("{}{host}", self.prefix)
    }

    fn script(&self) -> PathBuf {
        self.folder.join("enter")
    }

    fn forebay(&self, host: usize, words: &[&str]) -> Command {
        let mut command = crate::crew::command(&self.through(host), &self.program);
        command
            .args(words)
            .env("FOREBAY_NAME", &self.prefix)
            .env("FOREBAY_SSH", self.script())
            .env("FOREBAY_DIR", self.folder.join("data"))
            .env("FOREBAY_SSD", "0");
        command
    }
}

/// Where a host is reached by the others.
pub(crate) fn address(host: usize) -> String {
    format!("10.78.0.{}", host + 1)
}

impl Drop for Hosts {
    fn drop(&mut self) {
        if self.is_started && self.stop().is_err() {
            eprintln!("forebay-bench: instance {} could not be stopped", self.prefix);
        }
        self.quotas.clear();
        for host in 0..self.count {
            ip(&format!("netns del {}", self.name(host)));
        }
        ip(&format!("netns del {}hub", self.prefix));
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn ip(words: &str) -> bool {
    let output = Command::new("ip").args(words.split(' ')).output();
    output.is_ok_and(|output| output.status.success())
}
