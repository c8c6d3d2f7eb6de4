//! Attacks over the native protocol: watches that are never read, and subscriptions with the policy `block` that grant
//! no credit.

use std::{
    io::{Error, Read, Write},
    net::{Ipv4Addr, TcpStream},
    sync::atomic::Ordering,
    time::Duration,
};

use thalweg_types::{Durability, KeyspaceId, Revision, command::encode_create_keyspace};
use thalweg_wire::{
    BatchWriter, Checksum, Decoder, Frame, Kind, Level, List, Permit, Policy, Publish, RemainingBytes, ServerFrame,
    ShortBytes, Subscribe, Watch, WatchKeys, Write as Command, credit::UNLIMITED, handshake::hello,
};

use super::{Attack, PLAIN, bounds::repeat};
use crate::{Progress, Server, connect, redis::encode};

const MAX_FRAME_BYTES: u32 = 1 << 20;

/// A connection over which the handshake is complete.
struct Client {
    stream: TcpStream,
    decoder: Decoder,
}

impl Client {
    fn connect(server: &Server, from: Ipv4Addr) -> std::io::Result<Self> {
        let mut client = Self { stream: connect(from, server.native)?, decoder: Decoder::new() };
        client.send(0, &hello("attacker", MAX_FRAME_BYTES, Duration::ZERO, &[]))?;
        client.decoder.set_max_bytes(MAX_FRAME_BYTES);
        client.next().map(|_| client)
    }

    fn send<'f>(&mut self, id: u32, frame: &impl Frame<'f>) -> std::io::Result<()> {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes, id).map_err(Error::other)?;
        self.stream.write_all(&bytes)
    }

    /// Returns the kind of the next frame, and the id that a reply to a command names. Skips pings.
    fn next(&mut self) -> std::io::Result<(Kind, u32)> {
        let mut page = vec![0; 64 * 1024];
        loop {
            while let Some(frame) = self.decoder.next_shared().map_err(Error::other)? {
                let kind = Kind::from_code(frame.header.kind).ok_or_else(|| Error::other("an unknown kind"))?;
                if kind == Kind::Ping {
                    continue;
                }
                let id = match ServerFrame::decode(frame.raw()).map_err(Error::other)?.frame {
                    ServerFrame::Created(created) => created.id,
                    _ => 0,
                };
                return Ok((kind, id));
            }
            let read = self.stream.read(&mut page)?;
            if read == 0 {
                return Err(Error::other("the server has closed the connection"));
            }
            self.decoder.buffer().extend_from_slice(&page[..read]);
        }
    }
}

/// Counts the beginning of a reply.
fn count(progress: &Progress, is_served: bool) {
    (if is_served { &progress.served } else { &progress.refused }).fetch_add(1, Ordering::Relaxed);
}

/// Opens connections with `open` repeatedly, and keeps up to `count` of them, unread, until the end.
fn keep_open(count_open: usize, progress: &Progress, open: impl Fn() -> std::io::Result<Client>) {
    let mut clients = Vec::new();
    while !progress.stop.load(Ordering::Relaxed) {
        if clients.len() < count_open {
            match open() {
                Ok(client) => clients.push(client),
                Err(_) => count(progress, false),
            }
        }
        std::thread::sleep(Duration::from_millis(if clients.len() < count_open { 1 } else { 20 }));
    }
}

/// Watches that are never read, of a keyspace that changes all the time: 100 on each connection.
pub(crate) fn unread_native_watches() -> Attack {
    Attack {
        name: "native watches that are never read",
        threads: 2,
        reaches: &[r#"thalweg_http_shed_total{bound="tails"}"#],
        run: |server, from, number, progress| {
            if number > 0 {
                let change = encode(&format!("SET watched {}", "w".repeat(16 * 1024)));
                return repeat(from, server.resp, &change, progress);
            }
            keep_open(20, progress, || {
                let mut client = Client::connect(server, from)?;
                let mut command = Vec::new();
                encode_create_keyspace(&mut command, "redis", &Default::default()).map_err(Error::other)?;
                client.send(1, &Command { level: Level(Some(Durability::Os)), command: RemainingBytes(&command) })?;
                let (_, id) = client.next()?;
                let keys = WatchKeys::Prefix { prefix: b"" };
                for watch in 2..102 {
                    let (keyspace, from, permit) = (KeyspaceId(id), Revision(0), UNLIMITED);
                    client.send(watch, &Watch { keyspace, from, permit, keys: keys.clone() })?;
                    // The changes that arrive in between are not answers.
                    let answer = loop {
                        match client.next()?.0 {
                            Kind::Watching => break true,
                            Kind::Failed => break false,
                            _ => {}
                        }
                    };
                    count(progress, answer);
                }
                Ok(client)
            });
        },
        ..PLAIN
    }
}

/// Subscribers with the policy `block` and without credit, one of whose queues is full while the other has room, and
/// publishers to them that wait. A failed publish gives back the room that it has reserved in the other queue.
pub(crate) fn blocking_native_subscribers() -> Attack {
    Attack {
        name: "native policy=block subscribers without credit",
        threads: 2,
        reaches: &["thalweg_subject_blocked_total"],
        run: |server, from, number, progress| {
            if number == 0 {
                return keep_open(20, progress, || {
                    let mut client = Client::connect(server, from)?;
                    for (id, queue_bytes) in [(1, 16 << 20), (2, 64 * 1024)] {
                        let (permit, pattern) = (Permit { messages: 0, bytes: 0 }, ShortBytes(b"flood.>"));
                        let (policy, queue) = (Policy::Block, ShortBytes(b""));
                        let subscribe = Subscribe { policy, queue_messages: 0, queue_bytes, permit, pattern, queue };
                        client.send(id, &subscribe)?;
                        count(progress, client.next()?.0 == Kind::Subscribed);
                    }
                    Ok(client)
                });
            }
            keep_open(100, progress, || {
                let mut client = Client::connect(server, from)?;
                let mut batch = BatchWriter::new(b"flood.a", b"").map_err(Error::other)?;
                batch.push_payload(&vec![b'm'; 48 * 1024]).map_err(Error::other)?;
                let batch = batch.into_shared(Checksum::Without).expect("it has a message").bytes;
                let batches: [&[u8]; 1] = [&batch];
                (1..=4).try_for_each(|id| client.send(id, &Publish { batches: List::Items(&batches) }))?;
                Ok(client)
            });
        },
        ..PLAIN
    }
}
