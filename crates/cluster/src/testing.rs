//! Nodes for tests: a listener on loopback with a service that the test defines.

use std::{cell::RefCell, net::SocketAddr, rc::Rc, time::Duration};

use futures_util::future::LocalBoxFuture;
use thalweg_types::{ClusterId, NodeId};
use thalweg_wire::peer::{Channel, PeerKind, PeerRun, Ping, Pong, VERSION};
use tokio::{net::TcpListener, sync::watch, task::spawn_local};

use crate::{
    frames::{Frame, encoded},
    handshake::{Credentials, Names, Peer, Rejection, RemovalNotice},
    link::{Link, Path},
    listener::{Service, serve},
    runs::Silence,
    secret::Secret,
};

/// Id of the node whose listener serves requests in a test.
pub(crate) const SERVER: NodeId = NodeId(2);

pub(crate) fn credentials(node: NodeId, secret: u8) -> Rc<Credentials> {
    let (cluster, address) = (ClusterId(9), format!("n{node}:1"));
    let secret = Secret::new(&[secret; 32]);
    Rc::new(Credentials {
        cluster,
        node,
        address,
        secret,
        tls: None,
        max_version: VERSION,
        run: PeerRun([1; 16]),
        removal: RemovalNotice::default(),
    })
}

type Answer = Box<dyn Fn(Channel, Frame) -> LocalBoxFuture<'static, Vec<u8>>>;

/// A service that answers as the test specifies, and records all requests.
pub(crate) struct Scripted {
    answer: Answer,
    pub seen: RefCell<Vec<(Channel, PeerKind)>>,
}

impl Service for Scripted {
    fn admits(&self, _: NodeId) -> Result<Names, Rejection> {
        Ok(None)
    }

    fn silence(&self) -> Silence {
        let max = Duration::from_secs(600);
        Silence { max, max_answer: max }
    }

    fn connected(&self, _: &Peer) {}

    fn serve(self: Rc<Self>, peer: &Peer, request: Frame) -> LocalBoxFuture<'static, Vec<u8>> {
        self.seen.borrow_mut().extend(request.kind.map(|kind| (peer.channel, kind)));
        (self.answer)(peer.channel, request)
    }
}

/// A node's listener that runs in a test and serves requests as the test specifies. Its tasks end with the test's
/// runtime.
pub(crate) struct Server {
    pub address: SocketAddr,
    pub service: Rc<Scripted>,
    _stop: watch::Sender<bool>,
}

impl Server {
    pub(crate) async fn start(answer: impl Fn(Channel, Frame) -> LocalBoxFuture<'static, Vec<u8>> + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let service = Rc::new(Scripted { answer: Box::new(answer), seen: RefCell::default() });
        let (stop, stopped) = watch::channel(false);
        spawn_local(serve(listener, credentials(SERVER, 5), Rc::clone(&service), stopped));
        Self { address, service, _stop: stop }
    }

    /// Returns links from node 1 to the server, one for each channel. The links share the state of their path to the
    /// server.
    pub(crate) fn links<const N: usize>(&self, channels: [Channel; N]) -> [Link; N] {
        let path = Path::default();
        let own = credentials(NodeId(1), 5);
        channels.map(|channel| Link::new(Rc::clone(&own), SERVER, self.address.to_string(), channel, path.clone()))
    }
}

/// Encodes the reply to a ping; empty if the ping is malformed.
pub(crate) fn pong(request: &Frame) -> Vec<u8> {
    use thalweg_types::{Index, SpaceTime};
    use thalweg_wire::peer::PeerFrame;
    let Ok(Ping { number, .. }) = Ping::decode_body(&request.body) else { return Vec::new() };
    encoded(&Pong { number, last: Index(0), applied: Index(0), free_bytes: 0, wall: SpaceTime(0) }, request.id).unwrap()
}

/// Runs a test and its tasks on this thread.
pub(crate) fn run(test: impl Future<Output = ()>) {
    local_runtime(tokio::runtime::Builder::new_current_thread().enable_all()).block_on(test);
}

fn local_runtime(builder: &mut tokio::runtime::Builder) -> tokio::runtime::LocalRuntime {
    builder.build_local(tokio::runtime::LocalOptions::default()).unwrap()
}
