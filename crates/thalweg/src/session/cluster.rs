//! Requests for the cluster of a server. Replies are returned in the JSON format of the API.

use std::{cell::Cell, ops::ControlFlow, time::Duration};

use serde_json::{Map, Value};

use super::{
    Session,
    events::{Endless, Part},
    http::{Http, RequestBuilder, Step},
};
use crate::{failure::Failure, render::note};

/// Function that is called with each event of a cluster; `Break` ends the watch.
type VisitEvents<'v> = &'v mut dyn FnMut(&Map<String, Value>) -> Step;

/// Event of the cluster at which a watch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventsFrom {
    /// The watch begins with the next event.
    Now,
    /// The watch begins with all past events that the node still has.
    Kept,
}

/// Position in the events of a node. The watch continues from this position on its next connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Position {
    /// Sequence number of the last event that the watch has received. `None` before the first reply, if the watch
    /// begins with the next event.
    after: Option<u64>,
    /// Number of the node's run to which the sequence number belongs; `None` if the node has not stated it.
    run: Option<u64>,
}

impl Position {
    fn path(self) -> String {
        let parameter = |name: &str, value: Option<u64>| value.map(|value| format!("{name}={value}"));
        let query: Vec<_> =
            [parameter("after", self.after), parameter("run", self.run)].into_iter().flatten().collect();
        let mark = if query.is_empty() { "" } else { "?" };
        format!("/v1/cluster/events{mark}{}", query.join("&"))
    }

    /// Handles the beginning of a connection or an event that has arrived on it. Passes each event of the cluster to
    /// `visit`.
    fn take(&mut self, part: Part, visit: VisitEvents<'_>) -> Step {
        let Part::Event(event) = part else {
            // Nodes of earlier versions do not state their position. It is 0 until the first event: no event was
            // received.
            self.after.get_or_insert(0);
            return Ok(ControlFlow::Continue(()));
        };
        let number = |name: &str| event.object.get(name).and_then(Value::as_u64);
        if event.name == "position" {
            if event.object.get("unknown") == Some(&Value::Bool(true)) {
                note("the node that answers has restarted, or is another one: all events that it keeps follow");
            }
            *self = Self { after: number("after").or(self.after), run: number("run") };
            return Ok(ControlFlow::Continue(()));
        }
        let flow = visit(&event.object)?;
        self.after = number("sequence").or(self.after);
        Ok(flow)
    }
}

/// Time for which the command waits for a reply, in addition to the time for which the server waits for other members
/// of the cluster.
const MARGIN: Duration = Duration::from_secs(1);

impl Session {
    /// Returns one of the cluster's documents: `what` is `status`, `members`, `nodes` or `replicas`.
    pub(crate) fn cluster(&self, what: &str) -> Result<Value, Failure> {
        self.http.json(RequestBuilder::get(format!("/v1/cluster/{what}")))
    }

    /// Sends a change of the cluster with the admin token. Returns the reply, or null if it has no body.
    pub(crate) fn change_cluster(&self, what: &str, body: &Value, token: Option<&str>) -> Result<Value, Failure> {
        let mut ask = RequestBuilder::post(format!("/v1/cluster/{what}")).json(body);
        if let Some(token) = token {
            ask = ask.header("authorization", format!("Bearer {token}"));
        }
        self.waiting(ask)
    }

    /// Returns the comparison of the digests of all members' states, as the server makes it.
    pub(crate) fn cluster_digest(&self) -> Result<Value, Failure> {
        self.waiting(RequestBuilder::post("/v1/cluster/digest"))
    }

    /// Sends a request that the server can answer only after it has waited for other members of the cluster. The server
    /// is told to wait no longer than the command waits for a reply.
    fn waiting(&self, ask: RequestBuilder<'_>) -> Result<Value, Failure> {
        let wait = self.timeout.saturating_sub(MARGIN).min(Duration::from_secs(600));
        let reply = self.http.ask(ask.header("thalweg-timeout", wait.as_secs_f64().to_string()))?;
        if reply.body.is_empty() { Ok(Value::Null) } else { self.http.parse(&reply.body) }
    }

    /// Passes the events of the cluster to `visit` as they happen. After a lost connection it continues after the last
    /// event. If the answering node does not know this event, it continues with all events that the node keeps.
    pub(crate) fn cluster_events(&self, from: EventsFrom, visit: VisitEvents<'_>) -> Result<(), Failure> {
        let after = (from == EventsFrom::Kept).then_some(0);
        let position = Cell::new(Position { after, run: None });
        let endless = Endless {
            path: &|| position.get().path(),
            next: &|| {
                position.get().after.map_or("retrying".to_owned(), |after| format!("retrying after event {after}"))
            },
            resumes: true,
        };
        endless.follow(&self.http, &mut |part| {
            let mut next = position.get();
            let flow = next.take(part, visit);
            position.set(next);
            flow
        })
    }

    /// Returns the status of another node of the cluster, and the cluster as that node sees it.
    pub(crate) fn status_of_node(address: &str, timeout: Duration) -> Result<(Value, Value), Failure> {
        let http = Http::server(address, timeout)?;
        let status = http.json(RequestBuilder::get("/v1/status"))?;
        Ok((status, http.json(RequestBuilder::get("/v1/cluster/status"))?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::events::{Event, Events};

    /// Passes `reply`, the events of one connection, to the position. Returns the sequence numbers of the events that
    /// the position has passed on.
    fn take(position: &mut Position, reply: &str) -> Vec<u64> {
        let http = Http::server("http://127.0.0.1:1", Duration::from_secs(1)).unwrap();
        let mut shown = Vec::new();
        let mut visit = |part| {
            position.take(part, &mut |event| {
                shown.extend(event.get("sequence").and_then(Value::as_u64));
                Ok(ControlFlow::Continue(()))
            })
        };
        assert!(visit(Part::Opened).unwrap().is_continue());
        let endless = Endless { path: &String::new, next: &String::new, resumes: true };
        assert!(endless.visit(Events::new(reply.as_bytes()), &http, &mut visit).unwrap().is_continue());
        shown
    }

    #[test]
    fn a_watch_continues_after_the_last_event_that_it_has_shown() {
        let mut position = Position::default();
        assert_eq!(position.path(), "/v1/cluster/events");
        let event = |sequence: u64| format!("id: {sequence}\nevent: alive\ndata: {{\"sequence\":{sequence}}}\n\n");
        let begin = "id: 7\nevent: position\ndata: {\"after\":7,\"run\":3}\n\n";
        assert_eq!(take(&mut position, begin), [0_u64; 0]);
        assert_eq!(position.path(), "/v1/cluster/events?after=7&run=3", "nothing happened before the loss");
        assert_eq!(take(&mut position, &format!("{begin}{}{}", event(8), event(9))), [8, 9]);
        assert_eq!(position.path(), "/v1/cluster/events?after=9&run=3");
        // The node has restarted, so its event numbers begin again.
        let unknown = "event: position\ndata: {\"after\":0,\"run\":4,\"unknown\":true}\n\n";
        assert_eq!(take(&mut position, &format!("{unknown}{}", event(1))), [1]);
        assert_eq!(position.path(), "/v1/cluster/events?after=1&run=4");
    }

    #[test]
    fn a_node_that_does_not_state_its_position_is_asked_for_all_events_after_the_last_one() {
        let mut position = Position::default();
        assert_eq!(take(&mut position, ": following\n\n"), [0_u64; 0]);
        assert_eq!(position.path(), "/v1/cluster/events?after=0");
        let gap = Event { id: None, name: "gap".to_owned(), object: serde_json::from_str("{\"gap\":5}").unwrap() };
        let _ = position.take(Part::Event(gap), &mut |_| Ok(ControlFlow::Continue(()))).unwrap();
        assert_eq!(position.after, Some(0));
    }
}
