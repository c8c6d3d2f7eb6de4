//! Address of a server's native port, together with the transport of connections to it.

use thalweg_transport::{Dialer, Endpoint, Trust};
use thalweg_wire::{Frame, ServerFrame};

use super::line::{ChannelError, ReadyChannel};
use crate::{BenchError, block_on_thread};

/// Transport of connections to the native port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, clap::ValueEnum)]
pub enum TransportKind {
    /// TCP without encryption.
    #[default]
    Tcp,
    /// TLS over TCP.
    Tls,
    /// QUIC, which is encrypted and runs over UDP.
    Quic,
}

impl TransportKind {
    /// Returns the transport's usual name, such as "TCP", for reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Tls => "TLS",
            Self::Quic => "QUIC",
        }
    }
}

/// Address of a server's native port, with the transport and the trust settings for connections to it.
#[derive(Clone, Debug)]
pub struct NativeEndpoint {
    /// Transport of the connections.
    pub carrier: TransportKind,
    /// Address of the port, and how the client verifies the server's certificate.
    pub endpoint: Endpoint,
}

impl NativeEndpoint {
    /// Returns the endpoint at `host:port`. Returns `None` if the transport needs trust in the server's certificate and
    /// `trust` is `None`.
    pub fn new(carrier: TransportKind, address: impl Into<String>, trust: Option<Trust>) -> Option<Self> {
        let endpoint = match (carrier, trust) {
            (TransportKind::Tcp, _) => Endpoint::tcp(address),
            (TransportKind::Tls, Some(trust)) => Endpoint::tls(address, trust),
            (TransportKind::Quic, Some(trust)) => Endpoint::quic(address, trust),
            (TransportKind::Tls | TransportKind::Quic, None) => return None,
        };
        Some(Self { carrier, endpoint })
    }

    /// Opens the connections of one load thread, each with `streams` channels. The connections of the whole run are
    /// numbered from 0 to `connections` - 1, and `mine` returns true for the numbers that belong to the calling thread.
    /// Returns the channels with their numbers. If the transport permits only one channel for each connection, opens a
    /// connection for each channel.
    pub async fn open(
        &self,
        connections: usize,
        streams: usize,
        mine: impl Fn(usize) -> bool,
    ) -> Result<Vec<(usize, ReadyChannel)>, BenchError> {
        let dialer = Dialer::new();
        let fail =
            |error: ChannelError| BenchError::target(self.endpoint.address())(format!("opening a stream: {error}"));
        let mut lines = Vec::new();
        // A connection with all its streams belongs to one thread.
        for connection in (0..connections).filter(|connection| mine(*connection)) {
            let first = ReadyChannel::dial(&dialer, &self.endpoint).await?;
            let mut others = Vec::new();
            for _ in 1..streams {
                others.push(match first.open_sibling().await.map_err(fail)? {
                    Some(line) => line,
                    None => ReadyChannel::dial(&dialer, &self.endpoint).await?,
                });
            }
            lines.extend((connection * streams..).zip(std::iter::once(first).chain(others)));
        }
        Ok(lines)
    }

    /// Sends one request during setup, on a channel (a TCP connection or a QUIC stream) of its own. `read` returns the
    /// result from the expected reply, and `None` for any other reply.
    pub fn ask<'a, F: Frame<'a>, T>(
        &self,
        doing: &'static str,
        request: &F,
        read: impl FnOnce(ServerFrame<'_>) -> Option<T>,
    ) -> Result<T, BenchError> {
        block_on_thread(async {
            let asked = self.line().await?.ask(request, read).await;
            asked.map_err(BenchError::subject(self.endpoint.address(), doing))
        })
    }

    /// Opens one channel (a TCP connection or a QUIC stream), for a request during setup.
    pub async fn line(&self) -> Result<ReadyChannel, BenchError> {
        ReadyChannel::dial(&Dialer::new(), &self.endpoint).await
    }
}
