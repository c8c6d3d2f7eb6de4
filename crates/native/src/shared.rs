//! State that all native connections share, in addition to the state of the server.

use std::sync::Arc;

use thalweg_serving::app::App;

use super::metrics::Metrics;

/// State of the native protocol.
#[derive(Debug)]
pub struct Native {
    /// Database, configuration, admission.
    pub(crate) app: Arc<App>,
    /// Another number each time a server starts: ids of caches are of a run.
    pub(crate) run: u64,
    /// Figures.
    pub(crate) metrics: Arc<Metrics>,
}

impl Native {
    /// Over an app.
    #[must_use]
    pub fn new(app: &Arc<App>, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self { app: Arc::clone(app), run: app.new_number(), metrics })
    }
}
