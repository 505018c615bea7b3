//! The sessions of the README and of the user guide, as printed there, by a user on a host that nobody
//! has prepared. Needs what `mount::users` needs, and busybox.
//!
//! Blocks without output show commands only. The block over a bucket is in `backing::bucket_reads`,
//! job scripts need a scheduler, and quotas root: `quotas`.

use crate::mount::users::{World, has_busybox};
use std::path::Path;

/// A command and the lines that it prints.
type Step = (String, Vec<String>);

/// The session's steps of a block of a document.
fn steps(block: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for line in block.lines() {
        match (line.strip_prefix("$ "), steps.last_mut()) {
            (Some(command), _) => steps.push((command.to_owned(), Vec::new())),
            (None, Some((_, printed))) => printed.push(line.to_owned()),
            (None, None) => panic!("no command before: {line}"),
        }
    }
    steps
}

/// The sessions of a document.
fn sessions(document: &str) -> Vec<Vec<Step>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(document);
    let text = std::fs::read_to_string(path).expect("a document");
    // Every second part is a block; its first line is the language.
    let blocks = text.split("```").skip(1).step_by(2).filter_map(|block| block.split_once('\n'));
    let sessions = blocks.filter(|(_, block)| block.starts_with("$ "));
    sessions.map(|(_, block)| steps(block)).collect()
}

/// The guide's user, and the test's with its group.
const USERS: [&str; 3] = ["ada", "nobody", "nogroup"];
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// The line without what depends on the machine: numbers, users, dates, and the width of columns.
fn shape(line: &str) -> String {
    let word = |word: &str| {
        let is_number = word.chars().all(|each| each.is_ascii_digit() || ".:".contains(each));
        let is_unit = ["B", "KiB", "MiB", "GiB", "TiB"].contains(&word);
        if is_number {
            "N".to_owned()
        } else if is_unit {
            "B".to_owned()
        } else if USERS.contains(&word) {
            "user".to_owned()
        } else if MONTHS.contains(&word) {
            "month".to_owned()
        } else if let Some(directory) = word.strip_suffix("/scratch") {
            assert!(directory.starts_with('/'), "{word}");
            "/scratch".to_owned()
        } else {
            word.to_owned()
        }
    };
    line.split_whitespace().map(word).collect::<Vec<_>>().join(" ")
}

const PREPARE: &str = r#"
for name in $(env | sed -n 's/^\(FOREBAY_[A-Z_]*\)=.*/\1/p'); do unset $name; done
unset XDG_RUNTIME_DIR
PATH=$U/bin:$PATH
trap 'forebay stop --discard >/dev/null 2>&1 || true' EXIT
set -e
"#;

/// Runs the steps of a session in a shell between two scripts, and compares what each prints. Returns
/// what all of them print.
fn play(world: &World, before: &str, steps: &[Step], after: &str) -> String {
    // Files and directories of the session are in one of this test.
    let moved = |command: &str| {
        let names =
            [("/tmp/", "$HOME/"), ("/lustre/ann", "$HOME/lustre"), (" /scratch/", " $HOME/")];
        names.iter().fold(command.to_owned(), |command, (name, own)| command.replace(name, own))
    };
    let commands = steps.iter().map(|(command, _)| format!("echo '$'\n{}\n", moved(command)));
    let commands: String = commands.collect();
    let script = format!("{PREPARE}{{ :; {before}\n}} >&2\n{commands}echo '$'\n{after}\n");
    let printed = world.printed("", &script);
    let outputs: Vec<&str> = printed.split("$\n").skip(1).collect();
    assert_eq!(outputs.len(), steps.len() + 1, "{printed}");
    let shows_output = steps.iter().any(|(_, expected)| !expected.is_empty());
    for ((command, expected), output) in steps.iter().zip(outputs).filter(|_| shows_output) {
        let lines: Vec<&str> = output.lines().collect();
        assert_eq!(lines.len(), expected.len(), "{command}: {output}");
        for (line, expected) in lines.iter().zip(expected) {
            // Where the user cannot create the directory, the line goes on with that.
            let (line, expected) = (shape(line), shape(expected));
            let is_start = expected.ends_with("visible at /forebay");
            assert!(
                line == expected || is_start && line.starts_with(&expected),
                "{command}: {line}"
            );
        }
    }
    printed
}

/// For each session of the user guide: the begin of its first command, a script before it, and one
/// after it.
const GUIDE: [(&str, &str, &str); 5] = [
    ("forebay start --local 2 --memory", "", ""),
    (
        "forebay start --memory 1GiB --ssd 0",
        "mkdir in lustre; for n in 1 2 3 9; do echo $n >in/field$n; done",
        "[ -s lustre/results/log ]; forebay run -- sh -c 'cd /forebay && \
         cmp in/field2 $HOME/in/field2 && [ \"$(echo now/*)\" = \"now/field1 now/field3 now/field9\" ]'; \
         forebay stop",
    ),
    (
        "forebay layout set",
        "forebay start --local 4 --memory 64MiB --ssd 0; forebay run -- mkdir /forebay/checkpoints",
        "forebay stop",
    ),
    (
        "forebay pin",
        "forebay start --memory 64MiB --ssd 0; forebay run -- mkdir /forebay/tables; \
         head -c 100000 /dev/zero >table.bin",
        "forebay layout get /forebay/tables/table.bin | grep -q 'pinned yes'; forebay stop",
    ),
    (
        "mkdir -p scratch",
        "forebay start --memory 64MiB --ssd 0; \
         printf '#!%s sh\necho written >\"$1\"\n' $(command -v busybox) >static-program; \
         chmod +x static-program",
        "forebay run -- grep -q written /forebay/out; forebay stop",
    ),
];
/// The session that `backing::bucket_reads` has.
const BUCKET: &str = "export AWS_PROFILE=";

/// "`/forebay` need not exist" (README).
#[test]
fn the_sessions_of_readme_and_guide_are_what_an_ordinary_user_gets() {
    let Some(world) = World::new("readme").filter(|_| has_busybox()) else { return };
    let readme = sessions("README.md");
    assert!(readme.len() == 1 && readme[0].len() >= 5, "{readme:?}");
    let printed = play(&world, "", &readme[0], "");
    // Both programs find the same.
    let counts: Vec<&str> = printed.lines().filter(|line| line.parse::<u32>().is_ok()).collect();
    assert!(counts.len() == 2 && counts[0] == counts[1], "{printed}");
    let guide = sessions("docs/user-guide.md");
    assert_eq!(guide.len(), GUIDE.len() + 1, "{guide:?}");
    for session in guide.iter().filter(|session| !session[0].0.starts_with(BUCKET)) {
        let first = &session[0].0;
        let known = GUIDE.iter().find(|(begin, ..)| first.starts_with(begin));
        let (_, before, after) = known.unwrap_or_else(|| panic!("no preparation for: {first}"));
        play(&world, before, session, after);
    }
}
