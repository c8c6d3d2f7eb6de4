//! Subjects, queues and caches at their public face. What the allocator gives out is counted in `../memory.rs`, alone.

#![allow(clippy::print_stdout, reason = "seeds and figures are printed")]

#[path = "../common/mod.rs"]
mod common;

mod bounds;
mod cache;
mod groups;
mod matching;
mod queues;
mod threads;
