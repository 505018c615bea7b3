//! Shares of jobs beyond `hosts::limits`: bounds on dirty bytes, turns at the backing store, crowds of
//! processes, minima that nothing can give, jobs below their shares, and urgent work.

mod below;
mod by_sets;
mod crowds;
mod dirty;
mod urgent;

use crate::support::{Instance, text};
use std::process::Command;

/// A command of `forebay` on an instance, in words.
fn forebay(instance: &Instance, words: &[&str]) -> Command {
    // Its own `--name` would stand before the subcommand.
    let like = instance.command("status");
    let variables =
        like.get_envs().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())));
    let mut command = Command::new(like.get_program());
    command.args(words).envs(variables).env("FOREBAY_NAME", &instance.name);
    command
}

fn ok(instance: &Instance, words: &[&str]) -> String {
    let output = forebay(instance, words).output().expect("forebay runs");
    assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
    text(&output.stdout)
}
