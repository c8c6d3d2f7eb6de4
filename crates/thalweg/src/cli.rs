//! The command line: the list of commands and the exit codes. Each command's module declares its arguments.
//!
//! Owns: the list of commands with a one-line help text for each, the general help, and the call of a command's
//! function. Does not own: the arguments of a command (its module in `commands`), the meaning of a failure (`failure`),
//! or the order of commands in the help (`help`).

use std::io::{self, Write as _};

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;

#[cfg(feature = "bench")]
use crate::commands::bench;
use crate::{
    args,
    commands::{
        backup, cache, cluster, commit, consume, coordinate, doctor, export, groups, history, import, keyspaces, kv,
        log, migrate, plan, serve, space, state, status, stream, streams, subjects, time, top, watch,
    },
    failure::Failure,
    help, man, render,
};

const AFTER_HELP: &str = "\
Client commands use a server (--server), or open a directory themselves (--data DIR).

Examples:
  thalweg serve --data ./data
  thalweg put users ada '{\"born\": 1815}'
  thalweg get users ada
  thalweg watch users --from 1
  thalweg append events 'started' 'stopped'
  thalweg tail events --from 0
  thalweg consume events --group audit --create
  thalweg subscribe 'orders.>'
  thalweg import flights.ndjson --stream flights
  thalweg log verify --data ./data

Exit codes:
  0  done
  1  failed: check the node, its data and the machine
  2  wrong usage or configuration, or a request that can never succeed
  3  not found: key, stream, offset, file or directory
  4  a condition was not met (--if-revision, --expect, a lapsed attempt, ...)
  5  unavailable: not reachable, overloaded or in use; retry later";

/// A durable log per node, read as key-value pairs and as streams, with subjects and caches in memory
#[derive(Parser, Debug)]
#[command(name = "thalweg", version, max_term_width = 110, after_help = AFTER_HELP, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Run a node until SIGTERM or Ctrl-C
    Serve(serve::Serve),
    /// Set the value of a key
    Put(kv::Put),
    /// Print a key's value, byte for byte
    Get(kv::Get),
    /// Delete a key, or all keys with a prefix
    #[command(visible_alias = "delete")]
    Del(kv::Del),
    /// List the pairs of a keyspace in key order
    Scan(kv::Scan),
    /// List the versions of a key
    History(history::History),
    /// Print changes of keys as they happen, or since a revision
    Watch(watch::Watch),
    /// Add to a counter, and print its new value
    Incr(kv::Incr),
    /// Print the remaining lifetime of a key
    Ttl(time::Ttl),
    /// Change the lifetime of a key without changing its value
    Touch(time::Touch),
    /// Grant and manage leases: keys put with a lease live only while it is kept alive
    #[command(subcommand)]
    Lease(time::Lease),
    /// Run a command while holding a lock
    Lock(coordinate::Lock),
    /// Run a command while holding a slot of a semaphore
    Semaphore(coordinate::Semaphore),
    /// Run a command while leading, with a value that shows the leader to others
    Elect(coordinate::Elect),
    /// Print the leader, once or at every change
    Leader(coordinate::Leader),
    /// Execute a commit: writes to keys, streams and groups, all or none
    Commit(commit::Commit),
    /// Execute a transaction: conditions that choose between two lists of operations
    Txn(commit::Txn),
    /// Append records to a stream: arguments, a file, or the lines of stdin
    Append(stream::Append),
    /// Print a stream's records
    Read(stream::Read),
    /// Print a stream's records as they are appended
    Tail(stream::Tail),
    /// List and manage streams
    Streams(streams::Streams),
    /// List and manage consumer groups
    Groups(groups::Groups),
    /// Print the records that a consumer group delivers, or run a command for each
    Consume(consume::Consume),
    /// Publish messages to the current subscribers of a subject
    Publish(subjects::Publish),
    /// Print messages of subjects as they are published
    Subscribe(subjects::Subscribe),
    /// Publish a message, and print the answer to it
    Request(subjects::Request),
    /// Answer requests that clients publish to a subject
    Reply(subjects::Reply),
    /// Use a server's caches: bounded, in memory, with times to live
    #[command(subcommand)]
    Cache(cache::Cache),
    /// List and manage keyspaces
    Keyspaces(keyspaces::Keyspaces),
    /// Print the figures and the health of a node
    Status(status::Status),
    /// Show the rates, latencies, queues and lags of a running node, refreshed
    Top(top::Top),
    /// Explain where the bytes of a data directory are, and what would make it smaller
    Space(space::Space),
    /// Check the disk, the file system, limits, clocks and the kernel for a node
    Doctor(doctor::Doctor),
    /// Show and change the members of a cluster, and diagnose it
    Cluster(cluster::ClusterCommand),
    /// Load a file into a stream or a keyspace
    Import(import::Import),
    /// Write a stream or a keyspace to stdout or a file
    Export(export::Export),
    /// Verify or rebuild the state, compute its digest, and manage the version of the state machine
    #[command(subcommand)]
    State(state::State),
    /// Inspect the log of a stopped node
    #[command(subcommand)]
    Log(log::LogCommand),
    /// Move a stopped node's state to another backend
    Migrate(migrate::Migrate),
    /// Back up a running node, and manage backups
    Backup(backup::Backup),
    /// Create a directory from backups, also as of an LSN or a time
    Restore(backup::Restore),
    /// Measure the log, the engine, or a server
    #[cfg(feature = "bench")]
    #[command(subcommand)]
    Bench(Box<bench::Bench>),
    /// Compute the nodes, processors, memory, disk and network that a load needs
    Plan(plan::Plan),
    /// Print a completion script
    #[command(after_help = "Example:\n  thalweg completions bash > ~/.local/share/bash-completion/completions/thalweg")]
    Completions {
        /// The shell that reads the script
        shell: Shell,
    },
    /// Write man pages, one for each command, to a directory
    Man(man::Man),
}

/// Parses the command line, or ends the process with an error. Returns the command, and true if the command prints
/// JSON. In this case errors are printed as JSON too.
pub(crate) fn parse() -> (Command, bool) {
    let mut matches = program().try_get_matches().unwrap_or_else(|error| {
        let arguments = std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned());
        refuse(&help::suggest(help::expecting_numbers(error), &program(), arguments))
    });
    let json = wants_json(&matches);
    let cli = Cli::from_arg_matches_mut(&mut matches).unwrap_or_else(|error| refuse(&error));
    (cli.command, json)
}

/// Prints an error of the command line, or the help that the user has requested, and ends the process. Prints the error
/// as JSON if the user has typed `--json` before a `--`. This works even though the arguments could not be parsed.
fn refuse(error: &clap::Error) -> ! {
    let json = std::env::args_os().skip(1).take_while(|argument| argument != "--").any(|argument| argument == "--json");
    if !error.use_stderr() {
        let printed = render::written(error.print().and_then(|()| io::stdout().flush()));
        std::process::exit(printed.map_or_else(
            |failure| {
                render::failure(&failure, json);
                i32::from(failure.exit.code())
            },
            |()| 0,
        ));
    }
    if !json {
        error.exit();
    }
    let failure = help::usage_failure(&error.render().to_string());
    render::failure(&failure, true);
    std::process::exit(i32::from(failure.exit.code()))
}

/// Returns the command line of the program, with its commands grouped in the help.
fn program() -> clap::Command {
    help::joined(help::grouped(Cli::command()))
}

/// Returns true if the user has passed the option `--json` to the innermost command.
fn wants_json(matches: &ArgMatches) -> bool {
    match matches.subcommand() {
        Some((_, inner)) => wants_json(inner),
        None => matches!(matches.try_get_one("json"), Ok(Some(true))),
    }
}

/// Runs a command to its end.
pub(crate) fn run(command: Command) -> Result<(), Failure> {
    // `serve` itself rejects all variables that it does not know.
    if !matches!(command, Command::Serve(_)) {
        args::check_variables(std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()))?;
    }
    match command {
        Command::Serve(args) => serve::run(&args),
        Command::Put(args) => kv::put(&args),
        Command::Get(args) => kv::get(&args),
        Command::Del(args) => kv::del(&args),
        Command::Scan(args) => kv::scan(&args),
        Command::History(args) => history::history(&args),
        Command::Watch(args) => watch::run(&args),
        Command::Ttl(args) => time::ttl(&args),
        Command::Touch(args) => time::touch(&args),
        Command::Lease(args) => time::lease(&args),
        Command::Lock(args) => coordinate::lock(&args),
        Command::Semaphore(args) => coordinate::semaphore(&args),
        Command::Elect(args) => coordinate::elect(&args),
        Command::Leader(args) => coordinate::leader(&args),
        Command::Append(args) => stream::append(&args),
        Command::Read(args) => stream::read(&args),
        Command::Tail(args) => stream::tail(&args),
        Command::Streams(args) => streams::run(&args),
        Command::Groups(args) => groups::run(&args),
        Command::Consume(args) => consume::run(&args),
        Command::Publish(args) => subjects::publish(&args),
        Command::Subscribe(args) => subjects::subscribe(&args),
        Command::Request(args) => subjects::request(&args),
        Command::Reply(args) => subjects::reply(&args),
        Command::Cache(args) => cache::run(&args),
        Command::Keyspaces(args) => keyspaces::run(&args),
        Command::Incr(args) => kv::incr(&args),
        Command::Commit(args) => commit::commit(&args),
        Command::Txn(args) => commit::txn(&args),
        Command::Status(args) => status::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Space(args) => space::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Cluster(args) => cluster::run(&args),
        Command::Import(args) => import::run(&args),
        Command::Export(args) => export::run(&args),
        Command::State(args) => state::run(&args),
        Command::Log(args) => log::run(&args),
        Command::Migrate(args) => migrate::run(&args),
        Command::Backup(args) => backup::run(&args),
        Command::Restore(args) => backup::run_restore(&args),
        #[cfg(feature = "bench")]
        Command::Bench(args) => bench::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "thalweg", &mut script);
            render::out(&script)
        }
        Command::Man(args) => man::run(&args, program()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
        program().debug_assert();
    }

    #[test]
    fn every_command_is_in_one_group_of_the_help() {
        let mut command = Cli::command();
        command.build();
        for found in command.get_subcommands().filter(|of| !of.is_hide_set()) {
            let groups = help::GROUPS.iter().filter(|(_, names)| names.contains(&found.get_name())).count();
            assert_eq!(groups, 1, "{} is in {groups} groups of the help", found.get_name());
        }
    }
}
