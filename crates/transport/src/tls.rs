//! TLS configuration, the same over TCP and in QUIC: version 1.3, one crypto provider, ALPN `thalweg`.
//!
//! Session tickets and early data are off. Connections are long-lived, so both features gain little. Both
//! features would let an unauthenticated peer store state on the server or replay data.

use std::{io, sync::Arc};

use rustls::{
    ClientConfig, ConfigBuilder, ConfigSide, ServerConfig, WantsVerifier,
    client::danger::ServerCertVerifier,
    crypto::{CryptoProvider, aws_lc_rs},
    server::{NoServerSessionStorage, ResolvesServerCert, danger::ClientCertVerifier},
    sign::{CertifiedKey, SingleCertAndKey},
    version::TLS13,
};

/// Implements the methods of rustls's verifiers that check the signatures of a handshake. rustls declares these methods
/// twice: for verifiers of server certificates and of client certificates. `$algorithms` are the supported algorithms.
macro_rules! check_signatures {
    ($self:ident, $algorithms:expr) => {
        fn verify_tls12_signature(
            &$self,
            message: &[u8],
            cert: &rustls::pki_types::CertificateDer<'_>,
            dss: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            rustls::crypto::verify_tls12_signature(message, cert, dss, &$algorithms)
        }

        fn verify_tls13_signature(
            &$self,
            message: &[u8],
            cert: &rustls::pki_types::CertificateDer<'_>,
            dss: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            rustls::crypto::verify_tls13_signature(message, cert, dss, &$algorithms)
        }

        fn supported_verify_schemes(&$self) -> Vec<rustls::SignatureScheme> {
            $algorithms.supported_schemes()
        }
    };
}
pub(crate) use check_signatures;

/// Protocol name in TLS and QUIC handshakes (ALPN). The server rejects a peer that offers another name.
pub const ALPN: &[u8] = b"thalweg";

/// Returns the crypto provider for TLS. It prefers AES-128, which takes about three quarters of the CPU time of AES-256
/// for each byte. Its shorter key is not a realistic target of attacks.
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

/// TLS configuration of a server. In each handshake, `resolver` returns the server's certificate.
pub(crate) fn server_config(resolver: Arc<dyn ResolvesServerCert>) -> Arc<ServerConfig> {
    let builder = versions(ServerConfig::builder_with_provider(Arc::new(provider())));
    without_tickets(builder.with_no_client_auth().with_cert_resolver(resolver), ALPN)
}

fn without_tickets(mut config: ServerConfig, alpn: &[u8]) -> Arc<ServerConfig> {
    config.alpn_protocols = vec![alpn.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Arc::new(config)
}

/// TLS configuration of an accepting node. `verifier` decides which certificates of dialling nodes are accepted.
pub(crate) fn peer_server_config(
    key: Arc<CertifiedKey>,
    verifier: Arc<dyn ClientCertVerifier>,
    alpn: &[u8],
) -> Arc<ServerConfig> {
    let builder = versions(ServerConfig::builder_with_provider(Arc::new(provider())));
    let resolver = Arc::new(SingleCertAndKey::from(key));
    without_tickets(builder.with_client_cert_verifier(verifier).with_cert_resolver(resolver), alpn)
}

/// TLS configuration of a dialling node. The node sends its certificate if the accepting node requests one.
pub(crate) fn peer_client_config(
    key: Arc<CertifiedKey>,
    verifier: Arc<dyn ServerCertVerifier>,
    alpn: &[u8],
) -> Arc<ClientConfig> {
    let builder = versions(ClientConfig::builder_with_provider(Arc::new(provider())));
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    let mut config = builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(key)));
    config.alpn_protocols = vec![alpn.to_vec()];
    config.resumption = rustls::client::Resumption::disabled();
    Arc::new(config)
}

/// TLS configuration of a client; `verifier` decides which server certificates are accepted.
pub(crate) fn client_config(verifier: Arc<dyn ServerCertVerifier>) -> Arc<ClientConfig> {
    let builder = versions(ClientConfig::builder_with_provider(Arc::new(provider())));
    // rustls calls every custom verifier "dangerous". The verifiers used here are in `trust`.
    let mut config = builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = rustls::client::Resumption::disabled();
    Arc::new(config)
}

/// Returns the TLS failure inside an I/O error, if there is one.
pub(crate) fn cause(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// Returns true if the first bytes of a connection look like a TLS handshake or alert record. Use it for
/// diagnostics only: a plain protocol can begin with the same bytes.
#[must_use]
pub fn looks_like_tls(bytes: &[u8]) -> bool {
    matches!(bytes, [0x15 | 0x16, 0x03, 0x00..=0x04, ..])
}
