//! The program that end-to-end tests run on an instance: it reads one command per line from
//! standard input, executes it with the standard library's calls, and answers with one line: `ok
//! ..` or `err ERRNO`. Only the tests judge the answers.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, Error, ErrorKind, Result, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use testkit::{content, digest};

fn main() {
    let mut files = BTreeMap::new();
    let mut output = io::stdout().lock();
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split(' ').collect();
        let answer = match perform(&mut files, &words) {
            Ok(answer) => answer,
            Err(error) => format!("err {}", error.raw_os_error().unwrap_or(-1)),
        };
        if writeln!(output, "{answer}").and_then(|()| output.flush()).is_err() {
            return;
        }
    }
}

fn number(word: &str) -> Result<u64> {
    word.parse().map_err(|_| Error::from(ErrorKind::InvalidInput))
}

fn perform(files: &mut BTreeMap<String, File>, words: &[&str]) -> Result<String> {
    let done = |()| "ok".to_owned();
    match *words {
        ["hello"] => Ok("ok".to_owned()),
        ["pid"] => Ok(std::process::id().to_string()),
        // allocate LENGTH: allocates and touches memory of this process; answers with the
        // microseconds taken
        ["allocate", length] => {
            let length = usize::try_from(number(length)?).unwrap_or(0);
            let begun = std::time::Instant::now();
            let memory = std::hint::black_box(vec![1u8; length]);
            let micros = begun.elapsed().as_micros();
            Ok(format!("ok {} {micros}", memory.len()))
        }
        // open HANDLE PATH MODES: r, w, a(ppend), c(reate), n(ew), t(runcate)
        ["open", handle, path, modes] => {
            let is = |mode| modes.contains(mode);
            let mut options = OpenOptions::new();
            options.read(is('r')).write(is('w')).append(is('a'));
            options.create(is('c')).create_new(is('n')).truncate(is('t'));
            files.insert(handle.to_owned(), options.open(path)?);
            Ok("ok".to_owned())
        }
        ["close", handle] => {
            files.remove(handle);
            Ok("ok".to_owned())
        }
        ["rename", from, to] => fs::rename(from, to).map(done),
        ["link", from, to] => fs::hard_link(from, to).map(done),
        ["symlink", to, at] => std::os::unix::fs::symlink(to, at).map(done),
        ["unlink", path] => fs::remove_file(path).map(done),
        ["mkdir", path] => fs::create_dir(path).map(done),
        ["rmdir", path] => fs::remove_dir(path).map(done),
        ["list", path] => list(path),
        ["chmod", path, mode] => {
            let mode = u32::from_str_radix(mode, 8).map_err(|_| ErrorKind::InvalidInput)?;
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).map(done)
        }
        ["stat", path] => fs::symlink_metadata(path).map(|found| describe(&found)),
        // put PATH SEED LENGTH: writes a whole file by its name
        ["put", path, seed, length] => {
            fs::write(path, content(number(seed)?, 0, number(length)?)).map(done)
        }
        ["get", path] => {
            fs::read(path).map(|bytes| format!("ok {} {}", bytes.len(), digest(&bytes)))
        }
        [word, handle, ref rest @ ..] => {
            let file = files.get_mut(handle).ok_or(ErrorKind::NotFound)?;
            on_file(file, word, rest)
        }
        _ => Err(ErrorKind::InvalidInput.into()),
    }
}

fn on_file(file: &mut File, word: &str, rest: &[&str]) -> Result<String> {
    let done = |()| "ok".to_owned();
    match (word, rest) {
        ("write", [seed, offset, length]) => {
            let offset = number(offset)?;
            file.write_all_at(&content(number(seed)?, offset, number(length)?), offset).map(done)
        }
        ("append", [seed, length]) => {
            file.write_all(&content(number(seed)?, 0, number(length)?)).map(done)
        }
        ("read", [offset, length]) => {
            let mut bytes = vec![0; usize::try_from(number(length)?).unwrap_or(0)];
            let count = read_at(file, &mut bytes, number(offset)?)?;
            Ok(format!("ok {count} {}", digest(&bytes[..count])))
        }
        ("truncate", [length]) => file.set_len(number(length)?).map(done),
        ("sync", []) => file.sync_all().map(done),
        ("fstat", []) => file.metadata().map(|found| describe(&found)),
        _ => Err(ErrorKind::InvalidInput.into()),
    }
}

fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> Result<usize> {
    let mut count = 0;
    while count < bytes.len() {
        match file.read_at(&mut bytes[count..], offset + count as u64)? {
            0 => break,
            more => count += more,
        }
    }
    Ok(count)
}

/// The attributes that do not depend on time or owner.
fn describe(found: &fs::Metadata) -> String {
    // Size and link count of a directory depend on the file system.
    let (links, size) = if found.is_dir() { (0, 0) } else { (found.nlink(), found.len()) };
    format!("ok {:o} {links} {size}", found.mode())
}

fn list(path: &str) -> Result<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(format!("ok {}", names.join(" ")))
}
