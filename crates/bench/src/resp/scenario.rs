//! Scenarios of the RESP suite. Each is one line of the report for each server. The options describe a single scenario.
//! `--preset goals` selects a list of scenarios. Each has a goal: a ratio to redis-server's figures in the same run.

use super::{
    options::{Preset, RespOptions, ServerChoice, ServerSpec},
    requests::{Mix, Operation},
};
use crate::{native::HEAD_BYTES, random::Distribution, report::Check};

/// Kind of load in a scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LoadKind {
    /// Requests and replies, with this mix of operations.
    Requests(Mix),
    /// Published messages to this number of subscribers.
    FanOut(usize),
}

/// A load that the suite measures on one server or more. Each scenario has one line of the report for each server.
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    /// Name of the scenario in the report.
    pub name: String,
    /// Load that each server gets: requests, or messages to subscribers.
    pub work: LoadKind,
    /// Servers and their databases. The first server is compared with each other server.
    pub servers: Vec<(ServerChoice, u32)>,
    /// Options of the load. With subscribers, only the publisher has a connection besides those of the subscribers.
    pub options: RespOptions,
    /// Goal for the first server, as a ratio to another server's figure; `None` if there is none.
    pub goal: Option<Goal>,
}

impl Scenario {
    /// Returns the scenarios of the selected preset. Without a preset, returns the one scenario that the options
    /// describe.
    pub(super) fn all(options: &RespOptions) -> Vec<Self> {
        if options.preset == Some(Preset::Goals) {
            return goals(options);
        }
        let (name, work, connections) = match options.subscribers {
            Some(count) => (format!("PUBLISH to {count}"), LoadKind::FanOut(count), 1),
            None => (options.mix.to_string(), LoadKind::Requests(options.mix.clone()), options.connections),
        };
        let server = |spec: &ServerSpec| (spec.choice.clone(), spec.database.unwrap_or(options.database));
        let servers = options.server.iter().map(server).collect();
        vec![Self { name, work, servers, options: RespOptions { connections, ..options.clone() }, goal: None }]
    }
}

/// Goal for the first server, as a ratio to another server's figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Goal {
    /// The first server's rate should be at least this many times the other server's rate.
    Rate(f64),
    /// The first server's median response time should be at most this many times the other server's.
    Median(f64),
}

impl Goal {
    /// Creates the check that compares the measured ratio with the goal: the ratio of rates (`rate`) or of median
    /// response times (`median`).
    pub(super) fn check(self, what: String, rate: f64, median: f64) -> Check {
        match self {
            Self::Rate(required) => Check::at_least(format!("{what}: rate"), rate, required, " ×"),
            Self::Median(bound) => Check::below(format!("{what}: median"), median, bound, " ×"),
        }
    }
}

/// Size of a value in redis-benchmark's built-in tests, in bytes.
const VALUE_BYTES: usize = 3;

/// Size of a published message in bytes.
const MESSAGE_BYTES: usize = 128;

const CACHE: u32 = 1;
const DURABLE: u32 = 0;

/// Returns the scenarios of the preset `goals`, each with its goal.
fn goals(options: &RespOptions) -> Vec<Scenario> {
    let line = |name: &str, work: LoadKind, database, other, connections, pipeline, bytes, goal| Scenario {
        name: format!("{name}, -c {connections} -P {pipeline}"),
        work,
        servers: vec![(ServerChoice::Thalweg, database), (other, 0)],
        options: RespOptions {
            connections,
            pipeline,
            value_size: options.value_size.or(Some(bytes)),
            distribution: Distribution::Uniform,
            ..options.clone()
        },
        goal: Some(goal),
    };
    let only = |operation| LoadKind::Requests(Mix::only(operation));
    let cache = |name, operation, connections, pipeline, goal| {
        line(name, only(operation), CACHE, ServerChoice::RedisNone, connections, pipeline, VALUE_BYTES, goal)
    };
    let durable = |name, operation, connections, pipeline, bytes| {
        line(name, only(operation), DURABLE, ServerChoice::RedisAlways, connections, pipeline, bytes, Goal::Rate(1.2))
    };
    // Adds the server `bare`. Its figures are the upper bound of the machine.
    let bare = |scenario: Scenario| Scenario {
        servers: [scenario.servers, vec![(ServerChoice::Bare, DURABLE)]].concat(),
        ..scenario
    };
    let fan_out = line(
        "PUBLISH to 10",
        LoadKind::FanOut(10),
        DURABLE,
        ServerChoice::RedisNone,
        1,
        16,
        MESSAGE_BYTES,
        Goal::Rate(1.5),
    );
    let value_size = Some(fan_out.options.value_bytes().max(HEAD_BYTES));
    let fan_out = Scenario { options: RespOptions { value_size, ..fan_out.options.clone() }, ..fan_out };
    vec![
        cache("GET cache", Operation::Get, 50, 1, Goal::Rate(1.0)),
        cache("GET cache", Operation::Get, 50, 16, Goal::Rate(1.0)),
        cache("SET cache", Operation::Set, 50, 1, Goal::Rate(1.0)),
        cache("SET cache", Operation::Set, 50, 16, Goal::Rate(1.0)),
        bare(durable("SET durable", Operation::Set, 50, 1, VALUE_BYTES)),
        bare(durable("SET durable", Operation::Set, 50, 16, VALUE_BYTES)),
        cache("GET cache", Operation::Get, 1, 1, Goal::Median(1.1)),
        bare(durable("SET durable", Operation::Set, 1, 1, VALUE_BYTES)),
        durable("XADD durable", Operation::Xadd, 50, 16, 100),
        fan_out,
    ]
}
