//! Measures steps of one service: 100 thousand files in one directory, in nanoseconds per step.

use std::time::Instant;

use metadata::{Config, Effect, Input, Now, Opens, Service};
use wire::attributes::mode;
use wire::{Attributes, Credentials, Header, Inode, Layout, Reader, Reply, Request};

const FILES: u64 = 100_000;

struct Closed;

impl Opens for Closed {
    fn mark_deleted(&mut self, _: Inode) -> bool {
        false
    }
}

struct Bench {
    service: Service,
    out: Vec<Effect>,
    header: Header,
    log_bytes: usize,
}

impl Bench {
    fn step(&mut self, request: Request<'_>) -> Attributes {
        self.header.sequence += 1;
        let now = 1_000_000 + self.header.sequence.cast_signed();
        let input = Input::Request { ticket: 1, header: &self.header, request };
        self.service.step(Now::of(now), input, &mut Closed, &mut self.out);
        let mut answer = Attributes::default();
        for effect in self.out.drain(..) {
            match effect {
                Effect::Reply { bytes, .. } => {
                    match Reply::decode(&mut Reader::new(&bytes)) {
                        Ok(Reply::Created { attributes } | Reply::Attributes { attributes }) => {
                            answer = attributes;
                        }
                        Ok(Reply::Done {}) => {}
                        other => panic!("answered {other:?}"),
                    }
                    self.service.recycle(bytes);
                }
                Effect::Log(bytes) => {
                    self.log_bytes += bytes.len();
                    self.service.recycle(bytes);
                }
                _ => {}
            }
        }
        answer
    }

    fn measure(&mut self, what: &str, mut step: impl FnMut(&mut Bench, u64)) {
        let (start, bytes) = (Instant::now(), self.log_bytes);
        for number in 0..FILES {
            step(self, number);
        }
        let nanos = start.elapsed().as_nanos() as u64 / FILES;
        let bytes = (self.log_bytes - bytes) as u64 / FILES;
        println!("{what}: {nanos} ns, {bytes} bytes of log");
    }
}

fn main() {
    let header = Header {
        shard: 0,
        daemon: 0,
        epoch: 1,
        origin: 1,
        sequence: 0,
        host: 0,
        mount: 0,
        who: Credentials::ROOT,
    };
    let service = Service::new(Config::alone());
    let mut bench = Bench { service, out: Vec::new(), header, log_bytes: 0 };
    let create = |parent, name, mode| Request::Create {
        parent,
        name,
        mode,
        device: 0,
        flags: 1,
        layout: Layout::default(),
        target: b"",
    };
    let parent = bench.step(create(Inode::ROOT, b"d", mode::DIRECTORY | 0o755)).inode;
    let names: Vec<String> = (0..FILES).map(|number| format!("file.{number}")).collect();
    let name = |number: u64| names[number as usize].as_bytes();
    let mut inodes = Vec::new();
    bench.measure("create", |bench, number| {
        inodes.push(bench.step(create(parent, name(number), mode::REGULAR | 0o644)).inode);
    });
    bench.measure("get attributes", |bench, number| {
        let inode = inodes[(number * 7919 % FILES) as usize];
        bench.step(Request::GetAttributes { inode });
    });
    bench.measure("lookup", |bench, number| {
        bench.step(Request::Lookup { parent, name: name(number * 7919 % FILES) });
    });
    bench.measure("write 100 bytes inline", |bench, number| {
        let inode = inodes[number as usize];
        bench.step(Request::WriteInline { inode, offset: 0, bytes: &[1; 100] });
    });
    bench.measure("rename", |bench, number| {
        let new = [name(number), b"x"].concat();
        let (name, new_parent) = (name(number), parent);
        bench.step(Request::Rename { parent, name, new_parent, new_name: &new, flags: 0 });
    });
    bench.measure("unlink", |bench, number| {
        let name = [name(number), b"x"].concat();
        bench.step(Request::Unlink { parent, name: &name });
    });
}
