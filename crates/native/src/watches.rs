//! Handlers of requests to watch keys. `watch_source` runs the steps of a watch.

use std::ops::Bound;

use thalweg_engine::WatchKeys;
use thalweg_types::Revision;
use thalweg_wire as wire;

use super::{
    failure::Failure,
    reads::keyspace,
    request::Request,
    subscription::Source,
    turn::{Handled, Turn},
    watch_source::WatchSource,
};

/// Handles a `watch` request: begins a subscription to the changes of keys.
pub(crate) fn watch(turn: &mut Turn<'_>, request: &Request<'_>, watch: &wire::Watch<'_>) -> Result<Handled, Failure> {
    let keyspace = keyspace(turn.app, watch.keyspace)?;
    let from = (watch.from != Revision::ZERO).then_some(watch.from);
    let watch = keyspace.watch(&keys(&watch.keys), from)?;
    let next = watch.position();
    turn.out.reply(request.id, &wire::Watching { next })?;
    Ok(Handled::Began(Source::Watch(Box::new(WatchSource::new(turn.app, watch, next)))))
}

fn keys(keys: &wire::WatchKeys<'_>) -> WatchKeys {
    let bound = |key: Option<&[u8]>| key.map(<[u8]>::to_vec);
    match *keys {
        wire::WatchKeys::Key { key } => WatchKeys::Key(key.to_vec()),
        wire::WatchKeys::Prefix { prefix } => WatchKeys::Prefix(prefix.to_vec()),
        wire::WatchKeys::Range { start, end } => WatchKeys::Range(
            bound(start).map_or(Bound::Unbounded, Bound::Included),
            bound(end).map_or(Bound::Unbounded, Bound::Excluded),
        ),
    }
}
