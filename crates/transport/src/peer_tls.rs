//! TLS between the nodes of one cluster.
//!
//! Owns: the certificates of a node for dialling and for accepting, their verification, their replacement while the
//! node runs, and the value that identifies a session. Does not own: the cluster's secret, which the nodes prove to
//! each other inside a session.
//!
//! A cluster has an authority or not. With an authority, each side verifies that the authority has signed the other
//! side's certificate and that the certificate is valid now. The dialling side also verifies that the certificate names
//! the dialled host. Without an authority, each process creates its certificate at start, and anyone could create such
//! a certificate. [`PeerStream::binding`] then reveals a man in the middle: both ends of one session get the same
//! value, and no other session has this value.
//!
//! Invariant: a session uses one complete reading of the files, the last valid one. Files that cannot be used change
//! nothing.

use std::{
    fmt, io,
    net::{IpAddr, Ipv4Addr},
    path::PathBuf,
    pin::Pin,
    sync::{Arc, PoisonError, RwLock},
    task::{Context, Poll},
};

use rustls::{
    AlertDescription, CertificateError, ClientConfig, DistinguishedName, Error, RootCertStore, ServerConfig,
    client::{
        WebPkiServerVerifier,
        danger::{ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor, verify_server_name,
    },
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::{
        ParsedCertificate, WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};
use thalweg_types::classified;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

use crate::{
    certificate::{IdentityError, read_certificates},
    identity::{Identity, Validity},
    tls,
};

/// Protocol name in the TLS handshake between nodes (ALPN).
const ALPN: &[u8] = b"thalweg-peer";
/// Label under which TLS exports the value that identifies a session (RFC 9266).
const BINDING_LABEL: &[u8] = b"EXPORTER-Channel-Binding";

/// Certificate and key files of a node, in a cluster with a certificate authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerTlsFiles {
    /// Certificates of the authorities. One of the authorities has signed the certificate of each node.
    pub authorities: PathBuf,
    /// Certificate of this node, with its intermediate certificates.
    pub certificate: PathBuf,
    /// Private key of this node.
    pub key: PathBuf,
}

/// TLS configurations of a node: `server` for sessions that it accepts, `client` for sessions that it dials. Both come
/// from one reading of the node's files.
struct Configs {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    validity: Option<Validity>,
}

struct Inner {
    files: Option<PeerTlsFiles>,
    configs: RwLock<Arc<Configs>>,
}

/// TLS configuration of a node, for sessions with other nodes that it dials or accepts. Clones share one configuration,
/// so [`reload`](Self::reload) affects all of them.
#[derive(Clone)]
pub struct PeerTls(Arc<Inner>);

impl fmt::Debug for PeerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerTls").field("files", &self.0.files).finish_non_exhaustive()
    }
}

/// Error returned when a node cannot use its TLS files for sessions with the other nodes of its cluster.
#[derive(Debug, thiserror::Error)]
pub enum PeerTlsError {
    /// A certificate or key file cannot be read or used.
    #[error(transparent)]
    File(#[from] IdentityError),
    /// The certificates in the file of the authorities cannot serve as authorities.
    #[error("the certificates in {path} cannot be used as authorities: {reason}")]
    Authorities {
        /// Path of the file of the authorities.
        path: PathBuf,
        /// Reason why the certificates cannot serve as authorities.
        reason: String,
    },
    /// The other nodes would not accept the certificate of this node.
    #[error(
        "the other nodes would reject the certificate in {certificate}: {reason}; `thalweg cluster create-cert` makes one \
         that the authority in {authorities} signs"
    )]
    Rejected {
        /// Path of the node's certificate file.
        certificate: PathBuf,
        /// Path of the file with the certificates of the authorities.
        authorities: PathBuf,
        /// Reason why the other nodes would reject this node's certificate.
        reason: String,
    },
}

classified!(PeerTlsError {
    Self::File(error) => error.code(), Fix;
    Self::Authorities { .. } => "invalid_authorities", Fix;
    Self::Rejected { .. } => "certificate_rejected", Fix;
});

impl PeerTls {
    /// Creates the TLS configuration of a node in a cluster without an authority, with a certificate that only this
    /// process uses. The certificate does not identify the node. So inside the session both sides must prove that they
    /// know the cluster's secret, together with the [`binding`](PeerStream::binding).
    pub fn without_authority() -> Result<Self, IdentityError> {
        let identity = Identity::ephemeral(IpAddr::V4(Ipv4Addr::LOCALHOST))?;
        let verifier = Arc::new(AnyCertificate);
        let configs = configs(&identity, verifier.clone(), verifier);
        Ok(Self::of(None, configs))
    }

    /// Reads the files of a node whose cluster has an authority. Verifies that the other nodes will accept its
    /// certificate.
    pub fn with_authority(files: PeerTlsFiles) -> Result<Self, PeerTlsError> {
        let configs = read_files(&files)?;
        Ok(Self::of(Some(files), configs))
    }

    fn of(files: Option<PeerTlsFiles>, configs: Configs) -> Self {
        Self(Arc::new(Inner { files, configs: RwLock::new(Arc::new(configs)) }))
    }

    /// Returns true if the nodes' certificates are signed by an authority.
    #[must_use]
    pub fn has_authority(&self) -> bool {
        self.0.files.is_some()
    }

    /// Reads the files again. Later sessions use them; existing sessions continue. Blocks on file reads. If a file
    /// cannot be used, returns an error and changes nothing.
    pub fn reload(&self) -> Result<(), PeerTlsError> {
        if let Some(files) = &self.0.files {
            let configs = Arc::new(read_files(files)?);
            *self.0.configs.write().unwrap_or_else(PoisonError::into_inner) = configs;
        }
        Ok(())
    }

    /// Returns the validity of this node's certificate; `None` without an authority.
    #[must_use]
    pub fn validity(&self) -> Option<Validity> {
        self.0.files.as_ref().and_then(|_| self.configs().validity)
    }

    fn configs(&self) -> Arc<Configs> {
        Arc::clone(&self.0.configs.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Starts a session as the dialling side. `host` is the dialled host name or IP address.
    pub async fn connect<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S, host: &str) -> io::Result<PeerStream<S>> {
        // Without an authority the name is not verified, and the addresses of nodes may have any form.
        let name =
            if self.has_authority() { server_name(host)? } else { ServerName::from(IpAddr::from([127, 0, 0, 1])) };
        let connected = TlsConnector::from(Arc::clone(&self.configs().client)).connect(name, stream).await;
        Ok(PeerStream(connected.map_err(explained)?.into()))
    }

    /// Starts a session as the accepting side.
    pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S) -> io::Result<PeerStream<S>> {
        let accepted = TlsAcceptor::from(Arc::clone(&self.configs().server)).accept(stream).await;
        Ok(PeerStream(accepted.map_err(explained)?.into()))
    }
}

/// Returns an explanation for a TLS error that has one cause: the peer's certificate was signed by another authority
/// than expected. The error's own text does not say so: it states a bad signature if both authorities have the same
/// name, otherwise an unknown issuer. Returns `None` for other errors.
fn meaning(error: &Error) -> Option<&'static str> {
    match error {
        Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            Some("the certificate is signed by another authority, or by none")
        }
        Error::AlertReceived(AlertDescription::UnknownCA | AlertDescription::DecryptError) => {
            Some("the other node says that this node's certificate is signed by another authority, or by none")
        }
        _ => None,
    }
}

/// Appends the explanation that [`meaning`] has for a TLS error to the error's text. Other errors stay unchanged.
fn explained(error: io::Error) -> io::Error {
    let meaning = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()).and_then(meaning);
    match meaning {
        Some(meaning) => io::Error::new(error.kind(), format!("{error}: {meaning}")),
        None => error,
    }
}

fn server_name(host: &str) -> io::Result<ServerName<'static>> {
    ServerName::try_from(host.to_owned())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, format!("{host:?} is not the name of a host")))
}

fn configs(identity: &Identity, server: Arc<dyn ServerCertVerifier>, client: Arc<dyn ClientCertVerifier>) -> Configs {
    Configs {
        server: tls::peer_server_config(identity.key(), client, ALPN),
        client: tls::peer_client_config(identity.key(), server, ALPN),
        validity: identity.validity(),
    }
}

fn read_files(files: &PeerTlsFiles) -> Result<Configs, PeerTlsError> {
    let unusable = |reason: String| PeerTlsError::Authorities { path: files.authorities.clone(), reason };
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(&files.authorities)? {
        roots.add(certificate).map_err(|error| unusable(error.to_string()))?;
    }
    let (roots, provider) = (Arc::new(roots), Arc::new(tls::provider()));
    let server = WebPkiServerVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider)).build();
    let server = server.map_err(|error| unusable(error.to_string()))?;
    let client = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider)).build();
    let client = client.map_err(|error| unusable(error.to_string()))?;
    let identity = Identity::from_pem_files(&files.certificate, &files.key)?;
    let key = identity.key();
    let check = || {
        let (own, chain) = key.cert.split_first().ok_or(Error::NoCertificatesPresented)?;
        let algorithms = provider.signature_verification_algorithms.all;
        let parsed = ParsedCertificate::try_from(own)?;
        verify_server_cert_signed_by_trust_anchor(&parsed, &roots, chain, UnixTime::now(), algorithms)?;
        client.verify_client_cert(own, chain, UnixTime::now()).map(drop)
    };
    check().map_err(|error| PeerTlsError::Rejected {
        certificate: files.certificate.clone(),
        authorities: files.authorities.clone(),
        reason: meaning(&error).map_or_else(|| error.to_string(), |meaning| format!("{error}: {meaning}")),
    })?;
    Ok(configs(&identity, server, client))
}

/// A TLS session between two nodes.
#[derive(Debug)]
pub struct PeerStream<S>(TlsStream<S>);

impl<S> PeerStream<S> {
    /// Returns the value that identifies this session. Both ends get the same value, and no other session has it.
    pub fn binding(&self) -> io::Result<[u8; 32]> {
        let exported = match &self.0 {
            TlsStream::Client(stream) => stream.get_ref().1.export_keying_material([0; 32], BINDING_LABEL, None),
            TlsStream::Server(stream) => stream.get_ref().1.export_keying_material([0; 32], BINDING_LABEL, None),
        };
        exported.map_err(io::Error::other)
    }

    /// Returns true if the peer's certificate names `host`, which is a host name or an IP address.
    #[must_use]
    pub fn peer_is(&self, host: &str) -> bool {
        let certificates = self.0.get_ref().1.peer_certificates();
        let Some(certificate) = certificates.and_then(<[_]>::first) else { return false };
        let (Ok(parsed), Ok(name)) = (ParsedCertificate::try_from(certificate), server_name(host)) else {
            return false;
        };
        verify_server_name(&parsed, &name).is_ok()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for PeerStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        // In TLS 1.3 the dialling side sees a rejection of its certificate only in its first read.
        Pin::new(&mut self.0).poll_read(cx, buf).map_err(explained)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for PeerStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// Verifier that accepts every certificate if the peer proves that it has the private key.
#[derive(Debug)]
struct AnyCertificate;

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    tls::check_signatures!(self, tls::provider().signature_verification_algorithms);
}

/// Verifier of an accepting node without an authority. It requests no certificate from the dialling side, so there is
/// none to verify.
impl ClientCertVerifier for AnyCertificate {
    fn offer_client_auth(&self) -> bool {
        false
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    tls::check_signatures!(self, tls::provider().signature_verification_algorithms);
}
