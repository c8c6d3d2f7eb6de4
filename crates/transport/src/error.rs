//! Errors of listening, accepting and dialling.

use std::{io, net::SocketAddr, time::Duration};

use quinn::ConnectionError;
use rustls::{AlertDescription, Error as TlsError};
use thalweg_types::classified;

use crate::{quic::MAX_QUIC_SOCKETS, tls};

/// Error returned when a listener cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The listener could not bind its address.
    #[error("cannot listen on {address}: {error}")]
    Bind {
        /// Address that could not be bound.
        address: SocketAddr,
        /// Error that the operating system returned for the bind.
        error: io::Error,
    },
    /// The options require TLS or QUIC but contain no certificate.
    #[error("TLS and QUIC need a certificate and its key")]
    NoCertificate,
    /// The options request more QUIC sockets than [`MAX_QUIC_SOCKETS`].
    #[error("{sockets} sockets for QUIC exceed the maximum of {MAX_QUIC_SOCKETS}; use at most one for each core")]
    TooManySockets {
        /// Number of sockets requested.
        sockets: usize,
    },
}

classified!(ListenError {
    Self::Bind { .. } => "bind", Fix;
    Self::NoCertificate => "no_certificate", Fix;
    Self::TooManySockets { .. } => "too_many_sockets", Fix;
});

/// Error returned when an incoming connection fails its handshake.
#[derive(Debug, thiserror::Error)]
pub enum EstablishError {
    /// The peer did not finish its handshake within this time.
    #[error("no handshake within {0:?}")]
    TimedOut(Duration),
    /// The peer's first bytes are not TLS.
    #[error("the peer does not speak TLS, which this port requires")]
    NotTls,
    /// The peer offered a different protocol name in the TLS handshake (ALPN).
    #[error("the peer requested a protocol other than thalweg")]
    OtherProtocol,
    /// The TLS handshake failed. Contains a description of the cause.
    #[error("the TLS handshake failed: {0}")]
    Tls(String),
    /// The connection failed during its handshake.
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

classified!(EstablishError {
    Self::TimedOut(_) => "handshake_timeout", Retry;
    Self::NotTls => "not_tls", Fix;
    Self::OtherProtocol => "other_protocol", Fix;
    Self::Tls(_) => "tls_failed", Fix;
    Self::Broken(_) => "connection_lost", Retry;
});

/// Error returned when a client fails to connect to an endpoint.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The address has no port, or the lookup of its host name returned no IP address.
    #[error("cannot find {address}: {error}; an address is host:port")]
    Resolve {
        /// Address of the server, as given by the caller.
        address: String,
        /// Error of the address lookup.
        error: io::Error,
    },
    /// No address of the server accepted the connection.
    #[error("cannot connect to {address}: {error}; is a server running there, and is this its native port?")]
    Connect {
        /// Address of the server, as given by the caller.
        address: String,
        /// Error of the operating system for the last address tried.
        error: io::Error,
    },
    /// The connection attempt exceeded its timeout.
    #[error("no connection to {address} within {after:?}")]
    TimedOut {
        /// Address of the server, as given by the caller.
        address: String,
        /// Timeout of the connection attempt.
        after: Duration,
    },
    /// The server name is not a valid name for a certificate.
    #[error("{name:?} is not a name or an address that a certificate can have")]
    ServerName {
        /// Invalid server name: as given by the caller, or the host in the address.
        name: String,
    },
    /// The client does not trust the server's certificate.
    #[error(
        "{address} is not trusted: {reason}; give the fingerprint that it prints when it starts, or its certificate file"
    )]
    Untrusted {
        /// Address of the server, as given by the caller.
        address: String,
        /// Reason why the client rejected the server's certificate.
        reason: String,
    },
    /// The server does not speak TLS, or speaks another protocol over TLS.
    #[error("the handshake with {address} failed: {reason}; is this its native port, and does it speak TLS there?")]
    Tls {
        /// Address of the server, as given by the caller.
        address: String,
        /// Description of the failed TLS handshake.
        reason: String,
    },
}

impl DialError {
    /// Returns the variant of this enum for the error of a failed attempt to connect to `address`.
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
            // A client raises these alerts when it rejects the server's certificate.
            Some((alert, ConnectionError::TransportError(why))) if is_about_certificates(alert) => {
                Self::Untrusted { address, reason: why.reason.clone() }
            }
            Some((_, error)) => Self::Tls { address, reason: error.to_string() },
            None => Self::Connect { address, error },
        }
    }
}

/// Returns the TLS alert that ended a QUIC handshake.
fn alert(error: &ConnectionError) -> Option<AlertDescription> {
    let code = match error {
        ConnectionError::TransportError(error) => error.code,
        ConnectionError::ConnectionClosed(close) => close.error_code,
        _ => return None,
    };
    // QUIC reports TLS alerts as the error codes 0x100 to 0x1ff.
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

classified!(DialError {
    // The name may resolve later: its name server can be temporarily unavailable.
    Self::Resolve { .. } => "unknown_address", Retry;
    Self::Connect { .. } => "cannot_connect", Retry;
    Self::TimedOut { .. } => "connect_timeout", Retry;
    Self::ServerName { .. } => "invalid_server_name", Fix;
    Self::Untrusted { .. } => "untrusted_server", Fix;
    Self::Tls { .. } => "tls_failed", Fix;
});
