//! The past on the page: the load by minute, runs of jobs, and events, from the history.

use crate::failure::Result;
use crate::state::history::{HistoryPlace, load_json};
use history::error::HistoryError;
use history::record::Span;
use history::store::{Query, Store};
use serde_json::{Value, json};

/// Minutes that are shown if the page asks for no other number: a day.
pub(super) const MINUTES: u64 = 1440;
/// Points of a chart: a longer span is shown by the means of several minutes.
const POINTS_MAX: usize = 720;
/// Runs, and events, of an answer.
const ROWS_MAX: usize = 100;

/// The last `minutes` of an instance.
///
/// # Errors
/// The history cannot be read.
pub(super) fn of(place: &HistoryPlace, name: &str, minutes: u64) -> Result<Value> {
    let Some(mut store) = place.open_existing()? else {
        return Ok(json!({ "path": place.text(), "load": [], "runs": [], "events": [] }));
    };
    let since_ms = super::look::now_ms().saturating_sub(minutes.saturating_mul(60_000));
    read(&mut *store, name, since_ms)
        .map(|mut value| {
            value["path"] = json!(place.text());
            value
        })
        .map_err(|error| place.unreadable(&error))
}

fn read(
    store: &mut dyn Store,
    name: &str,
    since_ms: u64,
) -> std::result::Result<Value, HistoryError> {
    let query = |rows: usize| Query { instance: Some(name.to_owned()), job: None, since_ms, rows };
    let mut load = store.load(Span::Minute, &query(history::store::ROWS_MAX))?;
    load.reverse();
    let each = load.len().div_ceil(POINTS_MAX).max(1);
    let points: Vec<Value> = load.chunks(each).filter_map(mean).collect();
    Ok(json!({
        "load": points,
        "minutes_each": each,
        "runs": store.runs(&query(ROWS_MAX))?,
        "events": store.events(&query(ROWS_MAX))?,
    }))
}

/// One point for several minutes.
fn mean(few: &[history::record::LoadSample]) -> Option<Value> {
    let mut sum = few.first()?.clone();
    for (place, figure) in sum.figures.iter_mut().enumerate() {
        let known = few.iter().filter_map(|one| one.figures.get(place).copied().flatten());
        let (count, all) = known.fold((0_u32, 0.0), |(count, sum), one| (count + 1, sum + one));
        *figure = (count > 0).then(|| all / f64::from(count));
    }
    Some(load_json(&sum))
}

#[cfg(test)]
mod tests {
    use super::*;
    use history::record::LoadSample;

    #[test]
    fn a_point_is_the_mean_of_what_is_known() {
        let minute = |at_ms, read| {
            let mut sample = LoadSample { at_ms, ..LoadSample::default() };
            sample.figures[1] = read;
            sample
        };
        let few = [minute(60_000, Some(10.0)), minute(120_000, None), minute(180_000, Some(30.0))];
        let point = mean(&few).expect("a point");
        assert_eq!(
            (&point["at_ms"], &point["read_bytes_per_second"]),
            (&60_000.into(), &20.0.into())
        );
        assert_eq!((&point["ssd_used"], mean(&[])), (&Value::Null, None));
    }
}
