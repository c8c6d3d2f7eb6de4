//! Parsing and formatting of configuration values: sizes with units, time spans, names.
//!
//! Owns: the trait `Setting`, its implementations for values that several subjects use, and the two macros that
//! implement it. Does not own: the list of knobs (`mod`), or values of one subject, such as those of a cluster or of
//! Redis clients (`cluster`, `resp`).

use std::{fmt, net::SocketAddr, path::PathBuf, time::Duration};

use jiff::SpanRelativeTo;
use thalweg_engine::{BackendKind, TableCompression};
use thalweg_types::Durability;

/// A configuration value that can be written in a file, an environment variable or a flag.
pub trait Setting: Sized {
    /// Placeholder for the value in the help of a flag, such as `SIZE`.
    const VALUE_NAME: &'static str = "VALUE";

    /// Parses the value from its text. The error describes valid values.
    fn parse(text: &str) -> Result<Self, &'static str>;
    /// Formats the value as text from which [`parse`](Self::parse) returns the same value.
    fn show(&self) -> String;
}

/// A number of bytes, such as `4096`, `64KiB`, `16MiB` or `1GiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

const UNITS: [(&str, u64); 4] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

impl Setting for ByteSize {
    const VALUE_NAME: &'static str = "SIZE";

    fn parse(text: &str) -> Result<Self, &'static str> {
        let expected = "a number of bytes such as 4096, 64KiB, 16MiB or 1GiB";
        let (digits, factor) = UNITS
            .iter()
            .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)))
            .unwrap_or((text.strip_suffix('B').unwrap_or(text), 1));
        let number: u64 = whole(digits.trim_end()).ok_or(expected)?;
        number.checked_mul(factor).map(Self).ok_or(expected)
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match UNITS.iter().find(|(_, factor)| self.0 != 0 && self.0.is_multiple_of(*factor)) {
            Some((unit, factor)) => write!(f, "{}{unit}", self.0 / factor),
            None => write!(f, "{}", self.0),
        }
    }
}

/// A time span, such as `250us`, `10ms`, `5s`, `1m`, `1.5h`, `1h30m` or `1d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

const SPANS: [(&str, u64); 6] =
    [("us", 1), ("ms", 1000), ("s", 1_000_000), ("m", 60_000_000), ("h", 3_600_000_000), ("d", 86_400_000_000)];

impl Span {
    /// Creates a span of this number of seconds.
    #[must_use]
    pub const fn seconds(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }
}

impl Setting for Span {
    const VALUE_NAME: &'static str = "SPAN";

    /// Parses a whole number with a unit, and other notations that jiff can read: `1.5h`, `1h30m`, `2 days`, `PT90S`. A
    /// day has 24 hours. Months and years are errors, because they have no fixed length.
    fn parse(text: &str) -> Result<Self, &'static str> {
        let expected = "a span of time with its unit, such as 250us, 10ms, 5s, 1m, 1.5h, 1h30m or 1d";
        let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
        if let Some((_, factor)) = SPANS.iter().find(|(unit, _)| *unit == &text[digits.len()..])
            && let Some(number) = whole(digits.trim_end())
        {
            return number.checked_mul(*factor).map(|micros| Self(Duration::from_micros(micros))).ok_or(expected);
        }
        let span: jiff::Span = text.parse().map_err(|_| expected)?;
        let duration = span.to_duration(SpanRelativeTo::days_are_24_hours()).map_err(|_| expected)?;
        let duration = Duration::try_from(duration).map_err(|_| expected)?;
        // Texts show whole microseconds, and each value must be the same after showing and parsing it.
        if duration.subsec_nanos().is_multiple_of(1000) { Ok(Self(duration)) } else { Err(expected) }
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = u64::try_from(self.0.as_micros()).unwrap_or(u64::MAX);
        match SPANS.iter().rev().find(|(_, factor)| micros != 0 && micros.is_multiple_of(*factor)) {
            Some((unit, factor)) => write!(f, "{}{unit}", micros / factor),
            None => write!(f, "0s"),
        }
    }
}

/// Implements [`Setting`] for a type whose values have fixed names.
macro_rules! names {
    ($type:ty, $value_name:literal, $expected:literal, $($name:literal => $value:pat => $build:expr),+) => {
        impl Setting for $type {
            const VALUE_NAME: &'static str = $value_name;

            fn parse(text: &str) -> Result<Self, &'static str> {
                match text {
                    $($name => Ok($build),)+
                    _ => Err($expected),
                }
            }

            fn show(&self) -> String {
                match self {
                    $($value => $name,)+
                }
                .to_owned()
            }
        }
    };
}

/// Implements [`Setting`] for an address that can be `off`: an enum of `Off` and `At(SocketAddr)`.
macro_rules! optional_address {
    ($type:ty, $expected:literal) => {
        impl $type {
            /// Returns the address at which to listen; `None` if the setting is `off`.
            #[must_use]
            pub fn address(self) -> Option<SocketAddr> {
                match self {
                    Self::Off => None,
                    Self::At(address) => Some(address),
                }
            }
        }

        impl Setting for $type {
            const VALUE_NAME: &'static str = "ADDRESS";

            fn parse(text: &str) -> Result<Self, &'static str> {
                match text {
                    "off" => Ok(Self::Off),
                    address => <SocketAddr as Setting>::parse(address).map(Self::At).map_err(|_| $expected),
                }
            }

            fn show(&self) -> String {
                self.address().map_or_else(|| "off".to_owned(), |address| address.to_string())
            }
        }
    };
}
pub(super) use optional_address;

/// Address at which the native protocol is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NativeAddress {
    /// The native protocol is served on HTTP's address, at the port after HTTP's. If the system chooses HTTP's port,
    /// the system also chooses this one.
    Next,
    /// The native protocol is not served.
    Off,
    /// The native protocol is served at this address.
    At(SocketAddr),
}

impl NativeAddress {
    /// Returns the address to listen on for the native protocol, given the address of HTTP; `None` if the
    /// protocol is not served.
    #[must_use]
    pub fn resolve(self, http: SocketAddr) -> Option<SocketAddr> {
        match self {
            Self::Off => None,
            Self::At(address) => Some(address),
            // If HTTP has the highest port, the system chooses the port of the native protocol.
            Self::Next if http.port() == 0 => Some(http),
            Self::Next => Some(SocketAddr::new(http.ip(), http.port().checked_add(1).unwrap_or(0))),
        }
    }
}

impl Setting for NativeAddress {
    const VALUE_NAME: &'static str = "ADDRESS";

    fn parse(text: &str) -> Result<Self, &'static str> {
        match text {
            "next" => Ok(Self::Next),
            "off" => Ok(Self::Off),
            address => {
                let parsed = <SocketAddr as Setting>::parse(address);
                parsed.map(Self::At).map_err(|_| "next, off, or an address and port such as 127.0.0.1:7071")
            }
        }
    }

    fn show(&self) -> String {
        match self {
            Self::Next => "next".to_owned(),
            Self::Off => "off".to_owned(),
            Self::At(address) => address.to_string(),
        }
    }
}

/// Storage backend of the database's state. `None` means the backend that the data directory already has, and the
/// default backend in a new directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backend(pub Option<BackendKind>);

names!(Backend, "BACKEND", "auto, lsm, memory, redb or sqlite",
    "auto" => Self(None) => Self(None),
    "lsm" => Self(Some(BackendKind::Lsm)) => Self(Some(BackendKind::Lsm)),
    "memory" => Self(Some(BackendKind::Memory)) => Self(Some(BackendKind::Memory)),
    "redb" => Self(Some(BackendKind::Redb)) => Self(Some(BackendKind::Redb)),
    "sqlite" => Self(Some(BackendKind::Sqlite)) => Self(Some(BackendKind::Sqlite)));

names!(TableCompression, "COMPRESSION", "none or lz4",
    "none" => Self::None => Self::None,
    "lz4" => Self::Lz4 => Self::Lz4);

/// Format in which the server writes log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Log lines are text for people.
    Text,
    /// Log lines are JSON objects for programs, one object per line.
    Json,
}

names!(LogFormat, "FORMAT", "text or json",
    "text" => Self::Text => Self::Text,
    "json" => Self::Json => Self::Json);

/// Least severe level of the log lines that are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

names!(LogLevel, "LEVEL", "error, warn, info, debug or trace",
    "error" => Self::Error => Self::Error,
    "warn" => Self::Warn => Self::Warn,
    "info" => Self::Info => Self::Info,
    "debug" => Self::Debug => Self::Debug,
    "trace" => Self::Trace => Self::Trace);

names!(bool, "BOOL", "true or false", "true" => true => true, "false" => false => false);

impl Setting for Durability {
    const VALUE_NAME: &'static str = "LEVEL";

    fn parse(text: &str) -> Result<Self, &'static str> {
        text.parse().map_err(|_| "none, os, interval, disk or quorum")
    }

    fn show(&self) -> String {
        self.name().to_owned()
    }
}

impl Setting for u32 {
    const VALUE_NAME: &'static str = "N";

    fn parse(text: &str) -> Result<Self, &'static str> {
        whole(text).and_then(|number| Self::try_from(number).ok()).ok_or("a whole number below 2^32")
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Setting for SocketAddr {
    const VALUE_NAME: &'static str = "ADDRESS";

    fn parse(text: &str) -> Result<Self, &'static str> {
        let address = match text.split_once(':') {
            Some((host, port)) if host.eq_ignore_ascii_case("localhost") => format!("127.0.0.1:{port}").parse(),
            _ => text.parse(),
        };
        address.map_err(|_| "an address and port such as 127.0.0.1:7070, localhost:7070 or [::1]:7070")
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Setting for PathBuf {
    const VALUE_NAME: &'static str = "DIR";

    fn parse(text: &str) -> Result<Self, &'static str> {
        if text.is_empty() { Err("a path") } else { Ok(Self::from(text)) }
    }

    fn show(&self) -> String {
        self.display().to_string()
    }
}

/// Parses a whole number in decimal digits. Underscores may separate the digits, as in TOML.
fn whole(text: &str) -> Option<u64> {
    let digits: String = text.chars().filter(|letter| *letter != '_').collect();
    (!digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())).then(|| digits.parse().ok()).flatten()
}
