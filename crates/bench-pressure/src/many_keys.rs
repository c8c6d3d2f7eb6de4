//! Many small keys under the limit of memory: loading them, the server's start after a stop and after a kill, and
//! random gets.
//!
//! A run with the default number of keys takes long, so there is one round. Each slice of the load prints its progress.

use std::time::Duration;

use crate::{
    BenchError,
    filled::{self, Loaded},
    latency::Latencies,
    load::Validity,
    options::{PressureOptions, WireProtocol},
    over::{self, Job},
    report::{Check, Table, cells, mebibytes, number},
    scenario::{Figures, Scenario},
    server::{Level, MemoryLimit, PerRequest, Server, VALUES},
    stats::Summary,
    work::{Action, Keys},
};

/// Number of slices into which the load of the keys is divided. The report compares their rates: in later slices the
/// server already holds more keys.
const SLICES: u64 = 20;
/// Goal: longest time from the start of the process until the server is ready, in seconds.
const MAX_START_SECONDS: f64 = 5.0;
/// Goal: upper bound of the disk's read operations for each get.
const MAX_READS: f64 = 1.05;

/// Measurements of a server with many keys.
#[derive(Debug)]
struct ManyKeysFigures {
    loaded: Loaded,
    /// Time until the server's process ended after SIGTERM; `None` if it had to be killed.
    stop: Option<Duration>,
    /// Time that the server took to start again after it was stopped with SIGTERM.
    after_stop: Duration,
    /// Time that the server took to start again after it was killed with SIGKILL.
    after_kill: Duration,
    /// For each run of gets: the number of clients, the results, and the server's counts for each request.
    gets: Vec<(usize, over::Figures, PerRequest)>,
    /// Memory in bytes that the server intends to use at most. It chooses this bound at its start.
    own_bytes: Option<u64>,
}

/// Loads the keys, restarts the server after a stop and after a kill, and measures gets.
pub(crate) fn run(scenario: &mut Scenario<'_>) -> Result<Figures, BenchError> {
    let options = scenario.options;
    let limit = scenario.limit();
    let keys = Keys::new(options.keys, options.key_value_size, options.order, options.seed);
    let mut server = scenario.start("keys", limit, Level::Interval)?;
    let loaded = filled::load(scenario, &mut server, &keys, SLICES)?;
    if let Validity::Errors(why) = &loaded.validity {
        return Err(BenchError::subject("the server", "loading the keys")(why));
    }
    filled::settle(scenario, &mut server)?;
    scenario.step("keys: stopping and starting the server");
    let stop = server.stop();
    let after_stop = server.restart()?;
    write_a_little(&server, &keys, options)?;
    server.kill();
    let after_kill = server.restart()?;
    scenario.step(&format!(
        "keys: ready {} s after a stop and {} s after a kill",
        number(after_stop.as_secs_f64()),
        number(after_kill.as_secs_f64())
    ));
    let mut gets = Vec::new();
    for &clients in &options.clients {
        let job = Job::reading(VALUES, &keys, Action::Get, clients, options);
        let (figures, each) = over::counted(WireProtocol::Resp, &mut server, &job, options)?;
        scenario.step(&format!(
            "keys, {clients} clients: {}; {} disk reads each",
            figures.summary("/s"),
            number(each.reads())
        ));
        gets.push((clients, figures, each));
    }
    let own_bytes = server.own_bytes;
    server.discard()?;
    Ok(figures(&ManyKeysFigures { loaded, stop, after_stop, after_kill, gets, own_bytes }, limit, options))
}

/// Writes some keys again, so that a kill leaves the server with a log to replay.
fn write_a_little(server: &Server, keys: &Keys, options: &PressureOptions) -> Result<(), BenchError> {
    let job = Job::loading(VALUES, keys, (0, (keys.count() / SLICES).clamp(1, 100_000).min(keys.count())), options);
    let written = over::run(WireProtocol::Resp, server, &job, options)?;
    match written.validity {
        Validity::Errors(why) => Err(BenchError::subject("the server", "writing before the kill")(why)),
        _ => Ok(()),
    }
}

fn figures(measured: &ManyKeysFigures, limit: MemoryLimit, options: &PressureOptions) -> Figures {
    let ManyKeysFigures { loaded, stop, after_stop, after_kill, gets, own_bytes } = measured;
    let (keys, bytes, memory) = (number(options.keys as f64), options.key_value_size, limit.name());
    let title = format!(
        "keys: {keys} keys with values of {bytes} B over RESP, memory: {memory}, {} order, durability interval, one round",
        options.order.name()
    );
    let mut load = Table::new(title);
    let Summary { min, max, .. } = loaded.slices;
    load.row(cells! {
        "keys/s" => loaded.rate, "slowest twentieth" => min, "fastest" => max,
        "longest without a reply ms" => loaded.gaps.longest_gap as f64 / 1e6,
        "server's own MiB" => mebibytes(*own_bytes),
        "resident MiB" => mebibytes(loaded.resident), "of it anonymous MiB" => mebibytes(loaded.peaks.anonymous),
        "times at the limit" => loaded.peaks.group.map(|group| group.times_at_limit),
    });
    let mut starts = Table::new("keys: time from the start of the process until the server is ready");
    let stopped = stop.map(|time| time.as_secs_f64());
    starts.row(cells! { "after" => "SIGTERM", "stopping s" => stopped, "starting s" => after_stop.as_secs_f64() });
    starts.row(cells! { "after" => "SIGKILL", "stopping s" => None::<f64>, "starting s" => after_kill.as_secs_f64() });
    let mut reads = Table::new(format!("keys: gets of random keys over RESP, memory: {memory}, closed loop"));
    let mut checks = vec![loaded.validity.clone().check("keys: load", "all answered, rightly")];
    if limit != MemoryLimit::None {
        for (after, took) in [("SIGTERM", after_stop), ("SIGKILL", after_kill)] {
            let what = format!("keys: ready after {after} and a start");
            checks.push(Check::at_most(what, took.as_secs_f64(), MAX_START_SECONDS, " s"));
        }
    }
    for (clients, figures, each) in gets {
        let times: &Latencies = &figures.times;
        let quantiles = times.quantiles();
        reads.row(cells! {
            "clients" => *clients, "gets/s" => figures.rate, "p50 µs" => quantiles.p50_us, "p95 µs" => quantiles.p95_us,
            "p99 µs" => quantiles.p99_us, "max µs" => quantiles.max_us, "disk reads each" => each.disk_reads,
            "KiB read each" => each.read_kib,
            "cold reads each" => each.cold_reads, "server's CPU µs each" => each.cpu_us, "verdict" => figures.verdict(),
        });
        let name = format!("keys: gets, {clients} clients");
        checks.push(figures.validity.clone().check(name.as_str(), "all answered, with the stored values"));
        if limit != MemoryLimit::None {
            checks.push(Check::at_most(format!("{name}: disk reads of a get"), each.reads(), MAX_READS, ""));
        }
    }
    Figures { tables: vec![load, starts, reads], checks, notes: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        load::{Outcome, Tally, options::parsed},
        peaks::Peaks,
        report::Verdict,
        usage::RunResources,
        work::Counts,
    };

    #[test]
    fn starts_and_disk_reads_have_goals() {
        let options = parsed([]).unwrap();
        let verdicts = |seconds, disk_reads, limit| {
            let each = PerRequest { disk_reads, read_kib: 4.0, cold_reads: 1.0, cpu_us: 1.0 };
            let measured = ManyKeysFigures {
                loaded: Loaded {
                    rate: 1.0,
                    slices: Summary::of(&[1.0]),
                    gaps: Counts::default(),
                    resident: None,
                    peaks: Peaks::default(),
                    validity: Validity::Good,
                },
                stop: None,
                after_stop: Duration::from_secs(seconds),
                after_kill: Duration::from_secs(seconds),
                gets: vec![(64, Outcome::new(Tally::new(1), 1.0, RunResources::default()), each)],
                own_bytes: None,
            };
            let Figures { checks, .. } = figures(&measured, limit, &options);
            checks.into_iter().filter(|check| check.is_goal).map(|check| check.verdict).collect::<Vec<_>>()
        };
        let limit = MemoryLimit::Bytes(64 << 20);
        assert_eq!(verdicts(5, 1.05, limit), [Verdict::Met; 3]);
        assert_eq!(verdicts(6, 1.06, limit), [Verdict::Missed; 3]);
        assert!(verdicts(6, 2.0, MemoryLimit::None).is_empty());
    }
}
