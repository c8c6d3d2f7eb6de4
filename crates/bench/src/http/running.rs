//! Runs one load over HTTP against one server: plans a run, stores the keys that the gets read, and finds out the
//! durability level of the writes.

use std::{path::Path, sync::Arc, time::Duration};

use thalweg_types::Durability;

use super::options::{ApiChoice, HttpLoad, Mix, ServerOptions};
use crate::{
    BenchError, Progress, Scratch,
    data::Values,
    figures::SampledLoad,
    load::{
        self, Pace, Plan, Validity,
        http::{Api, Http, MissingKeyPolicy, Operation, Requests},
    },
    random::KeyChooser,
    server::{Client, NativePort, Target},
};

/// Longest wait for a reply. After a longer one, the run ends as overloaded.
const GIVE_UP: Duration = Duration::from_secs(10);
/// Longest wait for the reply to the put that finds out the durability level of the writes.
const ASK_TIMEOUT: Duration = Duration::from_secs(10);
/// Header of a reply with the durability level that a write has reached.
const LEVEL_HEADER: &str = "Thalweg-Durability";

/// Returns the server that the options name. Without a target, starts one with its data below `scratch`.
pub(crate) fn target(
    options: &ServerOptions,
    scratch: &Scratch,
    progress: &mut dyn Progress,
) -> Result<Target, BenchError> {
    match &options.target {
        Some(url) => Target::running(url),
        None => start(options.start.server_binary.as_deref(), &options.start.server_arg, scratch.path(), progress),
    }
}

/// Starts a server with its data and its log in the existing directory `dir`.
pub(crate) fn start(
    binary: Option<&Path>,
    arguments: &[String],
    dir: &Path,
    progress: &mut dyn Progress,
) -> Result<Target, BenchError> {
    Target::start(binary, &dir.join("data"), NativePort::Off, arguments, progress)
}

/// Returns the API that a load uses.
pub(crate) fn api(load: &HttpLoad) -> Api {
    match load.api {
        ApiChoice::Kv => Api::Kv { keyspace: load.keyspace.clone() },
        ApiChoice::Entity => Api::Entity,
    }
}

/// Returns the plan of a run of `load` against `target`, over `api`, at `pace`.
pub(crate) fn plan(target: &Target, load: &HttpLoad, api: Api, pace: Pace) -> Plan<Http> {
    Plan {
        protocol: Http {
            address: target.address,
            requests: Arc::new(requests(target, load, api)),
            get_percent: load.mix.get_percent(),
            missing: if load.reads_stored_keys() { MissingKeyPolicy::Lost } else { MissingKeyPolicy::Allowed },
        },
        connections: load.connections,
        workers: load.workers,
        pipeline: load.pipeline,
        pace,
        keys: KeyChooser::new(load.distribution, load.keys),
        warmup: load.warmup,
        duration: load.duration,
        window: load.window,
        give_up: GIVE_UP,
        max_lag: load.max_lag,
        seed: load.seed,
        server: target.process(),
        fsyncs: Some(target.fsyncs()),
    }
}

fn requests(target: &Target, load: &HttpLoad, api: Api) -> Requests {
    let durability = load.durability.filter(|_| !matches!(api, Api::Echo { .. }));
    Requests::new(api, &target.host, durability, Values::new(load.value_size, load.seed))
}

/// Puts each key once before the measurement, at the durability level `os`, so that the gets of the load find a value.
/// Does nothing for a load without gets, or if the load states that the keys must not be stored.
pub(crate) fn store_keys(target: &Target, load: &HttpLoad, progress: &mut dyn Progress) -> Result<(), BenchError> {
    if !load.reads_stored_keys() {
        return Ok(());
    }
    let HttpLoad { keys, value_size, .. } = *load;
    progress.step(&format!("loading {keys} keys of {value_size} B"));
    let setup = HttpLoad { mix: Mix::Put, durability: Some(Durability::Os), pipeline: 16, ..load.clone() };
    match load::run(&plan(target, &setup, api(&setup), Pace::Each { keys }))?.validity {
        Validity::Good => Ok(()),
        bad => Err(BenchError::subject(&target.host, "loading the keys")(bad.verdict().0)),
    }
}

/// Describes a load, for storing the measured values of its runs. `level` is the durability level of its writes.
pub(crate) fn sampled(load: &HttpLoad, level: String) -> SampledLoad {
    SampledLoad { scenario: load.describe(), durability: level, pace: load.pace(), unit: "request" }
}

/// Returns the durability level of a load's writes. It is the level that the server names in its reply to a put of the
/// first key. If the server names none, it is the level that the load requests. Returns `-` for a load without puts,
/// and `unknown` if neither names a level.
pub(crate) fn level(target: &Target, load: &HttpLoad) -> Result<String, BenchError> {
    if load.mix == Mix::Get {
        return Ok("-".to_owned());
    }
    let fail = |error: std::io::Error| BenchError::target(&target.host)(format!("asking for the level: {error}"));
    let mut request = Vec::new();
    requests(target, load, api(load)).write(Operation::Put, 0, &mut request);
    let mut client = Client::connect(target.address, ASK_TIMEOUT).map_err(fail)?;
    client.exchange(&request).map_err(fail)?;
    let named = client.header(LEVEL_HEADER).map(str::to_owned);
    Ok(named.or_else(|| load.durability.map(|level| level.to_string())).unwrap_or_else(|| "unknown".to_owned()))
}
