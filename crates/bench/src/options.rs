//! Parsers of option values, and checks of options that the command line's parser does not make.

use thalweg_engine::BackendKind;

pub use thalweg_load::options::{only, parse_duration, rate_within, require, within};

/// Parses the name of a storage backend that this build contains.
pub fn backend(text: &str) -> Result<BackendKind, String> {
    let names = BackendKind::ALL.map(BackendKind::name).join(", ");
    match BackendKind::from_name(text) {
        Some(kind) if kind.is_built() => Ok(kind),
        Some(kind) => Err(format!("this build has no {} backend", kind.name())),
        None => Err(format!("one of {names}")),
    }
}
