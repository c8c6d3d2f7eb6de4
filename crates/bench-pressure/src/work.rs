//! Requests of the suite: puts that load keys, gets of loaded keys, and gets of absent keys.
//!
//! Owns: the key of each request, the check of each reply, and the times during which a connection got no reply. Does
//! not own: the bytes of requests ([`Codec`]) and values ([`Records`]).
//!
//! Loaded keys have even numbers and absent keys odd ones, so each absent key lies between two loaded keys. So the
//! server cannot exclude an absent key by the range of keys that a table has.

use std::{sync::Arc, time::Instant};

use crate::{
    BenchError,
    latency::nanos,
    load::{
        BadReply, Batching, Connection, Decoded, Merge, OnLoss, Protocol, Tally,
        pairs::{Codec, Content, Records, shown},
    },
    options::Order,
    random::Generator,
};

/// Time in nanoseconds without a reply after which a connection counts as stalled. It is a goal of the suite.
pub(crate) const STALL_NANOS: u64 = 100_000_000;
/// Version of all values. A key that is written again gets the same value, so there is only one version.
const VERSION: u32 = 1;

/// The keys that a run uses, with their values, and the order in which they are loaded.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    records: Arc<Records>,
    count: u64,
    /// Step between the indices of two keys that are loaded one after the other, modulo `count`. Indices are
    /// `0..count`. The step is coprime to `count`, so each key is loaded once.
    step: u64,
    /// Number of keys that earlier runs have loaded. This run continues at this position in the order of loading.
    first: u64,
}

impl Keys {
    /// Creates `count` keys with values of `bytes` bytes.
    pub(crate) fn new(count: u64, bytes: usize, order: Order, seed: u64) -> Self {
        let step = match order {
            Order::Ascending => 1,
            Order::Scattered => scattering_step(count),
        };
        Self { records: Arc::new(Records::new(bytes..=bytes, seed)), count, step, first: 0 }
    }

    /// Returns these keys for a run that begins to load at position `first` in the order of loading.
    pub(crate) fn from(&self, first: u64) -> Self {
        Self { first, ..self.clone() }
    }

    /// Returns the number of keys.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Returns the number of the key at a position in the order of loading.
    fn loaded(&self, position: u64) -> u64 {
        2 * ((self.first + position) * self.step % self.count)
    }
}

/// Returns a step for going through `count` keys in a scattered order. It is coprime to `count` and near `count` times
/// 0.618 (the golden ratio). Multiples of such a step, modulo `count`, cover the range of the keys evenly.
fn scattering_step(count: u64) -> u64 {
    let mut step = ((count as f64 * 0.618_033_988_75) as u64).max(1);
    while greatest_common_divisor(step, count) != 1 {
        step += 1;
    }
    step
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

/// Operation that all requests of a run perform. The load generator draws a number for each request, which determines
/// the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Writes a key. The drawn number is the key's position in the order of loading.
    Load,
    /// Writes the key with the drawn number.
    Put,
    /// Reads the key with the drawn number, which was loaded.
    Get,
    /// Reads the key after the one with the drawn number. This key was never written.
    GetAbsent,
}

/// Requests of one run over one protocol.
#[derive(Clone, Debug)]
pub(crate) struct KeyWork<C> {
    pub codec: C,
    pub keys: Keys,
    pub action: Action,
}

/// Time at which a connection received its last reply; `None` before the first one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LastReply(Option<Instant>);

/// Summary of the times during which single connections got no reply: the longest, and the number of stalls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Longest time in nanoseconds between two replies of a connection. For the first reply, the time since its
    /// request.
    pub longest_gap: u64,
    /// Number of times without a reply on a connection that were longer than [`STALL_NANOS`].
    pub stalls: u64,
}

impl Merge for Counts {
    fn merge(&mut self, other: Self) {
        self.longest_gap = self.longest_gap.max(other.longest_gap);
        self.stalls += other.stalls;
    }
}

impl<C: Codec> KeyWork<C> {
    fn judge(&self, index: u64, content: &Content<'_>) -> Result<(), String> {
        let fault = match (self.action, content) {
            (Action::Load | Action::Put, content) if self.codec.is_stored(content) => return Ok(()),
            (Action::GetAbsent, Content::Missing) => return Ok(()),
            (Action::Get, Content::Value(value)) => match self.keys.records.version_of(index, value) {
                Some(VERSION) => return Ok(()),
                _ => format!("{} bytes that were never written to it: {:?}", value.len(), shown(value)),
            },
            (Action::Get, Content::Missing) => "it has no value, and a write of it was acknowledged".to_owned(),
            (Action::GetAbsent, Content::Value(_)) => "it has a value, and was never written".to_owned(),
            (_, Content::Refused(message)) => format!("refused: {message}"),
            _ => "the answer is one to another operation".to_owned(),
        };
        Err(format!("key {index}: {fault}"))
    }
}

impl<C: Codec> Protocol for KeyWork<C> {
    /// Number of the key that the request uses.
    type Request = u64;
    /// Time since the last reply on the connection, in nanoseconds; `None` for the first reply.
    type Reply = Option<u64>;
    type Fault = String;
    type State = LastReply;
    type Counts = Counts;

    const BATCHING: Batching = Batching::Burst;
    const ON_LOSS: OnLoss = OnLoss::End;

    fn connect(&self) -> Result<Connection, BenchError> {
        self.codec.connect()
    }

    fn kinds(&self) -> usize {
        1
    }

    #[inline]
    fn choose(&self, drawn: u64, _: &mut Generator) -> u64 {
        match self.action {
            Action::Load => self.keys.loaded(drawn),
            Action::Put | Action::Get => 2 * drawn,
            Action::GetAbsent => 2 * drawn + 1,
        }
    }

    #[inline]
    fn aside(&self, bytes: &[u8], out: &mut Vec<u8>) -> Option<usize> {
        self.codec.aside(bytes, out)
    }

    #[inline]
    fn kind(_: u64) -> usize {
        0
    }

    #[inline]
    fn encode(&self, index: u64, out: &mut Vec<u8>) {
        match self.action {
            Action::Load | Action::Put => {
                let (head, letters) = self.keys.records.value(index, VERSION);
                self.codec.put(index, [&head, letters], out);
            }
            Action::Get | Action::GetAbsent => self.codec.get(index, out),
        }
    }

    #[inline]
    fn decode(
        &self,
        index: u64,
        last: &mut LastReply,
        bytes: &[u8],
    ) -> Result<Option<Decoded<Option<u64>>>, BadReply<Option<u64>, String>> {
        let answer = match self.codec.decode(bytes) {
            Ok(None) => return Ok(None),
            Ok(Some(answer)) => answer,
            Err(fault) => return Err(BadReply { fault, decoded: None }),
        };
        let now = Instant::now();
        let reply = last.0.replace(now).map(|last| nanos(now - last));
        let decoded = Decoded { bytes: answer.bytes, reply, closes: answer.closes };
        match self.judge(index, &answer.content) {
            Ok(()) => Ok(Some(decoded)),
            Err(fault) => Err(BadReply { fault, decoded: Some(decoded) }),
        }
    }

    #[inline]
    fn count(&self, counts: &mut Counts, gap: Option<u64>, service: Option<u64>) {
        let gap = gap.or(service).unwrap_or(0);
        counts.merge(Counts { longest_gap: gap, stalls: u64::from(gap > STALL_NANOS) });
    }

    fn errors(&self, tally: &Tally<Counts>) -> Option<String> {
        let faults = tally.wrong + tally.lost;
        (faults > 0).then(|| format!("{} wrong replies, {} lost connections", tally.wrong, tally.lost))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{
        load::{Address, pairs::RespCodec, resp::client::Greeting},
        options::MAX_KEYS,
    };

    fn work(action: Action) -> KeyWork<RespCodec> {
        let address = Address::Tcp("127.0.0.1:1".parse().unwrap());
        let greeting = Greeting { address, password: None, database: 0, is_resp3: false };
        KeyWork { codec: RespCodec { greeting }, keys: Keys::new(10, 30, Order::Scattered, 1), action }
    }

    #[test]
    fn each_key_is_loaded_once_in_both_orders_and_in_slices() {
        for order in [Order::Scattered, Order::Ascending] {
            for count in [1, 2, 10, 997, 1000] {
                let keys = Keys::new(count, 30, order, 1);
                let half = count / 2;
                let (first, second) = (keys.from(0), keys.from(half));
                let loaded = (0..half).map(|at| first.loaded(at)).chain((0..count - half).map(|at| second.loaded(at)));
                let loaded: BTreeSet<u64> = loaded.collect();
                assert!(loaded.iter().copied().eq((0..count).map(|key| 2 * key)), "{order:?} {count}: {loaded:?}");
            }
        }
        let scattered = Keys::new(1000, 30, Order::Scattered, 1);
        assert!((0..10).all(|at| scattered.loaded(at).abs_diff(scattered.loaded(at + 1)) > 100));
        let largest = Keys::new(MAX_KEYS, 30, Order::Scattered, 1);
        assert!(largest.loaded(MAX_KEYS - 1) < 2 * MAX_KEYS, "no product overflows");
    }

    #[test]
    fn replies_are_right_only_for_their_key() {
        let mut rng = crate::random::generator(1);
        let get = work(Action::Get);
        let index = get.choose(3, &mut rng);
        assert_eq!((index, work(Action::GetAbsent).choose(3, &mut rng)), (6, 7));
        let (head, letters) = get.keys.records.value(index, VERSION);
        let reply = [b"$30\r\n", &head[..], letters, b"\r\n"].concat();
        let judge = |action, index, reply: &[u8]| {
            work(action).decode(index, &mut LastReply::default(), reply).map(|decoded| decoded.unwrap().bytes)
        };
        assert_eq!(judge(Action::Get, 6, &reply).unwrap(), reply.len());
        assert!(judge(Action::Get, 8, &reply).unwrap_err().fault.contains("never written"));
        assert!(judge(Action::Get, 6, b"$-1\r\n").unwrap_err().fault.contains("acknowledged"));
        assert!(judge(Action::GetAbsent, 7, b"$-1\r\n").is_ok());
        assert!(judge(Action::GetAbsent, 7, &reply).unwrap_err().fault.contains("has a value"));
        assert!(judge(Action::Load, 6, b"+OK\r\n").is_ok());
        let refused = judge(Action::Load, 6, b"-ERR full\r\n").unwrap_err();
        assert!(refused.fault.contains("refused: ERR full") && refused.decoded.is_some());
        assert!(judge(Action::Get, 6, b"?\r\n").unwrap_err().decoded.is_none());
    }

    #[test]
    fn the_longest_time_without_a_reply_counts() {
        let (load, mut counts) = (work(Action::Load), Counts::default());
        let mut last = LastReply::default();
        let mut reply = || load.decode(6, &mut last, b"+OK\r\n").unwrap().unwrap().reply;
        assert_eq!(reply(), None, "nothing came before");
        assert!(reply().is_some());
        load.count(&mut counts, None, Some(7));
        assert_eq!(counts, Counts { longest_gap: 7, stalls: 0 });
        load.count(&mut counts, Some(STALL_NANOS + 1), Some(7));
        load.count(&mut counts, Some(5), Some(900_000_000));
        assert_eq!(counts, Counts { longest_gap: STALL_NANOS + 1, stalls: 1 });
    }
}
