//! An instance over two hosts: metadata and data of the other one, beside plain TCP between the same
//! two network namespaces.
//!
//! That the directory and the bytes really are the other host's, its daemon says.

use crate::crew::{self, Crew, Order};
use crate::hosts::{self, Hosts};
use crate::report::{Key, Report};
use crate::settings::Settings;
use crate::{external, interrupt, quiet};
use serde_json::Value;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

/// The name of what this measures, also in bars.
pub(crate) const GROUP: &str = "remote";

/// Here the programs run, and there is what they use.
pub(crate) const HERE: usize = 0;
pub(crate) const THERE: usize = 1;

/// Streams of data, one process each.
const STREAMS: [u32; 2] = [1, 4];

/// How long a server may take until it listens.
const LISTEN_MAX: Duration = Duration::from_secs(10);

/// All streams together move so many times the MiB of a process of the local tests.
const MEGABYTES_FACTOR: u64 = 4;

/// Measures all rows, repetitions interleaved with those of the sockets.
pub(crate) fn measure(settings: &Settings, report: &mut Report) -> Result<(), String> {
    let mut hosts = match Hosts::new(&settings.forebay, "r", 2)? {
        Ok(hosts) => hosts,
        Err(why) => {
            report.absent(GROUP, why);
            return Ok(());
        }
    };
    let megabytes = settings.megabytes * MEGABYTES_FACTOR;
    // Bytes lie on the host whose program makes the file; with room for what is freed late.
    let memory = format!("{}MiB", 2 * megabytes + 64);
    hosts.start(&[("FOREBAY_PLACEMENT", "local"), ("FOREBAY_MEMORY", &memory)])?;
    let server = Server::start(&hosts)?;
    let measurement = Measurement {
        settings,
        hosts: &hosts,
        server: &server,
        directory: directory_there(&hosts)?,
        megabytes,
    };
    for _ in 0..settings.repetitions {
        measurement.repeat(report)?;
    }
    Ok(())
}

/// A directory whose files' inodes the other host has. Directories of the root take turns.
fn directory_there(hosts: &Hosts) -> Result<String, String> {
    const FILES: u64 = 40;
    for number in 0..4 {
        let directory = format!("/forebay/there-{number}");
        let before = hosts.state(THERE)?.files;
        let script = format!("mkdir {directory} && cd {directory} && touch $(seq {FILES})");
        let mut command = crew::command(&hosts.place(HERE).through, "sh");
        external::output(command.args(["-c", &script]), "sh")?;
        if hosts.state(THERE)?.files >= before + FILES {
            return Ok(directory);
        }
    }
    Err("no directory is on the other host".into())
}

struct Measurement<'a> {
    settings: &'a Settings,
    hosts: &'a Hosts,
    server: &'a Server,
    /// On the other host.
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

    /// What one of `streams` workers is told.
    fn order(&self, group: &str, directory: String, streams: u32) -> Order {
        Order {
            through: self.hosts.place(HERE).through,
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
            let order = self.order("sockets", self.server.address.clone(), streams);
            let order = Order { through: self.hosts.through(HERE), ..order };
            Crew::start(&order.alike(streams))?.work(|phase| {
                // One asks after the other has answered: a time, and of one process.
                if phase.unit == "MiB/s" {
                    let name = phase.name.as_str();
                    let (test, place) = ["copied", "unpaced"]
                        .into_iter()
                        .find_map(|place| Some((name.strip_suffix(place)?, place)))
                        .map_or((name, "socket"), |(test, place)| {
                            (test.trim_end_matches('-'), place)
                        });
                    add(report, test, streams, phase.unit, place, phase.rate);
                } else if streams == 1 {
                    add(report, &phase.name, 1, "us", "socket", 1e6 / phase.rate);
                }
            })?;
        }
        Ok(())
    }

    fn metadata(&self, report: &mut Report) -> Result<(), String> {
        quiet::settle();
        let order = self.order("remote-metadata", format!("{}/work", self.directory), 1);
        Crew::start(&[order])?
            .work(|phase| add(report, &phase.name, 1, "us", "forebay", 1e6 / phase.rate))
    }

    fn data(&self, streams: u32, report: &mut Report) -> Result<(), String> {
        quiet::settle();
        let order = self.order("remote-data", "/forebay/data".into(), streams);
        let mut orders = order.alike(streams);
        let through = self.hosts.place(THERE).through;
        orders.push(Order { through, index: streams, ..order.clone() });
        let mut crew = Crew::start(&orders)?;
        while let Some(name) = crew.ready()? {
            let before = self.hosts.state(THERE)?.memory_free;
            let Some(phase) = crew.go(&name)? else { continue };
            let moved = (order.megabytes * u64::from(streams)) << 20;
            let taken = before.saturating_sub(self.hosts.state(THERE)?.memory_free);
            if name.starts_with("write") && taken < moved {
                return Err(format!("of {moved} bytes written {taken} are on the other host"));
            }
            add(report, &phase.name, streams, phase.unit, "forebay", phase.rate);
        }
        crew.finish()
    }

    fn iperf3(&self, streams: u32, report: &mut Report) -> Result<(), String> {
        if !external::installed("iperf3") {
            return Ok(());
        }
        for (test, words) in [("write-4m", &[][..]), ("read-4m", &["-R"])] {
            interrupt::check()?;
            quiet::settle();
            let mut server = crew::command(&self.hosts.through(THERE), "iperf3");
            server.args(["-s", "-1", "--forceflush", "-B", &hosts::address(THERE)]);
            let _listening = Listening::start(server)?;
            let mut client = crew::command(&self.hosts.through(HERE), "timeout");
            client.args([
                "30",
                "iperf3",
                "-c",
                &hosts::address(THERE),
                "--connect-timeout",
                "5000",
                "-J",
                "-t",
                "1",
                "-l",
                "1M",
            ]);
            client.args(["-P", &streams.to_string()]).args(words);
            let text = external::output(&mut client, "iperf3")?;
            let rate = received(&text).ok_or_else(|| format!("iperf3 said: {text}"))?;
            add(report, test, streams, "MiB/s", "iperf3", rate);
        }
        Ok(())
    }
}

/// MiB/s that the receiver saw.
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
    place: &str,
    value: f64,
) {
    report.add(Key { group: GROUP.into(), test: test.into(), processes, unit }, place, value);
}

/// A server that said that it listens; it is killed with this value.
struct Listening {
    child: Child,
    line: String,
}

impl Listening {
    /// Returns when the line has come that ends what it says at its start.
    fn start(mut command: Command) -> Result<Listening, String> {
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("starting a server: {error}"))?;
        let mut listening = Listening { child, line: String::new() };
        let out = listening.child.stdout.take().ok_or("a server without output")?;
        let (sender, lines) = channel();
        // It reads on to the end: what the server says later must not stop it.
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

/// Our own server on the other host.
pub(crate) struct Server {
    _listening: Listening,
    /// Where it is reached.
    pub(crate) address: String,
}

impl Server {
    pub(crate) fn start(hosts: &Hosts) -> Result<Server, String> {
        let program =
            std::env::current_exe().map_err(|error| format!("this program's own path: {error}"))?;
        let mut command = crew::command(&hosts.through(THERE), &program.to_string_lossy());
        command.args(["serve", &hosts::address(THERE)]);
        let listening = Listening::start(command)?;
        let port = listening.line.trim().trim_start_matches("port ").to_owned();
        let address = format!("{}:{port}", hosts::address(THERE));
        Ok(Server { _listening: listening, address })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_iperf3_received() {
        let text = r#"{"end": {"sum_sent": {"bits_per_second": 1}, "sum_received":
            {"bits_per_second": 16777216.0}}}"#;
        assert_eq!(received(text), Some(2.0));
        assert_eq!(received("{\"error\": \"no server\"}"), None);
        assert_eq!(received("iperf3: error"), None);
    }
}
