//! The command line: options generated from the table of settings, and all commands.

use crate::commands;
use clap::builder::ValueParser;
use clap::builder::styling::{AnsiColor, Style, Styles};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, Command};
use config::{Key, Kind, SETTINGS, Setting};

/// The id of the argument that names the instance.
pub(crate) const NAME_ARGUMENT: &str = "instance";

const ABOUT: &str = "A file system over the memory and SSDs of a job's own nodes";

const EXAMPLES: &str = "\
Examples:
  forebay run -- make -C /forebay/src        one command, on an instance of its own
  forebay start --local 4 --memory 2GiB      a persistent instance with four daemons
  forebay stage in /data /forebay            copy files into the instance
  forebay run -- ls -l /forebay/data         one command, on the running instance
  forebay status                             its daemons and their space
  forebay stop                               stop it and remove its files

Programs see the instance under /forebay (--at), whatever that directory contains otherwise.";

const MORE: &str = "\
Exit codes:
  0 success   1 failure   2 usage error   3 no such instance   4 damaged ('check', 'lost')
  'run' exits with the code of its command, or 128 + n if signal n ended it; 126: the command cannot
  be run, or would not see the instance; 127: there is no such command

Settings come from options, FOREBAY_* variables, and ~/.config/forebay/forebay.conf, in this order.";

/// Widest lines of the help.
const WIDTH_MAX: usize = 110;

/// Colours of the help and of errors, on a terminal.
const STYLES: Styles = Styles::styled()
    .header(Style::new().bold())
    .usage(Style::new().bold())
    .literal(AnsiColor::Cyan.on_default())
    .placeholder(AnsiColor::Cyan.on_default())
    .error(AnsiColor::Red.on_default().bold())
    .valid(AnsiColor::Green.on_default())
    .invalid(AnsiColor::Yellow.on_default());

/// The whole command line.
pub(crate) fn command() -> Command {
    with_commands(commands::all())
}

/// The command line without hidden commands, for completions and man pages.
pub(crate) fn public_command() -> Command {
    with_commands(commands::all().into_iter().filter(|one| !one.is_hide_set()).collect())
}

fn with_commands(commands: Vec<Command>) -> Command {
    Command::new("forebay")
        .version(env!("CARGO_PKG_VERSION"))
        .about(ABOUT)
        .after_help(EXAMPLES)
        .after_long_help(format!("{EXAMPLES}\n\n{MORE}"))
        .max_term_width(WIDTH_MAX)
        .styles(STYLES)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands(commands)
}

/// The error of a command line, with a tip for a command that follows `run` without `--`.
pub(crate) fn with_tip(mut error: clap::Error, words: &[String]) -> clap::Error {
    let is_run =
        words.iter().skip(1).find(|word| !word.starts_with('-')).is_some_and(|w| w == "run");
    let refused = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(text)) => text.clone(),
        _ => return error,
    };
    if error.kind() == ErrorKind::UnknownArgument && is_run && !refused.starts_with('-') {
        let tip = format!("put '--' before the command: 'forebay run -- {refused}'");
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

/// Adds the options of the settings `keys`.
pub(crate) fn with_settings(command: Command, keys: &[Key]) -> Command {
    keys.iter().fold(command, |command, key| command.arg(option(Setting::of(*key))))
}

fn option(setting: &'static Setting) -> Arg {
    let words = match setting.kind {
        Kind::Choice(words) => words.join("|"),
        _ => String::new(),
    };
    let value = match setting.kind {
        Kind::Name => "NAME",
        Kind::Prefix | Kind::Path => "PATH",
        Kind::Paths => "PATH[:PATH]...",
        Kind::Command => "COMMAND",
        Kind::Address => "ADDRESS",
        Kind::Choice(_) => &words,
        Kind::Size { .. } | Kind::Memory { .. } => "SIZE",
        Kind::Count { .. } => "N",
        Kind::Duration { .. } => "TIME",
        Kind::Transport => "TRANSPORT",
    };
    let (default, also) = match setting.default {
        "" => (String::new(), String::new()),
        text => (format!(" [default: {text}]"), format!("; default: {text}")),
    };
    // The first sentence of a longer help.
    let short = setting.help.split(". ").next().unwrap_or_default();
    let option = Arg::new(setting.name)
        .long(setting.name)
        .value_name(value.to_owned())
        .value_parser(ValueParser::string())
        .help(format!("{short}{default}"))
        .long_help(format!("{} [{}{also}]", setting.help, setting.variable))
        .help_heading(setting.heading)
        .hide_short_help(!is_common(setting.key));
    match short_option(setting.key) {
        Some(letter) => option.short(letter),
        None => option,
    }
}

/// The short option of a setting. The others are `-l` (`--local`), `-j` (`--jobs`), `-q`
/// (`--quiet`).
fn short_option(key: Key) -> Option<char> {
    match key {
        Key::Name => Some('n'),
        Key::Memory => Some('m'),
        Key::Backing => Some('b'),
        _ => None,
    }
}

/// True for the settings that `-h` lists; `--help` lists all.
fn is_common(key: Key) -> bool {
    matches!(
        key,
        Key::Name
            | Key::At
            | Key::Hosts
            | Key::Dir
            | Key::Backing
            | Key::Writeback
            | Key::Memory
            | Key::Ssd
            | Key::Timeout
    )
}

/// Adds all settings, for the commands that may start daemons.
pub(crate) fn with_all_settings(command: Command) -> Command {
    let keys: Vec<Key> = SETTINGS.iter().map(|setting| setting.key).collect();
    let range = 1..=i64::from(crate::state::hosts::LOCAL_COUNT_MAX);
    with_settings(command, &keys).arg(
        Arg::new("local")
            .short('l')
            .long("local")
            .value_name("N")
            .value_parser(clap::value_parser!(u16).range(range))
            .conflicts_with("hosts")
            .help("Start N daemons on this host; one if neither --local nor --hosts is given"),
    )
}

/// Adds the instance's name as an argument, as another way to give `--name`.
pub(crate) fn with_name(command: Command) -> Command {
    command.arg(
        Arg::new(NAME_ARGUMENT)
            .value_name("NAME")
            .conflicts_with("name")
            .help("Name of the instance; the same as --name"),
    )
}

/// Adds the option `--json`.
pub(crate) fn with_json(command: Command) -> Command {
    command.arg(
        Arg::new("json")
            .long("json")
            .action(ArgAction::SetTrue)
            .help("Print the result, or the error, as JSON on standard output"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;
    use std::path::Path;

    const HEAD: &str = "\
# Commands

<!-- Generated from the command line's own help; do not edit. UPDATE_DOCS=1 cargo test -p cli -->
";

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn the_page_is_generated_from_the_command_line() {
        let mut page = HEAD.to_owned();
        // On a terminal of any width.
        let mut all = command().term_width(WIDTH_MAX);
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
            "docs/commands.md is out of date: UPDATE_DOCS=1 cargo test -p cli writes it"
        );
    }
}
