//! How TLS is configured, the same over TCP and in QUIC: version 1.3, one crypto provider, ALPN `thalweg`.
//!
//! No tickets and no early data: connections live long, and what a peer can have stored here, or replay, before it is
//! known is what an attacker uses.

use std::{io, sync::Arc};

use rustls::{
    ClientConfig, ConfigBuilder, ConfigSide, ServerConfig, WantsVerifier,
    crypto::{CryptoProvider, aws_lc_rs},
    server::{ClientHello, NoServerSessionStorage, ResolvesServerCert},
    sign::CertifiedKey,
    version::TLS13,
};

use crate::identity::Identity;

/// The protocol's name in TLS and QUIC handshakes. A peer without it speaks something else.
pub const ALPN: &[u8] = b"thalweg";

/// The one crypto provider, with AES-128 first: it costs about three quarters of what AES-256 does for each byte, and
/// its key is not what would be attacked.
pub(crate) fn provider() -> CryptoProvider {
    use aws_lc_rs::cipher_suite::{TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256};
    CryptoProvider {
        cipher_suites: vec![TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256],
        ..aws_lc_rs::default_provider()
    }
}

fn versions<S: ConfigSide>(builder: ConfigBuilder<S, rustls::WantsVersions>) -> ConfigBuilder<S, WantsVerifier> {
    builder.with_protocol_versions(&[&TLS13]).expect("the provider has suites of TLS 1.3")
}

/// Whatever certificate the identity has when a handshake comes.
#[derive(Debug)]
struct Current(Identity);

impl ResolvesServerCert for Current {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.key())
    }
}

/// A server's half.
pub(crate) fn server_config(identity: &Identity) -> Arc<ServerConfig> {
    let builder = versions(ServerConfig::builder_with_provider(Arc::new(provider())));
    let mut config = builder.with_no_client_auth().with_cert_resolver(Arc::new(Current(identity.clone())));
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Arc::new(config)
}

/// A client's half, which asks `verifier` whether it trusts a server.
pub(crate) fn client_config(verifier: Arc<dyn rustls::client::danger::ServerCertVerifier>) -> Arc<ClientConfig> {
    let builder = versions(ClientConfig::builder_with_provider(Arc::new(provider())));
    // "Dangerous" is a verifier of one's own; see `trust`.
    let mut config = builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = rustls::client::Resumption::disabled();
    Arc::new(config)
}

/// What TLS had against the peer, if that is what an error is about.
pub(crate) fn cause(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// Whether bytes that should begin a plain connection begin one with TLS: a handshake or alert record. For saying what is
/// wrong; a plain protocol may begin so too.
#[must_use]
pub fn looks_like_tls(bytes: &[u8]) -> bool {
    matches!(bytes, [0x15 | 0x16, 0x03, 0x00..=0x04, ..])
}
