//! State that all HTTP requests share, in addition to the state of the server.

use std::sync::Arc;

use prometheus_client::{collector::Collector, registry::Registry};
use thalweg_serving::app::App;
use tokio::sync::Semaphore;

use crate::{
    metrics::{RequestCollector, Requests},
    metrics_page::MetricsPage,
    snapshot::Snapshots,
};

/// State of the HTTP server.
#[derive(Debug)]
pub struct Http {
    /// State that all protocols of the server share.
    pub app: Arc<App>,
    /// Counters and histograms of requests.
    pub(crate) requests: Arc<Requests>,
    /// Snapshots that clients may resume.
    pub(crate) snapshots: Arc<Snapshots>,
    /// Semaphore with one permit: only one digest of the state is computed at a time.
    pub(crate) digests: Arc<Semaphore>,
    /// Semaphore with one permit: only one report about disk space is made at a time.
    pub(crate) spaces: Arc<Semaphore>,
    /// All metrics of the server, for `/metrics`.
    pub(crate) metrics: MetricsPage,
}

impl Http {
    /// Creates the state of the HTTP server. `app` is the state that all protocols share. `operations` are the names by
    /// which requests are counted.
    pub(crate) fn with_operations(
        app: &Arc<App>,
        operations: Vec<&'static str>,
        others: Vec<Box<dyn Collector>>,
    ) -> Arc<Self> {
        let requests = Arc::new(Requests::new(operations));
        let mut registry = Registry::with_prefix("thalweg");
        registry.register_collector(Box::new(RequestCollector::new(&requests, &app.admission)));
        others.into_iter().for_each(|collector| registry.register_collector(collector));
        Arc::new(Self {
            app: Arc::clone(app),
            requests,
            snapshots: Arc::default(),
            digests: Arc::new(Semaphore::new(1)),
            spaces: Arc::new(Semaphore::new(1)),
            metrics: MetricsPage::new(registry),
        })
    }
}
