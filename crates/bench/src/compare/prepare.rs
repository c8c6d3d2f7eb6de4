//! Preparation of the two sides of a comparison, A and B: both get the same load, each over its own protocol.

use super::options::{CompareOptions, Side};
use crate::{
    BenchError, Progress, Scratch,
    contender::Contender,
    http::{self, HttpLoad},
    options::parsed,
    resp::{self, RespOptions},
    scenario::{self, ScenarioOptions, WireProtocol},
    server::Target,
};

/// Suffix of the name of B's keyspace, cache or stream, if A and B are servers that run already.
const KEYSPACE_SUFFIX_OF_B: &str = "-b";

/// Reaches or starts the server of a side, and prepares it for the runs. Side 0 is A and side 1 is B. A started server
/// has its data below `scratch`.
pub(super) fn prepare(
    options: &CompareOptions,
    sides: &[Side; 2],
    at: usize,
    scratch: &Scratch,
    progress: &mut dyn Progress,
) -> Result<Contender, BenchError> {
    let side = &sides[at];
    if let Some(mut scenario) = options.scenario_of(side, at)? {
        // Both addresses may belong to one server, and each side checks its reads against its own writes. So B gets its
        // own keyspace.
        if at == 1 && sides.iter().all(|side| matches!(side, Side::Running(..))) {
            scenario.keyspace.push_str(KEYSPACE_SUFFIX_OF_B);
        }
        return scenario::contender(&scenario, scratch, progress);
    }
    let load = options.load_of(at);
    match side {
        Side::Program(WireProtocol::Http, path) => {
            let target = http::start(Some(path), options.arguments_of(at), scratch.path(), progress)?;
            http::contender(target, load, progress)
        }
        Side::Running(WireProtocol::Http, url) => http::contender(Target::running(url)?, load, progress),
        Side::Program(WireProtocol::Resp, _) | Side::Running(WireProtocol::Resp, _) => {
            let resp = options.resp_of(side, at, &load)?;
            resp::contender(&resp, &load, scratch, progress)
        }
        Side::Program(..) | Side::Running(..) | Side::Stored(_) => {
            unreachable!("the check of the options refuses such sides")
        }
    }
}

impl CompareOptions {
    /// Returns the additional command-line arguments for the server of side `at` (0 is A, 1 is B), if a program starts
    /// it.
    fn arguments_of(&self, at: usize) -> &[String] {
        [&self.arg_a, &self.arg_b][at]
    }

    /// Returns the load of puts and gets for side `at` (0 is A, 1 is B). Only the durability level can differ between
    /// the sides.
    fn load_of(&self, at: usize) -> HttpLoad {
        let load = self.load.load.clone();
        let durability = self.durability_b.filter(|_| at == 1).or(load.durability);
        HttpLoad { durability, ..load }
    }

    /// Converts the load of puts and gets for side `at` (0 is A, 1 is B) to options of the RESP suite, with the server
    /// of this side.
    fn resp_of(&self, side: &Side, at: usize, load: &HttpLoad) -> Result<RespOptions, BenchError> {
        let mut resp = resp::options_of(load)?;
        resp.database = self.database.unwrap_or(0);
        match side {
            Side::Running(_, url) => {
                resp.server = vec![resp_server(url)?];
                resp.password.clone_from(&self.password);
            }
            Side::Program(_, path) => {
                resp.server_binary = Some(path.clone());
                resp.server_arg = self.arguments_of(at).to_vec();
            }
            Side::Stored(_) => {}
        }
        Ok(resp)
    }

    /// Returns the options with which side `at` (0 is A, 1 is B) runs the scenario; `None` if the comparison has no
    /// scenario, or if the side is a stored report.
    pub(super) fn scenario_of(&self, side: &Side, at: usize) -> Result<Option<ScenarioOptions>, BenchError> {
        let Some(name) = &self.scenario else { return Ok(None) };
        let arguments = std::iter::once(name).chain(&self.load.given).map(String::as_str);
        let mut scenario: ScenarioOptions =
            parsed(arguments).map_err(|message| BenchError::Option { option: "--scenario", message })?;
        let (Side::Program(protocol, _) | Side::Running(protocol, _)) = side else { return Ok(None) };
        scenario.protocol = Some(*protocol);
        // RESP and NATS have no durability level in a request. Levels that a side cannot request were rejected earlier.
        let asked = self.durability_b.filter(|_| at == 1).or(scenario.durability);
        scenario.durability = asked.filter(|_| protocol.names_levels());
        match side {
            Side::Running(WireProtocol::Resp, url) => {
                let server = resp_server(url)?;
                scenario.database = server.database.or(self.database).unwrap_or(0);
                scenario.password.clone_from(&self.password);
                scenario.server.target = Some(server.choice.to_string());
            }
            Side::Running(protocol, url) => {
                let pinned = self.fingerprint_b.filter(|_| at == 1).or(self.fingerprint);
                scenario.fingerprint = pinned.filter(|_| protocol.is_encrypted());
                scenario.server.target = Some(url.clone());
            }
            Side::Program(protocol, path) => {
                scenario.database = self.database.filter(|_| *protocol == WireProtocol::Resp).unwrap_or(0);
                scenario.server.start.server_binary = Some(path.clone());
                scenario.server.start.server_arg = self.arguments_of(at).to_vec();
            }
            Side::Stored(_) => {}
        }
        Ok(Some(scenario))
    }
}

/// Parses the address of a RESP server. The address may end in `@N` for the server's database N.
fn resp_server(url: &str) -> Result<resp::ServerSpec, BenchError> {
    url.parse().map_err(BenchError::target(url))
}
