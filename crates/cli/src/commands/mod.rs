//! The commands, in the order of `forebay --help`: those that start, use and end an instance
//! (`lifecycle`), those about its files (`files`), those about its memory, limits and state, live too
//! (`live`), and those for an instance that is damaged (`rescue`).

pub(crate) mod lifecycle;

pub(crate) mod files;

mod lend;

mod mount_program;

mod quota;

mod pool;

pub(crate) mod qos;

mod job;

mod status;

mod live;

mod report;

pub(crate) mod history;

mod ls;

mod df;

mod version;

pub(crate) mod rescue;

mod completions;

mod output;

pub(crate) use output::{files_and_names, human, painted, plural, print_json, table};

use crate::failure::{Failure, Result, USAGE};
use clap::{ArgMatches, Command};
use files::{evict, flush, layout, pin, profile, stage};
use lifecycle::{balance, grow, host_agent, mount, replace, run, shrink, start, stop};
use live::{dashboard, monitor, top};
use rescue::{check, lost};

/// All commands.
pub(crate) fn all() -> Vec<Command> {
    let mut all = vec![
        run::command(),
        start::command(),
        stop::command(),
        grow::command(),
        shrink::command(),
        replace::command(),
        balance::command(),
        flush::command(),
        mount::command(),
        mount::umount_command(),
        stage::command(),
        stage::worker_command(),
        evict::command(),
        profile::command(),
        lend::command(),
        lend::reclaim_command(),
        layout::command(),
        pin::command(),
        pin::unpin_command(),
        pool::command(),
        quota::command(),
        qos::command(),
        status::command(),
        top::command(),
        dashboard::command(),
        monitor::command(),
        job::command(),
        report::command(),
        history::command(),
        ls::command(),
        df::command(),
        check::command(),
        lost::command(),
        completions::command(),
        completions::man_command(),
        version::command(),
    ];
    all.extend(host_agent::commands());
    all.push(monitor::process_command());
    all
}

/// Runs the command `name` and returns its exit code.
///
/// # Errors
/// The command failed: the text says which step, and on what.
pub(crate) fn dispatch(name: &str, given: &ArgMatches) -> Result<u8> {
    match name {
        "run" => run::run(given),
        "start" => start::run(given),
        "stop" => stop::run(given),
        "grow" => grow::run(given),
        "shrink" => shrink::run(given),
        "replace" => replace::run(given),
        "balance" => balance::run(given),
        "flush" => flush::run(given),
        "mount" => mount::run(given),
        "umount" => mount::run_umount(given),
        "stage" => stage::run(given),
        "stage-worker" => stage::work(given),
        "evict" => evict::run(given),
        "profile" => profile::run(given),
        "report" => report::run(given),
        "history" => history::run(given),
        "lend" => lend::run(given),
        "reclaim" => lend::run_reclaim(given),
        "layout" => layout::run(given),
        "pin" => pin::run(given, true),
        "unpin" => pin::run(given, false),
        "pool" => pool::run(given),
        "quota" => quota::run(given),
        "qos" => qos::run(given),
        "status" => status::run(given),
        "top" => top::run(given),
        "dashboard" => dashboard::run(given),
        "monitor" => monitor::run(given),
        "job" => job::run(given),
        "ls" => ls::run(given),
        "df" => df::run(given),
        "check" => check::run(given),
        "lost" => lost::run(given),
        "completions" => completions::run(given),
        "man" => completions::run_man(given),
        "version" => version::run(given),
        "daemon-exec" => host_agent::exec(given),
        "daemon-record" => monitor::run_process(given),
        "daemon-start" | "daemon-peers" | "daemon-mount" | "daemon-share" | "daemon-lend"
        | "daemon-flush" | "daemon-profile" | "daemon-status" | "daemon-activity"
        | "daemon-check" | "daemon-repair" | "daemon-lost" | "daemon-losses" | "daemon-gone"
        | "daemon-add" | "daemon-idle" | "daemon-leave" | "daemon-balance" | "daemon-stop" => {
            host_agent::run(name)
        }
        _ => Err(Failure::with_code(USAGE, format!("unknown command: {name}"))),
    }
}
