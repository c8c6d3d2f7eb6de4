//! Why listening, accepting and dialling fail.

use std::{io, net::SocketAddr, time::Duration};

use thalweg_types::{Action, Classified};

/// Why there is no listener.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The address could not be bound.
    #[error("cannot listen on {address}: {error}; is another server running there?")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        error: io::Error,
    },
}

impl Classified for ListenError {
    fn code(&self) -> &'static str {
        match self {
            Self::Bind { .. } => "bind",
        }
    }

    fn action(&self) -> Action {
        Action::Fix
    }
}

/// Why a connection that came did not come about.
#[derive(Debug, thiserror::Error)]
pub enum EstablishError {
    /// The peer did not finish its handshake in time.
    #[error("no handshake within {0:?}")]
    TimedOut(Duration),
    /// The connection broke.
    #[error("the connection broke during its handshake: {0}")]
    Broken(io::Error),
}

impl Classified for EstablishError {
    fn code(&self) -> &'static str {
        match self {
            Self::TimedOut(_) => "handshake_timeout",
            Self::Broken(_) => "connection_lost",
        }
    }

    fn action(&self) -> Action {
        Action::Retry
    }
}

/// Why there is no connection to an endpoint.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The address has no port, or its name is unknown.
    #[error("cannot find {address}: {error}; an address is host:port")]
    Resolve {
        /// As given.
        address: String,
        /// What the system said.
        error: io::Error,
    },
    /// Nobody answers there.
    #[error("cannot connect to {address}: {error}; is a server running there, and is this its native port?")]
    Connect {
        /// As given.
        address: String,
        /// What the system said, for the last of the addresses that were tried.
        error: io::Error,
    },
    /// No connection within the time given for it.
    #[error("no connection to {address} within {after:?}")]
    TimedOut {
        /// As given.
        address: String,
        /// The bound.
        after: Duration,
    },
}

impl Classified for DialError {
    fn code(&self) -> &'static str {
        match self {
            Self::Resolve { .. } => "unknown_address",
            Self::Connect { .. } => "cannot_connect",
            Self::TimedOut { .. } => "connect_timeout",
        }
    }

    fn action(&self) -> Action {
        match self {
            // A name may be unknown because its server is, for now.
            Self::Resolve { .. } | Self::Connect { .. } | Self::TimedOut { .. } => Action::Retry,
        }
    }
}
