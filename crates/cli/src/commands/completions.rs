//! `forebay completions` and `forebay man`: shell completions and man pages, generated from the
//! command line.

use crate::command_line;
use crate::failure::{Failure, Result};
use clap::builder::Resettable;
use clap::{Arg, ArgMatches, Command, value_parser};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};
use std::io;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  forebay completions bash >~/.local/share/bash-completion/completions/forebay
  forebay completions zsh >~/.zfunc/_forebay              with fpath+=~/.zfunc before compinit
  forebay completions fish >~/.config/fish/completions/forebay.fish

'make install' does the same for all users.";

const MAN_EXAMPLES: &str = "\
Example:
  forebay man ~/.local/share/man/man1

One page for each command: 'man forebay', 'man forebay-run'.";

pub(crate) fn command() -> Command {
    let shell = Arg::new("shell").required(true).value_parser(value_parser!(Shell));
    let command = Command::new("completions").about("Print the completions of a shell");
    command.after_long_help(EXAMPLES).arg(shell.value_name("SHELL").help("The shell"))
}

pub(crate) fn man_command() -> Command {
    let dir = Arg::new("dir").required(true).value_parser(value_parser!(PathBuf));
    let command = Command::new("man").about("Write the man pages to a directory");
    let help = "The directory, which is created if it is missing";
    command.after_long_help(MAN_EXAMPLES).arg(dir.value_name("DIR").help(help))
}

pub(crate) fn run(given: &ArgMatches) -> Result<u8> {
    let shell = given.get_one::<Shell>("shell").ok_or_else(|| Failure::new("no shell given"))?;
    // Written as a whole, because the generator does not expect a closed pipe.
    let mut script = Vec::new();
    clap_complete::generate(*shell, &mut command_line::public_command(), "forebay", &mut script);
    out_as_is!("{}", String::from_utf8_lossy(&script));
    Ok(0)
}

pub(crate) fn run_man(given: &ArgMatches) -> Result<u8> {
    let dir = given.get_one::<PathBuf>("dir").ok_or_else(|| Failure::new("no directory given"))?;
    let mut all = command_line::public_command().disable_help_subcommand(true);
    all.build();
    std::fs::create_dir_all(dir)
        .and_then(|()| write_pages(&all, dir))
        .map_err(|error| Failure::at("cannot write the man pages", dir.display(), error))?;
    Ok(0)
}

/// Writes the pages of a command and of all commands in it.
fn write_pages(command: &Command, dir: &Path) -> io::Result<()> {
    for one in command.get_subcommands() {
        write_pages(one, dir)?;
    }
    let text = command.get_after_long_help().or(command.get_after_help());
    let text = text.map(ToString::to_string).unwrap_or_default();
    let page = command.clone().after_help(Resettable::Reset).after_long_help(Resettable::Reset);
    let page = Man::new(page).manual("Forebay");
    let mut bytes = Vec::new();
    page.render(&mut bytes)?;
    if !text.is_empty() {
        // As it is in the help, where examples have columns.
        let mut roff = Roff::new();
        roff.control("SH", ["EXAMPLES AND NOTES"]).control("nf", []);
        for line in text.lines() {
            roff.text([roman(line)]);
        }
        roff.control("fi", []);
        roff.to_writer(&mut bytes)?;
    }
    std::fs::write(dir.join(page.get_filename()), bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum as _;

    #[test]
    fn each_shell_gets_completions_without_hidden_commands() {
        for shell in Shell::value_variants() {
            let mut script = Vec::new();
            let mut command = command_line::public_command();
            clap_complete::generate(*shell, &mut command, "forebay", &mut script);
            let script = String::from_utf8(script).expect("text");
            assert!(script.contains("stage-in"), "{shell}");
            assert!(!script.contains("daemon-exec"), "{shell}");
        }
    }

    #[test]
    fn each_command_gets_a_man_page() {
        let dir = tempfile::tempdir().expect("a directory");
        let matches = man_command().get_matches_from(["man".as_ref(), dir.path().as_os_str()]);
        run_man(&matches).expect("written");
        let pages = std::fs::read_dir(dir.path()).expect("a listing").flatten();
        let names: Vec<_> = pages.filter_map(|page| page.file_name().into_string().ok()).collect();
        for expected in ["forebay.1", "forebay-run.1", "forebay-stage-in.1"] {
            assert!(names.iter().any(|name| name == expected), "{names:?}");
        }
        assert!(!names.iter().any(|name| name.contains("daemon")), "{names:?}");
        let page = std::fs::read_to_string(dir.path().join("forebay-start.1")).expect("a page");
        let lines: Vec<_> = page.lines().collect();
        let start = lines.iter().position(|line| *line == ".nf").expect("examples");
        assert_eq!(lines.get(start + 1), Some(&"Examples:"));
        assert!(lines[start + 2].starts_with("  forebay start"), "{page}");
    }
}
