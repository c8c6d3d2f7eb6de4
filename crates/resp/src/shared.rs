//! State that all Redis clients share, in addition to the state of the server.

use std::sync::Arc;

use thalweg_redis::wire::Trust;
use thalweg_serving::app::App;

use super::{
    auth_failures::AuthFailures,
    client::Clients,
    cursors::Cursors,
    databases::{Databases, Numbered},
    metrics::Metrics,
    pubsub::Registry,
    waiting::{AppliedGrowth, WaitingClients},
};

/// State of the Redis protocol that all its connections share.
#[derive(Debug)]
pub struct Resp {
    /// State of the server: database, configuration, admission.
    pub(crate) app: Arc<App>,
    /// All databases that clients can choose with `SELECT`.
    pub(crate) databases: Databases,
    /// Table of all connected Redis clients.
    pub(crate) clients: Arc<Clients>,
    /// Table that maps the numeric cursors of scans in progress to positions in databases.
    pub(crate) cursors: Cursors,
    /// Clients that wait in blocking reads for changes of keys.
    pub(crate) waiting: Arc<WaitingClients>,
    /// Table of channel subscriptions of all clients.
    pub(crate) subscriptions: Registry,
    /// Failed attempts to authenticate, which delay further attempts from their addresses.
    pub(crate) auth_failures: AuthFailures,
    /// Number that identifies this run of the server, from its start to its stop. Each start chooses another number.
    pub(crate) run: u64,
    /// Metrics of Redis clients.
    pub(crate) metrics: Arc<Metrics>,
}

impl Resp {
    /// Creates the state of the Redis protocol over these databases.
    #[must_use]
    pub fn new(app: &Arc<App>, databases: Databases, metrics: Arc<Metrics>) -> Arc<Self> {
        let waiting = Arc::<WaitingClients>::default();
        let is_durable = |(at, numbered): (usize, &Numbered)| numbered.database.is_durable().then_some(at);
        let durable = databases.list.iter().enumerate().filter_map(is_durable).collect();
        let growth = AppliedGrowth { waiting: Arc::downgrade(&waiting), databases: durable };
        app.db.blocking().listen_to_stream_growth(Arc::new(growth));
        Arc::new(Self {
            app: Arc::clone(app),
            databases,
            clients: Arc::default(),
            cursors: Cursors::default(),
            waiting,
            subscriptions: Registry::default(),
            auth_failures: AuthFailures::default(),
            run: app.new_number(),
            metrics,
        })
    }

    /// Returns the authentication state of a new client. It is `Known` if no password is configured, and otherwise
    /// `Unknown`.
    #[must_use]
    pub(crate) fn first_trust(&self) -> Trust {
        if self.app.config.resp_password.is_set() { Trust::Unknown } else { Trust::Known }
    }
}
