//! What a keyspace is asked to do beyond storing: its configuration, and how that is encoded.
//!
//! ```text
//! config := fields u8 | (tag u8 | len u8 | bytes)*       tags ascending; a field at its default is left out
//! tag    := 1 exact counts: 1
//!         | 16 default TTL: micros u64 LE
//! ```
//! Tags 1-15 are of counting and storing, 16-23 of time, 24-31 of history. A tag that is not known makes
//! the command malformed, so that no node half understands a newer one.

use std::time::Duration;

use crate::{
    limits::MAX_TTL,
    record::{Malformed, Reader},
};

const EXACT_COUNTS: u8 = 1;
const DEFAULT_TTL: u8 = 16;

/// What a keyspace does beyond storing. The default does nothing more, and its puts are blind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyspaceConfig {
    /// Keys and bytes are counted exactly. Costs a read for each write; can only be asked for when the
    /// keyspace is created, because counting what is there already would mean reading all of it.
    pub exact_counts: bool,
    /// How long a value lives whose put says nothing of it; `None`: forever. Puts to the keyspace then read
    /// the key's row, to remove what the value before was to end by. Values that are there already keep
    /// the deadline they have, or have none.
    pub default_ttl: Option<Duration>,
}

impl KeyspaceConfig {
    /// Whether it is the default: writes to the keyspace need not look at the configuration.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        *self == Self::default()
    }

    /// Appends the encoding.
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
            field(DEFAULT_TTL, &u64::try_from(ttl.as_micros()).unwrap_or(u64::MAX).to_le_bytes());
        }
    }

    /// Reads the encoding; anything but what [`encode`](Self::encode) writes is malformed.
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
                    let micros = ttl.try_into().map(u64::from_le_bytes).unwrap_or_default();
                    let ttl = Duration::from_micros(micros);
                    if micros == 0 || ttl > MAX_TTL {
                        return Err(Malformed { at, expected: "default TTL within the limits" });
                    }
                    config.default_ttl = Some(ttl);
                }
                _ => return Err(Malformed { at, expected: "known keyspace setting" }),
            }
        }
        Ok(config)
    }
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
    }

    #[test]
    fn what_is_not_known_is_malformed() {
        let bad: [&[u8]; 7] = [
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
