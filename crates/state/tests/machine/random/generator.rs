//! Random commands of every kind, mostly well formed, with few names and keys.
//!
//! Owns: the kinds of commands and their frequency. Does not own: the grouping of commands into entries (see
//! `list`).
//!
//! Each list uses a random subset of the families of commands. A list with few families has more commands of each,
//! so more of them interact.

use std::{collections::HashMap, time::Duration};

use thalweg_state::machine::KNOWN_VERSION;
use thalweg_types::{
    Attempt, GroupId, KeyspaceId, LeaseId, Offset, SpaceTime, StreamId,
    command::{
        CommandError, Deadline, KeyspaceConfig, KeyspaceHistory, encode_configure_keyspace, encode_create_keyspace,
        encode_drop_keyspace, encode_expire, encode_forget_rows, encode_grant_lease, encode_keep_lease,
        encode_prune_versions, encode_revoke_lease, encode_sweep, version_needed,
    },
};

use super::{Input, keys, redis, streams};

/// Result of an encoder.
pub type Encoded = Result<(), CommandError>;

const NAMES: [&str; 5] = ["a", "b", "c", "d", "dead"];
const KEYS: [&[u8]; 10] = [b"a", b"aa", b"ab", b"b", b"ba", b"p", b"p00", b"p01", b"", b"\xff"];
const PREFIXES: [&[u8]; 5] = [b"p", b"a", b"", b"p0", b"b"];
/// Lengths of values: inline with all options, or in the log with some or all of the options that tests use.
const LENGTHS: [usize; 8] = [1, 4, 100, 128, 129, 200, 260, 320];

/// Kind of puts in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Puts {
    /// Puts of few keys, so that they replace each other.
    Anywhere,
    /// Puts of distinct keys, and no command that replaces or deletes a single key. Then the counts of live bytes
    /// are exact; with blind puts they are an upper bound.
    FreshKeys,
}

/// Families of commands, as bits.
const KEYS_FAMILY: u16 = 1;
const TIME_FAMILY: u16 = 2;
const CLEARS_FAMILY: u16 = 4;
const HISTORY_FAMILY: u16 = 8;
const STREAMS_FAMILY: u16 = 16;
const GROUPS_FAMILY: u16 = 32;
const REDIS_FAMILY: u16 = 64;
const ADMIN_FAMILY: u16 = 128;

/// Families in proportion to their frequency.
const FAMILIES: [u16; 12] = [
    KEYS_FAMILY,
    TIME_FAMILY,
    CLEARS_FAMILY,
    HISTORY_FAMILY,
    STREAMS_FAMILY,
    GROUPS_FAMILY,
    REDIS_FAMILY,
    ADMIN_FAMILY,
    KEYS_FAMILY,
    KEYS_FAMILY,
    REDIS_FAMILY,
    TIME_FAMILY,
];

/// State on which the commands of a list depend, in addition to the input.
#[derive(Debug)]
pub struct Generator {
    /// Space time of the next command.
    pub time: u64,
    pub puts: Puts,
    families: u16,
    fresh: u32,
    /// Next sequences of producers, assuming that their appends succeed.
    sequences: HashMap<(StreamId, &'static str), u64>,
    /// Numbers that attempts have got, assuming that their fetches delivered records.
    attempts: Vec<u64>,
    /// Keys of rows that may have become stale.
    ends: Vec<Vec<u8>>,
}

impl Generator {
    /// Creates a generator with a random choice of families.
    pub fn new(input: &mut Input<'_>, puts: Puts) -> Self {
        let families = match input.below(3) {
            0 => u16::MAX,
            1 => input.short() | input.short(),
            _ => input.short(),
        };
        let families = if families & 0xff == 0 { u16::MAX } else { families };
        // Redis commands replace values.
        let families = if puts == Puts::FreshKeys { families & !REDIS_FAMILY } else { families };
        Self {
            time: 1_000_000,
            puts,
            families,
            fresh: 0,
            sequences: HashMap::new(),
            attempts: Vec::new(),
            ends: Vec::new(),
        }
    }

    /// Returns the first commands of a list, which create names for the others to use.
    pub fn names(&mut self, input: &mut Input<'_>) -> Vec<Vec<u8>> {
        let exact = KeyspaceConfig { exact_counts: true, ..KeyspaceConfig::default() };
        let revisions = KeyspaceHistory { revisions: Some(2 + input.below(3) as u32), age: None };
        let age = KeyspaceHistory { revisions: None, age: Some(Duration::from_millis(150)) };
        let counted = KeyspaceConfig { exact_counts: input.one_in(2), ..KeyspaceConfig::default() };
        let configs = [
            KeyspaceConfig::default(),
            exact,
            KeyspaceConfig { history: revisions, ..counted },
            KeyspaceConfig { history: age, ..keyspace_config(input) },
        ];
        let configs: Vec<_> = configs.into_iter().zip(NAMES).collect();
        let mut names: Vec<_> =
            configs.iter().map(|(config, name)| encoded(|out| encode_create_keyspace(out, name, config))).collect();
        if self.has_streams() {
            names.extend(streams::names(input));
        }
        if self.has(TIME_FAMILY) {
            let ttl = lease_ttl(input).max(Duration::from_millis(200));
            names.push(encoded(|out| encode_grant_lease(out, Some(LeaseId(1)), ttl)));
        }
        names
    }

    fn has(&self, families: u16) -> bool {
        self.families & families != 0
    }

    /// Returns the next command.
    pub fn command(&mut self, input: &mut Input<'_>) -> Vec<u8> {
        // The first attempt almost always chooses a family of the list.
        for _ in 0..64 {
            let mut out = Vec::new();
            if let Some(Ok(())) = self.encode(input, &mut out)
                && !out.is_empty()
            {
                if input.one_in(64) {
                    spoil(input, &mut out);
                }
                return out;
            }
            if input.is_empty() {
                break;
            }
        }
        encoded(|out| {
            encode_expire(out, 1);
            Ok(())
        })
    }

    /// Encodes a command; returns `None` if the list does not have its family.
    fn encode(&mut self, input: &mut Input<'_>, out: &mut Vec<u8>) -> Option<Encoded> {
        let (family, kind) = (FAMILIES[input.below(FAMILIES.len())], input.byte());
        if !self.has(family) {
            return None;
        }
        Some(match family {
            KEYS_FAMILY => keys::encode(self, input, kind, out),
            TIME_FAMILY => self.about_time(input, kind, out),
            CLEARS_FAMILY => keys::about_prefixes(self, input, kind, out),
            HISTORY_FAMILY => self.about_history(input, kind, out),
            STREAMS_FAMILY => streams::encode(self, input, kind, out),
            GROUPS_FAMILY => streams::about_groups(self, input, kind, out),
            REDIS_FAMILY => redis::encode(self, input, out),
            ADMIN_FAMILY => self.about_names(input, kind, out),
            _ => return None,
        })
    }

    fn about_time(&mut self, input: &mut Input<'_>, kind: u8, out: &mut Vec<u8>) -> Encoded {
        match kind % 10 {
            0 => return encode_grant_lease(out, lease(input), lease_ttl(input)),
            1 => encode_keep_lease(out, lease(input).unwrap_or_default()),
            2 | 3 => encode_revoke_lease(out, lease(input).unwrap_or_default()),
            4 | 5 => encode_expire(out, max(input)),
            6 => {
                let picked = (0..=input.below(3)).filter_map(|_| {
                    let at = usize::from(input.short()).checked_rem(self.ends.len())?;
                    Some(self.ends[at].as_slice())
                });
                encode_forget_rows(out, picked.collect::<Vec<_>>().into_iter());
            }
            _ => return keys::put_until(self, input, out),
        }
        Ok(())
    }

    fn about_history(&mut self, input: &mut Input<'_>, kind: u8, out: &mut Vec<u8>) -> Encoded {
        match kind % 3 {
            0 | 1 => encode_prune_versions(out, keyspace(input), max(input)),
            _ => return encode_configure_keyspace(out, keyspace(input), &keyspace_config(input)),
        }
        Ok(())
    }

    fn about_names(&mut self, input: &mut Input<'_>, kind: u8, out: &mut Vec<u8>) -> Encoded {
        match kind % 6 {
            2 if input.one_in(3) => encode_drop_keyspace(out, keyspace(input)),
            0 | 2 => return encode_create_keyspace(out, name(input), &keyspace_config(input)),
            1 => return encode_configure_keyspace(out, keyspace(input), &keyspace_config(input)),
            3 => encode_sweep(out, max(input)),
            _ => return streams::about_names(input, kind / 6, out),
        }
        Ok(())
    }

    /// Returns the key of a put.
    pub fn put_key(&mut self, input: &mut Input<'_>) -> Vec<u8> {
        match self.puts {
            Puts::Anywhere => key(input).to_vec(),
            Puts::FreshKeys => {
                self.fresh += 1;
                [PREFIXES[input.below(PREFIXES.len())], format!("{:05}", self.fresh).as_bytes()].concat()
            }
        }
    }

    /// Returns true if the list has commands about streams.
    pub fn has_streams(&self) -> bool {
        self.has(STREAMS_FAMILY | GROUPS_FAMILY)
    }

    /// Returns the sequence of a producer's append: mostly the next one, or an earlier one.
    pub fn sequence(&mut self, input: &mut Input<'_>, stream: StreamId, id: &'static str) -> u64 {
        let next = self.sequences.entry((stream, id)).or_default();
        match input.below(8) {
            0..5 => {
                *next += 1;
                *next - 1
            }
            7 => input.number(),
            back => next.saturating_sub(back as u64 - 4),
        }
    }

    /// Records the number of the attempt that a fetch creates: the time, or one above the last number.
    pub fn note_fetch(&mut self) {
        let again = self.attempts.iter().filter(|&&attempt| attempt >= self.time).count() as u64;
        self.attempts.push(self.time.saturating_add(again.min(2)));
    }

    /// Returns an attempt, mostly a recent one.
    pub fn attempt(&self, input: &mut Input<'_>) -> Attempt {
        let back = [0, 0, 1, 0, 1, 2, 3, 200][input.below(8)];
        let at = self.attempts.len().checked_sub(1 + back).map(|at| self.attempts[at]);
        Attempt(at.unwrap_or_else(|| input.number()))
    }

    /// Records the rows of a put with an expiry, for commands that delete stale rows.
    pub fn note_end(&mut self, keyspace: KeyspaceId, key: &[u8], deadline: Deadline, lease: Option<LeaseId>) {
        let row = |tag: u8, first: u64| [&[tag][..], &first.to_be_bytes(), &keyspace.0.to_be_bytes(), key].concat();
        let at = match deadline {
            Deadline::After(ttl) => Some(self.time.saturating_add(u64::try_from(ttl.as_micros()).unwrap_or(u64::MAX))),
            Deadline::At(time) => Some(time.0),
            _ => None,
        };
        self.ends.extend(at.map(|at| row(0x08, at)));
        self.ends.extend(lease.map(|lease| row(0x0a, lease.0)));
    }
}

/// Returns the bytes of a command that is known to encode.
pub fn encoded(encode: impl FnOnce(&mut Vec<u8>) -> Encoded) -> Vec<u8> {
    let mut out = Vec::new();
    encode(&mut out).expect("it is within all limits");
    out
}

/// Makes a command malformed, or a different one. Never one that needs a later version, because that stops the
/// machine (see `upgrade.rs`).
fn spoil(input: &mut Input<'_>, out: &mut Vec<u8>) {
    let at = usize::from(input.short()) % out.len();
    match input.below(3) {
        0 => out.truncate(at),
        1 => out[0] = input.byte(),
        _ => out[at] ^= 1 << input.below(8),
    }
    if version_needed(out) > KNOWN_VERSION {
        out.clear();
    }
}

/// Returns a keyspace, mostly an existing one.
pub fn keyspace(input: &mut Input<'_>) -> KeyspaceId {
    match input.byte() {
        255 => KeyspaceId(0),
        250..255 => KeyspaceId(6),
        243..250 => KeyspaceId(5),
        byte => KeyspaceId([1, 2, 3, 4, 1, 2, 3][usize::from(byte) % 7]),
    }
}

pub fn stream(input: &mut Input<'_>) -> StreamId {
    StreamId([1, 2, 1, 2, 1, 2, 3, 4][input.below(8)])
}

pub fn group(input: &mut Input<'_>) -> GroupId {
    GroupId([1, 2, 1, 2, 1, 2, 3, 4][input.below(8)])
}

pub fn lease(input: &mut Input<'_>) -> Option<LeaseId> {
    Some(LeaseId([0, 1, 1, 1, 0, 2, 1, 3][input.below(8)])).filter(|lease| *lease != LeaseId::ZERO)
}

fn lease_ttl(input: &mut Input<'_>) -> Duration {
    Duration::from_millis([10_000, 150, 500, 100, 10_000, 60_000, 0][input.below(7)])
}

pub fn name(input: &mut Input<'_>) -> &'static str {
    NAMES[input.below(NAMES.len())]
}

pub fn key(input: &mut Input<'_>) -> &'static [u8] {
    KEYS[input.below(KEYS.len())]
}

pub fn prefix(input: &mut Input<'_>) -> &'static [u8] {
    PREFIXES[input.below(PREFIXES.len())]
}

/// Returns a value: text that some commands parse as a number, or bytes of some length.
pub fn value(input: &mut Input<'_>) -> Vec<u8> {
    match input.byte() {
        0..32 => b"7".to_vec(),
        32..48 => b"".to_vec(),
        48..56 => b"-9223372036854775808".to_vec(),
        byte => vec![b'v' + byte % 4; LENGTHS[input.below(LENGTHS.len())]],
    }
}

/// Returns a maximum number of rows for a command.
pub fn max(input: &mut Input<'_>) -> u32 {
    [10_000, 100, 5, 1, 2, 30, 0, u32::MAX][input.below(8)]
}

/// Returns a duration, mostly of milliseconds similar to the times between commands.
pub fn span(input: &mut Input<'_>) -> Duration {
    match input.byte() {
        255 => Duration::from_micros(input.number()),
        byte => Duration::from_millis([1, 50, 100, 200, 1000][usize::from(byte) % 5]),
    }
}

pub fn deadline(generator: &Generator, input: &mut Input<'_>) -> Deadline {
    match input.below(8) {
        0 => Deadline::Default,
        1 => Deadline::Never,
        2 => Deadline::At(SpaceTime(generator.time.saturating_add(50_000 * input.below(6) as u64))),
        3 => Deadline::At(SpaceTime(input.number())),
        4 => Deadline::Keep,
        _ => Deadline::After(span(input)),
    }
}

pub fn keyspace_config(input: &mut Input<'_>) -> KeyspaceConfig {
    let flags = input.byte();
    let default_ttl = (flags & 6 == 6).then(|| Duration::from_millis([50, 150, 1000][input.below(3)]));
    let revisions = (flags & 8 != 0).then(|| 2 + input.below(4) as u32);
    let age = (flags & 48 == 48).then(|| Duration::from_millis([50, 150, 1000][input.below(3)]));
    KeyspaceConfig { exact_counts: flags & 1 != 0, default_ttl, history: KeyspaceHistory { revisions, age } }
}

/// Returns an offset, mostly near the beginning of a stream.
pub fn offset(input: &mut Input<'_>) -> Offset {
    Offset(if input.byte() == 255 { input.number() } else { u64::from(input.byte() % 32) })
}
