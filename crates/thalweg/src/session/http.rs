//! One HTTP exchange with a node, and the conversion of its failures.
//!
//! Owns: the connection, timeouts, and the conversion of each failure of a request to a [`Failure`] with advice. Does
//! not own: the contents of requests.

use std::{
    borrow::Cow,
    io::{self, BufRead, BufReader, Read},
    ops::ControlFlow,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use thalweg_types::Durability;
use ureq::{
    Agent, Body,
    http::{HeaderMap, Method, Request, Response},
};

use super::{directory::Directory, refusal};
use crate::failure::{Exit, Failure};

/// Maximum size in bytes of the body of an error reply. A regular body has one line.
const MAX_ERROR_BYTES: u64 = 64 * 1024;
/// Maximum size in bytes of a reply that is held in memory. The largest value fits, and a page of records as base64.
const MAX_REPLY_BYTES: u64 = 64 * 1024 * 1024;

/// Minimum time without any byte of a reply after which the server counts as lost. It is three times the interval at
/// which an idle tail sends a keepalive.
const MIN_SILENCE: Duration = Duration::from_secs(45);

const MAY_HAVE_RUN_LATE: &str =
    "the request may have been executed; read before you write again, or wait longer with --timeout";
const MAY_HAVE_RUN: &str = "the connection broke and the request may have been executed; read before you write again";
const CHECK_ADDRESS: &str = "nothing was sent; check --server or THALWEG_SERVER";

/// Result of handling one part of a reply: continue with the next part, end the reply early (`Break`), or fail.
pub(super) type Step = Result<ControlFlow<()>, Failure>;

/// Returns true if the server's address could not be reached. No connection was established in this case.
fn is_unreachable(error: &io::Error) -> bool {
    use io::ErrorKind::{AddrNotAvailable, HostUnreachable, NetworkUnreachable};
    // The standard library has no error kind for an unknown host name.
    matches!(error.kind(), AddrNotAvailable | HostUnreachable | NetworkUnreachable)
        || error.to_string().starts_with("failed to lookup address")
}

/// Returns true if no connection was established, so that nothing of the request was sent.
fn is_unsent(error: &ureq::Error) -> bool {
    match error {
        ureq::Error::Io(error) => error.kind() == io::ErrorKind::ConnectionRefused || is_unreachable(error),
        ureq::Error::HostNotFound | ureq::Error::Timeout(ureq::Timeout::Resolve | ureq::Timeout::Connect) => true,
        _ => false,
    }
}

/// Returns true if the failure is a broken connection, or a reply that did not arrive in time. Returns false for a
/// server that was never reached.
pub(super) fn is_broken_connection(failure: &Failure) -> bool {
    matches!(failure.next.as_deref(), Some(MAY_HAVE_RUN | MAY_HAVE_RUN_LATE))
}

/// HTTP client of a node. The node is a server, one of several members of a cluster, or a directory that this process
/// has opened.
pub(super) struct Http {
    transport: Transport,
    /// Addresses of the server, at least one; or the path of the directory as the only element.
    bases: Vec<String>,
    /// Index of the address that is in use. If this address cannot be reached, the next one is tried.
    current: AtomicUsize,
}

enum Transport {
    Server(Agent),
    Directory(Box<Directory>),
}

/// An HTTP request that is being built.
pub(super) struct RequestBuilder<'a> {
    method: Method,
    /// Path and query of the HTTP request, percent-encoded.
    path: String,
    headers: Vec<(&'static str, String)>,
    body: Option<Cow<'a, [u8]>>,
}

impl<'a> RequestBuilder<'a> {
    pub(super) fn new(method: Method, path: impl Into<String>) -> Self {
        Self { method, path: path.into(), headers: Vec::new(), body: None }
    }

    pub(super) fn get(path: impl Into<String>) -> Self {
        Self::new(Method::GET, path)
    }

    pub(super) fn delete(path: impl Into<String>) -> Self {
        Self::new(Method::DELETE, path)
    }

    /// Creates a POST request without a body.
    pub(super) fn post(path: impl Into<String>) -> Self {
        Self::new(Method::POST, path).body(b"")
    }

    #[must_use]
    pub(super) fn body(self, body: &'a [u8]) -> Self {
        Self { body: Some(Cow::Borrowed(body)), ..self }
    }

    #[must_use]
    pub(super) fn json_text(self, body: &'a [u8]) -> Self {
        self.body(body).header("content-type", "application/json")
    }

    #[must_use]
    pub(super) fn json(self, body: &Value) -> Self {
        let body = Some(Cow::Owned(body.to_string().into_bytes()));
        Self { body, ..self }.header("content-type", "application/json")
    }

    #[must_use]
    pub(super) fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    fn request<B>(&self, base: &str, body: B) -> Result<Request<B>, Failure> {
        let mut request = Request::builder().method(&self.method).uri(format!("{base}{}", self.path));
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        request.body(body).map_err(|error| Failure::usage(format!("{base}: {error}")))
    }
}

/// A reply whose status and headers have arrived. Its body is not read yet.
pub(super) struct OpenReply {
    status: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: Box<dyn Read + Send>,
}

/// A reply whose body was read completely.
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: Vec<u8>,
}

impl Reply {
    /// Returns the parsed value of a header; `None` if the header is missing or does not parse.
    pub(super) fn header<T: std::str::FromStr>(&self, name: &str) -> Option<T> {
        self.headers.get(name)?.to_str().ok()?.parse().ok()
    }

    pub(super) fn revision(&self) -> Option<u64> {
        self.header("thalweg-revision")
    }
}

impl Http {
    /// Creates a client of a server. `urls` is its address, or several addresses separated by commas; the first that
    /// can be reached is used.
    pub(super) fn server(urls: &str, timeout: Duration) -> Result<Self, Failure> {
        let bases = urls.split(',').map(Self::base_of).collect::<Result<Vec<_>, _>>()?;
        // No proxy is used: a proxy from the environment would send data to a host that the command line does not name.
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .proxy(None)
            .user_agent(concat!("thalweg/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(timeout / u32::try_from(bases.len()).unwrap_or(u32::MAX)))
            .timeout_send_body(Some(timeout))
            .timeout_recv_response(Some(timeout))
            .timeout_per_read(Some(timeout.max(MIN_SILENCE)))
            .build();
        Ok(Self { transport: Transport::Server(config.into()), bases, current: AtomicUsize::new(0) })
    }

    /// Returns the address of a server in the form that requests use. Fails if the address is invalid.
    fn base_of(url: &str) -> Result<String, Failure> {
        let url = url.trim().trim_end_matches('/');
        let base = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        if base.starts_with("https://") {
            return Err(Failure::usage(format!("{base}: this build supports http:// only"))
                .then("put a TLS-terminating proxy in front of the server, or reach it through a tunnel"));
        }
        if !base.starts_with("http://") || base.len() == "http://".len() {
            let failure = Failure::usage(format!("{url:?} is not a server address: use http://HOST:PORT"));
            let is_other_port = base.starts_with("thalweg://") || base.starts_with("redis://");
            return Err(if is_other_port {
                failure.then("commands speak HTTP: give the HTTP address of the server")
            } else {
                failure
            });
        }
        Ok(base)
    }

    pub(super) fn directory(directory: Directory) -> Self {
        let base = directory.path.display().to_string();
        Self { transport: Transport::Directory(Box::new(directory)), bases: vec![base], current: AtomicUsize::new(0) }
    }

    /// Returns the directory that this process has opened; `None` if the node is a server.
    pub(super) fn opened_directory(&self) -> Option<&Directory> {
        match &self.transport {
            Transport::Server(_) => None,
            Transport::Directory(directory) => Some(directory),
        }
    }

    /// Address of the server that is in use, or path of the directory that this process has opened. Used in messages.
    pub(super) fn base(&self) -> &str {
        &self.bases[self.current.load(Ordering::Relaxed) % self.bases.len()]
    }

    /// Sends a request and reads the whole reply. A status other than success becomes a [`Failure`].
    pub(super) fn ask(&self, ask: RequestBuilder<'_>) -> Result<Reply, Failure> {
        self.complete(self.open(ask)?)
    }

    /// Reads the whole body of a reply into memory.
    fn complete(&self, OpenReply { status, headers, body }: OpenReply) -> Result<Reply, Failure> {
        let mut bytes = Vec::new();
        let read = body.take(MAX_REPLY_BYTES + 1).read_to_end(&mut bytes);
        read.map_err(|error| self.lost(error))?;
        if bytes.len() as u64 > MAX_REPLY_BYTES {
            return Err(self.unexpected_reply("the reply is too long"));
        }
        Ok(Reply { status, headers, body: bytes })
    }

    /// Sends a request as [`ask`](Self::ask) does, but returns `None` for a reply with status 404.
    pub(super) fn send_or_none(&self, ask: RequestBuilder<'_>) -> Result<Option<Reply>, Failure> {
        let reply = self.exchange(ask)?;
        if reply.status == 404 { Ok(None) } else { self.complete(self.succeeded(reply)?).map(Some) }
    }

    /// Sends a request as [`ask`](Self::ask) does, but returns the body of the reply as JSON.
    pub(super) fn json<T: DeserializeOwned>(&self, ask: RequestBuilder<'_>) -> Result<T, Failure> {
        self.parse(&self.ask(ask)?.body)
    }

    /// Parses the JSON in the body of a reply.
    pub(super) fn parse<T: DeserializeOwned>(&self, body: &[u8]) -> Result<T, Failure> {
        serde_json::from_slice(body).map_err(|error| self.unexpected_reply(&error.to_string()))
    }

    /// Calls `line` with each line of an NDJSON reply, parsed as an object. The second argument is true if no further
    /// line has arrived yet.
    pub(super) fn lines(
        &self,
        ask: RequestBuilder<'_>,
        mut line: impl FnMut(Map<String, Value>, bool) -> Step,
    ) -> Result<(), Failure> {
        let mut input = BufReader::with_capacity(256 * 1024, self.open(ask)?.body);
        let mut text = Vec::new();
        loop {
            text.clear();
            if input.read_until(b'\n', &mut text).map_err(|error| self.lost(error))? == 0 {
                return Ok(());
            }
            let Ok(Value::Object(object)) = serde_json::from_slice(&text) else {
                return Err(self.unexpected_reply("a line of the reply is not a JSON object"));
            };
            if let Some(error) = object.get("error") {
                return Err(self.failure_of(error, 500));
            }
            if line(object, !input.buffer().contains(&b'\n'))?.is_break() {
                return Ok(());
            }
        }
    }

    /// Sends a request. Returns the reply with its body unread, or a [`Failure`] if the status is not a success.
    pub(super) fn open(&self, ask: RequestBuilder<'_>) -> Result<OpenReply, Failure> {
        let path = ask.path.split('?').next().unwrap_or_default();
        let is_nameless = path.contains("//") || path.ends_with('/');
        self.succeeded(self.exchange(ask)?).map_err(|failure| match &*failure.code {
            // An empty name usually comes from an unset variable in a script.
            "unknown_route" if is_nameless => Failure::usage("a name on the command line is empty"),
            _ => failure,
        })
    }

    /// Returns a successful reply unchanged, and converts an error reply of the node to a failure.
    fn succeeded(&self, reply: OpenReply) -> Result<OpenReply, Failure> {
        if (200..300).contains(&reply.status) {
            return Ok(reply);
        }
        let mut text = Vec::new();
        let _ = reply.body.take(MAX_ERROR_BYTES).read_to_end(&mut text);
        Err(self.failure_of(&serde_json::from_slice(&text).unwrap_or_default(), reply.status))
    }

    /// Sends a request. Returns the reply, even if its status is an error.
    fn exchange(&self, ask: RequestBuilder<'_>) -> Result<OpenReply, Failure> {
        match &self.transport {
            Transport::Server(agent) => {
                let (head, body) = self.reach(agent, &ask)?.into_parts();
                let body = Box::new(body.into_with_config().limit(u64::MAX).reader());
                Ok(OpenReply { status: head.status.as_u16(), headers: head.headers, body })
            }
            Transport::Directory(directory) => {
                let body = ask.body.as_deref().unwrap_or_default().to_vec();
                let (head, body) = directory.exchange(ask.request("", body)?).into_parts();
                Ok(OpenReply { status: head.status.as_u16(), headers: head.headers, body: Box::new(body) })
            }
        }
    }

    /// Sends a request to the address in use. If this address cannot be reached, tries the other addresses in turn.
    fn reach(&self, agent: &Agent, ask: &RequestBuilder<'_>) -> Result<Response<Body>, Failure> {
        let mut first = None;
        for _ in 0..self.bases.len() {
            let response = match &ask.body {
                Some(body) => agent.run(ask.request(self.base(), &body[..])?),
                None => agent.run(ask.request(self.base(), ())?),
            };
            match response {
                Ok(response) => return Ok(response),
                Err(error) => {
                    let was_unsent = is_unsent(&error);
                    let failure = self.lost(error);
                    if !was_unsent {
                        return Err(failure);
                    }
                    first.get_or_insert(failure);
                    self.current.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        Err(match (first, self.bases.len()) {
            (Some(failure), 1) => failure,
            (_, count) => {
                let message = format!("none of the {count} addresses can be reached: {}", self.bases.join(", "));
                Failure::new(Exit::Unavailable, "unreachable", message).then(CHECK_ADDRESS)
            }
        })
    }

    /// Converts an error object of the HTTP API to a failure. `status` is the HTTP status of the reply.
    pub(super) fn failure_of(&self, body: &Value, status: u16) -> Failure {
        refusal::refused(status, body).unwrap_or_else(|| self.unexpected_reply(&format!("status {status}")))
    }

    /// Converts an error of the connection to a failure. The request or its reply may be lost.
    pub(super) fn lost(&self, error: impl Into<ureq::Error>) -> Failure {
        let (base, error) = (self.base(), error.into());
        if self.opened_directory().is_some() {
            return Failure::new(Exit::Failed, "io", format!("{base}: {error}"));
        }
        let (message, next) = match error {
            ureq::Error::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused => (
                format!("no server listens at {base}"),
                "start a server with `thalweg serve`, name another one with --server, or open a directory with --data",
            ),
            ureq::Error::HostNotFound => (format!("{base}: no such host"), CHECK_ADDRESS),
            ureq::Error::Io(error) if is_unreachable(&error) => {
                (format!("{base} cannot be reached: {error}"), CHECK_ADDRESS)
            }
            ureq::Error::Timeout(ureq::Timeout::Resolve | ureq::Timeout::Connect) => {
                (format!("{base} cannot be reached in time"), CHECK_ADDRESS)
            }
            ureq::Error::Protocol(error) => (
                format!("{base} does not answer in HTTP: {error}"),
                "check the port: the native port of a server is by default the one after its HTTP port",
            ),
            ureq::Error::BadUri(why) => {
                return Failure::usage(format!("{base}: {why}")).then("use http://HOST:PORT");
            }
            ureq::Error::Timeout(_) => (format!("{base} did not answer in time"), MAY_HAVE_RUN_LATE),
            error => (format!("{base}: {error}"), MAY_HAVE_RUN),
        };
        Failure::new(Exit::Unavailable, "unreachable", message).then(next)
    }

    /// Returns the failure for a reply that a Thalweg server of this version would never send. `what` describes what is
    /// wrong with it.
    pub(super) fn unexpected_reply(&self, what: &str) -> Failure {
        let message = format!("{} did not answer like a Thalweg server: {what}", self.base());
        Failure::new(Exit::Failed, "not_thalweg", message)
            .then("check --server or THALWEG_SERVER, and that server and command have the same version")
    }

    /// Returns a part of a reply that must exist. Fails if the part is missing. `what` describes the part.
    pub(super) fn required<T>(&self, found: Option<T>, what: &str) -> Result<T, Failure> {
        found.ok_or_else(|| self.unexpected_reply(&format!("the reply has no {what}")))
    }

    /// Returns the durability level in the acknowledgement of a write.
    pub(super) fn level(&self, reply: &Reply) -> Result<Durability, Failure> {
        self.required(reply.header("thalweg-durability"), "durability level")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bases(urls: &str) -> Vec<String> {
        Http::server(urls, Duration::from_secs(1)).map(|http| http.bases).unwrap_or_default()
    }

    #[test]
    fn several_addresses_are_separated_by_commas() {
        assert_eq!(bases("http://a:1/"), ["http://a:1"]);
        assert_eq!(bases("a:1, http://b:2/"), ["http://a:1", "http://b:2"]);
        for wrong in ["", "a:1,", "a:1,https://b:2", "redis://a:1"] {
            assert!(bases(wrong).is_empty(), "{wrong:?}");
        }
    }
}
