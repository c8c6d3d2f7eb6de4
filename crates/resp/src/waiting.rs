//! Who waits for keys to change: clients blocked in `XREAD` and `XREADGROUP`.
//!
//! Owns: which keys are waited for, by their hashes (one that collides wakes somebody who looks and waits on). Does not
//! own who may wait, nor for how long.
//!
//! Invariant: whoever registers before it looks misses no change: a change is told after it can be seen.

use std::{
    collections::{HashMap, hash_map::RandomState},
    hash::BuildHasher,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use futures_util::task::AtomicWaker;
use thalweg_redis::{Command, command::Keys};

/// Wakes one task. A ring that comes before somebody listens is kept.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    rung: AtomicBool,
    waker: AtomicWaker,
}

impl Bell {
    /// Wakes it.
    pub(crate) fn ring(&self) {
        self.rung.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Ready when it was rung since it was last ready.
    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        self.waker.register(cx.waker());
        if self.rung.swap(false, Ordering::AcqRel) { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// Which keys a burst may have changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Touched {
    /// None, or nobody waited yet when it was put together: all.
    #[default]
    Any,
    /// These, by their hashes.
    Keys(Vec<u64>),
}

type Place = (usize, u64);

/// All who wait.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    bells: Mutex<HashMap<Place, Vec<Arc<Bell>>>>,
    /// How many wait: most of the time nobody does, and nobody need look.
    count: AtomicUsize,
    random: RandomState,
}

impl Waiting {
    /// How many wait.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Waits for changes of keys of a database, from now on.
    pub(crate) fn register<'k>(self: &Arc<Self>, database: usize, keys: impl Iterator<Item = &'k [u8]>) -> Waiter {
        let places: Vec<Place> = keys.map(|key| (database, self.random.hash_one(key))).collect();
        let bell = Arc::new(Bell::default());
        self.count.fetch_add(1, Ordering::AcqRel);
        let mut bells = self.bells.lock().unwrap_or_else(PoisonError::into_inner);
        for place in &places {
            bells.entry(*place).or_default().push(Arc::clone(&bell));
        }
        drop(bells);
        Waiter { waiting: Arc::clone(self), places, bell }
    }

    /// Remembers which keys a command touches, if somebody waits.
    pub(crate) fn touch(&self, touched: &mut Touched, is_first: bool, command: &Command, arguments: &[&[u8]]) {
        if self.count() == 0 {
            *touched = Touched::Any;
            return;
        }
        if is_first {
            *touched = Touched::Keys(Vec::new());
        }
        let Touched::Keys(keys) = touched else { return };
        if command.keys == Keys::NONE && command.subcommands.is_empty() {
            // It changes what it does not name: everything.
            *touched = Touched::Any;
        } else if gives(command, arguments) {
            keys.extend(command.keys_of(arguments).map(|key| self.random.hash_one(key)));
        }
    }

    /// Keys of a database have changed, and whoever looks sees it.
    pub(crate) fn changed(&self, database: usize, touched: &Touched) {
        if self.count() == 0 {
            return;
        }
        let bells = self.bells.lock().unwrap_or_else(PoisonError::into_inner);
        let ring = |waiters: &Vec<Arc<Bell>>| waiters.iter().for_each(|bell| bell.ring());
        match touched {
            Touched::Any => bells.iter().filter(|((of, _), _)| *of == database).for_each(|(_, waiters)| ring(waiters)),
            Touched::Keys(keys) => keys.iter().filter_map(|key| bells.get(&(database, *key))).for_each(ring),
        }
    }
}

/// Whether readers that wait can have something of it: an entry, or the end of what they wait for. In Redis, too, a group
/// that is set back wakes nobody.
fn gives(command: &Command, arguments: &[&[u8]]) -> bool {
    match command.name {
        "xack" | "xautoclaim" | "xclaim" | "xdel" | "xreadgroup" | "xsetid" | "xtrim" => false,
        "xgroup" => arguments.get(1).is_some_and(|name| name.eq_ignore_ascii_case(b"destroy")),
        _ => true,
    }
}

/// Somebody who waits. Dropping it ends that.
#[derive(Debug)]
pub(crate) struct Waiter {
    waiting: Arc<Waiting>,
    places: Vec<Place>,
    bell: Arc<Bell>,
}

impl Waiter {
    /// As if a key had changed.
    pub(crate) fn ring(&self) {
        self.bell.ring();
    }

    /// Ready when one of the keys may have changed since it was last ready.
    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        self.bell.poll(cx)
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut bells = self.waiting.bells.lock().unwrap_or_else(PoisonError::into_inner);
        for place in &self.places {
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
        let waiting = Arc::new(Waiting::default());
        let set = thalweg_redis::find(b"set").unwrap();
        let touch = |key: &'static [u8]| {
            let mut touched = Touched::Any;
            waiting.touch(&mut touched, true, set, &[b"set", key, b"v"]);
            touched
        };
        assert_eq!(touch(b"a"), Touched::Any, "nobody waits");
        let a = waiting.register(0, [&b"a"[..], b"b"].into_iter());
        let c = waiting.register(0, [&b"c"[..]].into_iter());
        let other = waiting.register(1, [&b"a"[..]].into_iter());
        waiting.changed(0, &touch(b"b"));
        assert_eq!([rung(&a), rung(&a), rung(&c), rung(&other)], [true, false, false, false]);
        waiting.changed(0, &Touched::Any);
        assert_eq!([rung(&a), rung(&c), rung(&other)], [true, true, false]);
        drop((a, c, other));
        assert_eq!((waiting.count(), waiting.bells.lock().unwrap().len()), (0, 0));
    }
}
