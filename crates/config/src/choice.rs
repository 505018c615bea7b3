//! Settings with a fixed set of words, as enums.
//!
//! The words are written once, here: the table of settings lists them, and JSON has the same ones.

use serde::{Deserialize, Serialize};

macro_rules! choices {
    ($($(#[$doc:meta])* $name:ident {
        $($(#[$word_doc:meta])* $variant:ident = $word:literal,)+
    })+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$word_doc])* #[serde(rename = $word)] $variant,)+
        }

        impl $name {
            /// The words, in the order of the variants.
            pub const WORDS: &'static [&'static str] = &[$($word),+];

            /// The word that stands for this choice.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self { $($name::$variant => $word,)+ }
            }

            /// The choice for which `word` stands.
            #[must_use]
            pub fn of(word: &str) -> Option<$name> {
                match word { $($word => Some($name::$variant),)+ _ => None }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.word())
            }
        }
    )+};
}

choices! {
    /// When changed files are written back to the backing store.
    WritebackMode {
        /// Before `close` and `fsync` return.
        Through = "through",
        /// When no program has the file open for writing.
        Close = "close",
        /// As `Close`, and the file has also not changed for a while.
        Idle = "idle",
        /// At flush and stop, or when space is short.
        End = "end",
        /// Never.
        Never = "never",
    }
    /// Where the entries of a directory are.
    Spread {
        /// On one daemon.
        Home = "home",
        /// On all daemons.
        Wide = "wide",
        /// On one daemon, and on all of them once the directory has grown.
        Auto = "auto",
    }
    /// Whether an instance is recorded in the history from its start.
    Monitoring {
        /// A process of its own records it.
        On = "on",
        /// Somebody starts it, or nothing is recorded.
        Off = "off",
    }
    /// Where the stripes of a file are.
    Placement {
        /// On all daemons.
        Hash = "hash",
        /// On the writer's daemon.
        Local = "local",
    }
    /// When hosts see each other's changes.
    Consistency {
        /// Sizes at the writer's `close` or `fsync`.
        Relaxed = "relaxed",
        /// Everything at once.
        Posix = "posix",
    }
    /// When writes to other hosts return.
    RemoteWrites {
        /// When the data has arrived.
        Through = "through",
        /// Before the data has arrived.
        Behind = "behind",
    }
    /// The part of a file that is compared with the backing store before it counts as saved.
    WritebackVerify {
        /// Its length.
        Length = "length",
        /// Its contents, too, which are read back.
        Contents = "contents",
    }
    /// The order in which files are written back.
    WritebackOrder {
        /// As they are found.
        Found = "found",
        /// By sets of jobs, one job of each at a time.
        Sets = "sets",
    }
    /// When data of other hosts is fetched.
    RemoteReads {
        /// When a program reads it.
        Demand = "demand",
        /// Ahead of a sequential reader.
        Readahead = "readahead",
    }
    /// When followers have a change of metadata.
    MetadataSync {
        /// At `fsync` or `sync`, and 100 ms after the change at the latest.
        Batch = "batch",
        /// Before the operation returns.
        Always = "always",
    }
    /// Whether copies may be in one failure domain.
    SameDomain {
        /// They are in different ones.
        Off = "off",
        /// They may.
        On = "on",
    }
    /// Protection of what daemons of different hosts send each other.
    Wire {
        /// Nobody can change, repeat, leave out or add bytes. File data by RDMA is excepted.
        Authenticated = "authenticated",
        /// As `Authenticated`, nobody can read bytes either, and nothing is excepted.
        Encrypted = "encrypted",
        /// Daemons prove the secret to each other, nothing more.
        Trusted = "trusted",
    }
    /// How a command sees the instance.
    Access {
        /// By a mount and, over it, the preloaded library, as far as this host allows.
        Auto = "auto",
        /// By the preloaded library alone.
        Preload = "preload",
        /// By a mount alone.
        Mount = "mount",
    }
    /// How the kernel passes requests to a mount.
    RequestPath {
        /// By rings where they are available, otherwise by `/dev/fuse`.
        Auto = "auto",
        /// By rings (FUSE over io_uring), or the mount fails.
        Rings = "rings",
        /// By `/dev/fuse`.
        Classic = "classic",
    }
    /// Level of a log.
    LogLevel {
        /// Errors.
        Error = "error",
        /// And what an administrator should look at.
        Warn = "warn",
        /// And what happens rarely.
        Info = "info",
        /// And details for developers.
        Debug = "debug",
        /// Everything.
        Trace = "trace",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_has_the_same_word_in_json_and_in_the_table() {
        for word in WritebackMode::WORDS {
            let choice = WritebackMode::of(word).expect("a choice");
            assert_eq!(choice.word(), *word);
            assert_eq!(serde_json::to_value(choice).expect("json"), *word);
        }
        assert_eq!(WritebackMode::of("later"), None);
    }
}
