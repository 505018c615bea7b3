//! History of runs: one line of JSON per run, with its time, its commit and the machine.

use serde_json::{Value, json};
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::process::{Command, Stdio};

/// Appends a run to `file`: its performance targets and the median of each row of `results`.
pub(crate) fn append(file: &str, targets: &Value, results: &Value) -> Result<(), String> {
    let rows = results.as_array().into_iter().flatten();
    let short = |row: &Value| {
        let keys = ["group", "test", "processes", "unit", "on", "median"];
        Value::Object(keys.map(|key| (key.to_owned(), row[key].clone())).into_iter().collect())
    };
    let run = json!({
        "date": program_output("date", &["-u", "+%FT%TZ"]),
        "commit": commit(),
        "processors": std::thread::available_parallelism().map_or(0, usize::from),
        "kernel": program_output("uname", &["-r"]),
        "targets": targets,
        "results": rows.map(short).collect::<Vec<_>>(),
    });
    let line = format!("{run}\n");
    let describe = |error| format!("{file}: {error}");
    let mut out = OpenOptions::new().append(true).create(true).open(file).map_err(describe)?;
    out.write_all(line.as_bytes()).map_err(describe)
}

/// All runs of a history, oldest first.
pub(crate) fn read(file: &str) -> Result<Vec<Value>, String> {
    let text = fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
    let run = |(number, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|error| format!("{file}:{}: {error}", number + 1))
    };
    text.lines().enumerate().map(run).collect()
}

/// Commit of the current directory, followed by `+` if there are uncommitted changes.
fn commit() -> String {
    let commit = program_output("git", &["rev-parse", "--short", "HEAD"]);
    let changes = program_output("git", &["status", "--porcelain", "--untracked-files=no"]);
    if changes.is_empty() { commit } else { format!("{commit}+") }
}

/// Standard output of a program; empty if the program is missing or fails.
fn program_output(program: &str, words: &[&str]) -> String {
    let output =
        Command::new(program).args(words).stdin(Stdio::null()).stderr(Stdio::null()).output();
    match output {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    //! A run that is appended can be read back.
    use super::*;

    #[test]
    fn runs_are_appended_and_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("history").to_string_lossy().into_owned();
        let row = json!({"group": "own", "test": "read", "median": 2.0, "values": [1.0, 2.0, 3.0]});
        for number in 0..2 {
            append(&file, &json!([number]), &json!([row])).expect("appended");
        }
        let runs = read(&file).expect("a history");
        assert_eq!((runs.len(), &runs[1]["targets"][0]), (2, &json!(1)));
        assert_eq!(runs[0]["results"][0]["median"], 2.0);
        assert!(runs[0]["results"][0].get("values").is_none());
        assert!(runs[0]["date"].as_str().is_some_and(|date| date.ends_with('Z')));
        fs::write(&file, "{}\nno JSON\n").expect("written");
        assert!(read(&file).expect_err("wrong").contains("history:2:"));
    }
}
