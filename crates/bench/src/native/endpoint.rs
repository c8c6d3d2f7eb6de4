//! A server's native port, and the transport of connections to it.

use thalweg_transport::{Dialer, Endpoint};
use thalweg_wire::{Frame, ServerFrame};

use super::line::{ChannelError, ReadyChannel};
use crate::{BenchError, load::block_on_thread};

/// Transport of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, clap::ValueEnum)]
pub enum TransportKind {
    /// TCP, not encrypted.
    #[default]
    Tcp,
    /// TLS over TCP.
    Tls,
    /// QUIC.
    Quic,
}

impl TransportKind {
    /// Returns the transport's usual name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Tls => "TLS",
            Self::Quic => "QUIC",
        }
    }
}

/// A native port and the transport to it.
#[derive(Clone, Debug)]
pub struct NativeEndpoint {
    /// Transport.
    pub carrier: TransportKind,
    /// Address, and the trust in the server's certificate.
    pub endpoint: Endpoint,
}

impl NativeEndpoint {
    /// Opens those of `connections` that `mine` chooses, with `streams` channels each; gives the channels with their
    /// numbers. Where a connection has but one channel, each of them is a connection of its own.
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
        // A connection belongs to one thread with all its streams.
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

    /// Sends one request of setup on a channel of its own; `read` takes the reply that it must have.
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

    /// Opens one channel, for setup.
    pub async fn line(&self) -> Result<ReadyChannel, BenchError> {
        ReadyChannel::dial(&Dialer::new(), &self.endpoint).await
    }
}
