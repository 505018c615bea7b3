//! Dependencies between crates point downwards, each outside dependency has a recorded reason, and
//! the libraries that are loaded into applications reach only a few crates.

use super::{members, read, root};
use std::collections::BTreeMap;

/// Cores: state machines and vocabulary without I/O. They depend on cores only.
const CORES: [&str; 13] = [
    "cluster",
    "replicas",
    "gateway",
    "metadata",
    "data",
    "insight",
    "qos",
    "placement",
    "fuse",
    "config",
    "tokens",
    "encoding",
    "wire",
];
/// Crates that are loaded into applications.
const IN_APPLICATIONS: [&str; 3] = ["library", "preload", "client"];
/// The only crates that those may reach.
const REACHED_FROM_APPLICATIONS: [&str; 5] = ["preload", "client", "placement", "shm", "wire"];

/// Dependencies of a crate on members, those for tests included, but not on itself.
fn dependencies(member: &str, members: &[String]) -> Vec<String> {
    let manifest = read(&root().join("crates").join(member).join("Cargo.toml"));
    let mut inside = false;
    let mut found = Vec::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            inside = line.contains("dependencies]");
        } else if inside {
            let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
            if name != member && members.iter().any(|member| member == name) {
                found.push(name.to_owned());
            }
        }
    }
    found
}

#[test]
fn dependencies_point_downwards() {
    let members = members();
    let place = |name: &str| members.iter().position(|member| member == name);
    for member in &members {
        for dependency in dependencies(member, &members) {
            assert!(
                place(&dependency) > place(member),
                "{member} depends on {dependency}, above it"
            );
            if CORES.contains(&member.as_str()) {
                // Tests alone use testkit.
                let is_core = CORES.contains(&dependency.as_str()) || dependency == "testkit";
                assert!(is_core, "{member} is a core and depends on {dependency}, which is none");
            }
        }
    }
}

/// Names of all crates from outside that manifests ask for, tests' own included.
fn foreign() -> Vec<String> {
    let members = members();
    let dirs = members.iter().map(|member| root().join("crates").join(member));
    let mut found = Vec::new();
    for dir in dirs.chain([root().join("fuzz")]) {
        let mut inside = false;
        for line in read(&dir.join("Cargo.toml")).lines() {
            if line.starts_with('[') {
                inside = line.ends_with("dependencies]");
                continue;
            }
            let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
            let is_name = !name.is_empty() && !name.starts_with('#');
            if inside && is_name && !members.iter().any(|member| member == name) {
                found.push(name.to_owned());
            }
        }
    }
    assert!(found.len() > 10, "the manifests were not read");
    found
}

#[test]
fn every_dependency_has_its_reason() {
    let reasons = read(&root().join("docs/internals/dependencies.md"));
    let words: Vec<&str> =
        reasons.split(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_').collect();
    for name in foreign() {
        assert!(
            words.contains(&name.as_str()),
            "docs/internals/dependencies.md does not say why {name} is here"
        );
    }
}

#[test]
fn applications_stay_light() {
    let members = members();
    let graph: BTreeMap<_, _> =
        members.iter().map(|member| (member.clone(), dependencies(member, &members))).collect();
    for start in IN_APPLICATIONS {
        let mut reached = vec![start.to_owned()];
        let mut next = 0;
        while let Some(member) = reached.get(next).cloned() {
            next += 1;
            for dependency in graph.get(&member).into_iter().flatten() {
                let allowed = REACHED_FROM_APPLICATIONS.contains(&dependency.as_str());
                assert!(allowed, "{start} reaches {dependency}");
                if !reached.contains(dependency) {
                    reached.push(dependency.clone());
                }
            }
        }
    }
}

/// Clippy reads the file in the directory of a crate; a core without one would get the rules of the
/// other crates.
#[test]
fn cores_have_their_rules_for_clippy() {
    let rules = read(&root().join("crates/core-clippy.toml"));
    for core in CORES {
        let own = read(&root().join("crates").join(core).join("clippy.toml"));
        assert!(own == rules, "crates/{core}/clippy.toml is not crates/core-clippy.toml");
    }
}
