//! An access profile as stored in the user's directory, and recorded accesses of daemons: any
//! bytes.
#![no_main]

use backing::profile::AccessProfile;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(profile) = AccessProfile::parse(bytes) {
        assert_eq!(profile.text().as_bytes(), bytes, "the encoding is unique");
        assert!(profile.batch() > 0);
    }
    let profile = AccessProfile::of_notes([bytes].into_iter());
    assert_eq!(AccessProfile::parse(profile.text().as_bytes()), Ok(profile));
});
