//! Cuts Rust source into comments, literals, identifiers and the rest: as much of the language as the
//! rules about words need. The tokens of a text are its parts, in order and without gaps.

use std::ops::Range;

/// Kind of a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Token {
    /// A comment, from its slashes to the end of the line or of the block.
    Comment,
    /// A literal in quotes, with its prefix.
    Literal,
    /// An identifier, a keyword, a number or a lifetime's name; of a raw identifier also its `r#`.
    Identifier,
    /// One character of anything else: space, punctuation, the apostrophe of a lifetime.
    Other,
}

/// Prefixes of literals in quotes, the empty one last.
const PREFIXES: [&str; 6] = ["br", "cr", "b", "c", "r", ""];

/// Length of a literal in quotes that starts here, or `None`.
fn literal(text: &str) -> Option<usize> {
    let prefix = PREFIXES.into_iter().find(|prefix| text.starts_with(prefix))?;
    let rest = &text[prefix.len()..];
    if let Some(length) = character(rest).filter(|_| ["b", ""].contains(&prefix)) {
        return Some(prefix.len() + length);
    }
    if prefix.ends_with('r') {
        let body = rest.trim_start_matches('#');
        let hashes = rest.len() - body.len();
        let end = format!("\"{}", "#".repeat(hashes));
        let length = body.strip_prefix('"')?.find(&end)?;
        return Some(prefix.len() + hashes + 1 + length + end.len());
    }
    let body = rest.strip_prefix('"')?;
    let mut is_escaped = false;
    let end = body.bytes().position(|byte| {
        let ends = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        ends
    })?;
    Some(prefix.len() + 1 + end + 1)
}

/// Length of a literal of one character that starts here; `None` for a lifetime.
fn character(text: &str) -> Option<usize> {
    let body = text.strip_prefix('\'')?;
    let mut letters = body.char_indices();
    let (_, first) = letters.next().filter(|&(_, letter)| letter != '\'')?;
    // The character behind a backslash may be an apostrophe, and `\x7f` and `\u{7f}` have more.
    let behind = if first == '\\' { letters.nth(1) } else { letters.next() };
    let (at, _) = behind?;
    let end = if first == '\\' { body[at..].find('\'')? } else { 0 };
    body[at + end..].starts_with('\'').then_some(1 + at + end + 1)
}

/// Length of a comment that starts here, or `None`. Blocks nest; one without an end is the rest.
fn comment(text: &str) -> Option<usize> {
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    if !text.starts_with("/*") {
        return None;
    }
    let mut depth = 0;
    let mut at = 0;
    while at < text.len() {
        match text.as_bytes().get(at..at + 2) {
            Some(b"/*") => depth += 1,
            Some(b"*/") => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            return Some(at);
        }
    }
    Some(text.len())
}

/// Length of an identifier or number that starts here, or `None`.
fn identifier(text: &str) -> Option<usize> {
    let is_word = |letter: char| letter == '_' || letter.is_alphanumeric();
    let word = |text: &str| text.find(|letter| !is_word(letter)).unwrap_or(text.len());
    let raw = text.strip_prefix("r#").map_or(0, word);
    let length = if raw > 0 { 2 + raw } else { word(text) };
    (length > 0).then_some(length)
}

/// The tokens of a text, in order: their ranges follow each other from its start to its end.
pub(crate) fn tokens(text: &str) -> Vec<(Token, Range<usize>)> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let (kind, length) = comment(rest)
            .map(|length| (Token::Comment, length))
            .or_else(|| literal(rest).map(|length| (Token::Literal, length)))
            .or_else(|| identifier(rest).map(|length| (Token::Identifier, length)))
            .unwrap_or((Token::Other, first.len_utf8()));
        let at = text.len() - rest.len();
        found.push((kind, at..at + length));
        rest = &rest[length..];
    }
    found
}

/// The text with comments and literals blanked: lines and columns stay.
pub(crate) fn code(text: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for (kind, range) in tokens(text) {
        if matches!(kind, Token::Comment | Token::Literal) {
            for byte in &mut bytes[range] {
                if *byte != b'\n' {
                    *byte = b' ';
                }
            }
        }
    }
    String::from_utf8(bytes).expect("only whole tokens were blanked")
}

/// The words of an identifier, in lower case: `NoSpaceLeft` and `no_space_left` give the same.
pub(crate) fn words_of(identifier: &str) -> Vec<String> {
    let mut words = Vec::new();
    let name = identifier.strip_prefix("r#").unwrap_or(identifier);
    for part in name.split('_').filter(|part| !part.is_empty()) {
        let letters: Vec<char> = part.chars().collect();
        let mut word = String::new();
        for (index, &letter) in letters.iter().enumerate() {
            let after_small = index > 0 && !letters[index - 1].is_uppercase();
            let before_small = letters.get(index + 1).is_some_and(|next| next.is_lowercase());
            if letter.is_uppercase() && !word.is_empty() && (after_small || before_small) {
                words.push(std::mem::take(&mut word));
            }
            word.extend(letter.to_lowercase());
        }
        words.push(word);
    }
    words
}

/// The tokens of a kind.
#[cfg(test)]
fn of_kind(text: &str, kind: Token) -> Vec<&str> {
    let all = tokens(text).into_iter().filter(|(one, _)| *one == kind);
    all.map(|(_, range)| &text[range]).collect()
}

#[test]
fn tokens_of_a_text_are_found() {
    let text = "let a = 'x'; // it's \"quoted\"\nfn f<'a>(s: &'a str) { g(r#\"b\"c\"#, '\\'') }";
    assert_eq!(of_kind(text, Token::Comment), ["// it's \"quoted\""]);
    assert_eq!(of_kind(text, Token::Literal), ["'x'", "r#\"b\"c\"#", "'\\''"]);
    assert_eq!(of_kind(text, Token::Identifier).len(), 9);
    assert_eq!(words_of("NoSpaceLeft"), ["no", "space", "left"]);
    assert_eq!(words_of("HTTPServer_x"), ["http", "server", "x"]);
    assert_eq!(words_of("SAU_BYTES"), ["sau", "bytes"]);
}

/// Each literal stands alone, before code and before a comment: it ends where the language ends it.
#[test]
fn literals_of_each_kind_end_where_they_should() {
    let literals = [
        r#""""#,
        r#""text""#,
        r#""a \" b""#,
        r#""ends in \\""#,
        r#""// no comment""#,
        r#""/* no comment""#,
        "\"two\nlines\"",
        r#""it's""#,
        r#"b"bytes \"""#,
        r#"c"text \"""#,
        r##"r"\""##,
        r###"r#"a "b" c"#"###,
        r####"r##"a "# b"##"####,
        r###"br#"\"#"###,
        r###"cr#"a"b"#"###,
        "'a'",
        "'\"'",
        "'/'",
        r"'\''",
        r"'\\'",
        r"'\n'",
        r"'\x7f'",
        r"'\u{1F600}'",
        "'\u{e9}'",
        "'\u{1F600}'",
        "b'a'",
        "b'\"'",
        r"b'\''",
        r"b'\\'",
        r"b'\xff'",
    ];
    for literal in literals {
        let text = format!("f({literal}, 'x', \"y\") // {literal}");
        assert_eq!(of_kind(&text, Token::Literal), [literal, "'x'", "\"y\""], "{text}");
        let comment = format!("// {literal}");
        let comment = comment.lines().next().expect("a line");
        assert_eq!(of_kind(&text, Token::Comment)[0], comment, "{text}");
    }
}

#[test]
fn lifetimes_labels_and_raw_identifiers_are_no_literals() {
    let text = "'a: loop { f::<'a, '_, 'static, 'b>(&'c r#type, b, c, br, r, &'d[0], '\u{e9}') }";
    assert_eq!(of_kind(text, Token::Literal), ["'\u{e9}'"]);
    assert!(of_kind(text, Token::Identifier).contains(&"r#type"));
    assert_eq!(words_of("r#type"), ["type"]);
    assert_eq!(of_kind("<'a,'b>('x')", Token::Literal), ["'x'"]);
}

#[test]
fn comments_of_each_kind_end_where_they_should() {
    let all = |text| of_kind(text, Token::Comment);
    assert_eq!(all("a /* b /* c */ d */ e // f\ng"), ["/* b /* c */ d */", "// f"]);
    assert_eq!(all("/**/ a /*/ b */ c"), ["/**/", "/*/ b */"]);
    assert_eq!(all("/// it's\n//! a \"\nx"), ["/// it's", "//! a \""]);
    assert_eq!(all("a /* without end"), ["/* without end"]);
    assert_eq!(all("a / b * c \"/*\" d"), [""; 0]);
}

/// The tokens of each source are the source. With comments and literals blanked its brackets match,
/// which they do not once a literal or comment ends in the wrong place.
#[test]
fn tokens_cover_each_source_and_leave_its_brackets_matched() {
    for source in super::sources() {
        let name = source.name();
        let mut at = 0;
        for (_, range) in tokens(&source.text) {
            assert!(range.start == at && range.end > at, "{name}: token at {range:?}");
            at = range.end;
        }
        assert_eq!(at, source.text.len(), "{name}: the tokens end early");
        let code = code(&source.text);
        assert_eq!(code.lines().count(), source.text.lines().count(), "{name}");
        let mut open = Vec::new();
        for (at, letter) in code.char_indices() {
            let line = || code[..at].matches('\n').count() + 1;
            match letter {
                '(' => open.push(')'),
                '[' => open.push(']'),
                '{' => open.push('}'),
                ')' | ']' | '}' => assert_eq!(open.pop(), Some(letter), "{name}:{}", line()),
                '"' => panic!("{name}:{}: a quote outside of literals", line()),
                _ => {}
            }
        }
        assert!(open.is_empty(), "{name}: {open:?} missing");
    }
}
