//! Measures the throughput of a channel, in MB/s, with both ends in one process. It measures each combination of a
//! transport (TCP, TLS, QUIC) and a size of the shared byte buffers, and prints one row for each. The last row is a
//! bare quinn stream with quinn's own defaults, for comparison.
//!
//! `cargo run --release -p thalweg-transport --example throughput -- [seconds] [rounds]`
//!
//! Each round measures every combination once, so that a change of the machine's speed affects all of them. Each row
//! has the median throughput over all rounds, and the CPU seconds of the whole process per GB.

#![allow(clippy::print_stdout, reason = "an example")]

use std::{
    future::poll_fn,
    net::SocketAddr,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use thalweg_transport::{
    Channel, Connection, Dialer, Endpoint, Identity, ListenOptions, Listener, Outbox, QuicOptions, TcpSecurity, Trust,
};

/// Maximum number of bytes that the sender keeps queued in its outbox.
const QUEUED: usize = 1024 * 1024;

#[derive(Clone, Copy)]
struct Figure {
    megabytes: f64,
    cpu_per_gigabyte: f64,
}

/// A combination to measure: its name in the table, the transport with its QUIC options (`None` for bare quinn), and
/// the size in bytes of a shared buffer.
type Row = (String, Option<(&'static str, QuicOptions)>, usize);

type Error = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Error> {
    let mut args = std::env::args().skip(1);
    let seconds: f64 = args.next().map_or(Ok(1.0), |text| text.parse())?;
    let rounds: usize = args.next().map_or(Ok(3), |text| text.parse())?;
    let length = Duration::from_secs_f64(seconds);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let directory = tempfile::TempDir::new()?;
    let identity = Identity::development(directory.path(), [127, 0, 0, 1].into())?;
    let windows = |stream: u32, connection: u32| QuicOptions {
        stream_window_bytes: stream << 10,
        receive_window_bytes: connection << 10,
        send_window_bytes: connection << 10,
        ..QuicOptions::DEFAULTS
    };
    let rows: Vec<Row> = [
        ("tcp", "tcp", QuicOptions::DEFAULTS, 4096),
        ("tcp", "tcp", QuicOptions::DEFAULTS, 256 * 1024),
        ("tls", "tls", QuicOptions::DEFAULTS, 4096),
        ("tls", "tls", QuicOptions::DEFAULTS, 256 * 1024),
        ("quic, defaults", "quic", QuicOptions::DEFAULTS, 4096),
        ("quic, defaults", "quic", QuicOptions::DEFAULTS, 256 * 1024),
        ("quic, windows 1 and 2 MiB", "quic", windows(1024, 2048), 256 * 1024),
        ("quic, windows 2 and 4 MiB", "quic", windows(2048, 4096), 256 * 1024),
        ("quic, windows 8 and 16 MiB", "quic", windows(8192, 16384), 256 * 1024),
    ]
    .into_iter()
    .map(|(name, kind, quic, size)| (format!("{name}, pieces of {size}"), Some((kind, quic)), size))
    .chain([("bare quinn, its defaults, pieces of 262144".to_owned(), None, 256 * 1024)])
    .collect();
    let mut figures = vec![Vec::new(); rows.len()];
    for _ in 0..rounds {
        for ((_, how, size), figures) in rows.iter().zip(&mut figures) {
            figures.push(match how {
                Some((kind, quic)) => runtime.block_on(ours(kind, *quic, &identity, *size, length))?,
                None => runtime.block_on(bare(directory.path(), *size, length))?,
            });
        }
    }
    println!("{:<50} {:>8} {:>12}", "", "MB/s", "CPU s per GB");
    for ((name, ..), figures) in rows.iter().zip(&mut figures) {
        figures.sort_by(|a, b| a.megabytes.total_cmp(&b.megabytes));
        let Figure { megabytes, cpu_per_gigabyte } = figures[figures.len() / 2];
        println!("{name:<50} {megabytes:>8.0} {cpu_per_gigabyte:>12.2}");
    }
    Ok(())
}

async fn ours(
    kind: &str,
    quic: QuicOptions,
    identity: &Identity,
    size: usize,
    length: Duration,
) -> Result<Figure, Error> {
    let mut options = ListenOptions::default();
    options.quic = quic;
    options.identity = Some(identity.clone());
    let trust = Trust::fingerprint(identity.fingerprint());
    match kind {
        "tls" => options.tcp = TcpSecurity::Tls,
        "quic" => options.quic_sockets = 2,
        _ => {}
    }
    let listener = Listener::bind("127.0.0.1:0".parse()?, options).await?;
    let address = listener.local_addr().to_string();
    let endpoint = match kind {
        "tls" => Endpoint::tls(address, trust),
        "quic" => Endpoint::quic(address, trust),
        _ => Endpoint::tcp(address),
    };
    let dialer = Dialer::new().quic(quic);
    let receiving = tokio::spawn(async move {
        let (connection, channel) = listener.accept().await?.establish().await?;
        connection.permit(1);
        measure(length, Source::Ours(channel, BytesMut::new())).await
    });
    let (connection, channel) = dialer.dial(&endpoint).await?;
    let sending = tokio::spawn(send(connection, channel, size));
    let figure = receiving.await??;
    sending.abort();
    Ok(figure)
}

async fn send(_connection: Connection, mut channel: Channel, size: usize) {
    let mut outbox = Outbox::new();
    let shared = Bytes::from(vec![7; size]);
    loop {
        while outbox.len() < QUEUED {
            outbox.buffer().extend_from_slice(&[0; 16]);
            outbox.share(shared.clone());
        }
        if poll_fn(|cx| channel.poll_write(cx, &mut outbox)).await.is_err() {
            return;
        }
    }
}

/// Receiver whose throughput is measured: a channel of this crate, or a bare quinn stream.
enum Source {
    Ours(Channel, BytesMut),
    Bare(quinn::RecvStream),
}

impl Source {
    async fn read(&mut self) -> Result<usize, Error> {
        match self {
            Self::Ours(channel, read) => {
                read.clear();
                read.reserve(256 * 1024);
                Ok(poll_fn(|cx| channel.poll_read(cx, read)).await?)
            }
            Self::Bare(stream) => Ok(stream.read_chunk(256 * 1024, true).await?.ok_or("ended")?.bytes.len()),
        }
    }
}

/// Receives for half of `length` without measuring, then measures the throughput for `length`.
async fn measure(length: Duration, mut from: Source) -> Result<Figure, Error> {
    let warm = Instant::now();
    while warm.elapsed() < length / 2 {
        from.read().await?;
    }
    let (began, cpu) = (Instant::now(), cpu_seconds());
    let mut bytes = 0;
    while began.elapsed() < length {
        bytes += from.read().await?;
    }
    Ok(Figure {
        megabytes: bytes as f64 / 1e6 / began.elapsed().as_secs_f64(),
        cpu_per_gigabyte: (cpu_seconds() - cpu) * 1e9 / bytes as f64,
    })
}

/// User and system CPU seconds of the process so far.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let behind_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = behind_name.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok());
    ticks.sum::<f64>() / 100.0
}

async fn bare(certificates: &std::path::Path, size: usize, length: Duration) -> Result<Figure, Error> {
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
    let certificate = CertificateDer::from_pem_file(certificates.join(thalweg_transport::CERTIFICATE_FILE))?;
    let key = PrivateKeyDer::from_pem_file(certificates.join(thalweg_transport::KEY_FILE))?;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate.clone())?;
    let any: SocketAddr = "127.0.0.1:0".parse()?;
    let server = quinn::Endpoint::server(quinn::ServerConfig::with_single_cert(vec![certificate], key)?, any)?;
    let mut client = quinn::Endpoint::client(any)?;
    client.set_default_client_config(quinn::ClientConfig::with_root_certificates(roots.into())?);
    let to = server.local_addr()?;
    let receiving = tokio::spawn(async move {
        let connection = server.accept().await.ok_or("closed")?.await?;
        let (_, stream) = connection.accept_bi().await?;
        measure(length, Source::Bare(stream)).await
    });
    let connection = client.connect(to, "localhost")?.await?;
    let (mut stream, _receive) = connection.open_bi().await?;
    let shared = Bytes::from(vec![7; size]);
    let sending = tokio::spawn(async move { while stream.write_chunk(shared.clone()).await.is_ok() {} });
    let figure = receiving.await??;
    sending.abort();
    Ok(figure)
}
