//! The raw speed of the machine's loopback network: a stream of bytes and a round trip between two threads of this
//! process, without a server. The server's figures are compared with these, which are measured in the same run.
//!
//! Owns: the stream and the round trips over TCP and QUIC. Also owns the sockets and the counting of the rate, which
//! the module `relay` uses too. Does not own: TLS. Its figures are compared with those of TCP.
//!
//! One thread sends, the other receives, and neither looks at the bytes. If there are two cores, each thread of a round
//! trip runs on a core of its own. On one core they would wake each other four times as fast, which a server with other
//! work cannot do. QUIC is quinn with its defaults, and with the server's windows and socket buffers.

use std::{
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use quinn::{ClientConfig, Endpoint, EndpointConfig, ServerConfig, TokioRuntime, TransportConfig, VarInt};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, PrivatePkcs8KeyDer},
};
use thalweg_transport::QuicOptions;

use super::endpoint::TransportKind;
use crate::{BenchError, block_on_thread, latency::Latencies};

pub(super) const CHUNK: usize = 64 << 10;
pub(super) const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const SUBJECT: &str = "a bare stream";

/// Measures the bytes per second of one stream over loopback. For TLS this measures TCP without encryption, because the
/// figures of TLS are compared with those of TCP.
pub fn stream(carrier: TransportKind, time: Duration) -> Result<f64, BenchError> {
    match carrier {
        TransportKind::Tcp | TransportKind::Tls => {
            tcp_stream(time).map_err(BenchError::subject(SUBJECT, "sending over TCP"))
        }
        TransportKind::Quic => quic_stream(time).map_err(BenchError::subject(SUBJECT, "sending over QUIC")),
    }
}

/// Measures round trips over loopback. A request has `bytes` bytes, and an answer has the length of an acknowledgement.
/// For TLS this measures TCP without encryption.
pub fn round_trips(carrier: TransportKind, bytes: usize, time: Duration) -> Result<Latencies, BenchError> {
    match carrier {
        TransportKind::Tcp | TransportKind::Tls => {
            tcp_round_trips(bytes, time).map_err(BenchError::subject(SUBJECT, "round trips over TCP"))
        }
        TransportKind::Quic => {
            quic_round_trips(bytes, time).map_err(BenchError::subject(SUBJECT, "round trips over QUIC"))
        }
    }
}

/// Length in bytes of an answer in a round trip, about that of an acknowledgement.
const ANSWER: usize = 40;

fn tcp_stream(time: Duration) -> io::Result<f64> {
    let listener = TcpListener::bind(ANY)?;
    let sender = TcpStream::connect(listener.local_addr()?)?;
    let (receiver, _) = listener.accept()?;
    std::thread::scope(|scope| {
        scope.spawn(move || send_tcp(sender));
        Ok(receive_tcp(receiver, time))
    })
}

/// Sends bytes over a TCP connection until the receiver closes it.
pub(super) fn send_tcp(mut stream: TcpStream) {
    let block = vec![7; CHUNK];
    while stream.write_all(&block).is_ok() {}
}

/// Receives bytes over a TCP connection for this time, or until the sender closes it. Returns the bytes per second.
pub(super) fn receive_tcp(mut stream: TcpStream, time: Duration) -> f64 {
    let (mut block, mut rate) = (vec![0; 4 * CHUNK], Rate::begin(time));
    while rate.is_running()
        && let Ok(count @ 1..) = stream.read(&mut block)
    {
        rate.count(count);
    }
    rate.per_second()
}

fn tcp_round_trips(bytes: usize, time: Duration) -> io::Result<Latencies> {
    let listener = TcpListener::bind(ANY)?;
    let mut client = TcpStream::connect(listener.local_addr()?)?;
    let (mut server, _) = listener.accept()?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let _here = pin_to_core(1);
            let mut block = vec![0; bytes];
            while server.read_exact(&mut block).is_ok() && server.write_all(&block[..ANSWER.min(bytes)]).is_ok() {}
        });
        let _here = pin_to_core(0);
        let (mut times, mut block) = (Latencies::default(), vec![0; bytes]);
        let begun = Instant::now();
        let mut last = begun;
        while last - begun < time {
            client.write_all(&block)?;
            client.read_exact(&mut block[..ANSWER.min(bytes)])?;
            let now = Instant::now();
            times.record(now - last);
            last = now;
        }
        drop(client);
        Ok(times)
    })
}

/// Pins the calling thread to one of the CPU cores that it may use; `number` counts these cores from 0. The pinning
/// ends when the returned guard is dropped. Returns `None` if there is no such core.
fn pin_to_core(number: usize) -> Option<CorePin> {
    let before = sched_getaffinity(None).ok()?;
    let core = (0..CpuSet::MAX_CPU).filter(|core| before.is_set(*core)).nth(number)?;
    let mut one = CpuSet::new();
    one.set(core);
    sched_setaffinity(None, &one).ok()?;
    Some(CorePin { before })
}

/// Guard that keeps a thread pinned to a CPU core until the guard is dropped.
struct CorePin {
    before: CpuSet,
}

impl Drop for CorePin {
    fn drop(&mut self) {
        let _ = sched_setaffinity(None, &self.before);
    }
}

/// Counts the bytes received in a span of time. The first fifth of the span is a warm-up that is not counted.
struct Rate {
    begun: Instant,
    from: Duration,
    time: Duration,
    bytes: u64,
    first: Option<Instant>,
    last: Instant,
}

impl Rate {
    fn begin(time: Duration) -> Self {
        let begun = Instant::now();
        Self { begun, from: time / 5, time, bytes: 0, first: None, last: begun }
    }

    fn is_running(&self) -> bool {
        self.last - self.begun < self.time
    }

    fn count(&mut self, bytes: usize) {
        self.last = Instant::now();
        if self.first.is_some() {
            self.bytes += bytes as u64;
        } else if self.last - self.begun >= self.from {
            self.first = Some(self.last);
        }
    }

    fn per_second(&self) -> f64 {
        let seconds = self.first.map_or(0.0, |first| (self.last - first).as_secs_f64());
        if seconds > 0.0 { self.bytes as f64 / seconds } else { f64::NAN }
    }
}

pub(super) type Quic<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Creates the QUIC configurations of server and client, with a new self-signed certificate.
pub(super) fn quic_configs() -> Quic<(ServerConfig, ClientConfig)> {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])?;
    let certificate = CertificateDer::from(made.cert);
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let mut server = ServerConfig::with_single_cert(vec![certificate.clone()], key.into())?;
    let mut roots = RootCertStore::empty();
    roots.add(certificate)?;
    let mut client = ClientConfig::with_root_certificates(Arc::new(roots))?;
    let options = QuicOptions::DEFAULTS;
    let mut transport = TransportConfig::default();
    transport
        .stream_receive_window(VarInt::from_u32(options.stream_window_bytes))
        .receive_window(VarInt::from_u32(options.receive_window_bytes))
        .send_window(u64::from(options.send_window_bytes));
    let transport = Arc::new(transport);
    server.transport_config(Arc::clone(&transport));
    client.transport_config(transport);
    Ok((server, client))
}

/// Creates a UDP socket with the same buffer sizes as the server's sockets; the operating system may grant less.
pub(super) fn quic_socket() -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(ANY)?;
    let bytes = QuicOptions::DEFAULTS.socket_buffer_bytes;
    rustix::net::sockopt::set_socket_recv_buffer_size(&socket, bytes)?;
    rustix::net::sockopt::set_socket_send_buffer_size(&socket, bytes)?;
    Ok(socket)
}

/// Connects two QUIC endpoints over loopback, and runs `client` on a new thread and `server` on the calling one.
fn quic_pair<T, C, S>(
    client: impl FnOnce(quinn::Connection) -> C + Send,
    server: impl FnOnce(quinn::Connection) -> S,
) -> Quic<T>
where
    C: Future<Output = Quic<()>>,
    S: Future<Output = Quic<T>>,
{
    let (server_config, client_config) = quic_configs()?;
    let socket = quic_socket()?;
    let address = socket.local_addr()?;
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            block_on_thread(async move {
                let connection = quic_client()?.connect_with(client_config, address, "localhost")?.await?;
                client(connection).await
            })
        });
        let brought = block_on_thread(async move {
            let endpoint = quic_server(server_config, socket)?;
            let connection = endpoint.accept().await.ok_or("the endpoint was closed")?.await?;
            let brought = server(connection.clone()).await;
            connection.close(VarInt::from_u32(0), b"");
            endpoint.wait_idle().await;
            brought
        });
        // The client's side ends with an error when the server closes the connection. It gets no other signal.
        let _ = thread.join();
        brought
    })
}

fn quic_stream(time: Duration) -> Quic<f64> {
    quic_pair(send_quic, |connection| receive_quic(connection, time))
}

/// Sends bytes on a new stream of a QUIC connection until the receiver closes the connection. The function then ends
/// with an error.
pub(super) async fn send_quic(connection: quinn::Connection) -> Quic<()> {
    let mut stream = connection.open_uni().await?;
    let chunk = Bytes::from(vec![7; CHUNK]);
    loop {
        stream.write_chunk(chunk.clone()).await?;
    }
}

/// Receives bytes over a QUIC connection for this time, or until the sender closes it. Returns the bytes per second.
pub(super) async fn receive_quic(connection: quinn::Connection, time: Duration) -> Quic<f64> {
    let mut stream = connection.accept_uni().await?;
    let (mut chunks, mut rate) = ([const { Bytes::new() }; 32], Rate::begin(time));
    while rate.is_running() {
        let Ok(Some(count)) = stream.read_chunks(&mut chunks).await else { break };
        rate.count(chunks[..count].iter().map(Bytes::len).sum());
    }
    Ok(rate.per_second())
}

/// Creates a QUIC endpoint that accepts connections.
pub(super) fn quic_server(config: ServerConfig, socket: UdpSocket) -> Quic<Endpoint> {
    Ok(Endpoint::new(EndpointConfig::default(), Some(config), socket, Arc::new(TokioRuntime))?)
}

/// Creates a QUIC endpoint that only opens connections.
pub(super) fn quic_client() -> Quic<Endpoint> {
    Ok(Endpoint::new(EndpointConfig::default(), None, quic_socket()?, Arc::new(TokioRuntime))?)
}

fn quic_round_trips(bytes: usize, time: Duration) -> Quic<Latencies> {
    let client = |connection: quinn::Connection| async move {
        let _here = pin_to_core(1);
        let (mut send, mut receive) = connection.accept_bi().await?;
        let mut block = vec![0; bytes];
        loop {
            receive.read_exact(&mut block).await?;
            send.write_all(&block[..ANSWER.min(bytes)]).await?;
        }
    };
    quic_pair(client, |connection| async move {
        let _here = pin_to_core(0);
        let (mut send, mut receive) = connection.open_bi().await?;
        let (mut times, mut block) = (Latencies::default(), vec![0; bytes]);
        let begun = Instant::now();
        let mut last = begun;
        while last - begun < time {
            send.write_all(&block).await?;
            receive.read_exact(&mut block[..ANSWER.min(bytes)]).await?;
            let now = Instant::now();
            times.record(now - last);
            last = now;
        }
        Ok(times)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_carry_and_round_trips_return() {
        for carrier in [TransportKind::Tcp, TransportKind::Quic] {
            let rate = stream(carrier, Duration::from_millis(200)).unwrap();
            assert!(rate > 1e6, "{carrier:?}: {rate} B/s");
            let times = round_trips(carrier, 200, Duration::from_millis(50)).unwrap();
            assert!(times.count() > 10, "{carrier:?}");
        }
    }
}
