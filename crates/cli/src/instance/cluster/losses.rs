//! Files that lost bytes with all their copies: any daemon of the instance that lives knows all of them.

use super::{call, micros, timeout, unexpected_reply};
use crate::failure::{Failure, Result};
use crate::instance::host;
use crate::process::query::lost_query;
use crate::state::directories;
use crate::state::records::{self, HostRecord, HostReply, InstanceRecord};
use config::control::LostFiles;
use serde_json::json;
use std::time::Duration;

/// The answer of a daemon of this host, the first one that gives one.
///
/// # Errors
/// There is no such instance here, or no daemon answers.
pub(crate) fn lost_here(name: &str, timeout: Duration) -> Result<LostFiles> {
    let run = directories::run(name)?;
    let host: Option<HostRecord> = records::load(&run, host::RECORD)?;
    let host = host.ok_or_else(|| Failure::no_instance(name))?;
    let living = host.daemons.iter().filter(|it| it.process.is_alive().unwrap_or(false));
    let mut sockets = living.map(|it| run.join(format!("d{}.sock", it.index)));
    sockets.find_map(|socket| lost_query(&socket, timeout)).ok_or_else(|| {
        let why = "no daemon of this host answers: see 'forebay status'";
        Failure::at("cannot list lost files", format!("instance {name}"), why)
    })
}

/// The answer of a daemon, of this host if one of it answers.
///
/// # Errors
/// No daemon answers; the reason of the first host.
pub(crate) fn lost_files(instance: &InstanceRecord) -> Result<LostFiles> {
    let timeout = timeout(instance);
    let mut answer = lost_here(&instance.name, timeout);
    for entry in instance.hosts.iter().filter(|entry| !entry.host.is_empty()) {
        if answer.is_ok() {
            break;
        }
        let request = json!({ "name": instance.name, "timeout_us": micros(timeout) });
        let command = "daemon-losses";
        answer = match call(instance, entry, command, &request.to_string(), timeout) {
            Ok(Some(HostReply::Lost(found))) => Ok(found),
            Ok(_) => answer.map_err(|_| unexpected_reply(entry, command)),
            Err(_) => answer,
        };
    }
    answer
}
