//! The daemon's state as one line of JSON, for `forebay status` and `forebay df`.

use crate::shared::Shared;
use std::sync::atomic::Ordering::Relaxed;

/// Bytes of memory that the process holds, shared ones included.
fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok()));
    pages.unwrap_or(0).saturating_mul(rustix::param::page_size() as u64)
}

/// The line, with its end.
pub(crate) fn line(shared: &Shared, sessions: usize) -> String {
    let sum =
        |one: fn(&crate::shared::Figures) -> u64| -> u64 { shared.figures.iter().map(one).sum() };
    let space = &shared.space;
    let numbers = [
        ("pid", u64::from(std::process::id())),
        ("index", u64::from(shared.router.me.0)),
        ("epoch", shared.router.map.epoch),
        ("uptime_s", shared.begun.elapsed().as_secs()),
        ("sessions", sessions as u64),
        ("requests", sum(|figures| figures.requests.load(Relaxed))),
        ("memory_total", space.memory_total.load(Relaxed)),
        ("memory_free", space.memory_free.load(Relaxed)),
        ("ssd_total", space.ssd_total.load(Relaxed)),
        ("ssd_free", space.ssd_free.load(Relaxed)),
        ("files", shared.files()),
        ("log_bytes", sum(|figures| figures.log_bytes.load(Relaxed))),
        ("rss", resident_bytes()),
    ];
    let fields: Vec<String> =
        numbers.iter().map(|(name, number)| format!("\"{name}\":{number}")).collect();
    format!("{{{}}}\n", fields.join(","))
}
