//! Tests that take minutes: public suites, kills and stops at random moments, many daemons. `make
//! soak` runs them; `make test` leaves them out.

mod advice;
mod fsx;
mod kills;
mod lending_group;
mod many_daemons;
mod pjdfstest;
mod programs;
mod stops;
mod stress;
mod suites;
