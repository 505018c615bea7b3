//! Many daemons on one host: every kind of operation works, and a client's own memory stays small.
//! With more than 64 (`DAEMONS=256`) the rest is reached through the client's home.

use crate::support::{Instance, Worker, wait_for};
use testkit::{content, digest};

/// Most memory that a client may have of its own.
const OWN_BYTES_MAX: u64 = 16 << 20;
/// A file of this size is on as many targets as it has stripes.
const ALL_BYTES: u64 = 16 * STRIPE;
/// Smallest stripe.
const STRIPE: u64 = 64 * 1024;

/// Bytes that belong to a process alone: pages of no file (heap, stacks, tables, changed pages of
/// programs), and what daemons made for it alone (its sessions, which have no name). Files' bytes
/// and indexes are the daemons' memory, however many processes map them.
fn own_bytes(pid: i32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps")).expect("maps");
    let (mut is_session, mut kib) = (false, 0);
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = || words.get(1).and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
        match words.first() {
            Some(&"Rss:") if is_session => kib += number(),
            Some(&"Anonymous:") if !is_session => kib += number(),
            Some(word) if !word.ends_with(':') => is_session = line.contains("memfd:"),
            _ => {}
        }
    }
    kib * 1024
}

fn assert_is(worker: &mut Worker, path: &str, seed: u64, length: u64) {
    let right = format!("ok {length} {}", digest(&content(seed, 0, length)));
    assert_eq!(worker.ask(&format!("get {path}")), right, "{path}");
}

fn done(worker: &mut Worker, line: &str) {
    assert_eq!(worker.ask(line), "ok", "{line}");
}

/// Works on directories that are on all daemons.
fn work(worker: &mut Worker, daemons: u64) {
    let directories = daemons + daemons / 4;
    for number in 0..directories {
        done(worker, &format!("mkdir /forebay/d{number}"));
        done(worker, &format!("put /forebay/d{number}/small {number} 900"));
        done(worker, &format!("put /forebay/d{number}/large {number} 20000"));
    }
    // Together on all targets. Each is small, because the program's own copy of it counts as well.
    for number in 0..daemons / 4 {
        done(worker, &format!("put /forebay/all{number} {number} {ALL_BYTES}"));
        assert_is(worker, &format!("/forebay/all{number}"), number, ALL_BYTES);
    }
    for number in 0..directories {
        let other = (number + 7) % directories;
        done(worker, &format!("rename /forebay/d{number}/small /forebay/d{other}/moved"));
        done(worker, &format!("link /forebay/d{number}/large /forebay/d{other}/link"));
    }
    for number in 0..directories {
        let from = (number + directories - 7) % directories;
        assert_is(worker, &format!("/forebay/d{number}/moved"), from, 900);
        assert_is(worker, &format!("/forebay/d{number}/link"), from, 20000);
        let listed = worker.ask(&format!("list /forebay/d{number}"));
        assert_eq!(listed, "ok large link moved", "d{number}");
    }
}

fn remove(worker: &mut Worker, daemons: u64) {
    for number in 0..daemons + daemons / 4 {
        for name in ["large", "link", "moved"] {
            done(worker, &format!("unlink /forebay/d{number}/{name}"));
        }
        done(worker, &format!("rmdir /forebay/d{number}"));
    }
    for number in 0..daemons / 4 {
        done(worker, &format!("unlink /forebay/all{number}"));
    }
}

#[test]
fn a_client_of_many_daemons_works_and_stays_small() {
    let daemons = testkit::variable("DAEMONS", 16);
    let count = daemons.to_string();
    let fixed = ["--memory", "16MiB", "--ssd", "0", "--stripe-size", "64KiB", "--timeout", "60s"];
    for spread in ["home", "wide"] {
        let options = [&["--local", &*count, "--spread", spread], &fixed[..]].concat();
        let instance = Instance::start(&format!("many{spread}"), &options);
        let mut worker = instance.worker();
        work(&mut worker, daemons);
        let own = own_bytes(worker.pid());
        println!("{daemons} daemons, {spread}: {} KiB of its own", own / 1024);
        assert!(own < OWN_BYTES_MAX, "{own} bytes");
        remove(&mut worker, daemons);
        drop(worker);
        wait_for("all space to be freed", || instance.used() == 0);
    }
}
