//! The lines of the report, and the presets made of such lines.

use std::time::Duration;

use thalweg_types::Durability;

use super::suite::HttpOptions;
use crate::{
    load::{pace::Pace, schedule::Arrivals},
    random::Distribution,
};

/// Kind of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Mix {
    /// Only puts.
    #[default]
    Put,
    /// Only gets, of keys that were loaded before.
    Get,
    /// Gets and puts in equal number, of keys that were loaded before.
    Mixed,
}

impl Mix {
    /// Share of gets in per cent.
    #[must_use]
    pub fn get_percent(self) -> u8 {
        match self {
            Self::Put => 0,
            Self::Mixed => 50,
            Self::Get => 100,
        }
    }
}

/// API that carries the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, clap::ValueEnum)]
pub enum ApiChoice {
    /// `/v1/kv/{keyspace}/{key}`.
    #[default]
    Kv,
    /// `/v0/entity?id={key}`.
    Entity,
}

/// Sets of scenarios with fixed parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Preset {
    /// Row H: one connection at fixed rates, then 1 and 64 connections as fast as they go.
    RowH,
    /// 64 connections as fast as they go, 100 B, against the route that stores nothing.
    Ratios,
}

/// One line of the report.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub(super) name: String,
    pub(super) api: ApiChoice,
    pub(super) mix: Mix,
    pub(super) value_bytes: usize,
    pub(super) keys: u64,
    pub(super) distribution: Distribution,
    pub(super) connections: usize,
    pub(super) pipeline: usize,
    pub(super) pace: Pace,
    /// Durability of puts; `None`: the server's default.
    pub(super) durability: Option<Durability>,
    /// Share of the echo route's rate that should be reached.
    pub(super) echo_share: Option<f64>,
}

impl Scenario {
    /// Creates the scenario of the options.
    #[must_use]
    pub(super) fn from_options(options: &HttpOptions) -> Self {
        let pace = Pace::of_rate(Some(options.rate).filter(|_| !options.closed), options.arrivals);
        Self {
            name: format!("{:?}", options.mix).to_lowercase(),
            api: options.api,
            mix: options.mix,
            value_bytes: options.value_size,
            keys: options.keys,
            distribution: options.distribution,
            connections: options.connections,
            pipeline: options.pipeline,
            pace,
            durability: options.durability,
            echo_share: None,
        }
    }

    pub(super) fn of_preset(preset: Preset, options: &HttpOptions) -> Vec<Self> {
        match preset {
            Preset::RowH => row_h(options),
            Preset::Ratios => ratios(options),
        }
    }

    pub(super) fn pace_name(&self) -> String {
        self.pace.name("/s")
    }

    pub(super) fn durability_name(&self) -> &'static str {
        match self.mix {
            Mix::Get => "-",
            Mix::Put | Mix::Mixed => self.durability.map_or("server default", Durability::name),
        }
    }

    /// Returns the time after which a run is given up as overloaded.
    pub(super) fn give_up(&self) -> Duration {
        Duration::from_secs(10)
    }
}

/// The published figures of row H were made with writes that were not synced: `interval` is the level
/// to compare them with; `disk` is what we promise by default, so each put is made at both.
fn row_h(options: &HttpOptions) -> Vec<Scenario> {
    let base = Scenario { api: ApiChoice::Entity, ..Scenario::from_options(options) };
    let put = |name: &str, rate: f64, bytes: usize, level: Durability| Scenario {
        name: format!("{name}, {level}"),
        mix: Mix::Put,
        value_bytes: bytes,
        connections: 1,
        pace: Pace::Open { rate, arrivals: Arrivals::Constant },
        durability: Some(level),
        ..base.clone()
    };
    let fastest = |name: &str, mix: Mix, connections: usize, pipeline: usize, level: Option<Durability>| Scenario {
        name: name.to_owned(),
        mix,
        value_bytes: 100,
        connections,
        pipeline,
        pace: Pace::Closed,
        durability: level,
        ..base.clone()
    };
    let many = if options.keys_are_default() { 1_500_000 } else { options.keys };
    let many_gets = Scenario {
        name: format!("get 1.2 KB of {many} keys at 2,000/s"),
        mix: Mix::Get,
        value_bytes: 1200,
        keys: many,
        connections: 1,
        pace: Pace::Open { rate: 2000.0, arrivals: Arrivals::Constant },
        ..base.clone()
    };
    vec![
        put("put 50 B at 10,000/s", 10_000.0, 50, Durability::Interval),
        put("put 50 B at 30,000/s", 30_000.0, 50, Durability::Interval),
        put("put 1 KB at 10,000/s", 10_000.0, 1024, Durability::Interval),
        put("put 50 B at 5,000/s", 5000.0, 50, Durability::Disk),
        put("put 1 KB at 5,000/s", 5000.0, 1024, Durability::Disk),
        many_gets,
        fastest("put, 1 connection", Mix::Put, 1, 1, Some(Durability::Interval)),
        fastest("put, 1 connection, pipelined", Mix::Put, 1, 64, Some(Durability::Interval)),
        fastest("put, 64 connections", Mix::Put, 64, 1, Some(Durability::Interval)),
        fastest("put, 64 connections", Mix::Put, 64, 1, Some(Durability::Disk)),
        fastest("put, 64 connections, pipelined", Mix::Put, 64, 8, Some(Durability::Interval)),
        fastest("get, 64 connections", Mix::Get, 64, 1, None),
        fastest("get, 64 connections, pipelined", Mix::Get, 64, 8, None),
    ]
}

fn ratios(options: &HttpOptions) -> Vec<Scenario> {
    let base = Scenario {
        value_bytes: 100,
        connections: 64,
        pipeline: 1,
        pace: Pace::Closed,
        ..Scenario::from_options(options)
    };
    vec![
        Scenario {
            name: "put".to_owned(),
            mix: Mix::Put,
            durability: Some(Durability::Disk),
            echo_share: Some(0.5),
            ..base.clone()
        },
        Scenario { name: "get".to_owned(), mix: Mix::Get, echo_share: Some(0.8), ..base },
    ]
}
