//! Servers of a scenario, over each protocol: reaching or starting a server, and finding out its durability level.
//!
//! Owns: the address and the process of each kind of server, its codec, and the level that its replies name. Does not
//! own: the embedded engine (`embedded`), or the codecs (`thalweg_load`).

use std::{net::SocketAddr, path::PathBuf, sync::Arc};

use serde::Deserialize;
use thalweg_transport::Trust;
use thalweg_types::Durability;

use super::{
    embedded::Embedded,
    feed_runs::FeedRun,
    mix::Kind,
    options::GIVE_UP,
    protocols::EMBEDDED_SCHEME,
    suite::{Data, Subject, Suite},
};
#[cfg(feature = "nats")]
use super::{feed_tables::Storage, protocols::WireProtocol, words::NOT_STORED};
#[cfg(feature = "nats")]
use crate::load::nats::{NatsFeed, NatsServer, StreamStorage};
use crate::{
    BenchError, Progress, Scratch, http,
    load::{
        Address,
        feeds::{HttpFeed, NativeFeed, RespFeed},
        native::{NativeEndpoint, NativePlace, NativeTunnel, TransportKind, development_trust},
        pairs::{Codec, HttpCodec, NativeCodec, RespCodec, TemplateCodec},
        resp::client::{Client, Greeting},
    },
    resp,
    server::{self, NativePort, Target, free_port},
};

/// Header of a request whose body is JSON.
const JSON: &str = "Content-Type: application/json\r\n";

impl Suite {
    /// Reaches or starts the server over HTTP.
    pub(super) fn over_http(
        &self,
        scratch: &Scratch,
        progress: &mut dyn Progress,
    ) -> Result<Subject<HttpCodec>, BenchError> {
        let options = &self.options;
        let target = self.http_target(scratch, progress)?;
        let codec = HttpCodec::new(target.address, &target.host, &options.keyspace);
        let loader = codec.clone().with_level(Some(Durability::Os));
        let codec = codec.with_level(options.durability);
        let cache = self.http_cache(&target)?;
        let feed = FeedRun::create(options, &self.scenario, &target.host, |name, parts| {
            HttpFeed::create(target.address, &target.host, name, options.durability, parts)
        })?;
        let durability = self.level(&target.host, &codec, feed.as_ref())?;
        let (name, process) = (self.name_of(&target), target.process());
        let profiler = options.profile.profiler(process, scratch.path())?;
        let (loaded, target) = ("durability os", Some(target));
        Ok(Subject { codec, loader, cache, loaded, durability, name, feed, target, embedded: None, process, profiler })
    }

    /// Reaches or starts the server over HTTP. The requests follow the templates in the table `[http]` of the file.
    pub(super) fn by_templates(
        &self,
        scratch: &Scratch,
        progress: &mut dyn Progress,
    ) -> Result<Subject<TemplateCodec>, BenchError> {
        let target = self.http_target(scratch, progress)?;
        let templates = self.scenario.http.clone().expect("the caller has looked");
        let codec = TemplateCodec::new(target.address, &target.host, templates);
        let durability = self.level_of_put(&target.host, &codec)?.unwrap_or_else(|| "unknown".to_owned());
        let (name, process) = (self.name_of(&target), target.process());
        let profiler = self.options.profile.profiler(process, scratch.path())?;
        let (loader, loaded, target) = (codec.clone(), "the request of [http]", Some(target));
        let (cache, feed) = (None, None);
        Ok(Subject { codec, loader, cache, loaded, durability, name, feed, target, embedded: None, process, profiler })
    }

    fn http_target(&self, scratch: &Scratch, progress: &mut dyn Progress) -> Result<Target, BenchError> {
        match &self.options.server.target {
            Some(url) => Target::running(url),
            None => self.start(scratch, &[], progress),
        }
    }

    fn name_of(&self, target: &Target) -> String {
        self.options.server.target.clone().unwrap_or_else(|| own_server(target))
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
                let kind = if self.uses_cache() { "cache" } else { "keyspace" };
                let databases = format!("--resp-databases=0={kind}:{}", options.keyspace);
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
        let feed = FeedRun::create(options, &self.scenario, &name, |name, parts| {
            RespFeed::create(greeting.clone(), name, parts)
        })?;
        let codec = RespCodec { greeting };
        let (loader, loaded) = (codec.clone(), "the server's durability");
        let cache = self.uses_cache().then(|| codec.clone());
        Ok(Subject { codec, loader, cache, loaded, durability, name, feed, target, embedded: None, process, profiler })
    }

    /// Reaches or starts the server over the native protocol.
    pub(super) fn over_native(
        &self,
        scratch: &Scratch,
        progress: &mut dyn Progress,
    ) -> Result<Subject<NativeCodec>, BenchError> {
        let options = &self.options;
        let transport = options.protocol().transport().expect("the caller has looked");
        let (target, name, address, trust) = match &options.server.target {
            Some(text) => {
                let address = server::authority(without_transport(text, transport), "thalweg");
                let address = address.and_then(server::resolve);
                let address = address.map_err(BenchError::target(text))?;
                (None, text.clone(), address, options.fingerprint.map(Trust::fingerprint))
            }
            None => {
                let target = self.start_native(transport, scratch, progress)?;
                let address = target.native.ok_or_else(|| BenchError::target(&target.host)("it has no native port"))?;
                let trust =
                    development_trust(&scratch.path().join("data")).map_err(BenchError::target(&target.host))?;
                let name = own_server(&target);
                (Some(target), name, address, trust)
            }
        };
        let place = self.native_place(transport, address, trust)?;
        let cache = self.native_cache(&place)?;
        let (codec, feed) = self.native_codec(&place, cache.as_ref())?;
        let durability = self.level(&name, &codec, feed.as_ref())?;
        let process = target.as_ref().map_or_else(|| server::other_process(address), Target::process);
        let profiler = options.profile.profiler(process, scratch.path())?;
        let (loader, loaded) = (codec.clone().with_level(Durability::Os), "durability os");
        Ok(Subject { codec, loader, cache, loaded, durability, name, feed, target, embedded: None, process, profiler })
    }

    /// Starts a server whose native port uses this transport.
    fn start_native(
        &self,
        transport: TransportKind,
        scratch: &Scratch,
        progress: &mut dyn Progress,
    ) -> Result<Target, BenchError> {
        let start = &self.options.server.start;
        let mut arguments = start.server_arg.clone();
        if transport == TransportKind::Tls && !arguments.iter().any(|argument| argument.starts_with("--native-tls")) {
            arguments.push("--native-tls".to_owned());
        }
        let (binary, data) = (start.server_binary.as_deref(), scratch.path().join("data"));
        Target::start(binary, &data, NativePort::Free, &arguments, progress)
    }

    /// Returns a server's native port as a target for requests. Starts threads for the client if the transport is
    /// encrypted.
    fn native_place(
        &self,
        transport: TransportKind,
        address: SocketAddr,
        trust: Option<Trust>,
    ) -> Result<NativePlace, BenchError> {
        if transport == TransportKind::Tcp {
            return Ok(NativePlace::Server(address));
        }
        let fail = BenchError::target(address);
        let endpoint = NativeEndpoint::new(transport, address.to_string(), trust);
        let endpoint = endpoint.ok_or_else(|| fail("its certificate is not known".to_owned()))?;
        let tunnel = NativeTunnel::start(endpoint, self.scenario.load.threads);
        Ok(NativePlace::Tunnel(Arc::new(tunnel.map_err(|error| fail(error.to_string()))?)))
    }

    /// Connects to the NATS server that the options name.
    #[cfg(feature = "nats")]
    pub(super) fn over_nats(&self, scratch: &Scratch) -> Result<Subject<NatsFeed>, BenchError> {
        let (options, threads) = (&self.options, self.scenario.load.threads);
        let text = options.server.target.as_deref().expect("the check of the options demands one");
        let is_core = options.protocol() == WireProtocol::Nats;
        let server = NatsServer::at(text, if is_core { "nats" } else { "jetstream" }, threads)?;
        let (name, process) = (server.name.clone(), server::other_process(server.address));
        let storage = match self.scenario.feeds.storage {
            Storage::File => StreamStorage::File,
            Storage::Memory => StreamStorage::Memory,
        };
        let mut created = None;
        let feed = FeedRun::create(options, &self.scenario, &name, |name, parts| {
            let feed = NatsFeed::create(server, &name, storage, parts)?;
            created = Some(feed.clone());
            Ok(feed)
        })?;
        let codec = created.expect("the check of the options refuses operations on keys");
        let durability = if is_core { NOT_STORED.to_owned() } else { self.level(&name, &codec, feed.as_ref())? };
        let profiler = options.profile.profiler(process, scratch.path())?;
        let (loader, loaded, target) = (codec.clone(), "nothing", None);
        let (cache, embedded) = (None, None);
        Ok(Subject { codec, loader, cache, loaded, durability, name, feed, target, embedded, process, profiler })
    }

    /// Never called: in a build without the NATS client, the check of the options rejects NATS.
    #[cfg(not(feature = "nats"))]
    pub(super) fn over_nats(&self, _: &Scratch) -> Result<Subject<NativeCodec>, BenchError> {
        unreachable!("the check of the options refuses NATS in a build without its client")
    }

    /// Opens the target's directory, or a new one, as an embedded engine in this process.
    pub(super) fn in_process(&self, scratch: &Scratch) -> Result<Subject<NativeCodec>, BenchError> {
        let (options, load) = (&self.options, &self.scenario.load);
        let path = match &options.server.target {
            Some(text) => PathBuf::from(text.strip_prefix(EMBEDDED_SCHEME).unwrap_or(text)),
            None => scratch.path().join("data"),
        };
        let embedded = Embedded::open(&path, options.durability)?;
        // If each connection has a thread for itself, nothing else waits for the thread while it commits.
        let is_alone = load.rate.is_none() && options.search.is_none() && load.connections <= load.threads;
        let place = embedded.place(path.display().to_string(), is_alone);
        let (codec, feed) = self.native_codec(&place, None)?;
        let name = format!("engine in this process, in {}", path.display());
        let durability = self.level(&name, &codec, feed.as_ref())?;
        let profiler = options.profile.profiler(Some(std::process::id()), scratch.path())?;
        let (loader, loaded) = (codec.clone().with_level(Durability::Os), "durability os");
        let (cache, target, embedded, process) = (None, None, Some(embedded), None);
        Ok(Subject { codec, loader, cache, loaded, durability, name, feed, target, embedded, process, profiler })
    }

    /// Opens the keyspace, and creates the stream and the group, if the mix uses them.
    fn native_codec(
        &self,
        place: &NativePlace,
        cache: Option<&NativeCodec>,
    ) -> Result<(NativeCodec, Option<FeedRun>), BenchError> {
        let options = &self.options;
        let codec = match cache {
            _ if self.scenario.mix.has(Kind::uses_keyspace) => {
                NativeCodec::open(place, &options.keyspace, options.durability)?
            }
            Some(cache) => cache.clone(),
            None => NativeCodec::without_keys(place),
        };
        let feed = FeedRun::create(options, &self.scenario, &place.to_string(), |name, parts| {
            NativeFeed::create(place, name, options.durability, parts)
        })?;
        Ok((codec, feed))
    }

    fn uses_cache(&self) -> bool {
        self.scenario.mix.has(Kind::uses_cache)
    }

    /// Creates the cache over HTTP, if the mix uses one. Returns the codec of its requests; `None` without a cache.
    fn http_cache(&self, target: &Target) -> Result<Option<HttpCodec>, BenchError> {
        #[derive(Deserialize)]
        struct CacheReply {
            max_bytes: u64,
        }
        if !self.uses_cache() {
            return Ok(None);
        }
        let name = &self.options.keyspace;
        let fail = |message: String| BenchError::target(&target.host)(format!("creating the cache {name}: {message}"));
        let config =
            self.scenario.cache_bytes.map_or_else(|| "{}".to_owned(), |bytes| format!("{{\"max_bytes\":{bytes}}}"));
        let client = server::Client::connect(target.address, GIVE_UP);
        let answered =
            client.and_then(|mut client| client.request("PUT", &format!("/v1/caches/{name}"), JSON, config.as_bytes()));
        let (status, body) = answered.map_err(|error| fail(error.to_string()))?;
        if !matches!(status, 200 | 201) {
            return Err(fail(format!("status {status}: {}", String::from_utf8_lossy(&body))));
        }
        let shown: CacheReply = serde_json::from_slice(&body).map_err(|error| fail(error.to_string()))?;
        self.check_capacity(&target.host, shown.max_bytes)?;
        Ok(Some(HttpCodec::cache(target.address, &target.host, name)))
    }

    /// Creates the cache over the native protocol, if the mix uses one. Returns the codec of its requests; `None`
    /// without a cache.
    fn native_cache(&self, place: &NativePlace) -> Result<Option<NativeCodec>, BenchError> {
        if !self.uses_cache() {
            return Ok(None);
        }
        let (name, bytes) = (&self.options.keyspace, self.scenario.cache_bytes);
        let (codec, found) = NativeCodec::open_cache(place, name, bytes)?;
        self.check_capacity(&place.to_string(), found)?;
        Ok(Some(codec))
    }

    /// Returns an error if the cache existed before with a capacity that differs from the file's.
    fn check_capacity(&self, host: &str, found: u64) -> Result<(), BenchError> {
        let Some(wanted) = self.scenario.cache_bytes.filter(|wanted| *wanted != found) else { return Ok(()) };
        Err(BenchError::target(host)(format!(
            "the cache {} exists already, with {found} B instead of {wanted} B: drop it, or name another with --keyspace",
            self.options.keyspace
        )))
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

    /// Returns the durability level that the server names in its reply to a put of the first key, or to an append. If
    /// it names none, returns the level that the options request, or `unknown` if they request none.
    fn level(&self, host: &str, codec: &impl Codec, feed: Option<&FeedRun>) -> Result<String, BenchError> {
        let asked = || self.options.durability.map(|level| level.to_string());
        let mix = &self.scenario.mix;
        let named = match feed {
            _ if mix.has(Kind::uses_keyspace) => self.level_of_put(host, codec)?,
            Some(feed) if mix.has(Kind::uses_stream) => feed.level_of_append(codec)?,
            _ => None,
        };
        Ok(named.or_else(asked).unwrap_or_else(|| "unknown".to_owned()))
    }

    fn level_of_put(&self, host: &str, codec: &impl Codec) -> Result<Option<String>, BenchError> {
        let fail = |problem: String| BenchError::target(host)(format!("a put: {problem}"));
        let Data { records, ledger, .. } = &self.data;
        let (mut connection, write) = (codec.connect()?, ledger.begin(0));
        let (head, letters) = records.value(0, write.version);
        codec.put(0, [&head, letters], connection.out());
        let level = connection.exchange(GIVE_UP, |input| match codec.decode(input)? {
            None => Ok(None),
            Some(answer) if codec.is_stored(&answer.content) => Ok(Some(codec.level(&input[..answer.bytes]))),
            Some(answer) => Err(format!("{:?}", answer.content)),
        });
        let level = level.map_err(fail)?;
        ledger.end(0, write);
        Ok(level)
    }
}

/// Removes the scheme that names the transport (such as `thalweg+tls://`) from an address, so that `host:port` remains.
fn without_transport(text: &str, transport: TransportKind) -> &str {
    let scheme = match transport {
        TransportKind::Tcp => "thalweg://",
        TransportKind::Tls => "thalweg+tls://",
        TransportKind::Quic => "thalweg+quic://",
    };
    text.strip_prefix(scheme).unwrap_or(text)
}

fn own_server(target: &Target) -> String {
    format!("own server at {}, process {}", target.address, target.process().unwrap_or(0))
}
