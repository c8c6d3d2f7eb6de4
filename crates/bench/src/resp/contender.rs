//! Prepares a server that speaks RESP for `thalweg bench compare`, and performs the runs of puts and gets on it.

use super::{
    client::Client,
    options::{Generator, RespOptions},
    scenario::{LoadKind, Scenario},
    server::{Server, asked_durability},
    turn::ServerTurn,
};
use crate::{
    BenchError, Progress, Scratch,
    contender::{Contender, Runs},
    figures::SampledLoad,
    http::{HttpLoad, Mix},
    load::{self, Outcome},
    options::parsed,
};

/// Options of a load of puts and gets that the RESP suite does not have, or that it names or interprets differently.
const OTHERWISE: [&str; 8] =
    ["--rate", "--closed", "--mix", "--workers", "--api", "--keyspace", "--durability", "--no-load"];

/// Converts a load of puts and gets to the options of the RESP suite. Puts become `SET` and gets become `GET`. RESP has
/// no durability level in a request, so the writes have the durability of the server.
pub(crate) fn options_of(load: &HttpLoad) -> Result<RespOptions, BenchError> {
    let mix = match load.mix {
        Mix::Put => "set",
        Mix::Get => "get",
        Mix::Mixed => "get:1,set:1",
    };
    let mut arguments = load.arguments_if(|option| !OTHERWISE.contains(&option));
    arguments.extend(["--mix".to_owned(), mix.to_owned()]);
    if !load.closed {
        arguments.extend(["--rate".to_owned(), load.rate.to_string()]);
    }
    parsed(arguments.iter().map(String::as_str)).map_err(|message| BenchError::Option { option: "A, B", message })
}

struct RespRuns {
    server: Server,
    scenario: Scenario,
}

/// Reaches or starts the server that the options name, and prepares it for runs of the load. The options name exactly
/// one server.
pub(crate) fn contender(
    options: &RespOptions,
    load: &HttpLoad,
    scratch: &Scratch,
    progress: &mut dyn Progress,
) -> Result<Contender, BenchError> {
    options.check()?;
    let scenario = Scenario::all(options).remove(0);
    let (choice, database) = &scenario.servers[0];
    let server = Server::connect_or_start(choice, options, scratch, progress)?;
    let durability = match load.mix {
        Mix::Get => "-".to_owned(),
        Mix::Put | Mix::Mixed => asked_durability(&mut Client::open(&server.greeting(*database))?)?,
    };
    let place = format!("RESP at {}, database {database}, {}", server.greeting.address, server.version);
    let (name, pace) = (load.describe_over("RESP"), load.pace());
    let sampled = SampledLoad { scenario: name, durability, pace, unit: "request" };
    let runs = RespRuns { server, scenario };
    runs.turn().fill(Generator::Own)?;
    Ok(Contender { load: sampled, place, runs: Box::new(runs) })
}

impl RespRuns {
    fn turn(&self) -> ServerTurn<'_> {
        let (scenario, server) = (&self.scenario, &self.server);
        // The load has no operations on streams, so the name stays empty.
        ServerTurn { scenario, server, database: scenario.servers[0].1, stream: String::new() }
    }
}

impl Runs for RespRuns {
    fn run(&mut self) -> Result<Outcome<()>, BenchError> {
        match &self.scenario.work {
            LoadKind::Requests(mix) => load::run(&self.turn().plan(mix.clone(), self.scenario.options.pace())),
            LoadKind::FanOut(_) => unreachable!("the options of a load of puts and gets have no subscribers"),
        }
    }
}
