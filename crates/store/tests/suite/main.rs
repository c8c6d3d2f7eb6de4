//! The backends, alike and when the disk fails; what the state machine does with them is in `../machine`.

mod backend_support;

mod backend_faults;
mod backend_suite;
mod store_faults;
