//! Keys, keyspaces and leases, read.

use thalweg_engine::{Entry, Expiry, Keyspace};
use thalweg_types::{KeyspaceId, LeaseId, Revision};
use thalweg_wire::{self as wire, Get, Rest};

use super::{
    failure::Failure,
    request::{Handled, Request, Turn},
};
use crate::app::App;

/// `remaining` of what does not end.
const NEVER: u64 = u64::MAX;

/// `get`
pub fn get(turn: &mut Turn<'_>, request: &Request<'_>, get: &Get<'_>) -> Result<Handled, Failure> {
    let keyspace = keyspace(turn.app, get.keyspace)?;
    let found = look(turn.app, &keyspace, get.revision, get.values, get.key.0)?;
    // Asked after the read, so that it covers what was read.
    let durability = turn.app.db.blocking().visible_durability();
    let Found { revision, remaining, lease, value_bytes, value } = found;
    turn.out
        .reply(request.id, &wire::Value { durability, revision, remaining, lease, value_bytes, value: Rest(&value) })?;
    Ok(Handled::Replied)
}

/// The keyspace that a request names.
fn keyspace(app: &App, id: KeyspaceId) -> Result<Keyspace, Failure> {
    app.db.blocking().keyspace_by_id(id).ok_or_else(|| {
        let message = format!("there is no keyspace with id {id}: it was dropped, ask for its name's id anew");
        Failure::fix("no_such_keyspace", message)
    })
}

/// A key as it was read; revision 0: it has no value.
struct Found {
    revision: Revision,
    remaining: u64,
    lease: LeaseId,
    value_bytes: u64,
    value: bytes::Bytes,
}

impl Found {
    fn nothing() -> Self {
        Self {
            revision: Revision::ZERO,
            remaining: NEVER,
            lease: LeaseId(0),
            value_bytes: 0,
            value: bytes::Bytes::new(),
        }
    }
}

fn look(app: &App, keyspace: &Keyspace, at: Revision, values: wire::Values, key: &[u8]) -> Result<Found, Failure> {
    let (revision, expiry, value_bytes, value) = match (at, values) {
        (Revision::ZERO, wire::Values::Omit) => match keyspace.head(key)? {
            None => return Ok(Found::nothing()),
            Some(head) => (head.revision, head.expiry, head.value_bytes, bytes::Bytes::new()),
        },
        _ => {
            let entry = if at == Revision::ZERO { keyspace.get(key)? } else { keyspace.get_at(key, at)? };
            let Some(Entry { value, revision, expiry }) = entry else { return Ok(Found::nothing()) };
            let bytes = value.len() as u64;
            (revision, expiry, bytes, if values == wire::Values::Include { value } else { bytes::Bytes::new() })
        }
    };
    let remaining = remaining(app, &expiry)?;
    Ok(Found { revision, remaining, lease: expiry.lease.unwrap_or_default(), value_bytes, value })
}

fn remaining(app: &App, expiry: &Expiry) -> Result<u64, Failure> {
    let left = app.db.blocking().remaining(expiry)?;
    Ok(left.map_or(NEVER, |left| u64::try_from(left.as_micros()).unwrap_or(NEVER)))
}
