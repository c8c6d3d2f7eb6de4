//! Behaviour that users see. It is the same on every backend, over clean reopens and kills.
//!
//! There is one file per concern. A behaviour is a function of a [`support::Node`]. The macro `on_every_backend!`
//! makes a test of it for each backend, so a test's name contains both: `basics::a_key_holds_its_last_value::lsm`. To
//! add a behaviour, write `fn it_behaves(node: &mut Node)` and add its name to the list at the end of the file.

#![allow(unreachable_pub, reason = "a test program has no interface")]
#![allow(clippy::print_stdout, reason = "seeds are printed")]

#[path = "../common/mod.rs"]
mod common;
#[macro_use]
mod support;

mod backends;
mod backups;
mod basics;
mod groups;
mod history;
mod kv;
mod optimistic;
mod past;
mod push;
mod ranges;
mod reading_transactions;
mod recipes;
mod redis;
mod redis_streams;
mod snapshots;
mod streams;
mod time;
