//! A server's identity: a certificate chain and its private key.
//!
//! A configured identity is read from PEM files. Without one, the server generates a self-signed *development
//! certificate* and keeps it in its own directory. No authority signs that certificate, so a client pins its
//! [`Fingerprint`].
//!
//! Write order: the key first, then the certificate. Each file is written under a temporary name, synced and
//! renamed. So a directory that has a certificate also has its key; a directory without a certificate gets a
//! new pair.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write as _},
    net::IpAddr,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
};

use rustls::{
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{Error as PemError, PemObject as _},
    },
    sign::CertifiedKey,
};
use thalweg_types::{Action, Classified};

use crate::{tls, trust::Fingerprint};

/// File name of the development certificate in the server's directory. Clients can use this file as
/// [`Trust`](crate::Trust).
pub const CERTIFICATE_FILE: &str = "native-certificate.pem";
/// File name of the development certificate's private key. Only the file's owner can read it.
pub const KEY_FILE: &str = "native-key.pem";

/// Maximum bytes of a PEM file. Reading a larger file returns the error [`IdentityError::TooLarge`].
pub const MAX_PEM_BYTES: u64 = 1024 * 1024;

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

    pub(crate) fn key(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.key.read().unwrap_or_else(PoisonError::into_inner))
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

/// Atomically writes a file that only its owner can read.
fn write_private(path: &Path, text: &str) -> Result<(), IdentityError> {
    let unfinished = path.with_extension("pem.tmp");
    let write = || {
        match fs::remove_file(&unfinished) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // Never reuses an existing file, because another user may have created it with wider permissions.
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&unfinished, path)?;
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        fs::File::open(directory)?.sync_all()
    };
    write().map_err(|error| IdentityError::io(path, error))
}

/// Reads all certificates of a PEM file. A file without certificates is an error.
pub(crate) fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let pem = read(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(found) if found.is_empty() => Err(pem_error(path, "a certificate", &PemError::NoItemsFound)),
        Ok(found) => Ok(found),
        Err(error) => Err(pem_error(path, "a certificate", &error)),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, IdentityError> {
    let length = fs::metadata(path).map_err(|error| IdentityError::io(path, error))?.len();
    if length > MAX_PEM_BYTES {
        return Err(IdentityError::TooLarge { path: path.into(), length });
    }
    fs::read(path).map_err(|error| IdentityError::io(path, error))
}

fn pem_error(path: &Path, expected: &'static str, error: &PemError) -> IdentityError {
    let reason = match error {
        PemError::NoItemsFound => "the file contains none".to_owned(),
        error => error.to_string(),
    };
    IdentityError::Pem { path: path.into(), expected, reason }
}

/// Error returned when a certificate or a key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A certificate or key file could not be read or written.
    #[error("cannot read or write {path}: {error}")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        error: io::Error,
    },
    /// A certificate or key file exceeds [`MAX_PEM_BYTES`].
    #[error("{path} has {length} bytes; a PEM file of certificates or keys has at most {MAX_PEM_BYTES}")]
    TooLarge {
        /// Path of the file.
        path: PathBuf,
        /// Size of the file in bytes.
        length: u64,
    },
    /// A file does not contain the expected PEM items, such as a certificate or a private key.
    #[error("{path} must contain {expected} in PEM form: {reason}")]
    Pem {
        /// Path of the file without the expected item.
        path: PathBuf,
        /// The kind of item expected.
        expected: &'static str,
        /// Description of the parse error or of the missing item.
        reason: String,
    },
    /// Certificate and key do not match, or the kind of key is not supported.
    #[error("the key in {key} cannot be used with the certificate in {certificates}: {reason}")]
    Unusable {
        /// Path of the certificate file.
        certificates: PathBuf,
        /// Path of the key file.
        key: PathBuf,
        /// Reason why key and certificate cannot be used together.
        reason: String,
    },
    /// The development certificate could not be generated.
    #[error("cannot generate a development certificate: {reason}")]
    Generate {
        /// Error text of the library that generates certificates.
        reason: String,
    },
}

impl IdentityError {
    fn io(path: &Path, error: io::Error) -> Self {
        Self::File { path: path.into(), error }
    }
}

impl Classified for IdentityError {
    fn code(&self) -> &'static str {
        match self {
            Self::File { .. } => "certificate_file",
            Self::TooLarge { .. } | Self::Pem { .. } => "certificate_pem",
            Self::Unusable { .. } => "certificate_key",
            Self::Generate { .. } => "certificate_generate",
        }
    }

    fn action(&self) -> Action {
        match self {
            Self::Generate { .. } => Action::Stop,
            _ => Action::Fix,
        }
    }
}
