//! Settings of a keyspace (exact counts, default time to live, history), and the encoding of these settings.
//!
//! Owns: the settings, their checks, and their bytes. Does not own: the bounds of a history (`history`), or the effect
//! of a setting (the state machine).
//!
//! ```text
//! config := fields u8 | (tag u8 | len u8 | bytes)*       tags ascending; a field at its default is left out
//! tag    := 1 exact counts: 1
//!         | 16 default TTL: micros u64 LE
//!         | 24 history, newest revisions of each key: u32 LE
//!         | 25 history, age: micros u64 LE
//! ```
//! Tags 1-15 are about counting and storing, 16-23 about time, 24-31 about history. An unknown tag makes the command
//! malformed, so that no node half understands the command of a newer version.

use std::time::Duration;

use crate::{
    codec::{EncodeError, Field, Malformed, Reader},
    command::{error::CommandError, history::KeyspaceHistory, time::Deadline},
    limits::{MAX_HISTORY_AGE, MAX_HISTORY_REVISIONS, MAX_TTL},
};

const EXACT_COUNTS: u8 = 1;
const DEFAULT_TTL: u8 = 16;
const HISTORY_REVISIONS: u8 = 24;
const HISTORY_AGE: u8 = 25;

impl KeyspaceHistory {
    /// Returns true if the keyspace keeps any history.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        *self != Self::default()
    }

    /// Checks both history bounds (revisions and age) against the limits.
    pub fn check(&self) -> Result<(), CommandError> {
        let revisions = self.revisions.is_none_or(|revisions| (2..=MAX_HISTORY_REVISIONS).contains(&revisions));
        let age = self.age.is_none_or(|age| age.as_micros() > 0 && age <= MAX_HISTORY_AGE);
        if revisions && age { Ok(()) } else { Err(CommandError::BadHistory { got: *self }) }
    }
}

/// Settings of a keyspace. With the default settings the keyspace only stores pairs, and a put does not read the
/// previous value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyspaceConfig {
    /// Count keys and bytes exactly. This costs a read for each write. It can only be set when the keyspace is
    /// created, because counting existing keys would require reading all of them.
    pub exact_counts: bool,
    /// Time to live of values that a client puts without one; `None` means that these values live forever. With a
    /// default TTL, each put to the keyspace reads the key's row, to remove the expiry of the previous value. Existing
    /// values keep their deadline or stay without one when this setting changes.
    pub default_ttl: Option<Duration>,
    /// History to keep, for reads at a past revision. Writes to the keyspace then read the value that they replace, and
    /// keep it. The history begins with the log entry that turns it on.
    pub history: KeyspaceHistory,
}

impl KeyspaceConfig {
    /// Returns true if these are the default settings. A write to a keyspace with default settings does not depend on
    /// them.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        *self == Self::default()
    }

    /// Checks the default TTL and the history bounds against the limits.
    pub fn check(&self) -> Result<(), CommandError> {
        self.default_ttl.map_or(Ok(()), |ttl| Deadline::After(ttl).check().map(|_| ()))?;
        self.history.check()
    }

    /// Appends the encoded keyspace settings to `out`. Fields with default values are left out.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let count_at = out.len();
        out.push(0);
        let mut field = |tag: u8, bytes: &[u8]| {
            out[count_at] += 1;
            out.extend_from_slice(&[tag, bytes.len() as u8]);
            out.extend_from_slice(bytes);
        };
        if self.exact_counts {
            field(EXACT_COUNTS, &[1]);
        }
        if let Some(ttl) = self.default_ttl {
            field(DEFAULT_TTL, &micros(ttl));
        }
        if let Some(revisions) = self.history.revisions {
            field(HISTORY_REVISIONS, &revisions.to_le_bytes());
        }
        if let Some(age) = self.history.age {
            field(HISTORY_AGE, &micros(age));
        }
    }

    /// Decodes settings. Bytes that [`encode`](Self::encode) would not write are malformed.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut config = Self::default();
        let mut last = 0;
        for _ in 0..reader.u8("field count")? {
            let at = reader.position();
            let tag = reader.u8("field tag")?;
            let len = usize::from(reader.u8("field length")?);
            let bytes = reader.take(len, "field")?;
            if tag <= last {
                return Err(Malformed { at, expected: "fields in the order of their tags" });
            }
            last = tag;
            match (tag, bytes) {
                (EXACT_COUNTS, [1]) => config.exact_counts = true,
                (DEFAULT_TTL, ttl) => {
                    let ttl = duration(ttl, MAX_TTL);
                    config.default_ttl = Some(ttl.ok_or(Malformed { at, expected: "default TTL within the limits" })?);
                }
                (HISTORY_REVISIONS, revisions) => {
                    let revisions = revisions.try_into().map(u32::from_le_bytes).unwrap_or_default();
                    if !(2..=MAX_HISTORY_REVISIONS).contains(&revisions) {
                        return Err(Malformed { at, expected: "revisions of the history within the limits" });
                    }
                    config.history.revisions = Some(revisions);
                }
                (HISTORY_AGE, age) => {
                    let age = duration(age, MAX_HISTORY_AGE);
                    config.history.age =
                        Some(age.ok_or(Malformed { at, expected: "age of the history within the limits" })?);
                }
                _ => return Err(Malformed { at, expected: "known keyspace setting" }),
            }
        }
        Ok(config)
    }
}

impl<'a> Field<'a> for KeyspaceConfig {
    fn layout() -> String {
        "settings".to_owned()
    }

    fn put(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        self.encode(out);
        Ok(())
    }

    fn take(reader: &mut Reader<'a>, _: &'static str) -> Result<Self, Malformed> {
        Self::decode(reader)
    }
}

fn micros(duration: Duration) -> [u8; 8] {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX).to_le_bytes()
}

/// Decodes a time span in microseconds that is above zero and at most `max`; `None` if it is not.
fn duration(micros: &[u8], max: Duration) -> Option<Duration> {
    let duration = Duration::from_micros(u64::from_le_bytes(micros.try_into().ok()?));
    (!duration.is_zero() && duration <= max).then_some(duration)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(bytes: &[u8]) -> Result<KeyspaceConfig, Malformed> {
        KeyspaceConfig::decode(&mut Reader::at(bytes, 0))
    }

    #[test]
    fn layout_is_pinned() {
        let encoded = |config: KeyspaceConfig| {
            let mut out = Vec::new();
            config.encode(&mut out);
            assert_eq!(decode(&out), Ok(config));
            out
        };
        assert_eq!(encoded(KeyspaceConfig::default()), [0]);
        let exact = KeyspaceConfig { exact_counts: true, ..KeyspaceConfig::default() };
        assert_eq!(encoded(exact), [1, 1, 1, 1]);
        let ending = KeyspaceConfig { default_ttl: Some(Duration::from_micros(258)), ..exact };
        assert_eq!(encoded(ending), [2, 1, 1, 1, 16, 8, 2, 1, 0, 0, 0, 0, 0, 0]);
        let history = KeyspaceHistory { revisions: Some(5), age: Some(Duration::from_micros(258)) };
        let both = KeyspaceConfig { history, ..KeyspaceConfig::default() };
        assert_eq!(encoded(both), [2, 24, 4, 5, 0, 0, 0, 25, 8, 2, 1, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn bounds_of_the_history_are_checked() {
        let history = |revisions, age| KeyspaceHistory { revisions, age }.check().is_ok();
        assert!(history(None, None) && history(Some(2), None) && history(Some(MAX_HISTORY_REVISIONS), None));
        assert!(!history(Some(1), None) && !history(Some(MAX_HISTORY_REVISIONS + 1), None));
        assert!(history(None, Some(MAX_HISTORY_AGE)) && history(Some(2), Some(Duration::from_micros(1))));
        assert!(!history(None, Some(Duration::ZERO)) && !history(None, Some(Duration::from_nanos(999))));
        assert!(!history(None, Some(MAX_HISTORY_AGE + Duration::from_micros(1))));
    }

    #[test]
    fn what_is_not_known_is_malformed() {
        let bad: [&[u8]; 12] = [
            b"\x01\x18\x04\x01\0\0\0",
            b"\x01\x18\x04\x01\x01\0\0",
            b"\x01\x18\x02\x05\0",
            b"\x01\x19\x08\0\0\0\0\0\0\0\0",
            b"\x01\x19\x08\xff\xff\xff\xff\xff\xff\xff\xff",
            b"",
            b"\x01",
            b"\x01\x01\x01\0",
            b"\x01\x01\x01",
            b"\x01\xff\0",
            b"\x02\x01\x01\x01\x01\x01\x01",
            b"\x01\x01\0",
        ];
        for bad in bad {
            assert!(decode(bad).is_err(), "{bad:?}");
        }
    }
}
