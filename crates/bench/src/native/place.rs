//! Where the server's native port is, and what the connections go over.

use std::net::SocketAddr;

use serde::Serialize;
use thalweg_transport::{Dialer, Endpoint};

use super::line::{Line, LineError};
use crate::BenchError;

/// What connections go over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Carrier {
    /// TCP, not encrypted.
    #[default]
    Tcp,
    /// TLS over TCP; the server's certificate is not checked.
    Tls,
    /// QUIC; the server's certificate is not checked.
    Quic,
}

impl Carrier {
    /// As people write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Tls => "TLS",
            Self::Quic => "QUIC",
        }
    }
}

/// A native port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its address.
    pub address: SocketAddr,
    /// Over what.
    pub carrier: Carrier,
}

impl Place {
    fn endpoint(self) -> Result<Endpoint, BenchError> {
        let address = self.address.to_string();
        match self.carrier {
            Carrier::Tcp => Ok(Endpoint::tcp(address)),
            Carrier::Tls | Carrier::Quic => Err(BenchError::Target {
                target: address,
                message: format!("{} is not built in yet", self.carrier.name()),
            }),
        }
    }

    /// Opens those channels of `connections` times `streams` that `mine` chooses, in order. Where a connection has one channel
    /// each of them is a connection of its own.
    pub async fn open(
        self,
        connections: usize,
        streams: usize,
        mine: impl Fn(usize) -> bool,
    ) -> Result<Vec<(usize, Line)>, BenchError> {
        let (endpoint, dialer) = (self.endpoint()?, Dialer::new());
        let fail = |error: LineError| BenchError::Target { target: self.address.to_string(), message: error.to_string() };
        let mut lines = Vec::new();
        // A connection belongs to one thread with all its streams.
        for connection in (0..connections).filter(|connection| mine(*connection)) {
            let first = Line::dial(&dialer, &endpoint).await?;
            let mut others = Vec::new();
            for _ in 1..streams {
                others.push(match first.another().await.map_err(fail)? {
                    Some(line) => line,
                    None => Line::dial(&dialer, &endpoint).await?,
                });
            }
            let all = std::iter::once(first).chain(others);
            lines.extend((connection * streams..).zip(all));
        }
        Ok(lines)
    }
}
