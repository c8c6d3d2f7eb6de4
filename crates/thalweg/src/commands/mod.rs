//! One module per group of commands. Each command opens a target, makes its requests, and prints the answers.

pub mod backup;
pub mod bench;
pub mod cache;
pub mod consume;
pub mod coordinate;
mod export;
pub mod groups;
mod import;
mod kv;
mod log;
pub mod migrate;
mod node;
pub mod past;
pub mod serve;
pub mod state;
mod stream;
pub mod subjects;
pub mod time;
mod transaction;
pub mod watch;

use clap::CommandFactory;

use crate::{
    cli::{Cli, Command, KeyFormat},
    failure::Failure,
    render,
    target::{Access, Place, Target},
};

/// Runs a command to its end.
pub fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Serve(args) => serve::run(&args),
        Command::Put(args) => kv::put(&args),
        Command::Get(args) => kv::get(&args),
        Command::Del(args) => kv::del(&args),
        Command::Scan(args) => kv::scan(&args),
        Command::History(args) => past::history(&args),
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
        Command::Streams(args) => node::streams(&args),
        Command::Groups(args) => groups::run(&args),
        Command::Consume(args) => consume::run(&args),
        Command::Publish(args) => subjects::publish(&args),
        Command::Subscribe(args) => subjects::subscribe(&args),
        Command::Request(args) => subjects::request(&args),
        Command::Reply(args) => subjects::reply(&args),
        Command::Cache(args) => cache::run(&args),
        Command::Keyspaces(args) => transaction::keyspaces(&args),
        Command::Incr(args) => transaction::incr(&args),
        Command::Commit(args) => transaction::commit(&args),
        Command::Txn(args) => transaction::txn(&args),
        Command::Status(args) => node::status(&args.place),
        Command::Import(args) => import::run(&args),
        Command::Export(args) => export::run(&args),
        Command::State(args) => state::run(&args),
        Command::Log(args) => log::run(&args),
        Command::Migrate(args) => migrate::run(&args),
        Command::Backup(args) => backup::run(&args),
        Command::Restore(args) => backup::run_restore(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "thalweg", &mut script);
            render::out(&script)
        }
    }
}

/// Opens the target, calls `work`, and closes the target. A failure of `work` takes precedence over one of closing.
fn with_target<T>(
    place: &Place,
    access: Access,
    work: impl FnOnce(&dyn Target) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let target = place.open(access)?;
    let done = work(target.as_ref());
    let closed = target.close();
    let done = done?;
    closed?;
    Ok(done)
}

/// Parses a key argument in the given format.
fn parse_key(text: &str, format: KeyFormat) -> Result<Vec<u8>, Failure> {
    match format {
        KeyFormat::Text => Ok(text.as_bytes().to_vec()),
        KeyFormat::Hex => {
            let digits = text.as_bytes();
            let byte = |pair: &[u8]| {
                let pair = std::str::from_utf8(pair).ok().filter(|pair| pair.bytes().all(|b| b.is_ascii_hexdigit()))?;
                u8::from_str_radix(pair, 16).ok()
            };
            let bytes: Option<Vec<u8>> =
                if digits.len().is_multiple_of(2) { digits.chunks(2).map(byte).collect() } else { None };
            bytes.ok_or_else(|| {
                Failure::usage(format!("{text:?} is no key in hex: use two digits a byte, such as 00ff"))
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_in_hex_are_bytes() {
        assert_eq!(parse_key("00fF", KeyFormat::Hex).unwrap(), [0, 255]);
        assert_eq!(parse_key("", KeyFormat::Hex).unwrap(), b"");
        for wrong in ["0", "0x", "+1", "zz", "ü"] {
            assert!(parse_key(wrong, KeyFormat::Hex).is_err(), "{wrong}");
        }
    }
}
