//! The daemon's state as one line of JSON, for `forebay status` and `forebay df`.

use crate::shared::Shared;
use data::lending::Terms;
use data::thresholds::Reason;
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
        ("bytes_sunk", space.bytes_sunk.load(Relaxed)),
        ("bytes_made", space.bytes_made.load(Relaxed)),
        ("bytes_missed", space.bytes_missed.load(Relaxed)),
        ("bytes_returned", space.bytes_returned.load(Relaxed)),
        ("room_below", space.room_below.load(Relaxed)),
        ("reserve_below", space.reserve_below.load(Relaxed)),
        ("bytes_risen", space.bytes_risen.load(Relaxed)),
        ("bytes_abroad", space.bytes_abroad.load(Relaxed)),
        ("bytes_kept", space.bytes_kept.load(Relaxed)),
        ("moves_cancelled", space.moves_cancelled.load(Relaxed)),
        ("memory_users", space.memory_users.load(Relaxed)),
        ("writers_waiting", space.writers_waiting.load(Relaxed)),
        ("write_waits", space.waits.load(Relaxed)),
        ("write_wait_us", space.wait_micros.load(Relaxed)),
        ("write_wait_us_max", space.wait_micros_max.load(Relaxed)),
        ("bytes_pinned", space.bytes_pinned.load(Relaxed)),
        ("history_noted", shared.history.noted.load(Relaxed)),
        ("history_named", shared.history.named.load(Relaxed)),
        ("history_right", shared.history.right.load(Relaxed)),
        ("history_wrong", shared.history.wrong.load(Relaxed)),
        ("history_given_up", shared.history.given_up.load(Relaxed)),
        ("bytes_dropped", space.bytes_dropped.load(Relaxed)),
        ("memory_allowance", shared.lend.allowed.load(Relaxed)),
        ("memory_held", shared.lend.held.load(Relaxed)),
        ("memory_used", shared.lend.used.load(Relaxed)),
        ("memory_given_back", shared.lend.given_back.load(Relaxed)),
        ("memory_given_back_us", shared.lend.given_back_micros.load(Relaxed)),
        ("files", shared.files()),
        ("outcomes", sum(|figures| figures.outcomes.load(Relaxed))),
        ("log_bytes", sum(|figures| figures.log_bytes.load(Relaxed))),
        ("rss", resident_bytes()),
    ];
    let fields: Vec<String> =
        numbers.iter().map(|(name, number)| format!("\"{name}\":{number}")).collect();
    let terms = match shared.lend.terms() {
        Terms::Fixed(bytes) => format!("{{\"fixed\":{bytes}}}"),
        Terms::Idle { least, most } => format!("{{\"least\":{least},\"most\":{most}}}"),
    };
    let reason = shared.lend.reason();
    let why = Reason::of(space.thresholds_reason.load(Relaxed)).word();
    let lent = format!("\"memory_terms\":{terms},\"memory_reason\":\"{reason}\"");
    let lent = format!("{lent},\"room_reason\":\"{why}\"");
    format!("{{{},{lent}}}\n", fields.join(","))
}
