//! A table is read as it was stored; one that is truncated, changed, of another library, or
//! writable by others is not trusted.

use std::os::unix::fs::PermissionsExt;

use super::*;

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("forebay-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("scratch directory");
        Self(path)
    }

    fn load(&self, image: &Image<'_>) -> Option<Table> {
        load(self.0.as_os_str().as_bytes(), image)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn each_image(mut test: impl FnMut(&Image<'static>)) {
    let mut seen = 0;
    image::loaded(&mut |image| {
        seen += 1;
        test(image);
    });
    assert_eq!(seen, 2, "libc and the loader");
}

#[test]
fn prepared_tables_are_loaded_and_equal_a_sweep() {
    let scratch = Scratch::new("prepared");
    let paths = prepare(&scratch.0).expect("prepare");
    assert_eq!(paths.len(), 2);
    assert_eq!(prepare(&scratch.0).expect("again"), paths);
    for path in &paths {
        let mode = std::fs::metadata(path).expect("table").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    each_image(|image| {
        let table = scratch.load(image).expect("table of a loaded image");
        let swept: Vec<Site> = sweep(image).sites().collect();
        assert_eq!(table.sites().collect::<Vec<_>>(), swept);
    });
}

#[test]
fn damaged_tables_are_ignored() {
    let scratch = Scratch::new("spoilt");
    each_image(|image| {
        let path = store(&scratch.0, image, &sweep(image)).expect("store");
        let good = std::fs::read(&path).expect("read");
        let put = |content: &[u8]| std::fs::write(&path, content).expect("write");
        assert!(scratch.load(image).is_some());
        for at in (0..good.len()).step_by(37).chain([0, 8, 12, 16, 48, 56, good.len() - 1]) {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            put(&bad);
            assert!(scratch.load(image).is_none(), "changed byte at={at}");
        }
        for length in [0, 1, 63, 64, 65, good.len() - 16, good.len() - 1] {
            put(&good[..length]);
            assert!(scratch.load(image).is_none(), "length={length}");
        }
        // A valid checksum does not help a table that contradicts the bytes.
        let mut sites: Vec<Site> = sweep(image).sites().collect();
        let mut lie = good.clone();
        sites[0].address += 1;
        lie[HEADER_BYTES..HEADER_BYTES + 4].copy_from_slice(&sites[0].address.to_le_bytes());
        let sum = checksum(&lie).expect("long enough");
        lie[56..64].copy_from_slice(&sum.to_le_bytes());
        put(&lie);
        assert!(scratch.load(image).is_none(), "address that does not fit");
        put(&good);
        assert!(scratch.load(image).is_some());
        let mode = std::fs::Permissions::from_mode(0o620);
        std::fs::set_permissions(&path, mode).expect("chmod");
        assert!(scratch.load(image).is_none(), "writable by the group");
    });
}

#[test]
fn the_file_and_the_loaded_library_have_the_same_sites() {
    each_image(|image| {
        let file = std::fs::read(std::ffi::OsStr::from_bytes(image.path.to_bytes())).expect("file");
        let other = Image::from_file(image.path, &file).expect("image");
        assert_eq!(other.build_id, image.build_id);
        assert!(image.build_id.is_some());
        let (one, two) = (scan::scan(image), scan::scan(&other));
        assert_eq!(one.sites, two.sites);
    });
}
