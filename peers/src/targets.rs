//! Which ratios must hold between Thalweg and its peers.

use thalweg_bench::{
    engine::{Level, Results},
    report::Check,
    stats::ratio,
};

struct Target {
    what: &'static str,
    test: &'static str,
    level: Level,
    peer: &'static str,
    at_least: f64,
}

const fn target(what: &'static str, test: &'static str, level: Level, peer: &'static str, at_least: f64) -> Target {
    Target { what, test, level, peer, at_least }
}

const TARGETS: [Target; 17] = [
    target("sequential puts", "sequential write", Level::Interval, "fjall", 3.0),
    target("puts, one thread, disk", "sequential write", Level::Disk, "fjall", 1.0),
    target("sequential gets, in memory", "sequential read, memory", Level::Interval, "fjall", 2.0),
    target("random gets, in memory", "random read, memory", Level::Interval, "fjall", 2.0),
    target("sequential gets, flushed", "sequential read, flushed", Level::Interval, "fjall", 1.2),
    target("random gets, flushed", "random read, flushed", Level::Interval, "fjall", 1.3),
    target("sequential gets, flushed", "sequential read, flushed", Level::Interval, "redb", 1.0),
    target("random gets, flushed", "random read, flushed", Level::Interval, "redb", 1.0),
    target("range of 100, in memory", "range 100, memory", Level::Interval, "fjall", 5.0),
    target("range of 500, in memory", "range 500, memory", Level::Interval, "fjall", 5.0),
    target("range of 100, flushed", "range 100, flushed", Level::Interval, "fjall", 1.6),
    target("range of 500, flushed", "range 500, flushed", Level::Interval, "fjall", 1.6),
    target("range of 100, flushed", "range 100, flushed", Level::Interval, "redb", 1.0),
    target("range of 500, flushed", "range 500, flushed", Level::Interval, "redb", 1.0),
    target("2 M random puts", "random write, large", Level::Interval, "fjall", 1.5),
    target("2 M: random gets", "random read, large", Level::Interval, "redb", 1.0),
    target("2 M: misses", "miss, large", Level::Interval, "fjall", 1.0),
];

/// The targets whose tests were run.
pub fn checks(results: &Results) -> Vec<Check> {
    TARGETS
        .iter()
        .filter_map(|target| {
            let own = results.find(target.test, target.level, "thalweg")?;
            let peer = results.find(target.test, target.level, target.peer)?;
            let measured = ratio(&own.rates(), &peer.rates());
            Some(Check::at_least(format!("{}: of {}'s", target.what, target.peer), measured, target.at_least, " ×"))
        })
        .collect()
}
