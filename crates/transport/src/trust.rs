//! Rules by which a client trusts a server: it either knows the fingerprint of the server's certificate, or it has the
//! certificate of the authority that signed it. The system's root certificates are never used, because the safety of
//! private data should not depend on public authorities.

use std::{fmt, path::Path, str::FromStr, sync::Arc};

use rustls::{
    CertificateError, ClientConfig, Error, RootCertStore,
    client::{
        WebPkiServerVerifier,
        danger::{ServerCertVerified, ServerCertVerifier},
    },
    crypto::CryptoProvider,
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use thalweg_types::classified;

use crate::{
    certificate::{Fingerprint, IdentityError, read_certificates},
    tls,
};

/// Parses a fingerprint from 64 hexadecimal digits, with optional colons between them.
impl FromStr for Fingerprint {
    type Err = TrustError;

    fn from_str(text: &str) -> Result<Self, TrustError> {
        let wrong = || TrustError::Fingerprint { got: text.to_owned() };
        let digits: Option<Vec<u8>> = text
            .chars()
            .filter(|at| *at != ':')
            .map(|digit| digit.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
            .collect();
        let digits = digits.ok_or_else(wrong)?;
        let (pairs, rest) = digits.as_chunks::<2>();
        let bytes: Vec<u8> = pairs.iter().map(|[high, low]| high << 4 | low).collect();
        if rest.is_empty() { bytes.try_into().map(Self).map_err(|_| wrong()) } else { Err(wrong()) }
    }
}

/// Rule by which a client trusts a server or rejects it. Cheap to clone; create the rule once and share it.
#[derive(Clone)]
pub struct Trust {
    config: Arc<ClientConfig>,
    what: TrustAnchor,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum TrustAnchor {
    Fingerprint(Fingerprint),
    Authorities(Vec<CertificateDer<'static>>),
}

impl Trust {
    /// Creates a rule that trusts exactly the server with this certificate fingerprint. Names and validity are not
    /// checked.
    #[must_use]
    pub fn fingerprint(fingerprint: Fingerprint) -> Self {
        let verifier = Pinned { fingerprint, provider: tls::provider() };
        Self { config: tls::client_config(Arc::new(verifier)), what: TrustAnchor::Fingerprint(fingerprint) }
    }

    /// Creates a rule that trusts servers whose certificate is in a PEM file or signed by a certificate in it. The
    /// certificate must be valid for the server's name.
    pub fn pem_file(path: &Path) -> Result<Self, TrustError> {
        let authorities = read_certificates(path)?;
        let unusable = |reason: String| TrustError::Authorities { path: path.display().to_string(), reason };
        let mut roots = RootCertStore::empty();
        for certificate in &authorities {
            roots.add(certificate.clone()).map_err(|error| unusable(error.to_string()))?;
        }
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::new(tls::provider()))
            .build()
            .map_err(|error| unusable(error.to_string()))?;
        Ok(Self { config: tls::client_config(verifier), what: TrustAnchor::Authorities(authorities) })
    }

    pub(crate) fn config(&self) -> &Arc<ClientConfig> {
        &self.config
    }
}

impl PartialEq for Trust {
    fn eq(&self, other: &Self) -> bool {
        self.what == other.what
    }
}

impl Eq for Trust {}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.what {
            TrustAnchor::Fingerprint(fingerprint) => write!(f, "Trust({fingerprint:?})"),
            TrustAnchor::Authorities(all) => write!(f, "Trust({} authorities)", all.len()),
        }
    }
}

/// Verifier that accepts exactly one certificate, if the peer proves that it has the private key.
#[derive(Debug)]
struct Pinned {
    fingerprint: Fingerprint,
    provider: CryptoProvider,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        // Both fingerprints are public, so the comparison need not take constant time.
        if Fingerprint::of(end_entity) == self.fingerprint {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }

    tls::check_signatures!(self, self.provider.signature_verification_algorithms);
}

/// Error returned when a [`Trust`] or a [`Fingerprint`] cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The text is not a fingerprint.
    #[error("{got:?} is not a fingerprint: it has 64 hexadecimal digits, as the server prints it when it starts")]
    Fingerprint {
        /// Text that was to be parsed as a fingerprint.
        got: String,
    },
    /// The certificate file cannot be read.
    #[error(transparent)]
    File(#[from] IdentityError),
    /// The certificates in the PEM file cannot serve as authorities.
    #[error("the certificates in {path} cannot be used as authorities: {reason}")]
    Authorities {
        /// Path of the PEM file.
        path: String,
        /// Reason why the certificates cannot serve as authorities.
        reason: String,
    },
}

classified!(TrustError {
    Self::Fingerprint { .. } => "invalid_fingerprint", Fix;
    Self::File(error) => error.code(), Fix;
    Self::Authorities { .. } => "invalid_authorities", Fix;
});
