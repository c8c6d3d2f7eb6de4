//! Notification of key changes for clients blocked in `XREAD` and `XREADGROUP`.
//!
//! Owns: the table of awaited keys, by hash. If two keys have the same hash, a client can be woken without a reason; it
//! then checks its keys and waits on. Does not own the permission to wait, nor its duration.
//!
//! Invariant: a client that registers before it reads misses no change, because each change becomes visible before its
//! notification.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use futures_util::task::AtomicWaker;
use thalweg_engine::{GrownStreams, GrowthListener, stream_key_hash};
use thalweg_redis::{Command, command::Keys};

/// Handle that wakes one task. If the bell is rung while the task does not wait for it, the ring is kept for the task's
/// next poll.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    rung: AtomicBool,
    waker: AtomicWaker,
}

impl Bell {
    /// Wakes the task that polls this bell, now or when the task next polls.
    pub(crate) fn ring(&self) {
        self.rung.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Returns `Ready` if the bell was rung since the last time that this function returned `Ready`.
    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        self.waker.register(cx.waker());
        if self.rung.swap(false, Ordering::AcqRel) { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// Keys that a burst may have changed. (A burst is a list of a client's commands that are committed together.)
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum TouchedKeys {
    /// Any key may have changed. The keys were not recorded, because no client was waiting when the commands were
    /// gathered.
    #[default]
    Any,
    /// Hashes of the keys that the client's commands may have changed.
    Keys(Vec<u64>),
}

type WaitedKey = (usize, u64);

/// Table of all clients that wait in blocking reads, by the keys for which they wait.
#[derive(Debug, Default)]
pub(crate) struct WaitingClients {
    bells: Mutex<HashMap<WaitedKey, Vec<Arc<Bell>>>>,
    /// Number of clients that wait in blocking reads. It is usually 0, and writers then skip the table.
    count: AtomicUsize,
}

impl WaitingClients {
    /// Number of clients that wait in blocking reads.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Registers a client that waits for changes of some keys of a database. From now on, changes of these keys notify
    /// the client.
    pub(crate) fn register<'k>(self: &Arc<Self>, database: usize, keys: impl Iterator<Item = &'k [u8]>) -> Waiter {
        let keys: Vec<WaitedKey> = keys.map(|key| (database, stream_key_hash(key))).collect();
        let bell = Arc::new(Bell::default());
        self.count.fetch_add(1, Ordering::AcqRel);
        let mut bells = self.bells.lock().unwrap_or_else(PoisonError::into_inner);
        for place in &keys {
            bells.entry(*place).or_default().push(Arc::clone(&bell));
        }
        drop(bells);
        Waiter { waiting: Arc::clone(self), keys, bell }
    }

    /// Begins a new record of the keys that the client's commands may change: an empty list, or [`TouchedKeys::Any`] if
    /// no client waits in a blocking read.
    pub(crate) fn touch_none(&self, touched: &mut TouchedKeys) {
        *touched = if self.count() == 0 { TouchedKeys::Any } else { TouchedKeys::Keys(Vec::new()) };
    }

    /// Records the keys that a command may change, if any client waits in a blocking read. `is_first` is true for the
    /// first of the client's commands that are committed together.
    pub(crate) fn touch(&self, touched: &mut TouchedKeys, is_first: bool, command: &Command, arguments: &[&[u8]]) {
        if self.count() == 0 {
            *touched = TouchedKeys::Any;
            return;
        }
        if is_first {
            *touched = TouchedKeys::Keys(Vec::new());
        }
        let TouchedKeys::Keys(keys) = touched else { return };
        if command.keys == Keys::NONE && command.subcommands.is_empty() {
            // The command also changes keys that are not among its arguments, possibly all keys.
            *touched = TouchedKeys::Any;
        } else if may_end_waits(command, arguments) {
            keys.extend(command.keys_of(arguments).map(stream_key_hash));
        }
    }

    /// Notifies the clients that wait for changed keys. The changes must be visible before this call.
    pub(crate) fn changed(&self, database: usize, touched: &TouchedKeys) {
        if self.count() == 0 {
            return;
        }
        let bells = self.bells.lock().unwrap_or_else(PoisonError::into_inner);
        let ring = |waiters: &Vec<Arc<Bell>>| waiters.iter().for_each(|bell| bell.ring());
        match touched {
            TouchedKeys::Any => {
                bells.iter().filter(|((of, _), _)| *of == database).for_each(|(_, waiters)| ring(waiters));
            }
            TouchedKeys::Keys(keys) => keys.iter().filter_map(|key| bells.get(&(database, *key))).for_each(ring),
        }
    }
}

/// Listener that notifies clients in blocking reads of new entries in keyspaces and native streams. The node calls it
/// when it has applied a log entry that adds to streams. Any client of any node may have proposed the log entry.
#[derive(Debug)]
pub(crate) struct AppliedGrowth {
    pub(crate) waiting: Weak<WaitingClients>,
    /// Indexes of the databases whose writes go through the log.
    pub(crate) databases: Vec<usize>,
}

impl GrowthListener for AppliedGrowth {
    fn have_grown(&self, streams: &GrownStreams) {
        let Some(waiting) = self.waiting.upgrade() else { return };
        let touched = match streams {
            GrownStreams::None => return,
            GrownStreams::Keys(keys) => TouchedKeys::Keys(keys.clone()),
            GrownStreams::Any => TouchedKeys::Any,
        };
        self.databases.iter().for_each(|database| waiting.changed(*database, &touched));
    }
}

/// Returns true if a command can end the wait of blocked readers. Such a command adds an entry, or removes a stream or
/// a group. As in Redis, setting the id of a group wakes no reader.
fn may_end_waits(command: &Command, arguments: &[&[u8]]) -> bool {
    match command.name {
        "xack" | "xautoclaim" | "xclaim" | "xdel" | "xreadgroup" | "xsetid" | "xtrim" => false,
        "xgroup" => arguments.get(1).is_some_and(|name| name.eq_ignore_ascii_case(b"destroy")),
        _ => true,
    }
}

/// Registration of a client that waits for changes of keys. Dropping the value ends the registration.
#[derive(Debug)]
pub(crate) struct Waiter {
    waiting: Arc<WaitingClients>,
    keys: Vec<WaitedKey>,
    bell: Arc<Bell>,
}

impl Waiter {
    /// Notifies the client as if one of its keys had changed.
    pub(crate) fn ring(&self) {
        self.bell.ring();
    }

    /// Returns `Ready` if one of the awaited keys may have changed since the last time that this function returned
    /// `Ready`.
    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        self.bell.poll(cx)
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut bells = self.waiting.bells.lock().unwrap_or_else(PoisonError::into_inner);
        for place in &self.keys {
            if let Some(waiters) = bells.get_mut(place) {
                waiters.retain(|bell| !Arc::ptr_eq(bell, &self.bell));
                if waiters.is_empty() {
                    bells.remove(place);
                }
            }
        }
        drop(bells);
        self.waiting.count.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    fn rung(waiter: &Waiter) -> bool {
        waiter.poll(&Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn who_waits_for_a_key_is_told_of_its_changes_only() {
        let waiting = Arc::new(WaitingClients::default());
        let set = thalweg_redis::find(b"set").unwrap();
        let touch = |key: &'static [u8]| {
            let mut touched = TouchedKeys::Any;
            waiting.touch(&mut touched, true, set, &[b"set", key, b"v"]);
            touched
        };
        assert_eq!(touch(b"a"), TouchedKeys::Any, "nobody waits");
        let a = waiting.register(0, [&b"a"[..], b"b"].into_iter());
        let c = waiting.register(0, [&b"c"[..]].into_iter());
        let other = waiting.register(1, [&b"a"[..]].into_iter());
        waiting.changed(0, &touch(b"b"));
        assert_eq!([rung(&a), rung(&a), rung(&c), rung(&other)], [true, false, false, false]);
        waiting.changed(0, &TouchedKeys::Any);
        assert_eq!([rung(&a), rung(&c), rung(&other)], [true, true, false]);
        let applied = AppliedGrowth { waiting: Arc::downgrade(&waiting), databases: vec![0] };
        applied.have_grown(&GrownStreams::Keys(vec![stream_key_hash(b"c")]));
        assert_eq!([rung(&a), rung(&c), rung(&other)], [false, true, false]);
        applied.have_grown(&GrownStreams::Any);
        assert_eq!([rung(&a), rung(&c), rung(&other)], [true, true, false]);
        drop((a, c, other));
        assert_eq!((waiting.count(), waiting.bells.lock().unwrap().len()), (0, 0));
    }
}
