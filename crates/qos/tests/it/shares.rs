//! Shares of one device, in simulation against what an ideal fluid device would give.

use crate::device::{Device, Program, SECOND, Simulation, moved, options, write};
use qos::scheduler::{Limits, Options, Work};

/// An SSD of 2 GB/s whose requests take 80 us besides.
const SSD: Device = Device { latency_nanos: 80_000.0, bytes_per_nano: 2.0 };
/// A disk or processor: no latency that overlaps.
const PLAIN: Device = Device { latency_nanos: 0.0, bytes_per_nano: 2.0 };

fn jain(parts: &[f64]) -> f64 {
    let sum: f64 = parts.iter().sum();
    sum * sum / (parts.len() as f64 * parts.iter().map(|part| part * part).sum::<f64>())
}

fn assert_near(value: f64, ideal: f64, part: f64, about: &str) {
    assert!((value - ideal).abs() <= part * ideal, "{about}: {value}, ideal {ideal}");
}

#[test]
fn users_share_equally_and_then_their_jobs_by_weight() {
    // User 1 has one job, user 2 has three, of weights 100, 200 and 100.
    let programs = vec![
        write(1, 1, 1 << 20, 8),
        write(2, 1, 1 << 20, 32),
        write(2, 2, 1 << 20, 32),
        write(2, 3, 1 << 20, 32),
    ];
    let mut simulation = Simulation::new(options(), PLAIN, programs);
    let limits = Limits { weight: 200, ..Limits::default() };
    simulation.scheduler.set_job(0, 2, 2, limits).expect("limits");
    let moved = moved(&mut simulation, SECOND, 5 * SECOND);
    // 8 GB in four seconds.
    for (index, ideal) in [4e9, 1e9, 2e9, 1e9].into_iter().enumerate() {
        assert_near(moved[index], ideal, 0.02, &format!("program {index} of {moved:?}"));
    }
}

#[test]
fn shares_follow_the_fluid_model_when_jobs_come_and_go() {
    // Weights of users 100, 100 and 300; the second pauses, the third ends.
    let mut programs =
        vec![write(1, 1, 256 << 10, 16), write(2, 1, 1 << 20, 16), write(3, 1, 512 << 10, 16)];
    programs[1].begins = 2 * SECOND;
    programs[2].ends = 4 * SECOND;
    let mut simulation = Simulation::new(options(), PLAIN, programs);
    let limits = Limits { weight: 300, ..Limits::default() };
    simulation.scheduler.set_user(0, 3, limits).expect("limits");
    simulation.run(SECOND);
    let mut before: Vec<f64> = simulation.programs.iter().map(Program::bytes_done).collect();
    let parts =
        [[0.25, 0.0, 0.75], [0.2, 0.2, 0.6], [0.2, 0.2, 0.6], [0.5, 0.5, 0.0], [0.5, 0.5, 0.0]];
    for (second, parts) in (1..).zip(parts) {
        simulation.run((second + 1) * SECOND);
        for (index, part) in parts.into_iter().enumerate() {
            let done = simulation.programs[index].bytes_done();
            let (moved, ideal) = (done - before[index], part * 2e9);
            before[index] = done;
            // Requests that were at the device when one came or went belong to the time before.
            assert!(
                (moved - ideal).abs() <= 0.02 * 2e9,
                "second {second}, {index}: {moved}, ideal {ideal}"
            );
        }
    }
}

#[test]
fn eight_jobs_of_mixed_sizes_have_equal_device_time() {
    let sizes = [4 << 10, 64 << 10, 4 << 20, 4 << 10, 64 << 10, 4 << 20, 1 << 20, 16 << 10];
    let programs =
        sizes.iter().zip(0..).map(|(&bytes, index)| write(index, 1, bytes, 32)).collect();
    let mut simulation = Simulation::new(options(), PLAIN, programs);
    // Without latency, device time is bytes by bandwidth.
    let index = jain(&moved(&mut simulation, SECOND, 6 * SECOND));
    println!("Jain's index of eight jobs of 4 KiB to 4 MiB: {index:.4}");
    assert!(index >= 0.98, "{index}");

    let programs =
        sizes.iter().zip(0..).map(|(&bytes, index)| write(index, 1, bytes, 32)).collect();
    let mut simulation = Simulation::new(options(), PLAIN, programs);
    simulation.is_fifo = true;
    let index = jain(&moved(&mut simulation, SECOND, 6 * SECOND));
    println!("the same, first in, first out: {index:.4}");
    assert!(index < 0.6, "without shares the large ones win: {index}");
}

#[test]
fn a_job_of_small_requests_is_hardly_slowed_by_a_streamer() {
    let time = |has_streamer: bool, is_fifo: bool| {
        let mut small = write(1, 1, 4 << 10, 1);
        small.requests_max = 5_000;
        small.begins = SECOND;
        let mut programs = vec![small];
        if has_streamer {
            programs.push(write(2, 1, 4 << 20, 64));
        }
        let mut simulation = Simulation::new(options(), SSD, programs);
        simulation.is_fifo = is_fifo;
        while simulation.programs[0].done < 5_000 {
            let next = simulation.now + SECOND / 100;
            simulation.run(next);
        }
        let nanos = simulation.programs[0].done_at - SECOND;
        let streamed = simulation.programs.get(1).map_or(0.0, Program::bytes_done);
        (nanos as f64, streamed / simulation.now as f64)
    };
    let (alone, _) = time(false, false);
    let (beside, streamed) = time(true, false);
    let (unfair, _) = time(true, true);
    println!(
        "small requests beside a streamer: {:.3} times the time alone; it moves {streamed:.2} GB/s",
        beside / alone
    );
    println!("the same, first in, first out: {:.0} times", unfair / alone);
    assert!(beside <= 1.2 * alone, "{beside} beside, {alone} alone");
    assert!(streamed >= 0.8 * 2.0, "{streamed}");
    assert!(unfair > 2.0 * alone, "{unfair} without shares, {alone} alone");
}

#[test]
fn idle_shares_are_used_by_others() {
    let total = |programs: Vec<Program>| {
        let mut simulation = Simulation::new(options(), PLAIN, programs);
        moved(&mut simulation, SECOND, 3 * SECOND).iter().sum::<f64>()
    };
    let alone = total(vec![write(1, 1, 1 << 20, 16)]);
    assert!(alone >= 0.98 * 4e9, "{alone}");
    let two = total(vec![write(1, 1, 1 << 20, 16), write(2, 1, 4 << 10, 1)]);
    assert!(two >= 0.98 * 4e9, "{two}");
}

#[test]
fn metadata_and_data_share_and_neither_is_below_its_floor() {
    let metadata = || Program::new(1, 1, Work::Metadata, 20_000, 64);
    for percent in [10, 30, 50, 90] {
        let programs = vec![metadata(), write(2, 1, 1 << 20, 16)];
        let sizes = Options { metadata_percent: percent, ..options() };
        let mut simulation = Simulation::new(sizes, PLAIN, programs);
        let moved = moved(&mut simulation, SECOND, 4 * SECOND);
        assert_near(
            moved[0],
            6e9 * f64::from(percent) / 100.0,
            0.05,
            &format!("{percent} percent: {moved:?}"),
        );
        assert!(moved[0] + moved[1] >= 0.98 * 6e9, "{moved:?}");
    }
}

#[test]
fn urgent_work_goes_first_and_leaves_a_fifth() {
    let programs = vec![
        Program::new(0, 0, Work::Urgent, 1 << 20, 16),
        write(2, 1, 1 << 20, 16),
        Program::new(3, 1, Work::Metadata, 20_000, 16),
    ];
    let mut simulation = Simulation::new(options(), PLAIN, programs);
    let moved = moved(&mut simulation, SECOND, 4 * SECOND);
    assert_near(moved[0], 4.8e9, 0.03, &format!("{moved:?}"));
    assert_near(moved[1], 1.2e9 * 0.7, 0.05, &format!("{moved:?}"));
}

/// A link of 40 MB/s with two places for large requests, of which one of 256 KiB takes 6.6 ms alone. A
/// program writes a MiB at a time, as `dd` does; another user has many requests there.
#[test]
fn a_program_that_writes_block_after_block_has_its_share() {
    let link = Device { latency_nanos: 300_000.0, bytes_per_nano: 0.04 };
    let options = Options { large_in_flight_max: 2, ..options() };
    for pause_nanos in [500_000, 2_000_000, 5_000_000] {
        let one = Program { batch: 4, pause_nanos, ..write(1, 1, 256 << 10, 4) };
        let programs = vec![one, write(2, 1, 256 << 10, 80)];
        let mut simulation = Simulation::new(options, link, programs);
        let moved = moved(&mut simulation, 5 * SECOND, 65 * SECOND);
        let part = moved[0] / (moved[0] + moved[1]);
        println!("blocks of a MiB, {} us between: {part:.3} of the link", pause_nanos / 1000);
        assert!(part >= 0.485, "{pause_nanos}: {part}");
    }
}
