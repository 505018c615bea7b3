//! Whether the preload library can be loaded into a program. `run` checks this before it starts a
//! program, because the program itself would only report "no such file".

use crate::failure::{Failure, NOT_FOUND, NOT_RUNNABLE, Result};
use object::read::elf::{FileHeader, ProgramHeader as _};
use object::{Endianness, FileKind, Object as _, ReadCache, elf};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// Most interpreters of interpreters that the kernel follows.
const INTERPRETERS_MAX: u32 = 4;
/// Bytes of a script's first line that the kernel reads.
const LINE_BYTES: usize = 256;
/// Machine of the programs into which the library can be loaded: the one it is built for.
const MACHINE: u16 = if cfg!(target_arch = "aarch64") { elf::EM_AARCH64 } else { elf::EM_X86_64 };

/// Reasons for which the library does not fit a program.
const SMALL: &str = "is a 32-bit program";
const OTHER: &str = "is a program for another machine";

/// The file that a shell would run for `name`.
///
/// # Errors
/// There is none (127), or none that is executable (126).
pub(crate) fn find(name: &OsStr) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    let candidates: Vec<PathBuf> = match name.as_bytes().contains(&b'/') {
        true => vec![name.into()],
        false => std::env::split_paths(&path).map(|dir| dir.join(name)).collect(),
    };
    let mut found = candidates.iter().filter_map(|file| Some((file, fs::metadata(file).ok()?)));
    let is_runnable = |mode: u32| mode & 0o111 != 0;
    let mut refused = None;
    let chosen = found.find(|(file, what)| {
        let fits = what.is_file() && is_runnable(what.mode());
        if !fits {
            refused.get_or_insert((*file).clone());
        }
        fits
    });
    match (chosen, refused) {
        (Some((file, _)), _) => Ok(file.clone()),
        (None, Some(file)) => {
            let text = format!("cannot run {}: it is not an executable file", file.display());
            Err(Failure::with_code(NOT_RUNNABLE, text))
        }
        (None, None) => {
            let place = if name.as_bytes().contains(&b'/') { "here" } else { "in PATH" };
            let text = format!("command not found: {}: not {place}", name.display());
            Err(Failure::with_code(NOT_FOUND, text))
        }
    }
}

/// Refuses a program that would not see the instance at `at` without a mount, with the reason and
/// `advice`.
///
/// # Errors
/// The program would not see the instance; exit code 126.
pub(crate) fn check(path: &Path, at: &str, advice: &str) -> Result<()> {
    let Some((file, reason)) = why_not(path, 0) else { return Ok(()) };
    let text = format!(
        "{} {reason}: the preload library cannot be loaded into it, so it would not see {at}: {advice}",
        file.display()
    );
    Err(Failure::with_code(NOT_RUNNABLE, text))
}

/// True if the dynamic linker of the program would complain about the library.
pub(crate) fn is_foreign(path: &Path) -> bool {
    why_not(path, 0).is_some_and(|(_, reason)| [SMALL, OTHER].contains(&reason))
}

/// Why the library cannot be loaded, and into which file: for a script, its interpreter.
fn why_not(path: &Path, depth: u32) -> Option<(PathBuf, &'static str)> {
    let because = |why: &'static str| Some((path.to_owned(), why));
    // A file that cannot be read is left to the kernel.
    let file = File::open(path).ok()?;
    let what = file.metadata().ok()?;
    if what.mode() & 0o4000 != 0 && what.uid() != rustix::process::geteuid().as_raw() {
        return because("runs as another user (set-uid)");
    }
    if what.mode() & 0o2000 != 0 && what.gid() != rustix::process::getegid().as_raw() {
        return because("runs as another group (set-gid)");
    }
    let is_root = rustix::process::geteuid().is_root();
    if !is_root && rustix::fs::getxattr(path, c"security.capability", &mut [0; 64]).is_ok() {
        return because("has capabilities of its own (see getcap)");
    }
    let mut head = [0; LINE_BYTES];
    let length = (&file).take(LINE_BYTES as u64).read(&mut head).ok()?;
    if let Some(line) = head.get(..length)?.strip_prefix(b"#!") {
        if depth == INTERPRETERS_MAX {
            return None;
        }
        return why_not(&interpreter(line)?, depth + 1);
    }
    elf_reason(&file).and_then(because)
}

/// The interpreter of a script with this first line; for `env`, the program that `env` runs.
fn interpreter(line: &[u8]) -> Option<PathBuf> {
    let line = line.split(|&byte| byte == b'\n').next()?;
    let words = line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
    let mut words = words.map(OsStr::from_bytes);
    let first = Path::new(words.next()?);
    if first.file_name() != Some(OsStr::new("env")) {
        return Some(first.to_owned());
    }
    let is_other = |word: &&OsStr| {
        let bytes = word.as_bytes();
        !bytes.starts_with(b"-") && !bytes.contains(&b'=')
    };
    find(words.find(is_other)?).ok()
}

fn elf_reason(file: &File) -> Option<&'static str> {
    let mut magic = [0; 4];
    file.read_exact_at(&mut magic, 0).ok()?;
    if magic != *b"\x7fELF" {
        return None;
    }
    let cache = ReadCache::new(file);
    match FileKind::parse(&cache) {
        Ok(FileKind::Elf64) => {}
        Ok(FileKind::Elf32) => return Some(SMALL),
        // The kernel reports the reason.
        _ => return None,
    }
    let header = elf::FileHeader64::<Endianness>::parse(&cache).ok()?;
    let endian = header.endian().ok()?;
    if header.e_machine(endian) != MACHINE {
        return Some(OTHER);
    }
    let segments = header.program_headers(endian, &cache).ok()?;
    if !segments.iter().any(|segment| segment.p_type(endian) == elf::PT_INTERP) {
        return Some("is statically linked");
    }
    let file = object::File::parse(&cache).ok()?;
    let is_go = file.section_by_name(".go.buildinfo").is_some();
    is_go.then_some("is a Go program, which makes its own system calls")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    /// An ELF header without any segment: the smallest static program.
    fn elf_header(class: u8, machine: u16) -> Vec<u8> {
        let mut header = vec![0; 64];
        header[..8].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, 1, 1, 0]);
        header[16] = 2;
        header[18..20].copy_from_slice(&machine.to_le_bytes());
        header[20] = 1;
        header[52] = 64;
        header[54] = 56;
        header
    }

    #[test]
    fn programs_are_accepted_or_refused_with_the_reason() {
        let place = tempfile::tempdir().expect("a directory");
        let file = |name: &str, bytes: &[u8]| {
            let path = place.path().join(name);
            fs::write(&path, bytes).expect("written");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("chmod");
            path
        };
        let reason = |path: &Path| why_not(path, 0).map(|(_, reason)| reason);
        assert_eq!(reason(Path::new("/bin/sh")), None);
        assert_eq!(reason(&file("script", b"#!/bin/sh\n")), None);
        assert_eq!(reason(&file("env", b"#! /usr/bin/env -S sh -e\n")), None);
        assert_eq!(reason(&file("text", b"echo\n")), None);
        let fixed = file("static", &elf_header(2, MACHINE));
        assert_eq!(reason(&fixed), Some("is statically linked"));
        let (other, small) = (file("other", &elf_header(2, 8)), file("small", &elf_header(1, 3)));
        assert_eq!([&other, &small].map(|path| reason(path)), [Some(OTHER), Some(SMALL)]);
        assert_eq!([&fixed, &other, &small].map(|path| is_foreign(path)), [false, true, true]);
        let line = format!("#!{}\n", fixed.display());
        let failure = check(&file("by", line.as_bytes()), "/forebay", "say so");
        let failure = failure.expect_err("refused");
        let expected = format!(
            "{} is statically linked: the preload library cannot be loaded into it, so it would not see \
             /forebay: say so",
            fixed.display()
        );
        assert_eq!((failure.text(), failure.code()), (&*expected, NOT_RUNNABLE));
        let itself = place.path().join("loop");
        let line = format!("#!{}\n", itself.display());
        assert_eq!(reason(&file("loop", line.as_bytes())), None);
    }

    #[test]
    fn commands_are_found_as_a_shell_finds_them() {
        assert!(find(OsStr::new("sh")).expect("there").is_absolute());
        let code = |name: &str| find(OsStr::new(name)).expect_err(name).code();
        assert_eq!(code("no-such-command-here"), NOT_FOUND);
        assert_eq!(code("/no/such/command"), NOT_FOUND);
        assert_eq!(code("/etc/passwd"), NOT_RUNNABLE);
        assert_eq!(code("/tmp"), NOT_RUNNABLE);
    }
}
