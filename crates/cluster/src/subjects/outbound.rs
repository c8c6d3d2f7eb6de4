//! Sending this node's filters and messages to one other node.
//!
//! Owns: the connection that this node dials for them. Does not own: the queue and its limit, or the content of
//! announcements (`broker`).
//!
//! Order: the task first takes batches, then the changes of the filters, and sends the changes before the batches. So
//! the reply subject of a request is announced before the request itself.
//!
//! Losses: messages wait while a connection is being dialled. If the attempt fails, the waiting messages are dropped:
//! old messages are useless to subscribers that miss later ones. If a connection ends while messages are being written,
//! they count as lost.

use std::{io, rc::Rc, sync::Arc, time::Duration};

use thalweg_broker::{Broker, Budget, NodeBatch, NodeLink, TakeResult};
use thalweg_serving::views::Bell;
use thalweg_types::{
    NodeId,
    codec::{EncodeError, List, RemainingBytes, ShortBytes},
};
use thalweg_wire::peer::{Channel, Interest, SubjectBatch, SubjectFilter, encode};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::watch,
    time::{Instant, sleep, timeout},
};

use super::place::PeerAddress;
use crate::{
    frames::keep_alive,
    handshake::{Credentials, HandshakeError, dial, host_of},
    secured::Secured,
};

/// Maximum time to establish a TCP connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);
/// First pause before the next attempt to dial. The pause doubles up to [`MAX_PAUSE`]. It starts again from this value
/// after a connection that has lasted for [`STEADY`].
const MIN_PAUSE: Duration = Duration::from_millis(20);
const MAX_PAUSE: Duration = Duration::from_secs(1);
const STEADY: Duration = Duration::from_secs(2);
/// Maximum capacity in bytes that the buffer for frames keeps after a write.
const KEPT_BYTES: usize = 1024 * 1024;

/// The task that sends this node's filters and messages to one other node.
pub(crate) struct Outbound {
    pub node: NodeId,
    pub credentials: Rc<Credentials>,
    pub broker: Broker,
    pub link: Arc<NodeLink>,
    pub bell: Arc<Bell>,
    pub place: watch::Receiver<PeerAddress>,
}

/// Messages that are being written to a connection. If this value is dropped before [`sent`](InFlight::sent), they
/// count as lost.
struct InFlight<'a> {
    link: &'a NodeLink,
    messages: u64,
}

impl InFlight<'_> {
    fn sent(mut self) {
        self.link.count_sent(std::mem::take(&mut self.messages));
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.link.count_lost(self.messages);
    }
}

fn invalid(error: EncodeError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

impl Outbound {
    /// Connects to the other node again and again, and sends filters and messages, until the task is cancelled.
    pub(super) async fn run(mut self) {
        let mut pause = MIN_PAUSE;
        loop {
            let place = match self.open_place().await {
                Some(place) => place,
                None => return,
            };
            let (began, mut watched) = (Instant::now(), self.place.clone());
            let ended = tokio::select! {
                ended = self.connect_and_send(&place) => ended,
                _ = watched.wait_for(|now| *now != place) => Ok(()),
            };
            if let Err(error) = ended {
                tracing::debug!(node = %self.node, %error, "no connection for messages to the node");
            }
            pause = if began.elapsed() >= STEADY { MIN_PAUSE } else { MAX_PAUSE.min(2 * pause) };
            sleep(pause).await;
        }
    }

    /// Waits until the other node has an address and accepts messages. In the meantime drops the messages that are
    /// queued for that node. Returns `None` when that node is no longer a member.
    async fn open_place(&mut self) -> Option<PeerAddress> {
        loop {
            let place = self.place.borrow_and_update().clone();
            if place.is_open() {
                return Some(place);
            }
            self.link.discard();
            tokio::select! {
                changed = self.place.changed() => changed.ok()?,
                () = self.bell.rung() => {}
            }
        }
    }

    async fn connect_and_send(&self, place: &PeerAddress) -> io::Result<()> {
        match self.connect(&place.address).await {
            Ok(stream) => self.send(stream).await,
            Err(error) => {
                self.link.discard();
                Err(error)
            }
        }
    }

    async fn connect(&self, address: &str) -> io::Result<Secured<TcpStream>> {
        if self.credentials.removal.is_set() {
            return Err(io::Error::other(HandshakeError::Removed));
        }
        let stream = timeout(CONNECT_LIMIT, TcpStream::connect(address)).await??;
        stream.set_nodelay(true)?;
        keep_alive(&stream)?;
        let dialled = dial(stream, &self.credentials, Channel::Subjects, Some(self.node), host_of(address)).await;
        dialled.map(|(_, stream)| stream).map_err(io::Error::other)
    }

    /// Sends filters and messages over a connection until it ends.
    async fn send(&self, stream: Secured<TcpStream>) -> io::Result<()> {
        let (mut reading, mut writing) = tokio::io::split(stream);
        let ended = async {
            // The other node sends nothing on this connection, so reading only detects its end.
            let mut buffer = [0; 256];
            while reading.read(&mut buffer).await? > 0 {}
            Ok(())
        };
        let sending = async {
            let (mut sent, mut buffer, mut batches) = (None, Vec::new(), Vec::new());
            loop {
                let more = self.link.take(&mut batches, Budget::DEFAULT);
                let messages = batches.iter().map(|item| u64::from(item.batch.messages())).sum();
                let in_flight = InFlight { link: &self.link, messages };
                sent = self.put_changes(sent, &mut buffer).map_err(invalid)?;
                for item in batches.drain(..) {
                    put_batch(&item, &mut buffer).map_err(invalid)?;
                }
                if !buffer.is_empty() {
                    writing.write_all(&buffer).await?;
                    // Without a flush, a TLS session may keep encrypted bytes.
                    writing.flush().await?;
                    buffer.clear();
                    buffer.shrink_to(KEPT_BYTES);
                }
                in_flight.sent();
                if more == TakeResult::All {
                    self.bell.rung().await;
                }
            }
        };
        tokio::select! {
            ended = ended => ended,
            sent = sending => sent,
        }
    }

    /// Appends a frame with the filters that have changed since version `sent`, the version that the other node has;
    /// `None` appends all filters. Returns the version that the other node has after this frame.
    fn put_changes(&self, sent: Option<u64>, out: &mut Vec<u8>) -> Result<Option<u64>, EncodeError> {
        let Some(changes) = self.broker.announcement(sent) else { return Ok(sent) };
        let filters: Vec<_> = changes
            .filters
            .iter()
            .map(|(filter, members)| SubjectFilter {
                pattern: ShortBytes(&filter.pattern),
                group: ShortBytes(filter.group.as_deref().unwrap_or_default()),
                members: *members,
            })
            .collect();
        let (whole, from, version) = (changes.is_whole, changes.from, changes.version);
        encode(&Interest { whole, from, version, filters: List::Items(&filters) }, 0, out)?;
        Ok(Some(version))
    }
}

fn put_batch(item: &NodeBatch, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    let groups: Vec<_> = item.groups.iter().map(|group| ShortBytes(group)).collect();
    let batch = RemainingBytes(item.batch.encoded());
    encode(&SubjectBatch { groups: List::Items(&groups), batch }, 0, out)
}
