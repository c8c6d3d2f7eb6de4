//! A server in this process, and a proxy in front of it that cuts connections.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tempfile::TempDir;
use thalweg_client::{Client, Endpoint, Fingerprint, Options, Retries};
use thalweg_engine::{BackendKind, Database};
use thalweg_server::{
    Config, Server, ServerError,
    config::{Backend, NativeAddress},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::oneshot,
    task::JoinHandle,
};

pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct Node {
    pub native: SocketAddr,
    pub fingerprint: Option<Fingerprint>,
    stop: oneshot::Sender<()>,
    running: JoinHandle<Result<(), ServerError>>,
    dir: TempDir,
}

impl Node {
    pub async fn start() -> Self {
        Self::with(|_| ()).await
    }

    pub async fn with(change: impl FnOnce(&mut Config)) -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config {
            // The server stores its certificate in the data directory.
            data: dir.path().to_owned(),
            http: any,
            native: NativeAddress::At(any),
            backend: Backend(Some(BackendKind::Memory)),
            ..Config::default()
        };
        change(&mut config);
        let options = thalweg_engine::Options {
            segment_bytes: 1 << 20,
            spare_segments: 2,
            reserve_bytes: 1 << 20,
            ..config.engine_options()
        };
        let db = Database::open(dir.path(), options).unwrap();
        let server = Server::bind(config, &db).await.unwrap();
        let native = server.native_addr().expect("the server serves the native protocol");
        let fingerprint = server.fingerprint();
        let (stop, stopped) = oneshot::channel::<()>();
        let running = tokio::spawn(server.run(async {
            let _ = stopped.await;
        }));
        Self { native, fingerprint, stop, running, dir }
    }

    pub async fn client(&self) -> Client {
        self.client_with(options()).await
    }

    pub async fn client_with(&self, options: Options) -> Client {
        connect(self.native, options).await
    }

    pub async fn stop(self) {
        let _ = self.stop.send(());
        tokio::time::timeout(PATIENCE, self.running).await.expect("stops in time").unwrap().unwrap();
        drop(self.dir);
    }
}

pub async fn connect(address: SocketAddr, options: Options) -> Client {
    Client::connect(Endpoint::tcp(address.to_string()), options).await.unwrap()
}

pub fn options() -> Options {
    Options {
        timeout: Some(PATIENCE),
        retries: Retries { max_attempts: 50, base: Duration::from_millis(1), max: Duration::from_millis(20) },
        ..Options::default()
    }
}

/// Random numbers that a test can repeat from a seed.
pub struct Random(u64);

impl Random {
    /// Takes the seed from the environment, or from the clock, and prints it.
    pub fn new() -> Self {
        let seed = std::env::var("THALWEG_SEED").ok().and_then(|seed| seed.parse().ok());
        let clock = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
        let seed = seed.unwrap_or_else(clock);
        eprintln!("THALWEG_SEED={seed}");
        Self(seed | 1)
    }

    pub fn seeded(seed: u64) -> Self {
        Self(seed | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// Forwards connections to a server, and cuts each of the first ones after some bytes.
pub struct Proxy {
    pub address: SocketAddr,
    pub cuts: Arc<AtomicU64>,
    running: JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.running.abort();
    }
}

impl Proxy {
    /// Creates a proxy. Each of the first `cuts` connections carries at least `least` and less than `most` bytes, both
    /// directions together.
    pub async fn new(target: SocketAddr, mut random: Random, cuts: u64, least: u64, most: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let cut = Arc::new(AtomicU64::new(0));
        let counted = cut.clone();
        let running = tokio::spawn(async move {
            while let Ok((from, _)) = listener.accept().await {
                let is_cut = counted.load(Ordering::Relaxed) < cuts;
                let bytes = if is_cut { least + random.below(most - least) } else { u64::MAX };
                let counted = counted.clone();
                tokio::spawn(async move {
                    let Ok(to) = TcpStream::connect(target).await else { return }; // the server has stopped
                    forward(from, to, bytes).await;
                    if is_cut {
                        counted.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        Self { address, cuts: cut, running }
    }

    pub fn cuts(&self) -> u64 {
        self.cuts.load(Ordering::Relaxed)
    }
}

async fn forward(mut from: TcpStream, mut to: TcpStream, mut left: u64) {
    let (mut there, mut back) = (vec![0; 16 * 1024], vec![0; 16 * 1024]);
    while left > 0 {
        let forwarded = tokio::select! {
            read = from.read(&mut there) => pass(read, &there, &mut to, left).await,
            read = to.read(&mut back) => pass(read, &back, &mut from, left).await,
        };
        match forwarded {
            Some(bytes) => left -= bytes,
            None => return,
        }
    }
}

/// Forwards the bytes read, or fewer at the limit, so that a cut falls within a frame.
async fn pass(read: std::io::Result<usize>, bytes: &[u8], to: &mut TcpStream, left: u64) -> Option<u64> {
    let read = read.ok().filter(|read| *read > 0)?;
    let passed = usize::try_from(left).unwrap_or(usize::MAX).min(read);
    to.write_all(&bytes[..passed]).await.ok()?;
    Some(passed as u64)
}
