//! `contrib/grafana/forebay.json`: each metric and label in it is one that `forebay` exports.
#![expect(clippy::disallowed_methods, reason = "reads a file of the repository")]

use config::metrics::{DAEMON, JOB, WRITEBACK};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

/// The names in an expression that a metric could have.
fn metrics_in(expression: &str) -> BTreeSet<String> {
    let is_part = |one: char| one.is_ascii_alphanumeric() || one == '_';
    let words = expression.split(|one| !is_part(one));
    words.filter(|word| word.starts_with("forebay_")).map(str::to_owned).collect()
}

/// All texts under the keys that have expressions.
fn expressions(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(key, inner)| match inner {
            Value::String(text) if ["expr", "query"].contains(&key.as_str()) => {
                found.push(text.clone());
            }
            inner => expressions(inner, found),
        }),
        Value::Array(all) => all.iter().for_each(|inner| expressions(inner, found)),
        _ => {}
    }
}

#[test]
fn the_grafana_dashboard_uses_metrics_that_exist() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/grafana/forebay.json");
    let text = std::fs::read_to_string(path).expect("the dashboard");
    let dashboard: Value = serde_json::from_str(&text).expect("JSON");
    let mut all = Vec::new();
    expressions(&dashboard, &mut all);
    let known: BTreeSet<&str> =
        DAEMON.iter().chain(&WRITEBACK).chain(&JOB).map(|row| row.name).collect();
    let panels = dashboard["panels"].as_array().expect("panels");
    assert!(panels.len() > 10 && all.len() > panels.len(), "{} expressions", all.len());
    for expression in &all {
        for name in metrics_in(expression) {
            assert!(known.contains(name.as_str()), "there is no metric {name}: {expression}");
        }
    }
    // A panel without a metric shows nothing, and two in one place hide each other.
    let mut places = BTreeSet::new();
    for panel in panels {
        let targets = panel["targets"].as_array().expect("targets");
        let is_named =
            |one: &Value| one["expr"].as_str().is_some_and(|it| !metrics_in(it).is_empty());
        assert!(!targets.is_empty() && targets.iter().all(is_named), "{panel}");
        assert!(places.insert(panel["gridPos"].to_string()), "{panel}");
    }
}
