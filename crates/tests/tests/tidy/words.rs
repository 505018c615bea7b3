//! One word for each concept, and plain English. docs/glossary.md has the words that stand instead.
//! The tables here are built from halves where this file would otherwise break its own rule.

use super::scan::{Token, tokens, words_of};
use super::{Source, assert_none, files_below, markdown_below, read, root, sources};
use std::path::Path;

/// Words that no identifier contains, and the words to use.
const IN_IDENTIFIERS: &[(&str, &str)] = &[
    ("sink sinks sinking sunk", "demote, demotion"),
    ("rise rises rising risen", "promote, promotion; prefetch"),
    ("abroad keeper keepers", "spill, spill host"),
    ("wish wishes", "prefetch request"),
    ("finder", "extent hint table"),
    ("granule granules stretch stretches", "page, page group"),
    ("untold", "unreported"),
    ("bank books purse", "quota coordinator, ledger, grant"),
    ("pact pacts recall recalls", "lease term, revocation"),
    ("turns flights", "open sequence, in-flight transfers"),
    ("posts habit kick", "local operations, spin policy, wake"),
    ("patience", "timeout"),
    ("wanted board fate kit", "request, progress, outcome, context"),
    ("waves lap giver givers", "replacement policy, scan pass, fairness"),
    ("heir heirs", "inherited"),
    ("unkept", "uncached"),
    ("memo trail sight sights", "path cache, validation set, lookup mode"),
    ("twin twins", "hard links"),
    ("dress", "metadata"),
    ("landing landings", "commit, rename mode"),
    ("draft drafts", "partial file; pending operation"),
    ("folder folders", "dir"),
    ("standing standings", "sync state"),
    ("piece pieces", "extent"),
    ("chunk chunks", "stripe"),
    ("brake", "rate limiter"),
    ("crew", "workers"),
    ("conduct manner", "runner, options"),
    ("nudge rouse doze", "wake, short sleep"),
    ("whoever whom who he him his", "a noun"),
];

/// Names of the standard library and of other crates that contain a word of the table.
const FOREIGN: &[&str] = &[
    "array_chunks",
    "chunk_by",
    "as_chunks",
    "as_chunks_mut",
    "chunks",
    "chunks_exact",
    "chunks_exact_mut",
    "chunks_mut",
    "first_chunk",
    "last_chunk",
    "rchunks",
    "split_first_chunk",
    "split_first_chunk_mut",
    "split_last_chunk",
];

/// Words and phrases that no comment and no document contains, and what to write.
const IN_PROSE: &[(&str, &str)] = &[
    ("sink|sinks|sinking|sunk", "demote, demotion"),
    ("risen", "promoted"),
    ("abroad", "spilled"),
    ("keeper|keepers", "spill host"),
    ("granule|granules", "page"),
    ("untold", "unreported"),
    ("purse", "grant"),
    ("pact|pacts", "lease term"),
    ("heir|heirs", "inherited"),
    ("unkept", "uncached"),
    ("folder|folders", "directory"),
    ("lies below|lie below", "is in the backing store"),
    ("can not", "cannot"),
    ("whoever|whom|who", "the noun: a process, a user, a request"),
    ("he|him|his", "it"),
];

/// Words with which no sentence opens unless it asks.
const OPENINGS: &[&str] = &["Who", "Whoever", "Whom", "Whose", "What"];

/// Whether a phrase stands in a text as whole words, in any case.
fn contains(text: &str, phrase: &str) -> bool {
    let text = text.to_lowercase();
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == '-';
    text.match_indices(phrase).any(|(at, _)| {
        let before = text[..at].chars().next_back().is_none_or(|letter| !is_word(letter));
        let behind = text[at + phrase.len()..].chars().next().is_none_or(|letter| !is_word(letter));
        before && behind
    })
}

/// The text with what stands between backquotes blanked: names of code keep their own rule.
fn prose(text: &str) -> String {
    let mut is_code = false;
    let blank = |letter: char| {
        is_code ^= letter == '`';
        if is_code && letter != '`' && letter != '\n' { '_' } else { letter }
    };
    text.chars().map(blank).collect()
}

/// The sentences of a paragraph: where each begins, its text, and whether it asks. A cell of a table is
/// a sentence of its own.
fn sentences(paragraph: &str) -> Vec<(usize, &str, bool)> {
    let mut found = Vec::new();
    let mut start = 0;
    let mut letters = paragraph.char_indices().peekable();
    let mut mark = None;
    while let Some((at, letter)) = letters.next() {
        match letter {
            '.' | '?' | '!' | ':' | ';' | '|' => mark = Some(letter),
            // They may stand between the mark and the space.
            ')' | '"' | '*' | '_' | '`' | ']' => {}
            _ => mark = None,
        }
        let end = at + letter.len_utf8();
        let is_end = letters.peek().is_none_or(|(_, next)| next.is_whitespace());
        if letters.peek().is_none() || mark.is_some() && is_end {
            found.push((start, &paragraph[start..end], mark == Some('?')));
            start = end;
        }
    }
    found
}

/// The sentences of the paragraph that open with one of `OPENINGS` and are no questions.
fn headless(paragraph: &str) -> Vec<(usize, &str)> {
    let opens = |sentence: &str| {
        let first = sentence.split_whitespace().find(|word| word.contains(char::is_alphabetic));
        let first = first.unwrap_or_default();
        OPENINGS.contains(&first.trim_matches(|letter: char| !letter.is_alphabetic()))
    };
    let all = sentences(paragraph).into_iter();
    all.filter(|(_, sentence, asks)| !asks && opens(sentence))
        .map(|(at, sentence, _)| {
            (at + sentence.len() - sentence.trim_start().len(), sentence.trim())
        })
        .collect()
}

/// Lines that belong together: sentences and code in backquotes go on from one to the next.
struct Paragraph {
    /// Number of the first line.
    number: usize,
    /// The lines, without marks of lists and headings.
    text: String,
    /// Whether it stands between fences: it is code, or output, and has no sentences.
    is_fenced: bool,
}

impl Paragraph {
    /// Number of the line at this offset of the text.
    fn number_at(&self, at: usize) -> usize {
        self.number + self.text[..at].matches('\n').count()
    }
}

/// Whether a line begins with the mark of a list item, a row or a heading.
fn is_item(line: &str) -> bool {
    let mark = line.split(' ').next().unwrap_or_default();
    let digits = mark.strip_suffix(['.', ')']);
    ["-", "*", "+"].contains(&mark)
        || line.starts_with(['|', '>'])
        || is_heading(line)
        || digits.is_some_and(|digits| digits.parse::<u32>().is_ok())
}

fn is_heading(line: &str) -> bool {
    line.trim_start_matches('#').starts_with(' ') && line.starts_with('#')
}

/// Paragraphs of numbered lines. An empty line, a fence, a heading and a list item end one.
fn paragraphs<'a>(lines: impl Iterator<Item = (usize, &'a str)>) -> Vec<Paragraph> {
    let mut found: Vec<Paragraph> = Vec::new();
    // Number of the line that the open paragraph ends with.
    let mut last = None;
    let mut is_fenced = false;
    for (number, line) in lines {
        let line = line.trim();
        if line.starts_with("```") {
            is_fenced = !is_fenced;
            last = None;
            continue;
        }
        if line.is_empty() {
            last = None;
            continue;
        }
        let goes_on = last.is_some_and(|one: usize| one + 1 == number) && !is_item(line);
        last = (!is_fenced && !is_heading(line)).then_some(number);
        match found.last_mut() {
            Some(open) if goes_on => {
                open.text.push('\n');
                open.text.push_str(line);
            }
            _ => {
                let text = line.trim_start_matches(['-', '*', '+', '|', '>', '#', ' ']).to_owned();
                found.push(Paragraph { number, text, is_fenced });
            }
        }
    }
    found
}

/// Comment lines of a source: number, text without slashes. An empty line stands where the next does not
/// continue the one before: beside code, and where comments of another kind begin.
fn comments(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut number = 1;
    let mut is_beside_code = false;
    let mut last = "";
    for (kind, range) in tokens(text) {
        let part = &text[range];
        let lines = part.matches('\n').count();
        if kind == Token::Comment {
            let marks = &part[..part.len() - part.trim_start_matches(['/', '!', '*']).len()];
            if is_beside_code || marks != last {
                found.push((number, ""));
            }
            for (index, line) in part.lines().enumerate() {
                found
                    .push((number + index, line.trim().trim_start_matches(['/', '!', '*']).trim()));
            }
            if is_beside_code || part.starts_with("/*") {
                found.push((number + lines, ""));
            }
            last = marks;
        } else if lines > 0 {
            is_beside_code = false;
        } else if !part.trim().is_empty() {
            is_beside_code = true;
        }
        number += lines;
    }
    found
}

/// Faults of prose: banned words, and sentences without a subject.
fn faults_of_prose(name: &str, lines: &[(usize, &str)], faults: &mut Vec<String>) {
    for paragraph in paragraphs(lines.iter().copied()) {
        let text = prose(&paragraph.text);
        for (index, line) in text.lines().enumerate() {
            let number = paragraph.number + index;
            for (words, instead) in IN_PROSE {
                for word in words.split('|').filter(|word| contains(line, word)) {
                    faults.push(format!("{name}:{number}: {word:?}: use {instead}"));
                }
            }
        }
        if !paragraph.is_fenced {
            for (at, sentence) in headless(&text) {
                let number = paragraph.number_at(at);
                faults.push(format!("{name}:{number}: no subject: {sentence:.60}"));
            }
        }
    }
}

/// Whether this rule's own tables stand in the file.
fn is_table(source: &Source) -> bool {
    source.path.ends_with("tidy/words.rs")
}

#[test]
fn identifiers_use_the_words_of_the_glossary() {
    let mut faults = Vec::new();
    for source in sources().iter().filter(|source| !is_table(source)) {
        let (text, name) = (&source.text, source.name());
        for (kind, range) in tokens(text) {
            let identifier = &text[range.clone()];
            if kind != Token::Identifier || FOREIGN.contains(&identifier) {
                continue;
            }
            let words = words_of(identifier);
            for (banned, instead) in IN_IDENTIFIERS {
                if let Some(word) = banned.split(' ').find(|one| words.iter().any(|w| w == one)) {
                    let line = text[..range.start].matches('\n').count() + 1;
                    faults.push(format!("{name}:{line}: {identifier}: {word:?}: use {instead}"));
                }
            }
        }
    }
    println!("banned words in identifiers: {}", faults.len());
    assert_none(&faults);
}

#[test]
fn comments_are_plain_english() {
    let mut faults = Vec::new();
    for source in sources().iter().filter(|source| !is_table(source)) {
        faults_of_prose(&source.name(), &comments(&source.text), &mut faults);
    }
    println!("faults in comments: {}", faults.len());
    assert_none(&faults);
}

/// Literals of more than one word are for people: errors, help, descriptions of metrics.
#[test]
fn texts_of_programs_are_plain_english() {
    let mut faults = Vec::new();
    let production = |source: &&Source| source.is_production();
    for source in sources().iter().filter(production) {
        let mut number = 1;
        for (kind, range) in tokens(&source.text) {
            let part = &source.text[range];
            if kind == Token::Literal && part.contains(' ') {
                let lines = part.lines().enumerate().map(|(at, line)| (number + at, line));
                faults_of_prose(&source.name(), &lines.collect::<Vec<_>>(), &mut faults);
            }
            number += part.matches('\n').count();
        }
    }
    println!("faults in texts: {}", faults.len());
    assert_none(&faults);
}

#[test]
fn documents_and_scripts_are_plain_english() {
    let mut faults = Vec::new();
    let name = |path: &Path| path.strip_prefix(root()).unwrap_or(path).display().to_string();
    // Licences are quoted there.
    let is_ours = |path: &Path| !path.ends_with("THIRD_PARTY.md");
    for (path, text) in markdown_below(&root()).into_iter().filter(|(path, _)| is_ours(path)) {
        let lines: Vec<_> = text.lines().enumerate().map(|(at, line)| (at + 1, line)).collect();
        faults_of_prose(&name(&path), &lines, &mut faults);
    }
    let scripts = ["sh", "py", "toml", "mk"].map(|extension| files_below(&root(), extension));
    for path in scripts.into_iter().flatten().chain([root().join("Makefile")]) {
        let text = read(&path);
        let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
        let comments = lines.filter(|(_, line)| line.starts_with('#'));
        let lines: Vec<_> =
            comments.map(|(at, line)| (at, line.trim_start_matches(['#', ' ']))).collect();
        faults_of_prose(&name(&path), &lines, &mut faults);
    }
    for path in files_below(&root().join("fuzz"), "rs") {
        faults_of_prose(&name(&path), &comments(&read(&path)), &mut faults);
    }
    println!("faults in documents: {}", faults.len());
    assert_none(&faults);
}

#[test]
fn headless_sentences_are_found() {
    for text in [
        "It waits. Who asks is told.",
        "It waits.\nWhat one asks\nis answered.",
        "What one asks",
        "(What one asks.)",
        "It waits (here.) What one asks is told.",
        "Two: What one asks.",
        "first | What one asks | last",
        "Is it so? Who asks is told.",
    ] {
        assert_eq!(headless(text).len(), 1, "{text}");
    }
    for text in ["It asks: What is that?", "This is what a client asks.", "What is \"that?\"", ""] {
        assert!(headless(text).is_empty(), "{text}");
    }
    assert!(contains("He waits.", "he") && !contains("the shell", "he"));
}

/// Faults in a text of so many lines: the number of the line and the fault's first word.
#[cfg(test)]
fn faults_in<'a>(lines: impl Iterator<Item = (usize, &'a str)>) -> Vec<String> {
    let mut faults = Vec::new();
    faults_of_prose("x", &lines.collect::<Vec<_>>(), &mut faults);
    faults.iter().map(|fault| fault.split(": ").take(2).collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn sentences_are_found_behind_headings_items_code_and_other_comments() {
    let text = "\
//! Header
// What is here. \"
/// Function.
///
/// # Errors
/// What was not written.
fn f<'a>(a: &'a str, // one argument
         b: u8, // What another is
         // What a third is
         c: u8) {}
/* A block.
   Who reads it */ const A: &str = \"// What\"; // he
";
    let found = faults_in(comments(text).into_iter());
    let subject = |line: u32| format!("x:{line} no subject");
    let expected = [2, 6, 8, 9, 12].map(subject);
    let (rest, word): (Vec<_>, Vec<_>) = found.iter().partition(|one| one.ends_with("subject"));
    assert_eq!(rest, expected.iter().collect::<Vec<_>>());
    assert_eq!(word, ["x:12 \"who\"", "x:12 \"he\""]);
}

#[test]
fn words_are_found_in_documents_outside_of_code() {
    let text = "\
# Heading
What follows it
1. What an item says
- an item `of code that
  goes on with who` and he ends it
| cell | What a cell says |
```
What output says to him
```
It asks
what that is.
";
    let found = faults_in(text.lines().enumerate().map(|(at, line)| (at + 1, line)));
    assert_eq!(
        found,
        ["x:2 no subject", "x:3 no subject", "x:5 \"he\"", "x:6 no subject", "x:8 \"him\""]
    );
}
