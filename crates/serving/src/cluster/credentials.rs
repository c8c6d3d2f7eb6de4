//! Credentials of a cluster: its id, the secret that its nodes share, and the hash of the administrators' token.
//!
//! ```text
//! "thalweg-join-" | base64url( version u8 = 1 | cluster id 16 bytes | secret 32 bytes | SHA-256 of the admin token | check 4 bytes )
//! ```
//! Owns: their text form, which is also the join token of a new node; their file in the data directory; the check of an
//! administrator's token. Does not own: the handshake in which nodes prove to each other that they know the secret.
//!
//! Invariants: the admin token itself is stored nowhere. It has 256 random bits, so its hash needs no salt and no slow
//! hash function. Only the file's owner can read the file. A comparison takes the same time for all wrong tokens of one
//! length.

use std::{
    fmt, fs,
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use aws_lc_rs::{
    constant_time::verify_slices_are_equal,
    digest::{SHA256, digest},
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use thalweg_types::{ClusterId, classified};

/// Name of the file of the credentials in the data directory of a member.
pub const CREDENTIALS_FILE: &str = "CLUSTER";

/// Suffix of the file `CLUSTER.NUMBER.new` while it is being written. Earlier versions used the name `CLUSTER.new`.
const UNFINISHED_SUFFIX: &str = ".new";

const JOIN_PREFIX: &str = "thalweg-join-";
const ADMIN_PREFIX: &str = "thalweg-admin-";
const VERSION: u8 = 1;
const SECRET_BYTES: usize = 32;
const ENCODED_BYTES: usize = 1 + 16 + SECRET_BYTES + 32 + CHECK_BYTES;
/// Length in bytes of the checksum at the end of a join token. It detects tokens that were copied incompletely.
const CHECK_BYTES: usize = 4;
/// Maximum number of bytes that are read from a file of credentials.
const MAX_FILE_BYTES: u64 = 4096;

/// Error in the credentials of a cluster.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// The text is not a join token, or was not copied completely.
    #[error("this is not a join token, or not all of it: `thalweg cluster join-token` prints one")]
    Malformed,
    /// The join token has a newer format version than this program can read.
    #[error("the join token has version {version}, and this program knows version 1: upgrade it")]
    Version {
        /// Format version of the join token.
        version: u8,
    },
    /// The file of the credentials cannot be read or written.
    #[error("{path}: {error}")]
    Io {
        /// Path of the file with the credentials.
        path: PathBuf,
        /// Error of the operating system.
        error: io::Error,
    },
    /// The directory already has credentials, because another process has written them at the same time.
    #[error(
        "another start has just written {path}: start again if none runs, and the directory belongs to its cluster"
    )]
    Exists {
        /// Path of the file with the credentials.
        path: PathBuf,
    },
    /// The file does not contain credentials.
    #[error("{path} does not hold the credentials of a cluster: restore it from another member's directory")]
    File {
        /// Path of the file that should contain credentials.
        path: PathBuf,
    },
    /// The operating system could not supply random bytes for a new secret or token.
    #[error("the system returned no random bytes")]
    Random,
}

classified! {
    CredentialsError {
        Self::Malformed => "bad_join_token", Fix;
        Self::Version { .. } => "bad_join_token", Fix;
        Self::Io { .. } => "credentials_file", Stop;
        Self::Exists { .. } => "credentials_file", Stop;
        Self::File { .. } => "credentials_file", Stop;
        Self::Random => "no_randomness", Stop;
    }
}

/// Token by which administrators prove that they may change a cluster. It is shown once, when the cluster is created.
#[derive(Clone)]
pub struct AdminToken(String);

impl AdminToken {
    /// Creates a random administrators' token.
    pub fn random() -> Result<Self, CredentialsError> {
        Ok(Self(format!("{ADMIN_PREFIX}{}", URL_SAFE_NO_PAD.encode(random::<32>()?))))
    }

    /// Returns the token, to show it to the person who creates the cluster.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for AdminToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AdminToken")
    }
}

/// Credentials of a cluster, which each of its members stores.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// Id of the cluster to which the credentials belong.
    pub cluster: ClusterId,
    secret: [u8; SECRET_BYTES],
    admin_hash: [u8; 32],
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({})", self.cluster)
    }
}

impl Credentials {
    /// Creates the credentials of a new cluster with a random id, and the token of its administrators.
    pub fn random() -> Result<(Self, AdminToken), CredentialsError> {
        Self::of_cluster(ClusterId(u128::from_le_bytes(random()?)))
    }

    /// Creates the credentials of a new cluster that has this id, and the token of its administrators.
    pub fn of_cluster(cluster: ClusterId) -> Result<(Self, AdminToken), CredentialsError> {
        let admin = AdminToken::random()?;
        let credentials = Self { cluster, secret: random()?, admin_hash: hash_of(admin.0.as_bytes()) };
        Ok((credentials, admin))
    }

    /// Returns the secret that the nodes of the cluster share.
    #[must_use]
    pub fn secret(&self) -> &[u8; SECRET_BYTES] {
        &self.secret
    }

    /// Returns true if `presented` is the administrators' token.
    #[must_use]
    pub fn permits(&self, presented: &[u8]) -> bool {
        verify_slices_are_equal(&hash_of(presented), &self.admin_hash).is_ok()
    }

    /// Replaces the administrators' token by a new one, on this node only. Returns the new token.
    pub fn replace_admin(&mut self) -> Result<AdminToken, CredentialsError> {
        let admin = AdminToken::random()?;
        self.admin_hash = hash_of(admin.0.as_bytes());
        Ok(admin)
    }

    /// Returns the credentials as a join token. A node with this token can join the cluster.
    #[must_use]
    pub fn join_token(&self) -> String {
        let mut bytes = Vec::with_capacity(ENCODED_BYTES);
        bytes.push(VERSION);
        bytes.extend_from_slice(&self.cluster.0.to_le_bytes());
        bytes.extend_from_slice(&self.secret);
        bytes.extend_from_slice(&self.admin_hash);
        let check = hash_of(&bytes);
        bytes.extend_from_slice(&check[..CHECK_BYTES]);
        format!("{JOIN_PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes))
    }

    /// Parses the text of a join token into the credentials that it contains.
    pub fn parse(token: &str) -> Result<Self, CredentialsError> {
        let encoded = token.trim().strip_prefix(JOIN_PREFIX).ok_or(CredentialsError::Malformed)?;
        let bytes = URL_SAFE_NO_PAD.decode(encoded).map_err(|_| CredentialsError::Malformed)?;
        match bytes.first() {
            Some(&VERSION) => {}
            Some(&version) => return Err(CredentialsError::Version { version }),
            None => return Err(CredentialsError::Malformed),
        }
        let bytes: [u8; ENCODED_BYTES] = bytes.try_into().map_err(|_| CredentialsError::Malformed)?;
        let (content, check) = bytes.split_at(ENCODED_BYTES - CHECK_BYTES);
        if hash_of(content)[..CHECK_BYTES] != *check {
            return Err(CredentialsError::Malformed);
        }
        let part = |from: usize| content[from..].first_chunk().copied().ok_or(CredentialsError::Malformed);
        let cluster =
            content[1..].first_chunk().copied().map(u128::from_le_bytes).ok_or(CredentialsError::Malformed)?;
        let cluster = ClusterId(cluster);
        Ok(Self { cluster, secret: part(17)?, admin_hash: part(49)? })
    }

    /// Reads the credentials that a file holds. Returns `None` if the file does not exist.
    pub fn read(path: &Path) -> Result<Option<Self>, CredentialsError> {
        let failed = |error| CredentialsError::Io { path: path.to_owned(), error };
        let file = match fs::File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let mut text = String::new();
        io::Read::read_to_string(&mut io::Read::take(file, MAX_FILE_BYTES), &mut text).map_err(failed)?;
        Self::parse(&text).map(Some).map_err(|_| CredentialsError::File { path: path.to_owned() })
    }

    /// Reads the credentials of a data directory. Returns `None` if it has none.
    pub fn of_directory(dir: &Path) -> Result<Option<Self>, CredentialsError> {
        Self::read(&dir.join(CREDENTIALS_FILE))
    }

    /// Writes the credentials to a data directory, atomically and durably: after a crash the file is either complete or
    /// as it was. Only the owner can read the file. Also removes unfinished files that killed processes left.
    pub fn write(&self, dir: &Path) -> Result<(), CredentialsError> {
        self.write_by(dir, |unfinished, path| fs::rename(unfinished, path))
    }

    /// Writes the credentials, like [`write`](Self::write), to a directory that has none. If two processes do so at the
    /// same time, one of them gets [`CredentialsError::Exists`].
    pub fn write_new(&self, dir: &Path) -> Result<(), CredentialsError> {
        self.write_by(dir, |unfinished, path| match fs::hard_link(unfinished, path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                // The file system does not support links.
                if path.try_exists()? { Err(io::ErrorKind::AlreadyExists.into()) } else { fs::rename(unfinished, path) }
            }
            linked => linked,
        })
    }

    /// Writes the credentials to a new file. `finish` then gives the file its final name.
    fn write_by(
        &self,
        dir: &Path,
        finish: impl FnOnce(&Path, &Path) -> io::Result<()>,
    ) -> Result<(), CredentialsError> {
        let path = dir.join(CREDENTIALS_FILE);
        let number = u64::from_le_bytes(random()?);
        let unfinished = dir.join(format!("{CREDENTIALS_FILE}.{number:016x}{UNFINISHED_SUFFIX}"));
        let written = || {
            // The file must be new. So it is no symbolic link, no other user can read it, and no other process writes
            // to it.
            let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished)?;
            writeln!(file, "{}", self.join_token())?;
            file.sync_all()?;
            finish(&unfinished, &path)?;
            remove_unfinished(dir);
            fs::File::open(dir)?.sync_all()
        };
        written().map_err(|error| {
            // If the file cannot be removed now, the next write removes it.
            let _ = fs::remove_file(&unfinished);
            match error.kind() {
                io::ErrorKind::AlreadyExists => CredentialsError::Exists { path: path.clone() },
                _ => CredentialsError::Io { path: path.clone(), error },
            }
        })
    }
}

/// Removes files of credentials that killed processes have left unfinished. Files that cannot be removed stay.
fn remove_unfinished(dir: &Path) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let is_unfinished = |name: &String| {
        name.strip_prefix(CREDENTIALS_FILE)
            .is_some_and(|rest| rest.starts_with('.') && rest.ends_with(UNFINISHED_SUFFIX))
    };
    for name in names.filter(is_unfinished) {
        let _ = fs::remove_file(dir.join(name));
    }
}

fn hash_of(bytes: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, bytes).as_ref());
    hash
}

fn random<const N: usize>() -> Result<[u8; N], CredentialsError> {
    let mut bytes = [0; N];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| CredentialsError::Random)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_join_token_carries_everything_a_member_needs_and_not_the_admin_token() {
        let (credentials, admin) = Credentials::random().unwrap();
        let token = credentials.join_token();
        let read = Credentials::parse(&format!(" {token}\n")).unwrap();
        assert_eq!(read, credentials);
        assert!(read.permits(admin.reveal().as_bytes()));
        assert!(
            !read.permits(b"") && !read.permits(token.as_bytes()) && !read.permits(&admin.reveal().as_bytes()[1..])
        );
        assert!(!token.contains(admin.reveal().strip_prefix(ADMIN_PREFIX).unwrap()));
        assert!(!format!("{credentials:?} {admin:?}").contains(&token[20..]), "secrets are not shown");
    }

    #[test]
    fn a_token_that_was_not_copied_completely_is_refused() {
        let token = Credentials::random().unwrap().0.join_token();
        for cut in 0..token.len() {
            assert!(Credentials::parse(&token[..cut]).is_err(), "{cut} characters");
        }
        let mut swapped = token.clone().into_bytes();
        let last = swapped.len() - 9;
        swapped.swap(last, last - 1);
        let swapped = String::from_utf8(swapped).unwrap();
        assert!(swapped == token || Credentials::parse(&swapped).is_err());
        assert!(matches!(Credentials::parse("hunter2"), Err(CredentialsError::Malformed)));
        let newer = format!("{JOIN_PREFIX}{}", URL_SAFE_NO_PAD.encode([2, 0, 0]));
        assert!(matches!(Credentials::parse(&newer), Err(CredentialsError::Version { version: 2 })));
    }

    #[test]
    fn the_file_is_for_the_owner_only_and_replaced_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Credentials::of_directory(dir.path()).unwrap().is_none());
        let (mut credentials, first) = Credentials::random().unwrap();
        credentials.write(dir.path()).unwrap();
        let second = credentials.replace_admin().unwrap();
        credentials.write(dir.path()).unwrap();
        let read = Credentials::of_directory(dir.path()).unwrap().unwrap();
        assert!(read.permits(second.reveal().as_bytes()) && !read.permits(first.reveal().as_bytes()));
        let path = dir.path().join(CREDENTIALS_FILE);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing unfinished is left");
        fs::write(&path, "other").unwrap();
        assert!(matches!(Credentials::of_directory(dir.path()), Err(CredentialsError::File { .. })));
    }

    #[test]
    fn a_link_at_an_unfinished_name_is_not_followed() {
        let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::NamedTempFile::new().unwrap());
        fs::write(outside.path(), "untouched").unwrap();
        std::os::unix::fs::symlink(outside.path(), dir.path().join("CLUSTER.new")).unwrap();
        fs::write(dir.path().join("CLUSTER.0123456789abcdef.new"), "of a killed process").unwrap();
        fs::write(dir.path().join("CLUSTERS.new"), "another file").unwrap();
        Credentials::random().unwrap().0.write(dir.path()).unwrap();
        assert_eq!(fs::read_to_string(outside.path()).unwrap(), "untouched");
        assert!(!dir.path().join(CREDENTIALS_FILE).is_symlink());
        assert!(Credentials::of_directory(dir.path()).unwrap().is_some());
        let mut left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, [CREDENTIALS_FILE, "CLUSTERS.new"]);
    }
}
