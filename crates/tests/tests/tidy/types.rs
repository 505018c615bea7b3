//! A type name is unique in its crate, so that a search finds one definition.

use super::scan::code;
use super::{assert_none, sources};
use std::collections::BTreeMap;

const KEYWORDS: [&str; 5] = ["struct", "enum", "union", "trait", "type"];

/// Name of the type that a line of code defines. Associated types, which are indented, do not count.
fn defined(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace().peekable();
    while words.next_if(|word| word.starts_with("pub") || *word == "unsafe").is_some() {}
    let keyword = words.next().filter(|word| KEYWORDS.contains(word))?;
    if keyword == "type" && line.starts_with(' ') {
        return None;
    }
    let name = words.next()?.split(|letter: char| !letter.is_alphanumeric()).next()?;
    name.starts_with(char::is_uppercase).then_some(name)
}

#[test]
fn type_names_are_unique_in_their_crate() {
    let mut places: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for source in sources().into_iter().filter(|source| source.name().contains("/src/")) {
        for name in code(&source.text).lines().filter_map(defined) {
            let key = (source.member.clone(), name.to_owned());
            places.entry(key).or_default().push(source.name());
        }
    }
    let twice = places.iter().filter(|(_, places)| places.len() > 1);
    let faults: Vec<String> = twice
        .map(|((member, name), places)| format!("{member}::{name}: {}", places.join(", ")))
        .collect();
    println!("types: {}, names that are defined twice: {}", places.len(), faults.len());
    assert_none(&faults);
}
