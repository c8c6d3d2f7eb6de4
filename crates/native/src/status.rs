//! Handler of requests for the status of the node.

use serde_json::Value;
use thalweg_engine::Health;
use thalweg_serving::status::server_status;
use thalweg_wire::{self as wire, Figure, List};

use super::{
    failure::Failure,
    request::Request,
    turn::{Handled, Turn},
};

/// Handles a `read status` request: replies with the health of the node and its statistics as named numbers.
pub(crate) fn read(turn: &mut Turn<'_>, request: &Request<'_>) -> Result<Handled, Failure> {
    let db = turn.app.db.blocking();
    let (health, reason) = match db.health() {
        _ if *turn.app.stopping.borrow() => (wire::Health::Stopping, String::new()),
        Health::Good => (wire::Health::Good, String::new()),
        Health::DiskFull { .. } => (wire::Health::DiskFull, String::new()),
        Health::Failed { reason } | Health::StoppedServing { reason } => (wire::Health::Failed, reason),
        Health::Closed => (wire::Health::Stopping, String::new()),
    };
    let mut named = Vec::new();
    flatten(&mut named, String::new(), &server_status(turn.app));
    let figures: Vec<_> = named.iter().map(|(name, value)| Figure { name, value: *value }).collect();
    turn.out.reply(
        request.id,
        &wire::Status {
            health,
            durability: turn.app.config.durability,
            node: db.report().node,
            uptime: u64::try_from(turn.app.started.elapsed().as_micros()).unwrap_or(u64::MAX),
            space_time: db.space_time(),
            version: env!("CARGO_PKG_VERSION"),
            backend: db.report().backend.name(),
            reason: &reason[..reason.floor_char_boundary(2048)],
            figures: List::Items(&figures),
        },
    )?;
    Ok(Handled::Replied)
}

/// Collects the whole numbers in a JSON value. The name of each is its path, such as `log.segments`. Other values are
/// left out.
fn flatten(into: &mut Vec<(String, u64)>, name: String, value: &Value) {
    let below = |part: &str| if name.is_empty() { part.to_owned() } else { format!("{name}.{part}") };
    match value {
        Value::Object(fields) => fields.iter().for_each(|(part, value)| flatten(into, below(part), value)),
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(at, value)| flatten(into, below(&at.to_string()), value));
        }
        Value::Number(number) => into.extend(number.as_u64().map(|number| (name, number))),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_named_by_the_way_to_them() {
        let mut figures = Vec::new();
        let status = serde_json::json!({ "a": 1, "b": { "c": 2, "d": "text", "e": 0.5 }, "f": [3, 4], "g": -1 });
        flatten(&mut figures, String::new(), &status);
        let figures: Vec<_> = figures.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        assert_eq!(figures, [("a", 1), ("b.c", 2), ("f.0", 3), ("f.1", 4)]);
    }
}
