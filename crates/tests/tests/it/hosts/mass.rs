//! A thousand programs of one host that open and stat files of all hosts at once: none fails, no daemon
//! takes another for lost, and what a daemon needs for each is bounded.
//!
//! Network namespaces need root. Without it the test is skipped.

use crate::support::wait_for;
use crate::support::world::{HOSTS, World};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Stdio;

/// Programs.
const CLIENTS: u64 = 1000;
/// Files, of which each program opens all.
const FILES: u64 = 30;
/// Most memory that a daemon may need for a program: twice the pages of a session that one uses which
/// opened all files.
const CLIENT_BYTES_MAX: u64 = 128 << 10;

/// Forks programs that open and stat files once a line comes, then says how many failed and waits for the
/// end of input before they end: directory, programs, files.
const MASS: &str = r#"
import os, sys
directory, clients, files = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
go, release = os.pipe()
done, tell = os.pipe()
end, hold = os.pipe()
children = []
for client in range(clients):
    child = os.fork()
    if child == 0:
        os.close(release); os.close(hold)
        os.read(go, 1)
        outcome = b'.'
        try:
            for n in range(files):
                name = f'{directory}/{(n + client) % files}'
                if os.stat(name).st_size != (n + client) % files: outcome = b's'
                fd = os.open(name, os.O_RDONLY)
                if os.fstat(fd).st_size != (n + client) % files: outcome = b'f'
                os.close(fd)
        except OSError as error:
            outcome = b'e'
            print(client, name, error, file=sys.stderr, flush=True)
        os.write(tell, outcome)
        os.read(end, 1)
        os._exit(0)
    children.append(child)
os.close(release)
outcomes = b''
while len(outcomes) < clients: outcomes += os.read(done, clients)
print(outcomes.count(b'.'), flush=True)
sys.stdin.readline()
os.close(hold)
for child in children: assert os.waitpid(child, 0)[1] == 0
"#;

/// Resident memory of a host's first daemon.
fn memory(world: &World, host: &str) -> u64 {
    world.daemon(host)["state"]["rss"].as_u64().expect("a number")
}

/// The lines of the logs of a host on connections of daemons.
fn connections(world: &World, host: &str) -> Vec<String> {
    let user = rustix::process::geteuid().as_raw();
    let run = world.path(host).join(format!("forebay-{user}")).join(&world.prefix);
    let entries = std::fs::read_dir(run).expect("the run directory");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let logs = paths.filter(|path| path.extension().is_some_and(|end| end == "log"));
    let text: Vec<String> = logs.map(|log| std::fs::read_to_string(log).expect("a log")).collect();
    let lines = text.iter().flat_map(|text| text.lines());
    let mut lines: Vec<String> =
        lines.filter(|line| line.contains(" peer ")).map(str::to_owned).collect();
    assert!(!lines.is_empty(), "the logs of {host} name no connection");
    lines.sort();
    lines
}

#[test]
fn a_thousand_programs_that_open_files_at_once_all_succeed() {
    let Some(world) = World::started(&[("FOREBAY_SPREAD", "wide")]) else { return };
    let script = format!(
        "mkdir \"$1\"; for n in $(seq 0 {}); do head -c $n /dev/zero >\"$1\"/$n; done",
        FILES - 1
    );
    world.shell("b", &script, "/forebay/all");
    let before = HOSTS.map(|host| (memory(&world, host), connections(&world, host)));
    let (clients, files) = (CLIENTS.to_string(), FILES.to_string());
    let words = ["python3", "-c", MASS, "/forebay/all", &clients, &files];
    let mut command = world.command("a", &["run", "--quiet", "--"]);
    command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut programs = command.spawn().expect("the script runs");
    let mut line = String::new();
    BufReader::new(programs.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
    assert_eq!(line.trim(), clients, "programs that succeeded");
    wait_for("the programs in the daemon's count", || {
        world.programs("a") as u64 >= CLIENTS || programs.try_wait().expect("state").is_some()
    });
    for (host, (memory_before, connected)) in HOSTS.into_iter().zip(before) {
        let more = memory(&world, host).saturating_sub(memory_before);
        assert!(more <= CLIENTS * CLIENT_BYTES_MAX, "{more} bytes more on {host}");
        assert_eq!(connections(&world, host), connected, "on {host}");
    }
    programs.stdin.take().expect("a pipe").write_all(b"\n").expect("written");
    assert!(programs.wait().expect("it ends").success());
    world.end();
}
