//! Scenarios of the streams suite. Each scenario is a line of the report.

use crate::native::TransportKind;

/// Kind of load in a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamWork {
    /// Appends by publishers, each on a connection of its own.
    Publish {
        /// Number of publishers that append.
        publishers: usize,
        /// Number of requests that each publisher has in progress.
        in_flight: usize,
    },
    /// Reads pages of records one after the other, as a polling consumer does.
    Poll,
    /// Receives records as a tail: a subscription in which the reader grants credit.
    Tail,
}

/// A load that the suite measures, with its goals. Each scenario is one line of the report.
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    /// Name of the scenario in the report.
    pub name: String,
    /// Kind of load in the scenario.
    pub what: StreamWork,
    /// Size of a record's payload in bytes.
    pub payload_bytes: usize,
    /// Number of records in a request.
    pub batch: u32,
    /// Goals: smallest rates over TCP and over QUIC, in records per second; `None` without goals.
    pub floor: Option<(f64, f64)>,
    /// Goal over TCP: smallest rate as a share of `1/(round trip + fdatasync)`. Both times are measured without a
    /// server.
    pub of_probe: Option<f64>,
    /// Alternative goal over QUIC, for a rate below `floor`: smallest share of the bytes per second of a raw stream
    /// without a server.
    pub bare_share: Option<f64>,
}

impl Scenario {
    fn publish(payload_bytes: usize, batch: u32, publishers: usize, in_flight: usize) -> Self {
        let who = if publishers == 1 { "1 publisher".to_owned() } else { format!("{publishers} publishers") };
        let how = if in_flight == 1 { "one in flight".to_owned() } else { format!("pipelined, {in_flight} in flight") };
        Self {
            name: format!("publish {payload_bytes} B × {batch}, {who}, {how}"),
            what: StreamWork::Publish { publishers, in_flight },
            payload_bytes,
            batch,
            floor: None,
            of_probe: None,
            bare_share: None,
        }
    }

    /// Returns true if the requests write batches of records.
    pub(super) fn writes(&self) -> bool {
        matches!(self.what, StreamWork::Publish { .. })
    }

    /// Returns the scenarios with goals. Each publish scenario is there with one request in progress and with several.
    pub(super) fn goals() -> Vec<Self> {
        let read = |what, name: &str| Self {
            name: name.to_owned(),
            what,
            payload_bytes: 1024,
            batch: 1000,
            floor: Some((2_400_000.0, 552_000.0)),
            of_probe: None,
            bare_share: Some(0.7),
        };
        let one = Self::publish;
        vec![
            Self { floor: Some((37_200.0, f64::NAN)), ..one(128, 1, 16, 1) },
            Self { floor: Some((1_000_000.0, f64::NAN)), ..one(128, 500, 1, 1) },
            one(128, 500, 1, 8),
            Self { of_probe: Some(0.8), floor: Some((f64::NAN, 3_600.0)), ..one(1024, 1, 1, 1) },
            one(1024, 1, 1, 8),
            Self { floor: Some((258_000.0, 180_000.0)), ..one(1024, 100, 1, 1) },
            one(1024, 100, 1, 8),
            Self { floor: Some((763_000.0, 356_000.0)), bare_share: Some(0.7), ..one(1024, 1000, 1, 1) },
            one(1024, 1000, 1, 8),
            read(StreamWork::Poll, "consume 1024 B × 1000, page after page"),
            read(StreamWork::Tail, "consume 1024 B, as a tail"),
        ]
    }

    /// Creates a publish scenario from its parameters.
    pub(super) fn of(payload_bytes: usize, batch: u32, publishers: usize, in_flight: usize) -> Self {
        Self::publish(payload_bytes, batch, publishers, in_flight)
    }

    /// Returns the required records per second over a transport; `None` if nothing is required.
    pub(super) fn floor(&self, carrier: TransportKind) -> Option<f64> {
        let (tcp, quic) = self.floor?;
        let floor = if carrier == TransportKind::Quic { quic } else { tcp };
        Some(floor).filter(|floor| floor.is_finite())
    }
}
