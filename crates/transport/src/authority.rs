//! A certificate authority of one cluster, and the certificates of its nodes.
//!
//! Owns: creating the authority and the certificates, and the files that contain them. Does not own: verifying
//! certificates (see [`PeerTls`](crate::PeerTls)).
//!
//! Invariant: an existing file is replaced only if the caller requests it. Only the owner of a key file can read it.

use std::{
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

use rustls::pki_types::ServerName;

use crate::{
    certificate::{IdentityError, read, write_private},
    identity::Validity,
};

/// File name of the certificate of an authority.
pub const AUTHORITY_FILE: &str = "cluster-ca.pem";
/// File name of the private key of an authority.
pub const AUTHORITY_KEY_FILE: &str = "cluster-ca-key.pem";

/// A new certificate is valid from this time before its creation on, because the clock of a machine that verifies it
/// may be behind.
const CLOCK_DIFFERENCE: Duration = Duration::from_secs(3600);

impl Validity {
    /// Returns the validity of a certificate that is created now and expires after this number of days.
    #[must_use]
    pub fn for_days(days: u32) -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        let days = Duration::from_secs(u64::from(days) * 24 * 3600);
        Self { not_before: seconds(now.saturating_sub(CLOCK_DIFFERENCE)), not_after: seconds(now + days) }
    }

    fn set(self, params: &mut CertificateParams) {
        let at = |seconds: i64| {
            rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
        };
        (params.not_before, params.not_after) = (at(self.not_before), at(self.not_after));
    }
}

/// Paths of a certificate and of its private key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// Path of the certificate file, in PEM form.
    pub certificate: PathBuf,
    /// Path of the private key file, in PEM form.
    pub key: PathBuf,
}

/// Choice between keeping and replacing certificate and key files that already exist where new ones are to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// Keeps the existing certificate and key files. Writing new ones in their place fails.
    Keep,
    /// Replaces the existing certificate and key files.
    Replace,
}

/// Certificate authority that signs the certificates of a cluster's nodes.
pub struct Authority(Issuer<'static, KeyPair>);

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Authority")
    }
}

fn failed(error: impl std::fmt::Display) -> IdentityError {
    IdentityError::Generate { reason: error.to_string() }
}

/// Returns a name for an authority. The name ends with a part of the authority's public key, so that two authorities
/// rarely share a name.
fn unique_name(key: &KeyPair) -> String {
    let public = key.public_key_raw();
    let end: String = public[public.len().saturating_sub(4)..].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("Thalweg cluster {end}")
}

impl CertificateFiles {
    /// Returns the paths of an authority's certificate and key in a directory.
    #[must_use]
    pub fn of_authority(directory: &Path) -> Self {
        Self { certificate: directory.join(AUTHORITY_FILE), key: directory.join(AUTHORITY_KEY_FILE) }
    }

    /// Returns the paths of a node's certificate and key in a directory.
    #[must_use]
    pub fn of_node(directory: &Path, name: &str) -> Self {
        Self { certificate: directory.join(format!("{name}.pem")), key: directory.join(format!("{name}-key.pem")) }
    }

    /// Writes the key file, then the certificate file. So if the directory has the new certificate, it also has the
    /// certificate's key.
    fn write(&self, certificate: &Certificate, key: &KeyPair, existing: Existing) -> Result<(), IdentityError> {
        for path in [&self.certificate, &self.key] {
            let is_there = path.try_exists().map_err(|error| IdentityError::io(path, error))?;
            if is_there && existing == Existing::Keep {
                return Err(IdentityError::Exists { path: path.clone() });
            }
        }
        write_private(&self.key, &key.serialize_pem())?;
        write_private(&self.certificate, &certificate.pem())
    }
}

impl Authority {
    /// Creates an authority and writes its files. If `name` is `None`, the authority gets a unique name, because TLS
    /// libraries can confuse two authorities with one name.
    pub fn create(files: &CertificateFiles, name: Option<&str>, validity: Validity) -> Result<(), IdentityError> {
        let key = KeyPair::generate().map_err(failed)?;
        let name = name.map_or_else(|| unique_name(&key), str::to_owned);
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        validity.set(&mut params);
        let certificate = params.self_signed(&key).map_err(failed)?;
        files.write(&certificate, &key, Existing::Keep)
    }

    /// Reads an authority from its files.
    pub fn read(files: &CertificateFiles) -> Result<Self, IdentityError> {
        let text = |path: &Path| Ok::<_, IdentityError>(String::from_utf8_lossy(&read(path)?).into_owned());
        let unusable = |error: rcgen::Error| IdentityError::Unusable {
            certificates: files.certificate.clone(),
            key: files.key.clone(),
            reason: error.to_string(),
        };
        let key = KeyPair::from_pem(&text(&files.key)?).map_err(unusable)?;
        Issuer::from_ca_cert_pem(&text(&files.certificate)?, key).map(Self).map_err(unusable)
    }

    /// Creates a certificate for a node. `names` are the node's name in the cluster, its host names and its IP
    /// addresses. The certificate is valid for TLS clients and for TLS servers, because a node both dials and accepts.
    pub fn issue(
        &self,
        files: &CertificateFiles,
        names: &[String],
        validity: Validity,
        existing: Existing,
    ) -> Result<(), IdentityError> {
        for name in names {
            ServerName::try_from(name.as_str()).map_err(|_| IdentityError::Name { name: name.clone() })?;
        }
        let mut params = CertificateParams::new(names).map_err(failed)?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        if let Some(first) = names.first() {
            params.distinguished_name.push(DnType::CommonName, first);
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        validity.set(&mut params);
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = params.signed_by(&key, &self.0).map_err(failed)?;
        files.write(&certificate, &key, existing)
    }
}
