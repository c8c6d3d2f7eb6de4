//! Requests for consumer groups without a server, for processes that open the database themselves.

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use thalweg_engine::{Database, GroupStart};
use thalweg_serving::error::ApiError;
use thalweg_types::command::groups::GroupConfig;

use super::{
    changed, created_json, find_named,
    json::{
        JsonAck, JsonConfig, JsonExtend, JsonFetch, JsonNack, JsonSeek, JsonStart, delivered, describe,
        describe_config, extended_json, settled_json,
    },
    settlements,
};

/// A request for the groups of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupCall {
    /// Lists the groups of all streams.
    ListAll,
    /// Lists the groups of one stream.
    List,
    /// Returns a group's figures.
    Get,
    /// Creates a group.
    Create,
    /// Changes a group's configuration.
    Configure,
    /// Deletes a group.
    Delete,
    /// Delivers records to a member.
    Fetch,
    /// Acks records.
    Ack,
    /// Nacks records.
    Nack,
    /// Extends the deadlines of attempts.
    Extend,
    /// Moves the cursor.
    Seek,
}

/// Maximum size of a fetch in bytes. Without a server there is no configured bound.
const MOST_BYTES: u64 = 64 << 20;

fn parsed<T: DeserializeOwned>(body: &Value) -> Result<T, ApiError> {
    T::deserialize(body).map_err(|error| ApiError::bad_request("bad_json", error.to_string()))
}

/// Executes a request as the server does, with the bodies that `docs/http.md` describes.
pub fn group_json(db: &Database, call: GroupCall, stream: &str, group: &str, body: &Value) -> Result<Value, ApiError> {
    if call == GroupCall::ListAll {
        return Ok(json!({ "groups": db.groups()?.iter().map(describe).collect::<Vec<_>>() }));
    }
    if call == GroupCall::List {
        let stream = db.find_stream(stream).ok_or_else(|| thalweg_serving::error::no_such_stream(stream))?;
        return Ok(json!({ "groups": stream.groups()?.iter().map(describe).collect::<Vec<_>>() }));
    }
    if call == GroupCall::Create {
        let sent: JsonConfig = parsed(body)?;
        let start = sent.start.as_ref().map_or(GroupStart::Beginning, JsonStart::place);
        let config = sent.over(GroupConfig::default())?;
        let (group, created) = db.stream(stream)?.create_group(group, start, &config)?;
        return created_json(&group, created);
    }
    let group = find_named(db, stream, group)?;
    match call {
        GroupCall::Configure => {
            let config = changed(&group, parsed(body)?)?;
            let ack = group.configure(&config)?;
            Ok(json!({ "config": describe_config(&config), "durability": ack.durability.name() }))
        }
        GroupCall::Delete => Ok(json!({ "durability": group.delete()?.durability.name() })),
        GroupCall::Fetch => {
            let request = parsed::<JsonFetch>(body)?.request(MOST_BYTES)?;
            let object = delivered(&group.fetch(&request)?)?;
            Ok(serde_json::from_slice(&object).expect("JSON of our own"))
        }
        GroupCall::Ack => Ok(settled_json(&group.ack(&settlements(&parsed::<JsonAck>(body)?.attempts)?)?)),
        GroupCall::Nack => {
            let sent: JsonNack = parsed(body)?;
            Ok(settled_json(&group.nack(&settlements(&sent.attempts)?, sent.again()?, &sent.reason)?))
        }
        GroupCall::Extend => {
            let (attempts, by) = parsed::<JsonExtend>(body)?.parts()?;
            Ok(extended_json(&group.extend(&attempts, by)?))
        }
        GroupCall::Seek => Ok(json!({ "cursor": group.seek(parsed::<JsonSeek>(body)?.to.place())?.0 })),
        GroupCall::ListAll | GroupCall::List | GroupCall::Get | GroupCall::Create => Ok(describe(&group.info()?)),
    }
}
