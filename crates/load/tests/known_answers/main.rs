//! The load generator against a server whose response times are known.
//!
//! Each test has two forms. The short one runs always, on a machine that may be busy: delays of the machine can only
//! make responses later, so its lower bounds are tight and hold always. Its upper bounds are wide, and must hold in one
//! of several attempts, because no bound holds while the machine stands still. The one behind `--ignored` needs
//! an idle machine and an optimised build, and requires the accuracy that reports claim:
//! `cargo test --release -p thalweg-load --test known_answers -- --ignored --test-threads 1`.

#![allow(unreachable_pub, reason = "a test program has no interface")]

mod synthetic;

use std::{sync::Arc, time::Duration};

use thalweg_lab::{
    BenchError,
    random::{Distribution, KeyChooser},
};
use thalweg_load::{
    Arrivals, Bounds, Faults, Knee, LEAST_PATIENCE, Objective, Pace, Plan, TimeBound, Validity,
    data::Values,
    find_knee,
    http::{Api, Http, MissingKeyPolicy, Outcome, Requests},
};

use self::synthetic::{Model, Servers, Synthetic};

const fn ms(time: u64) -> Duration {
    Duration::from_millis(time)
}

/// Plan of a run whose requests are sent when they are due: the connections take more requests than ever wait.
fn plan(server: &Synthetic, pace: Pace) -> Plan<Http> {
    let requests = Arc::new(Requests::new(Api::Entity, "synthetic", None, Values::new(20, 1)));
    Plan {
        protocol: Http { address: server.address, requests, get_percent: 0, missing: MissingKeyPolicy::Allowed },
        connections: 4,
        workers: 1,
        pipeline: 1024,
        pace,
        keys: KeyChooser::new(Distribution::Uniform, 100),
        warmup: ms(500),
        duration: ms(1000),
        window: None,
        give_up: Duration::from_secs(30),
        // A machine that stands still for a while makes the times wrong, which the tests see by themselves.
        max_lag: Duration::from_secs(30),
        seed: 1,
        server: None,
        fsyncs: None,
    }
}

fn open(rate: f64) -> Pace {
    Pace::Open { rate, arrivals: Arrivals::Constant }
}

/// Performs a run. Returns an error if the machine was too busy for it, and panics if a reply was wrong.
fn run(plan: &Plan<Http>) -> Result<Outcome, String> {
    let outcome = thalweg_load::run(plan).unwrap();
    assert!(!matches!(outcome.validity, Validity::Errors(_)), "{:?}", outcome.tally.first_problem);
    if outcome.validity == Validity::Good { Ok(outcome) } else { Err(format!("{:?}", outcome.validity)) }
}

/// Allowed deviation of a percentile from the model's.
#[derive(Clone, Copy)]
enum Accuracy {
    /// The percentile differs from the model's by at most 2 %, as on an idle machine.
    Idle,
    /// The percentile is at least 98 % of the model's, less the time between two requests, and not much more than the
    /// model's. In a short run the request at a percentile can be the neighbour of the model's request.
    Busy,
}

/// Calls `attempt` until it succeeds: once on an idle machine, and several times on a busy one. An attempt returns what
/// a delay of the machine can have caused, and panics at anything else.
fn succeeds(accuracy: Accuracy, mut attempt: impl FnMut() -> Result<(), String>) {
    let attempts = match accuracy {
        Accuracy::Idle => 1,
        Accuracy::Busy => 15,
    };
    let mut failures = Vec::new();
    for _ in 0..attempts {
        match attempt() {
            Ok(()) => return,
            Err(failure) => failures.push(failure),
        }
    }
    panic!("{failures:#?}");
}

/// Compares the percentiles of a run with constant arrivals with those of the model. Panics if one is too low, and
/// returns an error if one is too high.
fn check_percentiles(
    model: &Model,
    rate: f64,
    outcome: &Outcome,
    percentiles: &[f64],
    accuracy: Accuracy,
) -> Result<(), String> {
    for &percentile in percentiles {
        let (wanted, measured) =
            (model.response_time(rate, 1.0 - percentile / 100.0), outcome.times.percentile(percentile));
        let lowest = wanted.mul_f64(0.98);
        let (lowest, highest) = match accuracy {
            Accuracy::Idle => (lowest, wanted.mul_f64(1.02)),
            Accuracy::Busy => {
                (lowest.saturating_sub(Duration::from_secs_f64(1.0 / rate)), wanted.mul_f64(1.5) + ms(30))
            }
        };
        let text = format!("p{percentile}: {measured:?}, the model has {wanted:?}; {:?}", outcome.times.quantiles());
        assert!(measured >= lowest, "{text}");
        if measured > highest {
            return Err(text);
        }
    }
    Ok(())
}

/// Percentiles in and beside the stalls, where no request waits for another one.
fn stalls_without_a_queue(every: Duration, seconds: u64, rate: f64, accuracy: Accuracy) {
    let model = Model { service: ms(10), servers: Servers::OnePerRequest, stall_every: every, stall: ms(100) };
    succeeds(accuracy, || {
        let server = Synthetic::start(model);
        let outcome = run(&Plan { duration: Duration::from_secs(seconds), ..plan(&server, open(rate)) })?;
        check_percentiles(&model, rate, &outcome, &[50.0, 75.0, 90.0, 95.0, 98.0, 99.0, 99.9], accuracy)
    });
}

#[test]
fn stalls_show_in_the_percentiles() {
    stalls_without_a_queue(ms(250), 1, 500.0, Accuracy::Busy);
}

#[test]
#[ignore = "needs an idle machine: \
            cargo test --release -p thalweg-load --test known_answers -- --ignored --test-threads 1"]
fn stalls_show_in_the_percentiles_within_two_percent() {
    stalls_without_a_queue(ms(1000), 10, 2000.0, Accuracy::Idle);
}

/// An open and a closed loop against one server with stalls. The closed loop's percentile must be less than the share
/// `most` of the one that the open loop reports.
fn omission(service: Duration, rate: f64, seconds: u64, (percentile, most): (f64, f64), accuracy: Accuracy) {
    let model = Model { service, servers: Servers::One, stall_every: ms(1000), stall: ms(100) };
    succeeds(accuracy, || {
        let server = Synthetic::start(model);
        let duration = Duration::from_secs(seconds);
        let scheduled = run(&Plan { duration, ..plan(&server, open(rate)) })?;
        check_percentiles(&model, rate, &scheduled, &[90.0, 95.0, 99.0], accuracy)?;
        // One request at a time: each stall delays a single request, and those that users would have sent are left
        // out.
        let closed = run(&Plan { duration, connections: 1, pipeline: 1, ..plan(&server, Pace::Closed) })?;
        assert!(closed.times.max() >= ms(95), "a stall was measured: {:?}", closed.times.quantiles());
        let share = closed.time_us(percentile) / scheduled.time_us(percentile);
        if share < most { Ok(()) } else { Err(format!("the closed loop's p{percentile} is {share} of the true one")) }
    });
}

#[test]
fn a_closed_loop_omits_what_the_schedule_shows() {
    omission(ms(1), 300.0, 2, (95.0, 0.4), Accuracy::Busy);
}

#[test]
#[ignore = "needs an idle machine: \
            cargo test --release -p thalweg-load --test known_answers -- --ignored --test-threads 1"]
fn a_closed_loop_omits_nearly_all_of_the_tail() {
    omission(Duration::from_micros(100), 4000.0, 10, (99.0, 0.02), Accuracy::Idle);
}

/// A server of one request at a time, with its knee.
struct KneeCase {
    service: Duration,
    warmup: Duration,
    duration: Duration,
    objective: &'static str,
    start: f64,
    repeats: u32,
}

impl KneeCase {
    fn objective(&self) -> Objective {
        self.objective.parse().unwrap()
    }

    /// Returns the highest rate that meets the objective. Above its capacity of `1 / service` the server falls behind
    /// by `load - 1` per second from the start of the run, so the percentile is that of a request due late in the run.
    fn knee(&self) -> f64 {
        let TimeBound { percentile, bound } = self.objective().times[0];
        let due = self.warmup.as_secs_f64() + self.duration.as_secs_f64() * percentile / 100.0;
        (1.0 + (bound - self.service).as_secs_f64() / due) / self.service.as_secs_f64()
    }

    fn search(&self) -> Knee {
        let model = Model { service: self.service, servers: Servers::One, stall_every: ms(1000), stall: ms(0) };
        let (server, objective) = (Synthetic::start(model), self.objective());
        let bounds = Bounds { start: self.start, max: 1e6, precision: 0.03, repeats: self.repeats };
        let trial = |rate| {
            let plan = Plan { warmup: self.warmup, duration: self.duration, ..plan(&server, open(rate)) };
            let outcome = thalweg_load::run(&Plan { give_up: objective.patience(LEAST_PATIENCE), ..plan })?;
            objective.judge("the synthetic server", &outcome, Faults::Serious)
        };
        find_knee::<BenchError>(&bounds, trial).unwrap()
    }
}

#[test]
fn the_search_finds_about_the_knee() {
    let case = KneeCase {
        service: ms(1),
        warmup: ms(100),
        duration: ms(400),
        objective: "p50<30ms",
        start: 300.0,
        repeats: 2,
    };
    succeeds(Accuracy::Busy, || {
        let (knee, wanted) = (case.search(), case.knee());
        let is_right = knee.rate.is_some_and(|rate| (0.7..1.1).contains(&(rate / wanted)));
        if is_right { Ok(()) } else { Err(format!("the knee is {wanted}; {knee:?}")) }
    });
}

#[test]
#[ignore = "needs an idle machine: \
            cargo test --release -p thalweg-load --test known_answers -- --ignored --test-threads 1"]
fn the_search_finds_the_knee_within_five_percent_in_two_minutes_and_again() {
    let case = KneeCase {
        service: Duration::from_micros(100),
        warmup: ms(500),
        duration: ms(3000),
        objective: "p99<20ms",
        start: 1000.0,
        repeats: 3,
    };
    let rates = [1, 2].map(|_| {
        let begun = std::time::Instant::now();
        let (knee, wanted) = (case.search(), case.knee());
        let (rate, taken) = (knee.rate.unwrap(), begun.elapsed());
        eprintln!("knee {wanted:.0}/s, found {rate:.0}/s with {} runs in {taken:.0?}", knee.trials.len());
        assert!((rate / wanted - 1.0).abs() < 0.05, "the knee is {wanted}; {knee:?}");
        assert!(taken < Duration::from_secs(120), "{taken:?}");
        rate
    });
    assert!((rates[0] / rates[1] - 1.0).abs() < 0.05, "{rates:?}");
}
