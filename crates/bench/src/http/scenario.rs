//! Scenarios of `thalweg bench http`: the one that the options describe, or those of a preset with fixed loads.

use thalweg_types::Durability;

use super::options::{ApiChoice, DEFAULT_KEYS, HttpLoad, HttpOptions, Mix, Preset};
use crate::load::Arrivals;

/// A load that the suite measures. Each scenario is one line of the report.
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub(super) name: String,
    pub(super) load: HttpLoad,
    /// Goal: smallest rate as a share of the rate of the route that stores nothing; `None` without a goal.
    pub(super) echo_share: Option<f64>,
}

impl Scenario {
    /// Returns the scenarios of the selected preset. Without a preset, returns the one scenario that the options
    /// describe.
    pub(super) fn all(options: &HttpOptions) -> Vec<Self> {
        match options.preset {
            None => vec![Self::new(&format!("{:?}", options.load.mix).to_lowercase(), options.load.clone())],
            Some(Preset::RowH) => row_h(&options.load),
            Some(Preset::Ratios) => ratios(&options.load),
        }
    }

    fn new(name: &str, load: HttpLoad) -> Self {
        Self { name: name.to_owned(), load, echo_share: None }
    }
}

/// Returns the scenarios of a published HTTP benchmark of another system (row H of docs/performance.md). That system
/// did not sync its writes, so the level `interval` is comparable with its figures. The level `disk` is Thalweg's
/// default. Therefore each scenario with puts runs at both levels.
fn row_h(load: &HttpLoad) -> Vec<Scenario> {
    let base = HttpLoad { api: ApiChoice::Entity, ..load.clone() };
    let scheduled = |mix: Mix, rate: f64, bytes: usize| HttpLoad {
        mix,
        value_size: bytes,
        connections: 1,
        rate,
        closed: false,
        arrivals: Arrivals::Constant,
        ..base.clone()
    };
    let put = |name: &str, rate: f64, bytes: usize, level: Durability| {
        let load = HttpLoad { durability: Some(level), ..scheduled(Mix::Put, rate, bytes) };
        Scenario::new(&format!("{name}, {level}"), load)
    };
    let fastest = |name: &str, mix: Mix, connections: usize, pipeline: usize, durability: Option<Durability>| {
        let load = HttpLoad { connections, pipeline, closed: true, ..base.clone() };
        // The name states the level, because the same load runs at several levels.
        let name = durability.map_or_else(|| name.to_owned(), |level| format!("{name}, {level}"));
        Scenario::new(&name, HttpLoad { mix, value_size: 100, durability, ..load })
    };
    let keys = if load.keys == DEFAULT_KEYS { 1_500_000 } else { load.keys };
    let many_gets = HttpLoad { keys, ..scheduled(Mix::Get, 2000.0, 1200) };
    vec![
        put("put 50 B at 10,000/s", 10_000.0, 50, Durability::Interval),
        put("put 50 B at 30,000/s", 30_000.0, 50, Durability::Interval),
        put("put 1 KB at 10,000/s", 10_000.0, 1024, Durability::Interval),
        put("put 50 B at 5,000/s", 5000.0, 50, Durability::Disk),
        put("put 1 KB at 5,000/s", 5000.0, 1024, Durability::Disk),
        Scenario::new(&format!("get 1.2 KB of {keys} keys at 2,000/s"), many_gets),
        fastest("put, 1 connection", Mix::Put, 1, 1, Some(Durability::Interval)),
        fastest("put, 1 connection, pipelined", Mix::Put, 1, 64, Some(Durability::Interval)),
        fastest("put, 64 connections", Mix::Put, 64, 1, Some(Durability::Interval)),
        fastest("put, 64 connections", Mix::Put, 64, 1, Some(Durability::Disk)),
        fastest("put, 64 connections, pipelined", Mix::Put, 64, 8, Some(Durability::Interval)),
        fastest("get, 64 connections", Mix::Get, 64, 1, None),
        fastest("get, 64 connections, pipelined", Mix::Get, 64, 8, None),
    ]
}

fn ratios(load: &HttpLoad) -> Vec<Scenario> {
    let base = HttpLoad { value_size: 100, connections: 64, pipeline: 1, closed: true, ..load.clone() };
    let put = HttpLoad { mix: Mix::Put, durability: Some(Durability::Disk), ..base.clone() };
    let get = HttpLoad { mix: Mix::Get, ..base };
    [("put", put, 0.5), ("get", get, 0.8)]
        .map(|(name, load, share)| Scenario { echo_share: Some(share), ..Scenario::new(name, load) })
        .into()
}
