//! Why listening, accepting and dialling fail.

use std::{io, net::SocketAddr, time::Duration};

use quinn::ConnectionError;
use rustls::{AlertDescription, Error as TlsError};
use thalweg_types::{Action, Classified};

use crate::{listener::MAX_QUIC_SOCKETS, tls};

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
    /// TLS or QUIC without a certificate.
    #[error("TLS and QUIC need a certificate and its key")]
    NoCertificate,
    /// More sockets than are good for anything.
    #[error("{sockets} sockets for QUIC: at most {MAX_QUIC_SOCKETS}, and more than cores gain nothing")]
    TooManySockets {
        /// As given.
        sockets: usize,
    },
}

impl Classified for ListenError {
    fn code(&self) -> &'static str {
        match self {
            Self::Bind { .. } => "bind",
            Self::NoCertificate => "no_certificate",
            Self::TooManySockets { .. } => "too_many_sockets",
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
    /// What came is no TLS.
    #[error("the peer does not speak TLS, which this port wants")]
    NotTls,
    /// It was TLS for something else.
    #[error("the peer wants another protocol than thalweg")]
    OtherProtocol,
    /// The handshake failed.
    #[error("the TLS handshake failed: {0}")]
    Tls(String),
    /// The connection broke.
    #[error("the connection broke during its handshake: {0}")]
    Broken(io::Error),
}

impl EstablishError {
    pub(crate) fn tls(error: io::Error) -> Self {
        match tls::cause(&error) {
            Some(TlsError::InvalidMessage(_)) => Self::NotTls,
            Some(TlsError::NoApplicationProtocol) => Self::OtherProtocol,
            Some(other) => Self::Tls(other.to_string()),
            None => Self::Broken(error),
        }
    }

    pub(crate) fn quic(error: ConnectionError) -> Self {
        match alert(&error) {
            Some(AlertDescription::NoApplicationProtocol) => Self::OtherProtocol,
            Some(_) => Self::Tls(error.to_string()),
            None => Self::Broken(error.into()),
        }
    }
}

impl Classified for EstablishError {
    fn code(&self) -> &'static str {
        match self {
            Self::TimedOut(_) => "handshake_timeout",
            Self::NotTls => "not_tls",
            Self::OtherProtocol => "other_protocol",
            Self::Tls(_) => "tls_failed",
            Self::Broken(_) => "connection_lost",
        }
    }

    fn action(&self) -> Action {
        match self {
            Self::TimedOut(_) | Self::Broken(_) => Action::Retry,
            Self::NotTls | Self::OtherProtocol | Self::Tls(_) => Action::Fix,
        }
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
    /// The name for the server is none.
    #[error("{name:?} is not a name or an address that a certificate can have")]
    ServerName {
        /// As given, or the host of the address.
        name: String,
    },
    /// The server is not who the client trusts.
    #[error(
        "{address} is not trusted: {reason}; give the fingerprint that it prints when it starts, or its certificate file"
    )]
    Untrusted {
        /// As given.
        address: String,
        /// What is wrong with its certificate.
        reason: String,
    },
    /// What answers speaks no TLS, or something else over it.
    #[error("the handshake with {address} failed: {reason}; is this its native port, and does it speak TLS there?")]
    Tls {
        /// As given.
        address: String,
        /// What went wrong.
        reason: String,
    },
}

impl DialError {
    /// What a failed attempt was about.
    pub(crate) fn of(address: &str, error: io::Error) -> Self {
        let address = address.to_owned();
        if let Some(cause) = tls::cause(&error) {
            let reason = cause.to_string();
            return match cause {
                TlsError::InvalidCertificate(_) => Self::Untrusted { address, reason },
                _ => Self::Tls { address, reason },
            };
        }
        let quic = error.get_ref().and_then(|inner| inner.downcast_ref::<ConnectionError>());
        match quic.and_then(|error| alert(error).map(|alert| (alert, error))) {
            // Those that a client itself raises about the server's certificate.
            Some((alert, ConnectionError::TransportError(why))) if is_about_certificates(alert) => {
                Self::Untrusted { address, reason: why.reason.clone() }
            }
            Some((_, error)) => Self::Tls { address, reason: error.to_string() },
            None => Self::Connect { address, error },
        }
    }
}

/// The TLS alert that ended a QUIC handshake.
fn alert(error: &ConnectionError) -> Option<AlertDescription> {
    let code = match error {
        ConnectionError::TransportError(error) => error.code,
        ConnectionError::ConnectionClosed(close) => close.error_code,
        _ => return None,
    };
    // Alerts are the codes 0x100 to 0x1ff.
    let code = u64::from(code).checked_sub(0x100)?;
    u8::try_from(code).ok().map(AlertDescription::from)
}

fn is_about_certificates(alert: AlertDescription) -> bool {
    use AlertDescription as Alert;
    matches!(
        alert,
        Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::AccessDenied
            | Alert::DecryptError
    )
}

impl Classified for DialError {
    fn code(&self) -> &'static str {
        match self {
            Self::Resolve { .. } => "unknown_address",
            Self::Connect { .. } => "cannot_connect",
            Self::TimedOut { .. } => "connect_timeout",
            Self::ServerName { .. } => "invalid_server_name",
            Self::Untrusted { .. } => "untrusted_server",
            Self::Tls { .. } => "tls_failed",
        }
    }

    fn action(&self) -> Action {
        match self {
            // A name may be unknown because its server is, for now.
            Self::Resolve { .. } | Self::Connect { .. } | Self::TimedOut { .. } => Action::Retry,
            Self::ServerName { .. } | Self::Untrusted { .. } | Self::Tls { .. } => Action::Fix,
        }
    }
}
