//! The `thalweg` command: the server, a client for servers and directories, tools for logs, and the bench.
//!
//! Owns: the command line, its output, and the exit codes. Does not own: any behaviour of the database. Every command
//! is a thin caller of the engine (`--data`) or of a server's HTTP API (`--server`) through one trait,
//! [`target::Target`], so that both give the same answers.

mod cli;
mod commands;
mod failure;
mod render;
mod span;
mod target;

use std::process::ExitCode;

use clap::Parser;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    let json = cli.command.wants_json();
    match commands::run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.report(json);
            ExitCode::from(failure.exit.code())
        }
    }
}
