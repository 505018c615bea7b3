//! Files are small, have headers, keep to the column limit; functions fit a screen; `unsafe` stays in
//! its crates and each use states its safety; nothing names a place outside the repository.

use super::{Source, assert_none, is_output, root, sources};
use std::fs;

/// The only crates with `unsafe`.
const UNSAFE: [&str; 4] = ["shm", "preload", "fabric", "mount"];
const FILE_LINES_MAX: usize = 800;
const FUNCTION_LINES_MAX: usize = 70;
/// rustfmt keeps code within 100; a literal that it may not break gets a few more.
const COLUMNS_MAX: usize = 106;

#[test]
fn files_are_small_have_headers_and_no_strange_words() {
    // Put together here so that this file does not name them itself.
    let banned = [
        ["TO", "DO"].concat(),
        ["FIX", "ME"].concat(),
        ["to", "do!("].concat(),
        ["unimplement", "ed!("].concat(),
        ["#[ign", "ore"].concat(),
    ];
    let mut faults = Vec::new();
    for Source { path, text, .. } in sources() {
        let lines = text.lines().count();
        let name = path.display();
        if lines > FILE_LINES_MAX {
            faults.push(format!("{name}: {lines} lines"));
        }
        if !text.starts_with("//!") {
            faults.push(format!("{name}: no header"));
        }
        for (number, line) in text.lines().enumerate() {
            if line.chars().count() > COLUMNS_MAX {
                faults.push(format!("{name}:{}: more than {COLUMNS_MAX} columns", number + 1));
            }
            if let Some(word) = banned.iter().find(|word| line.contains(word.as_str())) {
                faults.push(format!("{name}:{}: {word}", number + 1));
            }
        }
    }
    assert_none(&faults);
}

#[test]
fn unsafe_stands_at_the_rim_and_says_why_it_holds() {
    let keyword = ["unsa", "fe"].concat();
    let mut faults = Vec::new();
    for Source { member, path, text } in sources() {
        let name = path.display();
        let is_source = path.components().any(|part| part.as_os_str() == "src");
        let is_library = text.starts_with("//!") && path.ends_with("src/lib.rs");
        let fenced = UNSAFE.contains(&member.as_str());
        if is_library && !fenced && !text.contains(&format!("forbid({keyword}_code)")) {
            faults.push(format!("{name}: does not forbid {keyword} code"));
        }
        let starts = [format!("{keyword} {{"), format!("{keyword} impl"), format!("{keyword} fn")];
        let lines: Vec<&str> = text.lines().collect();
        for (number, line) in lines.iter().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            if !is_source || !starts.iter().any(|start| code.contains(start.as_str())) {
                continue;
            }
            if !fenced {
                faults.push(format!("{name}:{}: {keyword}", number + 1));
            }
            let above = &lines[number.saturating_sub(16)..=number];
            if !above.iter().any(|line| line.to_lowercase().contains("safety")) {
                faults.push(format!("{name}:{}: no word on safety", number + 1));
            }
        }
    }
    assert_none(&faults);
}

#[test]
fn functions_fit_a_screen() {
    let mut faults = Vec::new();
    for Source { path, text, .. } in sources() {
        let lines: Vec<&str> = text.lines().collect();
        for (start, line) in lines.iter().enumerate() {
            let indent = line.len() - line.trim_start().len();
            let head = line.trim_start().trim_start_matches("pub(crate) ");
            let head = head.trim_start_matches("pub(super) ").trim_start_matches("pub ");
            let head = head.trim_start_matches("const ").trim_start_matches("unsafe ");
            if !head.starts_with("fn ") && !head.starts_with("extern \"C\" fn ") {
                continue;
            }
            // A method that a trait only names has no body.
            let ends = |line: &&&str| line.ends_with(';') || line.ends_with('{');
            if lines[start..].iter().find(ends).is_none_or(|line| line.ends_with(';')) {
                continue;
            }
            let end = format!("{}}}", " ".repeat(indent));
            let length = lines[start..].iter().position(|line| *line == end).unwrap_or(0);
            if length >= FUNCTION_LINES_MAX {
                faults.push(format!("{}:{}: {length} lines", path.display(), start + 1));
            }
        }
    }
    assert_none(&faults);
}

/// Registries are named by the configuration of their clients, and paths of one machine are of no use
/// on another.
#[test]
fn nothing_points_outside_the_repository() {
    let banned = [
        ["crates", ".io"].concat(),
        ["pypi", ".org"].concat(),
        ["deb.debian", ".org"].concat(),
        ["proxy.golang", ".org"].concat(),
        ["/wo", "rk/"].concat(),
        ["/tmp/t", "-"].concat(),
    ];
    let mut faults = Vec::new();
    let mut dirs = vec![root()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).expect("a folder").flatten() {
            let path = entry.path();
            let name = entry.file_name();
            if path.is_dir() {
                if !is_output(&path) {
                    dirs.push(path);
                }
            } else if name != "Cargo.lock" && name != ".git" {
                // Files of bytes have no words.
                let Ok(text) = fs::read_to_string(&path) else { continue };
                for word in &banned {
                    if text.contains(word.as_str()) {
                        faults.push(format!("{}: {word}", path.display()));
                    }
                }
            }
        }
    }
    assert_none(&faults);
}
