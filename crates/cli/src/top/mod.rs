//! `forebay top`: a live view of an instance.
//!
//! A thread takes samples (`sample`); two of them give rates (`rates`), which are shown on the
//! terminal (`screen`) in the view that keys choose (`state`), or printed once.

pub(crate) mod rates;

pub(crate) mod sample;

mod screen;

mod state;

use crate::failure::{Failure, Result};
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use sample::Sample;
use state::{Next, State};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::thread;
use std::time::Duration;

/// How long the terminal is waited for before new samples are looked at.
const KEY_WAIT: Duration = Duration::from_millis(50);

/// The source of samples: the name of the job whose processes are asked, if there is one.
type Take = Box<dyn Fn(Option<&str>) -> Result<Sample> + Send>;

/// Shows the instance `name` until the user ends it.
///
/// # Errors
/// The terminal cannot be used.
pub(crate) fn show(name: &str, interval: Duration, take: Take) -> Result<()> {
    let failed =
        |error: std::io::Error| Failure::at("cannot use the terminal", "standard output", error);
    let (samples, jobs) = begin(interval, take);
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let mut state = State::new(name);
    let outcome = loop {
        if let Err(error) = terminal.draw(|frame| screen::draw(frame, &mut state)) {
            break Err(failed(error));
        }
        match next_key(&mut state) {
            Ok(Next::Go) => {}
            Ok(Next::End) => break Ok(()),
            Ok(Next::Ask(job)) => drop(jobs.send(job)),
            Err(error) => break Err(failed(error)),
        }
        match samples.try_recv() {
            Ok(sample) => state.take(sample),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => {
                break Err(Failure::new("the sampling thread has ended"));
            }
        }
    };
    ratatui::restore();
    outcome
}

/// Waits a short time for a key, and does what it says.
fn next_key(state: &mut State) -> std::io::Result<Next> {
    if !event::poll(KEY_WAIT)? {
        return Ok(Next::Go);
    }
    match event::read()? {
        Event::Key(key) if key.kind == KeyEventKind::Press => Ok(state.press(key)),
        _ => Ok(Next::Go),
    }
}

/// Starts the thread that takes samples. It ends with the receiver of its samples.
fn begin(interval: Duration, take: Take) -> (Receiver<Result<Sample>>, Sender<Option<String>>) {
    let (send_sample, samples) = mpsc::channel();
    let (send_job, jobs) = mpsc::channel::<Option<String>>();
    thread::spawn(move || {
        let mut asked: Option<String> = None;
        loop {
            if send_sample.send(take(asked.as_deref())).is_err() {
                return;
            }
            match jobs.recv_timeout(interval) {
                Ok(job) => asked = job,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    });
    (samples, send_job)
}
