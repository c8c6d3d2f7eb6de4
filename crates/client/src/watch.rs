//! Watches: the client receives changes of keys as they happen, without gaps or duplicates, also after lost
//! connections.

use bytes::Bytes;
use thalweg_types::{Durability, KeyspaceId, Revision, SpaceTime};
use thalweg_wire::{self as wire, ChangeKind, Fields, Frame as _, Permit, SharedFrame, WatchKeys};

use crate::{
    error::{Error, Invalid},
    keyspace::Keyspace,
    options::Window,
    request::reply_of,
    subscription::{Feed, Source},
};

/// Selection of the keys that a watch observes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Watched {
    /// The watch observes a single key.
    Key(Vec<u8>),
    /// All keys that begin with a prefix. The empty prefix selects all keys.
    Prefix(Vec<u8>),
    /// All keys of a half-open range, from `start` to below `end`.
    Range {
        /// Lowest key, inclusive; `None` for no lower bound.
        start: Option<Vec<u8>>,
        /// Upper bound, exclusive; `None` for no upper bound.
        end: Option<Vec<u8>>,
    },
}

/// A change of one key, or of all keys with a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Kind of the change, such as a put or a delete.
    pub kind: ChangeKind,
    /// Revision of the commit that made the change.
    pub revision: Revision,
    /// Timestamp of the commit that made the change, by the cluster's own clock (space time).
    pub time: SpaceTime,
    /// Key that changed; for a deletion by prefix, the prefix.
    pub key: Bytes,
    /// New value of the key; empty if the key has none any more.
    pub value: Bytes,
}

/// Changes of keys that arrived together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// Durability level that all these changes have reached.
    pub durability: Durability,
    /// Revision at which a new watch must begin to continue without a gap.
    pub next: Revision,
    /// Changes in the order of their revisions. If the list is empty, no change of the watched keys happened
    /// below revision `next`.
    pub changes: Vec<Change>,
}

impl Keyspace {
    /// Subscribes to every change of the keys from revision `from` on, both past and future changes. 0 begins with the
    /// next change.
    pub async fn watch(&self, keys: Watched, from: Revision) -> Result<Watch, Error> {
        let window = self.client().options().window;
        self.watch_with(keys, from, window).await
    }

    /// Watches keys like [`watch`](Self::watch), with a window of its own instead of the client's default.
    pub async fn watch_with(&self, keys: Watched, from: Revision, window: Window) -> Result<Watch, Error> {
        let source = |id| WatchSource { keyspace: KeyspaceId(id), keys: keys.clone(), from, seen: 0, skip: 0 };
        let feed =
            self.0.with_id(|known| Feed::begin(self.client(), window, Some(known.data), source(known.id))).await?;
        Ok(Watch { feed })
    }
}

#[derive(Debug)]
struct WatchSource {
    keyspace: KeyspaceId,
    keys: Watched,
    /// Revision at which to resume the watch after a lost connection.
    from: Revision,
    /// Number of changes of the commit at revision `from` that the watch has already returned. A large commit arrives
    /// in several frames.
    seen: u64,
    /// Number of changes of the commit at revision `from` to skip after resuming, because the watch has already
    /// returned them.
    skip: u64,
}

impl Source for WatchSource {
    fn request(&self, out: &mut Vec<u8>, id: u32, fields: &Fields<'_>, permit: Permit) -> Result<(), Invalid> {
        let keys = match &self.keys {
            Watched::Key(key) => WatchKeys::Key { key },
            Watched::Prefix(prefix) => WatchKeys::Prefix { prefix },
            Watched::Range { start, end } => WatchKeys::Range { start: start.as_deref(), end: end.as_deref() },
        };
        Ok(wire::Watch { keyspace: self.keyspace, from: self.from, permit, keys }.encode_with(out, id, fields)?)
    }

    fn begun(&mut self, frame: &SharedFrame) -> Result<(), Error> {
        let wire::Watching { next } = reply_of(frame)?;
        if self.from == Revision(0) {
            self.from = next; // "from now on" has become a fixed revision
        }
        self.skip = self.seen;
        Ok(())
    }
}

impl WatchSource {
    /// Returns the changes of a frame that the watch has not returned before. Advances the position at which the watch
    /// would resume.
    fn take(&mut self, frame: &SharedFrame) -> Result<Changes, Error> {
        let wire::Changes { durability, next, changes } = reply_of(frame)?;
        let mut new = Vec::with_capacity(changes.len());
        for change in changes.iter() {
            if self.skip > 0 && change.revision == self.from {
                self.skip -= 1;
                continue;
            }
            let wire::Change { kind, revision, time, key, value } = change;
            new.push(Change { kind, revision, time, key: frame.share(key), value: frame.share(value) });
        }
        let of_next = new.iter().filter(|change| change.revision == next).count() as u64;
        self.seen = if next == self.from { self.seen + of_next } else { of_next };
        if next != self.from {
            self.skip = 0;
        }
        self.from = next;
        Ok(Changes { durability, next, changes: new })
    }
}

/// Receives changes of keys as they arrive. The watch resumes after a lost connection. It returns only errors
/// for which a retry does not help, such as `compacted`.
#[derive(Debug)]
pub struct Watch {
    feed: Feed<WatchSource>,
}

impl Watch {
    /// Waits for the next changes of the watched keys; `None` if the watch has ended. An empty list reports
    /// only that the watch has progressed. Cancel safe.
    pub async fn next(&mut self) -> Result<Option<Changes>, Error> {
        while let Some((frame, counts)) = self.feed.next_frame().await? {
            let changes = self.feed.source.take(&frame)?;
            if counts.messages == 0 || !changes.changes.is_empty() {
                return Ok(Some(changes));
            }
        }
        Ok(None)
    }

    /// Revision at which a later watch must begin to continue after the last changes that this watch has
    /// returned.
    #[must_use]
    pub fn position(&self) -> Revision {
        self.feed.source.from
    }
}
