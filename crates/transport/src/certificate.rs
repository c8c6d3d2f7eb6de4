//! Certificates: PEM files that contain them, and their fingerprints.
//!
//! Does not own: the use of a certificate by a server (see [`identity`](crate::identity)), or a client's decision to
//! trust one (see [`trust`](crate::trust)).

use std::{
    fmt,
    fs::{self, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use rustls::pki_types::{
    CertificateDer,
    pem::{Error as PemError, PemObject as _},
};
use thalweg_types::classified;

/// Maximum bytes of a PEM file. Reading a larger file returns the error [`IdentityError::TooLarge`].
pub const MAX_PEM_BYTES: u64 = 1024 * 1024;

/// SHA-256 hash of a certificate. A client recognises a server by it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub(crate) [u8; 32]);

impl Fingerprint {
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Self {
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, certificate);
        Self(digest.as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
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

/// Reads a PEM file of at most [`MAX_PEM_BYTES`].
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, IdentityError> {
    let failed = |error| IdentityError::io(path, error);
    let file = fs::File::open(path).map_err(failed)?;
    let mut length = file.metadata().map_err(failed)?.len();
    let mut bytes = Vec::new();
    if length <= MAX_PEM_BYTES {
        // A pipe or a device has no length in its metadata and may never end, so the read itself is limited.
        file.take(MAX_PEM_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
        length = bytes.len() as u64;
    }
    if length > MAX_PEM_BYTES { Err(IdentityError::TooLarge { path: path.into(), length }) } else { Ok(bytes) }
}

pub(crate) fn pem_error(path: &Path, expected: &'static str, error: &PemError) -> IdentityError {
    let reason = match error {
        PemError::NoItemsFound => "the file contains none".to_owned(),
        error => error.to_string(),
    };
    IdentityError::Pem { path: path.into(), expected, reason }
}

/// Atomically writes a file that only its owner can read.
pub(crate) fn write_private(path: &Path, text: &str) -> Result<(), IdentityError> {
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

/// Error returned when a certificate or a key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A certificate or key file could not be read or written.
    #[error("cannot read or write {path}: {error}")]
    File {
        /// Path of the certificate or key file.
        path: PathBuf,
        /// Error that the operating system returned for the file.
        error: io::Error,
    },
    /// A certificate or key file exceeds [`MAX_PEM_BYTES`].
    #[error("{path} has {length} bytes; a PEM file of certificates or keys has at most {MAX_PEM_BYTES}")]
    TooLarge {
        /// Path of the file that is too large.
        path: PathBuf,
        /// Size in bytes of the file that is too large.
        length: u64,
    },
    /// A file does not contain the expected PEM items, such as a certificate or a private key.
    #[error("{path} must contain {expected} in PEM form: {reason}")]
    Pem {
        /// Path of the file without the expected item.
        path: PathBuf,
        /// Kind of PEM item that the file should contain, such as a private key.
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
    /// A file exists already, and may not be replaced.
    #[error("{path} exists already; remove it, or choose another directory")]
    Exists {
        /// Path of the file that exists already.
        path: PathBuf,
    },
    /// A certificate cannot have this name, because it is not a valid host name or IP address.
    #[error("{name:?} is neither a host name nor an IP address, so a certificate cannot have it")]
    Name {
        /// Name that was requested for the certificate and is not valid.
        name: String,
    },
    /// A certificate could not be generated.
    #[error("cannot generate a certificate: {reason}")]
    Generate {
        /// Error text of the library that generates certificates.
        reason: String,
    },
}

impl IdentityError {
    pub(crate) fn io(path: &Path, error: io::Error) -> Self {
        Self::File { path: path.into(), error }
    }
}

classified!(IdentityError {
    Self::File { .. } => "certificate_file", Fix;
    Self::TooLarge { .. } | Self::Pem { .. } => "certificate_pem", Fix;
    Self::Unusable { .. } => "certificate_key", Fix;
    Self::Name { .. } => "certificate_name", Fix;
    Self::Exists { .. } => "certificate_exists", Fix;
    Self::Generate { .. } => "certificate_generate", Stop;
});
