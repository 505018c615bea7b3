//! A job below its share is named by `forebay qos show`, by the metrics and in its report, and one that
//! gets as little because that is its share is not.
//!
//! Network namespaces need root, and a throttled link `tc`. Without them the tests are skipped.

use crate::support::agent::Agent;
use crate::support::wait_for;
use crate::support::world::{WRITERS, World};
use serde_json::Value;

/// Threads of each job: more than the requests of both that may be on their way.
const THREADS: u32 = 6;

/// A job that writes to the second host.
fn writers(world: &World, job: &str) -> Agent {
    let paths: Vec<String> = (0..THREADS).map(|file| format!("/forebay/d/{job}{file}")).collect();
    let mut words = vec!["run", "--job", job, "--", "python3", "-c", WRITERS];
    words.extend(paths.iter().map(String::as_str));
    Agent::new(job.to_owned(), world.command("a", &words))
}

/// The report of a job so far; null before it is known.
fn report(world: &World, job: &str) -> Value {
    let output = world.on("a", &["report", job, "--json", "--now"]);
    if !output.status.success() {
        return Value::Null;
    }
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn finding(report: &Value) -> Option<&Value> {
    report["findings"].as_array()?.iter().find(|one| one["trigger"] == "below-its-share")
}

fn warnings(world: &World) -> String {
    let shown = world.ok("a", &["qos", "show", "--json"]);
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    shown["warnings"].to_string()
}

/// On a link of 10 MB/s another job has four fifths by its weight, and then a minimum of most of it.
#[test]
fn a_job_below_its_share_is_named_and_one_with_a_small_share_is_not() {
    let Some(world) = World::with_slow_link() else { return };
    let small_share = "large jobid={large*} weight=400";
    let no_share = "large jobid={large*} min=8M";
    for (rule, number, is_named) in [(small_share, 1, false), (no_share, 2, true)] {
        world.ok("a", &["qos", "set", rule]);
        let small = format!("small{number}");
        let jobs = [writers(&world, &format!("large{number}")), writers(&world, &small)];
        // A window of five seconds in which it waited.
        wait_for("its share to be known", || report(&world, &small)["profile"]["share"].is_f64());
        if is_named {
            wait_for("the job to be named", || finding(&report(&world, &small)).is_some());
            let named = format!(r#"job \"{small}\" of user "#);
            wait_for("the line of the command", || warnings(&world).contains(&named));
            wait_for("the metric", || {
                world.daemon("a")["state"]["qos_jobs_short"].as_u64() > Some(0)
            });
        }
        let report = report(&world, &small);
        assert!(report["profile"]["share"].is_f64(), "{report}");
        drop(jobs);
        assert_eq!(finding(&report).is_some(), is_named, "{report}");
        if let Some(finding) = finding(&report) {
            assert_eq!(finding["severity"], "high");
            let evidence = finding["evidence"].as_str().expect("text");
            assert!(evidence.contains(" % of "), "{evidence}");
        }
        world.ok("a", &["qos", "delete", "large"]);
    }
    world.end();
}
