//! A server without threads. Tests run the steps of its connections themselves.

use std::sync::Arc;

use thalweg_engine::{Database, Options};
use thalweg_serving::{
    admission::{Account, AddressKey},
    app::App,
    bulk::{BulkTurns, ROUND_BYTES},
    config::Config,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
};

use super::{Native, metrics::Metrics};

pub(crate) struct TestNode {
    pub(crate) native: Arc<Native>,
    pub(crate) bulk: Arc<BulkTurns>,
    listener: TcpListener,
    _stop: watch::Sender<bool>,
    _dir: tempfile::TempDir,
}

impl TestNode {
    pub(crate) async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let db = Database::open(dir.path(), Options::default()).unwrap();
        let (stop, stopping) = watch::channel(false);
        let app = App::new(Config::default(), &db, stopping);
        let native = Native::new(&app, Arc::new(Metrics::new(&app.native_connections)));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self { native, bulk: BulkTurns::new(ROUND_BYTES, &Arc::default()), listener, _stop: stop, _dir: dir }
    }

    /// Connects a client, and returns both ends of its connection.
    pub(crate) async fn connected(&self) -> (TcpStream, TcpStream) {
        let client = TcpStream::connect(self.listener.local_addr().unwrap()).await.unwrap();
        (client, self.listener.accept().await.unwrap().0)
    }

    /// Returns an account of the address from which tests connect.
    pub(crate) fn account(&self) -> Arc<Account> {
        self.native.app.admission.account(AddressKey::of([127, 0, 0, 1].into()))
    }
}
