//! The lines of the report.

use crate::native::TransportKind;

/// Work of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamWork {
    /// Appends: publishers with a connection each, and requests that each has under way.
    Publish {
        /// Number of publishers.
        publishers: usize,
        /// Requests under way for each publisher.
        in_flight: usize,
    },
    /// Reads pages one after the other, as a consumer that polls does.
    Poll,
    /// Receives as a tail, under credit.
    Tail,
}

/// A line of the report.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Name in the report.
    pub name: String,
    /// Work of the line.
    pub what: StreamWork,
    /// Bytes of a record's payload.
    pub payload_bytes: usize,
    /// Records of a request.
    pub batch: u32,
    /// Records per second that there should be: over TCP, over QUIC.
    pub floor: Option<(f64, f64)>,
    /// Required share of `1/(round trip + fdatasync)`, over TCP.
    pub of_probe: Option<f64>,
    /// Over QUIC the floor is at most this share of what a bare stream carries.
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

    /// The goals: each publish one in flight, and pipelined beside it.
    pub fn goals() -> Vec<Self> {
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

    /// Creates a line of one publish scenario.
    pub fn of(payload_bytes: usize, batch: u32, publishers: usize, in_flight: usize) -> Self {
        Self::publish(payload_bytes, batch, publishers, in_flight)
    }

    /// Returns the records per second that there should be over a transport.
    pub fn floor(&self, carrier: TransportKind) -> Option<f64> {
        let (tcp, quic) = self.floor?;
        let floor = if carrier == TransportKind::Quic { quic } else { tcp };
        Some(floor).filter(|floor| floor.is_finite())
    }
}
