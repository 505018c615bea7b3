//! Why a store does not take or give a record.

use std::fmt;

/// Why a store does not take or give a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HistoryError {
    /// Another process holds it for longer than a writer waits.
    Busy,
    /// The record does not fit, even after older ones were removed.
    TooLarge,
    /// The device has no space.
    DeviceFull,
    /// The file is no store, or is damaged.
    Damaged(String),
    /// A newer version made it.
    Newer(i64),
    /// Anything else.
    Other(String),
}

impl fmt::Display for HistoryError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HistoryError::Busy => write!(out, "it is busy"),
            HistoryError::TooLarge => {
                write!(out, "it has no space for so large a record: raise --monitor-size")
            }
            HistoryError::DeviceFull => write!(out, "its device is full"),
            HistoryError::Damaged(why) => {
                write!(out, "it is damaged ({why}): move it away, and a new one is made")
            }
            HistoryError::Newer(version) => {
                write!(out, "a newer forebay made it, version={version}")
            }
            HistoryError::Other(why) => write!(out, "{why}"),
        }
    }
}

impl std::error::Error for HistoryError {}
