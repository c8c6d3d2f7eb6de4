//! `--preset goals`: what thalweg should reach of redis-server's figures in the same run.

use super::{
    options::RespOptions,
    requests::{Mix, Operation},
    scenario::{Scenario, Work},
    server::Choice,
};
use crate::{load::pace::Pace, native::payload::HEAD_BYTES, random::Distribution, report::Check};

/// A ratio that should be reached.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// The rate should be at least this many times the other's.
    Rate(f64),
    /// The median should be at most this many times the other's.
    Median(f64),
}

impl Goal {
    /// Compares the ratios of rates and of medians with the goal.
    #[must_use]
    pub fn check(self, what: String, rate: f64, median: f64) -> Check {
        match self {
            Self::Rate(required) => Check::at_least(format!("{what}: rate"), rate, required, " ×"),
            Self::Median(bound) => Check::below(format!("{what}: median"), median, bound, " ×"),
        }
    }
}

/// Bytes of a value of redis-benchmark's tests.
const VALUE_BYTES: usize = 3;

/// Bytes of a message.
const MESSAGE_BYTES: usize = 128;

const CACHE: u32 = 1;
const DURABLE: u32 = 0;

/// Returns the scenarios of the preset.
pub(super) fn scenarios(options: &RespOptions) -> Vec<Scenario> {
    let line = |name: &str, work: Work, database, other, connections, pipeline, bytes, goal| Scenario {
        name: format!("{name}, -c {connections} -P {pipeline}"),
        work,
        servers: vec![(Choice::Thalweg, database), (other, 0)],
        connections,
        pipeline,
        value_bytes: options.value_size.unwrap_or(bytes),
        keys: options.keys,
        distribution: Distribution::Uniform,
        pace: Pace::Closed,
        goal: Some(goal),
    };
    let only = |operation| Work::Requests(Mix::only(operation));
    let cache = |name, operation, connections, pipeline, goal| {
        line(name, only(operation), CACHE, Choice::RedisNone, connections, pipeline, VALUE_BYTES, goal)
    };
    let durable = |name, operation, connections, pipeline, bytes| {
        line(name, only(operation), DURABLE, Choice::RedisAlways, connections, pipeline, bytes, Goal::Rate(1.2))
    };
    // The machine's upper bound, beside the peer.
    let bare = |scenario: Scenario| Scenario {
        servers: [scenario.servers, vec![(Choice::Bare, DURABLE)]].concat(),
        ..scenario
    };
    let fan_out =
        line("PUBLISH to 10", Work::FanOut(10), DURABLE, Choice::RedisNone, 1, 16, MESSAGE_BYTES, Goal::Rate(1.5));
    let fan_out = Scenario { value_bytes: fan_out.value_bytes.max(HEAD_BYTES), ..fan_out };
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
