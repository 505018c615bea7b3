//! Measures bytes between two processes of this host: reads and writes of the other's memory by
//! each provider that needs no device, beside requests and answers on a plain TCP connection.
//!
//! `cargo run --release -p fabric --example between [PROVIDER..]`
#![expect(clippy::print_stdout, reason = "it prints what it measures")]

use fabric::{Endpoint, Grant, Library, Place, Reach, RemotePlace, Settings};
use shm::segment::Segment;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const LENGTH: u64 = 64 << 20;
/// Operations in flight at a time.
const WINDOW: u64 = 16;
const SIZES: [u64; 3] = [4 << 10, 64 << 10, 1 << 20];
/// Duration of each measurement.
const TIME: Duration = Duration::from_millis(700);
const ROLE: &str = "FABRIC_BETWEEN";

fn main() {
    match std::env::var(ROLE) {
        Ok(role) if role == "plain" => serve_plain(),
        Ok(provider) => serve(&provider),
        Err(_) => measure(),
    }
}

fn measure() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    println!("{:14} {:5} {:>8} {:>12} {:>10}", "over", "", "bytes", "GB/s", "/s");
    plain();
    let library = match Library::load() {
        Ok(library) => library,
        Err(error) => return println!("no libfabric: {error}"),
    };
    let names = ["tcp", "net", "shm"].map(str::to_owned);
    for name in if arguments.is_empty() { &names[..] } else { &arguments } {
        match Endpoint::open(library, &settings(name)) {
            Ok(endpoint) => remote(endpoint, name),
            Err(error) => println!("{name}: {error}"),
        }
    }
}

fn settings(provider: &str) -> Settings {
    Settings {
        provider: Some(provider.to_owned()),
        remote: false,
        address: Some("127.0.0.1".parse().expect("an address")),
        transfers_max: 64,
        timeout: Duration::from_secs(5),
        part_bytes_max: u64::MAX,
    }
}

/// Starts this program as the other process; returns the words of its first line.
fn other(role: &str) -> (std::process::Child, Vec<String>) {
    let mut child = Command::new(std::env::current_exe().expect("our own program"))
        .env(ROLE, role)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process");
    let mut line = String::new();
    let output = child.stdout.as_mut().expect("piped");
    BufReader::new(output).read_line(&mut line).expect("a line");
    (child, line.split_whitespace().map(str::to_owned).collect())
}

fn row(over: &str, what: &str, size: u64, count: u64, time: Duration) {
    let seconds = time.as_secs_f64();
    let (rate, each) = ((count * size) as f64 / seconds / 1e9, count as f64 / seconds);
    println!("{over:14} {what:5} {size:8} {rate:12.2} {each:10.0}");
}

// ---- the memory of the other process ----

fn remote(mut own: Endpoint, name: &str) {
    let (mut child, words) = other(name);
    let number = |place: usize| words[place].parse().expect("a number");
    let grant = Grant { key: number(1), base: number(2), length: number(3) };
    let address: Vec<u8> = words[0].split(',').map(|byte| byte.parse().expect("a byte")).collect();
    let memory = Arc::new(Segment::private(LENGTH as usize).expect("memory"));
    let region = own.register(memory, 0, LENGTH, Reach::Own).expect("a region");
    let peer = own.add_peer(&address).expect("an address");
    for is_read in [true, false] {
        for size in SIZES {
            let (mut begun, mut ended) = (0, 0);
            let start = Instant::now();
            while start.elapsed() < TIME || ended < begun {
                while start.elapsed() < TIME && begun < ended + WINDOW {
                    let offset = begun * size % LENGTH;
                    let (place, remote) =
                        (Place { region, offset }, RemotePlace { peer, grant, offset });
                    match is_read {
                        true => own.read(place, remote, size, begun),
                        false => own.write(place, remote, size, begun),
                    }
                    .expect("begun");
                    begun += 1;
                }
                let deadline = Instant::now() + Duration::from_secs(10);
                let end = own.wait(deadline).expect("a good queue").expect("it ends");
                end.outcome.expect("moved");
                ended += 1;
            }
            let what = if is_read { "read" } else { "write" };
            row(&own.offer().provider, what, size, ended, start.elapsed());
        }
    }
    drop(child.stdin.take());
    child.wait().expect("reaped");
}

fn serve(provider: &str) {
    let library = Library::load().expect("loaded by the parent");
    let mut own = Endpoint::open(library, &settings(provider)).expect("an endpoint");
    let memory = Arc::new(Segment::private(LENGTH as usize).expect("memory"));
    let region = own.register(memory, 0, LENGTH, Reach::ReadWrite).expect("a region");
    let Grant { key, base, length } = own.grant(region).expect("a region");
    let address: Vec<String> = own.address().iter().map(u8::to_string).collect();
    println!("{} {key} {base} {length}", address.join(","));
    let ended = std::thread::spawn(|| std::io::stdin().read(&mut [0]));
    while !ended.is_finished() {
        own.wait(Instant::now() + Duration::from_millis(20)).expect("a good queue");
    }
}

// ---- plain TCP: 9 bytes request an answer of a given length, or send that many and get one back
// ----

fn plain() {
    let (mut child, words) = other("plain");
    let mut stream = TcpStream::connect(&words[0]).expect("a connection");
    stream.set_nodelay(true).expect("an option");
    let mut memory = vec![1; LENGTH as usize];
    for is_read in [true, false] {
        for size in SIZES {
            let (mut begun, mut ended) = (0, 0);
            let start = Instant::now();
            while start.elapsed() < TIME || ended < begun {
                while start.elapsed() < TIME && begun < ended + WINDOW {
                    let mut head = [u8::from(is_read); 9];
                    head[1..].copy_from_slice(&size.to_le_bytes());
                    stream.write_all(&head).expect("sent");
                    if !is_read {
                        stream.write_all(part(&mut memory, begun, size)).expect("sent");
                    }
                    begun += 1;
                }
                let answer = part(&mut memory, ended, if is_read { size } else { 1 });
                stream.read_exact(answer).expect("an answer");
                ended += 1;
            }
            row("plain TCP", if is_read { "read" } else { "write" }, size, ended, start.elapsed());
        }
    }
    drop(stream);
    child.wait().expect("reaped");
}

fn part(memory: &mut [u8], number: u64, size: u64) -> &mut [u8] {
    let at = (number * size % LENGTH) as usize;
    &mut memory[at..at + size as usize]
}

fn serve_plain() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
    println!("{}", listener.local_addr().expect("an address"));
    let (mut stream, _) = listener.accept().expect("a connection");
    stream.set_nodelay(true).expect("an option");
    let mut memory = vec![2; LENGTH as usize];
    let (mut head, mut count) = ([0; 9], 0);
    while stream.read_exact(&mut head).is_ok() {
        let mut size = [0; 8];
        size.copy_from_slice(&head[1..]);
        let bytes = part(&mut memory, count, u64::from_le_bytes(size));
        count += 1;
        if head[0] == 1 {
            stream.write_all(bytes).expect("sent");
        } else {
            stream.read_exact(bytes).expect("bytes");
            stream.write_all(&[0]).expect("sent");
        }
    }
}
