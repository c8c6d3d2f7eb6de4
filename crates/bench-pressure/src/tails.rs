//! Measures the longest response times of durable puts, their 99.9th percentile. The puts are sent for a minute at half
//! of the knee, the highest rate that meets the objective. A raw probe of the disk runs at the same time.
//!
//! Owns: the goal, the search for the knee, the order of the runs, and the tables of this measurement. Does not own:
//! the runs of the load generator (`over`), or the appends of the raw probe (`append_probe`).
//!
//! The server has no limit of memory. Gets at the same rate, before and after the puts, show stalls of the machine that
//! do not come from the disk.

use crate::{
    BenchError, append_probe,
    latency::Latencies,
    load::{Bounds, Faults, Knee, Objective, Validity, find_knee},
    options::{Order, PressureOptions, WireProtocol},
    over::{self, Job},
    probe::steadiness,
    report::{Check, Table, cells, duration, number},
    scenario::{Figures, Scenario},
    server::{Level, MemoryLimit, Server, VALUES},
    stats::{Summary, median_of},
    work::{Action, Keys},
};

/// Goal: largest value of the puts' 99.9th percentile, divided by that of the raw probe in the same minute.
const MAX_RATIO: f64 = 3.0;
/// Maximum number of different keys. The options may state fewer.
const MAX_KEYS: u64 = 100_000;
/// Rate at which the search for the knee begins, in puts per second.
const START: f64 = 1000.0;
/// Highest rate that the search for the knee tries, in puts per second.
const MAX_RATE: f64 = 200_000.0;
/// Relative precision of the search for the knee. The runs use half of the knee's rate, so it need not be finer.
const PRECISION: f64 = 0.1;
/// Number of runs at the knee that must meet the objective.
const REPEATS: u32 = 2;

/// One run of puts, which usually lasts a minute, with the raw disk probe beside it, and the gets before and after it.
#[derive(Clone, Debug)]
struct Minute {
    puts: over::Figures,
    probe: Latencies,
    before: over::Figures,
    after: over::Figures,
}

impl Minute {
    fn ratio(&self) -> f64 {
        self.puts.times.quantiles().p999_us / self.probe.quantiles().p999_us
    }
}

/// All measured runs of puts with values of one length. A run usually lasts a minute.
#[derive(Debug)]
struct Rounds {
    bytes: usize,
    rate: f64,
    knee: Option<Knee>,
    minutes: Vec<Minute>,
}

/// Searches the knee for each length of values unless the options state a rate, and measures the puts in each round.
pub(crate) fn run(scenario: &mut Scenario<'_>) -> Result<Figures, BenchError> {
    let options = scenario.options;
    let mut server = scenario.start("tails", MemoryLimit::None, Level::Disk)?;
    let mut all = Vec::new();
    for &bytes in &options.tail_sizes {
        let keys = Keys::new(options.keys.min(MAX_KEYS), bytes, Order::Ascending, options.seed);
        load(&server, &keys, options)?;
        let knee = if options.rate.is_none() { Some(search(scenario, &server, &keys, bytes)?) } else { None };
        let Some(rate) = rate_of(options.rate, knee.as_ref()) else {
            scenario.step("no rate of puts meets the objective: none is measured");
            all.push(Rounds { bytes, rate: f64::NAN, knee, minutes: Vec::new() });
            continue;
        };
        let mut minutes = Vec::new();
        for round in 0..options.rounds {
            let minute = measure(&server, &keys, (bytes, rate), scenario)?;
            server.check_alive()?;
            let p999 = |times: &Latencies| duration(times.percentile(99.9));
            scenario.step(&format!(
                "round {}, puts of {bytes} B at {}/s: p99.9 {}, raw probe {}, gets before {} and after {}; {}",
                round + 1,
                number(rate),
                p999(&minute.puts.times),
                p999(&minute.probe),
                p999(&minute.before.times),
                p999(&minute.after.times),
                minute.puts.validity.name()
            ));
            minutes.push(minute);
        }
        all.push(Rounds { bytes, rate, knee, minutes });
    }
    server.discard()?;
    Ok(figures(&all, options))
}

/// Writes each key once, so that each get finds a value.
fn load(server: &Server, keys: &Keys, options: &PressureOptions) -> Result<(), BenchError> {
    let job = Job::loading(VALUES, keys, (0, keys.count()), options);
    match over::run(WireProtocol::Resp, server, &job, options)?.validity {
        Validity::Errors(why) => Err(BenchError::subject("the server", "loading the keys")(why)),
        _ => Ok(()),
    }
}

/// Returns the rate of the puts: the stated one, or half of the rate at the knee. `None` if no rate is stated and the
/// search found none that meets the objective.
fn rate_of(stated: Option<f64>, knee: Option<&Knee>) -> Option<f64> {
    stated.or_else(|| Some(knee?.rate? / 2.0))
}

fn job(keys: &Keys, action: Action, options: &PressureOptions, rate: f64) -> Job {
    Job::reading(VALUES, keys, action, options.tail_connections, options).at_rate(rate)
}

fn search(scenario: &mut Scenario<'_>, server: &Server, keys: &Keys, bytes: usize) -> Result<Knee, BenchError> {
    let options = scenario.options;
    let bounds = Bounds { start: START, max: MAX_RATE, precision: PRECISION, repeats: REPEATS };
    let objective: &Objective = &options.objective;
    find_knee(&bounds, |rate| {
        let outcome = over::run(WireProtocol::Http, server, &job(keys, Action::Put, options, rate), options)?;
        let trial = objective.judge("the server", &outcome, Faults::Serious)?;
        scenario.step(&format!("knee of puts of {bytes} B, {}/s: {}, {trial}", number(rate), outcome.summary("/s")));
        Ok(trial)
    })
}

fn measure(
    server: &Server,
    keys: &Keys,
    (bytes, rate): (usize, f64),
    scenario: &Scenario<'_>,
) -> Result<Minute, BenchError> {
    let options = scenario.options;
    let gets = || over::run(WireProtocol::Http, server, &job(keys, Action::Get, options, rate), options);
    let before = gets()?;
    let puts = Job { duration: options.tail_duration, ..job(keys, Action::Put, options, rate) };
    let (puts, probe) = append_probe::beside(scenario.dir, bytes, options.probe_rate, || {
        over::run(WireProtocol::Http, server, &puts, options)
    })?;
    Ok(Minute { puts: puts?, probe, before, after: gets()? })
}

fn figures(all: &[Rounds], options: &PressureOptions) -> Figures {
    let seconds = options.tail_duration.as_secs_f64();
    let title = format!(
        "tails: puts over HTTP by a schedule, durability disk, {} connections, {seconds} s, without a limit of memory; medians of \
         the rounds, µs",
        options.tail_connections
    );
    let (mut table, mut checks, mut notes) = (Table::new(title), Vec::new(), Vec::new());
    for Rounds { bytes, rate, knee, minutes } in all {
        if let Some(knee) = knee {
            let what = format!("tails: knee of puts of {bytes} B with {}", options.objective);
            checks.push(knee.check(what, |rate| format!("{}/s", number(rate))));
        }
        if minutes.is_empty() {
            notes.push(format!(
                "tails: puts of {bytes} B were not measured, because no rate met {}: give a longer time with --objective, or \
                 state the rate with --rate",
                options.objective
            ));
            continue;
        }
        let name = format!("tails: puts of {bytes} B at {}/s", number(*rate));
        let mut add = |what: String, times: fn(&Minute) -> &Latencies, lag: f64| {
            let at =
                |percentile| median_of(minutes, |minute| times(minute).percentile(percentile).as_nanos() as f64 / 1e3);
            let tail = minutes.iter().map(|minute| times(minute).percentile(99.9).as_nanos() as f64 / 1e3);
            table.row(cells! {
                "value B" => *bytes, "what" => what, "p50" => at(50.0), "p95" => at(95.0), "p99" => at(99.0),
                "p99.9" => at(99.9),
                "± MAD" => Summary::of(&tail.collect::<Vec<_>>()).mad, "max" => at(100.0),
                "each round" => minutes.iter().map(|minute| times(minute).count()).max(),
                "generator's lag p99" => lag,
            });
        };
        let lag = |of: fn(&Minute) -> &over::Figures| median_of(minutes, |minute| of(minute).lag_us());
        let at = number(*rate);
        add(format!("put, {at}/s"), |minute| &minute.puts.times, lag(|minute| &minute.puts));
        add(
            format!("raw probe beside, append and fdatasync, {}/s", number(options.probe_rate)),
            |minute| &minute.probe,
            f64::NAN,
        );
        add(format!("get before, {at}/s"), |minute| &minute.before.times, lag(|minute| &minute.before));
        add(format!("get after, {at}/s"), |minute| &minute.after.times, lag(|minute| &minute.after));
        let all = minutes.iter().flat_map(|minute| [&minute.puts, &minute.before, &minute.after]);
        checks.push(
            Validity::worst(all.map(|run| &run.validity)).check(name.as_str(), "all answered, rightly, sent in time"),
        );
        let ratio = median_of(minutes, Minute::ratio);
        checks.push(Check::at_most(format!("{name}: p99.9 of that of the raw probe"), ratio, MAX_RATIO, " ×"));
        // The slowest of the few thousand appends of a minute vary on any disk. The medians show if the disk is steady.
        let medians: Vec<f64> =
            minutes.iter().map(|minute| minute.probe.percentile(50.0).as_nanos() as f64 / 1e3).collect();
        checks.extend(steadiness(format!("{name}: raw probe, p50"), &medians, " µs"));
    }
    let note = "tails: the times of puts and of the probe count from the moment at which they were due. The gets before and after \
                the puts show stalls of the machine that need no disk";
    notes.push(note.to_owned());
    let tables = if table.rows.is_empty() { Vec::new() } else { vec![table] };
    Figures { tables, checks, notes }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        load::{Limit, Outcome, Tally, options::parsed},
        report::Verdict,
        usage::RunResources,
        work::Counts,
    };

    fn knee(rate: Option<f64>) -> Knee {
        let missed = Some("p99 6 ms, not below 5 ms".to_owned());
        Knee { rate, fails_at: None, limited_by: Limit::Server, missed, trials: Vec::new() }
    }

    #[test]
    fn the_rate_is_stated_or_half_of_the_knee() {
        assert_eq!(rate_of(Some(500.0), None), Some(500.0));
        assert_eq!(rate_of(None, Some(&knee(Some(8000.0)))), Some(4000.0));
        assert_eq!(rate_of(None, Some(&knee(None))), None);
    }

    #[test]
    fn a_length_without_a_knee_ends_no_run_and_says_what_to_do() {
        let options = parsed([]).unwrap();
        let rounds = Rounds { bytes: 100, rate: f64::NAN, knee: Some(knee(None)), minutes: Vec::new() };
        let Figures { checks, tables, notes } = figures(&[rounds], &options);
        assert_eq!((checks.len(), checks[0].verdict, tables.len()), (1, Verdict::Missed, 0));
        assert!(checks[0].measured.contains("p99 6 ms") && notes[0].contains("--rate"), "{notes:?}");
    }

    #[test]
    fn the_tail_is_compared_with_the_probe_of_the_same_minute() {
        let options = parsed([]).unwrap();
        let outcome = |ms: u64| {
            let mut tally: Tally<Counts> = Tally::new(1);
            tally.times[0].record_nanos_times(ms * 1_000_000, 1000);
            tally.right = 1;
            Outcome::new(tally, 1.0, RunResources::default())
        };
        let minute = |put_ms, probe_ms| {
            let mut probe = Latencies::default();
            probe.record(Duration::from_millis(probe_ms));
            Minute { puts: outcome(put_ms), probe, before: outcome(1), after: outcome(1) }
        };
        let verdicts = |minutes| {
            let rounds = Rounds { bytes: 100, rate: 1000.0, knee: Some(knee(Some(2000.0))), minutes };
            let Figures { checks, tables, .. } = figures(&[rounds], &options);
            assert_eq!((checks.len(), tables[0].rows.len()), (4, 4));
            [checks[2].verdict, checks[3].verdict]
        };
        let (met, missed) = ([Verdict::Met; 2], [Verdict::Missed, Verdict::Met]);
        assert_eq!(verdicts(vec![minute(29, 10), minute(90, 10), minute(14, 10)]), met, "the median decides");
        assert_eq!(verdicts(vec![minute(31, 10), minute(90, 10), minute(14, 10)]), missed);
        let unsteady = vec![minute(29, 10), minute(60, 30), minute(100, 90)];
        assert_eq!(verdicts(unsteady), [Verdict::Met, Verdict::Void], "the disk was not the same in all rounds");
    }
}
