//! Running other programs: finding one on `PATH`, starting it so that it sees a file system, and
//! reading its output.

use std::process::{Command, Stdio};

/// A command that runs `program` behind the prefix `through`.
pub(crate) fn command(through: &[String], program: &str) -> Command {
    match through.split_first() {
        Some((first, rest)) => {
            let mut command = Command::new(first);
            command.args(rest).arg(program);
            command
        }
        None => Command::new(program),
    }
}

/// True if the program is on `PATH`.
pub(crate) fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// Standard output of a program; if it fails, the last line of its standard error.
pub(crate) fn output(command: &mut Command, program: &str) -> Result<String, String> {
    let outcome =
        command.stdin(Stdio::null()).output().map_err(|error| format!("{program}: {error}"))?;
    if !outcome.status.success() {
        let text = String::from_utf8_lossy(&outcome.stderr);
        return Err(format!(
            "{program}: {}: {}",
            outcome.status,
            text.lines().last().unwrap_or("no message")
        ));
    }
    Ok(String::from_utf8_lossy(&outcome.stdout).into_owned())
}

/// The first number after `label` on a line that begins with it.
pub(crate) fn number_after(out: &str, label: &str) -> Option<f64> {
    let rest = out.lines().find_map(|line| line.trim_start().strip_prefix(label))?;
    rest.split_whitespace().find_map(|word| word.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_behind_labels() {
        let out =
            "SUMMARY rate:\n   File creation  458149.10  458149.10  0.00\n   File stat   7.0\n";
        assert_eq!(number_after(out, "File creation"), Some(458149.10));
        assert_eq!(number_after(out, "File removal"), None);
        let ior = "access    bw(MiB/s)  IOPS\nwrite     4798.03    4801.0\n";
        assert_eq!(number_after(ior, "write"), Some(4798.03));
    }
}
