//! Parsers of option values, and checks of options that the parser of the command line does not make.

use thalweg_engine::BackendKind;
use thalweg_load::{Arrivals, Objective};

use crate::BenchError;

pub(crate) use thalweg_load::options::{
    check_window, max_rate_within, only, parse_duration, parsed, rate_within, require, within,
};

/// Returns an error if the user requests a search for the highest rate together with arrivals whose rate changes during
/// a run.
pub(crate) fn steady(search: Option<&Objective>, arrivals: Arrivals) -> Result<(), BenchError> {
    let is_steady = search.is_none() || arrivals.change().is_none();
    require(is_steady, "--arrivals", "a search needs runs at one rate: constant or poisson")
}

/// Returns an error if arrivals are given for a load without a schedule. Evenly spaced arrivals are the default, so
/// they count as not given.
pub(crate) fn scheduled(arrivals: Arrivals, is_scheduled: bool) -> Result<(), BenchError> {
    let is_valid = is_scheduled || arrivals == Arrivals::Constant;
    require(is_valid, "--arrivals", "only a load with a rate has arrivals: give --rate")
}

/// Parses the name of a storage backend that this build contains.
pub(crate) fn backend(text: &str) -> Result<BackendKind, String> {
    let names = BackendKind::ALL.map(BackendKind::name).join(", ");
    match BackendKind::from_name(text) {
        Some(kind) if kind.is_built() => Ok(kind),
        Some(kind) => Err(format!("this build has no {} backend", kind.name())),
        None => Err(format!("one of {names}")),
    }
}
