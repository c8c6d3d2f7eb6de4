//! Loading more data than memory over RESP, alternately with and without the limit of memory.
//!
//! Each load has an empty directory of its own. The tables show the rates, the longest time during which a connection
//! got no reply, and the server's measured memory beside the memory limit that the server set for itself.

use crate::{
    BenchError,
    filled::{self, Loaded},
    load::{Validity, turns},
    report::{Check, Table, cells, mebibytes, number},
    scenario::{Figures, Scenario},
    server::{Level, MemoryLimit},
    stats::{Summary, median_of, ratio},
    work::{Keys, STALL_NANOS},
};

/// Goal: smallest rate of loading under the limit of memory, as a share of the rate without a limit.
const MIN_SHARE: f64 = 0.5;
/// Goal: longest time in milliseconds during which a connection gets no reply.
const MAX_STALL_MS: f64 = STALL_NANOS as f64 / 1e6;

/// The loads of all rounds that were made with one limit of memory, or without a limit.
#[derive(Debug)]
struct Rounds {
    limit: MemoryLimit,
    loads: Vec<Loaded>,
    /// Memory in bytes that the server intends to use at most. It chooses this bound at its start.
    own_bytes: Option<u64>,
}

impl Rounds {
    fn rates(&self) -> Vec<f64> {
        self.loads.iter().map(|load| load.rate).collect()
    }

    fn longest_gap_ms(&self) -> f64 {
        self.loads.iter().map(|load| load.gaps.longest_gap as f64 / 1e6).fold(f64::NAN, f64::max)
    }

    /// Returns the largest resident memory of all rounds, in bytes.
    fn resident(&self) -> Option<u64> {
        self.loads.iter().filter_map(|load| load.resident).max()
    }
}

/// Loads the values once with and once without the limit of memory in each round.
pub(crate) fn run(scenario: &mut Scenario<'_>) -> Result<Figures, BenchError> {
    let options = scenario.options;
    let keys = Keys::new(options.values(), options.value_size, options.order, options.seed);
    let rounds = |limit| Rounds { limit, loads: Vec::new(), own_bytes: None };
    let mut all: Vec<Rounds> = scenario.limits().into_iter().map(rounds).collect();
    for round in 0..options.rounds {
        for turn in turns(u64::from(round), all.len()) {
            let limit = all[turn].limit;
            let mut server = scenario.start("load", limit, Level::Interval)?;
            all[turn].own_bytes = server.own_bytes;
            let loaded = filled::load(scenario, &mut server, &keys, 1)?;
            let (rate, stall) = (number(loaded.rate), number(loaded.gaps.longest_gap as f64 / 1e6));
            scenario.step(&format!(
                "load, round {}, {}: {rate}/s, longest time without a reply {stall} ms",
                round + 1,
                limit.name()
            ));
            all[turn].loads.push(loaded);
            server.discard()?;
        }
    }
    Ok(figures(&all, options.connections, options.pipeline))
}

fn figures(all: &[Rounds], connections: usize, pipeline: usize) -> Figures {
    let title = format!(
        "load: values over RESP, {connections} connections, {pipeline} requests in flight each, durability interval, medians of \
         the rounds"
    );
    let mut table = Table::new(title);
    let mut kernel = Table::new("load: memory as the kernel counts it, largest of the rounds");
    let mut checks = Vec::new();
    let unlimited = all.iter().find(|rounds| rounds.limit == MemoryLimit::None).map(Rounds::rates).unwrap_or_default();
    for rounds in all {
        let (name, rates) = (rounds.limit.name(), Summary::of(&rounds.rates()));
        let stalls: u64 = rounds.loads.iter().map(|load| load.gaps.stalls).sum();
        table.row(cells! {
            "memory" => name.as_str(), "values/s" => rates.median, "± MAD" => rates.mad, "min" => rates.min,
            "max" => rates.max, "of no limit" => ratio(&rounds.rates(), &unlimited),
            "longest without a reply ms" => rounds.longest_gap_ms(),
            "median of the longest ms" => median_of(&rounds.loads, |load| load.gaps.longest_gap as f64 / 1e6),
            "above 100 ms" => stalls, "rounds" => rates.rounds,
        });
        let group = |of: fn(&crate::control_group::GroupMemory) -> u64| {
            rounds.loads.iter().filter_map(|load| load.peaks.group.as_ref().map(of)).max()
        };
        kernel.row(cells! {
            "memory" => name.as_str(), "server's own MiB" => mebibytes(rounds.own_bytes),
            "resident MiB" => mebibytes(rounds.resident()),
            "of it anonymous MiB" => mebibytes(rounds.loads.iter().filter_map(|load| load.peaks.anonymous).max()),
            "page cache MiB" => mebibytes(group(|memory| memory.cache_bytes)),
            "of it dirty MiB" => mebibytes(group(|memory| memory.dirty_bytes)),
            "faults that read the disk" => group(|memory| memory.major_faults),
            "times at the limit" => group(|memory| memory.times_at_limit),
        });
        let validity = Validity::worst(rounds.loads.iter().map(|load| &load.validity));
        checks.push(validity.check(format!("load, {name}"), "all answered, rightly"));
        if rounds.limit != MemoryLimit::None {
            let share = ratio(&rounds.rates(), &unlimited);
            checks.push(Check::at_least(format!("load, {name}: of the rate without a limit"), share, MIN_SHARE, " ×"));
            let stall = rounds.longest_gap_ms();
            let what = format!("load, {name}: longest time without a reply to a connection");
            checks.push(Check::at_most(what, stall, MAX_STALL_MS, " ms"));
            let resident = rounds.resident().zip(rounds.own_bytes);
            let share = resident.map_or(f64::NAN, |(resident, own)| resident as f64 / own as f64);
            let what = format!("load, {name}: resident memory of the server's own memory");
            checks.push(Check::at_most(what, share, 1.0, " ×"));
        }
    }
    let note = "load: a connection's time without a reply counts from its last reply, and contains the time in which the load \
                generator sends to the other connections. The server's own memory is that of serve --explain. Resident memory \
                contains pages of files that the server has mapped, which the kernel can take back";
    Figures { tables: vec![table, kernel], checks, notes: vec![note.to_owned()] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{peaks::Peaks, report::Verdict, work::Counts};

    fn loaded(rate: f64, gap_ms: u64, resident: u64) -> Loaded {
        Loaded {
            rate,
            slices: Summary::of(&[rate]),
            gaps: Counts { longest_gap: gap_ms * 1_000_000, stalls: u64::from(gap_ms > 100) },
            resident: Some(resident),
            peaks: Peaks::default(),
            validity: Validity::Good,
        }
    }

    #[test]
    fn the_limit_is_compared_with_no_limit_round_by_round() {
        let unlimited = || Rounds {
            limit: MemoryLimit::None,
            loads: vec![loaded(100.0, 500, 900), loaded(200.0, 5, 900)],
            own_bytes: Some(1000),
        };
        let verdicts = |loads| {
            let limited = Rounds { limit: MemoryLimit::Bytes(64 << 20), loads, own_bytes: Some(1000) };
            let Figures { checks, .. } = figures(&[unlimited(), limited], 50, 64);
            checks.into_iter().filter(|check| check.is_goal).map(|check| check.verdict).collect::<Vec<_>>()
        };
        let good = vec![loaded(60.0, 90, 900), loaded(100.0, 100, 1000)];
        assert_eq!(verdicts(good), [Verdict::Met; 3]);
        let bad = vec![loaded(40.0, 101, 900), loaded(80.0, 10, 1001)];
        assert_eq!(verdicts(bad), [Verdict::Missed; 3]);
        let alone = figures(&[unlimited()], 50, 64);
        assert!(alone.checks.iter().all(|check| !check.is_goal), "without a limit there is no goal");
    }
}
