//! Output for people and programs: tables, sizes, colours, JSON.

use anstream::{AutoStream, ColorChoice};
use anstyle::Style;
use config::printable::{printable, printable_json};

/// Prints a JSON value on one line.
pub(crate) fn print_json(value: &serde_json::Value) {
    out_as_is!("{}\n", printable_json(&value.to_string()));
}

/// A size for people: up to three digits and a unit; `-` if it is unknown.
pub(crate) fn human(bytes: Option<u64>) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let Some(bytes) = bytes else { return "-".to_owned() };
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(unit > 0 && value < 9.95);
    format!("{value:.digits$} {}", UNITS.get(unit).unwrap_or(&""))
}

/// A count with its noun: `1 file`, `2 files`. For nouns whose plural ends in `s`.
pub(crate) fn plural(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// A count of files and names, which are written back separately.
pub(crate) fn files_and_names(count: u64) -> String {
    if count == 1 { "1 file or name".to_owned() } else { format!("{count} files and names") }
}

/// The text in a style if standard output is a terminal with colours, else unchanged.
pub(crate) fn painted(style: Style, text: &str) -> String {
    match AutoStream::choice(&std::io::stdout()) {
        ColorChoice::Never => text.to_owned(),
        _ => format!("{style}{text}{style:#}"),
    }
}

/// Aligns columns. The first row is the heading.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    // A name with a line end is one cell.
    let shown = |row: &Vec<String>| row.iter().map(|cell| printable(cell).into_owned()).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(shown).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        format!("{}\n", line.trim_end())
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_of_one_has_no_plural() {
        assert_eq!((plural(1, "file"), plural(0, "file")), ("1 file".into(), "0 files".into()));
    }

    #[test]
    fn sizes_are_short() {
        let cases = [(0, "0 B"), (999, "999 B"), (1024, "1.0 KiB"), (10 << 20, "10 MiB")];
        for (bytes, text) in cases {
            assert_eq!(human(Some(bytes)), text);
        }
        assert_eq!(human(Some(u64::MAX)), "16384 PiB");
        assert_eq!(human(None), "-");
    }

    #[test]
    fn columns_are_aligned() {
        let rows = [["a", "bb"], ["ccc", ""]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(table(&rows), "a    bb\nccc\n");
    }
}
