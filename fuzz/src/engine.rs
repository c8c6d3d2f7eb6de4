//! A database on a simulated disk, as the targets above the engine take it: small, in memory, without a background of its
//! own.

use std::{sync::Arc, time::Duration};

use thalweg_disk::SimDisk;
use thalweg_engine::{BackendKind, Database, Options};
use thalweg_types::{Clock, Durability};

/// An empty one.
pub fn database(clock: Arc<dyn Clock>) -> Database {
    let options = Options {
        backend: Some(BackendKind::Memory),
        durability: Durability::Os,
        segment_bytes: 1 << 20,
        spare_segments: 2,
        reserve_bytes: 0,
        maintenance_interval: Duration::ZERO,
        ..Options::default()
    };
    Database::open_on(Arc::new(SimDisk::new(0)), clock, 1, options).expect("an empty disk")
}
