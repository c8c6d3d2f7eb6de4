//! Connected clients, as `CLIENT LIST` shows them and `CLIENT KILL` ends them.
//!
//! Owns: the table of clients by id, what is known of each, that one is to end. Does not own connections.
//! Bounded by the server's bound on connections, and by [`MAX_NAME_BYTES`] for what a client says of itself.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Instant,
};

use super::waiting::Bell;

/// States of [`Client::blocked`].
const LISTENING: u8 = 0;
const BLOCKED: u8 = 1;
const TIMED_OUT: u8 = 2;
const GIVEN_UP: u8 = 3;

/// Longest name that a client gives itself, or its library.
pub(crate) const MAX_NAME_BYTES: usize = 1024;

/// Why a client is to stop waiting before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unblock {
    /// As if its time were up.
    Timeout,
    /// With an error.
    Error,
}

/// What a client has said of itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Said {
    /// `CLIENT SETNAME`
    pub name: String,
    /// `CLIENT SETINFO LIB-NAME`
    pub library: String,
    /// `CLIENT SETINFO LIB-VER`
    pub library_version: String,
}

/// A connection, as others see it.
#[derive(Debug)]
pub(crate) struct Client {
    /// From 1, never used again.
    pub id: u64,
    /// Whose it is.
    pub peer: SocketAddr,
    /// Where it was accepted.
    pub local: SocketAddr,
    /// What it has said of itself.
    pub said: Mutex<Said>,
    /// Number of its database.
    pub database: AtomicU64,
    /// 2 or 3.
    pub protocol: AtomicU64,
    /// Commands queued by `MULTI`, and one; 0 outside of one.
    pub queued: AtomicUsize,
    /// Keys watched.
    pub watched: AtomicUsize,
    /// Whether it waits in a blocking read, and whether it is to go on: see [`Client::unblock`].
    blocked: AtomicU8,
    /// Its subscriptions by name, by pattern, and to sharded channels.
    pub subscribed: [AtomicUsize; 3],
    /// Name of the last command.
    pub last: Mutex<&'static str>,
    /// When something was heard of it, in milliseconds since it came.
    heard: AtomicU64,
    since: Instant,
    killed: AtomicBool,
    has_turn: AtomicBool,
    /// Rung when it is to look whether it was killed, and when it has its turn.
    pub bell: Bell,
}

impl Client {
    /// It is to end.
    pub(crate) fn kill(&self) {
        self.killed.store(true, Relaxed);
        self.bell.ring();
    }

    /// It is its turn to be sent messages.
    pub(crate) fn give_turn(&self) {
        self.has_turn.store(true, Relaxed);
        self.bell.ring();
    }

    /// Whether it was given its turn, which is over with that.
    pub(crate) fn has_turn(&self) -> bool {
        self.has_turn.swap(false, Relaxed)
    }

    /// Whether it is to end.
    pub(crate) fn is_killed(&self) -> bool {
        self.killed.load(Relaxed)
    }

    /// It begins to wait, or does so no longer.
    pub(crate) fn set_blocked(&self, is_blocked: bool) {
        self.blocked.store(if is_blocked { BLOCKED } else { LISTENING }, Relaxed);
    }

    /// Has it stop waiting; false: it does not wait.
    pub(crate) fn unblock(&self, how: Unblock) -> bool {
        let to = match how {
            Unblock::Timeout => TIMED_OUT,
            Unblock::Error => GIVEN_UP,
        };
        let was_blocked = self.blocked.compare_exchange(BLOCKED, to, Relaxed, Relaxed).is_ok();
        if was_blocked {
            self.bell.ring();
        }
        was_blocked
    }

    /// Whether it was told to stop waiting.
    pub(crate) fn take_unblock(&self) -> Option<Unblock> {
        match self.blocked.load(Relaxed) {
            TIMED_OUT => Some(Unblock::Timeout),
            GIVEN_UP => Some(Unblock::Error),
            _ => None,
        }
    }

    /// Whether it is subscribed to anything.
    pub(crate) fn is_subscriber(&self) -> bool {
        self.subscribed.iter().any(|count| count.load(Relaxed) > 0)
    }

    /// Something was heard of it.
    pub(crate) fn heard(&self, now: Instant, last: &'static str) {
        self.heard.store((now - self.since).as_millis() as u64, Relaxed);
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = last;
    }

    /// What it has said of itself.
    pub(crate) fn said(&self) -> Said {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes what it says of itself.
    pub(crate) fn say(&self, change: impl FnOnce(&mut Said)) {
        change(&mut self.said.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Its line of `CLIENT LIST`.
    pub(crate) fn describe(&self, out: &mut String, now: Instant) {
        let Said { name, library, library_version } = self.said();
        let age = now.saturating_duration_since(self.since);
        let idle = (age.as_millis() as u64).saturating_sub(self.heard.load(Relaxed)) / 1000;
        let queued = self.queued.load(Relaxed);
        let mut flags = String::new();
        let is_blocked = self.blocked.load(Relaxed) == BLOCKED;
        for (flag, is) in [('P', self.is_subscriber()), ('x', queued > 0), ('b', is_blocked)] {
            if is {
                flags.push(flag);
            }
        }
        if flags.is_empty() {
            flags.push('N');
        }
        let [sub, psub, ssub] = [0, 1, 2].map(|kind| self.subscribed[kind].load(Relaxed));
        let _ = writeln!(
            out,
            "id={} addr={} laddr={} fd=-1 name={name} age={} idle={idle} flags={flags} db={} sub={sub} psub={psub} ssub={ssub} \
             multi={} watch={} cmd={} user=default redir=-1 resp={} lib-name={library} lib-ver={library_version}",
            self.id,
            self.peer,
            self.local,
            age.as_secs(),
            self.database.load(Relaxed),
            queued as i64 - 1,
            self.watched.load(Relaxed),
            *self.last.lock().unwrap_or_else(PoisonError::into_inner),
            self.protocol.load(Relaxed),
        );
    }
}

/// All clients.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    by_id: Mutex<BTreeMap<u64, Arc<Client>>>,
    last: AtomicU64,
}

impl Clients {
    /// A new one.
    pub(crate) fn add(self: &Arc<Self>, peer: SocketAddr, local: SocketAddr, now: Instant) -> Registered {
        let client = Arc::new(Client {
            id: self.last.fetch_add(1, Relaxed) + 1,
            peer,
            local,
            said: Mutex::default(),
            database: AtomicU64::new(0),
            protocol: AtomicU64::new(2),
            queued: AtomicUsize::new(0),
            watched: AtomicUsize::new(0),
            blocked: AtomicU8::new(LISTENING),
            subscribed: Default::default(),
            last: Mutex::new("NULL"),
            heard: AtomicU64::new(0),
            since: now,
            has_turn: AtomicBool::new(false),
            killed: AtomicBool::new(false),
            bell: Bell::default(),
        });
        self.by_id.lock().unwrap_or_else(PoisonError::into_inner).insert(client.id, Arc::clone(&client));
        Registered { clients: Arc::clone(self), client }
    }

    /// All of them, oldest first.
    pub(crate) fn all(&self) -> Vec<Arc<Client>> {
        self.by_id.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// The one of that number.
    pub(crate) fn of(&self, id: u64) -> Option<Arc<Client>> {
        self.by_id.lock().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    /// How many.
    pub(crate) fn count(&self) -> usize {
        self.by_id.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// A client that is in the table until this is dropped.
#[derive(Debug)]
pub(crate) struct Registered {
    clients: Arc<Clients>,
    /// The client.
    pub client: Arc<Client>,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.clients.by_id.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.client.id);
    }
}
