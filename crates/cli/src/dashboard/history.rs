//! The last samples: figures of the instance over time, and heat maps of its hosts and daemons.
//!
//! Its memory is bounded: `SAMPLES_MAX` samples, each with a few figures of every daemon and host:
//! about 8 MiB for 1,024 daemons.

use super::look::{HostRates, Look};
use crate::top::rates::Rates;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Samples that are kept: five minutes at one each second.
pub(super) const SAMPLES_MAX: usize = 300;
/// Rows of a heat map.
pub(super) const ROWS_MAX: usize = 128;

/// A figure of which there is a heat map: its word, and the name of its unit.
pub(super) const HEAT_MAPS: [(&str, &str); 8] = [
    ("requests", "per second"),
    ("memory", "share"),
    ("ssd", "share"),
    ("moved", "bytes per second"),
    ("waiting", "writers"),
    ("read", "bytes per second"),
    ("written", "bytes per second"),
    ("operations", "per second"),
];
/// The first of the figures that a host has; the others are of daemons.
const FIRST_OF_HOSTS: usize = 5;

/// One sample.
struct Moment {
    number: u64,
    at_ms: u64,
    /// As `POINT_FIELDS` names them; NaN: not known.
    totals: [f64; 8],
    /// `None`: it did not answer.
    daemons: BTreeMap<u16, Option<[f32; FIRST_OF_HOSTS]>>,
    hosts: BTreeMap<String, [f32; 3]>,
}

/// The names of the figures of a point.
pub(super) const POINT_FIELDS: [&str; 8] = [
    "operations_per_second",
    "read_bytes_per_second",
    "written_bytes_per_second",
    "memory_used",
    "ssd_used",
    "dirty_bytes",
    "writers_waiting",
    "requests_per_second",
];

/// The last samples.
#[derive(Default)]
pub(super) struct History {
    moments: VecDeque<Moment>,
}

fn share(used: u64, total: u64) -> f32 {
    if total == 0 { 0.0 } else { used as f32 / total as f32 }
}

impl History {
    /// Takes the rates of a sample. `hosts`: those of programs, if they are known.
    pub(super) fn take(&mut self, look: &Look, rates: &Rates, hosts: Option<&[HostRates]>) {
        let totals = &rates.totals;
        let known = |figure: f64| if hosts.is_some() { figure } else { f64::NAN };
        let through = &totals.throughput;
        let daemons = rates.daemons.iter().map(|one| {
            let figures = [
                one.requests_per_second as f32,
                share(one.memory_used, one.memory_total),
                share(one.ssd_used, one.ssd_total),
                (one.demoted_bytes_per_second + one.promoted_bytes_per_second) as f32,
                one.writers_waiting as f32,
            ];
            (one.index, one.answers.then_some(figures))
        });
        let of_host = |one: &HostRates| {
            let through = &one.throughput;
            let figures = [
                through.read_bytes_per_second as f32,
                through.written_bytes_per_second as f32,
                through.operations_per_second as f32,
            ];
            (one.host.clone(), figures)
        };
        let moment = Moment {
            number: self.moments.back().map_or(1, |last| last.number + 1),
            at_ms: look.at_ms,
            totals: [
                known(through.operations_per_second),
                known(through.read_bytes_per_second),
                known(through.written_bytes_per_second),
                totals.memory_used as f64,
                totals.ssd_used as f64,
                look.overview.writeback.as_ref().map_or(f64::NAN, |_| totals.dirty_bytes as f64),
                totals.writers_waiting as f64,
                rates.daemons.iter().map(|one| one.requests_per_second).sum(),
            ],
            daemons: daemons.collect(),
            hosts: hosts.unwrap_or_default().iter().map(of_host).collect(),
        };
        self.moments.push_back(moment);
        if self.moments.len() > SAMPLES_MAX {
            self.moments.pop_front();
        }
    }

    /// The number of the last sample; 0: there is none.
    pub(super) fn last(&self) -> u64 {
        self.moments.back().map_or(0, |last| last.number)
    }

    /// The time and the figures of the last sample, as `POINT_FIELDS` names them; NaN: not known.
    pub(super) fn last_point(&self) -> Option<(u64, [f64; 8])> {
        self.moments.back().map(|last| (last.at_ms, last.totals))
    }

    /// The samples after number `after`: for each its number, its time, and the figures of
    /// `POINT_FIELDS`.
    pub(super) fn points(&self, after: u64) -> Vec<Value> {
        let later = self.moments.iter().filter(|one| one.number > after);
        later
            .map(|one| {
                let mut point = vec![json!(one.number), json!(one.at_ms)];
                point.extend(one.totals.iter().map(|figure| json!(figure)));
                Value::Array(point)
            })
            .collect()
    }

    /// The heat map of the figure with this word; `None`: there is no such figure.
    ///
    /// A row is a text with a letter for each sample: `a` for nothing up to `p` for the most, `x`
    /// where the daemon did not answer, and `.` where nothing is known of it.
    pub(super) fn heat_map(&self, word: &str) -> Option<Value> {
        let figure = HEAT_MAPS.iter().position(|(one, _)| *one == word)?;
        let (_, unit) = HEAT_MAPS.get(figure)?;
        let names = self.names(figure);
        let mut rows: Vec<(&String, Vec<Cell>)> =
            names.iter().map(|(name, key)| (name, self.row(figure, key))).collect();
        let most_of = |row: &[Cell]| {
            row.iter().fold(0.0_f32, |most, cell| match cell {
                // A daemon that does not answer is what somebody looks for.
                Cell::Silent => f32::INFINITY,
                Cell::Known(figure) => most.max(*figure),
                Cell::Unknown => most,
            })
        };
        let all = rows.len();
        if all > ROWS_MAX {
            let mut marks: Vec<f32> = rows.iter().map(|(_, row)| most_of(row)).collect();
            marks.sort_unstable_by(|a, b| b.total_cmp(a));
            let least = marks.get(ROWS_MAX - 1).copied().unwrap_or_default();
            rows.retain(|(_, row)| most_of(row) >= least);
            rows.truncate(ROWS_MAX);
        }
        let cells = rows.iter().flat_map(|(_, row)| row);
        let most = cells.fold(0.0_f32, |most, cell| match cell {
            Cell::Known(figure) => most.max(*figure),
            _ => most,
        });
        let scale = if *unit == "share" { 1.0 } else { most };
        let texts = rows.iter().map(|(name, row)| {
            let cells: String = row.iter().map(|cell| cell.letter(scale)).collect();
            let last = row.iter().rev().find_map(|cell| match cell {
                Cell::Known(figure) => Some(*figure),
                _ => None,
            });
            json!({ "name": name, "cells": cells, "last": last })
        });
        Some(json!({
            "figure": word,
            "unit": unit,
            "of": if figure < FIRST_OF_HOSTS { "daemons" } else { "hosts" },
            "most": scale,
            "rows": texts.collect::<Vec<_>>(),
            "rows_total": all,
            "begin_ms": self.moments.front().map(|one| one.at_ms),
            "end_ms": self.moments.back().map(|one| one.at_ms),
        }))
    }

    /// The rows that a figure has: the name and the key of each.
    fn names(&self, figure: usize) -> Vec<(String, RowKey)> {
        if figure < FIRST_OF_HOSTS {
            let all: BTreeSet<u16> =
                self.moments.iter().flat_map(|one| one.daemons.keys()).copied().collect();
            all.into_iter()
                .map(|index| (format!("daemon {index}"), RowKey::Daemon(index)))
                .collect()
        } else {
            let all: BTreeSet<&String> =
                self.moments.iter().flat_map(|one| one.hosts.keys()).collect();
            all.into_iter().map(|host| (host.clone(), RowKey::Host(host.clone()))).collect()
        }
    }

    fn row(&self, figure: usize, key: &RowKey) -> Vec<Cell> {
        let cell = |moment: &Moment| match key {
            RowKey::Daemon(index) => match moment.daemons.get(index) {
                Some(Some(figures)) => {
                    figures.get(figure).map_or(Cell::Unknown, |it| Cell::Known(*it))
                }
                Some(None) => Cell::Silent,
                None => Cell::Unknown,
            },
            RowKey::Host(host) => {
                let figures = moment.hosts.get(host);
                let figure = figures.and_then(|of_host| of_host.get(figure - FIRST_OF_HOSTS));
                figure.map_or(Cell::Unknown, |it| Cell::Known(*it))
            }
        };
        self.moments.iter().map(cell).collect()
    }
}

/// The key of a row.
enum RowKey {
    Daemon(u16),
    Host(String),
}

/// A cell of a heat map.
#[derive(Clone, Copy)]
enum Cell {
    /// Nothing is known.
    Unknown,
    /// The daemon did not answer.
    Silent,
    /// The figure.
    Known(f32),
}

impl Cell {
    fn letter(self, scale: f32) -> char {
        match self {
            Cell::Unknown => '.',
            Cell::Silent => 'x',
            Cell::Known(figure) if figure <= 0.0 || scale <= 0.0 => 'a',
            Cell::Known(figure) => {
                let level = (figure / scale * 14.0).clamp(0.0, 14.0) as u8;
                char::from(b'b' + level)
            }
        }
    }
}
