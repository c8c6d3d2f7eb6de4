//! A server on ports of this machine, for targets that speak to one. It goes on from input to input for a while, as a
//! server does.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use thalweg_engine::Database;
use thalweg_server::{Config, Server};
use thalweg_types::{Durability, SystemClock};
use tokio::{runtime::Runtime, sync::oneshot, task::JoinHandle};

use crate::engine::database;

/// Inputs after which a new one is made.
const INPUTS: u32 = 500;

/// A server that runs, and the runtime that it runs on.
pub struct Served {
    runtime: Runtime,
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    running: Option<JoinHandle<()>>,
    inputs: u32,
}

impl Served {
    /// Over a database with what `fill` puts into it. `port` says which of its addresses is spoken to.
    pub fn start(
        config: Config,
        fill: impl FnOnce(&Database),
        port: impl FnOnce(&Server) -> Option<SocketAddr>,
    ) -> Self {
        let db = database(Arc::new(SystemClock::default()));
        fill(&db);
        let config = Config {
            http: SocketAddr::from(([127, 0, 0, 1], 0)),
            durability: Durability::Os,
            native_quic_sockets: 0,
            ..config
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let server = runtime.block_on(Server::bind(config, &db)).expect("free ports");
        let address = port(&server).expect("it is served");
        let (stop, stopped) = oneshot::channel::<()>();
        let running = runtime.spawn(async move {
            let stopped = async { drop(stopped.await) };
            server.run(stopped).await.expect("nothing is left open");
        });
        Self { runtime, address, stop: Some(stop), running: Some(running), inputs: 0 }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(running) = self.running.take() {
            self.runtime.block_on(running).expect("the server stops");
        }
    }
}

/// The server of a target. Not a thread's own: that would be dropped when the process ends, when the runtime can't be
/// entered any more.
pub struct Kept(Mutex<Option<Served>>);

impl Kept {
    /// None yet.
    pub const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Performs an input at a served address.
    pub fn input<F: Future<Output = ()>>(&self, start: impl FnOnce() -> Served, perform: impl FnOnce(SocketAddr) -> F) {
        let mut kept = self.0.lock().expect("a panic ends the process");
        if kept.as_ref().is_some_and(|served| served.inputs >= INPUTS) {
            *kept = None;
        }
        let served = kept.get_or_insert_with(start);
        served.inputs += 1;
        served.runtime.block_on(perform(served.address));
    }
}
