//! A server of Thalweg in the process of a test.

use std::{
    net::SocketAddr,
    path::Path,
    sync::mpsc::{self, Sender},
    thread,
};

use tempfile::TempDir;
use thalweg_engine::{BackendKind, Database, Options};
use thalweg_server::{
    Config, Server,
    config::{Backend, RespAddress, RespDatabases, Setting as _},
};
use tokio::{runtime::Builder, sync::oneshot};

/// Transport of a node's native port besides QUIC.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TcpPort {
    Plain,
    /// TLS, with a certificate that the server makes for itself.
    Tls,
}

/// Addresses of a server's ports, and its certificate.
struct Ports {
    http: SocketAddr,
    native: SocketAddr,
    resp: SocketAddr,
    fingerprint: String,
}

/// A server on threads of its own, until it is dropped.
pub struct Node {
    /// Address of its HTTP port.
    pub http: SocketAddr,
    /// Address of its native port.
    pub native: SocketAddr,
    /// Address for Redis clients.
    pub resp: SocketAddr,
    /// SHA-256 of the certificate of its native port, in hexadecimal digits.
    pub fingerprint: String,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
    _dir: TempDir,
}

impl Node {
    /// Starts a server whose native port takes plain TCP and QUIC.
    pub fn start() -> Self {
        Self::with_port(TcpPort::Plain)
    }

    /// Starts a server with this native port.
    pub fn with_port(port: TcpPort) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_path_buf();
        let (stop, stopped) = oneshot::channel::<()>();
        let (tell, told) = mpsc::channel();
        let thread = thread::spawn(move || {
            let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(serve(&path, port, tell, stopped));
        });
        let Ports { http, native, resp, fingerprint } = told.recv().unwrap();
        Self { http, native, resp, fingerprint, stop: Some(stop), thread: Some(thread), _dir: dir }
    }

    /// Returns the flags that name the node as a target over a transport.
    pub fn target(&self, transport: &str) -> String {
        format!("--target thalweg+{transport}://{} --fingerprint {}", self.native, self.fingerprint)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || thread::panicking(), "the server panicked");
        }
    }
}

/// Serves the data in a directory until `stopped`, and tells the ports as soon as they listen.
async fn serve(data: &Path, port: TcpPort, tell: Sender<Ports>, stopped: oneshot::Receiver<()>) {
    let config = Config {
        http: SocketAddr::from(([127, 0, 0, 1], 0)),
        backend: Backend(Some(BackendKind::Memory)),
        data: data.to_path_buf(),
        native_tls: port == TcpPort::Tls,
        resp: RespAddress::At(SocketAddr::from(([127, 0, 0, 1], 0))),
        resp_databases: RespDatabases::parse("0=keyspace:redis,1=cache:small,2=streams").unwrap(),
        ..Config::default()
    };
    let small = Options { segment_bytes: 4 << 20, spare_segments: 2, ..config.engine_options() };
    let db = Database::open(data, small).unwrap();
    let server = Server::bind(config, &db).await.unwrap();
    let (native, resp) = (server.native_addr().unwrap(), server.resp_addr().unwrap());
    let fingerprint = server.fingerprint().expect("TLS and QUIC have a certificate").to_string();
    tell.send(Ports { http: server.local_addr(), native, resp, fingerprint }).unwrap();
    let until = async {
        let _ = stopped.await;
    };
    server.run(until).await.unwrap();
}
