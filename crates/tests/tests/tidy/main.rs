//! The rules of the repository, as tests. Each module holds one kind of rule; `--nocapture` prints
//! the counts. The rules and their reasons are in CONTRIBUTING.md.

mod components;
mod dependencies;
mod dirs;
mod files;
mod promises;
mod scan;
mod types;
mod words;

use std::fs;
use std::path::{Path, PathBuf};

/// Root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Entries of a directory, in the order of their names.
fn read_dir(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    found.sort();
    found
}

/// True for directories that are not of the repository: those that `.gitignore` names by their path, and
/// other build outputs. Modules may be called `target`.
fn is_output(directory: &Path) -> bool {
    let ignored = read(&root().join(".gitignore"));
    let mut ignored = ignored.lines().filter_map(|line| line.strip_prefix('/'));
    directory.ends_with(".git")
        || directory.join("CACHEDIR.TAG").exists()
        || ignored.any(|path| directory == root().join(path))
}

#[test]
fn build_outputs_are_not_of_the_repository() {
    for path in ["target", "fuzz/target", ".git"] {
        assert!(is_output(&root().join(path)), "{path}");
    }
    for path in ["fuzz", "crates/data/src/target"] {
        assert!(!is_output(&root().join(path)), "{path}");
    }
}

/// All files below a directory whose names end so, build outputs excluded.
fn files_below(top: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut directories = vec![top.to_owned()];
    while let Some(directory) = directories.pop() {
        for path in read_dir(&directory) {
            if path.is_dir() {
                if !is_output(&path) {
                    directories.push(path);
                }
            } else if path.extension().is_some_and(|one| one == extension) {
                found.push(path);
            }
        }
    }
    found
}

/// Markdown below a directory: path, text.
fn markdown_below(top: &Path) -> Vec<(PathBuf, String)> {
    let files = files_below(top, "md").into_iter();
    files.map(|path| (path.clone(), read(&path))).collect()
}

/// Names of the member crates, in the order of the root manifest.
fn members() -> Vec<String> {
    let manifest = read(&root().join("Cargo.toml"));
    let list = manifest.split("members = [").nth(1).and_then(|rest| rest.split(']').next());
    list.expect("a list of members")
        .split('"')
        .filter_map(|part| part.strip_prefix("crates/"))
        .map(str::to_owned)
        .collect()
}

/// One Rust source of a member crate.
struct Source {
    member: String,
    path: PathBuf,
    text: String,
}

impl Source {
    /// Path from the root of the repository, for messages.
    fn name(&self) -> String {
        self.path.strip_prefix(root()).unwrap_or(&self.path).display().to_string()
    }

    /// Whether the file belongs to the crate itself and not to its tests.
    fn is_production(&self) -> bool {
        let name = self.name();
        name.contains("/src/") && !name.contains("/tests/") && !name.ends_with("tests.rs")
    }
}

/// All Rust sources of the members.
fn sources() -> Vec<Source> {
    let mut found = Vec::new();
    for member in members() {
        for path in files_below(&root().join("crates").join(&member), "rs") {
            let text = read(&path);
            found.push(Source { member: member.clone(), path, text });
        }
    }
    assert!(found.len() > 20, "the sources were not found");
    found
}

/// Fails with all faults, one per line.
fn assert_none(faults: &[String]) {
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}
