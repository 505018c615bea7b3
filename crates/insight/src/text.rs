//! Figures as people read them.

/// A number of bytes: `4.0 MiB`.
#[must_use]
pub fn bytes(number: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = number as f64;
    let mut unit = 0;
    // 1023.95 would print as 1024.0.
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let name = UNITS.get(unit).unwrap_or(&"B");
    if unit == 0 { format!("{number} B") } else { format!("{value:.1} {name}") }
}

/// A time: `0.3 s`, `12 s`, `3 min 20 s`, `2 h 5 min`.
#[must_use]
pub fn seconds(value: f64) -> String {
    if !value.is_finite() || value < 5e-7 {
        return "0 s".to_string();
    }
    let whole = value.round().min(u64::MAX as f64) as u64;
    match whole {
        _ if value < 0.001 => format!("{:.0} us", value * 1e6),
        _ if value < 0.1 => format!("{:.0} ms", value * 1e3),
        _ if value < 9.95 => format!("{value:.1} s"),
        0..120 => format!("{whole} s"),
        120..7200 => format!("{} min {} s", whole / 60, whole % 60),
        _ => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
    }
}

/// A count: `12,345`.
#[must_use]
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A count with its noun: `1 host`, `2 hosts`.
#[must_use]
pub fn plural(number: u64, one: &str, several: &str) -> String {
    format!("{} {}", count(number), if number == 1 { one } else { several })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        for (number, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1_048_575, "1.0 MiB"),
            (u64::MAX, "16384.0 PiB"),
        ] {
            assert_eq!(bytes(number), text);
        }
        for (value, text) in [
            (0.0, "0 s"),
            (0.00002, "20 us"),
            (0.02, "20 ms"),
            (1.25, "1.2 s"),
            (61.2, "61 s"),
            (200.0, "3 min 20 s"),
            (7500.0, "2 h 5 min"),
            (f64::NAN, "0 s"),
        ] {
            assert_eq!(seconds(value), text);
        }
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(count(number), text);
        }
    }
}
