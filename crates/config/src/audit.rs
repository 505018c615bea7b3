//! Lines of the audit log: which user did what to an instance. Each daemon has a file of them in
//! the run directory. Not here: writing it.

use std::time::Duration;

/// Name of the audit log of a daemon, in the run directory.
#[must_use]
pub fn log_of(daemon: u16) -> String {
    format!("d{daemon}.audit")
}

/// A line: the time since 1970 in UTC, the event, the user and process that asked, and what else there
/// is to say. It ends with a line feed.
#[must_use]
pub fn line(since_1970: Duration, event: &str, (uid, pid): (u32, u32), what: &str) -> String {
    let space = if what.is_empty() { "" } else { " " };
    format!("{} {event} uid={uid} pid={pid}{space}{what}\n", utc(since_1970))
}

/// Date and time by the Gregorian calendar.
fn utc(since_1970: Duration) -> String {
    let seconds = since_1970.as_secs();
    let (mut days, of_day) = (seconds / 86_400, seconds % 86_400);
    let mut year = 1970;
    let is_leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_time_event_and_user() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_709_251_200, "2024-03-01T00:00:00Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (1_767_225_599, "2025-12-31T23:59:59Z"),
        ] {
            assert_eq!(utc(Duration::from_secs(seconds)), expected);
        }
        let line = line(Duration::from_secs(1), "pin", (7, 8), "inode=9");
        assert_eq!(line, "1970-01-01T00:00:01Z pin uid=7 pid=8 inode=9\n");
    }
}
