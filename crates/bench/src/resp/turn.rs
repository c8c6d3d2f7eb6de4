//! One round of a scenario on one server: filling the server with data, and running the load with either generator,
//! this process or redis-benchmark.

use super::{
    client::{Client, Greeting},
    external::{self, BenchmarkRequest},
    fanout::{self, CHANNEL, FanOut},
    figures::Round,
    options::{Generator, RespOptions},
    protocol::{OnWrong, Plan, Resp},
    requests::{Mix, Operation, Requests},
    scenario::{LoadKind, Scenario},
    server::Server,
};
use crate::{
    BenchError,
    data::Values,
    load::{self, Pace, Validity},
    random::KeyChooser,
};

/// One server that a scenario measures, prepared for one round.
#[derive(Clone, Debug)]
pub(super) struct ServerTurn<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) server: &'a Server,
    /// Number of the database that connections select.
    pub(super) database: u32,
    /// Key of the stream to which this round appends. Each round has a new stream, so that it begins without entries.
    pub(super) stream: String,
}

impl ServerTurn<'_> {
    pub(super) fn greeting(&self) -> Greeting {
        self.server.greeting(self.database)
    }

    fn options(&self) -> &RespOptions {
        &self.scenario.options
    }

    pub(super) fn round(&self, generator: Generator) -> Result<Round, BenchError> {
        match (&self.scenario.work, generator) {
            (LoadKind::Requests(mix), Generator::Own) => {
                load::run(&self.plan(mix.clone(), self.options().pace())).map(Round::from)
            }
            (LoadKind::Requests(mix), Generator::RedisBenchmark) => {
                let (options, request) = (self.options(), self.external(self.command(mix.operation(0))));
                request.run(&options.redis_benchmark, options.duration).map(Round::External)
            }
            (LoadKind::FanOut(subscribers), Generator::Own) => {
                fanout::run(&self.fan_out(*subscribers)).map(Round::from)
            }
            (LoadKind::FanOut(subscribers), Generator::RedisBenchmark) => self.beside(*subscribers),
        }
    }

    pub(super) fn plan(&self, mix: Mix, pace: Pace) -> Plan {
        let options = self.options();
        let values = Values::new(options.value_bytes(), options.seed);
        Plan {
            protocol: Resp {
                greeting: self.greeting(),
                requests: Requests::new(values, options.keys, &self.stream),
                mix,
                on_wrong: if options.keep_going { OnWrong::Count } else { OnWrong::Stop },
            },
            connections: options.connections,
            workers: 1,
            pipeline: options.pipeline,
            pace,
            keys: KeyChooser::new(options.distribution, options.keys),
            warmup: options.warmup,
            duration: options.duration,
            window: options.window,
            give_up: options.give_up,
            max_lag: options.max_lag,
            seed: options.seed,
            server: self.server.process,
            fsyncs: None,
        }
    }

    fn fan_out(&self, subscribers: usize) -> FanOut<'_> {
        FanOut { greeting: self.greeting(), subscribers, options: self.options(), process: self.server.process }
    }

    fn external(&self, what: BenchmarkRequest) -> external::Request {
        let RespOptions { connections, pipeline, keys, .. } = *self.options();
        let value_bytes = self.options().value_bytes();
        external::Request { greeting: self.greeting(), connections, pipeline, value_bytes, keys, what }
    }

    /// Returns an operation in the form in which redis-benchmark sends it.
    fn command(&self, operation: Operation) -> BenchmarkRequest {
        let words = |words: &[&str]| BenchmarkRequest::Command(words.iter().map(|word| (*word).to_owned()).collect());
        match operation {
            Operation::Ping => BenchmarkRequest::Test("ping_mbulk"),
            Operation::Get => BenchmarkRequest::Test("get"),
            Operation::Set => BenchmarkRequest::Test("set"),
            Operation::Incr => BenchmarkRequest::Test("incr"),
            Operation::Hset => BenchmarkRequest::Test("hset"),
            Operation::Mset => BenchmarkRequest::Test("mset"),
            Operation::Hget => words(&["HGET", "myhash", "element:__rand_int__"]),
            Operation::Mget => words(&[&["MGET"], &["key:__rand_int__"; 10][..]].concat()),
            Operation::Xadd => words(&["XADD", &self.stream, "*", "field", &"x".repeat(self.options().value_bytes())]),
        }
    }

    /// Runs a round in which redis-benchmark publishes and this process subscribes. A short run of redis-benchmark
    /// before the round determines the number of messages. The deliveries of the short run are checked too.
    fn beside(&self, subscribers: usize) -> Result<Round, BenchError> {
        const PILOT: u64 = 20_000;
        // redis-benchmark only sends whole pipelines.
        let options = self.options();
        let unit = (options.connections * options.pipeline) as u64;
        let payload = fanout::external_payload(options);
        let request = self.external(BenchmarkRequest::Command(vec!["PUBLISH".into(), CHANNEL.into(), payload]));
        let plan = self.fan_out(subscribers);
        let publish = |count: u64| {
            let (request, binary) = (request.clone(), options.redis_benchmark.clone());
            fanout::run_beside(&plan, move || Ok((request.count(&binary, count)?, count)))
        };
        // The subscribers are connected in the short run, too. So its rate determines how many messages fill the
        // duration.
        let (checked, pilot) = publish(PILOT.next_multiple_of(unit))?;
        let Some(pilot) = pilot.filter(|_| checked.validity == Validity::Good) else { return Ok(checked.into()) };
        let count = ((pilot.rate * options.duration.as_secs_f64()) as u64).max(PILOT);
        publish(count.next_multiple_of(unit)).map(|(outcome, _)| Round::from(outcome))
    }

    /// Sets all values that the scenario's operations will read, each once, before the measurement.
    pub(super) fn fill(&self, generator: Generator) -> Result<(), BenchError> {
        let LoadKind::Requests(mix) = &self.scenario.work else { return Ok(()) };
        if generator == Generator::RedisBenchmark {
            return mix.operation(0).needs().map_or(Ok(()), |needed| self.fill_external(needed));
        }
        let mut needed: Vec<Operation> = mix.operations().filter_map(Operation::needs).collect();
        needed.dedup();
        for operation in needed {
            let keys = self.options().keys;
            let plan = self.plan(Mix::only(operation), Pace::Each { keys });
            let mut plan = Plan { connections: 4, pipeline: 64, ..plan };
            plan.protocol.on_wrong = OnWrong::Stop;
            let outcome = load::run(&plan)?;
            let replies = outcome.tally.all_right;
            if outcome.validity != Validity::Good || replies != keys {
                let message = format!("{replies} of {keys} keys: {}", outcome.validity.verdict().0);
                let address = self.server.greeting.address.to_string();
                return Err(BenchError::subject(&address, "setting the keys that will be read")(message));
            }
        }
        Ok(())
    }

    /// Sets values for reads by redis-benchmark, under the key names that it uses.
    fn fill_external(&self, needed: Operation) -> Result<(), BenchError> {
        const AT_ONCE: u64 = 500;
        let mut client = Client::open(&self.greeting())?;
        let value = vec![b'x'; self.options().value_bytes()];
        let (head, prefix): (&[&[u8]], _) = match needed {
            Operation::Hset => (&[b"HSET", b"myhash"], "element"),
            _ => (&[b"MSET"], "key"),
        };
        for first in (0..self.options().keys).step_by(AT_ONCE as usize) {
            let keys = first..(first + AT_ONCE).min(self.options().keys);
            let names: Vec<String> = keys.map(|index| format!("{prefix}:{index:012}")).collect();
            let mut arguments = head.to_vec();
            arguments.extend(names.iter().flat_map(|name| [name.as_bytes(), &value[..]]));
            client.done(&arguments)?;
        }
        client.leave();
        Ok(())
    }
}
