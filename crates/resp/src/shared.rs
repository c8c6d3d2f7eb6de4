//! State that all Redis clients share, in addition to the state of the server.

use std::sync::Arc;

use thalweg_redis::wire::Trust;
use thalweg_serving::app::App;

use super::{
    client::Clients, cursors::Cursors, databases::Databases, metrics::Metrics, pubsub::Registry, waiting::Waiting,
};

/// State of the Redis protocol.
#[derive(Debug)]
pub struct Resp {
    /// Database, configuration, admission.
    pub(crate) app: Arc<App>,
    /// Databases by number.
    pub(crate) databases: Databases,
    /// Who is connected.
    pub(crate) clients: Arc<Clients>,
    /// Scans under way.
    pub(crate) cursors: Cursors,
    /// Who waits for keys.
    pub(crate) waiting: Arc<Waiting>,
    /// What clients are subscribed to.
    pub(crate) subscriptions: Registry,
    /// Another number each time a server starts.
    pub(crate) run: u64,
    /// Figures.
    pub(crate) metrics: Arc<Metrics>,
}

impl Resp {
    /// Over databases.
    #[must_use]
    pub fn new(app: &Arc<App>, databases: Databases, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            app: Arc::clone(app),
            databases,
            clients: Arc::default(),
            cursors: Cursors::default(),
            waiting: Arc::default(),
            subscriptions: Registry::default(),
            run: app.new_number(),
            metrics,
        })
    }

    /// How far a client is trusted that has just come.
    #[must_use]
    pub(crate) fn first_trust(&self) -> Trust {
        if self.app.config.resp_password.is_set() { Trust::Unknown } else { Trust::Known }
    }
}
