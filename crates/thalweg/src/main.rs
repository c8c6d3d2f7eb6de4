//! The `thalweg` command: the server, a client for servers and directories, tools for logs, and the benchmarks.
//!
//! Owns: the command line, its output, and the exit codes. Does not own: any behaviour of the database. Client commands
//! use the HTTP API: either the API of a server (`--server`), or the API over a directory that this process opens
//! itself (`--data`). See [`session`].
//!
//! In builds with the feature `alloc-profile`, the allocator samples allocations while a client records: see
//! `alloc_profile`.
//!
//! ```text
//! cli ──┬── commands ──┬── session ── args
//!       │              └── figures, render, retry, span, failure, log_fields, permissions,
//!       │                  private_dir, unfinished_file, heap, offline
//!       └── help, man
//! ```

#[cfg(any(test, feature = "alloc-profile"))]
mod alloc_profile;
mod args;
mod cli;
mod commands;
mod failure;
mod figures;
mod heap;
mod help;
mod log_fields;
mod man;
mod offline;
mod permissions;
mod private_dir;
mod render;
mod retry;
mod session;
mod span;
mod stamp;
mod unfinished_file;

use std::process::ExitCode;

#[cfg(not(any(test, feature = "alloc-profile")))]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[cfg(any(test, feature = "alloc-profile"))]
#[global_allocator]
static ALLOCATOR: alloc_profile::SamplingAllocator = alloc_profile::SamplingAllocator;

fn main() -> ExitCode {
    #[cfg(feature = "alloc-profile")]
    alloc_profile::listen();
    thalweg_types::build::set(stamp::BUILD);
    let (command, json) = cli::parse();
    match cli::run(command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            render::failure(&failure, json);
            ExitCode::from(failure.exit.code())
        }
    }
}
