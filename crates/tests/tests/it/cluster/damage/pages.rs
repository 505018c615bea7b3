//! Pages on SSDs that change under copies of files: bytes come from another copy, which repairs the
//! damaged one with and without a reader; where all copies are damaged reading is an error.

use super::super::replicas::{COPIED, await_copies, sum};
use super::super::{kill_host_c, status, wait_until_all_are_up};
use super::{data_of_b, kill_b};
use crate::support::damage::damage;
use crate::support::world::World;
use crate::support::{text, wait_for};
use serde_json::Value;
use std::collections::BTreeSet;

/// Files of 4 MiB, of which each 512 bytes have a number of their own: made, or each of them compared.
/// Answers with each file and `right`, or the errno of the first read that fails.
const FILES: &str = r"
import os, sys
def content(number): return b''.join(
    (number << 32 | part).to_bytes(8, 'little') * 64 for part in range(8192))
for number in range(12):
    path = f'/forebay/f{number}'
    if sys.argv[1] == 'make':
        with open(path, 'wb') as file: file.write(content(number))
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
    try:
        fd = os.open(path, os.O_RDONLY)
        found = b''
        while part := os.pread(fd, 1 << 20, len(found)): found += part
        os.close(fd)
        print(number, 'right' if found == content(number) else 'wrong')
    except OSError as error: print(number, error.errno)
";

fn files(world: &World, host: &str, verb: &str) -> Vec<String> {
    let answers = world.ok(host, &["run", "--", "python3", "-c", FILES, verb]);
    let word = |line: &str| line.split_once(' ').expect("a number").1.to_owned();
    let words: Vec<String> = answers.lines().map(word).collect();
    assert_eq!(words.len(), 12, "{answers}");
    words
}

/// An instance of which most data is on SSDs.
fn started(scrub_rate: &'static str) -> Option<World> {
    let tiers =
        [("FOREBAY_MEMORY", "16MiB"), ("FOREBAY_SSD", "96MiB"), ("FOREBAY_SCRUB_RATE", scrub_rate)];
    let world = World::started(&[&COPIED[..], &tiers].concat())?;
    wait_until_all_are_up(&world);
    assert_eq!(files(&world, "a", "make"), ["right"; 12]);
    await_copies(&world);
    let is_on_ssd = |one: &Value| {
        let [total, free] = ["ssd_total", "ssd_free"].map(|word| one["state"][word].as_u64());
        total.zip(free).is_some_and(|(total, free)| total - free > 5 << 20)
    };
    wait_for("all daemons have data on their SSDs", || {
        status(&world)["daemons"].as_array().expect("daemons").iter().all(is_on_ssd)
    });
    Some(world)
}

/// Damages some pages of host b's SSD. Its daemon runs: while it is away its copies are made elsewhere.
fn damage_b(world: &World) {
    assert!(damage(&data_of_b(world), |page| page % 50 == 7) > 10, "most data is on the SSD");
}

/// The report of `forebay check` or `lost`, and the exit code.
fn report(world: &World, word: &str) -> (Value, Option<i32>) {
    let output = world.on("a", &[word, "--json"]);
    let report = serde_json::from_slice(&output.stdout);
    (report.unwrap_or_else(|_| panic!("{output:?}")), output.status.code())
}

/// "bytes of a copy that fail their checksum come from another copy" (docs/semantics/durability.md).
#[test]
fn damaged_pages_of_one_copy_are_read_from_the_other() {
    let Some(world) = started("0") else { return };
    assert_eq!(report(&world, "check").1, Some(0), "{:?}", report(&world, "check"));
    damage_b(&world);
    let (found, code) = report(&world, "check");
    assert!(found["bytes_in_copies"].as_u64() > Some(0), "{found}");
    assert_eq!((&found["lost"], &found["damage"]), (&Value::from([0; 0]), &Value::from([0; 0])));
    assert_eq!(code, Some(4), "{found}");
    for host in ["a", "b", "c"] {
        assert_eq!(files(&world, host, "check"), ["right"; 12], "on {host}");
    }
    wait_for("repairs", || sum(&world, "unit_repairs") > 0);
    let table = text(&world.on("a", &["status"]).stdout);
    assert!(table.contains("repaired from another copy"), "{table}");
    assert_eq!(report(&world, "lost").1, Some(0));
    world.end();
}

/// "the scrub repairs them without a reader" (docs/semantics/durability.md).
#[test]
fn the_scrub_repairs_damaged_pages_of_a_copy() {
    let Some(world) = started("1GiB") else { return };
    damage_b(&world);
    wait_for("the damage is found", || sum(&world, "pages_damaged") > 10);
    wait_for("nothing is damaged", || report(&world, "check").1 == Some(0));
    assert!(sum(&world, "unit_repairs") > 0);
    // Some bytes come from the repaired copy alone now.
    kill_host_c(&world);
    for host in ["a", "b"] {
        assert_eq!(files(&world, host, "check"), ["right"; 12], "on {host}");
    }
    world.end();
}

/// Damages all pages on SSDs of all daemons.
fn damage_all(world: &World) {
    let data = data_of_b(world);
    for daemon in 0..4 {
        let data = data.with_file_name(format!("d{daemon}"));
        assert!(damage(&data, |_| true) > 1000, "most data is on the SSD of daemon {daemon}");
    }
}

/// The files of which bytes are an error: `forebay check` and `lost` list each of them.
fn listed_errors(world: &World) -> BTreeSet<String> {
    let mut with_errors = BTreeSet::new();
    for word in ["check", "lost"] {
        wait_for(&format!("{word} lists all files with errors"), || {
            let found = files(world, "a", "check");
            assert!(found.iter().all(|word| ["right", "5"].contains(&&**word)), "{found:?}");
            with_errors =
                (0..12).filter(|&at| found[at] == "5").map(|at| format!("/f{at}")).collect();
            assert!(!with_errors.is_empty(), "{found:?}");
            let (report, code) = report(world, word);
            let lost = report["lost"].as_array().expect("files").iter();
            let bytes = lost.filter(|file| file["what"] == "bytes");
            let path = |file: &Value| file["path"].as_str().expect("a path").to_owned();
            let listed: BTreeSet<String> = bytes.map(path).collect();
            let is_listed = code == Some(4) && listed.is_superset(&with_errors);
            if !is_listed {
                eprintln!("{word}: {code:?} {listed:?} of {with_errors:?}: {report}");
            }
            is_listed
        });
    }
    with_errors
}

/// "bytes that no copy has with a correct checksum are an error, and `forebay lost` lists them"
/// (docs/semantics/durability.md).
#[test]
fn pages_that_are_damaged_in_all_copies_are_errors_and_listed() {
    let Some(world) = started("0") else { return };
    damage_all(&world);
    let before = listed_errors(&world);
    // Copies that are made of damaged ones have the same errors.
    kill_b(&world);
    await_copies(&world);
    let after = listed_errors(&world);
    assert!(after.is_superset(&before), "{before:?} {after:?}");
    world.end();
}
