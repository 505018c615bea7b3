//! Text of others, as it is printed on a terminal or in a log: names of files, arguments, error texts.
//! Characters that act on a terminal, or that change the order in which text is shown, are escaped, so
//! that a name can neither colour, clear nor retitle the terminal, nor begin a line of its own.

use std::borrow::Cow;

/// A name or an argument: everything on one line.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, acts)
}

/// A text that may have several lines.
#[must_use]
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    escaped(text, |one| acts(one) && one != '\n')
}

/// An error as a program reports it: printable, and without numbers of I/O errors.
#[must_use]
pub fn error_text(error: &impl std::fmt::Display) -> String {
    printable_lines(&without_os_error(&error.to_string())).into_owned()
}

/// JSON, whose escapes are others. It stays the same value.
#[must_use]
pub fn printable_json(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for one in text.chars() {
        match acts(one) {
            true => shown.push_str(&format!("\\u{:04x}", u32::from(one))),
            false => shown.push(one),
        }
    }
    shown
}

/// A text without the suffixes ` (os error 13)` of I/O errors.
#[must_use]
pub fn without_os_error(text: &str) -> String {
    const SUFFIX: &str = " (os error ";
    let mut parts = text.split(SUFFIX);
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(')') {
            Some((number, rest)) if number.bytes().all(|byte| byte.is_ascii_digit()) => {
                shown.push_str(rest);
            }
            _ => shown.extend([SUFFIX, part]),
        }
    }
    shown
}

fn escaped(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for one in text.chars() {
        match is_escaped(one) {
            true => shown.extend(one.escape_default()),
            false => shown.push(one),
        }
    }
    Cow::Owned(shown)
}

/// True for control characters (C0, DEL, C1), and for those that separate lines or set the direction.
fn acts(one: char) -> bool {
    one.is_control()
        || matches!(one, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_act_on_a_terminal_are_escaped() {
        for (text, shown) in [
            ("a plain näme 文", "a plain näme 文"),
            ("\u{1b}[31mred", "\\u{1b}[31mred"),
            ("\u{1b}]0;title\u{7}", "\\u{1b}]0;title\\u{7}"),
            ("\u{9b}2J", "\\u{9b}2J"),
            ("two\nlines\r\t", "two\\nlines\\r\\t"),
            ("\u{8}\u{7f}", "\\u{8}\\u{7f}"),
            ("a\u{202e}b\u{2066}c\u{2028}", "a\\u{202e}b\\u{2066}c\\u{2028}"),
            ("back\\slash", "back\\slash"),
        ] {
            assert_eq!(printable(text), shown);
        }
        assert_eq!(printable_json("{\"a\":\"\u{9b}\u{202e}\"}"), "{\"a\":\"\\u009b\\u202e\"}");
        assert_eq!(printable_lines("two\nlines\u{1b}\n"), "two\nlines\\u{1b}\n");
    }

    #[test]
    fn the_number_of_an_os_error_is_left_out() {
        let error = std::io::Error::from_raw_os_error(13);
        assert_eq!(without_os_error(&error.to_string()), "Permission denied");
        assert_eq!(without_os_error("No such file (os error 2): make it"), "No such file: make it");
        assert_eq!(without_os_error("a (os error 1); b (os error 2)"), "a; b");
        assert_eq!(without_os_error("plain (os error x)"), "plain (os error x)");
    }
}
