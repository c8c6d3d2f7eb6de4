//! Protocols of a scenario's requests: their addresses, and the operations that each of them supports.

use super::{file::Scenario, mix::Kind};
use crate::native::TransportKind;

/// Scheme of the address of an embedded engine's directory.
pub(super) const EMBEDDED_SCHEME: &str = "embedded://";
/// Maximum number of rows and maximum number of bytes of a scan over the native protocol. A scan must fit into one
/// page.
const MAX_PAGE: (u32, usize) = (4096, 1 << 20);

/// Protocol of a scenario's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum WireProtocol {
    /// HTTP, which has all operations.
    #[default]
    Http,
    /// Redis's commands, for any server that speaks RESP; without scans.
    Resp,
    /// Native protocol over TCP without encryption, which has all operations.
    Native,
    /// Native protocol over TLS on TCP, for servers with native_tls, with all operations.
    NativeTls,
    /// Native protocol over QUIC, which is encrypted with TLS 1.3, with all operations.
    NativeQuic,
    /// Calls of the embedded engine in this process, without a server; no caches and no subjects.
    Embedded,
    /// Core NATS, for a NATS server that runs already; subjects only. Needs a build with the feature nats.
    Nats,
    /// JetStream of a NATS server that runs already; streams, groups and subjects. Needs a build with the feature nats.
    Jetstream,
}

impl WireProtocol {
    /// Schemes of addresses, and the protocols that they name.
    pub(crate) const SCHEMES: [(&str, Self); 9] = [
        ("http://", Self::Http),
        ("redis://", Self::Resp),
        ("resp://", Self::Resp),
        ("thalweg://", Self::Native),
        ("thalweg+tls://", Self::NativeTls),
        ("thalweg+quic://", Self::NativeQuic),
        (EMBEDDED_SCHEME, Self::Embedded),
        ("nats://", Self::Nats),
        ("jetstream://", Self::Jetstream),
    ];

    /// Returns the protocol that the scheme of an address names; `None` if there is none.
    pub(super) fn of_address(text: &str) -> Option<Self> {
        Self::SCHEMES.into_iter().find(|(scheme, _)| text.starts_with(*scheme)).map(|(_, protocol)| protocol)
    }

    /// Returns the name of the protocol in reports.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Http => "HTTP",
            Self::Resp => "RESP2",
            Self::Native => "native protocol over TCP",
            Self::NativeTls => "native protocol over TLS",
            Self::NativeQuic => "native protocol over QUIC (TLS 1.3)",
            Self::Embedded => "calls of the engine in this process, whose processor time is part of the generator's",
            Self::Nats => "core NATS; a publish ends when the server has answered a request behind its messages",
            Self::Jetstream => "JetStream of NATS",
        }
    }

    /// Returns the name of the client that runs on threads of its own beside the load threads; `None` if there is none.
    pub(super) fn client(self) -> Option<&'static str> {
        match self {
            Self::NativeTls | Self::NativeQuic => Some("TLS and QUIC run"),
            Self::Nats | Self::Jetstream => Some("NATS's client, async-nats, runs"),
            Self::Http | Self::Resp | Self::Native | Self::Embedded => None,
        }
    }

    /// Returns the transport of the native protocol; `None` for other protocols.
    pub(super) fn transport(self) -> Option<TransportKind> {
        match self {
            Self::Native => Some(TransportKind::Tcp),
            Self::NativeTls => Some(TransportKind::Tls),
            Self::NativeQuic => Some(TransportKind::Quic),
            Self::Http | Self::Resp | Self::Embedded | Self::Nats | Self::Jetstream => None,
        }
    }

    /// Returns true if requests are encrypted and the server presents a certificate.
    pub(crate) fn is_encrypted(self) -> bool {
        matches!(self, Self::NativeTls | Self::NativeQuic)
    }

    /// Returns true if the server is a NATS server.
    pub(crate) fn is_nats(self) -> bool {
        matches!(self, Self::Nats | Self::Jetstream)
    }

    /// Returns true if the benchmark can start a program as the server.
    pub(crate) fn is_served_by_programs(self) -> bool {
        self != Self::Embedded && !self.is_nats()
    }

    /// Returns true if a request can state the durability level of its write.
    pub(crate) fn names_levels(self) -> bool {
        self != Self::Resp && !self.is_nats()
    }

    /// Returns an error if the protocol does not support the scenario. The error names the first unsupported operation
    /// or field.
    pub(super) fn check(self, scenario: &Scenario) -> Result<(), String> {
        let mix = &scenario.mix;
        match self {
            Self::Http => Ok(()),
            Self::Resp => check_resp(scenario),
            Self::Native | Self::NativeTls | Self::NativeQuic => check_page(scenario),
            Self::Embedded => {
                check_page(scenario)?;
                let is_served = |kind: &Kind| kind.uses_cache() || *kind == Kind::Publish;
                let why = "caches and subjects belong to a server; use --protocol native";
                refuse(mix.kinds().find(is_served), why)
            }
            Self::Nats => {
                let why = "core NATS has only subjects; use jetstream:// for streams and groups, and another protocol for keys";
                refuse(mix.kinds().find(|kind| *kind != Kind::Publish), why)
            }
            Self::Jetstream => {
                let why = "JetStream has streams, groups and subjects here; use another protocol for keys and caches";
                refuse(mix.kinds().find(|kind| kind.has_key()), why)
            }
        }
    }
}

fn refuse(kind: Option<Kind>, why: &str) -> Result<(), String> {
    kind.map_or(Ok(()), |kind| Err(format!("mix.{}: {why}", kind.name())))
}

fn check_page(scenario: &Scenario) -> Result<(), String> {
    let rows = *scenario.scan_rows.end();
    let is_page = rows <= MAX_PAGE.0 && rows as usize * (scenario.value_bytes.end() + 64) <= MAX_PAGE.1;
    let why = "scans: over the native protocol at most 4,096 rows and 1 MiB; use --protocol http";
    if is_page { Ok(()) } else { Err(why.to_owned()) }
}

fn check_resp(scenario: &Scenario) -> Result<(), String> {
    let mix = &scenario.mix;
    let scan = mix.kinds().find(|kind| *kind == Kind::Scan);
    refuse(scan, "RESP has no scan in the order of keys; use --protocol http")?;
    if !mix.has(Kind::uses_cache) {
        return Ok(());
    }
    if mix.has(|kind| kind.uses_keyspace() || kind.uses_stream()) {
        let why = "mix: over RESP a cache is a database of its own, so the mix has no operations on keys or streams";
        return Err(why.to_owned());
    }
    if scenario.cache_bytes.is_some() {
        return Err("caches.max_bytes: RESP creates no caches; set it in the server".to_owned());
    }
    Ok(())
}
