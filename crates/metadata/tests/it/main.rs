//! Tests of the namespace: services without I/O, driven by `sim` in worlds of one or several
//! services with lost, duplicated and late messages, crashes and a virtual clock. All random
//! choices come from a seed that a failure prints.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "seeds, to repeat a run")]
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "seeds from the environment, sets without order"
)]

mod sim;

mod model;
mod renames;
mod rules;

mod acls;
mod births;
mod contents;
mod directories;
mod homes;
mod local_ops;
mod locks;
mod names;
mod pools;
mod quotas;
mod rescue;
mod size_coherence;
mod successors;

mod backing;
mod kernel_cache;

mod bytes;
