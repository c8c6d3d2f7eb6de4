//! The groups suite: the members of one consumer group fetch and acknowledge the records of one stream, with acks in
//! batches and with an ack for each record.
//!
//! Owns: the options, the members' threads, the comparison of each delivered record, and the report. Does not own:
//! groups over a network, which the scenarios measure (`scenario`).
//!
//! Members are threads of this process on the embedded engine. Setup appends the records; the timed part is fetching
//! and acknowledging all of them. Every record must be delivered exactly once with the appended bytes, and be
//! acknowledged at the end of the round. Otherwise the suite ends with an error and reports no figures.

use std::{
    ops::ControlFlow,
    path::PathBuf,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use thalweg_engine::{BackendKind, Database, FetchRequest, Group, GroupStart, Options, Stream};
use thalweg_types::{
    Durability, Offset,
    command::groups::{GroupConfig, Settlement},
    record::RecordBatch,
};

use crate::{
    BenchError, Progress, Report, Scratch,
    clock_rule::ClockRule,
    options::require,
    report::{Check, Table, cells},
    stats::Summary,
    usage::{MeasuredProcess, Usage},
};

const NAME: &str = "thalweg";
/// Number of records in each append during setup.
const APPEND: u64 = 100;

/// Options of `thalweg bench groups`, the suite about consumer groups.
#[derive(Clone, Debug, clap::Args)]
pub struct GroupsOptions {
    /// Number of group members that fetch concurrently, each on a thread of its own.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub members: u32,
    /// Maximum number of records in a fetch.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub batch: u32,
    /// Records of a round that acknowledges in batches; a round with single acks uses a fifth of this number.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(100..=100_000_000))]
    pub records: u64,
    /// Length of a record in bytes.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(8..=65_536))]
    pub record_bytes: u32,
    /// Durability level of fetches and acks.
    #[arg(long, default_value_t = Durability::Disk)]
    pub durability: Durability,
    /// Number of rounds with batched acks, and of rounds with single acks; medians are reported.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Warm-up rounds before the counted ones, with batched acks and with single acks. Each round begins with a fresh
    /// store.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub warmup_rounds: u32,
    /// Directory below which the store is created. This decides which disk is measured.
    #[arg(long)]
    pub dir: Option<PathBuf>,
}

/// Number of records that one ack covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Acks {
    /// Each ack acknowledges all records of one fetch.
    Batched,
    /// Each ack acknowledges one record.
    Single,
}

impl Acks {
    fn name(self) -> &'static str {
        match self {
            Self::Batched => "an attempt at a time",
            Self::Single => "a record at a time",
        }
    }
}

struct Round {
    deliveries: f64,
    /// Number of fetches of all members that returned records.
    batches: u64,
    seconds: f64,
    commands: u64,
    entries: u64,
    fsyncs: u64,
    cpu_seconds: f64,
}

/// Runs the groups suite and returns its report.
pub fn run(options: &GroupsOptions, progress: &mut dyn Progress) -> Result<Report, BenchError> {
    let has_outcome = options.durability != Durability::None;
    require(has_outcome, "--durability", "fetches and acks must know their outcome: at least os")?;
    let (mut report, scratch) = Report::begin_below("groups", options.dir.as_deref())?;
    report.condition("backend", BackendKind::Lsm.name());
    report.condition("durability", options.durability.name());
    report.condition("concurrency", format!("{} members, a thread each", options.members));
    report.condition(
        "payload",
        format!("records of {} B, at most {} to a fetch, which is a batch", options.record_bytes, options.batch),
    );
    let (rounds, warmups) = (options.rounds, options.warmup_rounds);
    report.condition("rounds", format!("{rounds} of each kind of ack, after {warmups} of warm-up"));
    let (mut table, mut clocks) = (Table::new("fetch and ack, one stream, one group"), ClockRule::default());
    for (acks, wanted) in [(Acks::Batched, 100_000.0), (Acks::Single, 30_000.0)] {
        let mut rates = Vec::new();
        for _ in 0..warmups {
            one_round(options, acks, &scratch)?;
        }
        for number in 1..=rounds {
            let round = clocks.around(|| one_round(options, acks, &scratch))?;
            let rate = round.deliveries / round.seconds;
            progress.step(&format!("{}, round {number}: {rate:.0} deliveries/s", acks.name()));
            table.row(cells! {
                "acks" => acks.name(), "deliveries/s" => rate, "batches/s" => round.batches as f64 / round.seconds,
                "deliveries" => round.deliveries, "batches" => round.batches, "seconds" => round.seconds,
                "commands/entry" => round.commands as f64 / round.entries.max(1) as f64,
                "fsyncs" => Some(round.fsyncs), "CPU s" => Some(round.cpu_seconds),
            });
            rates.push(rate);
        }
        let title = match acks {
            Acks::Batched => "fetched and acked by attempt",
            Acks::Single => "fetched by attempt, acked one by one",
        };
        report.checks.push(Check::at_least(title, Summary::of(&rates).median, wanted, " deliveries/s"));
    }
    report.tables.push(table);
    report.checks.extend(clocks.check());
    report.notes.push("every record was delivered once, its bytes were compared while the clock ran".to_owned());
    Ok(report.finish())
}

fn one_round(options: &GroupsOptions, acks: Acks, scratch: &Scratch) -> Result<Round, BenchError> {
    let records = match acks {
        Acks::Batched => options.records,
        Acks::Single => (options.records / 5).max(1),
    };
    let dir = scratch.fresh("groups")?;
    let store = Options { backend: Some(BackendKind::Lsm), durability: options.durability, ..Options::default() };
    let database = Database::open(&dir, store).map_err(BenchError::subject(NAME, "opening"))?;
    let stream = database.stream("bench").map_err(BenchError::subject(NAME, "creating a stream"))?;
    fill(&stream.with_durability(Durability::Os), records, options.record_bytes as usize)?;
    database.sync().map_err(BenchError::subject(NAME, "syncing"))?;
    let config = GroupConfig { ack_deadline: Duration::from_secs(600), max_pending: 100_000, ..GroupConfig::default() };
    let group = stream.create_group("bench", GroupStart::Beginning, &config);
    let (group, _) = group.map_err(BenchError::subject(NAME, "creating a group"))?;
    let (usage, stats) = (Usage::read(MeasuredProcess::Own), database.stats());
    let begun = Instant::now();
    let (delivered, failed) = (AtomicU64::new(0), AtomicBool::new(false));
    let outcomes: Vec<Result<u64, BenchError>> = thread::scope(|scope| {
        let member = |number| {
            let (group, delivered, failed) = (group.clone(), &delivered, &failed);
            scope.spawn(move || {
                let done = work(&group, number, options, acks, records, delivered, failed);
                failed.fetch_or(done.is_err(), Ordering::Relaxed);
                done
            })
        };
        let members: Vec<_> = (0..options.members).map(member).collect();
        members.into_iter().map(|member| member.join().unwrap_or(Err(wrong("a member panicked".to_owned())))).collect()
    });
    let seconds = begun.elapsed().as_secs_f64();
    let batches = outcomes.into_iter().sum::<Result<u64, _>>()?;
    let after = database.stats();
    let info = group.info().map_err(BenchError::subject(NAME, "looking at the group"))?;
    if (info.delivered, info.acked, info.floor) != (records, records, Offset(records)) {
        return Err(wrong(format!("{} delivered, {} acked of {records}", info.delivered, info.acked)));
    }
    database.close().map_err(BenchError::subject(NAME, "closing"))?;
    Ok(Round {
        deliveries: records as f64,
        batches,
        seconds,
        commands: after.commands - stats.commands,
        entries: after.entries - stats.entries,
        fsyncs: after.log.syncs - stats.log.syncs,
        cpu_seconds: Usage::read(MeasuredProcess::Own).since(&usage).cpu_seconds,
    })
}

fn payload(offset: u64, bytes: usize) -> Vec<u8> {
    let mut payload = vec![offset as u8; bytes];
    payload[..8].copy_from_slice(&offset.to_le_bytes());
    payload
}

fn fill(stream: &Stream, records: u64, bytes: usize) -> Result<(), BenchError> {
    let mut batch = RecordBatch::new();
    for offset in 0..records {
        let pushed = batch.push_payload(&payload(offset, bytes));
        pushed.map_err(BenchError::subject(NAME, "building a batch"))?;
        if u64::from(batch.count()) == APPEND || offset + 1 == records {
            stream.append(&batch).map_err(BenchError::subject(NAME, "appending"))?;
            batch.clear();
        }
    }
    Ok(())
}

/// Fetches and acknowledges records as one group member. Ends when all records are delivered, or when another member
/// has failed. Returns the number of fetches that returned records.
fn work(
    group: &Group,
    number: u32,
    options: &GroupsOptions,
    acks: Acks,
    records: u64,
    delivered: &AtomicU64,
    failed: &AtomicBool,
) -> Result<u64, BenchError> {
    let request = FetchRequest {
        member: number.to_string(),
        max_records: options.batch,
        max_bytes: u64::MAX,
        wait: Duration::ZERO,
    };
    let mut batches = 0;
    while delivered.load(Ordering::Relaxed) < records && !failed.load(Ordering::Relaxed) {
        let delivery = group.fetch(&request).map_err(BenchError::subject(NAME, "fetching"))?;
        let (mut offsets, mut bad) = (Vec::with_capacity(options.batch as usize), None);
        let compared = delivery.for_each(&mut |message| {
            let right = message.record.payload == payload(message.offset.0, options.record_bytes as usize);
            if !right || message.deliveries != 1 {
                bad = Some(message.offset);
            }
            offsets.push(message.offset);
            ControlFlow::Continue(())
        });
        compared.map_err(BenchError::subject(NAME, "reading"))?;
        if let Some(offset) = bad {
            return Err(wrong(format!("offset {offset} was delivered twice, or with other bytes")));
        }
        if offsets.is_empty() {
            thread::yield_now();
            continue;
        }
        let settlements = match acks {
            Acks::Batched => vec![Settlement::all(delivery.attempt)],
            Acks::Single => offsets.iter().map(|&offset| Settlement::one(delivery.attempt, offset)).collect(),
        };
        for settlement in &settlements {
            let settled = group.ack(std::slice::from_ref(settlement));
            let settled = settled.map_err(BenchError::subject(NAME, "acking"))?;
            if !settled.lapsed.is_empty() {
                return Err(wrong(format!("attempt {} lapsed", delivery.attempt)));
            }
        }
        delivered.fetch_add(offsets.len() as u64, Ordering::Relaxed);
        batches += 1;
    }
    Ok(batches)
}

fn wrong(message: String) -> BenchError {
    BenchError::wrong(NAME, "consuming", message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Quiet;

    #[test]
    fn a_small_run_delivers_every_record_once() {
        let options = GroupsOptions {
            members: 4,
            batch: 7,
            records: 500,
            record_bytes: 16,
            durability: Durability::Os,
            rounds: 1,
            warmup_rounds: 1,
            dir: None,
        };
        let report = run(&options, &mut Quiet).unwrap();
        assert_eq!((report.tables.len(), report.checks.len()), (1, 2));
        let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
        let rows = json["tables"][0]["rows"].as_array().unwrap();
        // The rounds have 500 records, and 100 for single acks. A fetch has at most 7 records.
        for (row, least) in rows.iter().zip([72, 15]) {
            let (batches, rate) = (row["batches"].as_u64().unwrap(), row["batches/s"].as_f64().unwrap());
            let seconds = row["seconds"].as_f64().unwrap();
            assert!(batches >= least && (rate * seconds / batches as f64 - 1.0).abs() < 1e-3, "{row}");
        }
        let unknown = GroupsOptions { durability: Durability::None, ..options };
        assert!(run(&unknown, &mut Quiet).is_err());
    }
}
