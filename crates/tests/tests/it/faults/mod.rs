//! Faults of hosts and devices (docs/semantics/faults.md) that the whole instance has. Faults of a
//! single process or file are in `crash`.

mod control_group;
