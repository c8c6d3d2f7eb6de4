//! Listening for Redis clients, and accepting their connections.
//!
//! Owns: the limits on connections, and one task per connection on one of the [`threads`](thalweg_serving::threads).
//! The limit on all connections is shared with HTTP. If a password is configured, there is also a limit on
//! unauthenticated connections (`max_handshakes`), and a client has `header_timeout` to authenticate. At that limit the
//! server closes the oldest unauthenticated connection of the address that has the most. Without a password, a
//! connection that has sent no command makes room for a newer one of its address.

use std::{future::poll_fn, net::SocketAddr, sync::Arc, time::Instant};

use thalweg_redis::wire::Trust;
use thalweg_serving::{
    accepting::{accept_until, drain, reject_connection},
    admission::AddressKey,
    threads::Threads,
};
use thalweg_transport::Channel;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use super::{Resp, connection::Connection, session::Session};

/// Name of the clients in log lines.
const CLIENTS: &str = "Redis clients";

/// Accepts connections of Redis clients until the server stops. Then waits until all connections have ended. Dropping
/// the future ends open connections immediately.
pub async fn serve(resp: Arc<Resp>, listener: TcpListener, threads: Threads) {
    let mut stopping = resp.app.stopping.clone();
    let stop = async move { drop(stopping.wait_for(|stopping| *stopping).await) };
    let mut connections = JoinSet::new();
    let begin = |(stream, peer), connections: &mut JoinSet<()>| begin(&resp, stream, peer, &threads, connections);
    accept_until(stop, || listener.accept(), begin, &mut connections, CLIENTS).await;
    drop(listener);
    drain(&mut connections, CLIENTS).await;
    threads.stop().await;
}

fn begin(resp: &Arc<Resp>, stream: TcpStream, peer: SocketAddr, threads: &Threads, connections: &mut JoinSet<()>) {
    let admission = &resp.app.admission;
    let must_authenticate = resp.first_trust() == Trust::Unknown;
    let account = admission.account(AddressKey::of(peer.ip()));
    let Some(held) = resp.app.slots.connect(&account) else {
        return reject_connection(stream, b"-ERR max number of clients reached\r\n");
    };
    let slots = if must_authenticate { &resp.app.slots.half_open } else { &resp.app.slots.silent };
    let place = slots.enter(account.address(), Some(held));
    // The socket must be registered with the poller of the thread that will serve it, and not with this thread's
    // poller.
    let Ok(stream) = stream.into_std() else { return };
    let resp = Arc::clone(resp);
    let (runtime, seat) = threads.place();
    let (bulk, load) = (Arc::clone(seat.bulk()), seat.load());
    let task = async move {
        let Ok(stream) = TcpStream::from_std(stream) else { return };
        let Ok(local) = stream.local_addr() else { return };
        let io = Channel::tcp(stream);
        let client = resp.clients.add(io.peer(), local, Instant::now());
        // Declared before `connection`, so it is dropped after it, even if the task panics. So the client leaves the
        // table before the connection counts as closed.
        let open = resp.metrics.connections.open();
        let mut connection = Connection::new(Session::new(&resp, account, client, load), io, place, &bulk);
        poll_fn(|cx| connection.poll(cx)).await;
        drop(connection);
        drop(open);
        drop(seat);
    };
    connections.spawn_on(task, runtime);
}
