//! Measures the cost of watches for writers. It compares puts without watches, puts beside watches on prefixes that
//! are never written, and puts that each hit one watch.
//!
//! `cargo bench -p thalweg-engine --bench watch -- [--watches 1000] [--rounds 7] [--puts 200000]`. Within a round the
//! cases take turns, each on a database of its own. The rate counts only the puts. The CPU time of the putting thread
//! is printed beside it: the cost of watches for the writer itself, whatever else uses the processors. Every event is
//! checked: each watch gets exactly the puts of its prefix, in order. As a test (`cargo test --benches`) the
//! parameters are small.
#![allow(clippy::print_stdout, reason = "figures are printed")]

use std::{
    future::Future,
    sync::{Arc, mpsc},
    task::{Context, Poll, Wake, Waker},
    thread,
    time::{Duration, Instant},
};

use thalweg_engine::{Database, Keyspace, Options, Watch, WatchKeys, types::Durability};

const VALUE: [u8; 100] = [7; 100];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Case {
    None,
    /// Watches that no put hits.
    Idle,
    /// Watches of which each put hits one.
    Hit,
}

const CASES: [Case; 3] = [Case::None, Case::Idle, Case::Hit];

impl Case {
    fn name(self) -> &'static str {
        match self {
            Self::None => "no watches",
            Self::Idle => "watches, none hit",
            Self::Hit => "watches, one hit by each put",
        }
    }
}

struct Settings {
    watches: u64,
    rounds: usize,
    puts: u64,
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1)?.parse().ok()
    };
    let is_bench = arguments.iter().any(|argument| argument == "--bench");
    let or = |full, least| if is_bench { full } else { least };
    let settings = Settings {
        watches: number("--watches").unwrap_or(or(1000, 20)),
        rounds: number("--rounds").unwrap_or(or(7, 1)) as usize,
        puts: number("--puts").unwrap_or(or(200_000, 2000)),
    };
    println!("puts of {} B, one writer, {} watches, {} rounds", VALUE.len(), settings.watches, settings.rounds);
    for (level, puts) in [(Durability::Os, settings.puts), (Durability::Disk, settings.puts / 50)] {
        let mut rounds: [Vec<Round>; 3] = Default::default();
        for round in 0..settings.rounds {
            for turn in 0..CASES.len() {
                let at = (round + turn) % CASES.len();
                rounds[at].push(measure(CASES[at], level, puts, &settings));
            }
        }
        for (case, of_case) in CASES.iter().zip(&rounds) {
            let of = |figure: fn(&Round) -> f64| of_case.iter().map(figure).collect::<Vec<_>>();
            let against = |figure: fn(&Round) -> f64| {
                median(
                    &of_case
                        .iter()
                        .zip(&rounds[0])
                        .map(|(round, base)| figure(round) / figure(base))
                        .collect::<Vec<_>>(),
                )
            };
            let rates = of(|round| round.rate);
            println!(
                "{level}, {puts} puts, {}: median {:.0}/s (of {:.0} to {:.0}), {:.3} of none in the same round; \
                 the writer's CPU {:.0} ns a put, {:.3} of none",
                case.name(),
                median(&rates),
                rates.iter().copied().fold(f64::INFINITY, f64::min),
                rates.iter().copied().fold(0.0, f64::max),
                against(|round| round.rate),
                median(&of(|round| round.cpu_nanos)),
                against(|round| round.cpu_nanos),
            );
        }
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

struct Round {
    /// Puts per second.
    rate: f64,
    /// CPU time of the writer for each put, in nanoseconds.
    cpu_nanos: f64,
}

/// Returns the CPU time of this thread in nanoseconds, as counted by the kernel; NaN if the kernel does not count it.
fn thread_cpu_nanos() -> f64 {
    let account = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    account.split(' ').next().and_then(|nanos| nanos.parse().ok()).unwrap_or(f64::NAN)
}

fn measure(case: Case, level: Durability, puts: u64, settings: &Settings) -> Round {
    let dir = tempfile::tempdir().expect("a directory");
    let options = Options { maintenance_interval: Duration::ZERO, ..Options::default() };
    let db = Database::open(dir.path(), options).expect("opens").with_durability(level);
    let keyspace = db.keyspace("bench").expect("created");
    for number in 0..1000 {
        keyspace.put(&key(number, settings.watches), &VALUE).expect("warms up");
    }
    let consumer = (case != Case::None).then(|| Consumer::start(&keyspace, case, puts, settings));
    // Wait until the disk is idle.
    db.sync().expect("syncs");
    let (begun, cpu) = (Instant::now(), thread_cpu_nanos());
    for number in 0..puts {
        keyspace.put(&key(number, settings.watches), &VALUE).expect("put");
    }
    let rate = puts as f64 / begun.elapsed().as_secs_f64();
    let cpu_nanos = (thread_cpu_nanos() - cpu) / puts as f64;
    if let Some(consumer) = consumer {
        let wanted = if case == Case::Hit { puts } else { 0 };
        assert_eq!(consumer.finish(), wanted, "events");
    }
    Round { rate, cpu_nanos }
}

/// Returns the key of a put. Consecutive keys go through the prefixes in turn.
fn key(number: u64, prefixes: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&(number % prefixes).to_be_bytes());
    key[8..].copy_from_slice(&number.to_be_bytes());
    key
}

/// Waker that notifies the consumer of a watch with events.
struct Ready {
    watch: usize,
    ready: mpsc::Sender<Option<usize>>,
}

impl Wake for Ready {
    fn wake(self: Arc<Self>) {
        // The consumer may have ended after its last event.
        let _ = self.ready.send(Some(self.watch));
    }
}

/// Thread that takes events from the watches when they wake it, as an async server would.
struct Consumer {
    thread: thread::JoinHandle<u64>,
    ready: mpsc::Sender<Option<usize>>,
}

/// A watch, its waker, the last revision that it reported, and its prefix.
struct Watched {
    watch: Watch,
    waker: Waker,
    last: u64,
    prefix: [u8; 8],
}

impl Consumer {
    fn start(keyspace: &Keyspace, case: Case, puts: u64, settings: &Settings) -> Self {
        let above = if case == Case::Idle { settings.watches } else { 0 };
        let (ready, receiver) = mpsc::channel();
        let watched = |number: u64| {
            let prefix = (above + number).to_be_bytes();
            let watch = keyspace.watch(&WatchKeys::Prefix(prefix.to_vec()), None).expect("watches");
            let waker = Waker::from(Arc::new(Ready { watch: number as usize, ready: ready.clone() }));
            Watched { watch, waker, last: 0, prefix }
        };
        let mut watches: Vec<_> = (0..settings.watches).map(watched).collect();
        let wanted = if case == Case::Hit { puts } else { 0 };
        let thread = thread::spawn(move || {
            let mut events: u64 = watches.iter_mut().map(Watched::take).sum();
            let mut finishing = false;
            while !finishing || events < wanted {
                match receiver.recv_timeout(Duration::from_secs(60)).expect("the missing events arrive") {
                    Some(number) => events += watches[number].take(),
                    None => finishing = true,
                }
            }
            events
        });
        Self { thread, ready }
    }

    fn finish(self) -> u64 {
        self.ready.send(None).expect("the consumer is waiting");
        self.thread.join().expect("all events arrived in order")
    }
}

impl Watched {
    /// Takes all available events and registers the waker.
    fn take(&mut self) -> u64 {
        let mut events = 0;
        loop {
            while let Some(batch) = self.watch.try_next().expect("the watch goes on") {
                for event in &batch.events {
                    assert!(event.revision.0 > self.last && event.key.starts_with(&self.prefix));
                    self.last = event.revision.0;
                }
                events += batch.events.len() as u64;
            }
            let ready = std::pin::pin!(self.watch.ready());
            if ready.poll(&mut Context::from_waker(&self.waker)) == Poll::Pending {
                return events;
            }
        }
    }
}
