//! The protocol's bytes against its document. What is allocated is counted in `../allocation.rs`, alone.

mod common;
mod samples;

mod document;
mod golden;
mod robustness;
