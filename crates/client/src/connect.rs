//! Setup of a connection: dialling, the handshake (the client's hello and the server's welcome), and opening
//! further channels.
//!
//! Owns: the start of a connection. Does not own the schedule of the attempts to connect (`pool`).

use std::{
    future::poll_fn,
    task::Poll,
    time::{Duration, Instant},
};

use thalweg_transport::{Channel, Connection, Dialer, Endpoint, Outbox};
use thalweg_wire::{
    Decoder, Frame, Goodbye, Kind, ReadMembers, ServerFrame, SharedFrame, Welcome,
    handshake::{self, FEATURE_CLUSTER, HandshakeError, check_welcome},
};

use crate::{
    error::{ConnectError, Lost},
    link::SessionParameters,
    membership::{ClusterMembers, members_of},
    options::Options,
    request::body_of,
};

/// A connection with its channels and the parameters that both sides agreed on.
pub(crate) struct Connected {
    pub connection: Connection,
    pub channels: Vec<(Channel, Decoder)>,
    pub limits: SessionParameters,
    pub keep_alive: Duration,
    pub server: ServerInfo,
    /// Members of the server's cluster; `None` if the server runs alone or was not asked.
    pub members: Option<ClusterMembers>,
    /// Shortest round trip of the requests that asked the server for the members.
    pub round_trip: Duration,
}

/// Facts that a server states about itself in its welcome, which is its reply to the client's hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerInfo {
    /// Version of the server's program, for display.
    pub version: String,
    /// Node id of the server.
    pub node: u64,
    /// Number of this run of the server. The server chooses another number at each start.
    pub run: u64,
    /// Durability level that the server uses for writes whose request states no level.
    pub durability: thalweg_types::Durability,
    /// Largest frame that the server accepts, in bytes without the frame's header.
    pub max_frame_bytes: u32,
    /// True if the server is a member of a cluster.
    pub is_clustered: bool,
}

/// Dials and performs the handshake within the options' connect timeout. Then opens further channels if the transport
/// supports several. If the server is a member of a cluster, asks it `asks` times for the list of members, and measures
/// the round trips.
pub(crate) async fn connect(
    dialer: &Dialer,
    endpoint: &Endpoint,
    options: &Options,
    asks: u32,
    after: Duration,
) -> Result<Connected, ConnectError> {
    let all = async {
        let (connection, channel) = dialer.dial(endpoint).await.map_err(ConnectError::Dial)?;
        let mut first = HandshakeChannel { channel, decoder: Decoder::new() };
        first.decoder.set_max_bytes(options.max_frame_bytes);
        let (limits, keep_alive, server) = first.shake_hands(options).await?;
        let (mut members, mut round_trip) = (None, Duration::MAX);
        for _ in 0..if server.is_clustered { asks } else { 0 } {
            let began = Instant::now();
            members = first.members().await?;
            round_trip = round_trip.min(began.elapsed());
        }
        let mut channels = vec![(first.channel, first.decoder)];
        while channels.len() < options.channels {
            match connection.open().await {
                Ok(Some(channel)) => {
                    let mut decoder = Decoder::new();
                    decoder.set_max_bytes(options.max_frame_bytes);
                    channels.push((channel, decoder));
                }
                Ok(None) => break,
                Err(error) => return Err(ConnectError::Lost(error.into())),
            }
        }
        Ok(Connected { connection, channels, limits, keep_alive, server, members, round_trip })
    };
    tokio::time::timeout(after, all).await.unwrap_or(Err(ConnectError::TimedOut { after }))
}

struct HandshakeChannel {
    channel: Channel,
    decoder: Decoder,
}

impl HandshakeChannel {
    async fn shake_hands(
        &mut self,
        options: &Options,
    ) -> Result<(SessionParameters, Duration, ServerInfo), ConnectError> {
        let mut outbox = Outbox::new();
        let name = &options.name[..options.name.floor_char_boundary(1024)];
        handshake::hello(name, options.max_frame_bytes, options.keep_alive, &[FEATURE_CLUSTER])
            .encode(outbox.buffer(), 0)
            .expect("the name is short, and there is one feature");
        self.write(outbox).await?;
        welcome(&self.next().await?, options)
    }

    /// Asks the server for the members of its cluster; `None` if the server sends no list, because it is stopping.
    async fn members(&mut self) -> Result<Option<ClusterMembers>, ConnectError> {
        let mut outbox = Outbox::new();
        ReadMembers {}.encode(outbox.buffer(), 1).expect("the frame is empty");
        self.write(outbox).await?;
        loop {
            let frame = self.next().await?;
            match Kind::from_code(frame.header.kind) {
                Some(Kind::Goodbye) => return Err(ConnectError::Lost(goodbye(&frame)?)),
                // Ignore other frames, such as pings.
                _ if frame.header.id != 1 => {}
                _ => return Ok(members_of(&frame).ok()),
            }
        }
    }

    async fn write(&mut self, mut outbox: Outbox) -> Result<(), ConnectError> {
        while !outbox.is_empty() {
            poll_fn(|cx| self.channel.poll_write(cx, &mut outbox)).await.map_err(lost)?;
        }
        Ok(())
    }

    /// Waits for the next frame from the server during the handshake.
    async fn next(&mut self) -> Result<SharedFrame, ConnectError> {
        loop {
            if let Some(frame) = self.decoder.next_shared().map_err(|error| ConnectError::Lost(error.into()))? {
                return Ok(frame);
            }
            let read = poll_fn(|cx| match self.channel.poll_read(cx, self.decoder.buffer()) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(read) => Poll::Ready(read),
            });
            if read.await.map_err(lost)? == 0 {
                return Err(ConnectError::Lost(Lost::Closed));
            }
        }
    }
}

fn lost(error: std::io::Error) -> ConnectError {
    ConnectError::Lost(error.into())
}

fn malformed(error: thalweg_wire::DecodeError) -> ConnectError {
    ConnectError::Handshake(HandshakeError::Malformed(error))
}

fn goodbye(frame: &SharedFrame) -> Result<Lost, ConnectError> {
    let Goodbye { reason, class, message, .. } = body_of(frame).map_err(malformed)?;
    Ok(Lost::Goodbye { reason, class, message: message.to_owned() })
}

fn welcome(frame: &SharedFrame, options: &Options) -> Result<(SessionParameters, Duration, ServerInfo), ConnectError> {
    match Kind::from_code(frame.header.kind) {
        Some(Kind::Welcome) => {}
        Some(Kind::Goodbye) => return Err(ConnectError::Lost(goodbye(frame)?)),
        _ => {
            // Decodes the frame as one of a server. If the other side is no Thalweg server, the decoder's error says
            // what is wrong with the bytes.
            ServerFrame::decode(frame.raw()).map_err(malformed)?;
            return Err(ConnectError::Handshake(HandshakeError::NotHello { kind: frame.header.kind }));
        }
    }
    let welcome: Welcome<'_> = body_of(frame).map_err(malformed)?;
    let agreed = check_welcome(&welcome).map_err(ConnectError::Handshake)?;
    let limits = SessionParameters {
        max_send_bytes: agreed.max_send_bytes as usize,
        run: welcome.run,
        max_requests: welcome.max_requests.min(u32::try_from(options.max_requests).unwrap_or(u32::MAX)),
        max_subscriptions: welcome.max_subscriptions,
    };
    let server = ServerInfo {
        version: welcome.server.to_owned(),
        node: welcome.node.0,
        run: welcome.run,
        durability: welcome.durability,
        max_frame_bytes: agreed.max_send_bytes,
        is_clustered: agreed.features.contains(&FEATURE_CLUSTER),
    };
    Ok((limits, agreed.keep_alive, server))
}
