//! The error of a configuration that cannot be used.

use std::{net::SocketAddr, path::PathBuf};

use thalweg_types::{Action, Classified};

use super::{AvailableMemory, ByteSize};

/// Error that makes a configuration unusable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The configuration file could not be read.
    #[error("cannot read {path}: {reason}")]
    File {
        /// Path of the configuration file that could not be read.
        path: PathBuf,
        /// Description of the error, from the operating system.
        reason: String,
    },
    /// The configuration file is not valid TOML.
    #[error("{path} is not TOML: {reason}")]
    Syntax {
        /// Path of the configuration file that is not valid.
        path: PathBuf,
        /// Position and cause of the syntax error, as the TOML parser reports them.
        reason: String,
    },
    /// The configuration names a value that does not exist.
    #[error(
        "unknown configuration key {name:?}{}: `serve --explain` lists all keys",
        .similar.map_or(String::new(), |similar| format!(" (did you mean {similar}?)"))
    )]
    Unknown {
        /// Name that is not the name of any configuration value, as given.
        name: String,
        /// Name of a knob that resembles the unknown name; `None` if no knob does.
        similar: Option<&'static str>,
    },
    /// Two protocols are configured to listen on the same port.
    #[error("{first} and {second} both have port {port}: give each protocol a port of its own")]
    SamePort {
        /// Name of the configuration value that sets the port of one of the two protocols.
        first: &'static str,
        /// Name of the configuration value that sets the port of the other protocol.
        second: &'static str,
        /// The port that both protocols would use.
        port: u16,
    },
    /// The configuration states more memory than the system offers.
    #[error("memory = {asked} is above the {available}: choose less, or auto for half of it")]
    Memory {
        /// Memory that the configuration states.
        asked: ByteSize,
        /// Memory that the system offers to the process.
        available: AvailableMemory,
    },
    /// The text of a configuration value cannot be parsed.
    #[error("configuration key {name}: {got:?} is not {expected}")]
    Value {
        /// Name of the configuration value whose text cannot be parsed.
        name: &'static str,
        /// Text of the configuration value, as given.
        got: String,
        /// Description of the texts that are valid for this configuration value.
        expected: &'static str,
    },
    /// A value is outside its range, or conflicts with another value.
    #[error("configuration key {name} must be {expected}")]
    Range {
        /// Name of the configuration value that is not permitted.
        name: &'static str,
        /// Description of the values that are valid for this configuration value.
        expected: &'static str,
    },
    /// The server would listen at an address that other machines can reach, although `allow_unprotected` is not set.
    #[error(
        "{knob} = {address} can be reached by other machines, but clients are not authenticated yet (TLS does not \
         authenticate them, and Redis clients send their password in the clear): use a loopback address, or set \
         allow_unprotected = true if the network is trusted"
    )]
    Unprotected {
        /// Name of the configuration value that has the address.
        knob: &'static str,
        /// The address that other machines can reach.
        address: SocketAddr,
    },
    /// An error in a configuration value, with the file or environment variable that contains the value.
    #[error("{place}: {error}")]
    At {
        /// Path of the file, or name of the variable, that has the value.
        place: String,
        /// Error in the configuration value.
        error: Box<ConfigError>,
    },
}

impl Classified for ConfigError {
    fn code(&self) -> &'static str {
        match self {
            Self::At { error, .. } => error.code(),
            Self::File { .. } => "config_file",
            Self::Syntax { .. } => "config_syntax",
            Self::Unknown { .. } => "config_unknown_key",
            Self::Value { .. } | Self::Range { .. } | Self::SamePort { .. } | Self::Memory { .. } => "config_value",
            Self::Unprotected { .. } => "config_unprotected",
        }
    }

    fn action(&self) -> Action {
        Action::Fix
    }
}
