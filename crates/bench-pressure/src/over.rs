//! Runs requests of the load generator against the server, over each protocol.
//!
//! Owns: the keyspace of a run by its name or its RESP database, and the plan of a run. Does not own: the check of
//! replies (`work`).

use std::time::Duration;

use crate::{
    BenchError,
    load::{
        self, Address, Arrivals, Outcome, Pace, Plan,
        native::NativePlace,
        pairs::{Codec, HttpCodec, NativeCodec, RespCodec},
        resp::client::Greeting,
    },
    options::{PressureOptions, WireProtocol},
    random::{Distribution, KeyChooser},
    server::{PerRequest, Server},
    work::{Action, Counts, KeyWork, Keys},
};

/// Longest wait for a reply; a longer one is an error. A server that is short of memory may stand still for a while.
const GIVE_UP: Duration = Duration::from_secs(120);

/// Results of one run of the load generator, with the times during which connections got no reply.
pub(crate) type Figures = Outcome<Counts>;

/// Description of a run: which requests it sends, to which keyspace, at which pace, and how long.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    /// Name of the keyspace that the requests use, and the number of the RESP database that shows it.
    pub place: (&'static str, u32),
    pub keys: Keys,
    pub action: Action,
    pub connections: usize,
    /// Requests in flight on each connection.
    pub pipeline: usize,
    pub pace: Pace,
    pub warmup: Duration,
    pub duration: Duration,
}

impl Job {
    /// Returns a job that loads `count` keys, beginning at the position `first` in the order of loading.
    pub(crate) fn loading(
        place: (&'static str, u32),
        keys: &Keys,
        (first, count): (u64, u64),
        options: &PressureOptions,
    ) -> Self {
        Self {
            place,
            keys: keys.from(first),
            action: Action::Load,
            connections: options.connections,
            pipeline: options.pipeline,
            pace: Pace::Each { keys: count },
            warmup: Duration::ZERO,
            duration: GIVE_UP,
        }
    }

    /// Returns a job in which `clients` connections read keys, for as long as the options state. Each connection has
    /// one request in flight.
    pub(crate) fn reading(
        place: (&'static str, u32),
        keys: &Keys,
        action: Action,
        clients: usize,
        options: &PressureOptions,
    ) -> Self {
        Self {
            place,
            keys: keys.clone(),
            action,
            connections: clients,
            pipeline: 1,
            pace: Pace::Closed,
            warmup: options.warmup,
            duration: options.duration,
        }
    }

    /// Returns the job with requests that are due at equal intervals, `rate` a second.
    #[must_use]
    pub(crate) fn at_rate(self, rate: f64) -> Self {
        Self { pace: Pace::Open { rate, arrivals: Arrivals::Constant }, ..self }
    }
}

/// Runs a job over a protocol. Writes state no durability, so they have the server's default.
pub(crate) fn run(
    protocol: WireProtocol,
    server: &Server,
    job: &Job,
    options: &PressureOptions,
) -> Result<Figures, BenchError> {
    let (name, database) = job.place;
    match protocol {
        WireProtocol::Resp => {
            let greeting = Greeting { address: Address::Tcp(server.resp), password: None, database, is_resp3: false };
            run_with(RespCodec { greeting }, server, job, options)
        }
        WireProtocol::Native => {
            let codec = NativeCodec::open(&NativePlace::Server(server.native), name, None)?;
            run_with(codec, server, job, options)
        }
        WireProtocol::Http => {
            run_with(HttpCodec::new(server.http, &server.http.to_string(), name), server, job, options)
        }
    }
}

/// Performs a job as [`run`] does. Also returns what each request cost the server, such as disk reads and CPU time.
pub(crate) fn counted(
    protocol: WireProtocol,
    server: &mut Server,
    job: &Job,
    options: &PressureOptions,
) -> Result<(Figures, PerRequest), BenchError> {
    let before = server.counts();
    let figures = run(protocol, server, job, options);
    let after = server.counts();
    // The reason of a lost connection is that of the server's end.
    server.check_alive()?;
    let figures = figures?;
    let each = after.per_request(&before, figures.tally.all_right);
    Ok((figures, each))
}

fn run_with<C: Codec>(codec: C, server: &Server, job: &Job, options: &PressureOptions) -> Result<Figures, BenchError> {
    load::run(&Plan {
        protocol: KeyWork { codec, keys: job.keys.clone(), action: job.action },
        connections: job.connections,
        workers: 1,
        pipeline: job.pipeline,
        pace: job.pace,
        keys: KeyChooser::new(Distribution::Uniform, job.keys.count()),
        warmup: job.warmup,
        duration: job.duration,
        window: None,
        give_up: GIVE_UP,
        max_lag: options.max_lag,
        seed: options.seed,
        server: Some(server.process()),
        fsyncs: None,
    })
}
