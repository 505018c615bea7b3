//! Passwords of PostgreSQL, from a file that only its owner reads, in the form of libpq: lines
//! `host:port:database:user:password`, in which `*` is any, and `\` takes the meaning from `:` and `\`.

use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Largest file that is read.
const BYTES_MAX: u64 = 1 << 20;

/// The name of the user of this process, as far as the environment has it.
pub(crate) fn login() -> Option<String> {
    ["USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok()).filter(|it| !it.is_empty())
}

/// The file of this user.
pub(crate) fn path() -> Option<PathBuf> {
    let named = std::env::var_os("PGPASSFILE").filter(|path| !path.is_empty()).map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".pgpass"));
    named.or_else(home)
}

/// The password for host, port, database and user; `None`: there is none in the file, or no file.
///
/// # Errors
/// The file cannot be read, or others can read it.
pub(crate) fn find(path: &Path, connection: [&str; 4]) -> Result<Option<String>, String> {
    Ok(read(path)?.and_then(|text| matching(&text, connection)))
}

fn read(path: &Path) -> Result<Option<String>, String> {
    let shown = path.display();
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("cannot read the passwords: {shown}: {error}")),
    };
    let found = file.metadata().map_err(|error| format!("{shown}: {error}"))?;
    if !found.is_file() || found.mode() & 0o077 != 0 {
        return Err(format!("cannot use the passwords: {shown}: others can read it: chmod 600"));
    }
    let mut text = String::new();
    let read = file.take(BYTES_MAX).read_to_string(&mut text);
    // The error of text that is no UTF-8 repeats none of it.
    read.map_err(|error| format!("cannot read the passwords: {shown}: {error}"))?;
    Ok(Some(text))
}

fn matching(text: &str, connection: [&str; 4]) -> Option<String> {
    text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let mut fields = fields(line).into_iter();
        let is_match = connection
            .iter()
            .all(|expected| fields.next().is_some_and(|field| field == "*" || field == *expected));
        fields.next().filter(|password| is_match && !password.is_empty())
    })
}

/// The fields of a line.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        let taken = match letter {
            ':' if fields.len() < 5 => {
                fields.push(String::new());
                continue;
            }
            '\\' => letters.next().unwrap_or('\\'),
            other => other,
        };
        if let Some(last) = fields.last_mut() {
            last.push(taken);
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn the_first_line_that_matches_has_the_password() {
        let text =
            "# a remark\nother:5432:*:me:no\ndb:*:history:me:a\\:b\\\\c:d\n*:*:*:*:last\nshort:1\n";
        let of = |host: &str, user: &str| matching(text, [host, "5432", "history", user]);
        assert_eq!(of("db", "me").as_deref(), Some("a:b\\c:d"));
        assert_eq!(of("db", "you").as_deref(), Some("last"));
        assert_eq!(matching("db:5432:history:me:\n", ["db", "5432", "history", "me"]), None);
        assert_eq!(matching("", ["db", "5432", "history", "me"]), None);
    }

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("passwords");
        assert_eq!(read(&path), Ok(None));
        std::fs::write(&path, "*:*:*:*:secret-word").unwrap();
        let mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode));
        mode(0o604).unwrap();
        let refused = read(&path).unwrap_err();
        assert!(refused.ends_with("chmod 600") && !refused.contains("secret"), "{refused}");
        mode(0o600).unwrap();
        assert_eq!(read(&path).unwrap().as_deref(), Some("*:*:*:*:secret-word"));
    }
}
