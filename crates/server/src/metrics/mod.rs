//! Figures of requests, cheap enough for every one of them.
//!
//! Owns: request counters and latency histograms by operation and level, and the text that `/metrics`
//! answers (with the engine's figures, read at each scrape).
//! Invariant: recording a request costs three relaxed additions on memory that the recording thread
//! shares with few others.

mod collect;
mod groups;
mod histogram;
mod views;

use std::{sync::Arc, time::Duration};

use axum::http::StatusCode;
use prometheus_client::{encoding::text, registry::Registry};
use thalweg_types::Durability;

pub use histogram::{Shards, Snapshot};

use crate::{app::App, native, resp, routes::Operation};

/// Levels, and "shows and stores nothing".
const LEVELS: usize = Durability::ALL.len() + 1;
const CLASSES: usize = 5;

/// What is counted of requests.
#[derive(Debug)]
pub struct Metrics {
    shards: Shards,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Nothing counted yet.
    #[must_use]
    pub fn new() -> Self {
        Self { shards: Shards::new(Operation::ALL.len() * LEVELS, Operation::ALL.len() * CLASSES) }
    }

    /// Counts a request. The level is the one that the reply states.
    pub fn record(&self, operation: Operation, level: Option<Durability>, status: StatusCode, took: Duration) {
        let level = level.map_or(0, |level| level as usize + 1);
        let class = usize::from(status.as_u16() / 100).clamp(1, CLASSES) - 1;
        self.shards.record(operation as usize * LEVELS + level, operation as usize * CLASSES + class, took);
    }

    /// Requests counted for an operation.
    #[must_use]
    pub fn count(&self, operation: Operation) -> u64 {
        (0..CLASSES).map(|class| self.shards.count(operation as usize * CLASSES + class)).sum()
    }
}

fn level_name(at: usize) -> &'static str {
    at.checked_sub(1).and_then(|at| Durability::ALL.get(at)).map_or("", |level| level.name())
}

/// The text in the OpenMetrics format.
#[must_use]
pub fn render(app: &Arc<App>) -> String {
    let mut registry = Registry::with_prefix("thalweg");
    registry.register_collector(Box::new(collect::Requests(Arc::clone(app))));
    registry.register_collector(Box::new(collect::Node(Arc::clone(app))));
    registry.register_collector(Box::new(native::metrics::Scraped(Arc::clone(app))));
    registry.register_collector(Box::new(resp::metrics::Scraped(Arc::clone(app))));
    registry.register_collector(Box::new(groups::Groups(Arc::clone(app))));
    registry.register_collector(Box::new(views::Subjects(Arc::clone(app))));
    registry.register_collector(Box::new(views::Caches(Arc::clone(app))));
    let mut out = String::with_capacity(16 * 1024);
    if text::encode(&mut out, &registry).is_err() {
        tracing::warn!("metrics could not be encoded");
    }
    out
}
