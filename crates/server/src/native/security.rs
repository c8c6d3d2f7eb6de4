//! How the native port listens: which carriers, with which certificate.
//!
//! Owns: reading or making the certificate, reading it anew, telling what there is. Does not own what is done with connections.

use std::{net::IpAddr, path::PathBuf};

use thalweg_transport::{Fingerprint, Identity, IdentityError, ListenOptions, Listener, QuicOptions, TcpSecurity};

use crate::config::{Config, PemFile};

/// The listener's options as configured, for `address`.
pub fn options(config: &Config, address: IpAddr) -> Result<ListenOptions, IdentityError> {
    let mut options = ListenOptions::default();
    options.handshake_timeout = config.header_timeout.0;
    options.quic_sockets = config.native_quic_sockets as usize;
    options.quic = quic(config);
    if config.native_tls {
        options.tcp = TcpSecurity::Tls;
    }
    if config.native_tls || config.native_quic_sockets > 0 {
        options.identity = Some(identity(config, address)?);
    }
    Ok(options)
}

fn quic(config: &Config) -> QuicOptions {
    let window = u32::try_from(config.native_quic_window.0).unwrap_or(u32::MAX);
    QuicOptions {
        // A channel that is not read shall hold up no other.
        stream_window_bytes: window / 2,
        receive_window_bytes: window,
        send_window_bytes: window,
        // The protocol's own keep-alive, which is derived from that, is to notice first.
        idle_timeout: QuicOptions::DEFAULTS.idle_timeout.max(config.idle_timeout.0),
        ..QuicOptions::DEFAULTS
    }
}

fn identity(config: &Config, address: IpAddr) -> Result<Identity, IdentityError> {
    match (&config.native_certificate, &config.native_key) {
        (PemFile::At(certificate), PemFile::At(key)) => Identity::from_pem_files(certificate, key),
        // The configuration was checked: both are files, or none is. The command's data directory is there; a database that
        // a program has opened may live elsewhere, or nowhere.
        _ if config.data.is_dir() => Identity::development(&config.data, address),
        _ => Identity::ephemeral(address),
    }
}

/// The configured certificate of a port that serves it, to be read anew.
#[derive(Clone, Debug)]
pub struct Certificate {
    served: Identity,
    certificate: PathBuf,
    key: PathBuf,
}

impl Certificate {
    /// That of a listener; `None` if no files are configured, or nothing is served with them.
    pub(crate) fn of(listener: &Listener, config: &Config) -> Option<Self> {
        match (&config.native_certificate, &config.native_key) {
            (PemFile::At(certificate), PemFile::At(key)) => {
                Some(Self { served: listener.identity()?.clone(), certificate: certificate.clone(), key: key.clone() })
            }
            _ => None,
        }
    }

    /// Reads the files anew: for handshakes from now on; connections that are there stay. What cannot be used is an
    /// error, and changes nothing. Blocks for the files.
    pub fn reload(&self) -> Result<Fingerprint, IdentityError> {
        self.served.replace(&Identity::from_pem_files(&self.certificate, &self.key)?);
        Ok(self.served.fingerprint())
    }
}

/// Says in the log what the port serves, with how many threads, and what is not as it should be.
pub fn announce(listener: &Listener, threads: usize, config: &Config) {
    let address = listener.local_addr();
    let tcp = if config.native_tls { "tls" } else { "plain" };
    tracing::info!(%address, tcp, threads, quic_sockets = config.native_quic_sockets, "serving the native protocol");
    let wanted = QuicOptions::DEFAULTS.socket_buffer_bytes;
    if let Some(got) = listener.udp_buffer_bytes()
        && got < wanted
    {
        tracing::warn!(
            got,
            wanted,
            "the system gives UDP sockets less than they need: raise net.core.rmem_max and net.core.wmem_max"
        );
    }
    if !address.ip().is_loopback() && !config.native_tls {
        tracing::warn!(%address, "other machines reach the native port without TLS: what goes over it can be read");
    }
}
