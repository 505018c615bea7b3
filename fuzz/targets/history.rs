//! A history as it lies in the user's directory, and what daemons noted: anything.
#![no_main]

use below::history::History;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(history) = History::parse(bytes) {
        assert_eq!(history.text().as_bytes(), bytes, "it is written in one way");
        assert!(history.group() > 0);
    }
    let history = History::of_notes([bytes].into_iter());
    assert_eq!(History::parse(history.text().as_bytes()), Ok(history));
});
