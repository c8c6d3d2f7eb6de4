//! Requests for the cluster of a server. Answers are in the API's form.

use std::{cell::Cell, ops::ControlFlow, time::Duration};

use serde_json::{Map, Value};

use super::{
    Session,
    events::{Endless, Part},
    http::{Http, RequestBuilder, Step},
};
use crate::failure::Failure;

/// Function that is called with each event of a cluster; `Break` ends the watch.
type VisitEvents<'v> = &'v mut dyn FnMut(&Map<String, Value>) -> Step;

/// Event of the cluster at which a watch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventsFrom {
    /// The watch begins with the next event.
    Now,
    /// The watch begins with all events that the node keeps.
    Kept,
}

/// Time by which the command waits longer for a reply than the server waits for the cluster.
const MARGIN: Duration = Duration::from_secs(1);

impl Session {
    /// Returns one of the cluster's lists or figures: `status`, `members`, `nodes` or `replicas`.
    pub fn cluster(&self, what: &str) -> Result<Value, Failure> {
        self.http.json(RequestBuilder::get(format!("/v1/cluster/{what}")))
    }

    /// Sends a change of the cluster with the admin token. Returns the reply, or null if it has no body.
    pub fn change_cluster(&self, what: &str, body: &Value, token: Option<&str>) -> Result<Value, Failure> {
        let mut ask = RequestBuilder::post(format!("/v1/cluster/{what}")).json(body);
        if let Some(token) = token {
            ask = ask.header("authorization", format!("Bearer {token}"));
        }
        self.waiting(ask)
    }

    /// Compares the digests of the members' states.
    pub fn cluster_digest(&self) -> Result<Value, Failure> {
        self.waiting(RequestBuilder::post("/v1/cluster/digest"))
    }

    /// Sends a request that waits for the cluster, as long as the command waits for a reply.
    fn waiting(&self, ask: RequestBuilder<'_>) -> Result<Value, Failure> {
        let wait = self.timeout.saturating_sub(MARGIN).min(Duration::from_secs(600));
        let reply = self.http.ask(ask.header("thalweg-timeout", wait.as_secs_f64().to_string()))?;
        if reply.body.is_empty() { Ok(Value::Null) } else { self.http.parse(&reply.body) }
    }

    /// Passes the events of the cluster to `visit` as they happen. Continues after a restart of the server.
    pub fn cluster_events(&self, from: EventsFrom, visit: VisitEvents<'_>) -> Result<(), Failure> {
        // The numbers of events begin again when a server restarts, so a later connection takes all that it keeps.
        let was_there = Cell::new(from == EventsFrom::Kept);
        let endless = Endless {
            path: &|| format!("/v1/cluster/events{}", if was_there.get() { "?after=0" } else { "" }),
            next: &|| "retrying".to_owned(),
            resumes: true,
        };
        endless.follow(&self.http, &mut |part| match part {
            Part::Opened => {
                was_there.set(true);
                Ok(ControlFlow::Continue(()))
            }
            Part::Event(event) => visit(&event.object),
        })
    }

    /// Returns the status of another node of the cluster, and the cluster as that node sees it.
    pub fn status_of_node(address: &str, timeout: Duration) -> Result<(Value, Value), Failure> {
        let http = Http::server(address, timeout)?;
        let status = http.json(RequestBuilder::get("/v1/status"))?;
        Ok((status, http.json(RequestBuilder::get("/v1/cluster/status"))?))
    }
}
