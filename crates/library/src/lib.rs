//! `libforebay_preload.so`, which LD_PRELOAD loads into applications: the crate `preload`, with its
//! constructor, in a form that is optimized across crates.
//!
//! Cargo leaves that out for `preload` itself, which programs and tests link, too: functions of other
//! crates, however short, would then be calls.
#![forbid(unsafe_code)]

extern crate preload as _;
