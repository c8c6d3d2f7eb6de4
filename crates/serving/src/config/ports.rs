//! Ports of the protocols: the address of the native protocol, and the check for conflicting ports.

use std::net::SocketAddr;

use super::{Config, ConfigError, NativeAddress};

impl Config {
    /// Returns true if the native protocol is served over QUIC.
    pub(super) fn serves_quic(&self) -> bool {
        self.native != NativeAddress::Off && self.native_quic_sockets > 0
    }

    /// Returns the address to listen on for the native protocol; `None` if the protocol is not served.
    #[must_use]
    pub fn native_address(&self) -> Option<SocketAddr> {
        let mut address = self.native.resolve(self.http)?;
        if self.native != NativeAddress::Next {
            return Some(address);
        }
        let taken = [self.resp.address(), self.cluster.address()];
        // At most two ports are taken by other protocols.
        for _ in 0..taken.len() {
            if taken.iter().flatten().any(|other| overlap(address, *other)) {
                address.set_port(address.port().checked_add(1).unwrap_or(0));
            }
        }
        Some(address)
    }

    /// Checks that no two protocols have the same port.
    pub(super) fn check_ports(&self) -> Result<(), ConfigError> {
        let native = self.native_address().map(|address| ("native", address));
        let resp = self.resp.address().map(|address| ("resp", address));
        let cluster = self.cluster.address().map(|address| ("cluster", address));
        let all: Vec<_> = [Some(("http", self.http)), native, resp, cluster].into_iter().flatten().collect();
        for (at, &(first, address)) in all.iter().enumerate() {
            if let Some(&(second, _)) = all[at + 1..].iter().find(|(_, other)| overlap(address, *other)) {
                return Err(ConfigError::SamePort { first, second, port: address.port() });
            }
        }
        Ok(())
    }
}

/// Returns true if two sockets cannot listen at these addresses at the same time.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let is_any = one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() != 0 && one.port() == other.port() && (is_any || one.ip() == other.ip())
}
