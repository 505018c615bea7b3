//! An instance on two hosts: metadata and data of the remote host, compared with plain TCP between
//! the same two network namespaces.
//!
//! The remote daemon's status confirms that the directory and the bytes really are on that host.

use crate::environment::hosts::{self, Hosts};
use crate::measure::interrupt;
use crate::measure::programs;
use crate::measure::quiet;
use crate::measure::workers::{WorkerArgs, Workers};
use crate::results::report::{Key, Report};
use crate::settings::Settings;
use serde_json::Value;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

/// Name of the group, also in the performance targets.
pub(crate) const GROUP: &str = "remote";

/// Programs run on the local host; their metadata and data are on the remote one.
pub(crate) const LOCAL_HOST: usize = 0;
pub(crate) const REMOTE_HOST: usize = 1;

/// Numbers of data streams, one process each.
const STREAMS: [u32; 2] = [1, 4];

/// Maximum time until a server listens.
const LISTEN_MAX: Duration = Duration::from_secs(10);

/// All streams together move this multiple of the MiB of one process of the local tests.
const MEGABYTES_FACTOR: u64 = 4;

/// Measures all rows; repetitions alternate with those of the sockets.
pub(crate) fn measure(settings: &Settings, report: &mut Report) -> Result<(), String> {
    let mut hosts = match Hosts::new(&settings.forebay, "r", 2)? {
        Ok(hosts) => hosts,
        Err(why) => {
            report.absent(GROUP, why);
            return Ok(());
        }
    };
    let megabytes = settings.megabytes * MEGABYTES_FACTOR;
    // All bytes are on the host whose program creates the files; extra memory covers space that is
    // freed late.
    let memory = format!("{}MiB", 2 * megabytes + 64);
    hosts.start(&[("FOREBAY_PLACEMENT", "local"), ("FOREBAY_MEMORY", &memory)])?;
    let server = Server::start(&hosts)?;
    let measurement = Measurement {
        settings,
        hosts: &hosts,
        server: &server,
        directory: directory_on(&hosts, REMOTE_HOST)?,
        megabytes,
    };
    for _ in 0..settings.repetitions {
        measurement.repeat(report)?;
    }
    Ok(())
}

/// A directory whose files' inodes are on a host. Directories of the root are assigned to hosts in
/// turn.
pub(crate) fn directory_on(hosts: &Hosts, host: usize) -> Result<String, String> {
    const FILES: u64 = 40;
    for number in 0..16 {
        let directory = format!("/forebay/there-{number}");
        let before = hosts.state(host)?.files;
        let script = format!("mkdir {directory} && cd {directory} && touch $(seq {FILES})");
        let mut command = programs::command(&hosts.system(LOCAL_HOST).through, "sh");
        programs::output(command.args(["-c", &script]), "sh")?;
        if hosts.state(host)?.files >= before + FILES {
            return Ok(directory);
        }
    }
    Err(format!("no directory is on host {host}"))
}

struct Measurement<'a> {
    settings: &'a Settings,
    hosts: &'a Hosts,
    server: &'a Server,
    /// On the remote host.
    directory: String,
    megabytes: u64,
}

impl Measurement<'_> {
    fn repeat(&self, report: &mut Report) -> Result<(), String> {
        self.sockets(report)?;
        self.metadata(report)?;
        for streams in STREAMS {
            self.iperf3(streams, report)?;
            self.data(streams, report)?;
        }
        Ok(())
    }

    /// Arguments of one of `streams` workers.
    fn worker_args(&self, group: &str, directory: String, streams: u32) -> WorkerArgs {
        WorkerArgs {
            through: self.hosts.system(LOCAL_HOST).through,
            group: group.into(),
            directory,
            index: 0,
            processes: streams,
            files: self.settings.files.div_ceil(5),
            megabytes: (self.megabytes / u64::from(streams)).next_multiple_of(4),
        }
    }

    fn sockets(&self, report: &mut Report) -> Result<(), String> {
        for streams in STREAMS {
            quiet::settle();
            let worker_args = self.worker_args("sockets", self.server.address.clone(), streams);
            let worker_args = WorkerArgs { through: self.hosts.through(LOCAL_HOST), ..worker_args };
            Workers::start(&worker_args.for_each_worker(streams))?.work(|phase| {
                // Round trips are sequential, so they are reported as a latency, for one process
                // only.
                if phase.unit == "MiB/s" {
                    let name = phase.name.as_str();
                    let (test, system) = ["copied", "unpaced"]
                        .into_iter()
                        .find_map(|system| Some((name.strip_suffix(system)?, system)))
                        .map_or((name, "socket"), |(test, system)| {
                            (test.trim_end_matches('-'), system)
                        });
                    add(report, test, streams, phase.unit, system, phase.rate);
                } else if streams == 1 {
                    add(report, &phase.name, 1, "us", "socket", 1e6 / phase.rate);
                }
            })?;
        }
        Ok(())
    }

    fn metadata(&self, report: &mut Report) -> Result<(), String> {
        quiet::settle();
        let worker_args =
            self.worker_args("remote-metadata", format!("{}/work", self.directory), 1);
        Workers::start(&[worker_args])?
            .work(|phase| add(report, &phase.name, 1, "us", "forebay", 1e6 / phase.rate))
    }

    fn data(&self, streams: u32, report: &mut Report) -> Result<(), String> {
        quiet::settle();
        let worker_args = self.worker_args("remote-data", "/forebay/data".into(), streams);
        let mut all_args = worker_args.for_each_worker(streams);
        let through = self.hosts.system(REMOTE_HOST).through;
        all_args.push(WorkerArgs { through, index: streams, ..worker_args.clone() });
        let mut workers = Workers::start(&all_args)?;
        while let Some(name) = workers.ready()? {
            let before = self.hosts.state(REMOTE_HOST)?.memory_free;
            let Some(phase) = workers.go(&name)? else { continue };
            let moved = (worker_args.megabytes * u64::from(streams)) << 20;
            let taken = before.saturating_sub(self.hosts.state(REMOTE_HOST)?.memory_free);
            if name.starts_with("write") && taken < moved {
                return Err(format!("of {moved} bytes written {taken} are on the other host"));
            }
            add(report, &phase.name, streams, phase.unit, "forebay", phase.rate);
        }
        workers.finish()
    }

    fn iperf3(&self, streams: u32, report: &mut Report) -> Result<(), String> {
        if !programs::installed("iperf3") {
            return Ok(());
        }
        for (test, words) in [("write-4m", &[][..]), ("read-4m", &["-R"])] {
            interrupt::check()?;
            quiet::settle();
            let mut server = programs::command(&self.hosts.through(REMOTE_HOST), "iperf3");
            server.args(["-s", "-1", "--forceflush", "-B", &hosts::address(REMOTE_HOST)]);
            let _listening = Listening::start(server)?;
            let mut client = programs::command(&self.hosts.through(LOCAL_HOST), "timeout");
            client.args([
                "30",
                "iperf3",
                "-c",
                &hosts::address(REMOTE_HOST),
                "--connect-timeout",
                "5000",
                "-J",
                "-t",
                "1",
                "-l",
                "1M",
            ]);
            client.args(["-P", &streams.to_string()]).args(words);
            let text = programs::output(&mut client, "iperf3")?;
            let rate =
                received(&text).ok_or_else(|| format!("unexpected output of iperf3: {text}"))?;
            add(report, test, streams, "MiB/s", "iperf3", rate);
        }
        Ok(())
    }
}

/// MiB/s as measured by the receiver.
fn received(text: &str) -> Option<f64> {
    let json: Value = serde_json::from_str(text).ok()?;
    let bits = json["end"]["sum_received"]["bits_per_second"].as_f64()?;
    Some(bits / 8.0 / 1048576.0)
}

fn add(
    report: &mut Report,
    test: &str,
    processes: u32,
    unit: &'static str,
    system: &str,
    value: f64,
) {
    report.add(Key { group: GROUP.into(), test: test.into(), processes, unit }, system, value);
}

/// A server that is listening. Dropping it kills the server.
struct Listening {
    child: Child,
    line: String,
}

impl Listening {
    /// Starts the server and waits for the last line of its startup output.
    fn start(mut command: Command) -> Result<Listening, String> {
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("starting a server: {error}"))?;
        let mut listening = Listening { child, line: String::new() };
        let out = listening.child.stdout.take().ok_or("a server without output")?;
        let (sender, lines) = channel();
        // The thread reads to the end, so that later output does not block the server.
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let is_last = |line: &str| line.starts_with("port ") || line.contains("listening on");
        while !is_last(&listening.line) {
            let line = lines.recv_timeout(LISTEN_MAX);
            listening.line = line.map_err(|_| "a server does not listen")?;
        }
        Ok(listening)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The benchmark's own server on the remote host.
pub(crate) struct Server {
    _listening: Listening,
    /// Address and port.
    pub(crate) address: String,
}

impl Server {
    pub(crate) fn start(hosts: &Hosts) -> Result<Server, String> {
        let program =
            std::env::current_exe().map_err(|error| format!("this program's own path: {error}"))?;
        let mut command =
            programs::command(&hosts.through(REMOTE_HOST), &program.to_string_lossy());
        command.args(["serve", &hosts::address(REMOTE_HOST)]);
        let listening = Listening::start(command)?;
        let port = listening.line.trim().trim_start_matches("port ").to_owned();
        let address = format!("{}:{port}", hosts::address(REMOTE_HOST));
        Ok(Server { _listening: listening, address })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_of_the_receiver_is_read() {
        let text = r#"{"end": {"sum_sent": {"bits_per_second": 1}, "sum_received":
            {"bits_per_second": 16777216.0}}}"#;
        assert_eq!(received(text), Some(2.0));
        assert_eq!(received("{\"error\": \"no server\"}"), None);
        assert_eq!(received("iperf3: error"), None);
    }
}
