//! Daemons that agree on which of them are alive, over hosts that are network namespaces.

mod membership;
