//! The plan of `start`: the hosts and the configuration of an instance that the settings describe,
//! and whether they agree with an instance that is already running.

use crate::commands::plural;
use crate::failure::{Failure, Result, USAGE};
use crate::instance::profile;
use crate::instance::{cluster, host};
use crate::process::slurm;
use crate::state::directories;
use crate::state::domains;
use crate::state::hosts;
use crate::state::records::{self, HostEntry, HostRecord, InstanceRecord, VERSION};
use crate::state::resources;
use config::parse::{Value, micros_text, size_text};
use config::{InstanceConfig, Key, Kind, Origin, SETTINGS, Setting, Settings};

/// The recorded instance, or a new one; true for a new one.
///
/// # Errors
/// The settings do not fit the recorded instance, or make no instance.
pub(crate) fn recorded_or_new(
    settings: &Settings,
    local: Option<u16>,
) -> Result<(InstanceRecord, bool)> {
    let parts = requested_hosts(settings, local)?;
    if let Some(instance) = cluster::load(settings.word(Key::Name))? {
        check_conflict(&instance, settings, parts.as_deref())?;
        return Ok((instance, false));
    }
    let run = directories::run(settings.word(Key::Name))?;
    if let Some(host) = records::load::<HostRecord>(&run, host::RECORD)? {
        let why = format!(
            "{} of an instance run here that was started on another host, or whose record is lost: start \
             and stop it there, or end them and remove {}",
            plural(host.daemons.len() as u64, "daemon"),
            run.display()
        );
        return Err(Failure::at("missing", run.join(cluster::RECORD).display(), why));
    }
    let parts = match parts {
        Some(parts) => parts,
        None => requested_hosts(settings, Some(1))?.unwrap_or_default(),
    };
    Ok((new_instance(settings, parts)?, true))
}

fn new_instance(settings: &Settings, mut parts: Vec<HostEntry>) -> Result<InstanceRecord> {
    if let Some(domains) = settings.text(Key::Domains) {
        domains::assign(domains, &mut parts, slurm::topology)?;
    }
    domains::check_replicas(settings, &parts)?;
    domains::check_followers(settings, &parts)?;
    let ssh = config::parse::words(settings.word(Key::Ssh)).unwrap_or_default();
    let config = instance_config(settings, &parts)?;
    let name = settings.word(Key::Name).to_owned();
    Ok(InstanceRecord {
        version: VERSION,
        name,
        uid: directories::user(),
        ssh,
        config,
        hosts: parts,
        began: None,
        left: Vec::new(),
    })
}

/// The hosts that the settings ask for; `None`: they do not say.
fn requested_hosts(settings: &Settings, local: Option<u16>) -> Result<Option<Vec<HostEntry>>> {
    let listen = settings.text(Key::Listen);
    let file = settings.text(Key::Hosts).filter(|_| local.is_none());
    if let Some(file) = file {
        let text = std::fs::read_to_string(file).map_err(|error| {
            let origin = settings.origin(Key::Hosts);
            let text = format!("cannot read the hosts file: {file}: {error} ({origin})");
            Failure::with_code(USAGE, text)
        })?;
        return hosts::assign(&hosts::parse(&text, file)?, listen).map(Some);
    }
    let listen = listen.unwrap_or("127.0.0.1");
    Ok(local.map(|count| vec![HostEntry::new("", listen, 0, count)]))
}

/// The configuration of an instance on these hosts.
///
/// # Errors
/// A setting has no field, which only a bug can cause.
fn instance_config(settings: &Settings, hosts: &[HostEntry]) -> Result<InstanceConfig> {
    let daemons_max = hosts.iter().map(|entry| entry.count).max().unwrap_or(1);
    let absolute = |dir: &str| {
        let path = std::path::absolute(dir).unwrap_or_else(|_| dir.into());
        path.to_string_lossy().into_owned()
    };
    let mut decided = settings.clone();
    if let Some(dirs) = settings.text(Key::Dir) {
        let all: Vec<String> = dirs.split(':').map(absolute).collect();
        decided.decide(Key::Dir, Some(Value::Text(all.join(":"))));
    }
    if let Some(place) = settings.text(Key::Backing).filter(|text| !backing::is_bucket(text)) {
        decided.decide(Key::Backing, Some(Value::Text(absolute(place))));
    }
    if let Some(file) = settings.text(Key::Domains).filter(|text| *text != domains::AUTO) {
        decided.decide(Key::Domains, Some(Value::Text(absolute(file))));
    }
    let profile = profile::requested_name(settings.text(Key::Profile));
    decided.decide(Key::Profile, profile.map(Value::Text));
    let workers = settings.number(Key::Workers);
    let workers = workers.unwrap_or_else(|| resources::workers(daemons_max));
    decided.decide(Key::Workers, Some(Value::Number(workers)));
    InstanceConfig::new(&decided).map_err(|error| Failure::new(format!("settings: {error}")))
}

/// Refuses settings that differ from those of the running instance and so would have no effect.
fn check_conflict(
    running: &InstanceRecord,
    settings: &Settings,
    requested: Option<&[HostEntry]>,
) -> Result<()> {
    let name = &running.name;
    let counts = |hosts: &[HostEntry]| -> Vec<_> {
        hosts.iter().map(|entry| (entry.host.clone(), entry.count)).collect()
    };
    if requested.is_some_and(|requested| counts(requested) != counts(&running.hosts)) {
        let text = format!(
            "conflict: instance {name} runs {} on {}, not the requested ones: stop it first, or give \
             another --name",
            plural(running.present().into(), "daemon"),
            plural(running.hosts.len() as u64, "host")
        );
        return Err(Failure::new(text));
    }
    let hosts = requested.unwrap_or(&running.hosts);
    check_config(name, &running.config, &instance_config(settings, hosts)?, settings, |setting| {
        // These apply to each command by itself.
        settings.is_given(setting.key) && !matches!(setting.key, Key::At | Key::Timeout | Key::Log)
    })
}

/// Refuses options of `run` that differ from a running instance and so would have no effect.
/// Variables and the settings file may be meant for new instances.
///
/// # Errors
/// The first such option.
pub(crate) fn check_options(
    name: &str,
    running: &InstanceConfig,
    settings: &Settings,
) -> Result<()> {
    let new = instance_config(settings, &[])?;
    check_config(name, running, &new, settings, |setting| {
        matches!(settings.origin(setting.key), Origin::Option(_)) && setting.key != Key::At
    })
}

/// Refuses the settings that `is_checked` if they differ.
fn check_config(
    name: &str,
    running: &InstanceConfig,
    new: &InstanceConfig,
    settings: &Settings,
    is_checked: impl Fn(&Setting) -> bool,
) -> Result<()> {
    for setting in SETTINGS.iter().filter(|setting| is_checked(setting)) {
        let (Some(new), Some(current)) = (new.value(setting.key), running.value(setting.key))
        else {
            continue;
        };
        if new != current {
            let text = format!(
                "conflict: instance {name} runs with {}={}, {} asks for {}: stop it first, or give \
                 another --name",
                setting.name,
                recorded_text(setting, &current),
                settings.origin(setting.key),
                settings.written(setting.key)
            );
            return Err(Failure::new(text));
        }
    }
    Ok(())
}

/// A recorded value as a user would write it.
fn recorded_text(setting: &Setting, value: &serde_json::Value) -> String {
    match (setting.kind, value) {
        (_, serde_json::Value::Null) => {
            if setting.default.is_empty() { "none" } else { "auto" }.to_owned()
        }
        (Kind::Size { .. } | Kind::Memory { .. }, serde_json::Value::Number(bytes)) => {
            bytes.as_u64().map_or_else(String::new, size_text)
        }
        (Kind::Duration { .. }, serde_json::Value::Number(micros)) => {
            micros.as_u64().map_or_else(String::new, micros_text)
        }
        (_, serde_json::Value::String(text)) => text.clone(),
        _ => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::Sources;

    fn settings(options: &[(Key, &str)]) -> Settings {
        let mut sources = Sources::default();
        for (key, text) in options {
            sources.options.insert(*key, (*text).to_owned());
        }
        Settings::resolve(&sources).expect("allowed")
    }

    #[test]
    fn only_given_settings_can_conflict() {
        let first = settings(&[(Key::StripeSize, "1MiB"), (Key::Memory, "64MiB")]);
        let hosts = requested_hosts(&first, Some(2)).expect("hosts").expect("hosts");
        let running = new_instance(&first, hosts).expect("an instance");
        let check = |options: &[(Key, &str)], local: Option<u16>| {
            let settings = settings(options);
            let hosts = requested_hosts(&settings, local).expect("hosts");
            check_conflict(&running, &settings, hosts.as_deref())
                .map_err(|failure| failure.text().into())
        };
        assert_eq!(check(&[], None), Ok::<(), String>(()));
        assert_eq!(check(&[(Key::StripeSize, "1024KiB"), (Key::At, "/x")], Some(2)), Ok(()));
        let text = check(&[(Key::StripeSize, "2MiB")], None).expect_err("a conflict");
        let expected =
            "runs with stripe-size=1MiB, option --stripe-size asks for 2MiB: stop it first";
        assert!(text.contains(expected), "{text}");
        assert!(check(&[(Key::Memory, "auto")], None).is_err());
        let options = |options| {
            check_options("a", &running.config, &settings(options))
                .map_err(|failure| failure.text().to_owned())
        };
        assert_eq!(options(&[(Key::Memory, "65536K"), (Key::Timeout, "30s")]), Ok(()));
        let text = options(&[(Key::Timeout, "3s")]).expect_err("a conflict");
        assert!(text.contains("runs with timeout=30s, option --timeout asks for 3s"), "{text}");
        assert!(check(&[], Some(3)).expect_err("a conflict").contains("2 daemons on 1 host,"));
    }
}
