//! Measures commits of three cluster members in this process. They are connected over loopback and sync their logs to
//! the disk. Each client is a task that puts 256 bytes into the leader's database, waits until a majority has the put
//! on disk (level `quorum`), and then puts again. No HTTP server is involved.
//!
//! Each round first measures the machine's present speed: a loopback round trip between two threads, and an `fdatasync`
//! after a write into a prewritten file. The *bound* is the rate of commits that one client could reach if only these
//! took time: 1 / (two round trips + one sync).
//!
//! `cargo run --release -p thalweg-cluster --example replicated_commits -- [clients ...] [--seconds N] [--rounds N]`

#![allow(clippy::print_stdout)]

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::fs::FileExt,
    path::Path,
    rc::Rc,
    thread,
    time::{Duration, Instant},
};

use thalweg_cluster::{Node, NodeOptions, Secret};
use thalweg_engine::{Database, MemberIdentity, Options};
use thalweg_serving::cluster::{ClusterHandle, MemberRole};
use thalweg_types::{Durability, KeyspaceId};

const VALUE_BYTES: usize = 256;
const KEYS: u64 = 100_000;
const PROBE_BYTES: usize = 512;
const PROBES: usize = 2_000;
/// Numbers of clients to measure if the command line names none.
const CLIENTS: [usize; 2] = [1, 100];
/// Unit of the processor times in `/proc`.
const TICK: Duration = Duration::from_millis(10);

struct Member {
    db: Database,
    node: Node,
}

fn main() {
    let (mut clients, mut seconds, mut rounds) = (Vec::new(), 3, 3);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let number = |text: Option<String>| text.and_then(|text| text.parse::<usize>().ok()).expect("a number");
        match argument.as_str() {
            "--seconds" => seconds = number(arguments.next()),
            "--rounds" => rounds = number(arguments.next()),
            _ => clients.push(number(Some(argument))),
        }
    }
    if clients.is_empty() {
        clients.extend(CLIENTS);
    }
    let dir = tempfile::tempdir().expect("a directory");
    let members = start(dir.path());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let leader = members.iter().find(|member| member.node.leads()).expect("a leader");
    let keyspace = leader.db.keyspace("k").expect("a keyspace").id();
    let mut found: BTreeMap<usize, Vec<Round>> = BTreeMap::new();
    for _ in 0..rounds {
        for &count in &clients {
            let probe = Probe::measure(dir.path());
            let measured =
                runtime.block_on(run(&members, leader, keyspace, count, Duration::from_secs(seconds as u64)));
            let round = Round { probe, measured };
            round.print(count);
            found.entry(count).or_default().push(round);
        }
    }
    for (count, rounds) in &found {
        summarise(*count, rounds);
    }
    check_equal(&members);
    for member in &members {
        member.node.shut_down();
        member.db.close().expect("closes");
    }
}

/// Starts three voters of a new cluster in this process.
fn start(dir: &Path) -> Vec<Member> {
    let member = |number: usize, identity, join: Vec<String>, cluster| {
        let db = Database::open_member(dir.join(format!("n{number}")), Options::default(), identity).expect("opens");
        let cluster = cluster_or(cluster, &db);
        let listen = "127.0.0.1:0".parse().expect("an address");
        let options = NodeOptions::new(listen, Secret::new(&[7; 32]));
        let node = Node::start(&db, cluster, NodeOptions { name: format!("n{number}"), join, ..options });
        Member { db, node: node.expect("starts") }
    };
    let first = member(1, MemberIdentity::Found, Vec::new(), None);
    let cluster = first.db.report().cluster.expect("a cluster");
    let join = vec![first.node.address().to_string()];
    let mut members = vec![first];
    for number in 2..=3 {
        members.push(member(number, MemberIdentity::Join { cluster }, join.clone(), Some(cluster)));
    }
    let is_voter = |member: &Member| {
        let report = member.node.report();
        let voters = report.members.iter().filter(|other| other.role == MemberRole::Voter).count();
        voters == 3 && report.leader.is_some()
    };
    let began = Instant::now();
    while !members.iter().all(is_voter) {
        assert!(began.elapsed() < Duration::from_secs(60), "three voters");
        thread::sleep(Duration::from_millis(20));
    }
    members
}

fn cluster_or(cluster: Option<thalweg_types::ClusterId>, db: &Database) -> thalweg_types::ClusterId {
    cluster.or(db.report().cluster).expect("a cluster")
}

/// Measured speed of the machine: the time of a message's round trip between two threads, and the time of an
/// `fdatasync`.
#[derive(Clone, Copy)]
struct Probe {
    round_trip: Duration,
    sync: Duration,
}

impl Probe {
    fn measure(dir: &Path) -> Self {
        Self { round_trip: round_trip(), sync: sync(dir) }
    }

    /// Commits per second that one client could reach if a commit took only two round trips and one `fdatasync`.
    fn bound(&self) -> f64 {
        1.0 / (2 * self.round_trip + self.sync).as_secs_f64()
    }
}

/// Returns the median of the times that `work` takes.
fn median_time(mut work: impl FnMut()) -> Duration {
    let mut times: Vec<_> = (0..PROBES)
        .map(|_| {
            let began = Instant::now();
            work();
            began.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[times.len() / 2]
}

fn round_trip() -> Duration {
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("binds");
    let address = listener.local_addr().expect("an address");
    let echo = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("accepts");
        stream.set_nodelay(true).expect("no delay");
        let mut bytes = [0; PROBE_BYTES];
        while stream.read_exact(&mut bytes).is_ok() {
            stream.write_all(&bytes).expect("writes");
        }
    });
    let mut stream = TcpStream::connect(address).expect("connects");
    stream.set_nodelay(true).expect("no delay");
    let mut bytes = [7; PROBE_BYTES];
    let median = median_time(|| {
        stream.write_all(&bytes).expect("writes");
        stream.read_exact(&mut bytes).expect("reads");
    });
    drop(stream);
    echo.join().expect("the echo ends");
    median
}

fn sync(dir: &Path) -> Duration {
    let path = dir.join("probe");
    let file = File::options().write(true).create(true).truncate(true).open(&path).expect("a file");
    file.write_all_at(&vec![0; PROBES * PROBE_BYTES], 0).expect("writes");
    file.sync_all().expect("syncs");
    let mut at = 0;
    let median = median_time(|| {
        file.write_all_at(&[7; PROBE_BYTES], at).expect("writes");
        file.sync_data().expect("syncs");
        at += PROBE_BYTES as u64;
    });
    fs::remove_file(path).expect("is removed");
    median
}

/// Values of some counters at one moment: entries applied by the leader, syncs of the members' logs, and processor
/// times of this process.
struct Counts {
    entries: u64,
    leader_syncs: u64,
    all_syncs: u64,
    /// Processor time of all threads with the same name, by name.
    cpu: BTreeMap<String, Duration>,
}

impl Counts {
    fn read(members: &[Member], leader: &Member) -> Self {
        let syncs = |member: &Member| member.db.member_parts().expect("a member").log.stats().syncs;
        let applied = leader.db.member_parts().expect("a member").machine.applied();
        let all_syncs = members.iter().map(syncs).sum();
        Self { entries: applied.index.0, leader_syncs: syncs(leader), all_syncs, cpu: cpu_of_threads() }
    }
}

/// Returns the CPU time of this process by the names of its threads.
fn cpu_of_threads() -> BTreeMap<String, Duration> {
    let mut times: BTreeMap<String, Duration> = BTreeMap::new();
    for thread in fs::read_dir("/proc/self/task").expect("threads").flatten() {
        // A thread that has ended has no file any more.
        let Ok(stat) = fs::read_to_string(thread.path().join("stat")) else { continue };
        let (Some(open), Some(close)) = (stat.find('('), stat.rfind(')')) else { continue };
        let fields: Vec<_> = stat[close + 2..].split(' ').collect();
        let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<u32>().ok()).unwrap_or(0);
        *times.entry(stat[open + 1..close].to_owned()).or_default() += TICK * (ticks(11) + ticks(12));
    }
    times
}

/// Results of one measurement: the clients' commits and their durations, and the counters before and after it.
struct CommitFigures {
    commits: u64,
    elapsed: Duration,
    p50: Duration,
    p99: Duration,
    before: Counts,
    after: Counts,
}

/// Lets `clients` clients put keys for the duration `time`, after a short warm-up. Returns the results.
async fn run(
    members: &[Member],
    leader: &Member,
    keyspace: KeyspaceId,
    clients: usize,
    time: Duration,
) -> CommitFigures {
    let _ = put_for(leader, keyspace, clients, Duration::from_millis(500)).await;
    let before = Counts::read(members, leader);
    let began = Instant::now();
    let mut times = put_for(leader, keyspace, clients, time).await;
    let elapsed = began.elapsed();
    let after = Counts::read(members, leader);
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    CommitFigures { commits: times.len() as u64, elapsed, p50: at(0.5), p99: at(0.99), before, after }
}

/// Lets `clients` clients put keys into the leader's database until `time` has passed. Returns the duration of each
/// put.
async fn put_for(leader: &Member, keyspace: KeyspaceId, clients: usize, time: Duration) -> Vec<Duration> {
    let db = Rc::new(leader.db.to_async());
    let ends = Instant::now() + time;
    let local = tokio::task::LocalSet::new();
    let tasks: Vec<_> = (0..clients as u64)
        .map(|client| {
            let db = Rc::clone(&db);
            local.spawn_local(async move {
                let (mut times, mut number) = (Vec::new(), client);
                let mut began = Instant::now();
                while began < ends {
                    let key = format!("key_{:08}", number % KEYS);
                    let ack = db.put(keyspace, key.as_bytes(), &[7; VALUE_BYTES], Durability::Quorum).await;
                    assert_eq!(ack.expect("is put").durability, Durability::Quorum);
                    let now = Instant::now();
                    times.push(now - began);
                    began = now;
                    number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                }
                times
            })
        })
        .collect();
    local
        .run_until(async move {
            let mut all = Vec::new();
            for task in tasks {
                all.extend(task.await.expect("a client"));
            }
            all
        })
        .await
}

struct Round {
    probe: Probe,
    measured: CommitFigures,
}

impl Round {
    fn rate(&self) -> f64 {
        self.measured.commits as f64 / self.measured.elapsed.as_secs_f64()
    }

    /// Measured commits per second, divided by the rate that one client could reach at best ([`Probe::bound`]).
    fn ratio(&self) -> f64 {
        self.rate() / self.probe.bound()
    }

    fn print(&self, clients: usize) {
        let CommitFigures { commits, p50, p99, before, after, .. } = &self.measured;
        let (commits, entries) = (*commits as f64, (after.entries - before.entries) as f64);
        let probe = &self.probe;
        println!(
            "{clients} clients: {:.0} commits/s at level quorum, p50 {p50:.1?}, p99 {p99:.1?}; probe: round trip {:.1?}, \
             fdatasync {:.1?}, bound of one client {:.0}/s, ratio {:.2}",
            self.rate(),
            probe.round_trip,
            probe.sync,
            probe.bound(),
            self.ratio(),
        );
        println!(
            "    {:.2} commands per entry, {:.0} entries/s, fsyncs per entry: {:.2} of the leader, {:.2} of all",
            commits / entries,
            entries / self.measured.elapsed.as_secs_f64(),
            (after.leader_syncs - before.leader_syncs) as f64 / entries,
            (after.all_syncs - before.all_syncs) as f64 / entries,
        );
        let spent = |name: &String| after.cpu[name] - before.cpu.get(name).copied().unwrap_or_default();
        let all: Duration = after.cpu.keys().map(spent).sum();
        let micros = |time: Duration| time.as_secs_f64() * 1e6 / commits;
        let mut threads: Vec<_> = after.cpu.keys().map(|name| (spent(name), name)).collect();
        threads.sort_unstable_by(|a, b| b.cmp(a));
        let named = |(time, name): &(Duration, &String)| format!("{name} {:.1}", micros(*time));
        let named: Vec<_> = threads.iter().filter(|(time, _)| *time > all / 50).map(named).collect();
        println!("    {:.1} µs of CPU per commit: {}", micros(all), named.join(", "));
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn summarise(clients: usize, rounds: &[Round]) {
    let rate = median(rounds.iter().map(Round::rate).collect());
    let bound = median(rounds.iter().map(|round| round.probe.bound()).collect());
    let share = median(rounds.iter().map(Round::ratio).collect());
    println!(
        "median of {} rounds, {clients} clients: {rate:.0} commits/s at level quorum; bound of one client {bound:.0}/s, \
         ratio {share:.2}",
        rounds.len()
    );
}

/// Checks that all members reach the same state.
fn check_equal(members: &[Member]) {
    let applied = |member: &Member| {
        let applied = member.db.member_parts().expect("a member").machine.applied();
        (applied.index, applied.running_hash)
    };
    let began = Instant::now();
    while members.iter().any(|member| applied(member) != applied(&members[0])) {
        assert!(began.elapsed() < Duration::from_secs(60), "equal states");
        thread::sleep(Duration::from_millis(20));
    }
    println!("all members have the same state");
}
