//! What shows only in a process of its own: the memory of idle connections, and that nothing panics. One test at a time.

#[path = "../support/mod.rs"]
mod support;

mod clients;
mod native_idle;
mod native_large;
mod native_script;
mod native_scripts;
mod redis_idle;
mod redis_script;
mod redis_scripts;
mod scripts;

/// Held by who looks at the process.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
