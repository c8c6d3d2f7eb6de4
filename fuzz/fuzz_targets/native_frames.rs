//! A served native port: frames of every kind, with bodies that the input changes, over a connection that ends its half behind
//! them. Through decoder, dispatch, handlers, engine, broker and caches.
//!
//! Never a panic; every answer is a frame of a server; nothing fails as `internal`; the connection ends. The database goes on from input
//! to input for a while, as a server's does. The frames are made as in `server/tests/alone/native_scripts.rs`.

#![no_main]

#[path = "../../crates/server/tests/alone/native_script.rs"]
mod script;

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use libfuzzer_sys::fuzz_target;
use thalweg_disk::SimDisk;
use thalweg_engine::{BackendKind, Database, Options};
use thalweg_server::{Config, Server};
use thalweg_types::{Durability, SystemClock, command::StreamConfig};
use tokio::{runtime::Runtime, sync::oneshot, task::JoinHandle};

/// Inputs after which a new database is made.
const INPUTS: u32 = 500;

struct Bench {
    runtime: Runtime,
    address: SocketAddr,
    samples: Vec<Vec<u8>>,
    stop: Option<oneshot::Sender<()>>,
    running: Option<JoinHandle<()>>,
    inputs: u32,
}

impl Bench {
    fn new() -> Self {
        let options = Options {
            backend: Some(BackendKind::Memory),
            durability: Durability::Os,
            segment_bytes: 1 << 20,
            spare_segments: 2,
            reserve_bytes: 0,
            maintenance_interval: Duration::ZERO,
            ..Options::default()
        };
        let clock = Arc::new(SystemClock::default());
        let db = Database::open_on(Arc::new(SimDisk::new(0)), clock, 1, options).expect("an empty disk");
        for name in ["a", "b", "c"] {
            db.keyspace(name).expect("a name");
            db.create_stream(name, &StreamConfig::default()).expect("a name");
        }
        let config = Config {
            http: SocketAddr::from(([127, 0, 0, 1], 0)),
            durability: Durability::Os,
            native_quic_sockets: 0,
            ..Config::default()
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let server = runtime.block_on(Server::bind(config, &db)).expect("free ports");
        let address = server.native_addr().expect("native is served");
        let (stop, stopped) = oneshot::channel::<()>();
        let running = runtime.spawn(async move {
            let stopped = async { drop(stopped.await) };
            server.run(stopped).await.expect("nothing is left open");
        });
        Self { runtime, address, samples: script::samples(), stop: Some(stop), running: Some(running), inputs: 0 }
    }

    fn input(&mut self, data: &[u8]) {
        let script = script::script(&self.samples, data);
        self.runtime.block_on(script::perform(self.address, &script));
        self.inputs += 1;
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(running) = self.running.take() {
            self.runtime.block_on(running).expect("the server stops");
        }
    }
}

/// Not the thread's own: that would be dropped when the process ends, when the runtime can't be entered any more.
static BENCH: Mutex<Option<Bench>> = Mutex::new(None);

fuzz_target!(|data: &[u8]| {
    let mut bench = BENCH.lock().expect("a panic ends the process");
    if bench.as_ref().is_some_and(|bench| bench.inputs >= INPUTS) {
        *bench = None;
    }
    bench.get_or_insert_with(Bench::new).input(data);
});
