//! Latency of remote metadata operations compared with the network: two network namespaces stand
//! for hosts, an instance runs over both, and rounds measure in turn a plain TCP ping-pong between
//! them, and `stat` and `create` of a file whose shard is on the other host: on the host with the
//! root of the instance, and (`deep`) on the other one by a path of five names. Needs root and
//! `ip`.
//!
//! `cargo build --release --workspace && cargo run --release -p tests --example remote -- ROUNDS`
#![expect(clippy::print_stdout, reason = "it prints what it measures")]

use std::error::Error;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Operations of one process in one round.
const OPERATIONS: usize = 2000;
/// Concurrent processes in the rows for many.
const MANY: usize = 8;
/// Bytes of a ping and a pong: about the size of a request and of its reply on the wire.
const PING_BYTES: usize = 160;

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match *words.as_slice() {
        ["pong"] => pong(),
        ["ping", _] => time(&mut Ping::new(Wait::Sleeping)?),
        ["poll", _] => time(&mut Ping::new(Wait::Polling)?),
        ["stat", directory, tag] => time(&mut Stat::new(directory, tag)?),
        ["create", directory, tag] => time(&mut Create::new(directory, tag)),
        [] => measure(9),
        [rounds] => measure(rounds.parse()?),
        _ => Err("usage: remote [ROUNDS]".into()),
    }
}

/// One operation that is repeated.
trait Work {
    fn once(&mut self, number: usize) -> Outcome<()>;
    fn clear(&mut self) {}
}

/// Prints the median of the operations' times and their mean, in nanoseconds.
fn time(work: &mut dyn Work) -> Outcome<()> {
    for number in 0..50 {
        work.once(number)?;
    }
    work.clear();
    let mut took = Vec::with_capacity(OPERATIONS);
    let begun = Instant::now();
    for number in 0..OPERATIONS {
        let one = Instant::now();
        work.once(number)?;
        took.push(one.elapsed().as_nanos());
    }
    let mean = begun.elapsed().as_nanos() / OPERATIONS as u128;
    work.clear();
    took.sort_unstable();
    println!("{} {mean}", took[OPERATIONS / 2]);
    Ok(())
}

/// How each end of a ping-pong waits for the other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wait {
    /// Sleeps in `read`.
    Sleeping,
    /// Polls and yields until a message is there.
    Polling,
}

struct Ping {
    stream: TcpStream,
}

impl Ping {
    fn new(wait: Wait) -> Outcome<Ping> {
        let stream = TcpStream::connect(pong_of(wait))?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(wait == Wait::Polling)?;
        Ok(Ping { stream })
    }
}

impl Work for Ping {
    fn once(&mut self, _: usize) -> Outcome<()> {
        self.stream.write_all(&[7; PING_BYTES])?;
        Ok(read_all(&mut self.stream, &mut [0; PING_BYTES])?)
    }
}

/// Fills `bytes`; polls while nothing is there.
fn read_all(stream: &mut TcpStream, bytes: &mut [u8]) -> io::Result<()> {
    let mut count = 0;
    while count < bytes.len() {
        match stream.read(&mut bytes[count..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(more) => count += more,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::yield_now(),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

const fn pong_of(wait: Wait) -> &'static str {
    match wait {
        Wait::Sleeping => "10.78.0.2:7979",
        Wait::Polling => "10.78.0.2:7980",
    }
}

fn pong() -> Outcome<()> {
    let looking = TcpListener::bind(pong_of(Wait::Polling))?;
    let asleep = TcpListener::bind(pong_of(Wait::Sleeping))?;
    println!("ready");
    std::thread::spawn(move || answer(&looking, Wait::Polling));
    answer(&asleep, Wait::Sleeping);
    Ok(())
}

fn answer(listener: &TcpListener, wait: Wait) {
    for mut stream in listener.incoming().flatten() {
        std::thread::spawn(move || {
            let mut bytes = [0; PING_BYTES];
            let _ = stream.set_nodelay(true);
            let _ = stream.set_nonblocking(wait == Wait::Polling);
            while read_all(&mut stream, &mut bytes).and_then(|()| stream.write_all(&bytes)).is_ok()
            {
            }
        });
    }
}

struct Stat(PathBuf);

impl Stat {
    fn new(directory: &str, tag: &str) -> Outcome<Stat> {
        let path = Path::new(directory).join(format!("s{tag}"));
        fs::write(&path, "")?;
        Ok(Stat(path))
    }
}

impl Work for Stat {
    fn once(&mut self, _: usize) -> Outcome<()> {
        fs::symlink_metadata(&self.0)?;
        Ok(())
    }
}

struct Create {
    directory: PathBuf,
    tag: String,
}

impl Create {
    fn new(directory: &str, tag: &str) -> Create {
        Create { directory: PathBuf::from(directory), tag: tag.to_owned() }
    }

    fn path(&self, number: usize) -> PathBuf {
        self.directory.join(format!("c{}.{number}", self.tag))
    }
}

impl Work for Create {
    fn once(&mut self, number: usize) -> Outcome<()> {
        fs::OpenOptions::new().write(true).create_new(true).open(self.path(number))?;
        Ok(())
    }

    fn clear(&mut self) {
        for number in 0..OPERATIONS {
            let _ = fs::remove_file(self.path(number));
        }
    }
}

/// The two hosts and what must be removed at the end.
struct World {
    place: tempfile::TempDir,
    prefix: String,
    pong: Option<Child>,
}

impl World {
    fn new() -> Outcome<World> {
        let prefix = format!("fbf{}", std::process::id());
        let world = World { place: tempfile::tempdir()?, prefix, pong: None };
        let (a, b) = (format!("{}a", world.prefix), format!("{}b", world.prefix));
        ip(&format!("netns add {a}"))?;
        ip(&format!("netns add {b}"))?;
        ip(&format!("-n {a} link add eth0 type veth peer name eth0 netns {b}"))?;
        for (space, address) in [(&a, "10.78.0.1"), (&b, "10.78.0.2")] {
            ip(&format!("-n {space} addr add {address}/24 dev eth0"))?;
            ip(&format!("-n {space} link set lo up"))?;
            ip(&format!("-n {space} link set eth0 up"))?;
        }
        let place = world.place.path().display();
        let script = format!(
            "#!/bin/sh\nhost=$1; shift; mkdir -p {place}/$host\n\
             XDG_RUNTIME_DIR={place}/$host exec ip netns exec {}$host \"$@\"\n",
            world.prefix
        );
        fs::write(world.path("ssh"), script)?;
        fs::set_permissions(world.path("ssh"), fs::Permissions::from_mode(0o755))?;
        fs::write(world.path("nodes"), "a 10.78.0.1\nb 10.78.0.2\n")?;
        fs::create_dir(world.path("data"))?;
        Ok(world)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    /// A program on a host; `forebay` is the one beside this program.
    fn on(&self, host: &str, words: &[&str]) -> Outcome<Command> {
        let own = std::env::current_exe()?;
        let profile = own.parent().and_then(Path::parent).ok_or("no folder")?;
        let mut command = Command::new(self.path("ssh"));
        command.arg(host).args(words.iter().map(|word| match *word {
            "forebay" => profile.join("forebay"),
            "remote" => own.clone(),
            word => PathBuf::from(word),
        }));
        command
            .env("FOREBAY_NAME", &self.prefix)
            .env("FOREBAY_SSH", self.path("ssh"))
            .env("FOREBAY_DIR", self.path("data"))
            .env("FOREBAY_MEMORY", "64MiB")
            .env("FOREBAY_SSD", "0");
        Ok(command)
    }

    fn run(&self, host: &str, words: &[&str]) -> Outcome<String> {
        stdout(self.on(host, words)?.output()?)
    }

    /// Directories whose files are on `a` and on `b`.
    fn directories(&self) -> Outcome<[String; 2]> {
        let make =
            "cd /forebay; for i in 1 2 3 4; do mkdir d$i; >d$i/f; stat -c '%i %n' d$i/f; done";
        let made = self.run("a", &["forebay", "run", "--", "sh", "-c", make])?;
        let mut found = [String::new(), String::new()];
        for line in made.lines() {
            let (inode, name) = line.split_once(' ').ok_or("unexpected output of stat")?;
            // The upper 16 bits are the shard of birth; shards are assigned to the daemons in turn.
            let host = (inode.parse::<u64>()? >> 48) % 2;
            found[usize::try_from(host)?] = format!("/forebay/{}", name.trim_end_matches("/f"));
        }
        let is_one_missing = found.iter().any(String::is_empty);
        if is_one_missing { Err("no directory on one of the hosts".into()) } else { Ok(found) }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.run("a", &["forebay", "stop"]);
        if let Some(mut pong) = self.pong.take() {
            let _ = pong.kill();
            let _ = pong.wait();
        }
        for host in ["a", "b"] {
            let _ = ip(&format!("netns del {}{host}", self.prefix));
        }
    }
}

fn stdout(output: Output) -> Outcome<String> {
    if output.status.success() {
        return Ok(String::from_utf8(output.stdout)?);
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned().into())
}

fn ip(words: &str) -> Outcome<()> {
    stdout(Command::new("ip").args(words.split(' ')).output()?).map(drop)
}

/// Median and mean microseconds of an operation, of `count` concurrent processes: averages over all
/// of them.
fn round(world: &World, host: &str, words: &[&str], count: usize) -> Outcome<[f64; 2]> {
    let mut children = Vec::new();
    for number in 0..count {
        let tag = number.to_string();
        let words = [words, &[tag.as_str()]].concat();
        children.push(world.on(host, &words)?.stdout(Stdio::piped()).spawn()?);
    }
    let mut sums = [0.0; 2];
    for child in children {
        let text = stdout(child.wait_with_output()?)?;
        for (sum, word) in sums.iter_mut().zip(text.split_whitespace()) {
            *sum += word.parse::<f64>()? / 1000.0 / count as f64;
        }
    }
    Ok(sums)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

fn measure(rounds: usize) -> Outcome<()> {
    let mut world = World::new()?;
    let mut pong = world.on("b", &["remote", "pong"])?.stdout(Stdio::piped()).spawn()?;
    pong.stdout.as_mut().ok_or("no output")?.read_exact(&mut [0; 6])?;
    world.pong = Some(pong);
    let nodes = world.path("nodes");
    world.run("a", &["forebay", "start", "--hosts", &nodes.to_string_lossy()])?;
    let [local, remote] = world.directories()?;
    let deep = format!("{local}/x/y/z");
    world.run("a", &["forebay", "run", "--", "mkdir", "-p", &deep])?;
    let run = ["forebay", "run", "--", "remote"];
    let stat = [&run[..], &["stat", &remote]].concat();
    let create = [&run[..], &["create", &remote]].concat();
    let deep = [&run[..], &["stat", &deep]].concat();
    let rows = [
        ("ping", "a", &["remote", "ping"][..]),
        ("poll", "a", &["remote", "poll"]),
        ("stat", "a", &stat),
        ("create", "a", &create),
        ("deep", "b", &deep),
    ];
    for count in [1, MANY] {
        let mut values = vec![[vec![], vec![]]; rows.len()];
        for _ in 0..rounds {
            for ((_, host, words), values) in rows.iter().zip(&mut values) {
                let row = round(&world, host, words, count)?;
                row.into_iter().zip(values).for_each(|(value, values)| values.push(value));
            }
        }
        let medians: Vec<_> = values.into_iter().map(|row| row.map(median)).collect();
        println!("processes={count} rounds={rounds} operations={OPERATIONS}");
        println!("what    median us  ratio   mean us  ratio  operations/s");
        for ((name, ..), [middle, mean]) in rows.iter().zip(&medians) {
            let [ping_middle, ping_mean] = medians[0];
            println!(
                "{name:7}{middle:10.1}{:7.2}{mean:10.1}{:7.2}{:14.0}",
                middle / ping_middle,
                mean / ping_mean,
                1e6 / mean * count as f64
            );
        }
    }
    Ok(())
}
