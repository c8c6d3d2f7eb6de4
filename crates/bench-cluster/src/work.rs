//! The requests of one row of the report, and their run on Thalweg's nodes.
//!
//! Owns: the rows' names, the plans of their loads, their figures, and puts at a fixed rate beside another measurement.
//! Does not own: the order of the rows (`suite`), the nodes (`nodes`), or the load generator (`thalweg_load`).
//!
//! Each client has a connection of its own and one request in flight. The values of gets are compared with the values
//! of puts.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use thalweg_types::Durability;

use crate::{
    BenchError,
    counted::Counted,
    data::Values,
    latency::Latencies,
    load::{
        self, Arrivals, LIMITED_REMEDY, MAX_BUSY, Outcome, Pace, Plan, Protocol, Validity,
        http::{Api, Http, MissingKeyPolicy, Requests},
        saturated,
    },
    nodes::{Nodes, PATIENCE, Role},
    options::{ClusterOptions, Part},
    random::KeyChooser,
    report::{Check, Verdict},
};

/// Longest time for which a client waits for a reply. If a reply takes longer, the run ends as overloaded.
pub(crate) const GIVE_UP: Duration = Duration::from_secs(20);
/// Number of connections that store all keys before the first get.
const LOADERS: usize = 100;
/// Rate of the clients that put at a fixed rate, in puts per second over all of them.
pub(crate) const PACED_RATE: f64 = 1000.0;
/// Number of clients that put at a fixed rate.
const PACED_CLIENTS: usize = 8;
/// Length of one run of the puts at a fixed rate that accompany another measurement. Such runs follow each other
/// without a pause until that measurement ends.
const WINDOW: Duration = Duration::from_millis(500);

/// Consistency level of the reads of a row of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    Linearizable,
    Lease,
    Stale,
}

impl Level {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Linearizable => "linearizable",
            Self::Lease => "lease",
            Self::Stale => "stale",
        }
    }
}

/// Nodes to which the clients of a row of the report send their requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TargetNodes {
    Leader,
    /// The clients send all requests to one follower.
    Follower,
    /// The clients are spread evenly over all nodes.
    All,
}

impl TargetNodes {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Leader => "leader",
            Self::Follower => "follower",
            Self::All => "all",
        }
    }
}

/// Operation that the requests of a row of the report perform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Put,
    Get(Level),
}

/// The requests of one row of the report: their operation, the number of clients, and the nodes that the requests are
/// sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestLoad {
    pub kind: Kind,
    pub place: TargetNodes,
    pub clients: usize,
}

impl RequestLoad {
    /// Returns the rows of the report (combinations of operation, clients and nodes) that the options request.
    pub(crate) fn all(options: &ClusterOptions) -> Vec<Self> {
        let mut all = Vec::new();
        if options.runs(Part::Puts) {
            let put = |clients: &usize| Self { kind: Kind::Put, place: TargetNodes::Leader, clients: *clients };
            all.extend(options.clients.iter().map(put));
        }
        if options.runs(Part::Gets) {
            let get = |level, place| Self { kind: Kind::Get(level), place, clients: options.readers };
            all.push(get(Level::Linearizable, TargetNodes::Leader));
            all.push(get(Level::Linearizable, TargetNodes::Follower));
            all.push(get(Level::Linearizable, TargetNodes::All));
            all.push(get(Level::Lease, TargetNodes::Leader));
            all.push(get(Level::Lease, TargetNodes::Follower));
            all.push(get(Level::Stale, TargetNodes::Leader));
            all.push(get(Level::Stale, TargetNodes::Follower));
        }
        all
    }

    /// Returns the name of the row in the report, with the durability or the read level of its requests.
    pub(crate) fn name(self) -> String {
        let Self { kind, place, clients } = self;
        let what = match kind {
            Kind::Put => "put, quorum".to_owned(),
            Kind::Get(level) => format!("get, {}", level.name()),
        };
        format!("{what}, {clients} clients, {}", place.name())
    }

    /// Returns true if the compared system (etcd) also has this kind of request. It has no reads with the level lease.
    pub(crate) fn peer_has(self) -> bool {
        self.kind != Kind::Get(Level::Lease)
    }
}

/// Results of one run of the requests of a row of the report.
#[derive(Clone, Debug)]
pub(crate) struct Turn {
    /// Correct replies per second.
    pub rate: f64,
    pub p50_us: f64,
    /// 95th percentile of the response time, in microseconds; NaN if it is not known.
    pub p95_us: f64,
    pub p99_us: f64,
    /// Average response time in microseconds; NaN if it is not known.
    pub mean_us: f64,
    /// CPU time of all nodes for each reply, in microseconds; NaN if it is not known.
    pub node_cpu_us: f64,
    /// CPU time of the clients for each reply, in microseconds.
    pub client_cpu_us: f64,
    /// Share of the run, from 0 to 1, during which the busiest thread of the clients was running; NaN if it is not
    /// known.
    pub busiest: f64,
    /// Bytes that the nodes have sent to each other for each reply; NaN if they are not known.
    pub link_bytes: f64,
    /// Increase of the nodes' own counters, including the warm-up.
    pub counted: Counted,
    pub validity: Validity,
}

#[cfg(test)]
impl Turn {
    /// Returns example results of a valid run with this rate, for tests.
    pub(crate) fn of_rate(rate: f64) -> Self {
        Self {
            rate,
            p50_us: 1.0,
            p95_us: 1.5,
            p99_us: 2.0,
            mean_us: 1.0,
            node_cpu_us: 3.0,
            client_cpu_us: 4.0,
            busiest: 0.5,
            link_bytes: 5.0,
            counted: Counted::default(),
            validity: Validity::Good,
        }
    }
}

/// Sends the requests of one row of the report to Thalweg's nodes once, and measures them.
pub(crate) fn run(nodes: &Nodes, work: RequestLoad, options: &ClusterOptions) -> Result<Turn, BenchError> {
    let addresses = match work.place {
        TargetNodes::Leader => nodes.of_role(Role::Leader)?,
        TargetNodes::Follower => nodes.of_role(Role::Follower)?.into_iter().take(1).collect(),
        TargetNodes::All => nodes.addresses(),
    };
    // A cluster of one node has no follower; the leader answers then.
    let addresses = if addresses.is_empty() { nodes.addresses() } else { addresses };
    let share = |number| share(work.clients, addresses.len(), number);
    // If there are fewer clients than nodes, some nodes get no client.
    let used = addresses.iter().enumerate().take(work.clients);
    let plans: Vec<_> = used.map(|(number, address)| plan(*address, work, share(number), options)).collect();
    run_together(nodes, &plans)
}

/// Returns how many of `clients` connect to the node `number` if they are spread evenly over all nodes.
pub(crate) fn share(clients: usize, nodes: usize, number: usize) -> usize {
    clients / nodes + usize::from(number < clients % nodes)
}

/// Runs the loads that all plans describe at the same time, each on a thread of its own. Returns the results of all
/// plans together.
pub(crate) fn run_together<P: Protocol>(nodes: &Nodes, plans: &[Plan<P>]) -> Result<Turn, BenchError> {
    let ((outcomes, cpu), counted) = Counted::around(nodes, || {
        let before = nodes.cpu();
        let outcomes = all_at_once(plans);
        (outcomes, nodes.cpu().zip(before).map(|(now, then)| now.saturating_sub(then)))
    });
    let outcomes = outcomes?;
    let times = Latencies::sum(outcomes.iter().map(|outcome| &outcome.times)).quantiles();
    // The CPU times include the warm-up, so the replies of the warm-up count here.
    let replies: u64 = outcomes.iter().map(|outcome| outcome.tally.all_right).sum();
    let each = |seconds: f64| seconds * 1e6 / replies as f64;
    Ok(Turn {
        rate: outcomes.iter().map(|outcome| outcome.rate).sum(),
        p50_us: times.p50_us,
        p95_us: times.p95_us,
        p99_us: times.p99_us,
        mean_us: times.mean_us,
        node_cpu_us: cpu.map_or(f64::NAN, |cpu| each(cpu.as_secs_f64())),
        client_cpu_us: each(outcomes.iter().map(|outcome| outcome.spent.generator_cpu).sum()),
        busiest: outcomes.iter().map(|outcome| outcome.spent.busiest).fold(f64::NAN, f64::max),
        link_bytes: counted.sent_bytes() / replies as f64,
        counted,
        validity: Validity::worst(outcomes.iter().map(|outcome| &outcome.validity)),
    })
}

/// Creates the check that all requests of these runs got correct replies. If a thread of the clients had no spare time,
/// the check says that the rate is only a lower bound.
pub(crate) fn check<'a>(turns: impl IntoIterator<Item = &'a Turn>, what: &str) -> Check {
    let turns: Vec<&Turn> = turns.into_iter().collect();
    let check = Validity::worst(turns.iter().map(|turn| &turn.validity)).check(what, "all answered, rightly");
    name_lower_bound(check, turns.iter().map(|turn| turn.busiest))
}

/// Adds to a met check that the rate is only a lower bound, with remedies, if the clients' threads were too busy.
/// `busy` has one value for each run: the share of time during which the busiest thread was running.
pub(crate) fn name_lower_bound(check: Check, busy: impl Iterator<Item = f64>) -> Check {
    let busiest = busy.fold(0.0, f64::max);
    if check.verdict != Verdict::Met || busiest <= MAX_BUSY {
        return check;
    }
    let why = format!("a thread of the clients was {:.0} % busy; {LIMITED_REMEDY}", 100.0 * busiest);
    Check { measured: format!("yes, but the rate is a lower bound: {why}"), ..check }
}

/// Runs the loads that all plans describe at the same time, each on a thread of its own. Returns their outcomes in the
/// order of the plans.
fn all_at_once<P: Protocol>(plans: &[Plan<P>]) -> Result<Vec<Outcome<P::Counts>>, BenchError> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = plans.iter().map(|plan| scope.spawn(move || load::run(plan))).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<Outcome<P::Counts>, BenchError>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    })
}

/// Stores all keys before the measurements. Starts again if a run is not valid, for example because the leader changed.
pub(crate) fn load_keys(nodes: &Nodes, options: &ClusterOptions) -> Result<(), BenchError> {
    let work = RequestLoad { kind: Kind::Put, place: TargetNodes::Leader, clients: LOADERS };
    let begun = Instant::now();
    loop {
        let leader = nodes.addresses()[nodes.leader()?];
        let plan = Plan { pace: Pace::Each { keys: options.keys }, ..plan(leader, work, LOADERS, options) };
        match load::run(&plan)?.validity {
            Validity::Good => return Ok(()),
            bad if begun.elapsed() > PATIENCE => {
                return Err(BenchError::subject("the cluster", "storing the keys")(bad.verdict().0));
            }
            _ => {}
        }
    }
}

/// Returns the plan of puts to one node at the fixed rate [`PACED_RATE`].
pub(crate) fn paced_puts(address: SocketAddr, options: &ClusterOptions) -> Plan<Http> {
    let work = RequestLoad { kind: Kind::Put, place: TargetNodes::Leader, clients: PACED_CLIENTS };
    let pace = Pace::Open { rate: PACED_RATE, arrivals: Arrivals::Constant };
    Plan { pace, ..plan(address, work, PACED_CLIENTS, options) }
}

/// Puts values at the fixed rate [`PACED_RATE`] while `event` runs. Returns the result of `event`, the times of the
/// puts, and the validity of their runs.
pub(crate) fn put_beside<T>(
    address: SocketAddr,
    options: &ClusterOptions,
    event: impl FnOnce() -> Result<T, BenchError>,
) -> Result<(T, Latencies, Validity), BenchError> {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let putting = scope.spawn(|| put_until(&is_over, address, options));
        let result = event();
        is_over.store(true, Ordering::Release);
        let put = putting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let (result, (times, validity)) = (result?, put?);
        Ok((result, times, validity))
    })
}

/// Puts values at the fixed rate [`PACED_RATE`] until the caller sets `is_over`. Returns the response times of the
/// puts, and the validity of the runs.
fn put_until(
    is_over: &AtomicBool,
    address: SocketAddr,
    options: &ClusterOptions,
) -> Result<(Latencies, Validity), BenchError> {
    let (mut times, mut lag, mut validity) = (Latencies::default(), Latencies::default(), Validity::Good);
    // A run has about 500 puts, so six late ones are already more than 1 %. Therefore the lateness is judged over all
    // runs together, like the times.
    let plan = Plan { warmup: Duration::ZERO, duration: WINDOW, max_lag: GIVE_UP, ..paced_puts(address, options) };
    while !is_over.load(Ordering::Acquire) {
        let outcome = load::run(&plan)?;
        times.merge(&outcome.times);
        lag.merge(&outcome.tally.lag);
        validity = Validity::worst([&validity, &outcome.validity]);
    }
    Ok((times, with_lateness(&validity, &lag, options.max_lag)))
}

/// Returns `validity`, or a worse validity if the load generator sent its requests too late: if the 99th percentile of
/// `lag`, the lateness of all sends, is above `max_lag`.
fn with_lateness(validity: &Validity, lag: &Latencies, max_lag: Duration) -> Validity {
    // The busy share is 0 here, because each run has already judged it.
    let lateness = saturated(lag, max_lag, 0.0).unwrap_or(Validity::Good);
    Validity::worst([validity, &lateness])
}

fn plan(address: SocketAddr, work: RequestLoad, clients: usize, options: &ClusterOptions) -> Plan<Http> {
    let durability = (work.kind == Kind::Put).then_some(Durability::Quorum);
    let values = Values::new(options.value_size, options.seed);
    let requests = Requests::new(Api::Kv { keyspace: "bench".to_owned() }, &address.to_string(), durability, values);
    let (requests, get_percent) = match work.kind {
        Kind::Put => (requests, 0),
        Kind::Get(level) => (requests.with_get_header("Thalweg-Read", level.name()), 100),
    };
    let http = Http { address, requests: Arc::new(requests), get_percent, missing: MissingKeyPolicy::Lost };
    closed_plan(http, clients, 1, options)
}

/// Returns a plan over all keys: a closed loop with `pipeline` requests in flight on each connection. Duration and
/// warm-up come from the options.
pub(crate) fn closed_plan<P>(protocol: P, connections: usize, pipeline: usize, options: &ClusterOptions) -> Plan<P> {
    Plan {
        protocol,
        connections,
        workers: 1,
        pipeline,
        pace: Pace::Closed,
        keys: KeyChooser::Uniform { keys: options.keys },
        warmup: options.warmup,
        duration: options.duration,
        window: None,
        give_up: GIVE_UP,
        max_lag: options.max_lag,
        seed: options.seed,
        server: None,
        fsyncs: None,
    }
}

#[cfg(test)]
mod tests {
    use thalweg_load::options::parsed;

    use super::*;

    #[test]
    fn puts_at_a_rate_are_void_if_the_generator_is_late() {
        let max_lag = |flags: &[&str]| {
            let options = parsed(flags.iter().copied()).unwrap();
            paced_puts(SocketAddr::from(([127, 0, 0, 1], 1)), &options).max_lag
        };
        assert_eq!(max_lag(&[]), Duration::from_millis(10));
        assert_eq!(max_lag(&["--max-lag", "7ms"]), Duration::from_millis(7));
    }

    #[test]
    fn the_lateness_of_puts_beside_an_event_is_judged_over_its_whole_time() {
        let judged = |validity: &Validity, late: u64| {
            let mut lag = Latencies::default();
            lag.record_nanos_times(1_000, 1000);
            lag.record_nanos_times(20_000_000, late);
            with_lateness(validity, &lag, Duration::from_millis(10))
        };
        assert_eq!(judged(&Validity::Good, 8), Validity::Good, "all in one window of 500 puts");
        assert!(matches!(judged(&Validity::Good, 20), Validity::Saturated(_)));
        let errors = Validity::Errors("refused".to_owned());
        assert_eq!(judged(&errors, 20), errors);
    }
}
