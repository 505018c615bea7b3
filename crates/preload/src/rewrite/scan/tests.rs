//! On this machine's libc and loader every selected site can be patched, and windows do not
//! overlap.

use super::*;
use crate::entry::select;
use crate::rewrite::image;

#[test]
fn all_selected_sites_of_this_machine_can_be_patched() {
    let mut total = 0;
    image::loaded(&mut |image| {
        let found = scan(image);
        total += found.sites.len();
        let stays = found.sites.iter().filter(|site| site.stays()).count();
        let unknown = found.sites.iter().filter(|site| site.number == Site::UNKNOWN).count();
        let selected = found.sites.iter().filter(|site| select::selected(site.number)).count();
        println!(
            "{:?}: sites={} stays={stays} unknown={unknown} selected={selected} refused={:x?}",
            image.path,
            found.sites.len(),
            found.refused
        );
        for (address, number) in &found.refused {
            assert!(!select::selected(*number), "address={address:#x} number={number}");
        }
        assert!(found.refused.len() <= 4, "refused={:x?}", found.refused);
        for pair in found.sites.windows(2) {
            let end = pair[0].address + u32::from(pair[0].length.max(pair[0].call + 2));
            assert!(pair[1].address >= end, "overlap: {pair:x?}");
        }
    });
    assert!(total >= 300, "total={total}");
}
