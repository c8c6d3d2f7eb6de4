//! Arguments that several commands share: the node, the keys, and the format in which users type keys.

use std::{path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};
use thalweg_server::config::resembling;
use thalweg_types::Durability;

use crate::{
    failure::{Exit, Failure},
    render,
    span::parse_span,
};

/// Address of the Thalweg server that a command uses, if neither an option nor the environment states one.
const DEFAULT_SERVER: &str = "http://127.0.0.1:7070";

/// Options of the commands that use either a server or a data directory.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Where")]
pub(crate) struct TargetArgs {
    /// Address of the server; of several addresses separated by commas, the first that can be reached is used [env:
    /// THALWEG_SERVER] [default: http://127.0.0.1:7070]
    #[arg(long, value_name = "URL,...", conflicts_with = "data")]
    pub server: Option<String>,
    /// Open this directory instead of using a server; no server may have it open
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Durability of acknowledged writes: none, os, interval, disk or quorum [default: the server's; disk with --data]
    #[arg(long, value_name = "LEVEL")]
    pub durability: Option<Durability>,
    /// Maximum time to wait for an answer of the server
    #[arg(long, value_name = "SPAN", default_value = "30s", value_parser = parse_span)]
    pub timeout: Duration,
    /// Print JSON: one object, or one object per line; errors on stderr are JSON too
    #[arg(long)]
    pub json: bool,
}

impl TargetArgs {
    /// Returns the address of the server. It is not used if the user names a directory.
    pub(crate) fn url(&self) -> String {
        url(self.server.as_ref())
    }
}

/// Options of commands that need a running server, because a data directory does not store what they work on (such as
/// caches and subjects).
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Where")]
pub(crate) struct ServerArgs {
    /// Address of the server; of several addresses separated by commas, the first that can be reached is used [env:
    /// THALWEG_SERVER] [default: http://127.0.0.1:7070]
    #[arg(long, value_name = "URL,...")]
    pub server: Option<String>,
    /// Maximum time to wait for an answer of the server
    #[arg(long, value_name = "SPAN", default_value = "30s", value_parser = parse_span)]
    pub timeout: Duration,
    /// Print JSON: one object, or one object per line; errors on stderr are JSON too
    #[arg(long)]
    pub json: bool,
}

impl ServerArgs {
    /// Returns the address of the server.
    pub(crate) fn url(&self) -> String {
        url(self.server.as_ref())
    }
}

fn url(server: Option<&String>) -> String {
    let url = server.cloned().or_else(|| std::env::var("THALWEG_SERVER").ok().filter(|url| !url.is_empty()));
    url.unwrap_or_else(|| DEFAULT_SERVER.to_owned())
}

/// Environment variables that client commands read.
const VARIABLES: [&str; 2] = ["THALWEG_SERVER", "THALWEG_ADMIN_TOKEN"];

/// Rejects an environment variable with a name that looks like a mistyped one of [`VARIABLES`]. Otherwise the command
/// would ignore it and use another server. Other variables are accepted, because they can belong to `serve` or to other
/// programs.
pub(crate) fn check_variables(mut names: impl Iterator<Item = String>) -> Result<(), Failure> {
    let mistyped = names.find_map(|name| Some((resembling(&name, &VARIABLES)?, name)));
    match mistyped {
        Some((meant, name)) => {
            let message = format!("no command reads the environment variable {name}: did you mean {meant}?");
            Err(Failure::usage(message).then(format!("correct it, or remove it with `unset {name}`")))
        }
        None => Ok(()),
    }
}

/// Arguments of a command whose only options are those of every command that uses a server or a directory.
#[derive(Args, Debug)]
pub(crate) struct Plain {
    #[command(flatten)]
    pub place: TargetArgs,
}

/// Format in which keys are typed and shown.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyFormat {
    /// UTF-8
    Text,
    /// Two hexadecimal digits per byte
    Hex,
}

impl KeyFormat {
    /// Parses a key that the user has typed in this format.
    pub(crate) fn parse(self, text: &str) -> Result<Vec<u8>, Failure> {
        match self {
            Self::Text => Ok(text.as_bytes().to_vec()),
            Self::Hex => {
                let digits = text.as_bytes();
                let byte = |pair: &[u8]| {
                    let pair =
                        std::str::from_utf8(pair).ok().filter(|pair| pair.bytes().all(|b| b.is_ascii_hexdigit()))?;
                    u8::from_str_radix(pair, 16).ok()
                };
                let bytes: Option<Vec<u8>> =
                    if digits.len().is_multiple_of(2) { digits.chunks(2).map(byte).collect() } else { None };
                bytes.ok_or_else(|| {
                    Failure::usage(format!("{text:?} is not a key in hex: use two digits per byte, such as 00ff"))
                })
            }
        }
    }

    /// Formats a key on one line of text, in this format.
    pub(crate) fn show(self, key: &[u8]) -> String {
        match self {
            Self::Text => render::one_line(key),
            Self::Hex => key.iter().map(|byte| format!("{byte:02x}")).collect(),
        }
    }
}

/// A key on the command line.
#[derive(Args, Clone, Debug)]
pub(crate) struct KeyArgs {
    /// Name of the keyspace
    pub keyspace: String,
    /// Key within the keyspace
    pub key: String,
    /// Format in which the key is typed
    #[arg(long, value_enum, default_value = "text", value_name = "FORMAT")]
    pub key_format: KeyFormat,
}

impl KeyArgs {
    /// Returns the bytes of the key that the user has typed.
    pub(crate) fn bytes(&self) -> Result<Vec<u8>, Failure> {
        self.key_format.parse(&self.key)
    }

    /// Returns the failure that reports that the key does not exist.
    pub(crate) fn missing(&self) -> Failure {
        let Self { keyspace, key, .. } = self;
        let message = format!("there is no key {key:?} in keyspace {keyspace:?}");
        Failure::new(Exit::NotFound, "not_found", message)
            .then(format!("`thalweg scan {keyspace}` lists the existing keys"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistyped_variables_are_refused() {
        let check = |name: &str| check_variables([name.to_owned()].into_iter());
        for wrong in ["THALWEG_SEVER", "THALWEG_SERVERS", "THALWEG_SREVER", "THALWEG_ADMINTOKEN"] {
            let refused = check(wrong).unwrap_err();
            assert!(refused.exit == Exit::Usage && refused.message.contains("did you mean THALWEG_"), "{wrong}");
        }
        for other in ["THALWEG_SERVER", "THALWEG_ADMIN_TOKEN", "THALWEG_MAX_SCANS", "THALWEG_SERVICE_HOST", "SERVER"] {
            assert!(check(other).is_ok(), "{other}");
        }
    }

    #[test]
    fn keys_in_hex_are_bytes() {
        assert_eq!(KeyFormat::Hex.parse("00fF").unwrap(), [0, 255]);
        assert_eq!(KeyFormat::Hex.parse("").unwrap(), b"");
        for wrong in ["0", "0x", "+1", "zz", "ü"] {
            assert!(KeyFormat::Hex.parse(wrong).is_err(), "{wrong}");
        }
    }
}
