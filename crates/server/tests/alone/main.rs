//! Tests that need a process of their own: the memory of idle connections, and the absence of panics. They run one at a
//! time.

#![allow(unreachable_pub, reason = "a test program has no interface")]

#[path = "../support/mod.rs"]
mod support;

mod clients;
mod log_lines;
mod native_idle;
mod native_large;
mod native_script;
mod native_scripts;
mod redis_idle;
mod redis_script;
mod redis_scripts;
mod scripts;

/// Lock of a test that observes the process.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
