//! Instructions of each kind of operation in the client, counted by callgrind.
//!
//! A run of few operations and one of many differ by the operations alone; the difference divided by
//! their number is what one takes. Counted are instructions in the preload library and in the stubs
//! that it makes, which belong to no file; those of the program and of libc around it are not.
//! Callgrind counts each step of a repeated string instruction (`rep movs`, `rep stos`), of which a
//! processor does many at a time: these steps are a row of their own.
//! Valgrind slows the client down and not the daemon, so an answer is there when the client first
//! looks for it: waiting is hardly in the numbers. They vary little from run to run, and not with what
//! else the machine does.

use crate::instance::Instance;
use crate::report::{Key, Report};
use crate::settings::{Place, Settings};
use crate::worker::repeat::KINDS;
use crate::{crew, external, interrupt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Valgrind keeps a record for each byte that is mapped.
const MEMORY: &str = "96MiB";

/// Measures all kinds on an instance of one daemon.
pub(crate) fn measure(settings: &Settings, report: &mut Report) -> Result<(), String> {
    if !external::installed("valgrind") {
        report.absent("profile", "needs valgrind");
        return Ok(());
    }
    let instance =
        Instance::start_with(&settings.forebay, 1, "profile", &[("FOREBAY_MEMORY", MEMORY)])?;
    let place = instance.place("forebay-1");
    let variables = variables(&place)?;
    let scratch = Scratch::new()?;
    // Operations of the short and of the long run; by default 200 and 1200.
    let few = settings.files.div_ceil(50);
    let counts = [few, few + settings.files.div_ceil(10)];
    for kind in KINDS {
        interrupt::check()?;
        let few = scratch.count(kind, counts[0], counts[1], &place, &variables)?;
        let many = scratch.count(kind, counts[1], counts[1], &place, &variables)?;
        let difference = (counts[1] - counts[0]) as f64;
        let each = |few: u64, many: u64| many.saturating_sub(few) as f64 / difference;
        let mut add = |test: &str, unit: &'static str, value: f64| {
            let key = Key { group: "profile".into(), test: test.into(), processes: 1, unit };
            report.add(key, &place.name, value);
        };
        add(kind, "instr.", each(few.instructions, many.instructions));
        add(&format!("{kind} rep"), "steps", each(few.repeats, many.repeats));
    }
    Ok(())
}

/// What `forebay run` sets for a program: valgrind itself is a static program, which it refuses.
fn variables(place: &Place) -> Result<Vec<(String, String)>, String> {
    let mut command = crew::command(&place.through, "env");
    let text = external::output(&mut command, "env")?;
    let ours = |name: &str| name.starts_with("FOREBAY_") || name == "LD_PRELOAD";
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

    /// What the client did in a run of `count` operations, where another does `count_max`.
    fn count(
        &self,
        kind: &str,
        count: u64,
        count_max: u64,
        place: &Place,
        variables: &[(String, String)],
    ) -> Result<Counts, String> {
        let file = self.0.join(format!("{kind}-{count}"));
        let program =
            std::env::current_exe().map_err(|error| format!("this program's own path: {error}"))?;
        let mut command = Command::new("valgrind");
        command
            .args(["--tool=callgrind", "--smc-check=all", "--compress-strings=no"])
            .args(["--compress-pos=no", "--dump-instr=yes"])
            .arg(format!("--callgrind-out-file={}", file.display()))
            .arg(program)
            .args(["repeat", kind, &format!("{}/{kind}-{count}", place.directory)])
            .args([count.to_string(), count_max.to_string()])
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null());
        external::output(&mut command, "valgrind")?;
        let text = std::fs::read_to_string(&file)
            .map_err(|error| format!("{}: {error}", file.display()))?;
        let library = variables.iter().find(|(name, _)| name == "LD_PRELOAD");
        let library = library.map_or("", |(_, path)| path.as_str());
        let image = std::fs::read(library).map_err(|error| format!("{library}: {error}"))?;
        Ok(in_client(&text, library, |address| is_repeated(&image, address)))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What a callgrind file counts in the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    instructions: u64,
    /// Steps of repeated string instructions.
    repeats: u64,
}

/// What a callgrind file counts in the object `library` and in code of no object.
///
/// `ob=` names the object of the lines that follow; such a line is an address in it, a line of the
/// source, and a number. The line behind `calls=` is what a called function took in all, and is
/// counted there.
fn in_client(text: &str, library: &str, is_repeated: impl Fn(u64) -> bool) -> Counts {
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
/// x86-64: the prefix F2 or F3, perhaps one of REX, and one of twelve codes.
fn is_repeated(image: &[u8], address: u64) -> bool {
    let Some(place) = place_in_file(image, address) else { return false };
    match image.get(place..) {
        Some([0xf2 | 0xf3, 0x40..=0x4f, code, ..] | [0xf2 | 0xf3, code, ..]) => {
            matches!(code, 0x6c..=0x6f | 0xa4..=0xa7 | 0xaa..=0xaf)
        }
        _ => false,
    }
}

/// Where the byte that is loaded at `address` lies in the file: the program headers say it.
fn place_in_file(image: &[u8], address: u64) -> Option<usize> {
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
    //! Reading callgrind's file, and the code that it is about.
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
        let wanted = Counts { instructions: 100 + 650 + 50 + 9, repeats: 10 };
        assert_eq!(in_client(text, "/y/libforebay_preload.so", |address| address == 0xa), wanted);
    }

    #[test]
    fn repeated_instructions_are_found_in_a_program() {
        // A header of 64 bytes, one program header of 56, then the code.
        let mut image = vec![0; 64 + 56];
        image[32] = 64;
        image[54] = 56;
        image[56] = 1;
        image[64] = 1;
        image[64 + 8] = 120;
        image[64 + 16..64 + 18].copy_from_slice(&0x1000u16.to_le_bytes());
        image[64 + 32] = 9;
        // rep stos, rep movs of 8 bytes, an SSE move that has the same prefix.
        image.extend([0xf3, 0xaa, 0xf3, 0x48, 0xa5, 0xf3, 0x0f, 0x6f, 0xaa]);
        let found: Vec<u64> =
            (0xfff..0x1010).filter(|&address| is_repeated(&image, address)).collect();
        assert_eq!(found, [0x1000, 0x1002]);
        assert!(!is_repeated(&image[..121], 0x1000) && !is_repeated(&[], 0));
    }
}
