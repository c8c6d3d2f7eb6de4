//! The choice of a server's TLS certificate: a file, or one that the server makes.

use std::path::PathBuf;

use super::Setting;

/// Source of a certificate or key in PEM format: a given file, or one that the server makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PemFile {
    /// The development certificate and its key, which the server makes and keeps in the data directory.
    Development,
    /// The PEM file at this path.
    At(PathBuf),
}

impl Setting for PemFile {
    const VALUE_NAME: &'static str = "FILE";

    fn parse(text: &str) -> Result<Self, &'static str> {
        match text {
            "" => Err("development, or the path of a PEM file"),
            "development" => Ok(Self::Development),
            path => Ok(Self::At(path.into())),
        }
    }

    fn show(&self) -> String {
        match self {
            Self::Development => "development".to_owned(),
            Self::At(path) => path.display().to_string(),
        }
    }
}
