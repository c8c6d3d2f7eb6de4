//! Search for the most expensive entry that the state machine accepts, with all rows in memory.
//!
//! `cargo run --release -p thalweg-state --example entry_cost -- [--goal-ms MILLIS] [lsm|memory|redb|sqlite] [KIND]`
//!
//! For each kind of command, the search doubles and then bisects the size of the command until it is rejected, applies
//! the largest accepted one a few times, and prints its steps of work and the CPU time of the entry. Entries of many
//! commands contain as many as a proposer puts into one entry. The exit code is 1 if the median of a kind is above the
//! goal (50 ms), or if a kind of command was never applied.
//!
//! Owns: the node without a log ([`Node`]), and the search ([`Search`]). The kinds are in the modules, one for each
//! family of commands: each is a closure that makes the entry of a given size. An entry may use up data that it needs,
//! such as the pending records of a consumer group. Its closure then first applies other entries, which restore the
//! data.

#![allow(clippy::print_stdout)]

mod consumers;
mod data;
mod hostile;
mod native;
mod redis;
mod upkeep;

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeSet, HashMap},
    process::ExitCode,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use rustix::time::{ClockId, clock_gettime};
use thalweg_disk::{Disk, RealDisk};
use thalweg_state::{
    blobs::{BlobUnreadable, Blobs},
    machine::{Entry, Machine, MachineOptions},
};
use thalweg_store::{
    Backend, BarrierFailed, LogBarrier,
    lsm::{LsmBackend, LsmOptions},
    memory::{MemoryBackend, MemoryOptions},
    redb::{RedbBackend, RedbOptions},
    sqlite::{SqliteBackend, SqliteOptions},
};
use thalweg_types::{
    BlobRef, Generation, Index, LogPosition, Lsn, SpaceTime, Term,
    command::{Command, GroupCommand, Outcome, TimeCommand, max_steps, unwrap},
    limits::{MAX_ENTRY_BYTES, MAX_ENTRY_COMMANDS, MAX_ENTRY_STEPS},
    reply::Reply,
};

/// Number of entries that are measured for each kind of command.
const ROUNDS: usize = 5;
/// Default of the option `--goal-ms`: the highest acceptable median CPU time of an entry, in milliseconds.
const GOAL_MS: f64 = 50.0;
/// Names of the commands that clients and maintenance propose, except Redis commands.
const NATIVE: &[&str] = &[
    "Commit",
    "ConfigureKeyspace",
    "ConfigureStream",
    "CreateKeyspace",
    "CreateStream",
    "DeleteStream",
    "Digest",
    "DropKeyspace",
    "EnforceRetention",
    "ForgetProducers",
    "Group Configure",
    "Group Create",
    "Group Delete",
    "Group Extend",
    "Group Fetch",
    "Group Reclaim",
    "Group Seek",
    "Group Settle",
    "OpenProducer",
    "PruneVersions",
    "RaiseVersion",
    "Redis",
    "Sweep",
    "Time Expire",
    "Time Forget",
    "Time Grant",
    "Time Keep",
    "Time Revoke",
    "Transaction",
    "TrimStream",
];

fn cpu_millis() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
}

#[derive(Debug)]
struct NoLog;

impl LogBarrier for NoLog {
    fn sync_through(&self, _: Lsn) -> Result<(), BarrierFailed> {
        Ok(())
    }
}

/// Log in memory: each entry has a segment of its own.
#[derive(Debug, Default)]
struct Segments(Mutex<HashMap<Generation, Arc<Vec<u8>>>>);

/// Position of an entry's payload in its segment.
const OFFSET: u32 = 64;

impl Blobs for Segments {
    fn read(&self, blob: &BlobRef) -> Result<Bytes, BlobUnreadable> {
        let segment = self.0.lock().expect("not poisoned").get(&blob.generation).cloned();
        let from = (blob.offset - OFFSET) as usize;
        let bytes = segment.as_ref().and_then(|segment| segment.get(from..from + blob.len as usize));
        let bytes = bytes.ok_or_else(|| BlobUnreadable("missing".to_owned()))?;
        assert_eq!(crc_fast::crc32_iscsi(bytes), blob.crc);
        Ok(Bytes::copy_from_slice(bytes))
    }
}

struct Node {
    machine: Machine,
    segments: Arc<Segments>,
    /// Microseconds that are added to the times of entries, which otherwise advance by one second with each entry.
    ahead: Cell<u64>,
    /// Names of the kinds of commands that were applied.
    applied: RefCell<BTreeSet<String>>,
}

impl Node {
    /// Applies one entry, and returns the outcomes, the CPU time in milliseconds, and the steps of work.
    fn apply(&self, commands: &[Vec<u8>]) -> (Vec<Outcome>, f64, u64) {
        let mut payload = Vec::new();
        for command in commands {
            self.note(command);
            payload.extend_from_slice(&(command.len() as u32).to_le_bytes());
            payload.extend_from_slice(command);
        }
        let next_lsn = Lsn(self.machine.applied().lsn.0 + 1);
        let at = LogPosition { generation: Generation(next_lsn.0), offset: OFFSET };
        let payload = Arc::new(payload);
        if payload.len() > 4096 {
            self.segments.0.lock().expect("not poisoned").insert(at.generation, Arc::clone(&payload));
        }
        let (index, time) = (Index(next_lsn.0), SpaceTime(next_lsn.0 * 1_000_000 + self.ahead.get()));
        let entry = Entry { term: Term(1), index, time, payload: &payload, at, next_lsn };
        let (mut outcomes, steps) = (Vec::new(), self.machine.steps().expect("runs"));
        let start = cpu_millis();
        self.machine.apply(&entry, &mut outcomes).expect("applies");
        let took = cpu_millis() - start;
        (outcomes, took, self.machine.steps().expect("runs") - steps)
    }

    /// Applies commands that must be accepted, in one entry, and returns their outcomes.
    fn all(&self, commands: &[Vec<u8>]) -> Vec<Outcome> {
        let (outcomes, ..) = self.apply(commands);
        if let Some(refused) = outcomes.iter().find(|outcome| !is_accepted(outcome)) {
            panic!("{}", format!("{refused:?}").chars().take(300).collect::<String>());
        }
        outcomes
    }

    fn must(&self, command: Vec<u8>) -> Outcome {
        self.all(&[command]).remove(0)
    }

    /// Adds the kind of this command to the set of applied kinds. For a batch of Redis commands, also adds their names.
    fn note(&self, command: &[u8]) {
        let mut applied = self.applied.borrow_mut();
        let name = |value: &dyn std::fmt::Debug| {
            let text = format!("{value:.0?}");
            text.split(|char: char| !char.is_alphanumeric()).next().unwrap_or_default().to_owned()
        };
        let Ok(command) = Command::decode(unwrap(command).bytes) else { panic!("malformed") };
        match command {
            Command::Commit(_) => _ = applied.insert("Commit".to_owned()),
            Command::Transaction(_) => _ = applied.insert("Transaction".to_owned()),
            Command::Redis(batch) => {
                applied.insert("Redis".to_owned());
                let (mut commands, mut args) = (batch.commands(), Vec::new());
                let mut last = Vec::new();
                while commands.next_into(&mut args) {
                    if args[0] != last {
                        last = args[0].to_vec();
                        applied.insert(String::from_utf8_lossy(args[0]).to_lowercase());
                    }
                }
            }
            Command::Group(GroupCommand::Settle(_)) => _ = applied.insert("Group Settle".to_owned()),
            Command::Group(GroupCommand::Fetch(_)) => _ = applied.insert("Group Fetch".to_owned()),
            Command::Group(GroupCommand::Extend { .. }) => _ = applied.insert("Group Extend".to_owned()),
            Command::Group(command) => _ = applied.insert(format!("Group {}", name(&command))),
            Command::Time(TimeCommand::Forget { .. }) => _ = applied.insert("Time Forget".to_owned()),
            Command::Time(command) => _ = applied.insert(format!("Time {}", name(&command))),
            command => _ = applied.insert(name(&command)),
        }
    }
}

fn is_accepted(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::TooExpensive { .. } | Outcome::TooMany { .. } | Outcome::OperationFailed { .. } => false,
        Outcome::Malformed(malformed) => panic!("{malformed}"),
        Outcome::Redis(Some(replies)) => !replies.iter().any(|reply| matches!(reply, Reply::Error(_))),
        _ => true,
    }
}

/// Function that makes an entry of a given size; returns `None` if no client could send such an entry.
type Make<'a> = &'a dyn Fn(usize) -> Option<Vec<Vec<u8>>>;

/// The search for the most expensive entry of each kind, and its result.
struct Search<'a> {
    node: &'a Node,
    /// Text that the name of a kind of command must contain to be measured; `None` measures all kinds.
    only: Option<String>,
    goal_ms: f64,
    worst_ms: f64,
    /// Names of the kinds of commands whose median CPU time is above the goal.
    above: Vec<String>,
}

impl Search<'_> {
    /// Finds the largest accepted entry of one kind of command, and prints its cost.
    fn kind(&mut self, name: &str, make: Make<'_>) {
        if self.only.as_ref().is_some_and(|only| !name.contains(&**only)) {
            return;
        }
        let node = self.node;
        let accepts = |size: usize| {
            make(size).is_some_and(|entry| {
                let (outcomes, ..) = node.apply(&entry);
                outcomes.iter().all(is_accepted)
            })
        };
        let mut low = 1;
        if !accepts(low) {
            println!("{name:<52} rejected");
            self.above.push(format!("{name}: rejected at every size"));
            return;
        }
        while low < 1 << 20 && accepts(low * 2) {
            low *= 2;
        }
        let mut high = low * 2;
        while high - low > low / 16 + 1 {
            let middle = low.midpoint(high);
            if accepts(middle) { low = middle } else { high = middle }
        }
        self.measure(name, low, make);
    }

    /// Applies an entry of the given size, without a search for the largest accepted size, and prints its cost. The
    /// entry may be rejected.
    fn fixed(&mut self, name: &str, size: usize, make: Make<'_>) {
        if self.only.as_ref().is_none_or(|only| name.contains(&**only)) {
            self.measure(name, size, make);
        }
    }

    fn measure(&mut self, name: &str, size: usize, make: Make<'_>) {
        let round = |_| {
            let (_, took, steps) = self.node.apply(&make(size).expect("made before"));
            (took, steps)
        };
        let mut all: Vec<(f64, u64)> = (0..ROUNDS).map(round).collect();
        all.sort_by(|left, right| left.0.total_cmp(&right.0));
        let (took, steps) = all[ROUNDS / 2];
        let per = took * 1e6 / steps.max(1) as f64;
        let mark = if took > self.goal_ms { "  above the goal" } else { "" };
        println!("{name:<52} {size:>8} {steps:>9} {took:>9.1} {:>9.1} {per:>7.0}{mark}", all[ROUNDS - 1].0);
        if took > self.goal_ms {
            self.above.push(format!("{name}: {took:.1} ms"));
        }
        self.worst_ms = self.worst_ms.max(took);
    }
}

/// History settings of the keyspaces. They affect how many commands a proposer puts into one entry.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Space {
    /// No keyspace keeps former values.
    Plain,
    /// A keyspace keeps former values.
    WithHistory,
}

/// Makes an entry of `size` commands; `None` if a proposer would not put so many commands into one entry.
fn proposed(space: Space, size: usize, command: &dyn Fn(usize) -> Vec<u8>) -> Option<Vec<Vec<u8>>> {
    if size > MAX_ENTRY_COMMANDS {
        return None;
    }
    let (mut commands, mut steps, mut bytes) = (Vec::new(), 0, 0);
    for number in 0..size {
        let next = command(number);
        steps += max_steps(&next, space == Space::WithHistory);
        if number > 0 && (steps > MAX_ENTRY_STEPS || bytes >= MAX_ENTRY_BYTES) {
            return None;
        }
        bytes += next.len();
        commands.push(next);
    }
    Some(commands)
}

/// The arguments of the command line.
struct Args {
    backend: String,
    only: Option<String>,
    goal_ms: f64,
}

impl Args {
    fn parse() -> Self {
        let (mut plain, mut goal_ms) = (Vec::new(), GOAL_MS);
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            match &*arg {
                "--goal-ms" => goal_ms = args.next().and_then(|ms| ms.parse().ok()).expect("--goal-ms MILLIS"),
                _ => plain.push(arg),
            }
        }
        let mut plain = plain.into_iter();
        let backend = plain.next().unwrap_or_else(|| "lsm".to_owned());
        Self { backend, only: plain.next(), goal_ms }
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let dir = std::env::temp_dir().join(format!("thalweg-entry-cost-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let disk = || -> Arc<dyn Disk> { Arc::new(RealDisk::open(&dir).expect("a disk")) };
    let backend: Arc<dyn Backend> = match &*args.backend {
        "memory" => Arc::new(MemoryBackend::open(disk(), MemoryOptions::default(), Arc::new(NoLog)).expect("opens")),
        "redb" => Arc::new(RedbBackend::open(&disk(), RedbOptions::default(), Arc::new(NoLog)).expect("opens")),
        "sqlite" => Arc::new(SqliteBackend::open(SqliteOptions::new(&dir), Arc::new(NoLog)).expect("opens")),
        "lsm" => Arc::new(LsmBackend::open(LsmOptions::new(dir.clone()), Arc::new(NoLog)).expect("opens")),
        other => panic!("unknown backend {other}: lsm, memory, redb or sqlite"),
    };
    let segments = Arc::new(Segments::default());
    let machine = Machine::open(backend, MachineOptions::default()).expect("opens").with_blobs(segments.clone());
    let node = Node { machine, segments, ahead: Cell::new(0), applied: RefCell::default() };
    data::fill(&node);
    println!(
        "{}: {} keys in each keyspace, median of {ROUNDS} entries, CPU time of the applying thread",
        args.backend,
        data::KEYS
    );
    println!("{:<52} {:>8} {:>9} {:>9} {:>9} {:>7}", "kind", "size", "steps", "ms", "most ms", "ns/step");
    let is_whole = args.only.is_none();
    let mut search = Search { node: &node, only: args.only, goal_ms: args.goal_ms, worst_ms: 0.0, above: Vec::new() };
    native::search(&mut search);
    consumers::search(&mut search);
    upkeep::search(&mut search);
    redis::search(&mut search);
    hostile::search(&mut search);
    println!("most expensive entry: {:.1} ms, goal {:.1} ms", search.worst_ms, search.goal_ms);
    let mut faults = search.above;
    if is_whole {
        let applied = node.applied.borrow();
        let redis = thalweg_redis::table::all().map(|command| command.name).filter(|name| redis::is_logged(name));
        let missing = NATIVE.iter().copied().chain(redis).filter(|name| !applied.contains(*name));
        faults.extend(missing.map(|name| format!("{name}: never applied")));
    }
    faults.iter().for_each(|fault| println!("FAULT {fault}"));
    let _ = std::fs::remove_dir_all(&dir);
    if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
