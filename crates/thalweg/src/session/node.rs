//! Requests for the node as a whole. Replies are returned in the JSON format of the API.

use serde_json::{Value, json};

use super::{Session, http::RequestBuilder};
use crate::failure::Failure;

impl Session {
    pub(crate) fn status(&self) -> Result<Value, Failure> {
        match self.http.opened_directory() {
            Some(directory) => Ok(directory.status()),
            None => self.http.json(RequestBuilder::get("/v1/status")),
        }
    }

    /// Returns the health of a server. Fails if the server is not ready to accept requests.
    pub(crate) fn ready(&self) -> Result<Value, Failure> {
        self.http.json(RequestBuilder::get("/ready"))
    }

    /// Returns a server's report about its disk space. The report includes the payload if `count` is true or the state
    /// is small.
    pub(crate) fn space(&self, count: bool) -> Result<Value, Failure> {
        self.http.json(RequestBuilder::get(format!("/v1/space?count={count}")))
    }

    /// Returns the metrics of a server as OpenMetrics text.
    pub(crate) fn metrics(&self) -> Result<String, Failure> {
        let reply = self.http.ask(RequestBuilder::get("/metrics"))?;
        Ok(String::from_utf8_lossy(&reply.body).into_owned())
    }

    /// Computes the digest of the state. If this process computes the digest itself, and not a server, calls `progress`
    /// with the number of rows read so far.
    pub(crate) fn state_digest(&self, progress: &mut dyn FnMut(u64)) -> Result<Value, Failure> {
        match self.http.opened_directory() {
            Some(directory) => directory.digest(progress),
            None => self.write_json(RequestBuilder::post("/v1/state/digest")),
        }
    }

    /// Returns the digest of the state that the server computed last.
    pub(crate) fn last_state_digest(&self) -> Result<Value, Failure> {
        if self.http.opened_directory().is_some() {
            let message = "--last needs a server: only a server keeps the last digest";
            return Err(Failure::usage(message));
        }
        self.http.json(RequestBuilder::get("/v1/state/digest"))
    }

    /// Returns the version of the state machine in force, and the highest version that the node supports.
    pub(crate) fn state_version(&self) -> Result<Value, Failure> {
        self.http.json(RequestBuilder::get("/v1/state/version"))
    }

    /// Raises the version of the state machine in force, and returns the versions as JSON. With `force`, raises the
    /// version even if members of the cluster do not answer.
    pub(crate) fn raise_version(&self, to: u16, force: bool, token: Option<&str>) -> Result<Value, Failure> {
        let body = if force { json!({ "to": to, "force": true }) } else { json!({ "to": to }) };
        let mut ask = RequestBuilder::post("/v1/state/version").json(&body);
        if let Some(token) = token {
            ask = ask.header("authorization", format!("Bearer {token}"));
        }
        self.write_json(ask)
    }
}
