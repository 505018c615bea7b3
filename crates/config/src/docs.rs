//! The page `docs/settings.md`, made from the table.

use crate::table::{SETTINGS, Scope};
use std::fmt::Write;

const HEAD: &str = "\
# Settings

<!-- Made from the table in crates/config: UPDATE_DOCS=1 cargo test -p config -->

Each setting can be given as an option of `forebay start` and `forebay run`, as an environment
variable, or as a line `key = value` of the settings file; the first of these that is there counts.
The file is `$XDG_CONFIG_HOME/forebay/forebay.conf` (`~/.config/forebay/forebay.conf`), or the
one that `FOREBAY_CONFIG` names. `#` begins a comment there. A wrong value is refused with its
origin; nothing is corrected silently.

Sizes are plain bytes or whole KiB, MiB, GiB, TiB (`4MiB`); times have a unit (`200ms`, `5s`).
Scope: *instance* - alike on all daemons, for the instance's life; *node* - may differ between
hosts; *session* - of one command.

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
