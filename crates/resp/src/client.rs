//! Connected clients. `CLIENT LIST` shows them, and `CLIENT KILL` ends their connections.
//!
//! Owns: the table of clients by id, the data about each client, and the request to end its connection. Does not own
//! connections. Bounds: the server's limit on connections, and [`MAX_NAME_BYTES`] for each name that a client sets.

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

/// Value of [`Client::blocked`] for a client that is not blocked in a read. The other values mean: blocked in a read
/// (`BLOCKED`), in a read that must end as after a timeout (`TIMED_OUT`), and in a read that must end with an error
/// (`GIVEN_UP`).
const LISTENING: u8 = 0;
const BLOCKED: u8 = 1;
const TIMED_OUT: u8 = 2;
const GIVEN_UP: u8 = 3;

/// Maximum size in bytes of a client's name, library name and library version.
pub(crate) const MAX_NAME_BYTES: usize = 1024;

/// Way in which a blocking read ends that another client ends with `CLIENT UNBLOCK`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unblock {
    /// The blocking read ends as if its timeout had expired.
    Timeout,
    /// The blocking read ends with an error reply.
    Error,
}

/// Names that a Redis client has set for itself and its library.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClientNames {
    /// Name of the client, set with `CLIENT SETNAME`.
    pub name: String,
    /// Name of the client's library, set with `CLIENT SETINFO LIB-NAME`.
    pub library: String,
    /// Version of the client's library, set with `CLIENT SETINFO LIB-VER`.
    pub library_version: String,
}

/// Data about a connected client that other connections can read, for example for `CLIENT LIST`.
#[derive(Debug)]
pub(crate) struct Client {
    /// Id of the client, counted from 1 and never reused.
    pub id: u64,
    /// Remote address of the client.
    pub peer: SocketAddr,
    /// Address of the server to which the client has connected.
    pub local: SocketAddr,
    /// Names that the client has set for itself and its library.
    pub names: Mutex<ClientNames>,
    /// Number of the database that the client has selected.
    pub database: AtomicU64,
    /// Version of the Redis protocol that the client uses: 2 or 3.
    pub protocol: AtomicU64,
    /// Number of commands that the client has queued since `MULTI`, plus one; 0 outside of a transaction.
    pub queued: AtomicUsize,
    /// Number of keys that the client watches with `WATCH`.
    pub watched: AtomicUsize,
    /// State of the client's blocking read. Other clients can request its end here: see [`Client::unblock`].
    blocked: AtomicU8,
    /// Numbers of the client's subscriptions to channels, to patterns, and to sharded channels.
    pub subscribed: [AtomicUsize; 3],
    /// Name of the last command that the client sent.
    pub last: Mutex<&'static str>,
    /// Time of the client's last request, in milliseconds from the start of the connection.
    heard: AtomicU64,
    since: Instant,
    killed: AtomicBool,
    has_turn: AtomicBool,
    /// Handle that wakes the connection's task. It is rung when another client kills this client, and when it is this
    /// client's turn to receive messages.
    pub bell: Bell,
}

impl Client {
    /// Requests the end of the client's connection.
    pub(crate) fn kill(&self) {
        self.killed.store(true, Relaxed);
        self.bell.ring();
    }

    /// Gives the client its turn to receive messages of its subscriptions, and wakes the client's task.
    pub(crate) fn give_turn(&self) {
        self.has_turn.store(true, Relaxed);
        self.bell.ring();
    }

    /// Returns true if it is the client's turn to receive messages of its subscriptions. Ends the turn.
    pub(crate) fn has_turn(&self) -> bool {
        self.has_turn.swap(false, Relaxed)
    }

    /// Returns true if the end of the client's connection was requested.
    pub(crate) fn is_killed(&self) -> bool {
        self.killed.load(Relaxed)
    }

    /// Records that the client's blocking read begins or ends.
    pub(crate) fn set_blocked(&self, is_blocked: bool) {
        self.blocked.store(if is_blocked { BLOCKED } else { LISTENING }, Relaxed);
    }

    /// Requests the end of the client's blocking read. Returns false if the client is not blocked in a read.
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

    /// Returns the way in which the client's blocking read must end; `None` if no other client has requested its end.
    pub(crate) fn take_unblock(&self) -> Option<Unblock> {
        match self.blocked.load(Relaxed) {
            TIMED_OUT => Some(Unblock::Timeout),
            GIVEN_UP => Some(Unblock::Error),
            _ => None,
        }
    }

    /// Returns true if the client has any subscription.
    pub(crate) fn is_subscriber(&self) -> bool {
        self.subscribed.iter().any(|count| count.load(Relaxed) > 0)
    }

    /// Records the time and the name of the client's last command.
    pub(crate) fn record_command(&self, now: Instant, last: &'static str) {
        self.heard.store((now - self.since).as_millis() as u64, Relaxed);
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = last;
    }

    /// Returns the names that the client has set for itself and its library.
    pub(crate) fn names(&self) -> ClientNames {
        self.names.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes the names that the client has set for itself and its library.
    pub(crate) fn update_names(&self, change: impl FnOnce(&mut ClientNames)) {
        change(&mut self.names.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Appends the line about this client that `CLIENT LIST` shows.
    pub(crate) fn describe(&self, out: &mut String, now: Instant) {
        let ClientNames { name, library, library_version } = self.names();
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

/// Table of all connected Redis clients.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    by_id: Mutex<BTreeMap<u64, Arc<Client>>>,
    last: AtomicU64,
}

impl Clients {
    /// Adds a new client to the table of connected clients. `peer` is the client's address, and `local` the server's.
    pub(crate) fn add(self: &Arc<Self>, peer: SocketAddr, local: SocketAddr, now: Instant) -> Registered {
        let client = Arc::new(Client {
            id: self.last.fetch_add(1, Relaxed) + 1,
            peer,
            local,
            names: Mutex::default(),
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

    /// Returns all connected clients, oldest first.
    pub(crate) fn all(&self) -> Vec<Arc<Client>> {
        self.by_id.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Returns the connected client with the id `id`; `None` if there is none.
    pub(crate) fn of(&self, id: u64) -> Option<Arc<Client>> {
        self.by_id.lock().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    /// Number of connected Redis clients.
    pub(crate) fn count(&self) -> usize {
        self.by_id.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// A client in the table of connected clients. Dropping this value removes the client from the table.
#[derive(Debug)]
pub(crate) struct Registered {
    clients: Arc<Clients>,
    /// The registered client.
    pub client: Arc<Client>,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.clients.by_id.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.client.id);
    }
}
