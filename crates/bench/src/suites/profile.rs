//! Client instructions per operation, counted by callgrind.
//!
//! Two runs, one of few operations and one of many, differ only in these operations; the difference
//! divided by their number is the cost of one. Counted are instructions in the preload library and
//! in the stubs that it generates, which belong to no file; the program and libc are excluded.
//! Callgrind counts each step of a repeated string instruction (`rep movs`, `rep stos`), although a
//! CPU does many at a time; these steps form a row of their own. Valgrind slows down the client but
//! not the daemon, so a reply is present when the client first polls for it, and waiting hardly
//! shows in the counts. They vary little between runs and do not depend on other load of the
//! machine.

use crate::environment::instance::Instance;
use crate::measure::interrupt;
use crate::measure::programs;
use crate::results::report::{Key, Report};
use crate::settings::{FileSystem, Settings};
use crate::suites::shares;
use crate::worker::repeat::KINDS;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Small, because valgrind keeps a record for each mapped byte.
const MEMORY: &str = "96MiB";

/// Kinds that are counted with a rule of shares, too.
const RULED_KINDS: [&str; 2] = ["random-read-8k", "random-write-8k"];

/// Measures all kinds of operations on an instance of one daemon.
pub(crate) fn measure(settings: &Settings, report: &mut Report) -> Result<(), String> {
    if !programs::installed("valgrind") {
        report.absent("profile", "needs valgrind");
        return Ok(());
    }
    let instance =
        Instance::start_with(&settings.forebay, 1, "profile", &[("FOREBAY_MEMORY", MEMORY)])?;
    let system = instance.system("forebay-1");
    let variables = variables(&system)?;
    let scratch = Scratch::new()?;
    // Operations of the short and of the long run; by default 200 and 1200.
    let few = settings.files.div_ceil(50);
    let counts = [few, few + settings.files.div_ceil(10)];
    // The first run of a program stores the tables of its system calls, which later runs load.
    if let Some(kind) = KINDS.first() {
        scratch.count((kind, kind), 0, counts[1], &system, &variables)?;
    }
    for kind in KINDS {
        interrupt::check()?;
        let [instructions, repeats] = scratch.each(kind, kind, counts, &system, &variables)?;
        add(report, kind, "instr.", &system, instructions);
        add(report, &format!("{kind} rep"), "steps", &system, repeats);
    }
    // The same while a rule of shares is in force.
    instance.run(&shares::RULE)?;
    for kind in RULED_KINDS {
        interrupt::check()?;
        let test = format!("{kind} ruled");
        let [instructions, _] = scratch.each(kind, &test, counts, &system, &variables)?;
        add(report, &test, "instr.", &system, instructions);
    }
    Ok(())
}

fn add(report: &mut Report, test: &str, unit: &'static str, system: &FileSystem, value: f64) {
    let key = Key { group: "profile".into(), test: test.into(), processes: 1, unit };
    report.add(key, &system.name, value);
}

/// Environment that `forebay run` sets for a program. Valgrind cannot be started by it, because it
/// is a static program.
fn variables(system: &FileSystem) -> Result<Vec<(String, String)>, String> {
    let mut command = programs::command(&system.through, "env");
    let text = programs::output(&mut command, "env")?;
    // Without the mount, so that all calls are the library's.
    let is_mount = |name: &str| name == "FOREBAY_MOUNTED";
    let ours =
        |name: &str| (name.starts_with("FOREBAY_") && !is_mount(name)) || name == "LD_PRELOAD";
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    Ok(pairs.filter(|(name, _)| ours(name)).map(|(a, b)| (a.into(), b.into())).collect())
}

/// A directory for callgrind's files.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Scratch, String> {
        let path = std::env::temp_dir().join(format!("forebay-bench-{}", std::process::id()));
        std::fs::create_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Scratch(path))
    }

    /// Instructions, and steps of repeated ones, of one operation; `test` names the row.
    fn each(
        &self,
        kind: &str,
        test: &str,
        counts: [u64; 2],
        system: &FileSystem,
        variables: &[(String, String)],
    ) -> Result<[f64; 2], String> {
        let few = self.count((kind, test), counts[0], counts[1], system, variables)?;
        let many = self.count((kind, test), counts[1], counts[1], system, variables)?;
        let difference = (counts[1] - counts[0]) as f64;
        let each = |few: u64, many: u64| many.saturating_sub(few) as f64 / difference;
        let instructions = each(few.instructions, many.instructions);
        Ok([instructions, each(few.repeats, many.repeats)])
    }

    /// Instructions of the client in a run of `count` operations; the longest run of this kind has
    /// `count_max`. The test names a new directory.
    fn count(
        &self,
        (kind, test): (&str, &str),
        count: u64,
        count_max: u64,
        system: &FileSystem,
        variables: &[(String, String)],
    ) -> Result<Counts, String> {
        let name = format!("{test}-{count}").replace(' ', "-");
        let file = self.0.join(&name);
        let program =
            std::env::current_exe().map_err(|error| format!("this program's own path: {error}"))?;
        let mut command = Command::new("valgrind");
        command
            .args(["--tool=callgrind", "--smc-check=all", "--compress-strings=no"])
            .args(["--compress-pos=no", "--dump-instr=yes"])
            .arg(format!("--callgrind-out-file={}", file.display()))
            .arg(program)
            .args(["repeat", kind, &format!("{}/{name}", system.directory)])
            .args([count.to_string(), count_max.to_string()])
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null());
        programs::output(&mut command, "valgrind")?;
        let text = std::fs::read_to_string(&file)
            .map_err(|error| format!("{}: {error}", file.display()))?;
        let library = variables.iter().find(|(name, _)| name == "LD_PRELOAD");
        let library = library.map_or("", |(_, path)| path.as_str());
        let image = std::fs::read(library).map_err(|error| format!("{library}: {error}"))?;
        Ok(count_client(&text, library, |address| is_repeated(&image, address)))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Client instructions in a callgrind file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    instructions: u64,
    /// Steps of repeated string instructions.
    repeats: u64,
}

/// Sums the counts of a callgrind file in the object `library` and in code that belongs to no
/// object.
///
/// `ob=` names the object of the following lines, each of which has an address in it, a source line
/// and a count. The line after `calls=` is the inclusive cost of a called function, which is
/// counted where that function is listed.
fn count_client(text: &str, library: &str, is_repeated: impl Fn(u64) -> bool) -> Counts {
    let name = Path::new(library).file_name();
    let (mut in_library, mut in_none, mut is_inclusive) = (false, false, false);
    let mut counts = Counts::default();
    for line in text.lines() {
        if let Some(object) = line.strip_prefix("ob=") {
            in_library = Path::new(object).file_name() == name;
            in_none = object == "???";
        } else if line.starts_with("calls=") {
            is_inclusive = true;
        } else if let Some(rest) = line.strip_prefix("0x") {
            let is_counted = !std::mem::take(&mut is_inclusive) && (in_library || in_none);
            let mut words = rest.split_whitespace();
            let address = words.next().and_then(|word| u64::from_str_radix(word, 16).ok());
            let number = words.nth(1).and_then(|word| word.parse::<u64>().ok());
            let (Some(address), Some(number), true) = (address, number, is_counted) else {
                continue;
            };
            let repeats = in_library && is_repeated(address);
            *(if repeats { &mut counts.repeats } else { &mut counts.instructions }) += number;
        }
    }
    counts
}

/// True if the instruction at `address` of a 64-bit ELF file is a repeated string instruction of
/// x86-64: prefix F2 or F3, an optional REX prefix, and one of twelve opcodes.
fn is_repeated(image: &[u8], address: u64) -> bool {
    let Some(system) = file_offset(image, address) else { return false };
    match image.get(system..) {
        Some([0xf2 | 0xf3, 0x40..=0x4f, code, ..] | [0xf2 | 0xf3, code, ..]) => {
            matches!(code, 0x6c..=0x6f | 0xa4..=0xa7 | 0xaa..=0xaf)
        }
        _ => false,
    }
}

/// File offset of the byte that is loaded at `address`, from the program headers.
fn file_offset(image: &[u8], address: u64) -> Option<usize> {
    const LOAD: u64 = 1;
    let number = |at: u64, bytes: usize| {
        let at = usize::try_from(at).ok()?;
        let mut value = [0; 8];
        value[..bytes].copy_from_slice(image.get(at..at.checked_add(bytes)?)?);
        Some(u64::from_le_bytes(value))
    };
    let (table, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    for index in 0..count {
        let header = table + index * size;
        let (offset, start) = (number(header + 8, 8)?, number(header + 16, 8)?);
        let length = number(header + 32, 8)?;
        if number(header, 4)? == LOAD && (start..start + length).contains(&address) {
            return usize::try_from(address - start + offset).ok();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    //! Parsing of callgrind files, and recognition of repeated instructions.
    use super::*;

    #[test]
    fn instructions_of_the_library_and_its_stubs_count_once() {
        let text = "\
# callgrind format
events: Ir
ob=/usr/lib/libc.so.6
fn=open
0x12 40 4000
cob=/x/libforebay_preload.so
cfn=entry
calls=1 0x7 0
0x12 40 5000
ob=/x/libforebay_preload.so
fl=???
fn=entry
0x7 0 100
0xa 0 10
cfn=walk
calls=2 0x20 0
0xa 0 700
fn=walk
0x20 1 650
0x1e 1 50

ob=???
fn=0x1000
0x0 0 9

ob=/x/forebay-bench
fn=main
0x1 1 1000
totals: 1859
";
        let expected = Counts { instructions: 100 + 650 + 50 + 9, repeats: 10 };
        assert_eq!(
            count_client(text, "/y/libforebay_preload.so", |address| address == 0xa),
            expected
        );
    }

    #[test]
    fn repeated_instructions_are_recognised() {
        // A header of 64 bytes, one program header of 56, then the code.
        let mut image = vec![0; 64 + 56];
        image[32] = 64;
        image[54] = 56;
        image[56] = 1;
        image[64] = 1;
        image[64 + 8] = 120;
        image[64 + 16..64 + 18].copy_from_slice(&0x1000u16.to_le_bytes());
        image[64 + 32] = 9;
        // rep stos, rep movs of 8 bytes, and an SSE move that has the same prefix.
        image.extend([0xf3, 0xaa, 0xf3, 0x48, 0xa5, 0xf3, 0x0f, 0x6f, 0xaa]);
        let found: Vec<u64> =
            (0xfff..0x1010).filter(|&address| is_repeated(&image, address)).collect();
        assert_eq!(found, [0x1000, 0x1002]);
        assert!(!is_repeated(&image[..121], 0x1000) && !is_repeated(&[], 0));
    }
}
