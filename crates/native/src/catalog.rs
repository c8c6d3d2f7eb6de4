//! Handlers that look up and list keyspaces, streams, producers and leases, by name or id.

use std::sync::Arc;

use thalweg_engine::{DEFAULT_STATS_KEYS, LeaseKey};
use thalweg_serving::{
    admission::Resource,
    error::{no_such_keyspace, no_such_stream},
    limits::{DEFAULT_LEASE_KEYS, MAX_LEASE_KEYS_SHOWN},
};
use thalweg_types::{LeaseId, limits::MAX_STREAM_PRODUCERS};
use thalweg_wire::{self as wire, Count, KeyspaceFound, KeyspaceList, LeaseFound, LeaseList, List, StreamFound};

use super::{
    blocking::run_blocking,
    failure::Failure,
    reads::{LISTED_BYTES, inline_or_blocking, listed},
    replies::Replies,
    request::Request,
    turn::{Handled, Reply, Turn},
};

/// Handles a `find keyspace` request: replies with the id and configuration of a keyspace and, if requested, its size.
pub(crate) fn find_keyspace(
    turn: &mut Turn<'_>,
    request: &Request<'_>,
    wanted: &wire::FindKeyspace<'_>,
) -> Result<Handled, Failure> {
    let keyspace = turn.app.find_keyspace(wanted.name)?;
    let found = keyspace.info().ok_or_else(|| no_such_keyspace(wanted.name))?;
    if wanted.count == Count::Skip {
        turn.out.reply(request.id, &KeyspaceFound { keyspace: found, counts: None })?;
        return Ok(Handled::Replied);
    }
    // Counting costs at most as much as a scan, so it is admitted like a scan.
    let held = turn.account.take(Resource::Scans, 1);
    let held = held.ok_or_else(|| Failure::overloaded("too many scans at a time: retry later"))?;
    let app = Arc::clone(turn.app);
    Ok(Handled::later(async move {
        let count = move || Ok(keyspace.stats(DEFAULT_STATS_KEYS)?);
        let counts = run_blocking(&app, held.account(), 0, count).await?;
        drop(held);
        Ok(Reply::encode(move |out, id| out.reply(id, &KeyspaceFound { keyspace: found, counts: Some(counts) })))
    }))
}

/// Handles a `list keyspaces` request: replies with a page of keyspaces in the order of their ids.
pub(crate) fn list_keyspaces(
    turn: &mut Turn<'_>,
    request: &Request<'_>,
    wanted: &wire::ListKeyspaces,
) -> Result<Handled, Failure> {
    let (limit, after, app) = (listed(wanted.limit), wanted.after, Arc::clone(turn.app));
    inline_or_blocking(turn, request, limit, LISTED_BYTES * limit, move || {
        let mut found = app.db.blocking().keyspaces_after(after, limit.saturating_add(1));
        let more = found.len() > limit;
        found.truncate(limit);
        Ok(move |out: &mut Replies, id: u32| out.reply(id, &KeyspaceList { more, keyspaces: List::Items(&found) }))
    })
}

/// Handles a `find stream` request: replies with the description of a stream.
pub(crate) fn find_stream(
    turn: &mut Turn<'_>,
    request: &Request<'_>,
    wanted: &wire::FindStream<'_>,
) -> Result<Handled, Failure> {
    let stream = turn.app.db.blocking().find_stream(wanted.name).ok_or_else(|| no_such_stream(wanted.name))?;
    turn.out.reply(request.id, &StreamFound { stream: stream.info()? })?;
    Ok(Handled::Replied)
}

/// Handles a `list streams` request: replies with a page of streams in the order of their ids.
pub(crate) fn list_streams(
    turn: &mut Turn<'_>,
    request: &Request<'_>,
    wanted: &wire::ListStreams,
) -> Result<Handled, Failure> {
    let (limit, app) = (listed(wanted.limit), Arc::clone(turn.app));
    let after = (wanted.after.0 != 0).then_some(wanted.after);
    inline_or_blocking(turn, request, limit, LISTED_BYTES * limit, move || {
        let mut found = app.db.blocking().streams_after(after, limit.saturating_add(1));
        let more = found.len() > limit;
        found.truncate(limit);
        Ok(move |out: &mut Replies, id: u32| out.reply(id, &wire::StreamList { more, streams: List::Items(&found) }))
    })
}

/// Handles a `list producers` request: replies with one producer of a stream, or with all its producers.
pub(crate) fn list_producers(
    turn: &mut Turn<'_>,
    request: &Request<'_>,
    wanted: &wire::ListProducers<'_>,
) -> Result<Handled, Failure> {
    let (app, stream, producer) = (Arc::clone(turn.app), wanted.stream, wanted.producer.to_owned());
    let most = if producer.is_empty() { MAX_STREAM_PRODUCERS as usize } else { 1 };
    inline_or_blocking(turn, request, most, LISTED_BYTES * most, move || {
        let stream = app.db.blocking().stream_by_id(stream);
        let found = match producer.is_empty() {
            true => stream.producers()?,
            false => stream.producer_info(&producer)?.into_iter().collect(),
        };
        Ok(move |out: &mut Replies, id: u32| out.reply(id, &wire::ProducerList { producers: List::Items(&found) }))
    })
}

/// Handles a `find lease` request: replies with a lease and the keys attached to it.
pub(crate) fn find_lease(
    turn: &mut Turn<'_>,
    request: &Request<'_>,
    wanted: &wire::FindLease,
) -> Result<Handled, Failure> {
    let limit = if wanted.limit == 0 { DEFAULT_LEASE_KEYS } else { wanted.limit as usize }.min(MAX_LEASE_KEYS_SHOWN);
    let (app, lease) = (Arc::clone(turn.app), wanted.lease);
    inline_or_blocking(turn, request, limit, LISTED_BYTES * limit, move || {
        let leases = app.db.blocking().leases();
        let info = leases.get(lease)?.ok_or_else(|| no_such_lease(lease))?;
        let mut found = leases.keys(lease, limit + 1)?.ok_or_else(|| no_such_lease(lease))?;
        let more = found.len() > limit;
        found.truncate(limit);
        let durability = app.db.blocking().visible_durability();
        Ok(move |out: &mut Replies, id: u32| {
            let keys: Vec<_> = found.iter().map(shown_key).collect();
            out.states(durability);
            out.reply(id, &LeaseFound { durability, lease: wire::Lease::from(&info), more, keys: List::Items(&keys) })
        })
    })
}

fn shown_key(attached: &LeaseKey) -> wire::LeaseKey<'_> {
    wire::LeaseKey { keyspace: &attached.keyspace, key: &attached.key }
}

fn no_such_lease(lease: LeaseId) -> Failure {
    Failure::from(thalweg_engine::WriteError::NoSuchLease(lease))
}

/// Handles a `list leases` request: replies with a page of leases in the order of their ids.
pub(crate) fn list_leases(
    turn: &mut Turn<'_>,
    request: &Request<'_>,
    wanted: &wire::ListLeases,
) -> Result<Handled, Failure> {
    let (limit, app) = (listed(wanted.limit), Arc::clone(turn.app));
    let after = (wanted.after.0 != 0).then_some(wanted.after);
    inline_or_blocking(turn, request, limit, LISTED_BYTES * limit, move || {
        let mut found = app.db.blocking().leases().list(after, limit.saturating_add(1))?;
        let more = found.len() > limit;
        found.truncate(limit);
        let durability = app.db.blocking().visible_durability();
        Ok(move |out: &mut Replies, id: u32| {
            let leases: Vec<_> = found.iter().map(wire::Lease::from).collect();
            out.states(durability);
            out.reply(id, &LeaseList { durability, more, leases: List::Items(&leases) })
        })
    })
}
