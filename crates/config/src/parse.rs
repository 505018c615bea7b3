//! Converts text to values and back.

use crate::table::Kind;
use std::net::IpAddr;

/// Longest name of an instance. It is part of a socket path, which has at most 107 bytes.
pub const NAME_BYTES_MAX: usize = 48;

/// Longest name of a libfabric provider that fits into the handshake between daemons.
const PROVIDER_BYTES_MAX: usize = 63;

/// A checked value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// Decided by the code that uses it.
    Auto,
    /// A size, a count or microseconds.
    Number(u64),
    /// Everything else.
    Text(String),
}

/// An absolute or relative amount of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Amount {
    /// Bytes.
    Bytes(u64),
    /// Percentage of the host's memory, for all daemons of the host together.
    Percent(u64),
}

/// Memory for files: an amount, or a range in which it follows the idle memory of the node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryAmount {
    /// Lower end of a range: this much is always available. `None`: it is not a range.
    pub min: Option<Amount>,
    /// The amount, or the upper end of the range.
    pub max: Amount,
}

/// Units of sizes, largest first.
const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
/// Units of time in microseconds. `ms` and `us` come before `s` because they end with it.
const TIMES: [(&str, u64); 4] = [("ms", 1000), ("us", 1), ("s", 1_000_000), ("min", 60_000_000)];

/// Most digits after the point of a size: more than these are below one byte in the largest unit.
const FRACTION_DIGITS_MAX: usize = 12;

/// Reads a size: plain bytes, or a number with KiB, MiB, GiB or TiB, which may have a fraction
/// (`2.5GiB`). K, M, G and T, in either case and with or without `iB`, mean the same units.
#[must_use]
pub fn size(text: &str) -> Option<u64> {
    let end = text.find(|letter: char| letter != '.' && !letter.is_ascii_digit());
    let (number, unit) = text.split_at(end.unwrap_or(text.len()));
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => return digits(number),
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        _ => return None,
    };
    let Some((whole, fraction)) = number.split_once('.') else {
        return digits(number)?.checked_mul(1 << shift);
    };
    if fraction.len() > FRACTION_DIGITS_MAX {
        return None;
    }
    // At most 10^12 << 40 fits into 128 bits; a part of a byte is dropped.
    let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let part = (u128::from(digits(fraction)?) << shift) / scale;
    let whole = digits(whole)?.checked_mul(1 << shift)?;
    whole.checked_add(u64::try_from(part).ok()?)
}

fn amount(text: &str) -> Option<Amount> {
    match text.strip_suffix('%') {
        Some(percent) => digits(percent).filter(|&percent| percent <= 100).map(Amount::Percent),
        None => size(text).map(Amount::Bytes),
    }
}

/// Reads an amount of memory (`25%` or a size) or a range of two (`1GiB..50%`). If both ends are of
/// the same kind, the second must not be less than the first.
#[must_use]
pub fn memory(text: &str) -> Option<MemoryAmount> {
    let Some((min, max)) = text.split_once("..") else {
        return amount(text).map(|max| MemoryAmount { min: None, max });
    };
    let (min, max) = (amount(min)?, amount(max)?);
    let is_ordered = match (min, max) {
        (Amount::Bytes(min), Amount::Bytes(max)) | (Amount::Percent(min), Amount::Percent(max)) => {
            min <= max
        }
        _ => true,
    };
    is_ordered.then_some(MemoryAmount { min: Some(min), max })
}

/// Writes a size so that `size` reads the same number.
#[must_use]
pub fn size_text(bytes: u64) -> String {
    let unit = UNITS.iter().find(|(_, shift)| bytes > 0 && bytes.trailing_zeros() >= *shift);
    unit.map_or_else(|| bytes.to_string(), |(unit, shift)| format!("{}{unit}", bytes >> shift))
}

/// Reads a time into microseconds: a whole number with us, ms, s or min.
#[must_use]
pub fn micros(text: &str) -> Option<u64> {
    let (number, unit) =
        TIMES.iter().find_map(|(unit, micros)| Some((text.strip_suffix(unit)?, *micros)))?;
    digits(number)?.checked_mul(unit)
}

/// Writes a time so that `micros` reads the same number.
#[must_use]
pub fn micros_text(micros: u64) -> String {
    match micros {
        0 => "0s".to_owned(),
        whole if whole % 1_000_000 == 0 => format!("{}s", whole / 1_000_000),
        whole if whole % 1000 == 0 => format!("{}ms", whole / 1000),
        other => format!("{other}us"),
    }
}

/// A number of digits only; `parse` would also accept a sign.
fn digits(text: &str) -> Option<u64> {
    let all = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    all.then(|| text.parse().ok()).flatten()
}

/// True if `text` may name an instance.
#[must_use]
pub fn is_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    !text.is_empty()
        && text.len() <= NAME_BYTES_MAX
        && text.bytes().all(allowed)
        && text.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric)
}

fn is_prefix(text: &str) -> bool {
    let mut parts = text.split('/');
    let rooted = parts.next() == Some("") && text.len() > 1 && text.len() < 1024;
    rooted && !text.contains('\0') && parts.all(|part| !matches!(part, "" | "." | ".."))
}

fn is_transport(text: &str) -> bool {
    // Names of providers: `verbs;ofi_rxm`, `cxi` ..
    let is_provider = |name: &str| {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b";_-".contains(&byte);
        (1..=PROVIDER_BYTES_MAX).contains(&name.len()) && name.bytes().all(allowed)
    };
    matches!(text, "tcp" | "libfabric") || text.strip_prefix("libfabric:").is_some_and(is_provider)
}

/// Splits a command into words: blanks separate; single quotes, double quotes and backslash quote.
/// `None` if a quote is not closed or there is no word.
#[must_use]
pub fn words(text: &str) -> Option<Vec<String>> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut rest = text.chars();
    while let Some(next) = rest.next() {
        match (quote, next) {
            (Some(open), close) if open == close => quote = None,
            (None, '\'' | '"') => {
                quote = Some(next);
                word.get_or_insert_default();
            }
            (None | Some('"'), '\\') => word.get_or_insert_default().push(rest.next()?),
            (None, blank) if blank.is_whitespace() => words.extend(word.take()),
            (_, plain) => word.get_or_insert_default().push(plain),
        }
    }
    words.extend(word);
    (quote.is_none() && !words.is_empty()).then_some(words)
}

/// `a, b or c`.
fn any_of(words: &[&str]) -> String {
    match words {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        _ => words.concat(),
    }
}

impl Kind {
    /// Reads and checks a value.
    #[must_use]
    pub fn read(&self, text: &str) -> Option<Value> {
        let fits = match *self {
            Kind::Name => is_name(text),
            Kind::Prefix => is_prefix(text),
            Kind::Path => !text.is_empty() && !text.contains('\0'),
            Kind::Paths => text.split(':').all(|path| !path.is_empty()) && !text.contains('\0'),
            Kind::Command => words(text).is_some(),
            Kind::Address => text.parse().is_ok_and(|address: IpAddr| !address.is_unspecified()),
            Kind::Transport => is_transport(text),
            Kind::Choice(allowed) => allowed.contains(&text),
            Kind::Size { auto: true, .. }
            | Kind::Count { auto: true, .. }
            | Kind::Memory { .. }
                if text == "auto" =>
            {
                return Some(Value::Auto);
            }
            Kind::Memory { min, max } => {
                let MemoryAmount { min: low, max: high } = memory(text)?;
                let is_in = |amount: Amount, min: u64| match amount {
                    Amount::Bytes(bytes) => (min..=max).contains(&bytes),
                    Amount::Percent(percent) => percent >= min.min(1),
                };
                if !is_in(high, min) || !low.is_none_or(|low| is_in(low, 0)) {
                    return None;
                }
                return Some(match (low, high) {
                    (None, Amount::Bytes(bytes)) => Value::Number(bytes),
                    _ => Value::Text(text.to_owned()),
                });
            }
            Kind::Size { .. } | Kind::Count { .. } | Kind::Duration { .. } => {
                let number = match self {
                    Kind::Size { .. } => size(text),
                    Kind::Count { .. } => digits(text),
                    _ => micros(text),
                };
                return number.filter(|&number| self.has_number(number)).map(Value::Number);
            }
        };
        fits.then(|| Value::Text(text.to_owned()))
    }

    /// True if `number` (bytes, a count, microseconds) is allowed.
    #[must_use]
    pub fn has_number(&self, number: u64) -> bool {
        match *self {
            Kind::Size { min, max, zero, power, .. } => {
                let is_fit = !power || number.is_power_of_two();
                (number == 0 && zero) || ((min..=max).contains(&number) && is_fit)
            }
            Kind::Memory { min, max }
            | Kind::Count { min, max, .. }
            | Kind::Duration { min, max } => (min..=max).contains(&number),
            _ => false,
        }
    }

    /// The allowed values, for people: the end of a sentence that begins with "give".
    #[must_use]
    pub fn allowed(&self) -> String {
        match *self {
            Kind::Name => format!(
                "up to {NAME_BYTES_MAX} letters, digits, '-', '_' or '.', beginning with a letter \
                 or a digit"
            ),
            Kind::Prefix => "an absolute path such as /forebay".to_owned(),
            Kind::Path => "a path".to_owned(),
            Kind::Paths => "a path, or several separated by ':'".to_owned(),
            Kind::Command => "a command such as 'ssh -q'".to_owned(),
            Kind::Address => "the IP address of one network interface, not of all".to_owned(),
            Kind::Transport => "tcp, libfabric, or libfabric:PROVIDER".to_owned(),
            Kind::Choice(words) => any_of(words),
            Kind::Size { min, max, zero, auto, power } => format!(
                "{}{} to {} (bytes, or with K, M, G or T{}){}",
                if power { "a power of two from " } else { "" },
                size_text(min),
                size_text(max),
                if zero && min > 0 { "; 0 for none" } else { "" },
                if auto { " or auto" } else { "" },
            ),
            Kind::Memory { min, max } => format!(
                "{} to {} (bytes, or with K, M, G or T; not 0, because files are written to memory \
                 first), a percentage of the host's memory such as 25%, a range such as 1GiB..50%, or \
                 auto",
                size_text(min),
                size_text(max)
            ),
            Kind::Count { min, max, auto } => {
                format!("{min} to {max}{}", if auto { " or auto" } else { "" })
            }
            Kind::Duration { min, max } => format!(
                "{} to {} (a number with us, ms, s or min)",
                micros_text(min),
                micros_text(max)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_transport_has_one_of_three_forms() {
        for right in ["tcp", "libfabric", "libfabric:cxi", "libfabric:verbs;ofi_rxm"] {
            assert_eq!(Kind::Transport.read(right), Some(Value::Text(right.to_owned())));
        }
        let long = format!("libfabric:{}", "x".repeat(PROVIDER_BYTES_MAX + 1));
        for wrong in ["", "verbs", "tcp:x", "libfabric:", "libfabric:a b", "Libfabric", &long] {
            assert_eq!(Kind::Transport.read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn memory_is_a_size_a_percentage_or_a_range() {
        let kind = Kind::Memory { min: 16 << 20, max: 1 << 40 };
        assert_eq!(kind.read("auto"), Some(Value::Auto));
        assert_eq!(kind.read("64MiB"), Some(Value::Number(64 << 20)));
        for right in ["1%", "100%", "0..64MiB", "1GiB..50%", "0%..25%", "5%..1GiB", "1GiB..1GiB"] {
            assert_eq!(kind.read(right), Some(Value::Text(right.to_owned())), "{right}");
        }
        for wrong in [
            "",
            "%",
            "0%",
            "101%",
            "1MiB",
            "2TiB",
            "..",
            "1GiB..",
            "..1GiB",
            "2GiB..1GiB",
            "50%..25%",
            "0..0",
            "0..8MiB",
            "1GiB..2GiB..3GiB",
            "-1%",
            "auto..1GiB",
            "2TiB..50%",
        ] {
            assert_eq!(kind.read(wrong), None, "{wrong}");
        }
        let expected = MemoryAmount { min: Some(Amount::Bytes(1 << 30)), max: Amount::Percent(50) };
        assert_eq!(memory("1GiB..50%"), Some(expected));
    }

    proptest! {
        #[test]
        fn a_written_size_is_read_as_the_same_number(bytes: u64) {
            prop_assert_eq!(size(&size_text(bytes)), Some(bytes));
        }

        #[test]
        fn a_written_time_is_read_as_the_same_number(time: u64) {
            prop_assert_eq!(micros(&micros_text(time)), Some(time));
        }

        #[test]
        fn any_text_is_parsed_without_a_panic(text in ".{0,24}") {
            let _ = (size(&text), memory(&text), micros(&text), words(&text));
            let _ = (is_name(&text), is_prefix(&text));
        }

        /// A number with a unit is converted exactly, or refused if it is too large.
        #[test]
        fn numbers_with_units_are_exact(number: u64, shift in 0u32..64, unit in 0usize..4) {
            let number = number >> shift;
            let (name, shift) = UNITS[unit];
            let expected = number.checked_mul(1 << shift);
            prop_assert_eq!(size(&format!("{number}{name}")), expected);
            let (name, factor) = TIMES[unit];
            prop_assert_eq!(micros(&format!("{number}{name}")), number.checked_mul(factor));
        }

        #[test]
        fn quoted_words_are_read_unchanged(
            original in proptest::collection::vec("[a-z \\\\\"$]{0,6}", 1..5),
        ) {
            let line: Vec<_> = original.iter().map(|word| format!("'{word}'")).collect();
            prop_assert_eq!(words(&line.join(" ")), Some(original));
        }
    }

    #[test]
    fn sizes() {
        let good = [
            ("4MiB", 4 << 20),
            ("512KiB", 512 << 10),
            ("1GiB", 1 << 30),
            ("17", 17),
            ("17B", 17),
            ("10G", 10 << 30),
            ("1g", 1 << 30),
            ("64m", 64 << 20),
            ("2T", 2 << 40),
            ("1gib", 1 << 30),
            ("2.5GiB", 5 << 29),
            ("0.5K", 512),
            ("1.999999999999K", 2047),
        ];
        for (text, bytes) in good {
            assert_eq!(size(text), Some(bytes), "{text}");
        }
        for text in [
            "4Q",
            "",
            "-1",
            "+1",
            "1.5",
            "1.5B",
            "1.5.2G",
            ".5G",
            "1.G",
            "G",
            "MiB",
            "4 MiB",
            "1GB",
            "1.0000000000001K",
            "99999999999TiB",
            "16777215.9999999999999T",
            "16777216.5T",
        ] {
            assert_eq!(size(text), None, "{text}");
        }
    }

    #[test]
    fn times() {
        assert_eq!(micros("200ms"), Some(200_000));
        assert_eq!(micros("5s"), Some(5_000_000));
        assert_eq!(micros("2min"), Some(120_000_000));
        assert_eq!(micros("5"), None);
        assert_eq!(micros("s"), None);
    }

    #[test]
    fn names_and_prefixes_are_safe_in_paths() {
        for text in ["default", "a.b-c_1", "7"] {
            assert!(is_name(text), "{text}");
        }
        for text in ["", ".", "..", "-a", "a/b", "a b", "\u{e9}", &"a".repeat(49)] {
            assert!(!is_name(text), "{text}");
        }
        assert!(is_prefix("/a/b"));
        for text in ["", "/", "a", "/a/", "//a", "/a/../b", "/a/."] {
            assert!(!is_prefix(text), "{text}");
        }
    }

    #[test]
    fn commands_are_split_as_a_shell_does() {
        let split = words(r#"ssh -o "Strict=no x" a\ b ''"#).unwrap_or_default();
        assert_eq!(split, ["ssh", "-o", "Strict=no x", "a b", ""]);
        assert_eq!(words("'open"), None);
        assert_eq!(words("  "), None);
    }
}
