//! `forebay version`.

use crate::command_line::with_json;
use crate::commands::print_json;
use crate::failure::Result;
use clap::{ArgMatches, Command};
use serde_json::json;
use wire::limits::PROTOCOL_VERSION;

pub(crate) fn command() -> Command {
    with_json(Command::new("version").about("Show the versions of the program and of the protocol"))
}

pub(crate) fn run(given: &ArgMatches) -> Result<u8> {
    let version = env!("CARGO_PKG_VERSION");
    if given.get_flag("json") {
        print_json(&json!({ "version": version, "protocol": PROTOCOL_VERSION }));
    } else {
        outln!("forebay {version}, protocol {PROTOCOL_VERSION}");
    }
    Ok(0)
}
