//! Thresholds that set themselves, on traces of programs and a model of two tiers in virtual time: what
//! writers missed and what was moved for nothing, beside the fixed defaults. `make thresholds` prints it.
#![expect(clippy::print_stdout, clippy::indexing_slicing, reason = "tests")]

mod model;

use data::thresholds::{Counts, Given, Look, Reason, Thresholds};
use model::{Cost, MEMORY, MIB, Model};
use proptest::prelude::*;

const AUTO: Given = Given { normal: None, forced: None };
const FIXED: Given = Given { normal: Some(50), forced: Some(10) };
/// Of the SSD.
const RATE: u64 = 200 * MIB;
const FAST: u64 = 4000 * MIB;
const PIECE: u64 = 4 * MIB;

/// Both ways of one trace: fixed, and by themselves.
fn both(name: &str, trace: impl Fn(&mut Model)) -> [Cost; 2] {
    [FIXED, AUTO].map(|given| {
        let mut model = Model::new(given, RATE);
        trace(&mut model);
        let cost = model.cost();
        let Cost { missed, sunk, returned, read_below, turns } = cost;
        let how = if given == FIXED { "fixed" } else { "auto" };
        println!(
            "{name:34} {how:5} missed {:5}  sunk {:5}  returned {:5}  read below {:6} MiB, turns \
             {turns}, Cn {} Cf {} MiB",
            missed / MIB,
            sunk / MIB,
            returned / MIB,
            read_below / MIB,
            model.in_force().normal_below_bytes / MIB,
            model.in_force().forced_below_bytes / MIB
        );
        cost
    })
}

/// Bursts of so many per cent of the memory, and 10 s for the SSD after each.
fn bursts(model: &mut Model, count: u32, percent: u64) {
    for _ in 0..count {
        model.burst(MEMORY / 100 * percent, PIECE, FAST);
        model.pause(10_000);
    }
}

/// Reads of all of a set, one after the other, so often; each takes 2 s.
fn reads(model: &mut Model, set: &[usize], rounds: u32) {
    for _ in 0..rounds {
        for part in set.chunks(set.len().div_ceil(200)) {
            part.iter().for_each(|&piece| model.read(piece));
            model.tick();
        }
    }
}

/// A burst below half of the memory costs the defaults nothing. Who starts from the bandwidths learns it:
/// in all, less than one such burst more.
#[test]
fn bursts_that_the_defaults_hold_are_held_once_they_are_known() {
    let [fixed, auto] = both("bursts of 40 %", |model| bursts(model, 20, 40));
    assert_eq!(fixed.missed, 0);
    assert!(auto.missed < MEMORY / 100 * 40, "{auto:?}");
    assert!(auto.turns <= 2, "it swings: {auto:?}");
    let late = both("bursts of 40 %, later ones", |model| bursts(model, 40, 40))[1];
    assert_eq!(late.missed, auto.missed, "what is known stays known");
}

/// A burst of two thirds finds too little with the defaults each time.
#[test]
fn bursts_that_the_defaults_do_not_hold_are_held() {
    let [fixed, auto] = both("bursts of 70 %", |model| bursts(model, 20, 70));
    assert!(fixed.missed > 15 * MEMORY / 10, "{fixed:?}");
    assert!(auto.missed < MEMORY, "{auto:?}");
    assert!(auto.turns <= 2, "it swings: {auto:?}");
}

/// Nothing sinks of what fits but what shows how fast the SSD is; with the defaults a fourth does, and
/// all reads of that are slow, or it moves up and down.
#[test]
fn a_working_set_that_fits_stays() {
    let [fixed, auto] = both("a set of 80 % that is read", |model| {
        let set = model.burst(MEMORY / 100 * 80, PIECE, FAST);
        reads(model, &set, 20);
    });
    assert!(fixed.sunk > MEMORY / 5, "{fixed:?}");
    assert!(auto.sunk < MEMORY / 20, "{auto:?}");
    assert!(auto.read_below * 4 < fixed.read_below, "{auto:?}");
}

/// One that the SSD keeps up with is never slowed. For one that it does not, no threshold helps: no more
/// is missed than with the defaults, but for what they keep free at the beginning.
#[test]
fn a_steady_stream_costs_what_it_must() {
    let keeps_up = |model: &mut Model| drop(model.burst(20 * MEMORY, PIECE, RATE / 2));
    let [fixed, auto] = both("a stream of half the SSD's rate", keeps_up);
    assert_eq!((fixed.missed, auto.missed), (0, 0));
    assert!(auto.sunk <= fixed.sunk);
    let outruns = |model: &mut Model| drop(model.burst(20 * MEMORY, PIECE, RATE * 2));
    let [fixed, auto] = both("a stream of twice the SSD's rate", outruns);
    assert!(auto.missed <= fixed.missed + MEMORY / 4, "{auto:?}");
    assert!(auto.turns <= 2, "it swings: {auto:?}");
}

/// Each phase costs less than a burst to be learned, and what was learned for bursts does not send a
/// working set down again and again.
#[test]
fn phases_that_change_are_followed() {
    let [fixed, auto] = both("bursts, a set, bursts, a set", |model| {
        for _ in 0..2 {
            bursts(model, 10, 65);
            let set = model.burst(MEMORY / 2, PIECE, FAST);
            reads(model, &set, 20);
            set.into_iter().for_each(|piece| model.remove(piece));
        }
    });
    assert!(auto.missed * 4 < fixed.missed * 3, "{auto:?} {fixed:?}");
    assert!(auto.read_below < fixed.read_below, "{auto:?} {fixed:?}");
    assert!(auto.returned <= fixed.returned + MEMORY / 4, "{auto:?} {fixed:?}");
}

/// What the first gap is follows from the size of what is written.
#[test]
fn small_files_need_less_room() {
    let after = |piece: u64| {
        let mut model = Model::new(AUTO, RATE);
        let written = model.burst(MEMORY * 6 / 10, piece, FAST);
        model.pause(2000);
        (model.in_force(), written)
    };
    let [(large, _), (small, _)] = [16 * MIB, MIB / 4].map(after);
    assert_eq!((large.reason, small.reason), (Reason::Bandwidths, Reason::Bandwidths));
    assert!(small.normal_below_bytes * 2 <= large.normal_below_bytes, "{small:?} {large:?}");
    let mut model = Model::new(AUTO, RATE);
    let changes = |model: &mut Model, piece| {
        let set = model.burst(MEMORY * 6 / 10, piece, FAST);
        model.pause(2000);
        set.into_iter().for_each(|piece| model.remove(piece));
        model.in_force().forced_below_bytes
    };
    let large = changes(&mut model, 16 * MIB);
    let small = changes(&mut model, MIB / 4);
    assert!(small * 2 <= large, "{small} {large}");
}

/// A pause of an hour forgets nothing; a load that needs less, for as many bytes as the memory has, does.
#[test]
fn what_is_not_needed_is_given_up_by_use() {
    let mut model = Model::new(AUTO, RATE);
    bursts(&mut model, 8, 70);
    let learned = model.in_force();
    model.pause(3_600_000);
    assert_eq!(model.in_force(), learned);
    bursts(&mut model, 60, 10);
    let after = model.in_force();
    assert!(after.normal_below_bytes * 2 < learned.normal_below_bytes, "{after:?} {learned:?}");
    assert_eq!(model.cost().missed / MEMORY, 0);
}

#[test]
fn what_is_given_stays() {
    let mut model = Model::new(FIXED, RATE);
    bursts(&mut model, 4, 70);
    let fixed = Thresholds::new(FIXED).in_force(MEMORY);
    assert_eq!((model.in_force(), fixed.reason), (fixed, Reason::Given));
    let mut model = Model::new(Given { forced: Some(20), normal: None }, RATE);
    bursts(&mut model, 4, 70);
    assert_eq!(model.in_force().forced_below_bytes, MEMORY / 100 * 20);
    assert!(model.in_force().normal_below_bytes > MEMORY / 100 * 20 + MEMORY / 64);
    let mut model = Model::new(Given { normal: Some(30), forced: None }, RATE);
    bursts(&mut model, 4, 70);
    assert_eq!(model.in_force().normal_below_bytes, MEMORY / 100 * 30);
    assert!(model.in_force().forced_below_bytes <= MEMORY / 100 * 15);
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(u64::MAX), 0..64u64, 0..4 * MEMORY, any::<u64>()]
}

prop_compose! {
    fn counts()(of in prop::array::uniform6(number())) -> Counts {
        let [bytes_made, pieces_made, bytes_missed, bytes_sunk, sunk_micros, bytes_returned] = of;
        Counts { bytes_made, pieces_made, bytes_missed, bytes_sunk, sunk_micros, bytes_returned }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever is told, counts that fall included: the thresholds are in order and within their bounds,
    /// and go on to follow what comes.
    #[test]
    fn no_input_leads_out_of_bounds(
        told in prop::collection::vec((any::<u32>(), number(), number(), counts()), 0..40),
        percent in (prop::option::of(0..=100u64), prop::option::of(0..=100u64)),
    ) {
        let given = Given { normal: percent.0, forced: percent.1 };
        for given in [AUTO, given] {
            let mut thresholds = Thresholds::new(given);
            for &(millis, total, free, counts) in &told {
                thresholds.note_free(free);
                let now = thresholds.look(&Look { millis, total, free, counts });
                let (normal, forced) = (now.normal_below_bytes, now.forced_below_bytes);
                prop_assert!(forced <= normal && normal <= total);
                if given == AUTO && total >= MIB {
                    prop_assert!(forced < normal && normal <= total / 4 * 3);
                    prop_assert!(forced >= total / 64);
                }
            }
        }
    }

    /// After whatever bursts and reads, one burst again and again: it ends to change, and what fits is
    /// held.
    #[test]
    fn it_comes_to_rest(
        before in prop::collection::vec((1..95u64, 0..3u32), 0..6),
        percent in 5..70u64,
    ) {
        let mut model = Model::new(AUTO, RATE);
        for (percent, rounds) in before {
            let set = model.burst(MEMORY / 100 * percent, PIECE, FAST);
            reads(&mut model, &set, rounds);
            model.pause(3000);
        }
        // As many as write the memory twelve times.
        bursts(&mut model, 1200 / percent as u32, percent);
        let (missed, in_force) = (model.cost().missed, model.in_force());
        bursts(&mut model, 10, percent);
        prop_assert_eq!(model.cost().missed, missed);
        prop_assert_eq!(model.in_force().normal_below_bytes, in_force.normal_below_bytes);
    }
}
