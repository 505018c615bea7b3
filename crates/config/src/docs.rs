//! The page `docs/settings.md`, generated from the table.

use crate::table::{SETTINGS, Scope};
use std::fmt::Write;

const HEAD: &str = "\
# Settings

<!-- Generated from the table in crates/config: UPDATE_DOCS=1 cargo test -p config -->

Each setting can be given as an option of `forebay start` and `forebay run`, as an environment
variable, or as a line `key = value` in the settings file. An option overrides the variable, and the
variable overrides the file. The file is `$XDG_CONFIG_HOME/forebay/forebay.conf`
(`~/.config/forebay/forebay.conf`), or the one that `FOREBAY_CONFIG` names; `#` begins a comment.
An invalid value is refused with its origin; nothing is corrected silently.

Sizes are bytes, or a number with K, M, G or T (`4M`, `2.5GiB`), powers of 1024; times have a unit
(`200ms`, `5s`).
Scope: *instance* - the same on all daemons, for the lifetime of the instance; *node* - may differ
between hosts; *session* - of one command.

";

/// The page.
#[must_use]
pub fn page() -> String {
    let mut page = HEAD.to_owned();
    for setting in &SETTINGS {
        let scope = match setting.scope {
            Scope::Instance => "instance",
            Scope::Node => "node",
            Scope::Session => "session",
        };
        let default = match setting.default {
            "" => "none".to_owned(),
            text => format!("`{text}`"),
        };
        let unit =
            if setting.unit.is_empty() { String::new() } else { format!(" ({})", setting.unit) };
        let _ = write!(
            page,
            "## {name}\n\n{help}.\n\n`--{name}`, `{variable}`; default {default}{unit}; {scope}.\n\
             Allowed: {allowed}.\n\n",
            name = setting.name,
            help = setting.help,
            variable = setting.variable,
            allowed = setting.kind.allowed(),
        );
    }
    page.truncate(page.trim_end().len());
    page.push('\n');
    page
}
