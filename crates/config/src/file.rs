//! The settings file: lines of `key = value`.
//!
//! A subset of TOML. `#` begins a comment, except within quotes. A value may be in double quotes,
//! without escapes. No sections, no lists, no multi-line values.

use crate::table::SETTINGS;

/// Largest settings file; a larger file is refused.
pub const FILE_BYTES_MAX: usize = 64 * 1024;

/// One line of the settings file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SettingLine {
    /// Its number, from 1.
    pub number: usize,
    /// The setting's name.
    pub key: String,
    /// The value, without quotes.
    pub value: String,
}

/// A line that is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InvalidLine {
    /// Its number, from 1.
    pub number: usize,
    /// The reason, and what to do.
    pub reason: String,
}

/// Reads the lines.
///
/// # Errors
/// The first line that is not `key = value`, names no setting, or sets a setting a second time.
pub fn parse(text: &str) -> Result<Vec<SettingLine>, InvalidLine> {
    let mut lines: Vec<SettingLine> = Vec::new();
    for (index, raw) in text.lines().enumerate() {
        let number = index + 1;
        let wrong = |reason: String| InvalidLine { number, reason };
        let line = without_comment(raw).trim();
        if line.is_empty() {
            continue;
        }
        let Some((key, value)) = line.split_once('=') else {
            return Err(wrong(format!("{line:?} is not 'key = value'")));
        };
        let (key, value) = (key.trim(), value.trim());
        if !SETTINGS.iter().any(|setting| setting.name == key) {
            let names: Vec<_> = SETTINGS.iter().map(|setting| setting.name).collect();
            let names = names.join(", ");
            return Err(wrong(format!("unknown setting {key:?}: the settings are {names}")));
        }
        if let Some(before) = lines.iter().find(|line| line.key == key) {
            return Err(wrong(format!("{key} is already set in line {}", before.number)));
        }
        let quoted = value.strip_prefix('"').map(|rest| rest.strip_suffix('"'));
        let value = match quoted {
            None => value,
            Some(Some(inner)) => inner,
            Some(None) => return Err(wrong(format!("the value of {key} has an unclosed quote"))),
        };
        if value.contains('"') {
            return Err(wrong(format!("the value of {key} has a quote in the middle")));
        }
        lines.push(SettingLine { number, key: key.to_owned(), value: value.to_owned() });
    }
    Ok(lines)
}

fn without_comment(line: &str) -> &str {
    let mut quoted = false;
    for (at, byte) in line.bytes().enumerate() {
        match byte {
            b'"' => quoted = !quoted,
            b'#' if !quoted => return line.get(..at).unwrap_or(line),
            _ => {}
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_are_read() {
        let text = "# all\n\nmemory = 4GiB # much\n dir=\"/local/#1\"\n";
        let lines = parse(text).unwrap_or_default();
        let found: Vec<_> =
            lines.iter().map(|line| (line.number, &*line.key, &*line.value)).collect();
        assert_eq!(found, [(3, "memory", "4GiB"), (4, "dir", "/local/#1")]);
    }

    #[test]
    fn invalid_lines_are_reported_by_number() {
        let wrong = [
            ("memory\n", 1, "is not 'key = value'"),
            ("\nmemmory = 1", 2, "unknown setting \"memmory\""),
            ("ssd = 0\nssd = 1", 2, "ssd is already set in line 1"),
            ("dir = \"x", 1, "unclosed quote"),
            ("[section]", 1, "is not 'key = value'"),
        ];
        for (text, number, reason) in wrong {
            let error = parse(text).expect_err(text);
            assert_eq!(error.number, number, "{text}");
            assert!(error.reason.contains(reason), "{}", error.reason);
        }
    }

    proptest! {
        /// Nearly valid lines are read, or refused with their number. A line that is read may have
        /// an invalid value, which is reported with its line.
        #[test]
        fn nearly_valid_files_are_read_or_refused(
            lines in proptest::collection::vec(
                (0..SETTINGS.len(), "[\"= #a-z0-9]{0,12}|[0-9]{1,20}(B|KiB|TiB|ms|min|s)?"), 0..5),
            at: usize, with in "[\"=#\\\\\n é]",
        ) {
            let line = |(row, value): &(usize, String)| format!("{} = {value}\n", SETTINGS[*row].name);
            let mut text: String = lines.iter().map(line).collect();
            let positions = text.char_indices().count().max(1);
            if let Some((position, _)) = text.char_indices().nth(at % positions) {
                text.insert_str(position, &with);
            }
            match parse(&text) {
                Err(wrong) => prop_assert!((1..=text.lines().count()).contains(&wrong.number)),
                Ok(lines) => {
                    let file = Some(("/f".to_owned(), lines));
                    let sources = crate::Sources { file, ..crate::Sources::default() };
                    if let Err(wrong) = crate::Settings::resolve(&sources) {
                        prop_assert!(wrong.to_string().contains("/f line "), "{wrong}");
                    }
                }
            }
        }

        #[test]
        fn any_text_is_parsed_without_a_panic(text in "(.|\n){0,80}") {
            let _ = parse(&text);
        }
    }
}
