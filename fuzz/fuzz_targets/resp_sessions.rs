//! A served port for Redis clients: commands of every kind with words that they know, in and out of transactions, and bytes that
//! are none, over a connection that ends its half behind them. Through parser, session, bursts, log, state, caches and broker.
//!
//! Never a panic; every answer is a reply, none says that the server failed; the connection ends. The database goes on from input
//! to input for a while, as a server's does. The scripts are made as in `server/tests/alone/redis_scripts.rs`.

#![no_main]

#[path = "../../crates/server/tests/alone/redis_script.rs"]
mod script;

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use libfuzzer_sys::fuzz_target;
use thalweg_disk::SimDisk;
use thalweg_engine::{BackendKind, Database, Options};
use thalweg_server::{
    Config, Server,
    config::{RespAddress, RespDatabases, Setting},
};
use thalweg_types::{Durability, SystemClock};
use tokio::{runtime::Runtime, sync::oneshot, task::JoinHandle};

/// Inputs after which a new database is made.
const INPUTS: u32 = 500;

struct Bench {
    runtime: Runtime,
    address: SocketAddr,
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
        let config = Config {
            http: SocketAddr::from(([127, 0, 0, 1], 0)),
            durability: Durability::Os,
            native_quic_sockets: 0,
            resp: RespAddress::parse("127.0.0.1:0").expect("an address"),
            resp_databases: RespDatabases::parse("0=keyspace:redis,1=cache:redis,2=streams").expect("databases"),
            ..Config::default()
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let server = runtime.block_on(Server::bind(config, &db)).expect("free ports");
        let address = server.resp_addr().expect("Redis clients are served");
        let (stop, stopped) = oneshot::channel::<()>();
        let running = runtime.spawn(async move {
            let stopped = async { drop(stopped.await) };
            server.run(stopped).await.expect("nothing is left open");
        });
        Self { runtime, address, stop: Some(stop), running: Some(running), inputs: 0 }
    }

    fn input(&mut self, data: &[u8]) {
        let script = script::script(data);
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
