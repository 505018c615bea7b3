//! Hosts emulated on this machine. Each host has its own network namespace on a common bridge, its
//! own runtime directory and, if requested, a CPU quota (`quota`).
//!
//! A script that enters a host replaces ssh. Dropping `Hosts` removes everything.

use crate::environment::quota::{CpuShare, Quota};
use crate::measure::programs;
use crate::settings::FileSystem;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A set of hosts, and the instance that runs on the first of them, or on all, once it is started.
pub(crate) struct Hosts {
    dir: PathBuf,
    /// Prefix of the names of all namespaces and cgroups, and the name of the instance.
    prefix: String,
    count: usize,
    /// Number of the hosts on which the instance runs.
    members: usize,
    program: String,
    quotas: Vec<Quota>,
    is_started: bool,
}

/// State that a daemon reports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct State {
    /// Number of files whose inodes the daemon owns.
    pub(crate) files: u64,
    /// Free bytes of the daemon's memory tier.
    pub(crate) memory_free: u64,
}

/// Copies of file data, over all daemons that answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CopyState {
    /// Daemons that answer.
    pub(crate) daemons: usize,
    /// Units with fewer copies than they should have, or with none.
    pub(crate) units_short: u64,
    /// Bytes that copies got which are made anew.
    pub(crate) bytes_filled: u64,
}

/// The metadata services of an instance, as its members agree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServiceState {
    /// The host that owns each service; `None`: no host does.
    pub(crate) owners: Vec<Option<usize>>,
    /// Services that go to another host for good.
    pub(crate) moving: u64,
}

/// The death of a host, prepared, so that it happens at once.
pub(crate) struct HostDeath {
    /// Words of `ip` that take its link down.
    link: String,
    pid: String,
    /// The memory and the files of its daemon.
    paths: Vec<PathBuf>,
}

impl HostDeath {
    /// Ends the host: its network, its daemon, its memory and its files.
    pub(crate) fn happen(&self) -> Result<(), String> {
        if !ip(&self.link) {
            return Err(format!("failed: ip {}", self.link));
        }
        programs::output(Command::new("kill").args(["-KILL", &self.pid]), "kill")?;
        for path in &self.paths {
            fs::remove_dir_all(path).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        Ok(())
    }
}

impl Hosts {
    /// Creates `count` hosts; `program` is the path of `forebay`. The inner error says what this
    /// machine lacks.
    pub(crate) fn new(
        program: &str,
        purpose: &str,
        count: usize,
    ) -> Result<Result<Hosts, &'static str>, String> {
        let prefix = format!("fbb{}{purpose}", std::process::id());
        let hub = format!("{prefix}hub");
        if !programs::installed("ip") || !ip(&format!("netns add {hub}")) {
            return Ok(Err("needs root, and ip of iproute2"));
        }
        let dir = std::env::temp_dir().join(&prefix);
        let hosts = Hosts {
            dir,
            prefix,
            count,
            members: count,
            program: program.into(),
            quotas: Vec::new(),
            is_started: false,
        };
        hosts.connect(&hub)?;
        hosts.write_files().map_err(|error| format!("{}: {error}", hosts.dir.display()))?;
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

    /// Writes the script that replaces ssh.
    fn write_files(&self) -> std::io::Result<()> {
        fs::create_dir(&self.dir)?;
        fs::create_dir(self.dir.join("data"))?;
        let dir = self.dir.display();
        let procs = Quota::procs("$host");
        // Under a quota, each host is pinned to one CPU: the kernel hands out the quota to each CPU
        // in slices, and a program that waits on one CPU would use up the slice that its daemon
        // needs on another.
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let script = format!(
            "#!/bin/sh\nhost=$1; shift; mkdir -p {dir}/$host\n\
             if [ -e {procs} ]; then\n\
             echo $$ >{procs}\n\
             taskset -cp $((${{host##*[!0-9]}} % {processors})) $$ >/dev/null\n\
             fi\n\
             XDG_RUNTIME_DIR={dir}/$host exec ip netns exec $host \"$@\"\n"
        );
        fs::write(self.script(), script)?;
        fs::set_permissions(self.script(), fs::Permissions::from_mode(0o755))
    }

    /// A host as a line of the hosts file names it.
    fn line(&self, host: usize) -> String {
        format!("{} {}", self.name(host), address(host))
    }

    /// Creates one cgroup per host, whose CPU time can be limited. The inner error says what this
    /// machine lacks.
    pub(crate) fn with_quotas(mut self) -> Result<Hosts, &'static str> {
        for host in 0..self.count {
            self.quotas.push(Quota::new(&self.name(host))?);
        }
        Ok(self)
    }

    /// Gives each host from `first` on this share of a CPU, and no more.
    pub(crate) fn limit_from(&self, first: usize, share: CpuShare) -> Result<(), String> {
        self.quotas.iter().skip(first).try_for_each(|quota| quota.limit(share))
    }

    /// CPU seconds used by all hosts from `first` on together.
    pub(crate) fn used_from(&self, first: usize) -> f64 {
        self.quotas.iter().skip(first).map(Quota::used).sum()
    }

    /// Lifts the CPU quota of each host.
    pub(crate) fn unlimit(&self) -> Result<(), String> {
        self.quotas.iter().try_for_each(Quota::unlimit)
    }

    /// Limits what each host sends to so many Mbit/s, in a queue as the kernel gives an interface. The
    /// inner error says what this machine lacks.
    pub(crate) fn throttle(&self, mbit: u64) -> Result<Result<(), &'static str>, String> {
        let limit = format!("root handle 1: tbf rate {mbit}mbit burst 16kb latency 100ms");
        for host in 0..self.count {
            for words in [limit.as_str(), "parent 1:1 pfifo_fast"] {
                let mut command = Command::new("tc");
                command.args(["-n", &self.name(host), "qdisc", "add", "dev", "eth0"]);
                match command.args(words.split(' ')).output() {
                    Ok(output) if output.status.success() => {}
                    Ok(_) => return Err(format!("failed: tc qdisc add {words}")),
                    Err(_) => return Ok(Err("needs tc of iproute2")),
                }
            }
        }
        Ok(Ok(()))
    }

    /// Starts an instance with one daemon on each host.
    pub(crate) fn start(&mut self, settings: &[(&str, &str)]) -> Result<(), String> {
        self.start_on(self.count, settings)
    }

    /// Starts an instance with one daemon on each of the first `count` hosts.
    pub(crate) fn start_on(
        &mut self,
        count: usize,
        settings: &[(&str, &str)],
    ) -> Result<(), String> {
        let nodes = self.dir.join("nodes");
        let lines: Vec<String> = (0..count).map(|host| self.line(host) + "\n").collect();
        fs::write(&nodes, lines.concat()).map_err(|error| format!("the hosts file: {error}"))?;
        let mut command = self.forebay(0, &["start", "--hosts", &nodes.to_string_lossy()]);
        command.envs(settings.iter().copied());
        (self.is_started, self.members) = (true, count);
        programs::output(&mut command, "forebay start")?;
        self.assign_daemons(0)
    }

    /// Adds the next hosts to the instance, up to `count` in all.
    pub(crate) fn grow(&mut self, count: usize, timeout: &str) -> Result<(), String> {
        let first = self.members;
        let lines: Vec<String> = (first..count).map(|host| self.line(host)).collect();
        // A daemon gets its part of the processors before services come.
        let mut words = vec!["grow", "--no-wait", "--timeout", timeout];
        words.extend(lines.iter().map(String::as_str));
        programs::output(&mut self.forebay(0, &words), "forebay grow")?;
        self.members = count;
        self.assign_daemons(first)
    }

    /// Has the last hosts leave the instance, so that `count` stay. It may not grow again.
    pub(crate) fn shrink(&mut self, count: usize, timeout: &str) -> Result<(), String> {
        let names: Vec<String> = (count..self.members).map(|host| self.name(host)).collect();
        let mut words = vec!["shrink", "--timeout", timeout];
        words.extend(names.iter().map(String::as_str));
        programs::output(&mut self.forebay(0, &words), "forebay shrink")?;
        self.members = count;
        Ok(())
    }

    /// Moves the daemons of hosts to where they belong. They were started from the first host, where `ip
    /// netns exec` mounted another /sys: until they are moved, they count against its quota.
    fn assign_daemons(&self, first: usize) -> Result<(), String> {
        (first..self.quotas.len().min(self.members)).try_for_each(|host| self.assign_daemon(host))
    }

    /// Process id of the daemon of a host.
    pub(crate) fn daemon_pid(&self, host: usize) -> Result<u64, String> {
        let status = self.status(host)?;
        let daemons = status["daemons"].as_array().into_iter().flatten();
        let own = daemons.into_iter().find(|daemon| daemon["index"] == host as u64);
        let pid = own.and_then(|daemon| daemon["pid"].as_u64());
        pid.ok_or_else(|| format!("no pid of host {host}: {status}"))
    }

    /// Moves the daemon of a host into the host's cgroup and pins it to the host's CPU.
    fn assign_daemon(&self, host: usize) -> Result<(), String> {
        let pid = self.daemon_pid(host)?.to_string();
        if let Some(quota) = self.quotas.get(host) {
            quota.add_process(&pid)?;
        }
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let mut command = Command::new("taskset");
        command.args(["-acp", &(host % processors).to_string(), &pid]);
        programs::output(&mut command, "taskset").map(drop)
    }

    /// Stops the instance; another can then be started. Hosts that died are there again, and empty.
    pub(crate) fn stop(&mut self) -> Result<(), String> {
        self.is_started = false;
        for host in 0..self.count {
            ip(&self.link(host, "up"));
        }
        programs::output(&mut self.forebay(0, &["stop"]), "forebay stop").map(drop)
    }

    fn status(&self, host: usize) -> Result<Value, String> {
        let text = programs::output(&mut self.forebay(host, &["status", "--json"]), "forebay")?;
        serde_json::from_str(&text).map_err(|error| format!("forebay status: {error}"))
    }

    /// State of the daemon of a host.
    pub(crate) fn state(&self, host: usize) -> Result<State, String> {
        let status = self.status(host)?;
        // For other daemons the status has only an address, or nothing.
        let daemons = status["daemons"].as_array().into_iter().flatten();
        let own = daemons.into_iter().find(|daemon| daemon["index"] == host as u64);
        let of = |name: &str| own.and_then(|daemon| daemon["state"][name].as_u64());
        match (of("files"), of("memory_free")) {
            (Some(files), Some(memory_free)) => Ok(State { files, memory_free }),
            _ => Err(format!("forebay status: {status}")),
        }
    }

    /// Prepares the death of a host.
    pub(crate) fn death(&self, host: usize) -> Result<HostDeath, String> {
        let shared = self.instance_dir(Path::new("/dev/shm"))?.join(format!("h{host}"));
        let files = self.instance_dir(&self.dir.join("data"))?.join(format!("d{host}"));
        Ok(HostDeath {
            link: self.link(host, "down"),
            pid: self.daemon_pid(host)?.to_string(),
            paths: vec![shared, files],
        })
    }

    /// Words of `ip` that take the link of a host up or down.
    fn link(&self, host: usize, state: &str) -> String {
        format!("-n {}hub link set v{host} {state}", self.prefix)
    }

    /// The directory of the instance below a directory of all instances.
    fn instance_dir(&self, base: &Path) -> Result<PathBuf, String> {
        let mut entries = fs::read_dir(base).into_iter().flatten().flatten();
        let end = format!("-{}", self.prefix);
        let found = entries.find(|entry| entry.file_name().to_string_lossy().ends_with(&end));
        found.map(|entry| entry.path()).ok_or_else(|| format!("no instance in {}", base.display()))
    }

    /// The status on the first host, where daemons may be down: it has the others all the same.
    fn status_of_some(&self) -> Result<Value, String> {
        let mut command = self.forebay(0, &["status", "--json", "--timeout", "3s"]);
        let output = command.stdin(Stdio::null()).output();
        let output = output.map_err(|error| format!("forebay status: {error}"))?;
        serde_json::from_slice(&output.stdout).map_err(|error| format!("forebay status: {error}"))
    }

    /// Copies of file data as daemons that live tell the first host.
    pub(crate) fn copies(&self) -> Result<CopyState, String> {
        self.status_of_some().map(|status| CopyState::of(&status))
    }

    /// The owners of the metadata services.
    pub(crate) fn services(&self) -> Result<ServiceState, String> {
        self.status_of_some().map(|status| ServiceState::of(&status))
    }

    /// The number of the service that has a file or directory.
    pub(crate) fn service_of(&self, path: &str) -> Result<usize, String> {
        let text = self.run(0, &["layout", "get", "--json", path])?;
        let layout: Value =
            serde_json::from_str(&text).map_err(|error| format!("forebay layout: {error}"))?;
        let service = layout["service"].as_u64().ok_or_else(|| format!("{path}: {layout}"))?;
        Ok(service as usize)
    }

    /// True if each metadata service has at least so many followers, all in sync.
    pub(crate) fn are_followed(&self, count: usize) -> Result<bool, String> {
        let status = self.status(0)?;
        let daemons: Vec<&Value> = status["daemons"].as_array().into_iter().flatten().collect();
        let is_followed = |service: &Value| {
            let followers = service["followers"].as_array().map_or(&[][..], Vec::as_slice);
            followers.len() >= count && followers.iter().all(|it| it["in_sync"] == true)
        };
        Ok(daemons.len() == self.members
            && daemons.iter().all(|daemon| {
                let services = daemon["state"]["services"].as_array();
                let is_whole = |all: &Vec<Value>| !all.is_empty() && all.iter().all(is_followed);
                count == 0 || services.is_some_and(is_whole)
            }))
    }

    /// The output of a command of `forebay` on a host.
    pub(crate) fn run(&self, host: usize, words: &[&str]) -> Result<String, String> {
        programs::output(&mut self.forebay(host, words), "forebay")
    }

    /// Command prefix of a program of a job on a host.
    pub(crate) fn job(&self, host: usize, job: &str) -> Vec<String> {
        let mut through = self.through(host);
        let words = [&self.program, "run", "--name", &self.prefix, "--job", job, "--"];
        through.extend(words.map(String::from));
        through
    }

    /// The instance as programs on a host access it.
    pub(crate) fn system(&self, host: usize) -> FileSystem {
        let mut through = self.through(host);
        through.extend([&self.program, "run", "--name", &self.prefix, "--"].map(String::from));
        FileSystem { name: "forebay".into(), directory: "/forebay".into(), through }
    }

    /// Command prefix of a program on a host that reaches the instance by the preloaded library alone.
    pub(crate) fn preloaded(&self, host: usize) -> Vec<String> {
        let mut through = self.through(host);
        let words = [&self.program, "run", "--name", &self.prefix, "--access", "preload", "--"];
        through.extend(words.map(String::from));
        through
    }

    /// Mounts the instance on a host. The returned file system is accessible in that host's own
    /// mount namespace.
    pub(crate) fn mount(&self, host: usize) -> Result<FileSystem, String> {
        let at = self.dir.join(format!("mount{host}"));
        fs::create_dir(&at).map_err(|error| format!("{}: {error}", at.display()))?;
        let directory = at.to_string_lossy().into_owned();
        let mut command = self.forebay(host, &["mount", "--json", &directory]);
        let answer = programs::output(&mut command, "forebay mount")?;
        let answer: Value =
            serde_json::from_str(&answer).map_err(|error| format!("forebay mount: {error}"))?;
        let pid = answer["pid"].as_u64().ok_or_else(|| format!("forebay mount: {answer}"))?;
        let through = ["nsenter", "-m", "-t", &pid.to_string()].map(String::from).to_vec();
        Ok(FileSystem { name: "mounts".into(), directory, through })
    }

    /// Command prefix that runs a program on a host.
    pub(crate) fn through(&self, host: usize) -> Vec<String> {
        vec![self.script().to_string_lossy().into_owned(), self.name(host)]
    }

    fn name(&self, host: usize) -> String {
        format!("{}{host}", self.prefix)
    }

    fn script(&self) -> PathBuf {
        self.dir.join("enter")
    }

    fn forebay(&self, host: usize, words: &[&str]) -> Command {
        let mut command = programs::command(&self.through(host), &self.program);
        command
            .args(words)
            .env("FOREBAY_NAME", &self.prefix)
            .env("FOREBAY_SSH", self.script())
            .env("FOREBAY_DIR", self.dir.join("data"))
            .env("FOREBAY_MONITOR", "off")
            .env("FOREBAY_SSD", "0");
        command
    }
}

impl CopyState {
    fn of(status: &Value) -> CopyState {
        let daemons = status["daemons"].as_array().into_iter().flatten();
        let states: Vec<&Value> =
            daemons.map(|daemon| &daemon["state"]).filter(|state| state.is_object()).collect();
        let sum = |name: &str| states.iter().filter_map(|state| state[name].as_u64()).sum::<u64>();
        CopyState {
            daemons: states.len(),
            units_short: sum("units_degraded") + sum("units_lost"),
            bytes_filled: sum("unit_bytes_filled"),
        }
    }
}

impl ServiceState {
    fn of(status: &Value) -> ServiceState {
        let membership = &status["membership"];
        let owners = membership["owners"].as_array().into_iter().flatten();
        ServiceState {
            owners: owners.map(|owner| owner.as_u64().map(|owner| owner as usize)).collect(),
            moving: membership["services_moving"].as_u64().unwrap_or(0),
        }
    }

    /// True if nothing moves, and each of the first `hosts` hosts owns as many services.
    pub(crate) fn is_even(&self, hosts: usize) -> bool {
        let part = self.owners.len() / hosts;
        let owns = |host| self.owners.iter().filter(|owner| **owner == Some(host)).count();
        self.moving == 0 && part > 0 && (0..hosts).all(|host| owns(host) == part)
    }
}

/// IP address of a host on the bridge.
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
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn ip(words: &str) -> bool {
    let output = Command::new("ip").args(words.split(' ')).output();
    output.is_ok_and(|output| output.status.success())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn services_are_even_when_all_hosts_have_as_many_and_none_moves() {
        let state = |owners: Value, moving: u64| {
            let membership = json!({ "owners": owners, "services_moving": moving });
            ServiceState::of(&json!({ "membership": membership }))
        };
        assert!(state(json!([0, 1, 1, 0]), 0).is_even(2));
        assert!(!state(json!([0, 1, 1, 0]), 1).is_even(2));
        assert!(!state(json!([0, 1, 2, 0]), 0).is_even(2));
        assert!(!state(json!([0, 1, null, 0]), 0).is_even(2));
        assert!(state(json!([0, 3, 2, 1]), 0).is_even(4));
        assert_eq!(ServiceState::of(&json!({ "membership": null })), ServiceState::default());
        assert!(!ServiceState::default().is_even(2));
    }

    #[test]
    fn copies_are_those_of_daemons_that_answer() {
        let state = |degraded: u64, filled: u64| {
            json!({ "state": {
                "units_degraded": degraded, "units_lost": 1, "unit_bytes_filled": filled,
            }})
        };
        let status = json!({ "daemons": [state(2, 10), { "host": "dead" }, state(3, 5)] });
        let copies = CopyState::of(&status);
        assert_eq!((copies.daemons, copies.units_short, copies.bytes_filled), (2, 7, 15));
        assert_eq!(CopyState::of(&json!({})).daemons, 0);
    }
}
