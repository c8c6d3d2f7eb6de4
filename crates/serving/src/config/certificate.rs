//! Settings for TLS certificates: a file, or a certificate that the server makes.

use std::path::PathBuf;

use super::Setting;

/// Source of a certificate or key in PEM format: a given file, or one that the server makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PemFile {
    /// The development certificate and its key, which the server makes and keeps in the data directory.
    Development,
    /// The PEM file at this path, which an operator has configured.
    At(PathBuf),
}

/// PEM file for the links between nodes, if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerPem {
    /// No PEM file for the links between nodes is configured.
    None,
    /// The PEM file at this path, which an operator has configured.
    At(PathBuf),
}

impl Setting for PeerPem {
    const VALUE_NAME: &'static str = "FILE";

    fn parse(text: &str) -> Result<Self, &'static str> {
        match text {
            "" => Err("none, or the path of a PEM file"),
            "none" => Ok(Self::None),
            path => Ok(Self::At(path.into())),
        }
    }

    fn show(&self) -> String {
        match self {
            Self::None => "none".to_owned(),
            Self::At(path) => path.display().to_string(),
        }
    }
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
