//! Simulated devices beneath a scheduler, and programs above it, in virtual time.

use qos::scheduler::{Full, Options, Request, Scheduler, Ticket, Work};

pub(crate) const SECOND: u64 = 1_000_000_000;

pub(crate) fn options() -> Options {
    Options {
        depth: 16,
        large_bytes: 128 << 10,
        large_in_flight_max: 4,
        requests_max: 4096,
        requests_user_max: 2048,
        metadata_percent: 30,
    }
}

/// A device: each request has a latency, then its bytes share the bandwidth with those of the others.
#[derive(Clone, Copy)]
pub(crate) struct Device {
    pub(crate) latency_nanos: f64,
    pub(crate) bytes_per_nano: f64,
}

/// A program: so many requests outstanding, each of this size, from `begins` until `ends`.
#[derive(Clone)]
pub(crate) struct Program {
    pub(crate) user: u32,
    pub(crate) job: u64,
    pub(crate) work: Work,
    pub(crate) bytes: u64,
    pub(crate) outstanding: u32,
    pub(crate) begins: u64,
    pub(crate) ends: u64,
    /// Requests that it sends at a time, when the last ones have ended; 0: one for each that ends.
    pub(crate) batch: u64,
    /// Its own time between two batches.
    pub(crate) pause_nanos: u64,
    /// Requests after which it is finished.
    pub(crate) requests_max: u64,
    /// Requests that it sent and that completed.
    pub(crate) sent: u64,
    pub(crate) done: u64,
    pub(crate) done_at: u64,
}

impl Program {
    pub(crate) fn new(user: u32, job: u64, work: Work, bytes: u64, outstanding: u32) -> Program {
        Program {
            user,
            job,
            work,
            bytes,
            outstanding,
            begins: 0,
            ends: u64::MAX,
            batch: 0,
            pause_nanos: 0,
            requests_max: u64::MAX,
            sent: 0,
            done: 0,
            done_at: 0,
        }
    }

    fn wants(&self, now: u64) -> bool {
        now >= self.begins
            && now < self.ends
            && self.sent < self.requests_max
            && self.sent - self.done < u64::from(self.outstanding)
            && (self.batch == 0
                || !self.sent.is_multiple_of(self.batch)
                || (self.sent == self.done && now >= self.pauses_until()))
    }

    /// End of its own time after what ended last.
    fn pauses_until(&self) -> u64 {
        if self.done == 0 { 0 } else { self.done_at + self.pause_nanos }
    }

    pub(crate) fn bytes_done(&self) -> f64 {
        (self.done * self.bytes) as f64
    }
}

struct Running {
    ticket: Ticket,
    program: usize,
    latency_left: f64,
    /// Bytes that are still to move.
    left: f64,
}

/// A scheduler with its device and programs.
pub(crate) struct Simulation {
    pub(crate) scheduler: Scheduler,
    pub(crate) device: Device,
    pub(crate) programs: Vec<Program>,
    pub(crate) now: u64,
    /// Requests are started as they arrive, without the scheduler's order: the comparison.
    pub(crate) is_fifo: bool,
    running: Vec<Running>,
    /// Requests that started and that the device will never complete by itself.
    pub(crate) stuck: Vec<(Ticket, usize)>,
    /// The next request of this program gets stuck.
    pub(crate) sticks: Option<usize>,
}

impl Simulation {
    pub(crate) fn new(options: Options, device: Device, programs: Vec<Program>) -> Simulation {
        let scheduler = Scheduler::new(options).expect("options within their bounds");
        Simulation {
            scheduler,
            device,
            programs,
            now: 0,
            is_fifo: false,
            running: Vec::new(),
            stuck: Vec::new(),
            sticks: None,
        }
    }

    fn push_all(&mut self) {
        for (index, program) in self.programs.iter_mut().enumerate() {
            while program.wants(self.now) {
                let (user, job) = if self.is_fifo { (0, 0) } else { (program.user, program.job) };
                let Program { work, bytes, .. } = *program;
                let request = Request { user, job, work, bytes, token: index as u64 };
                match self.scheduler.push(self.now, request) {
                    Ok(_) => program.sent += 1,
                    Err(Full::User | Full::Instance) => break,
                }
            }
        }
    }

    fn pop_all(&mut self) {
        while let Some(started) = self.scheduler.pop(self.now) {
            let program = started.request.token as usize;
            if self.sticks == Some(program) {
                self.sticks = None;
                self.stuck.push((started.ticket, program));
                continue;
            }
            self.running.push(Running {
                ticket: started.ticket,
                program,
                latency_left: self.device.latency_nanos,
                left: self.programs[program].bytes as f64,
            });
        }
    }

    /// Nanoseconds until something happens at the device.
    fn next_event(&self) -> f64 {
        let moving = self.running.iter().filter(|one| one.latency_left <= 0.0).count();
        let rate = self.device.bytes_per_nano / moving.max(1) as f64;
        let times = self
            .running
            .iter()
            .map(|one| if one.latency_left > 0.0 { one.latency_left } else { one.left / rate });
        times.fold(f64::INFINITY, f64::min)
    }

    fn move_on(&mut self, nanos: u64) {
        let moving = self.running.iter().filter(|one| one.latency_left <= 0.0).count();
        let rate = self.device.bytes_per_nano / moving.max(1) as f64;
        for one in &mut self.running {
            if one.latency_left > 0.0 {
                one.latency_left -= nanos as f64;
            } else {
                one.left -= rate * nanos as f64;
            }
        }
        self.now += nanos;
        let (scheduler, programs, now) = (&mut self.scheduler, &mut self.programs, self.now);
        self.running.retain(|one| {
            let is_done = one.latency_left <= 0.0 && one.left <= 0.0;
            if is_done {
                assert!(scheduler.complete(now, one.ticket));
                programs[one.program].done += 1;
                programs[one.program].done_at = now;
            }
            !is_done
        });
    }

    /// Completes what was stuck.
    pub(crate) fn release_stuck(&mut self) {
        for (ticket, program) in std::mem::take(&mut self.stuck) {
            assert!(self.scheduler.complete(self.now, ticket));
            self.programs[program].done += 1;
        }
    }

    /// Runs until this time, or until nothing is left to do.
    pub(crate) fn run(&mut self, until: u64) {
        while self.now < until {
            self.push_all();
            self.pop_all();
            let mut next = self.next_event().ceil().max(1.0).min((until - self.now) as f64) as u64;
            if let Some(deadline) = self.scheduler.deadline() {
                next = next.min(deadline.saturating_sub(self.now).max(1));
            }
            let changes = self
                .programs
                .iter()
                .flat_map(|program| [program.begins, program.ends, program.pauses_until()]);
            for at in changes.filter(|&at| at > self.now) {
                next = next.min(at - self.now);
            }
            self.move_on(next);
            if self.programs.iter().all(|program| program.done >= program.requests_max) {
                return;
            }
        }
    }
}

/// A program that writes.
pub(crate) fn write(user: u32, job: u64, bytes: u64, outstanding: u32) -> Program {
    Program::new(user, job, Work::Write, bytes, outstanding)
}

/// Bytes that each program moved between two times.
pub(crate) fn moved(simulation: &mut Simulation, from: u64, to: u64) -> Vec<f64> {
    simulation.run(from);
    let before: Vec<f64> = simulation.programs.iter().map(Program::bytes_done).collect();
    simulation.run(to);
    let programs = simulation.programs.iter().zip(before);
    programs.map(|(program, before)| program.bytes_done() - before).collect()
}
