//! Measures how fast the machine relays bytes without a server. A sender sends bytes to a relay, and the relay copies
//! each byte to several receivers. The results of publish and subscribe are compared with this speed, because a server
//! of messages does the same: it receives each byte, and sends it to each subscriber.
//!
//! The relay does only what a server must do at least: it reads, and writes to each receiver. Sender, relay and
//! receivers are threads of this process. (Receivers over QUIC share one thread.) They run on the cores that load
//! generator and server share otherwise.

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use bytes::Bytes;
use quinn::{ClientConfig, Connection, Endpoint, VarInt};
use tokio::task::JoinSet;

use super::{
    bare::{
        ANY, CHUNK, Quic, quic_client, quic_configs, quic_server, quic_socket, receive_quic, receive_tcp, send_quic,
        send_tcp,
    },
    endpoint::TransportKind,
};
use crate::{BenchError, block_on_thread};

const SUBJECT: &str = "a bare relay";

/// Returns the bytes per second that this number of receivers get through a relay, all together.
pub fn stream(carrier: TransportKind, receivers: usize, time: Duration) -> Result<f64, BenchError> {
    match carrier {
        TransportKind::Tcp | TransportKind::Tls => {
            tcp(receivers, time).map_err(BenchError::subject(SUBJECT, "over TCP"))
        }
        TransportKind::Quic => quic(receivers, time).map_err(BenchError::subject(SUBJECT, "over QUIC")),
    }
}

fn tcp(receivers: usize, time: Duration) -> io::Result<f64> {
    let listener = TcpListener::bind(ANY)?;
    let pair = || -> io::Result<(TcpStream, TcpStream)> {
        let near = TcpStream::connect(listener.local_addr()?)?;
        Ok((near, listener.accept()?.0))
    };
    let (sender, mut incoming) = pair()?;
    let (nears, mut outgoing): (Vec<_>, Vec<_>) =
        (0..receivers).map(|_| pair()).collect::<io::Result<Vec<_>>>()?.into_iter().unzip();
    std::thread::scope(|scope| {
        scope.spawn(move || send_tcp(sender));
        scope.spawn(move || {
            let mut block = vec![0; 4 * CHUNK];
            // The loop ends when the first receiver closes its connection.
            while let Ok(count @ 1..) = incoming.read(&mut block) {
                if !outgoing.iter_mut().all(|receiver| receiver.write_all(&block[..count]).is_ok()) {
                    return;
                }
            }
        });
        let receive = |near: TcpStream| scope.spawn(move || receive_tcp(near, time));
        let threads: Vec<_> = nears.into_iter().map(receive).collect();
        Ok(threads.into_iter().map(|thread| thread.join().unwrap_or(f64::NAN)).sum())
    })
}

fn quic(receivers: usize, time: Duration) -> Quic<f64> {
    let (server_config, client_config) = quic_configs()?;
    let socket = quic_socket()?;
    let address = socket.local_addr()?;
    std::thread::scope(|scope| {
        let relay = scope.spawn(move || {
            block_on_thread(async move {
                let endpoint = quic_server(server_config, socket)?;
                let ended = relay(&endpoint, receivers).await;
                endpoint.close(VarInt::from_u32(0), b"");
                endpoint.wait_idle().await;
                ended
            })
        });
        let config = client_config.clone();
        // The relay takes the first connections for those of the receivers, and the last one for that of the sender.
        let (connected, all_connected) = std::sync::mpsc::channel();
        let receiving = scope.spawn(move || {
            block_on_thread(async move {
                let endpoint = quic_client()?;
                let mut connections = Vec::new();
                for _ in 0..receivers {
                    connections.push(connect(&endpoint, &config, address).await?);
                }
                connected.send(())?;
                receive_all(connections, time).await
            })
        });
        let sent = all_connected.recv().map_err(|_| "no receiver could connect".into()).and_then(|()| {
            block_on_thread(async move {
                let endpoint = quic_client()?;
                let connection = connect(&endpoint, &client_config, address).await?;
                send_quic(connection).await
            })
        });
        let brought = receiving.join().map_err(|_| "the receivers' thread panicked")?;
        // The sender and the relay both end with an error when the first receiver has closed its connection. They get
        // no other signal.
        drop((sent, relay.join()));
        brought
    })
}

async fn connect(endpoint: &Endpoint, config: &ClientConfig, address: SocketAddr) -> Quic<Connection> {
    Ok(endpoint.connect_with(config.clone(), address, "localhost")?.await?)
}

async fn relay(endpoint: &Endpoint, receivers: usize) -> Quic<()> {
    let mut outgoing = Vec::new();
    for _ in 0..receivers {
        let connection = endpoint.accept().await.ok_or("the endpoint was closed")?.await?;
        let stream = connection.open_uni().await?;
        outgoing.push((connection, stream));
    }
    let sender = endpoint.accept().await.ok_or("the endpoint was closed")?.await?;
    let mut incoming = sender.accept_uni().await?;
    let mut chunks = [const { Bytes::new() }; 32];
    while let Some(count) = incoming.read_chunks(&mut chunks).await? {
        for (_, stream) in &mut outgoing {
            stream.write_all_chunks(&mut chunks[..count].to_vec()).await?;
        }
    }
    Ok(())
}

async fn receive_all(connections: Vec<Connection>, time: Duration) -> Quic<f64> {
    let mut tasks = JoinSet::new();
    for connection in connections {
        tasks.spawn_local(async move {
            let rate = receive_quic(connection.clone(), time).await;
            // Closing this connection ends the relay, and then the streams of the other receivers.
            connection.close(VarInt::from_u32(0), b"");
            rate
        });
    }
    let mut sum = 0.0;
    while let Some(one) = tasks.join_next().await {
        sum += one??;
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_carries_to_one_and_to_several() {
        for (carrier, receivers) in
            [(TransportKind::Tcp, 1), (TransportKind::Tcp, 3), (TransportKind::Quic, 1), (TransportKind::Quic, 3)]
        {
            let rate = stream(carrier, receivers, Duration::from_millis(200)).unwrap();
            assert!(rate > 1e6, "{carrier:?} to {receivers}: {rate} B/s");
        }
    }
}
