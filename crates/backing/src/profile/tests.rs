//! Profiles survive encoding and decoding with any names; any other text is refused; truncated
//! notes lose only their last line.

use super::*;

/// A deterministic random number generator.
struct Seed(u64);

impl Seed {
    fn next(&mut self, backing: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % backing
    }

    fn path(&mut self, number: u64) -> Vec<u8> {
        let names = 1 + self.next(3);
        let mut path: Vec<u8> = format!("{number}").into_bytes();
        for _ in 0..names {
            path.push(b'/');
            let length = 1 + self.next(9);
            // Any byte that a name may contain; the name is never `.` or `..`.
            path.extend((0..length).map(|_| match self.next(255) as u8 + 1 {
                b'/' => b'x',
                byte => byte,
            }));
            path.push(b'n');
        }
        path
    }
}

fn some(seed: &mut Seed, count: u64) -> AccessProfile {
    let uses = (0..count).map(|number| {
        let gap_millis = if number == 0 { 0 } else { seed.next(5000) };
        FileUse { gap_millis, path: seed.path(number) }
    });
    AccessProfile { uses: uses.collect() }
}

#[test]
fn a_stored_profile_is_read_back() {
    let mut seed = Seed(1);
    for count in 0..200 {
        let profile = some(&mut seed, count);
        let text = profile.text();
        assert!(text.bytes().all(|byte| byte == b'\n' || (b' '..0x7f).contains(&byte)), "{text}");
        assert_eq!(AccessProfile::parse(text.as_bytes()), Ok(profile), "count {count}");
    }
}

/// A changed byte is refused or gives another valid profile; truncation is always detected.
#[test]
fn a_damaged_profile_is_refused() {
    let mut seed = Seed(2);
    for round in 0..300 {
        let count = 1 + seed.next(20);
        let text = some(&mut seed, count).text().into_bytes();
        let cut = seed.next(text.len() as u64) as usize;
        assert!(AccessProfile::parse(&text[..cut]).is_err(), "round {round}: cut at {cut}");
        let mut changed = text.clone();
        let at = seed.next(text.len() as u64) as usize;
        changed[at] = seed.next(256) as u8;
        if let Ok(profile) = AccessProfile::parse(&changed) {
            assert_eq!(profile.uses.len() as u64, count, "round {round}");
            let again = AccessProfile::parse(profile.text().as_bytes());
            assert_eq!(again, Ok(profile), "round {round}");
        }
    }
    for (text, line) in [
        ("", 1),
        ("forebay-profile 2\nend 0\n", 1),
        ("forebay-profile 1\n", 1),
        ("forebay-profile 1\nend 0", 1),
        ("forebay-profile 1\nend 1\n", 2),
        ("forebay-profile 1\nend 0\nend 0\n", 3),
        ("forebay-profile 1\n0 /etc/passwd\nend 1\n", 2),
        ("forebay-profile 1\n0 a/../../b\nend 1\n", 2),
        ("forebay-profile 1\n0 a/\nend 1\n", 2),
        ("forebay-profile 1\n0 a%00\nend 1\n", 2),
        ("forebay-profile 1\n0 %61\nend 1\n", 2),
        ("forebay-profile 1\n0 a%2\nend 1\n", 2),
        ("forebay-profile 1\n+0 a\nend 1\n", 2),
        ("forebay-profile 1\n99999999999999999999 a\nend 1\n", 2),
        ("forebay-profile 1\n0 a\n1 a\nend 2\n", 3),
        ("forebay-profile 1\n0 a\u{e9}\nend 1\n", 2),
    ] {
        let broken = AccessProfile::parse(text.as_bytes()).expect_err(text);
        assert_eq!(broken.line, line, "{text:?}: {broken}");
    }
}

#[test]
fn notes_of_several_daemons_are_merged() {
    let one = note(1000, b"a") + &note(1700, b"c d") + "1800 half";
    let other = note(1400, b"b") + &note(900, b"c d") + "no line\n" + &note(2000, b"../x");
    let profile = AccessProfile::of_notes([one.as_bytes(), other.as_bytes()].into_iter());
    assert_eq!(profile.text(), "forebay-profile 1\n0 c%20d\n100 a\n400 b\nend 3\n");
    assert_eq!(AccessProfile::of_notes([&b""[..]].into_iter()), AccessProfile::default());
}

#[test]
fn a_long_profile_is_truncated() {
    let notes: String =
        (0..FILES_MAX as u64 + 9).map(|at| note(at, format!("{at}").as_bytes())).collect();
    let profile = AccessProfile::of_notes([notes.as_bytes()].into_iter());
    assert_eq!(profile.uses.len(), FILES_MAX);
    let long = "n".repeat(100_000);
    let notes: String = (0..200).map(|at| note(at, format!("{long}{at}").as_bytes())).collect();
    let profile = AccessProfile::of_notes([notes.as_bytes()].into_iter());
    assert!((100..200).contains(&profile.uses.len()));
    assert_eq!(AccessProfile::parse(profile.text().as_bytes()), Ok(profile));
}

#[test]
fn concurrent_readers_are_detected_from_the_gaps() {
    let of = |gaps: &[u64]| {
        let each = gaps.iter().enumerate();
        let uses = each.map(|(n, &gap_millis)| FileUse { gap_millis, path: vec![b'0' + n as u8] });
        AccessProfile { uses: uses.collect() }.batch()
    };
    assert_eq!(of(&[]), 1);
    assert_eq!(of(&[0, 600, 600, 640, 500, 610]), 1, "one after the other");
    assert_eq!(of(&[0, 3, 2, 1, 900, 1, 2, 3, 950, 2, 0, 1]), 4, "four, then they compute");
    assert_eq!(of(&[0, 0, 0, 0, 0, 0]), 1, "all at once");
    let mut gaps = [600; 40];
    gaps[20] = 3_600_000;
    assert_eq!(of(&gaps), 1, "a pause of an hour says nothing");
}
