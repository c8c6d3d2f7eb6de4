//! The handler of `GET /v1/cluster/events`: events of the cluster as this node sees them.
//!
//! As server-sent events, each event has its sequence number as `id`. So a client that reconnects with `Last-Event-ID`
//! gets the events that it missed, as far as the node keeps them. As NDJSON, each event is a line. The field `gap`
//! states the number of events that a client has missed. Sequence numbers belong to one process of one node: each start
//! of a node begins a new *run* with its own number. Each reply begins with its position: the number of the run, and a
//! sequence number. A client that states both gets the events after this position. A node that was restarted, or
//! another node, does not know the position. Its reply then says so, and begins with all events that the node keeps.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use thalweg_serving::{
    app::App,
    cluster::{Beginning, ClusterEvent, ClusterHandle, Missed},
};

use super::{
    handle,
    json::{EventShown, id_of},
};
use crate::{
    call::{Answer, Call},
    describe::{EVENTS, LastEvent, NDJSON},
    following::{Follower, Format, WakeReason, resumed},
    pages::Running,
    parse::EventsQuery,
};

/// Handles `GET /v1/cluster/events`: streams the events of the cluster.
#[utoipa::path(
    get, path = "/v1/cluster/events", params(EventsQuery, LastEvent),
    responses((status = 200,
            description = "First the position (`after`, `run`; `unknown` if the node does not know the one in the request), \
                           then one event each. `gap` is a number of events that are not kept any more.",
            content((String = EVENTS), (EventShown = NDJSON))))
)]
pub(crate) fn events(app: &Arc<App>, call: &Call) -> Answer {
    let handle = handle(app)?;
    let query = EventsQuery::parse(call.head.uri.query())?;
    let format = Format::asked(call, "events")?;
    let after = resumed(call, "a sequence number")?.map(|next| next - 1);
    let Beginning { after, is_known } = handle.events().begin(after.or(query.after), query.run);
    let follower = Follower::admit(app, call)?;
    let left = query.limit.unwrap_or(u64::MAX);
    let following = EventStream { follower, handle: Arc::clone(handle), format, after, is_known, left };
    Ok(format.reply(following.follower.bulk(), following, step))
}

struct EventStream {
    follower: Follower,
    handle: Arc<dyn ClusterHandle>,
    format: Format,
    /// Sequence number of the last event that was sent to the client.
    after: u64,
    /// False if the node does not know the position in its events after which the client has asked to continue.
    is_known: bool,
    /// Number of events that the reply may still send.
    left: u64,
}

fn step(following: EventStream) -> Running<EventStream> {
    Box::pin(async move {
        let mut following = following;
        if following.follower.is_new() {
            let greeting = following.greeting();
            return Ok((vec![greeting], Some(following)));
        }
        loop {
            if following.follower.is_over() || following.left == 0 {
                return Ok((Vec::new(), None));
            }
            if let Some(page) = following.page() {
                return Ok((vec![page], Some(following)));
            }
            let log = Arc::clone(following.handle.events());
            let after = following.after;
            match following.follower.wait(log.wait_after(after)).await {
                WakeReason::Ready(()) => {}
                WakeReason::Silence => {
                    let said = following.keepalive();
                    return Ok((vec![said], Some(following)));
                }
                WakeReason::Stopping => return Ok((Vec::new(), None)),
            }
        }
    })
}

impl EventStream {
    /// Encodes the events that the client does not have yet. Returns `None` if there are none.
    fn page(&mut self) -> Option<Bytes> {
        let (Missed(missed), events) = self.handle.events().after(self.after);
        if events.is_empty() {
            return None;
        }
        let report = self.handle.report();
        let mut out = String::new();
        if missed > 0 {
            out.push_str(&match self.format {
                Format::Events => format!("event: gap\ndata: {{\"gap\":{missed}}}\n\n"),
                Format::Lines => format!("{{\"gap\":{missed}}}\n"),
            });
        }
        for event in events {
            if self.left == 0 {
                break;
            }
            self.left -= 1;
            self.after = event.sequence;
            let shown = json!(shown(&event, event.name(&report).map(str::to_owned)));
            out.push_str(&match self.format {
                Format::Events => format!("id: {}\nevent: {}\ndata: {shown}\n\n", event.sequence, event.event.name()),
                Format::Lines => format!("{shown}\n"),
            });
        }
        Some(out.into())
    }

    /// Returns the position of this reply in the node's events, as JSON.
    fn position(&self) -> Value {
        json!({ "after": self.after, "run": self.handle.events().run() })
    }

    fn greeting(&self) -> Bytes {
        let mut position = self.position();
        if !self.is_known {
            position["unknown"] = json!(true);
        }
        match self.format {
            Format::Events => format!("id: {}\nevent: position\ndata: {position}\n\n", self.after).into(),
            Format::Lines => format!("{position}\n").into(),
        }
    }

    fn keepalive(&self) -> Bytes {
        match self.format {
            Format::Events => Bytes::from_static(b": following\n\n"),
            Format::Lines => format!("{}\n", self.position()).into(),
        }
    }
}

fn shown(event: &ClusterEvent, name: Option<String>) -> EventShown {
    EventShown {
        sequence: event.sequence,
        unix_micros: event.unix_micros,
        event: event.event.name(),
        node: event.event.node().map(id_of),
        name,
        term: event.event.term().map(|term| term.0),
    }
}
