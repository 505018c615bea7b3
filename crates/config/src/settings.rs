//! Turns texts of several origins into checked values.

use crate::file::SettingLine;
use crate::parse::{Value, micros_text, size_text};
use crate::table::{Key, Kind, SETTINGS, Setting};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// Where a value came from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// The default in the table.
    Default,
    /// A line of the settings file.
    File {
        /// Path of the file.
        path: String,
        /// Number of the line, from 1.
        line: usize,
    },
    /// An environment variable.
    Environment(&'static str),
    /// An option.
    Option(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File { path, line } => write!(f, "{path} line {line}"),
            Origin::Environment(variable) => write!(f, "variable {variable}"),
            Origin::Option(name) => write!(f, "option --{name}"),
        }
    }
}

/// The texts of all origins, unchecked.
#[derive(Clone, Default, Debug)]
pub struct Sources {
    /// Values of options.
    pub options: BTreeMap<Key, String>,
    /// Values of environment variables. An empty one counts as unset.
    pub environment: BTreeMap<Key, String>,
    /// Path of the settings file and its lines.
    pub file: Option<(String, Vec<SettingLine>)>,
}

/// A value that the table does not allow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InvalidValue {
    /// Name of the setting.
    pub name: &'static str,
    /// The text.
    pub text: String,
    /// Where it was given.
    pub origin: Origin,
    /// The allowed values.
    pub allowed: String,
}

impl fmt::Display for InvalidValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cannot be {:?}: {}: give {}", self.name, self.text, self.origin, self.allowed)
    }
}

impl std::error::Error for InvalidValue {}

/// All settings, checked.
#[derive(Clone, Debug)]
pub struct Settings {
    values: BTreeMap<Key, (Value, Origin)>,
}

impl Settings {
    /// Takes each setting from its option, else its environment variable, else the settings file,
    /// else the default, and checks it. Overridden values are not checked.
    ///
    /// # Errors
    /// The first value that the table does not allow.
    pub fn resolve(sources: &Sources) -> Result<Settings, InvalidValue> {
        let mut values = BTreeMap::new();
        for setting in &SETTINGS {
            let Some((text, origin)) = sources.find(setting) else { continue };
            let Some(value) = setting.kind.read(&text) else {
                let allowed = setting.kind.allowed();
                return Err(InvalidValue { name: setting.name, text, origin, allowed });
            };
            values.insert(setting.key, (value, origin));
        }
        Ok(Settings { values })
    }

    /// Replaces the value of `key` by one that the starting host decided, such as a number for
    /// `auto` or an absolute path. Its origin stays the same.
    pub fn decide(&mut self, key: Key, value: Option<Value>) {
        let origin = self.origin(key);
        match value {
            Some(value) => drop(self.values.insert(key, (value, origin))),
            None => drop(self.values.remove(&key)),
        }
    }

    /// The value of `key`; `None` if it is unset and has no default.
    #[must_use]
    pub fn value(&self, key: Key) -> Option<&Value> {
        self.values.get(&key).map(|(value, _)| value)
    }

    /// Where the value of `key` came from.
    #[must_use]
    pub fn origin(&self, key: Key) -> Origin {
        self.values.get(&key).map_or(Origin::Default, |(_, origin)| origin.clone())
    }

    /// True if the value of `key` was given, that is, is not the default.
    #[must_use]
    pub fn is_given(&self, key: Key) -> bool {
        self.origin(key) != Origin::Default
    }

    /// The value of a text setting; `None` if it is unset and has no default.
    #[must_use]
    pub fn text(&self, key: Key) -> Option<&str> {
        match self.values.get(&key) {
            Some((Value::Text(text), _)) => Some(text),
            _ => None,
        }
    }

    /// The value of a text setting that has a default; empty for any other key.
    #[must_use]
    pub fn word(&self, key: Key) -> &str {
        self.text(key).unwrap_or_default()
    }

    /// The value of a numeric setting (bytes, microseconds, a count); `None` for `auto`.
    #[must_use]
    pub fn number(&self, key: Key) -> Option<u64> {
        match self.values.get(&key) {
            Some((Value::Number(number), _)) => Some(*number),
            _ => None,
        }
    }

    /// The limit on every wait.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        Duration::from_micros(self.number(Key::Timeout).unwrap_or(0))
    }

    /// The value as a user would write it; empty if it is unset.
    #[must_use]
    pub fn written(&self, key: Key) -> String {
        match (self.values.get(&key).map(|(value, _)| value), Setting::of(key).kind) {
            (None, _) => String::new(),
            (Some(Value::Auto), _) => "auto".to_owned(),
            (Some(Value::Text(text)), _) => text.clone(),
            (Some(Value::Number(bytes)), Kind::Size { .. } | Kind::Memory { .. }) => {
                size_text(*bytes)
            }
            (Some(Value::Number(micros)), Kind::Duration { .. }) => micros_text(*micros),
            (Some(Value::Number(count)), _) => count.to_string(),
        }
    }
}

impl Sources {
    fn find(&self, setting: &Setting) -> Option<(String, Origin)> {
        if let Some(text) = self.options.get(&setting.key) {
            return Some((text.clone(), Origin::Option(setting.name)));
        }
        let variable = self.environment.get(&setting.key).filter(|text| !text.is_empty());
        if let Some(text) = variable {
            return Some((text.clone(), Origin::Environment(setting.variable)));
        }
        if let Some((path, lines)) = &self.file
            && let Some(line) = lines.iter().find(|line| line.key == setting.name)
        {
            let origin = Origin::File { path: path.clone(), line: line.number };
            return Some((line.value.clone(), origin));
        }
        (!setting.default.is_empty()).then(|| (setting.default.to_owned(), Origin::Default))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_order_and_its_defaults_are_valid() {
        for (index, setting) in SETTINGS.iter().enumerate() {
            assert_eq!(setting.key as usize, index, "{}", setting.name);
            let variable = format!("FOREBAY_{}", setting.name.to_uppercase().replace('-', "_"));
            assert_eq!(setting.variable, variable);
        }
        let settings = Settings::resolve(&Sources::default()).expect("the defaults");
        assert_eq!(settings.word(Key::Name), "default");
        assert_eq!(settings.number(Key::Memory), None);
        assert_eq!(settings.number(Key::StripeSize), Some(4 << 20));
        assert_eq!(settings.timeout(), Duration::from_secs(30));
        assert_eq!(settings.text(Key::Dir), None);
        for setting in SETTINGS.iter().filter(|setting| !setting.default.is_empty()) {
            assert_eq!(settings.written(setting.key), setting.default, "{}", setting.name);
        }
    }

    #[test]
    fn an_option_overrides_the_environment_which_overrides_the_file() {
        let mut sources = Sources::default();
        let line = SettingLine { number: 7, key: "ssd".into(), value: "1GiB".into() };
        sources.file = Some(("/f".into(), vec![line]));
        let resolve = |sources: &Sources| {
            let settings = Settings::resolve(sources).expect("allowed");
            (settings.number(Key::Ssd), settings.origin(Key::Ssd).to_string())
        };
        assert_eq!(resolve(&sources), (Some(1 << 30), "/f line 7".into()));
        sources.environment.insert(Key::Ssd, String::new());
        assert_eq!(resolve(&sources), (Some(1 << 30), "/f line 7".into()));
        sources.environment.insert(Key::Ssd, "2GiB".into());
        assert_eq!(resolve(&sources), (Some(2 << 30), "variable FOREBAY_SSD".into()));
        sources.options.insert(Key::Ssd, "0".into());
        assert_eq!(resolve(&sources), (Some(0), "option --ssd".into()));
    }

    #[test]
    fn an_invalid_value_is_reported_with_its_origin_and_the_allowed_values() {
        let mut sources = Sources::default();
        sources.environment.insert(Key::StripeSize, "4Q".into());
        let error = Settings::resolve(&sources).expect_err("4Q").to_string();
        let expected = "stripe-size cannot be \"4Q\": variable FOREBAY_STRIPE_SIZE: give a power of \
                        two from 64KiB to 64MiB (bytes, or with K, M, G or T)";
        assert_eq!(error, expected);
        sources.environment.insert(Key::StripeSize, "3MiB".into());
        assert!(Settings::resolve(&sources).is_err());
    }
}
