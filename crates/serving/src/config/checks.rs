//! Checks that the values of a configuration do not contradict each other.
//!
//! Owns: the checks of all values but those of a cluster (`cluster_checks`) and the ports (`ports`).

use thalweg_transport::MAX_QUIC_SOCKETS;
use thalweg_types::limits::{MAX_PUBLISH_BYTES, MAX_WATCHES, MIN_CACHE_BYTES};

use super::{ByteSize, Config, ConfigError, MIB, MemorySize, PemFile, RespAddress, Span, memory_size};
use crate::limits::MAX_CONNECTION_THREADS;

impl Config {
    /// Checks that the configuration values fit together. The error names the first value that does not.
    pub fn check(&self) -> Result<(), ConfigError> {
        let wrong = |name, expected: &'static str| Err(ConfigError::Range { name, expected });
        if let MemorySize::Bytes(ByteSize(..memory_size::MIN_MEMORY_BYTES)) = self.memory {
            return wrong("memory", "auto, or at least 64MiB");
        }
        self.check_ports()?;
        if !self.http.ip().is_loopback() && !self.allow_unprotected {
            return Err(ConfigError::Unprotected { knob: "http", address: self.http });
        }
        self.check_native()?;
        self.check_cluster()?;
        if let RespAddress::At(address) = self.resp
            && !address.ip().is_loopback()
            && !self.allow_unprotected
        {
            return Err(ConfigError::Unprotected { knob: "resp", address });
        }
        for (name, threads) in [("native_threads", self.native_threads), ("resp_threads", self.resp_threads)] {
            if threads > MAX_CONNECTION_THREADS {
                return wrong(name, "at most 256");
            }
        }
        if u32::try_from(self.segment_bytes.0).is_err() {
            return wrong("segment_bytes", "below 4GiB");
        }
        for (name, value) in [
            ("max_connections", u64::from(self.max_connections)),
            ("max_requests_in_flight", u64::from(self.max_requests_in_flight)),
            ("max_handshakes", u64::from(self.max_handshakes)),
            ("max_body_bytes", self.max_body_bytes.0),
            ("min_transfer_rate", self.min_transfer_rate.0),
            ("max_scans", u64::from(self.max_scans)),
            ("batch_messages", u64::from(self.batch_messages)),
            ("batch_bytes", self.batch_bytes.0),
            ("subscription_messages", u64::from(self.subscription_messages)),
            ("subscription_bytes", self.subscription_bytes.0),
        ] {
            if value == 0 {
                return wrong(name, "at least 1");
            }
        }
        // The database's own bound on watches has no shares for clients, so `max_tails` must not exceed it.
        if self.max_tails as usize > MAX_WATCHES {
            return wrong("max_tails", "at most 10000, which is the maximum number of watches");
        }
        if self.share_reserve_percent > 50 {
            return wrong("share_reserve_percent", "at most 50");
        }
        for (name, value) in [
            ("idle_timeout_when_short", self.idle_timeout_when_short),
            ("header_timeout", self.header_timeout),
            ("body_timeout", self.body_timeout),
            ("write_timeout", self.write_timeout),
            ("tail_keep_alive", self.tail_keep_alive),
        ] {
            if value.0.is_zero() {
                return wrong(name, "above 0s");
            }
        }
        if self.max_body_bytes_in_flight < self.max_body_bytes {
            return wrong(
                "max_body_bytes_in_flight",
                "at least max_body_bytes; otherwise the largest body is never admitted",
            );
        }
        if self.max_reply_bytes_in_flight.0 < memory_size::LEAST_REPLY_BYTES {
            return wrong(
                "max_reply_bytes_in_flight",
                "at least 24MiB; otherwise the largest values are never admitted",
            );
        }
        if self.max_link_bytes < self.subscription_bytes {
            return wrong(
                "max_link_bytes",
                "at least subscription_bytes; otherwise a single subscription never reaches its limit",
            );
        }
        if self.max_queued_bytes < self.max_link_bytes {
            return wrong(
                "max_queued_bytes",
                "at least max_link_bytes; otherwise a single connection never reaches its limit",
            );
        }
        if self.batch_bytes.0 > MAX_PUBLISH_BYTES as u64 / 2 {
            return wrong("batch_bytes", "at most 8MiB");
        }
        if self.max_object_bytes.0 < MIB {
            return wrong("max_object_bytes", "at least 1MiB");
        }
        if self.new_cache_bytes.0 < MIN_CACHE_BYTES {
            return wrong("new_cache_bytes", "at least 64KiB");
        }
        if self.idle_timeout.0 < self.tail_keep_alive.0 * 2 {
            return wrong("idle_timeout", "at least twice tail_keep_alive; otherwise quiet tails are closed as idle");
        }
        if self.drain_timeout > Span::seconds(8) {
            return wrong("drain_timeout", "at most 8s, so that a stop takes at most 10s");
        }
        Ok(())
    }

    fn check_native(&self) -> Result<(), ConfigError> {
        let wrong = |name, expected: &'static str| Err(ConfigError::Range { name, expected });
        // TLS alone does not authenticate clients, so it keeps none of them out.
        if let Some(address) = self.native_address()
            && !address.ip().is_loopback()
            && !self.allow_unprotected
        {
            return Err(ConfigError::Unprotected { knob: "native", address });
        }
        let is_file = |file: &PemFile| matches!(file, PemFile::At(_));
        if is_file(&self.native_certificate) && !is_file(&self.native_key) {
            return wrong("native_key", "a file with the private key, because native_certificate is a file");
        }
        if is_file(&self.native_key) && !is_file(&self.native_certificate) {
            return wrong("native_certificate", "a file with the certificate, because native_key is a file");
        }
        if self.native_quic_sockets as usize > MAX_QUIC_SOCKETS {
            return wrong("native_quic_sockets", "at most 64");
        }
        if self.native_quic_window < ByteSize(128 << 10) || self.native_quic_window > ByteSize(1 << 30) {
            return wrong("native_quic_window", "at least 128KiB and at most 1GiB");
        }
        Ok(())
    }
}
