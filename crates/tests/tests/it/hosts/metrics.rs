//! Metrics as text for Prometheus, and the one-line answers of the programs that a starter runs.

use crate::support::{Instance, profile, text};
use std::collections::BTreeMap;
use std::process::Command;

/// Names in `docs/metrics.md`, which is generated from the table of metrics.
fn documented() -> Vec<String> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let names = page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').nth(2));
    names.map(str::to_owned).collect()
}

#[test]
fn each_metric_is_printed_for_prometheus() {
    let backing = tempfile::tempdir().expect("a directory");
    std::fs::write(backing.path().join("file"), "text").expect("written");
    let place = backing.path().to_str().expect("text");
    let instance = Instance::start("prometheus", &["--local", "2", "--backing", place]);
    let copy = instance.program(&["sh", "-c", "cp /forebay/file /forebay/copy"]).status();
    assert!(copy.expect("forebay runs").success());
    let flushed = instance.command("flush").status().expect("forebay runs");
    assert!(flushed.success());
    let output = instance.command("status").arg("--prometheus").output().expect("forebay runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let printed = text(&output.stdout);
    let mut found: BTreeMap<&str, Vec<(&str, f64)>> = BTreeMap::new();
    for line in printed.lines().filter(|line| !line.starts_with('#')) {
        let (name, rest) = line.split_once('{').expect(line);
        let (labels, value) = rest.split_once("} ").expect(line);
        found.entry(name).or_default().push((labels, value.parse().expect(line)));
    }
    let names = documented();
    assert_eq!(found.len(), names.len(), "{printed}");
    for name in &names {
        let is_of_writeback = name.starts_with("forebay_writeback_");
        let samples = &found[&**name];
        assert_eq!(samples.len(), if is_of_writeback { 1 } else { 2 }, "{name}");
        assert_eq!(printed.matches(&format!("# TYPE {name} ")).count(), 1, "{name}");
        assert!(samples[0].0.contains(&format!("instance=\"{}\"", instance.name)), "{samples:?}");
    }
    let sum = |name: &str| found[name].iter().map(|(_, value)| value).sum::<f64>();
    assert!(sum("forebay_requests_total") > 0.0 && sum("forebay_files") >= 2.0, "{printed}");
    assert!(sum("forebay_writeback_written_total") > 0.0, "{printed}");
}

#[test]
fn programs_of_an_instance_answer_in_one_line() {
    for program in ["forebayd", "forebay-mount", "forebay-writeback"] {
        for (option, beginning) in
            [("--version", format!("{program} ")), ("--help", program.into())]
        {
            let output = Command::new(profile().join(program)).arg(option).output().expect("runs");
            let line = text(&output.stdout);
            assert!(output.status.success() && line.lines().count() == 1, "{line}");
            assert!(line.starts_with(&beginning), "{line}");
        }
        let bad = std::env::temp_dir().join(format!("config-{}", std::process::id()));
        std::fs::write(&bad, "{\"instance\": {}}").expect("written");
        let mut command = Command::new(profile().join(program));
        let output = command.arg("--config").arg(&bad).output().expect("runs");
        std::fs::remove_file(&bad).expect("removed");
        let expected = format!("configuration {}: instance: missing field at\n", bad.display());
        assert_eq!(output.status.code(), Some(2), "{program}");
        assert_eq!(text(&output.stderr), format!("{program}: {expected}"));
    }
}
