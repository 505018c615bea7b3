//! The page `docs/metrics.md`, generated from the table.

use super::{DAEMON, JOB, Metric, MetricKind, MetricUnit, WRITEBACK};
use std::fmt::Write as _;

const HEAD: &str = "\
# Metrics

<!-- Generated from the table in crates/config: UPDATE_DOCS=1 cargo test -p config -->

`forebay status --json` has each metric under its key, in the unit of the table. `forebay status
--prometheus` prints the text format of Prometheus, where times are seconds, for example for the
textfile collector of the node exporter. On the host that started the instance both cover the
daemons of all hosts, on another host its own. Counters begin at the start of their process. The
labels are `instance` (the name of the instance), `host`, and `daemon` (its index). Daemons that do
not answer are left out; the exit code is 1 if one is dead or its host does not answer.

";

const REASONS: &str = "\
The JSON has three more fields for each daemon, which are not numbers: `memory_terms`, the agreed
amount of memory (`{\"fixed\":BYTES}`, or `{\"min\":BYTES,\"max\":BYTES}` for a range in which it
follows the idle memory of the node); `memory_reason`, the reason for the allowance (set, max, node,
cgroup, pressure, available, unknown); `watermark_reason`, the reason for the watermarks (set,
default, bandwidth, overflow, refault, unused).

";

/// The page.
#[must_use]
pub fn page() -> String {
    let mut page = HEAD.to_owned();
    page += "## Daemons\n\nIn JSON under `daemons[].state`.\n\n";
    write_table(&mut page, &DAEMON);
    page += REASONS;
    page += "## Writeback daemon\n\nIn JSON under `writeback`, on the host of daemon 0 of an instance \
             with a backing store.\n\n";
    write_table(&mut page, &WRITEBACK);
    page += JOBS;
    write_table(&mut page, &JOB);
    page.truncate(page.trim_end().len());
    page.push('\n');
    page
}

const JOBS: &str = "
## Jobs

For Prometheus only; `forebay job list --json` has all jobs. The label `job_name` is the name of a job
for those with the most bytes, running ones first: 10, or as many as `--top-jobs` says. All others are
in the row `other`, so that the number of series is bounded. When a job gets a row of its own or loses
it, `other` changes by all that the job has moved; so these are gauges, whose rate `deriv()` gives.

";

fn write_table(page: &mut String, rows: &[Metric]) {
    *page += "| JSON | Prometheus | kind | unit in JSON | meaning |\n|---|---|---|---|---|\n";
    for row in rows {
        let kind = match row.kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
        };
        let unit = match row.unit {
            MetricUnit::Count => "",
            MetricUnit::Bytes => "bytes",
            MetricUnit::Seconds => "seconds",
            MetricUnit::Micros => "microseconds",
        };
        let _ =
            writeln!(page, "| `{}` | `{}` | {kind} | {unit} | {} |", row.key, row.name, row.help);
    }
    page.push('\n');
}
