#!/usr/bin/env bash
# rustc: compile, link and run a program that uses std::fs on the file system.
. "${BASH_SOURCE[0]%/*}/lib.sh"

need rustc
rustc --version >/dev/null 2>&1 || { echo "not installed: rustc"; exit 77; }
cd "$D"
cat >main.rs <<'END'
use std::{fs, io::{Read, Seek, SeekFrom, Write}};
fn main() -> std::io::Result<()> {
    fs::create_dir_all("made/by/rust")?;
    let mut file = fs::OpenOptions::new().read(true).write(true).create_new(true).open("made/by/rust/file")?;
    for i in 0..1000u32 { file.write_all(&i.to_le_bytes())?; }
    file.seek(SeekFrom::Start(4 * 999))?;
    let mut last = [0; 4];
    file.read_exact(&mut last)?;
    fs::copy("made/by/rust/file", "copy")?;
    fs::rename("made", "renamed")?;
    let names = fs::read_dir("renamed/by/rust")?.count();
    println!("{} {} {} {}", u32::from_le_bytes(last), fs::metadata("copy")?.len(), names, fs::read("copy")? == fs::read("renamed/by/rust/file")?);
    fs::remove_dir_all("renamed")
}
END
rustc -C incremental="$D/incremental" -o program main.rs
equal "$(./program)" "999 4000 1 true"
rm copy
echo '// more' >>main.rs
rustc -C incremental="$D/incremental" -o program main.rs
equal "$(./program)" "999 4000 1 true"
