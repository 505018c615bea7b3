//! Why a daemon cannot start, and what to do where files of it are damaged.

use crate::startup::settings::Settings;
use std::fmt::{self, Display};
use store::Kind;

/// The way out of damage where no other daemon has what is in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WithoutCopies {
    /// A salvage, which starts without what is damaged.
    Salvage,
    /// None but a new instance: nothing tells what the other files are worth.
    NewInstance,
}

/// Why the daemon cannot start: the action that failed, and its error.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) text: String,
    /// Of a damaged file, until the way out is told.
    damage: Option<WithoutCopies>,
}

impl Failure {
    /// Of anything but damage.
    pub(crate) fn new(text: impl Into<String>) -> Failure {
        Failure { text: text.into(), damage: None }
    }

    /// Of a damaged file.
    pub(crate) fn damaged(text: impl Into<String>, otherwise: WithoutCopies) -> Failure {
        Failure { text: text.into(), damage: Some(otherwise) }
    }

    /// Of a file, which may be damaged.
    pub(crate) fn of_file(otherwise: WithoutCopies) -> impl Fn(store::Error) -> Failure {
        move |error| {
            let is_damaged = match error.kind {
                Kind::Corrupt { .. }
                | Kind::Old { .. }
                | Kind::Missing
                | Kind::Length { .. }
                | Kind::MemoryGone => true,
                Kind::Device(_)
                | Kind::Poisoned
                | Kind::BadLength { .. }
                | Kind::Foreign
                | Kind::NotOurs => false,
            };
            Failure { text: error.to_string(), damage: is_damaged.then_some(otherwise) }
        }
    }

    /// Whether a file is damaged.
    pub(crate) const fn is_damage(&self) -> bool {
        self.damage.is_some()
    }

    /// With the way out, in an instance whose files have so many copies.
    pub(crate) fn with_way_out(self, settings: &Settings) -> Failure {
        self.with_way_out_among(settings.copies)
    }

    fn with_way_out_among(self, copies: u8) -> Failure {
        let way = match self.damage {
            None => return self,
            Some(_) if copies > 1 => {
                "'forebay replace NODE' has this host begin with nothing, and get its part from the \
                 copies at others"
            }
            Some(WithoutCopies::Salvage) => {
                "'forebay check' shows what is lost, and 'forebay start --salvage' starts without it"
            }
            Some(WithoutCopies::NewInstance) => "stop this instance and start a new one",
        };
        Failure { text: format!("{}: {way}", self.text), ..self }
    }

    /// With the way out in an instance whose files have one copy.
    pub(crate) fn without_copies(self) -> Failure {
        self.with_way_out_among(1)
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Converts the error of an action into a `Failure`.
pub(crate) fn failed<E: Display>(doing: impl Display) -> impl FnOnce(E) -> Failure {
    move |error| Failure::new(format!("cannot {doing}: {error}"))
}

/// Result of a step of the start.
pub(crate) type StartResult<T> = Result<T, Failure>;

/// The failure of a start that gets no thread.
pub(crate) fn no_thread(name: &str) -> impl FnOnce(std::io::Error) -> Failure {
    move |error| {
        let advice = "raise the limit of processes (ulimit -u), or give fewer --workers";
        Failure::new(format!("cannot start the thread {name}: {error}: {advice}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use wire::Errno;

    #[test]
    fn damage_has_a_way_out_in_each_kind_of_instance() {
        use WithoutCopies::{NewInstance, Salvage};
        let corrupt = Kind::Corrupt { offset: 8, sequence: 2 };
        for (kind, otherwise, copies, way) in [
            (corrupt, Salvage, 1, "'forebay start --salvage' starts without it"),
            (corrupt, Salvage, 2, "'forebay replace NODE' has this host begin with nothing"),
            (Kind::Missing, NewInstance, 1, "stop this instance and start a new one"),
            (Kind::MemoryGone, NewInstance, 3, "'forebay replace NODE'"),
        ] {
            let error = store::Error::new("read it", Path::new("/x/y"), kind);
            let failure = Failure::of_file(otherwise)(error);
            assert!(failure.is_damage());
            let text = failure.with_way_out_among(copies).text;
            assert!(text.contains("/x/y") && text.contains(way), "{text}");
            assert_eq!(text.matches(": ").count(), 2, "it is told once: {text}");
        }
        let full = store::Error::new("read it", Path::new("/x/y"), Kind::Device(Errno::ENOSPC));
        let failure = Failure::of_file(Salvage)(full.clone());
        assert!(!failure.is_damage());
        assert_eq!(failure.with_way_out_among(2).text, full.to_string());
    }
}
