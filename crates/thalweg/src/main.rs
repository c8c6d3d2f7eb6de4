//! The `thalweg` command: the server, a client for servers and directories, tools for logs, and the benchmarks.
//!
//! Owns: the command line, its output, and the exit codes. Does not own: any behaviour of the database. Client commands
//! use the HTTP API, either of a server (`--server`) or in this process over a directory (`--data`): see [`session`].
//!
//! ```text
//! cli ──┬── commands ──┬── session ── args
//!       │              └── figures, render, retry, span, failure, log_fields, permissions,
//!       │                  unfinished_file
//!       └── help, man
//! ```

mod args;
mod cli;
mod commands;
mod failure;
mod figures;
mod help;
mod log_fields;
mod man;
mod permissions;
mod render;
mod retry;
mod session;
mod span;
mod stamp;
mod unfinished_file;

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
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
