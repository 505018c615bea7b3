//! Measurements by simulation, in virtual time: replacement policies on traces, and adaptive
//! watermarks on a model of two tiers. Everything else about a target is tested in `src/tests`.

mod replacement;

mod watermarks;
