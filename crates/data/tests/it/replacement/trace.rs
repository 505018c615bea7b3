//! Traces of programs, in steps of 10 milliseconds: files are opened, written and read extent by
//! extent, closed and removed.

use std::ops::Range;

/// An event. A file is a number, its extents are numbered from 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    Open(u32),
    Close(u32),
    /// An extent is written; the first time it is allocated.
    Write(u32, u32),
    Read(u32, u32),
    Remove(u32),
}

/// Events of 10 milliseconds.
pub(crate) type Step = Vec<Event>;

/// Extents of a file in most traces.
const FILE_EXTENTS: u32 = 10;

/// A trace and its name.
type Trace = (&'static str, fn() -> Vec<Step>);

pub(crate) const TRACES: [Trace; 6] = [
    ("periodic", periodic),
    ("scan", scan),
    ("programs", programs),
    ("mixed", mixed),
    ("checkpoint", checkpoint),
    ("training", training),
];

/// A trace under construction.
struct Maker {
    steps: Vec<Step>,
}

impl Maker {
    fn new(length: usize) -> Maker {
        Maker { steps: vec![Step::new(); length] }
    }

    fn at(&mut self, step: usize, event: Event) {
        if let Some(step) = self.steps.get_mut(step) {
            step.push(event);
        }
    }

    /// Uses some extents of a file in order, the same number in each step, between an open and a
    /// close.
    fn pass(
        &mut self,
        start: usize,
        file: u32,
        extents: Range<u32>,
        in_step: u32,
        event: fn(u32, u32) -> Event,
    ) -> usize {
        self.at(start, Event::Open(file));
        let mut step = start;
        for (count, extent) in extents.enumerate() {
            step = start + count / in_step as usize;
            self.at(step, event(file, extent));
        }
        self.at(step, Event::Close(file));
        step
    }

    /// A file of 100 extents that stays open and is read again and again, one half each step.
    fn working_set(&mut self, start: usize) {
        const FILE: u32 = 1_000_000;
        self.at(start, Event::Open(FILE));
        for extent in 0..100 {
            self.at(start, Event::Write(FILE, extent));
        }
        for step in start + 1..self.steps.len() {
            for extent in (0..100).filter(|extent| extent % 2 == step as u32 % 2) {
                self.at(step, Event::Read(FILE, extent));
            }
        }
    }

    /// Each second 150 extents are written, read 100 ms later, and never again: a simulation that
    /// leaves results behind.
    fn results(&mut self, seconds: usize) {
        for second in 0..seconds {
            for file in 0..15 {
                let (id, start) = ((second * 15 + file) as u32, second * 100);
                self.pass(start + file * 10 / 15, id, 0..FILE_EXTENTS, FILE_EXTENTS, Event::Write);
                self.pass(start + 10 + file * 10 / 15, id, 0..FILE_EXTENTS, 5, Event::Read);
            }
        }
    }
}

fn periodic() -> Vec<Step> {
    let mut maker = Maker::new(1000);
    maker.results(10);
    maker.steps
}

/// Beside a working set others are written once, 20 extents in each step, five times the memory in
/// all.
fn scan() -> Vec<Step> {
    let mut maker = Maker::new(100);
    maker.working_set(0);
    for file in 0..200 {
        maker.pass(file as usize / 2, file, 0..FILE_EXTENTS, FILE_EXTENTS, Event::Write);
    }
    maker.steps
}

/// 20 files of 5 extents, as a program and its libraries, are opened, read and closed each 400 ms;
/// beside them others are written once, 12 extents in each step: 480 between two uses.
fn programs() -> Vec<Step> {
    const FIRST: u32 = 1_000_000;
    let mut maker = Maker::new(1200);
    for file in FIRST..FIRST + 20 {
        maker.pass(0, file, 0..5, 5, Event::Write);
    }
    for start in (10..1200).step_by(40) {
        for file in FIRST..FIRST + 20 {
            maker.pass(start, file, 0..5, 5, Event::Read);
        }
    }
    for file in 0..1200 {
        maker.pass(file as usize, file, 0..12, 12, Event::Write);
    }
    maker.steps
}

fn mixed() -> Vec<Step> {
    let mut maker = Maker::new(1000);
    maker.results(10);
    maker.working_set(50);
    maker.steps
}

/// A program writes a checkpoint of 120 extents each half second, keeps two, and after each seventh
/// restarts from the last: it reads all of it. A log of 20 extents stays open and is written all
/// the time.
fn checkpoint() -> Vec<Step> {
    const LOG: u32 = 1_000_000;
    let mut maker = Maker::new(3000);
    maker.at(0, Event::Open(LOG));
    for step in 0..3000 {
        maker.at(step, Event::Write(LOG, (step % 20) as u32));
    }
    for count in 0..60usize {
        let (file, start) = (count as u32, count * 50);
        maker.pass(start, file, 0..120, 6, Event::Write);
        if count >= 2 {
            maker.at(start + 25, Event::Remove(file - 2));
        }
        if count % 7 == 6 {
            maker.pass(start + 30, file, 0..120, 12, Event::Read);
        }
    }
    maker.steps
}

/// A data set of one and a half times the memory is written, then read file by file in another
/// order each time; an index of 50 extents stays open and is read all the time.
fn training() -> Vec<Step> {
    const INDEX: u32 = 1_000_000;
    const FILES: u32 = 60;
    let mut maker = Maker::new(FILES as usize * 2 + 8 * FILES as usize * 2);
    for file in 0..FILES {
        maker.pass(file as usize * 2, file, 0..FILE_EXTENTS, FILE_EXTENTS, Event::Write);
    }
    let begin = FILES as usize * 2;
    maker.at(begin, Event::Open(INDEX));
    for extent in 0..50 {
        maker.at(begin, Event::Write(INDEX, extent));
    }
    let mut random = 1u64;
    for epoch in 0..8 {
        let mut order: Vec<u32> = (0..FILES).collect();
        for last in (1..order.len()).rev() {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            order.swap(last, (random >> 33) as usize % (last + 1));
        }
        for (count, &file) in order.iter().enumerate() {
            let start = begin + (epoch * FILES as usize + count) * 2;
            maker.pass(start, file, 0..FILE_EXTENTS, 5, Event::Read);
            for extent in 0..10 {
                maker.at(start, Event::Read(INDEX, (extent * 7 + file) % 50));
            }
        }
    }
    maker.steps
}
