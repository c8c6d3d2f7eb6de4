//! Watches: changes of keys as they happen, without gap or duplicate, over lost connections too.

use bytes::Bytes;
use thalweg_types::{Durability, KeyspaceId, Revision, SpaceTime};
use thalweg_wire::{self as wire, ChangeKind, Frame, Permit, SharedFrame, WatchKeys};

use crate::{
    error::{Error, Invalid, ProtocolError},
    keyspace::Keyspace,
    mailbox::Item,
    options::Window,
    request::reply_of,
    subscription::{Event, Feed, Source},
    write::fits,
};

/// Which keys a watch is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Watched {
    /// One key.
    Key(Vec<u8>),
    /// All that begin with a prefix; the empty one for all.
    Prefix(Vec<u8>),
    /// All from one key up to and without another.
    Range {
        /// The lowest.
        start: Option<Vec<u8>>,
        /// The first above.
        end: Option<Vec<u8>>,
    },
}

/// A change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// What happened.
    pub kind: ChangeKind,
    /// Of the commit that made it.
    pub revision: Revision,
    /// When.
    pub time: SpaceTime,
    /// The key, or the prefix.
    pub key: Bytes,
    /// The value; empty if there is none.
    pub value: Bytes,
}

/// Changes that came together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// The level of all that they show.
    pub durability: Durability,
    /// A watch from here on goes on without a gap.
    pub next: Revision,
    /// In order. None: nothing below `next` was missed.
    pub changes: Vec<Change>,
}

impl Keyspace {
    /// Every change from a revision on (0: from now on), past or to come.
    pub async fn watch(&self, keys: Watched, from: Revision) -> Result<Watch, Error> {
        let window = self.client().options().window;
        self.watch_with(keys, from, window).await
    }

    /// The same with a window of its own.
    pub async fn watch_with(&self, keys: Watched, from: Revision, window: Window) -> Result<Watch, Error> {
        let feed = crate::named::with_id!(self, crate::keyspace::MISSING, keyspace => async {
            let source = WatchSource { keyspace, keys: keys.clone(), from, seen: 0, skip: 0 };
            Feed::begin(self.client(), window, source).await
        })?;
        Ok(Watch { feed })
    }
}

#[derive(Debug)]
struct WatchSource {
    keyspace: KeyspaceId,
    keys: Watched,
    /// Begin again with this revision.
    from: Revision,
    /// Changes of the commit at `from` that were given already: it is so large that its frames are several.
    seen: u64,
    /// So many of them are not to be given again.
    skip: u64,
}

impl Source for WatchSource {
    fn request(&self, out: &mut Vec<u8>, id: u32, permit: Permit) -> Result<(), Invalid> {
        let keys = match &self.keys {
            Watched::Key(key) => WatchKeys::Key { key },
            Watched::Prefix(prefix) => WatchKeys::Prefix { prefix },
            Watched::Range { start, end } => WatchKeys::Range { start: start.as_deref(), end: end.as_deref() },
        };
        fits(wire::Watch { keyspace: self.keyspace, from: self.from, permit, keys }.encode(out, id))
    }

    fn begun(&mut self, frame: &SharedFrame) -> Result<(), Error> {
        let wire::Watching { next } = reply_of(frame)?;
        if self.from == Revision(0) {
            self.from = next; // `now` has become a place
        }
        self.skip = self.seen;
        Ok(())
    }
}

impl WatchSource {
    /// What of a frame's changes is new, and where to go on.
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

/// Changes as they come. After a lost connection it goes on where it was. Errors are those that beginning again does not
/// help against, such as `compacted`.
#[derive(Debug)]
pub struct Watch {
    feed: Feed<WatchSource>,
}

impl Watch {
    /// The next changes, or none and how far nothing was missed; `None`: it has ended. Cancel safe.
    pub async fn next(&mut self) -> Result<Option<Changes>, Error> {
        loop {
            let Some(event) = self.feed.next().await? else { return Ok(None) };
            match event {
                Event::Resumed => {}
                Event::Item(Item::Frame(frame, counts)) => {
                    let changes = self.feed.source.take(&frame)?;
                    if counts.messages == 0 || !changes.changes.is_empty() {
                        return Ok(Some(changes));
                    }
                }
                Event::Item(_) => return Err(Error::Protocol(ProtocolError::WrongReply { kind: 0 })),
            }
        }
    }

    /// From here a later watch goes on after the last changes that this one has given.
    #[must_use]
    pub fn position(&self) -> Revision {
        self.feed.source.from
    }
}
