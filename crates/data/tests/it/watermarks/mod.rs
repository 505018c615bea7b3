//! Adaptive watermarks, on traces of programs and a model of two tiers in virtual time: what
//! writers missed and what was moved for nothing, compared with the fixed defaults.
//! `cargo test -p data --test it watermarks -- --nocapture` prints it.
#![expect(clippy::print_stdout, clippy::indexing_slicing, reason = "tests")]

mod model;

use data::tiering::watermarks::{
    TieringCounts, WatermarkOverrides, WatermarkReason, WatermarkSample, Watermarks,
};
use model::{Cost, MEMORY, MIB, Model};
use proptest::prelude::*;

const AUTO: WatermarkOverrides = WatermarkOverrides { normal: None, forced: None };
const FIXED: WatermarkOverrides = WatermarkOverrides { normal: Some(50), forced: Some(10) };
/// Bandwidth of the SSD.
const RATE: u64 = 200 * MIB;
const FAST: u64 = 4000 * MIB;
const EXTENT: u64 = 4 * MIB;

/// Both runs of one trace: fixed and adaptive.
fn both(name: &str, trace: impl Fn(&mut Model)) -> [Cost; 2] {
    [FIXED, AUTO].map(|given| {
        let mut model = Model::new(given, RATE);
        trace(&mut model);
        let cost = model.cost();
        let Cost { missed, demoted, refaulted, read_ssd, reversals } = cost;
        let how = if given == FIXED { "fixed" } else { "auto" };
        println!(
            "{name:34} {how:5} missed {:5}  demoted {:5}  refaulted {:5}  read from SSD {:6} MiB, \
             reversals {reversals}, Cn {} Cf {} MiB",
            missed / MIB,
            demoted / MIB,
            refaulted / MIB,
            read_ssd / MIB,
            model.in_force().demote_low_watermark_bytes / MIB,
            model.in_force().demote_min_watermark_bytes / MIB
        );
        cost
    })
}

/// Bursts of these percentages of the memory, and 10 s for the SSD after each.
fn bursts(model: &mut Model, count: u32, percent: u64) {
    for _ in 0..count {
        model.burst(MEMORY / 100 * percent, EXTENT, FAST);
        model.pause(10_000);
    }
}

/// Reads all of a set, in order, this many times; each takes 2 s.
fn reads(model: &mut Model, set: &[usize], rounds: u32) {
    for _ in 0..rounds {
        for part in set.chunks(set.len().div_ceil(200)) {
            part.iter().for_each(|&extent| model.read(extent));
            model.tick();
        }
    }
}

/// A burst below half of the memory costs the defaults nothing. Starting from the bandwidths costs
/// learning it: in all, less than one such burst more.
#[test]
fn bursts_that_fit_the_defaults_are_absorbed_once_learned() {
    let [fixed, auto] = both("bursts of 40 %", |model| bursts(model, 20, 40));
    assert_eq!(fixed.missed, 0);
    assert!(auto.missed < MEMORY / 100 * 40, "{auto:?}");
    assert!(auto.reversals <= 2, "it swings: {auto:?}");
    let late = both("bursts of 40 %, later ones", |model| bursts(model, 40, 40))[1];
    assert_eq!(late.missed, auto.missed, "what is known stays known");
}

/// A burst of two thirds finds too little with the defaults each time.
#[test]
fn bursts_that_overflow_the_defaults_are_absorbed() {
    let [fixed, auto] = both("bursts of 70 %", |model| bursts(model, 20, 70));
    assert!(fixed.missed > 15 * MEMORY / 10, "{fixed:?}");
    assert!(auto.missed < MEMORY, "{auto:?}");
    assert!(auto.reversals <= 2, "it swings: {auto:?}");
}

/// Nothing is demoted of data that fits, except what measures the SSD's bandwidth; with the
/// defaults a fourth is, and all reads of that are slow, or it moves back and forth.
#[test]
fn a_working_set_that_fits_stays() {
    let [fixed, auto] = both("a set of 80 % that is read", |model| {
        let set = model.burst(MEMORY / 100 * 80, EXTENT, FAST);
        reads(model, &set, 20);
    });
    assert!(fixed.demoted > MEMORY / 5, "{fixed:?}");
    assert!(auto.demoted < MEMORY / 20, "{auto:?}");
    assert!(auto.read_ssd * 4 < fixed.read_ssd, "{auto:?}");
}

/// A stream that the SSD keeps up with is never slowed. For a faster one no watermark helps: no
/// more is missed than with the defaults, except for what they keep free at the beginning.
#[test]
fn a_steady_stream_costs_no_more_than_necessary() {
    let slow_stream = |model: &mut Model| drop(model.burst(20 * MEMORY, EXTENT, RATE / 2));
    let [fixed, auto] = both("a stream of half the SSD's rate", slow_stream);
    assert_eq!((fixed.missed, auto.missed), (0, 0));
    assert!(auto.demoted <= fixed.demoted);
    let outruns = |model: &mut Model| drop(model.burst(20 * MEMORY, EXTENT, RATE * 2));
    let [fixed, auto] = both("a stream of twice the SSD's rate", outruns);
    assert!(auto.missed <= fixed.missed + MEMORY / 4, "{auto:?}");
    assert!(auto.reversals <= 2, "it swings: {auto:?}");
}

/// Each phase costs less than one burst to be learned, and what was learned for bursts does not
/// demote a working set again and again.
#[test]
fn changing_phases_are_followed() {
    let [fixed, auto] = both("bursts, a set, bursts, a set", |model| {
        for _ in 0..2 {
            bursts(model, 10, 65);
            let set = model.burst(MEMORY / 2, EXTENT, FAST);
            reads(model, &set, 20);
            set.into_iter().for_each(|extent| model.remove(extent));
        }
    });
    assert!(auto.missed * 4 < fixed.missed * 3, "{auto:?} {fixed:?}");
    assert!(auto.read_ssd < fixed.read_ssd, "{auto:?} {fixed:?}");
    assert!(auto.refaulted <= fixed.refaulted + MEMORY / 4, "{auto:?} {fixed:?}");
}

/// The first gap follows from the size of what is written.
#[test]
fn watermarks_are_lower_for_small_files() {
    let after = |extent: u64| {
        let mut model = Model::new(AUTO, RATE);
        let written = model.burst(MEMORY * 6 / 10, extent, FAST);
        model.pause(2000);
        (model.in_force(), written)
    };
    let [(large, _), (small, _)] = [16 * MIB, MIB / 4].map(after);
    assert_eq!(
        (large.reason, small.reason),
        (WatermarkReason::Bandwidths, WatermarkReason::Bandwidths)
    );
    assert!(
        small.demote_low_watermark_bytes * 2 <= large.demote_low_watermark_bytes,
        "{small:?} {large:?}"
    );
    let mut model = Model::new(AUTO, RATE);
    let changes = |model: &mut Model, extent| {
        let set = model.burst(MEMORY * 6 / 10, extent, FAST);
        model.pause(2000);
        set.into_iter().for_each(|extent| model.remove(extent));
        model.in_force().demote_min_watermark_bytes
    };
    let large = changes(&mut model, 16 * MIB);
    let small = changes(&mut model, MIB / 4);
    assert!(small * 2 <= large, "{small} {large}");
}

/// A pause of an hour forgets nothing; a load that needs less, for as many bytes as the memory has,
/// does.
#[test]
fn a_pause_forgets_nothing_and_a_smaller_load_lowers_the_watermark() {
    let mut model = Model::new(AUTO, RATE);
    bursts(&mut model, 8, 70);
    let learned = model.in_force();
    model.pause(3_600_000);
    assert_eq!(model.in_force(), learned);
    bursts(&mut model, 60, 10);
    let after = model.in_force();
    assert!(
        after.demote_low_watermark_bytes * 2 < learned.demote_low_watermark_bytes,
        "{after:?} {learned:?}"
    );
    assert_eq!(model.cost().missed / MEMORY, 0);
}

#[test]
fn what_is_given_stays() {
    let mut model = Model::new(FIXED, RATE);
    bursts(&mut model, 4, 70);
    let fixed = Watermarks::new(FIXED).in_force(MEMORY);
    assert_eq!((model.in_force(), fixed.reason), (fixed, WatermarkReason::WatermarkOverrides));
    let mut model = Model::new(WatermarkOverrides { forced: Some(20), normal: None }, RATE);
    bursts(&mut model, 4, 70);
    assert_eq!(model.in_force().demote_min_watermark_bytes, MEMORY / 100 * 20);
    assert!(model.in_force().demote_low_watermark_bytes > MEMORY / 100 * 20 + MEMORY / 64);
    let mut model = Model::new(WatermarkOverrides { normal: Some(30), forced: None }, RATE);
    bursts(&mut model, 4, 70);
    assert_eq!(model.in_force().demote_low_watermark_bytes, MEMORY / 100 * 30);
    assert!(model.in_force().demote_min_watermark_bytes <= MEMORY / 100 * 15);
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(u64::MAX), 0..64u64, 0..4 * MEMORY, any::<u64>()]
}

prop_compose! {
    fn counts()(of in prop::array::uniform6(number())) -> TieringCounts {
        TieringCounts {
            bytes_allocated: of[0],
            extents_made: of[1],
            bytes_overflowed: of[2],
            bytes_demoted: of[3],
            demotion_micros: of[4],
            bytes_refaulted: of[5],
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// For any samples, decreasing counters included: the watermarks are in order and within their
    /// bounds, and continue to adapt.
    #[test]
    fn no_sample_leads_out_of_bounds(
        samples in prop::collection::vec((any::<u32>(), number(), number(), counts()), 0..40),
        percent in (prop::option::of(0..=100u64), prop::option::of(0..=100u64)),
    ) {
        let given = WatermarkOverrides { normal: percent.0, forced: percent.1 };
        for given in [AUTO, given] {
            let mut watermarks = Watermarks::new(given);
            for &(millis, total, free, counts) in &samples {
                watermarks.note_free(free);
                let now = watermarks.look(&WatermarkSample { millis, total, free, counts });
                let low = now.demote_low_watermark_bytes;
                let min = now.demote_min_watermark_bytes;
                prop_assert!(min <= low && low <= total);
                if given == AUTO && total >= MIB {
                    prop_assert!(min < low && low <= total / 4 * 3);
                    prop_assert!(min >= total / 64);
                }
            }
        }
    }

    /// After any bursts and reads, one burst repeated: the watermarks stop changing, and data that
    /// fits is held.
    #[test]
    fn it_comes_to_rest(
        before in prop::collection::vec((1..95u64, 0..3u32), 0..6),
        percent in 5..70u64,
    ) {
        let mut model = Model::new(AUTO, RATE);
        for (percent, rounds) in before {
            let set = model.burst(MEMORY / 100 * percent, EXTENT, FAST);
            reads(&mut model, &set, rounds);
            model.pause(3000);
        }
        // As many as write the memory twelve times.
        bursts(&mut model, 1200 / percent as u32, percent);
        let (missed, in_force) = (model.cost().missed, model.in_force());
        bursts(&mut model, 10, percent);
        prop_assert_eq!(model.cost().missed, missed);
        let low = model.in_force().demote_low_watermark_bytes;
        prop_assert_eq!(low, in_force.demote_low_watermark_bytes);
    }
}
