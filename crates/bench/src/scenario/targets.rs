//! Servers of a scenario, over each protocol: reaching or starting one, and its durability level.

use thalweg_transport::Endpoint;
use thalweg_types::Durability;

use super::{
    feed_runs::FeedRun,
    mix::Kind,
    options::GIVE_UP,
    suite::{Data, Subject, Suite},
};
use crate::{
    BenchError, Progress, Scratch, http,
    load::{
        Address,
        native::{NativeEndpoint, TransportKind},
        pairs::{Codec as _, HttpCodec, NativeCodec, RespCodec},
        resp::client::{Client, Greeting},
    },
    resp,
    server::{self, NativePort, Target, free_port},
};

/// Header of a reply that names the durability level that a write has reached.
const LEVEL_HEADER: &str = "Thalweg-Durability";

impl Suite {
    /// Reaches or starts the server over HTTP.
    pub(super) fn over_http(
        &self,
        scratch: &Scratch,
        progress: &mut dyn Progress,
    ) -> Result<Subject<HttpCodec>, BenchError> {
        let options = &self.options;
        let target = match &options.server.target {
            Some(url) => Target::running(url)?,
            None => self.start(scratch, &[], progress)?,
        };
        let codec = HttpCodec::new(target.address, &target.host, &options.keyspace);
        let loader = codec.clone().with_level(Some(Durability::Os));
        let codec = codec.with_level(options.durability);
        let feed = FeedRun::create(options, &self.scenario, &target)?;
        let durability = self.level(&target, &codec, feed.as_ref())?;
        let name = options.server.target.clone().unwrap_or_else(|| own_server(&target));
        let process = target.process();
        let profiler = options.profile.profiler(process, scratch.path())?;
        let (loaded, target) = ("durability os", Some(target));
        Ok(Subject { codec, loader, loaded, durability, name, feed, target, process, profiler })
    }

    /// Reaches or starts the server over RESP.
    pub(super) fn over_resp(
        &self,
        scratch: &Scratch,
        progress: &mut dyn Progress,
    ) -> Result<Subject<RespCodec>, BenchError> {
        let options = &self.options;
        let (target, name, greeting) = match &options.server.target {
            Some(text) => {
                let host = server::authority(text, "redis").map_err(BenchError::target(text))?;
                let address: Address = host.parse().map_err(BenchError::target(text))?;
                let (password, database) = (options.password.clone(), options.database);
                (None, text.clone(), Greeting { address, password, database, is_resp3: false })
            }
            None => {
                let address = free_port().map_err(BenchError::files("127.0.0.1:0"))?;
                let databases = format!("--resp-databases=0=keyspace:{}", options.keyspace);
                let target = self.start(scratch, &[format!("--resp={address}"), databases], progress)?;
                let (address, name) = (Address::Tcp(address), own_server(&target));
                (Some(target), name, Greeting { address, password: None, database: 0, is_resp3: false })
            }
        };
        let durability = resp::asked_durability(&mut Client::open(&greeting)?)?;
        let process = match (&target, &greeting.address) {
            (Some(target), _) => target.process(),
            (None, Address::Tcp(address)) => server::other_process(*address),
            (None, Address::Unix(_)) => None,
        };
        let profiler = options.profile.profiler(process, scratch.path())?;
        let codec = RespCodec { greeting };
        let (loader, loaded, feed) = (codec.clone(), "the server's durability", None);
        Ok(Subject { codec, loader, loaded, durability, name, feed, target, process, profiler })
    }

    /// Reaches or starts the server over the native protocol.
    pub(super) fn over_native(
        &self,
        scratch: &Scratch,
        progress: &mut dyn Progress,
    ) -> Result<Subject<NativeCodec>, BenchError> {
        let options = &self.options;
        let (target, name, address) = match &options.server.target {
            Some(text) => {
                let address = server::authority(text, "thalweg").and_then(server::resolve);
                (None, text.clone(), address.map_err(BenchError::target(text))?)
            }
            None => {
                let (binary, arguments) = (&options.server.start.server_binary, &options.server.start.server_arg);
                let data = scratch.path().join("data");
                let target = Target::start(binary.as_deref(), &data, NativePort::Free, arguments, progress)?;
                let address = target.native.ok_or_else(|| BenchError::target(&target.host)("it has no native port"))?;
                let name = own_server(&target);
                (Some(target), name, address)
            }
        };
        let endpoint = NativeEndpoint { carrier: TransportKind::Tcp, endpoint: Endpoint::tcp(address.to_string()) };
        let codec = NativeCodec::open(address, &endpoint, &options.keyspace, options.durability)?;
        let durability = self.level_of_native_put(&codec)?;
        let process = target.as_ref().map_or_else(|| server::other_process(address), Target::process);
        let profiler = options.profile.profiler(process, scratch.path())?;
        let (loader, loaded, feed) = (codec.clone().with_level(Durability::Os), "durability os", None);
        Ok(Subject { codec, loader, loaded, durability, name, feed, target, process, profiler })
    }

    /// Returns the durability level that the server names in its reply to a put of the first key.
    fn level_of_native_put(&self, codec: &NativeCodec) -> Result<String, BenchError> {
        let Data { records, ledger } = &self.data;
        let write = ledger.begin(0);
        let (head, letters) = records.value(0, write.version);
        let level = codec.level_of(|codec, out| codec.put(0, [&head, letters], out))?;
        ledger.end(0, write);
        Ok(level.to_string())
    }

    fn start(
        &self,
        scratch: &Scratch,
        arguments: &[String],
        progress: &mut dyn Progress,
    ) -> Result<Target, BenchError> {
        let arguments = [arguments, &self.options.server.start.server_arg[..]].concat();
        http::start(self.options.server.start.server_binary.as_deref(), &arguments, scratch.path(), progress)
    }

    /// Returns the durability level that the server names in its reply to an append, or to a put of the first key.
    fn level(&self, target: &Target, codec: &HttpCodec, feed: Option<&FeedRun>) -> Result<String, BenchError> {
        let asked = || self.options.durability.map(|level| level.to_string());
        let named = match feed.filter(|_| !self.scenario.mix.has(Kind::uses_keys)) {
            Some(feed) if self.scenario.mix.has(Kind::uses_stream) => feed.append_once(LEVEL_HEADER)?,
            Some(_) => None,
            None => self.level_of_put(target, codec)?,
        };
        Ok(named.or_else(asked).unwrap_or_else(|| "unknown".to_owned()))
    }

    fn level_of_put(&self, target: &Target, codec: &HttpCodec) -> Result<Option<String>, BenchError> {
        let fail = |error: std::io::Error| BenchError::target(&target.host)(format!("asking for the level: {error}"));
        let Data { records, ledger } = &self.data;
        let (mut request, write) = (Vec::new(), ledger.begin(0));
        let (head, letters) = records.value(0, write.version);
        codec.put(0, [&head, letters], &mut request);
        let mut client = server::Client::connect(target.address, GIVE_UP).map_err(fail)?;
        let status = client.exchange(&request).map_err(fail)?.status;
        if !matches!(status, 200 | 201 | 204) {
            return Err(BenchError::target(&target.host)(format!("a put answered with status {status}")));
        }
        ledger.end(0, write);
        Ok(client.header(LEVEL_HEADER).map(str::to_owned))
    }
}

fn own_server(target: &Target) -> String {
    format!("own server at {}, process {}", target.address, target.process().unwrap_or(0))
}
