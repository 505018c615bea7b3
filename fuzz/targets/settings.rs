//! The settings file and each value in it: read, checked, written and read again to the same.
#![no_main]

use config::table::SETTINGS;
use config::{Kind, Settings, Sources, file, parse};
use forebay_fuzz::write_seeds;
use libfuzzer_sys::fuzz_target;

fn seeds() -> Vec<Vec<u8>> {
    let line = |name: &str, value: &str| format!("{name} = \"{value}\" # a comment\n");
    let values = SETTINGS.iter().filter(|setting| !setting.default.is_empty());
    let all: String = values.map(|setting| line(setting.name, setting.default)).collect();
    let further = ["memory = 3GiB", "ssd=17", "timeout = 200ms", "ssh = 'ssh -o \"A b\" c\\ d'"];
    let further = further.into_iter().chain(["dir = \"/a#b\" # c", "64KiB", "90min", "a 'b' c"]);
    further.map(|text| text.as_bytes().to_vec()).chain([all.into_bytes()]).collect()
}

/// Every value by itself, as an option or a variable supplies it.
fn values(text: &str) {
    if let Some(bytes) = parse::size(text) {
        assert_eq!(parse::size(&parse::size_text(bytes)), Some(bytes));
    }
    if let Some(micros) = parse::micros(text) {
        assert_eq!(parse::micros(&parse::micros_text(micros)), Some(micros));
    }
    if let Some(words) = parse::words(text) {
        assert!(!words.is_empty());
    }
    if parse::is_name(text) {
        assert!(text.len() <= parse::NAME_BYTES_MAX && !text.contains('/') && text != "..");
    }
    for setting in &SETTINGS {
        if setting.kind.read(text).is_none() {
            assert!(!setting.kind.allowed().is_empty());
        }
    }
}

/// A file of valid lines only: each value that is written again reads as the same.
fn written_again(settings: &Settings) {
    for setting in SETTINGS.iter().filter(|setting| settings.is_given(setting.key)) {
        let text = settings.written(setting.key);
        let number = settings.number(setting.key);
        match setting.kind.read(&text) {
            Some(parse::Value::Number(again)) => assert_eq!(number, Some(again)),
            Some(parse::Value::Text(again)) => {
                assert_eq!(settings.text(setting.key), Some(&*again));
            }
            Some(parse::Value::Auto) => assert_eq!(number, None),
            None => panic!("{} was {text:?}", setting.name),
        }
        if let Kind::Size { max, .. } | Kind::Count { max, .. } = setting.kind {
            assert!(number.is_none_or(|number| number <= max));
        }
    }
}

fuzz_target!(init: write_seeds(seeds()), |data: &[u8]| {
    let Ok(text) = str::from_utf8(data) else { return };
    values(text);
    match file::parse(text) {
        Err(wrong) => assert!(wrong.number <= text.lines().count() && !wrong.reason.is_empty()),
        Ok(lines) => {
            for line in &lines {
                values(&line.value);
            }
            let sources = Sources { file: Some(("file".into(), lines)), ..Sources::default() };
            match Settings::resolve(&sources) {
                Ok(settings) => written_again(&settings),
                Err(wrong) => assert!(wrong.to_string().contains("file line ")),
            }
        }
    }
});
