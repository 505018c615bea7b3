//! Cost of requests through the real socket, slots and TCP: `cargo bench -p daemon`.
#![expect(clippy::print_stdout, reason = "it prints what it measures")]

#[path = "../tests/it/support.rs"]
#[allow(dead_code, reason = "the benchmark uses only a part")]
mod support;

use std::time::Instant;
use support::{Client, Instance, To};
use wire::attributes::mode;
use wire::{DaemonIndex, Inode, Request};

const COUNT: u32 = 100_000;
const FILE: u32 = mode::REGULAR | 0o644;

fn measure(what: &str, count: u32, mut act: impl FnMut(u32)) {
    let begun = Instant::now();
    for number in 0..count {
        act(number);
    }
    let nanos = begun.elapsed().as_nanos() / u128::from(count);
    println!("{what:<44} {:>9} ns  {:>9} /s", nanos, 1_000_000_000 / nanos.max(1));
}

fn main() {
    let instance = Instance::start(1);
    let client = Client::attach(&instance.socket(0)).expect("attached");
    let root = client.root();
    let name = |number: u32| format!("file-{number}");
    measure("create", COUNT, |number| {
        client.create(&root, name(number).as_bytes(), FILE).expect("created");
    });
    measure("look up by message", COUNT, |number| {
        client.lookup(&root, name(number).as_bytes()).expect("found");
    });
    measure("unlink", COUNT, |number| {
        client.unlink(&root, name(number).as_bytes()).expect("unlinked");
    });
    let target = To::Target(DaemonIndex(0));
    measure("map a new extent", 2_000, |number| {
        let inode = Inode(1000 + u64::from(number));
        let request = Request::MapExtents {
            inode,
            stripe_log2: 22,
            allocate: 1,
            offset: 0,
            length: 1,
            preallocate: 0,
        };
        client.extents(0, &request).expect("an extent");
    });
    measure("space", COUNT, |_| {
        client.call(target, &Request::Space {}).expect("space");
    });
    println!("rss {} MiB", instance.status_of(0, "rss") >> 20);
    drop(client);
    drop(instance);

    let instance = Instance::start_as(2, 1, 1);
    let client = Client::attach(&instance.socket(0)).expect("attached");
    let target = To::Target(DaemonIndex(1));
    measure("space of a daemon on another host (loopback)", 10_000, |_| {
        client.call(target, &Request::Space {}).expect("space");
    });
    let bytes = [7; 8192];
    measure("write 8 KiB there", 10_000, |number| {
        let offset = u64::from(number % 1024) * 8192;
        let request = Request::Write {
            inode: Inode(5),
            stripe_log2: 22,
            offset,
            truncate_epoch: u64::MAX,
            bytes: &bytes,
        };
        client.call(target, &request).expect("written");
    });
}
