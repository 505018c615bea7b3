//! The chosen view, and what keys do.

use super::rates::{Rates, Throughput, between};
use super::sample::Sample;
use crate::failure::Result;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// The table below the totals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum View {
    /// A line for each job.
    Jobs,
    /// A line for each daemon.
    Daemons,
    /// A line for each process of this job.
    Processes(String),
    /// A line for each file of this job.
    Files(String),
}

/// The column by which lines are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Operations per second.
    Operations,
    /// Bytes read per second.
    Read,
    /// Bytes written per second.
    Written,
}

impl Order {
    fn next(self) -> Order {
        match self {
            Order::Operations => Order::Read,
            Order::Read => Order::Written,
            Order::Written => Order::Operations,
        }
    }

    /// The figure of a line with these rates.
    fn of(self, rates: Throughput) -> f64 {
        match self {
            Order::Operations => rates.operations_per_second,
            Order::Read => rates.read_bytes_per_second,
            Order::Written => rates.written_bytes_per_second,
        }
    }
}

/// The caller's task after a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Go on.
    Go,
    /// End.
    End,
    /// Ask for the processes and files of this job, or of none, from now on.
    Ask(Option<String>),
}

/// All that the screen shows.
pub(super) struct State {
    /// The instance.
    pub(super) name: String,
    /// The view.
    pub(super) view: View,
    /// Sorted by this column.
    pub(super) order: Order,
    /// The chosen line.
    pub(super) line: usize,
    /// Samples are not shown.
    pub(super) is_paused: bool,
    /// The rates of the last two samples; `None`: there are not two yet.
    pub(super) rates: Option<Rates>,
    /// Why there is no new sample.
    pub(super) failure: Option<String>,
    last: Option<Sample>,
}

impl State {
    pub(super) fn new(name: &str) -> State {
        State {
            name: name.to_owned(),
            view: View::Jobs,
            order: Order::Written,
            line: 0,
            is_paused: false,
            rates: None,
            failure: None,
            last: None,
        }
    }

    /// Takes a sample, or the reason why there is none.
    pub(super) fn take(&mut self, sample: Result<Sample>) {
        let sample = match sample {
            Ok(sample) => sample,
            Err(failure) => {
                self.failure = Some(failure.text().to_owned());
                return;
            }
        };
        self.failure = None;
        if self.is_paused {
            return;
        }
        if let Some(last) = &self.last {
            let mut rates = between(last, &sample);
            self.sort(&mut rates);
            self.rates = Some(rates);
        }
        self.last = Some(sample);
        self.line = self.line.min(self.lines().saturating_sub(1));
    }

    fn sort(&self, rates: &mut Rates) {
        let by_figure = |a, b| self.order.of(b).total_cmp(&self.order.of(a));
        rates.jobs.sort_by(|a, b| {
            let running = (b.running > 0).cmp(&(a.running > 0));
            running.then(by_figure(a.throughput, b.throughput)).then(a.job.cmp(&b.job))
        });
        rates.files.sort_by(|a, b| {
            by_figure(a.throughput, b.throughput).then_with(|| a.path.cmp(&b.path))
        });
        rates.processes.sort_by(|a, b| {
            by_figure(a.throughput, b.throughput).then(a.rank.cmp(&b.rank)).then(a.pid.cmp(&b.pid))
        });
    }

    /// Number of lines of the view.
    pub(super) fn lines(&self) -> usize {
        let Some(rates) = &self.rates else { return 0 };
        match self.view {
            View::Jobs => rates.jobs.len(),
            View::Daemons => rates.daemons.len(),
            View::Processes(_) => rates.processes.len(),
            View::Files(_) => rates.files.len(),
        }
    }

    fn show(&mut self, view: View) -> Next {
        let job = match &view {
            View::Processes(job) | View::Files(job) => Some(job.clone()),
            _ => None,
        };
        let is_same = matches!((&self.view, &view),
            (View::Processes(old), View::Files(new)) | (View::Files(old), View::Processes(new))
            if old == new);
        (self.view, self.line) = (view, 0);
        if let Some(rates) = self.rates.as_mut().filter(|_| !is_same) {
            rates.processes.clear();
            rates.files.clear();
        }
        Next::Ask(job)
    }

    /// Does what a key says.
    pub(super) fn press(&mut self, key: KeyEvent) -> Next {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('q') => return Next::End,
            KeyCode::Char('c') if is_control => return Next::End,
            KeyCode::Char('j') => return self.show(View::Jobs),
            KeyCode::Char('d') => return self.show(View::Daemons),
            KeyCode::Esc | KeyCode::Backspace => match &self.view {
                View::Jobs => {}
                View::Files(job) => {
                    let view = View::Processes(job.clone());
                    return self.show(view);
                }
                View::Daemons | View::Processes(_) => return self.show(View::Jobs),
            },
            KeyCode::Char('f') => {
                if let View::Processes(job) = &self.view {
                    let view = View::Files(job.clone());
                    return self.show(view);
                }
            }
            KeyCode::Enter if self.view == View::Jobs => {
                let jobs =
                    self.rates.as_ref().map(|rates| rates.jobs.as_slice()).unwrap_or_default();
                if let Some(job) = jobs.get(self.line) {
                    let view = View::Processes(job.job.clone());
                    return self.show(view);
                }
            }
            KeyCode::Char('s') => {
                self.order = self.order.next();
                if let Some(mut rates) = self.rates.take() {
                    self.sort(&mut rates);
                    self.rates = Some(rates);
                }
            }
            KeyCode::Char('p' | ' ') => self.is_paused = !self.is_paused,
            KeyCode::Up => self.line = self.line.saturating_sub(1),
            KeyCode::Down => self.line = (self.line + 1).min(self.lines().saturating_sub(1)),
            KeyCode::Home => self.line = 0,
            KeyCode::End => self.line = self.lines().saturating_sub(1),
            _ => {}
        }
        Next::Go
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Failure;
    use crate::top::rates::tests::sample;
    use std::time::Instant;

    fn press(state: &mut State, code: KeyCode) -> Next {
        state.press(KeyEvent::new(code, KeyModifiers::NONE))
    }

    #[test]
    fn keys_choose_views_and_lines() {
        let begin = Instant::now();
        let mut state = State::new("a");
        assert_eq!(press(&mut state, KeyCode::Enter), Next::Go, "there is no job yet");
        state.take(Ok(sample(begin, 1)));
        assert!(state.rates.is_none(), "one sample has no rates");
        state.take(Ok(sample(begin, 2)));
        assert_eq!(press(&mut state, KeyCode::Down), Next::Go);
        assert_eq!(state.line, 0, "there is one line");
        assert_eq!(press(&mut state, KeyCode::Enter), Next::Ask(Some("4711".into())));
        assert_eq!((state.lines(), &state.view), (0, &View::Processes("4711".into())));
        state.take(Ok(sample(begin, 3)));
        assert_eq!(state.lines(), 1);
        assert_eq!(press(&mut state, KeyCode::Char('f')), Next::Ask(Some("4711".into())));
        assert_eq!((state.lines(), &state.view), (2, &View::Files("4711".into())));
        assert_eq!(press(&mut state, KeyCode::Esc), Next::Ask(Some("4711".into())));
        assert_eq!(state.lines(), 1);
        assert_eq!(press(&mut state, KeyCode::Esc), Next::Ask(None));
        assert_eq!(press(&mut state, KeyCode::Char('d')), Next::Ask(None));
        press(&mut state, KeyCode::End);
        assert_eq!((state.lines(), state.line), (2, 1));
        press(&mut state, KeyCode::Char('s'));
        assert_eq!(state.order, Order::Operations);
        assert_eq!(press(&mut state, KeyCode::Char('q')), Next::End);
        let control = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(state.press(control), Next::End);
    }

    #[test]
    fn a_failure_is_kept_until_the_next_sample_and_a_pause_keeps_all() {
        let begin = Instant::now();
        let mut state = State::new("a");
        state.take(Ok(sample(begin, 1)));
        state.take(Err(Failure::new("no answer")));
        assert_eq!(state.failure.as_deref(), Some("no answer"));
        state.take(Ok(sample(begin, 2)));
        assert_eq!(state.failure, None);
        press(&mut state, KeyCode::Char('p'));
        let before = state.rates.as_ref().unwrap().totals;
        state.take(Ok(sample(begin, 9)));
        assert_eq!(state.rates.as_ref().unwrap().totals, before);
    }
}
