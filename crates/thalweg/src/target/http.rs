//! One HTTP exchange with a server, and the meaning of its failures.
//!
//! Owns: the connection, timeouts, and converting every failure of a request to a [`Failure`] with advice. Does not own
//! the contents of requests; see [`super::remote`].

use std::{io::Read, time::Duration};

use serde_json::Value;
use thalweg_types::Durability;
use ureq::{
    Agent, Body,
    http::{HeaderMap, Method, Request, Response},
};

use super::answer;
use crate::failure::{Exit, Failure};

/// Maximum size in bytes of an error body; a regular one has one line.
const MAX_ERROR_BYTES: u64 = 64 * 1024;
/// Maximum size in bytes of a reply held in memory: the largest value, or a page of records as base64.
const MAX_REPLY_BYTES: u64 = 64 * 1024 * 1024;

/// Minimum pause of a reply after which the server counts as lost: three times the interval at which an idle tail sends
/// a keepalive.
const MIN_SILENCE: Duration = Duration::from_secs(45);

const CHECK_ADDRESS: &str = "nothing was sent: check --server or THALWEG_SERVER";

/// Returns true if the address could not be reached, so that there was no connection.
fn is_nowhere(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{AddrNotAvailable, HostUnreachable, NetworkUnreachable};
    // The standard library has no error kind for an unknown host name.
    matches!(error.kind(), AddrNotAvailable | HostUnreachable | NetworkUnreachable)
        || error.to_string().starts_with("failed to lookup address")
}

/// Client for one server address.
pub struct Http {
    agent: Agent,
    base: String,
}

/// A request that is being built.
pub struct Ask<'a> {
    pub method: Method,
    /// Path and query, percent-encoded.
    pub path: String,
    pub headers: Vec<(&'static str, String)>,
    pub body: Option<&'a [u8]>,
}

impl<'a> Ask<'a> {
    pub fn get(path: impl Into<String>) -> Self {
        Self { method: Method::GET, path: path.into(), headers: Vec::new(), body: None }
    }

    pub fn send(method: Method, path: impl Into<String>, body: &'a [u8]) -> Self {
        Self { method, path: path.into(), headers: Vec::new(), body: Some(body) }
    }

    #[must_use]
    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

/// A complete reply.
pub struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

impl Http {
    pub fn new(url: &str, timeout: Duration) -> Result<Self, Failure> {
        let url = url.trim_end_matches('/');
        let base = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        if base.starts_with("https://") {
            return Err(Failure::usage(format!("{base}: this build speaks http:// only"))
                .then("put a TLS-terminating proxy in front of the server, or reach it through a tunnel"));
        }
        if !base.starts_with("http://") || base.len() == "http://".len() {
            let failure = Failure::usage(format!("{url:?} is no server address: use http://HOST:PORT"));
            let is_other_port = base.starts_with("thalweg://") || base.starts_with("redis://");
            return Err(if is_other_port {
                failure.then("commands speak HTTP: give that port of the server")
            } else {
                failure
            });
        }
        // A proxy from the environment would send data to a host that the command line does not name.
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .proxy(None)
            .user_agent(concat!("thalweg/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(timeout))
            .timeout_send_body(Some(timeout))
            .timeout_recv_response(Some(timeout))
            .timeout_per_read(Some(timeout.max(MIN_SILENCE)))
            .build();
        Ok(Self { agent: config.into(), base })
    }

    pub fn base(&self) -> &str {
        &self.base
    }

    /// Sends a request and reads the whole reply; a status other than success is a [`Failure`].
    pub fn ask(&self, ask: Ask<'_>) -> Result<Reply, Failure> {
        self.read(self.open(ask)?)
    }

    /// Like [`ask`](Self::ask), but returns `None` for status 404.
    pub fn ask_if_there(&self, ask: Ask<'_>) -> Result<Option<Reply>, Failure> {
        let response = self.exchange(ask)?;
        match response.status().as_u16() {
            404 => Ok(None),
            _ if response.status().is_success() => self.read(response).map(Some),
            _ => Err(self.refused(response)),
        }
    }

    fn read(&self, response: Response<Body>) -> Result<Reply, Failure> {
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let body = response.into_body().into_with_config().limit(MAX_REPLY_BYTES).read_to_vec();
        Ok(Reply { status, headers, body: body.map_err(|error| self.lost(&error))? })
    }

    /// Like [`ask`](Self::ask), but returns the body as a reader.
    pub fn stream(&self, ask: Ask<'_>) -> Result<impl Read + 'static, Failure> {
        Ok(self.open(ask)?.into_body().into_with_config().limit(u64::MAX).reader())
    }

    /// Like [`stream`](Self::stream), but returns the reply's headers as well.
    pub fn stream_with_headers(&self, ask: Ask<'_>) -> Result<(HeaderMap, Box<dyn Read>), Failure> {
        let (head, body) = self.open(ask)?.into_parts();
        Ok((head.headers, Box::new(body.into_with_config().limit(u64::MAX).reader())))
    }

    /// Like [`ask`](Self::ask), but returns the body as JSON.
    pub fn json(&self, ask: Ask<'_>) -> Result<Value, Failure> {
        let body = self.ask(ask)?.body;
        serde_json::from_slice(&body).map_err(|error| self.not_ours(&error.to_string()))
    }

    fn open(&self, ask: Ask<'_>) -> Result<Response<Body>, Failure> {
        let path = ask.path.split('?').next().unwrap_or_default();
        let is_nameless = path.contains("//") || path.ends_with('/');
        let response = self.exchange(ask)?;
        if response.status().is_success() {
            return Ok(response);
        }
        let failure = self.refused(response);
        if is_nameless && failure.code == "unknown_route" {
            // The usual cause is an unset variable in a script.
            return Err(Failure::usage("a name on the command line is empty"));
        }
        Err(failure)
    }

    /// Sends a request. Returns the reply, whatever its status.
    fn exchange(&self, ask: Ask<'_>) -> Result<Response<Body>, Failure> {
        let mut request = Request::builder().method(ask.method).uri(format!("{}{}", self.base, ask.path));
        for (name, value) in ask.headers {
            request = request.header(name, value);
        }
        let bad = |error: ureq::http::Error| Failure::usage(format!("{}: {error}", self.base));
        let response = match ask.body {
            Some(body) => self.agent.run(request.body(body).map_err(bad)?),
            None => self.agent.run(request.body(()).map_err(bad)?),
        };
        response.map_err(|error| self.lost(&error))
    }

    /// Converts an error reply of the server.
    fn refused(&self, response: Response<Body>) -> Failure {
        let status = response.status().as_u16();
        let mut text = Vec::new();
        let _ = response.into_body().into_reader().take(MAX_ERROR_BYTES).read_to_end(&mut text);
        let body: Value = serde_json::from_slice(&text).unwrap_or_default();
        self.failure_of(&body, status)
    }

    /// Converts an error object of the API to a failure.
    pub fn failure_of(&self, body: &Value, status: u16) -> Failure {
        answer::refused(status, body).unwrap_or_else(|| self.not_ours(&format!("status {status}")))
    }

    /// Converts a failure of the connection; the request or its answer is lost.
    pub fn lost(&self, error: &ureq::Error) -> Failure {
        let base = &self.base;
        let (message, next) = match error {
            ureq::Error::Io(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => (
                format!("nothing listens at {base}"),
                "start a server with `thalweg serve`, name another with --server, or open a directory with --data",
            ),
            ureq::Error::HostNotFound => (format!("{base}: no such host"), CHECK_ADDRESS),
            ureq::Error::Io(error) if is_nowhere(error) => {
                (format!("{base} cannot be reached: {error}"), CHECK_ADDRESS)
            }
            ureq::Error::Timeout(ureq::Timeout::Resolve | ureq::Timeout::Connect) => {
                (format!("{base} cannot be reached in time"), CHECK_ADDRESS)
            }
            ureq::Error::Protocol(error) => (
                format!("{base} does not answer in HTTP: {error}"),
                "is this another port of a server, such as its native one? HTTP's is the one before that by default",
            ),
            ureq::Error::BadUri(why) => {
                return Failure::usage(format!("{base}: {why}")).then("use http://HOST:PORT");
            }
            ureq::Error::Timeout(_) => (
                format!("{base} did not answer in time"),
                "the request may have been carried out: read before writing again, or wait longer with --timeout",
            ),
            error => (
                format!("{base}: {error}"),
                "the connection broke and the request may have been carried out: read before writing again",
            ),
        };
        Failure::new(Exit::Unavailable, "unreachable", message).then(next)
    }

    /// Returns the failure for a reply that does not follow this API.
    pub fn not_ours(&self, what: &str) -> Failure {
        Failure::new(Exit::Failed, "not_thalweg", format!("{} answered as no Thalweg server does: {what}", self.base))
            .then("check --server or THALWEG_SERVER, and that server and command are of one version")
    }

    /// Returns the durability level of an acknowledgement.
    pub fn level(&self, headers: &HeaderMap) -> Result<Durability, Failure> {
        let level = headers.get("thalweg-durability").and_then(|value| value.to_str().ok());
        level.and_then(|level| level.parse().ok()).ok_or_else(|| self.not_ours("no durability in an ack"))
    }
}
