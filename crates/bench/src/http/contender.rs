//! Prepares an HTTP server for `thalweg bench compare`, and performs the runs of puts and gets on it.

use super::{
    options::HttpLoad,
    running::{api, level, plan, sampled, store_keys},
};
use crate::{
    BenchError, Progress,
    contender::{Contender, Runs},
    load::{self, Outcome},
    server::Target,
};

struct HttpRuns {
    target: Target,
    load: HttpLoad,
}

/// Prepares a server for runs of a load.
pub(crate) fn contender(target: Target, load: HttpLoad, progress: &mut dyn Progress) -> Result<Contender, BenchError> {
    let level = level(&target, &load)?;
    store_keys(&target, &load, progress)?;
    let place = format!("HTTP at {}, {}", target.address, target.build());
    Ok(Contender { load: sampled(&load, level), place, runs: Box::new(HttpRuns { target, load }) })
}

impl Runs for HttpRuns {
    fn run(&mut self) -> Result<Outcome<()>, BenchError> {
        let Self { target, load } = self;
        Ok(load::run(&plan(target, load, api(load), load.pace()))?.without_own())
    }
}
