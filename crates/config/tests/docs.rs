//! `docs/settings.md` says what the table says. `UPDATE_DOCS=1` writes it anew.

use std::path::Path;

#[test]
fn the_page_is_that_of_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/settings.md");
    let page = config::docs::page();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &page).expect("docs/settings.md is written");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == page, "docs/settings.md is old: UPDATE_DOCS=1 cargo test -p config writes it");
}
