//! The command line: options made from the table of settings, and the commands put together.

use crate::commands;
use clap::builder::ValueParser;
use clap::{Arg, ArgAction, Command};
use config::{Key, Kind, SETTINGS, Setting};

const ABOUT: &str = "A file system over the memory and SSDs of a job's own nodes";

const EXAMPLES: &str = "\
Examples:
  forebay run -- make -C /forebay/src        one command on an instance made for it
  forebay start --local 4 --memory 2GiB      an instance that stays, with four daemons
  forebay stage in /data /forebay            files of the site come into it
  forebay run -- ls -l /forebay/data         a command on the instance that runs
  forebay status                             its daemons and their space
  forebay stop                               ends it and removes all that it had

Programs see the instance below /forebay (--at), whatever is there otherwise.

Exit codes:
  0 done   1 failed   2 not understood   3 no such instance
  'run' ends with the code of its command, 128 + n if signal n ended it; 126: it can not be run,
  or would not see the instance; 127: there is no such command

Settings come from options, FOREBAY_* variables, and ~/.config/forebay/forebay.conf, in this order.";

/// All of the command line.
pub(crate) fn command() -> Command {
    Command::new("forebay")
        .version(env!("CARGO_PKG_VERSION"))
        .about(ABOUT)
        .after_help(EXAMPLES)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        .subcommands(commands::all())
}

/// The options of the settings `keys`.
pub(crate) fn with_settings(command: Command, keys: &[Key]) -> Command {
    keys.iter().fold(command, |command, key| command.arg(option(Setting::of(*key))))
}

fn option(setting: &'static Setting) -> Arg {
    let value = match setting.kind {
        Kind::Name => "NAME",
        Kind::Prefix | Kind::Path => "PATH",
        Kind::Paths => "PATH[:PATH]...",
        Kind::Command => "COMMAND",
        Kind::Address => "ADDRESS",
        Kind::Choice(_) => "WORD",
        Kind::Size { .. } | Kind::Memory { .. } => "SIZE",
        Kind::Count { .. } => "N",
        Kind::Duration { .. } => "TIME",
        Kind::Transport => "WAY",
    };
    let choice = match setting.kind {
        Kind::Choice(words) => format!(": {}", words.join(", ")),
        _ => String::new(),
    };
    let default = match setting.default {
        "" => String::new(),
        text => format!(", default {text}"),
    };
    Arg::new(setting.name)
        .long(setting.name)
        .value_name(value)
        .value_parser(ValueParser::string())
        .help(format!("{}{choice} [{}{default}]", setting.help, setting.variable))
}

/// All settings, for the commands that may start daemons.
pub(crate) fn with_all_settings(command: Command) -> Command {
    let keys: Vec<Key> = SETTINGS.iter().map(|setting| setting.key).collect();
    let range = 1..=i64::from(crate::hosts::LOCAL_COUNT_MAX);
    with_settings(command, &keys).arg(
        Arg::new("local")
            .long("local")
            .value_name("N")
            .value_parser(clap::value_parser!(u16).range(range))
            .conflicts_with("hosts")
            .help("Start N daemons on this host; without this and --hosts, one"),
    )
}

/// The option `--json`.
pub(crate) fn with_json(command: Command) -> Command {
    command.arg(
        Arg::new("json")
            .long("json")
            .action(ArgAction::SetTrue)
            .help("Answer with JSON on standard output, failures too"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;
    use std::path::Path;

    const HEAD: &str = "\
# Commands

<!-- Made from the command line's own help by a test; do not edit. UPDATE_DOCS=1 cargo test -p cli -->
";

    #[test]
    fn the_command_line_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn the_page_is_that_of_the_command_line() {
        let mut page = HEAD.to_owned();
        let mut all = command();
        let _ = write!(page, "\n## forebay\n\n```text\n{}```\n", all.render_long_help());
        for one in all.get_subcommands_mut().filter(|one| !one.is_hide_set()) {
            let name = format!("forebay {}", one.get_name());
            let mut one = one.clone().bin_name(&name);
            let _ = write!(page, "\n## {name}\n\n```text\n{}```\n", one.render_long_help());
            for part in one.get_subcommands_mut() {
                let name = format!("{name} {}", part.get_name());
                let mut part = part.clone().bin_name(&name);
                let help = part.render_long_help();
                let _ = write!(page, "\n### {name}\n\n```text\n{help}```\n");
            }
        }
        let page: String = page.lines().map(|line| format!("{}\n", line.trim_end())).collect();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/commands.md");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&path, &page).expect("docs/commands.md is written");
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == page,
            "docs/commands.md is old: UPDATE_DOCS=1 cargo test -p cli writes it"
        );
    }
}
