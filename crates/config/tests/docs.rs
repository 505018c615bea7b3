//! `docs/settings.md` and `docs/metrics.md` are generated from the tables. `UPDATE_DOCS=1` writes
//! them.
#![expect(clippy::disallowed_methods, reason = "compares the code with pages of the documentation")]

use std::path::Path;

fn check(name: &str, page: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, page).expect("the page is written");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == page,
        "docs/{name} is out of date: UPDATE_DOCS=1 cargo test -p config writes it"
    );
}

#[test]
fn the_pages_are_generated_from_the_tables() {
    check("settings.md", &config::docs::page());
    check("metrics.md", &config::metrics::page());
}
