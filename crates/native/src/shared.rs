//! State that all native connections share, in addition to the state of the server.

use std::sync::Arc;

use thalweg_serving::app::App;

use super::metrics::Metrics;

/// State of the native protocol that all its connections share.
#[derive(Debug)]
pub struct Native {
    /// State of the server that all protocols share: database, configuration, admission.
    pub(crate) app: Arc<App>,
    /// Number that differs after each start of the server. Ids of caches are valid only until the next start.
    pub(crate) run: u64,
    /// Metrics of native connections and requests.
    pub(crate) metrics: Arc<Metrics>,
}

impl Native {
    /// Creates the state of the native protocol for a server.
    #[must_use]
    pub fn new(app: &Arc<App>, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self { app: Arc::clone(app), run: app.new_number(), metrics })
    }
}
