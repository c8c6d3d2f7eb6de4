//! The choice of a server's certificate.

use std::path::PathBuf;

use super::Setting;

/// A PEM file, or one that the server makes itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PemFile {
    /// The development certificate and its key, in the data directory.
    Development,
    /// A given file.
    At(PathBuf),
}

impl Setting for PemFile {
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
