//! The text format of Prometheus (version 0.0.4): the rows with their series.

use super::{Metric, MetricKind, MetricUnit};
use std::fmt::Write as _;

/// Values of all metrics of one process.
#[derive(Clone, Debug)]
pub struct Series {
    /// Names and values of the labels.
    pub labels: Vec<(&'static str, String)>,
    /// One value for each row, in the order of the rows.
    pub values: Vec<u64>,
}

/// The text of `rows`, each with a line per series. Empty if there is no series.
#[must_use]
pub fn exposition(rows: &[Metric], series: &[Series]) -> String {
    let mut text = String::new();
    if series.is_empty() {
        return text;
    }
    for (index, row) in rows.iter().enumerate() {
        let kind = match row.kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
        };
        let help = escaped(row.help, false);
        let _ = write!(text, "# HELP {0} {help}\n# TYPE {0} {kind}\n", row.name);
        for one in series {
            let Some(value) = one.values.get(index) else { continue };
            let labels: Vec<String> = one
                .labels
                .iter()
                .map(|(name, value)| format!("{name}=\"{}\"", escaped(value, true)))
                .collect();
            let _ = match row.unit {
                MetricUnit::Micros => writeln!(
                    text,
                    "{}{{{}}} {}.{:06}",
                    row.name,
                    labels.join(","),
                    value / 1_000_000,
                    value % 1_000_000
                ),
                _ => writeln!(text, "{}{{{}}} {value}", row.name, labels.join(",")),
            };
        }
    }
    text
}

/// Escapes a help text or, with quotes, the value of a label.
fn escaped(text: &str, has_quotes: bool) -> String {
    let text = text.replace('\\', "\\\\").replace('\n', "\\n");
    if has_quotes { text.replace('"', "\\\"") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{DAEMON, DaemonSample, WRITEBACK, WritebackSample};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    type Sample = (Vec<(String, String)>, f64);

    /// Parses a text strictly: the samples of each metric, which come right after its two comments.
    fn parse(text: &str) -> BTreeMap<String, Vec<Sample>> {
        let mut found: BTreeMap<String, Vec<Sample>> = BTreeMap::new();
        let mut lines = text.split_terminator('\n').peekable();
        while let Some(help) = lines.next() {
            let (name, help) =
                help.strip_prefix("# HELP ").expect(help).split_once(' ').expect("a help");
            assert!(!help.is_empty());
            let kind = lines.next().and_then(|line| line.strip_prefix("# TYPE ")).expect("a type");
            assert!(kind == format!("{name} counter") || kind == format!("{name} gauge"), "{kind}");
            let mut samples = Vec::new();
            while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
                samples.push(sample(name, line));
            }
            assert!(found.insert(name.to_owned(), samples).is_none(), "{name} is there twice");
        }
        found
    }

    fn sample(name: &str, line: &str) -> Sample {
        let rest = line.strip_prefix(name).and_then(|rest| rest.strip_prefix('{')).expect(line);
        let mut rest = rest.chars();
        let mut labels = Vec::new();
        loop {
            let name: String = rest.by_ref().take_while(|one| *one != '=').collect();
            assert!(
                !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase()),
                "{line}"
            );
            assert_eq!(rest.next(), Some('"'), "{line}");
            let mut value = String::new();
            loop {
                match rest.next().expect(line) {
                    '"' => break,
                    '\\' => value.push(match rest.next() {
                        Some('n') => '\n',
                        Some(plain @ ('"' | '\\')) => plain,
                        _ => panic!("{line}"),
                    }),
                    plain => value.push(plain),
                }
            }
            labels.push((name, value));
            match rest.next() {
                Some(',') => {}
                Some('}') => break,
                _ => panic!("{line}"),
            }
        }
        (labels, rest.as_str().strip_prefix(' ').and_then(|text| text.parse().ok()).expect(line))
    }

    #[test]
    fn each_row_is_there_once_with_its_value() {
        let sample = DaemonSample { write_wait_us: 1_500_000, files: 7, ..DaemonSample::default() };
        let series = |daemon: &str| Series {
            labels: vec![("instance", "a".to_owned()), ("daemon", daemon.to_owned())],
            values: sample.in_order(),
        };
        let text = exposition(&DAEMON, &[series("0"), series("1")]);
        let found = parse(&text);
        assert_eq!(found.len(), DAEMON.len());
        for row in &DAEMON {
            assert_eq!(found[row.name].len(), 2, "{}", row.name);
        }
        assert_eq!(found["forebay_files"][1].1, 7.0);
        assert_eq!(found["forebay_write_wait_seconds_total"][0].1, 1.5);
        assert!(text.contains("forebay_files{instance=\"a\",daemon=\"0\"} 7\n"), "{text}");
        assert!(text.contains("seconds_total{instance=\"a\",daemon=\"0\"} 1.500000\n"), "{text}");
        assert_eq!(exposition(&DAEMON, &[]), "");
        let values = WritebackSample { dirty: 2, ..WritebackSample::default() }.in_order();
        let labels = vec![("instance", "a".to_owned())];
        let found = parse(&exposition(&WRITEBACK, &[Series { labels, values }]));
        assert_eq!((found.len(), found["forebay_writeback_dirty"][0].1), (WRITEBACK.len(), 2.0));
    }

    proptest! {
        #[test]
        fn any_label_is_read_unchanged(value in "(.|\n|\"|\\\\){0,12}") {
            let labels = vec![("host", value.clone())];
            let series = Series { labels, values: DaemonSample::default().in_order() };
            let found = parse(&exposition(&DAEMON, &[series]));
            prop_assert_eq!(&found["forebay_files"][0].0, &[("host".to_owned(), value)]);
        }
    }
}
