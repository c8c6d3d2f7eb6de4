//! A server's identity: a certificate chain and its private key.
//!
//! A configured identity is read from PEM files. Without one, the server generates a self-signed *development
//! certificate* and keeps it in its own directory. No authority signs that certificate, so a client pins its
//! [`Fingerprint`].
//!
//! Write order: the key first, then the certificate. Each file is written under a temporary name, synced and renamed.
//! So a directory with a certificate also has its key. In a directory without a certificate, both are generated again.

use std::{
    net::IpAddr,
    path::Path,
    sync::{Arc, PoisonError, RwLock},
};

use rustls::{
    ServerConfig,
    pki_types::{PrivateKeyDer, pem::PemObject as _},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};

use crate::{
    certificate::{Fingerprint, IdentityError, pem_error, read, read_certificates, write_private},
    tls,
};

/// File name of the development certificate in the server's directory. Clients can use this file as
/// [`Trust`](crate::Trust).
pub const CERTIFICATE_FILE: &str = "native-certificate.pem";
/// File name of the development certificate's private key. Only the file's owner can read it.
pub const KEY_FILE: &str = "native-key.pem";

/// Validity period of a certificate, in seconds since 1970; both ends are inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// First second in which the certificate is valid.
    pub not_before: i64,
    /// Last second in which the certificate is valid.
    pub not_after: i64,
}

/// A certificate chain and its private key. Cheap to clone; clones share one state, so
/// [`replace`](Self::replace) affects all of them. The debug form does not show the key.
#[derive(Clone)]
pub struct Identity {
    key: Arc<RwLock<Arc<CertifiedKey>>>,
}

impl Identity {
    /// Reads a server's identity from two PEM files: one with the certificate and its intermediate
    /// certificates, and one with the private key.
    pub fn from_pem_files(certificates: &Path, key: &Path) -> Result<Self, IdentityError> {
        let chain = read_certificates(certificates)?;
        let private =
            PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|error| pem_error(key, "a private key", &error))?;
        let certified = CertifiedKey::from_der(chain, private, &tls::provider()).map_err(|error| {
            IdentityError::Unusable { certificates: certificates.into(), key: key.into(), reason: error.to_string() }
        })?;
        Ok(Self::of(certified))
    }

    /// Reads the development certificate of `directory`, or generates one if the directory has none. The
    /// certificate is valid for `localhost`, the loopback addresses and `address`.
    pub fn development(directory: &Path, address: IpAddr) -> Result<Self, IdentityError> {
        let (certificate, key) = (directory.join(CERTIFICATE_FILE), directory.join(KEY_FILE));
        let is_there = certificate.try_exists().map_err(|error| IdentityError::io(&certificate, error))?;
        if !is_there {
            generate(&certificate, &key, address)?;
        }
        Self::from_pem_files(&certificate, &key)
    }

    /// Generates a development certificate in memory only; it is lost when the process ends.
    pub fn ephemeral(address: IpAddr) -> Result<Self, IdentityError> {
        let made = self_signed(address)?;
        let chain = vec![made.cert.der().clone()];
        let private = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
        let certified = CertifiedKey::from_der(chain, private, &tls::provider())
            .map_err(|error| IdentityError::Generate { reason: error.to_string() })?;
        Ok(Self::of(certified))
    }

    fn of(certified: CertifiedKey) -> Self {
        Self { key: Arc::new(RwLock::new(Arc::new(certified))) }
    }

    /// Replaces certificate and key by those of `other` for later handshakes. Existing connections continue.
    pub fn replace(&self, other: &Self) {
        let key = other.key();
        *self.key.write().unwrap_or_else(PoisonError::into_inner) = key;
    }

    /// SHA-256 hash of the certificate. A client that stores this hash trusts only this certificate.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        // The chain is never empty: both constructors require a certificate.
        Fingerprint::of(&self.key().cert[0])
    }

    /// Period in which the certificate and all intermediate certificates are valid. `None` if one of them
    /// cannot be parsed.
    #[must_use]
    pub fn validity(&self) -> Option<Validity> {
        let all: Option<Vec<_>> = self.key().cert.iter().map(|certificate| validity(certificate)).collect();
        all?.into_iter().reduce(|one, other| Validity {
            not_before: one.not_before.max(other.not_before),
            not_after: one.not_after.min(other.not_after),
        })
    }

    /// TLS configuration of a server with this identity.
    pub(crate) fn server_config(&self) -> Arc<ServerConfig> {
        tls::server_config(Arc::new(CurrentIdentity(self.clone())))
    }

    pub(crate) fn key(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.key.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Certificate resolver that returns the identity's current certificate at each handshake.
#[derive(Debug)]
struct CurrentIdentity(Identity);

impl ResolvesServerCert for CurrentIdentity {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.key())
    }
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").field("fingerprint", &self.fingerprint()).finish_non_exhaustive()
    }
}

fn validity(certificate: &[u8]) -> Option<Validity> {
    let (_, read) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let validity = read.validity();
    Some(Validity { not_before: validity.not_before.timestamp(), not_after: validity.not_after.timestamp() })
}

fn generate(certificate: &Path, key: &Path, address: IpAddr) -> Result<(), IdentityError> {
    let made = self_signed(address)?;
    write_private(key, &made.signing_key.serialize_pem())?;
    write_private(certificate, &made.cert.pem())
}

fn self_signed(address: IpAddr) -> Result<rcgen::CertifiedKey<rcgen::KeyPair>, IdentityError> {
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    if !address.is_unspecified() && !address.is_loopback() {
        names.push(address.to_string());
    }
    rcgen::generate_simple_self_signed(names).map_err(|error| IdentityError::Generate { reason: error.to_string() })
}
