//! The rules of the tree, as a test: order of dependencies, where `unsafe` may stand, sizes of
//! files and functions, headers, and words that do not belong here.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Cores: state machines and vocabulary without I/O. They depend on cores only.
const CORES: [&str; 8] =
    ["gateway", "metadata", "data", "placement", "fuse", "config", "tokens", "wire"];
/// What is loaded into applications reaches nothing but these.
const IN_APPLICATIONS: [&str; 2] = ["preload", "client"];
const REACHED_FROM_APPLICATIONS: [&str; 4] = ["client", "placement", "shm", "wire"];
/// The only crates with `unsafe`.
const UNSAFE: [&str; 4] = ["shm", "preload", "fabric", "mount"];

const FILE_LINES_MAX: usize = 800;
const FUNCTION_LINES_MAX: usize = 70;
/// rustfmt keeps code within 100; a literal that it may not break gets a few more.
const COLUMNS_MAX: usize = 106;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Names of the member crates, in the order of the root manifest.
fn members() -> Vec<String> {
    let manifest = read(&root().join("Cargo.toml"));
    let list = manifest.split("members = [").nth(1).and_then(|rest| rest.split(']').next());
    list.expect("a list of members")
        .split('"')
        .filter_map(|part| part.strip_prefix("crates/"))
        .map(str::to_owned)
        .collect()
}

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
                let is_core = CORES.contains(&dependency.as_str());
                assert!(is_core, "{member} is a core and depends on {dependency}, which is none");
            }
        }
    }
}

/// Names of all crates from outside that manifests ask for, tests' own included.
fn foreign() -> Vec<String> {
    let members = members();
    let folders = members.iter().map(|member| root().join("crates").join(member));
    let mut found = Vec::new();
    for folder in folders.chain([root().join("fuzz")]) {
        let mut inside = false;
        for line in read(&folder.join("Cargo.toml")).lines() {
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
    let map = read(&root().join("ARCHITECTURE.md"));
    let reasons = map.split("## Dependencies and why").nth(1).expect("the section");
    let words: Vec<&str> =
        reasons.split(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_').collect();
    for name in foreign() {
        assert!(words.contains(&name.as_str()), "ARCHITECTURE.md does not say why {name} is here");
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

/// All Rust sources of the members: crate, path, text.
fn sources() -> Vec<(String, PathBuf, String)> {
    let mut found = Vec::new();
    for member in members() {
        let mut folders = vec![root().join("crates").join(&member)];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).expect("a folder").flatten() {
                let path = entry.path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    let text = read(&path);
                    found.push((member.clone(), path, text));
                }
            }
        }
    }
    assert!(found.len() > 20, "the sources were not found");
    found
}

#[test]
fn files_are_small_have_headers_and_no_strange_words() {
    // Put together here so that this file does not name them itself.
    let banned = [
        ["TO", "DO"].concat(),
        ["FIX", "ME"].concat(),
        ["to", "do!("].concat(),
        ["unimplement", "ed!("].concat(),
        ["#[ign", "ore"].concat(),
    ];
    let mut faults = Vec::new();
    for (_, path, text) in sources() {
        let lines = text.lines().count();
        let name = path.display();
        if lines > FILE_LINES_MAX {
            faults.push(format!("{name}: {lines} lines"));
        }
        if !text.starts_with("//!") {
            faults.push(format!("{name}: no header"));
        }
        for (number, line) in text.lines().enumerate() {
            if line.chars().count() > COLUMNS_MAX {
                faults.push(format!("{name}:{}: more than {COLUMNS_MAX} columns", number + 1));
            }
            if let Some(word) = banned.iter().find(|word| line.contains(word.as_str())) {
                faults.push(format!("{name}:{}: {word}", number + 1));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn unsafe_stands_at_the_rim_and_says_why_it_holds() {
    let keyword = ["unsa", "fe"].concat();
    let mut faults = Vec::new();
    for (member, path, text) in sources() {
        let name = path.display();
        let is_source = path.components().any(|part| part.as_os_str() == "src");
        let is_library = text.starts_with("//!") && path.ends_with("src/lib.rs");
        let fenced = UNSAFE.contains(&member.as_str());
        if is_library && !fenced && !text.contains(&format!("forbid({keyword}_code)")) {
            faults.push(format!("{name}: does not forbid {keyword} code"));
        }
        let starts = [format!("{keyword} {{"), format!("{keyword} impl"), format!("{keyword} fn")];
        let lines: Vec<&str> = text.lines().collect();
        for (number, line) in lines.iter().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            if !is_source || !starts.iter().any(|start| code.contains(start.as_str())) {
                continue;
            }
            if !fenced {
                faults.push(format!("{name}:{}: {keyword}", number + 1));
            }
            let above = &lines[number.saturating_sub(16)..=number];
            if !above.iter().any(|line| line.to_lowercase().contains("safety")) {
                faults.push(format!("{name}:{}: no word on safety", number + 1));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn functions_fit_a_screen() {
    let mut faults = Vec::new();
    for (_, path, text) in sources() {
        let lines: Vec<&str> = text.lines().collect();
        for (start, line) in lines.iter().enumerate() {
            let indent = line.len() - line.trim_start().len();
            let head = line.trim_start().trim_start_matches("pub(crate) ");
            let head = head.trim_start_matches("pub(super) ").trim_start_matches("pub ");
            let head = head.trim_start_matches("const ").trim_start_matches("unsafe ");
            if !head.starts_with("fn ") && !head.starts_with("extern \"C\" fn ") {
                continue;
            }
            // A method that a trait only names has no body.
            let ends = |line: &&&str| line.ends_with(';') || line.ends_with('{');
            if lines[start..].iter().find(ends).is_none_or(|line| line.ends_with(';')) {
                continue;
            }
            let end = format!("{}}}", " ".repeat(indent));
            let length = lines[start..].iter().position(|line| *line == end).unwrap_or(0);
            if length >= FUNCTION_LINES_MAX {
                faults.push(format!("{}:{}: {length} lines", path.display(), start + 1));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// What names the place where this was made has no place in it.
#[test]
fn nothing_points_outside_the_repository() {
    let banned = [
        ["crates", ".io"].concat(),
        ["pypi", ".org"].concat(),
        ["deb.debian", ".org"].concat(),
        ["proxy.golang", ".org"].concat(),
        ["/wo", "rk/"].concat(),
        ["/tmp/t", "-"].concat(),
    ];
    let mut faults = Vec::new();
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder").flatten() {
            let path = entry.path();
            let name = entry.file_name();
            if path.is_dir() {
                if name != "target" && name != ".git" {
                    folders.push(path);
                }
            } else if name != "Cargo.lock" && name != ".git" {
                // Files of bytes have no words.
                let Ok(text) = fs::read_to_string(&path) else { continue };
                for word in &banned {
                    if text.contains(word.as_str()) {
                        faults.push(format!("{}: {word}", path.display()));
                    }
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// One line, without the marks of comments.
fn squeezed(text: &str) -> String {
    let words = text.split_whitespace().filter(|word| !["//", "///", "//!", "#"].contains(word));
    words.collect::<Vec<_>>().join(" ").to_lowercase()
}

/// The numbered promises of a text: the words in bold, and all of each.
fn promises(text: &str) -> Vec<(String, String)> {
    let mut all: Vec<String> = Vec::new();
    let mut is_inside = false;
    for line in text.lines() {
        let begins =
            line.split_once(". **").is_some_and(|(number, _)| number.parse::<u32>().is_ok());
        is_inside = begins || is_inside && line.starts_with("   ");
        match all.last_mut() {
            _ if begins => all.push(line.to_owned()),
            Some(last) if is_inside => *last += &format!("\n{line}"),
            _ => {}
        }
    }
    let words = |promise: &String| squeezed(promise.split("**").nth(1).unwrap_or_default());
    all.into_iter().map(|one| (words(&one).trim_end_matches('.').to_owned(), one)).collect()
}

#[test]
fn each_promise_names_a_test_that_quotes_it() {
    let (text, sources) = (read(&root().join("docs/semantics.md")), sources());
    // What is named between backquotes: a file, or a function of a test, which is in some file.
    let named = |text: &str| -> Vec<(String, Option<String>)> {
        let names = text.split('`').skip(1).step_by(2).map(str::to_owned);
        let is_path = |name: &str| name.starts_with("tests/") || name.starts_with("crates/");
        let is_test = |name: &str| name.split('_').count() > 4 && !name.contains(' ');
        let found = |name: String| {
            let path = root().join(&name);
            let function = format!("fn {name}(");
            let text = match is_path(&name) {
                true if path.is_dir() => Some(String::new()),
                true => fs::read_to_string(&path).ok(),
                false => {
                    let text = sources.iter().map(|(_, _, text)| text);
                    text.clone().find(|text| text.contains(&function)).cloned()
                }
            };
            (name, text)
        };
        names.filter(|name| is_path(name) || is_test(name)).map(found).collect()
    };
    let mut faults = Vec::new();
    for (name, _) in named(&text).into_iter().filter(|(_, text)| text.is_none()) {
        faults.push(format!("{name} is named, and is not there"));
    }
    let promises = promises(&text);
    assert!(promises.len() > 10, "the promises were not found");
    for (words, promise) in promises {
        let mut texts = named(&promise).into_iter().filter_map(|(_, text)| text);
        if !texts.any(|text| squeezed(&text).contains(&words)) {
            faults.push(format!("no test that it names quotes {words:?}"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
