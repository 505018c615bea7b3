//! The core of quality of service, in simulation: virtual time, modelled devices, and faults.

mod device;
mod dirty;
mod entitlement;
mod exchange;
mod globals;
mod incoming;
mod kind_queue;
mod limits;
mod pools;
mod rules;
mod sets;
mod shares;
