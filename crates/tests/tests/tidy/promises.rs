//! Each promise of docs/semantics names its tests, and one of them quotes it. The tests and files that
//! other pages give as evidence are there.

use super::{Source, assert_none, markdown_below, root, sources};
use std::fs;

/// One line, without the marks of comments.
fn squeezed(text: &str) -> String {
    let words = text.split_whitespace().filter(|word| !["//", "///", "//!", "#"].contains(word));
    words.collect::<Vec<_>>().join(" ").to_lowercase()
}

/// The numbered promises of a text: the words in bold, and all of each.
fn promises(text: &str) -> Vec<(String, String)> {
    let mut all: Vec<String> = Vec::new();
    let mut is_inside = false;
    for line in text.lines() {
        let begins =
            line.split_once(". **").is_some_and(|(number, _)| number.parse::<u32>().is_ok());
        is_inside = begins || is_inside && line.starts_with("   ");
        match all.last_mut() {
            _ if begins => all.push(line.to_owned()),
            Some(last) if is_inside => *last += &format!("\n{line}"),
            _ => {}
        }
    }
    let words = |promise: &String| squeezed(promise.split("**").nth(1).unwrap_or_default());
    all.into_iter().map(|one| (words(&one).trim_end_matches('.').to_owned(), one)).collect()
}

/// The text of a test or file that a document names, or `None` where there is none.
fn named_text(name: &str, sources: &[Source]) -> Option<String> {
    if is_path(name) {
        let path = root().join(name);
        return if path.is_dir() { Some(String::new()) } else { fs::read_to_string(&path).ok() };
    }
    let function = format!("fn {name}(");
    sources.iter().find(|one| one.text.contains(&function)).map(|one| one.text.clone())
}

fn is_path(name: &str) -> bool {
    name.starts_with("tests/") || name.starts_with("crates/")
}

/// Names of files and tests between the backquotes of a text; long names of metrics, and of what others
/// defined, are none.
fn names(text: &str) -> Vec<&str> {
    let is_word = |one: char| one.is_ascii_lowercase() || one.is_ascii_digit() || one == '_';
    let is_test = |name: &&str| {
        let is_long = name.split('_').count() > 4;
        is_long && name.chars().all(is_word) && !name.starts_with("forebay_")
    };
    let quoted = text.split('`').skip(1).step_by(2);
    quoted.filter(|name| is_path(name) || is_test(name)).collect()
}

/// Pages outside docs/semantics that name tests as evidence.
const PAGES: [&str; 3] = ["SECURITY.md", "docs/security-findings.md", "docs/redundancy.md"];

#[test]
fn each_test_that_a_page_names_is_there() {
    let sources = sources();
    let mut faults = Vec::new();
    let mut count = 0;
    for page in PAGES {
        let text = fs::read_to_string(root().join(page)).expect("a page");
        for name in names(&text) {
            count += 1;
            if named_text(name, &sources).is_none() {
                faults.push(format!("{page}: {name} is named, and is not there"));
            }
        }
    }
    assert!(count > 30, "the names were not found: {count}");
    assert_none(&faults);
}

#[test]
fn each_promise_names_a_test_that_quotes_it() {
    let sources = sources();
    let mut faults = Vec::new();
    let mut count = 0;
    for (path, text) in markdown_below(&root().join("docs/semantics")) {
        let file = path.file_name().unwrap_or_default().display().to_string();
        for name in names(&text).into_iter().filter(|name| named_text(name, &sources).is_none()) {
            faults.push(format!("{file}: {name} is named, and is not there"));
        }
        for (words, promise) in promises(&text) {
            count += 1;
            let mut texts =
                names(&promise).into_iter().filter_map(|name| named_text(name, &sources));
            if !texts.any(|text| squeezed(&text).contains(&words)) {
                faults.push(format!("{file}: no test that it names quotes {words:?}"));
            }
        }
    }
    assert!(count > 10, "the promises were not found");
    assert_none(&faults);
}
