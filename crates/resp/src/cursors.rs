//! Cursors of scans. Redis clients use numbers as cursors, and the databases use positions.
//!
//! Owns: the mapping of numbers to positions for all connections of a server. Bounds: [`MAX_RESP_CURSORS`] cursors and
//! [`MAX_RESP_CURSOR_BYTES`]. At a bound, the table drops the oldest cursor of the client address with the most
//! cursors, so that the scans of one client do not end those of all others. A scan with a dropped cursor gets the error
//! `invalid cursor` and must start again, also after a restart of the server.
//!
//! Invariants: each number in the list of an address has a position in the table, and each position has a number in a
//! list. `by_weight` has the memory weight of each address: the bytes of its positions, and [`CURSOR_WEIGHT`] for each
//! of its cursors.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::{Mutex, PoisonError},
};

use bytes::Bytes;
use thalweg_redis::Reply;
use thalweg_serving::{
    admission::AddressKey,
    limits::{ADDRESS_CURSORS, MAX_RESP_CURSOR_BYTES, MAX_RESP_CURSORS},
};

/// Error reply to a scan with an unknown cursor.
pub(crate) const INVALID_CURSOR: &str = "ERR invalid cursor";

/// Bytes that each cursor counts in the memory weight of its client address, in addition to its position. With this
/// value, the maximum number of cursors weighs as much as the maximum bytes of positions.
const CURSOR_WEIGHT: usize = MAX_RESP_CURSOR_BYTES / MAX_RESP_CURSORS;

#[derive(Debug, Default)]
struct Table {
    positions: HashMap<u64, Bytes>,
    owners: HashMap<AddressKey, OwnedCursors>,
    /// Addresses with cursors, ordered by the memory weight of their cursors, lightest first.
    by_weight: BTreeSet<(usize, AddressKey)>,
    /// Total bytes of the positions of all cursors.
    bytes: usize,
    last: u64,
}

/// Cursors of the scans of all clients of one address.
#[derive(Debug, Default)]
struct OwnedCursors {
    /// Numbers of the cursors as clients see them, oldest first.
    numbers: VecDeque<u64>,
    /// Memory weight of the address: the bytes of the positions of its cursors, and [`CURSOR_WEIGHT`] for each cursor.
    weight: usize,
}

impl Table {
    /// Adds a cursor of `address` and returns its number. Drops other cursors if the limits require this.
    fn add(&mut self, position: Bytes, address: AddressKey) -> u64 {
        self.last += 1;
        self.bytes += position.len();
        let owned = self.owners.entry(address).or_default();
        self.by_weight.remove(&(owned.weight, address));
        owned.numbers.push_back(self.last);
        owned.weight += position.len() + CURSOR_WEIGHT;
        self.by_weight.insert((owned.weight, address));
        self.positions.insert(self.last, position);
        while self.count() > MAX_RESP_CURSORS || self.bytes > MAX_RESP_CURSOR_BYTES {
            self.drop_one();
        }
        self.last
    }

    /// Returns the number of cursors that counts towards the limit. Each address after the first counts as
    /// `ADDRESS_CURSORS` further cursors, for the memory of its queue.
    fn count(&self) -> usize {
        self.positions.len() + ADDRESS_CURSORS * self.owners.len().saturating_sub(1)
    }

    /// Drops the oldest cursor of the address whose cursors have the highest memory weight.
    fn drop_one(&mut self) {
        let (_, address) = self.by_weight.pop_last().expect("above a limit there are cursors");
        let owned = self.owners.get_mut(&address).expect("each weight belongs to an owner");
        let number = owned.numbers.pop_front().expect("an owner has cursors");
        let position = self.positions.remove(&number).expect("each number has a position");
        self.bytes -= position.len();
        owned.weight -= position.len() + CURSOR_WEIGHT;
        if owned.numbers.is_empty() {
            self.owners.remove(&address);
        } else {
            self.by_weight.insert((owned.weight, address));
        }
    }
}

/// Table that maps the numeric cursors that Redis clients see to positions in databases.
#[derive(Debug, Default)]
pub(crate) struct Cursors(Mutex<Table>);

impl Cursors {
    /// Returns the position in the database for a client's numeric cursor. 0 stands for the start of the database.
    /// Returns `None` for an unknown cursor.
    pub(crate) fn position(&self, cursor: &[u8]) -> Option<Bytes> {
        let number = parse(cursor)?;
        if number == 0 {
            return Some(Bytes::new());
        }
        self.0.lock().unwrap_or_else(PoisonError::into_inner).positions.get(&number).cloned()
    }

    /// Returns a numeric cursor for a position in a database. Returns 0 for the empty position, which means the end of
    /// the scan. The cursor counts for the client's `address` in the limits on cursors.
    pub(crate) fn number(&self, position: &Bytes, address: AddressKey) -> u64 {
        if position.is_empty() {
            return 0;
        }
        self.0.lock().unwrap_or_else(PoisonError::into_inner).add(position.clone(), address)
    }

    /// Replaces the position at the start of a reply to SCAN or HSCAN by a numeric cursor for the client's `address`.
    pub(crate) fn translate(&self, reply: Reply, address: AddressKey) -> Reply {
        match reply {
            Reply::Array(mut items) => {
                if let Some(Reply::Bulk(position)) = items.first() {
                    // The position is copied, because a slice would keep the larger buffer of the reply in memory.
                    let own = Bytes::copy_from_slice(position);
                    items[0] = Reply::Bulk(self.number(&own, address).to_string().into());
                }
                Reply::Array(items)
            }
            other => other,
        }
    }
}

/// Parses a cursor like the C function `strtoul`, as Redis does. A zero byte ends the cursor, an empty cursor is 0, and
/// the number may have a sign. A negative number wraps modulo 2^64.
fn parse(cursor: &[u8]) -> Option<u64> {
    let text = cursor.split(|byte| *byte == 0).next().unwrap_or_default();
    let (is_negative, digits) = match text {
        [] => return Some(0),
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    let is_number = digits.iter().all(u8::is_ascii_digit);
    let number: u64 = std::str::from_utf8(digits).ok().filter(|_| is_number)?.parse().ok()?;
    Some(if is_negative { number.wrapping_neg() } else { number })
}

/// Returns the index of a command's cursor among its arguments; `None` for commands other than SCAN and HSCAN.
pub(crate) fn cursor_argument(command: &str) -> Option<usize> {
    match command {
        "scan" => Some(1),
        "hscan" => Some(2),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn address(last: u8) -> AddressKey {
        AddressKey::of(Ipv4Addr::new(127, 0, 0, last).into())
    }

    #[test]
    fn positions_have_numbers_and_begin_and_end_are_zero() {
        let cursors = Cursors::default();
        for zero in [&b"0"[..], b"00", b"+0", b"", b"0\0x", b"\0", b"-0", b"-00", b"-0\0x"] {
            assert_eq!(cursors.position(zero), Some(Bytes::new()), "{zero:?}");
        }
        assert_eq!(cursors.number(&Bytes::new(), address(1)), 0);
        let number = cursors.number(&Bytes::from_static(b"k"), address(1));
        for same in [number.to_string(), format!("-{}", number.wrapping_neg())] {
            assert_eq!(cursors.position(same.as_bytes()), Some(Bytes::from_static(b"k")), "{same}");
        }
        let none = [&b"77"[..], b" ", b"x", b"-1", b"-", b"+", b"--0", b"+-0", b" 0", b"0 ", b"0x0", b"\xff"];
        for unknown in none.into_iter().chain([&b"18446744073709551616"[..], b"-18446744073709551616"]) {
            assert_eq!(cursors.position(unknown), None, "{unknown:?}");
        }
        let reply = Reply::Array(vec![Reply::bulk(b"k2"), Reply::Array(Vec::new())]);
        let translated = cursors.translate(reply, address(1));
        assert_eq!(translated, Reply::Array(vec![Reply::bulk(b"2"), Reply::Array(Vec::new())]));
        assert_eq!(cursors.translate(Reply::error("ERR x"), address(1)), Reply::error("ERR x"));
    }

    #[test]
    fn the_oldest_are_forgotten_by_number_and_by_bytes() {
        let cursors = Cursors::default();
        let number = |position: &Bytes| cursors.number(position, address(1));
        let all: Vec<_> = (0..=MAX_RESP_CURSORS).map(|_| number(&Bytes::from_static(b"k"))).collect();
        let known = |number: u64| cursors.position(number.to_string().as_bytes()).is_some();
        assert_eq!([known(all[0]), known(all[1])], [false, true]);
        let long = Bytes::from(vec![b'k'; MAX_RESP_CURSOR_BYTES / 2]);
        let first = number(&long);
        let second = number(&long);
        assert_eq!([known(all[MAX_RESP_CURSORS]), known(first), known(second)], [false, true, true]);
        number(&Bytes::from_static(b"k"));
        assert_eq!([known(first), known(second)], [false, true]);
    }

    #[test]
    fn a_client_with_many_cursors_ends_only_its_own_scans() {
        let cursors = Cursors::default();
        let short = Bytes::from_static(b"k");
        let good: Vec<_> = (0..10).map(|last| cursors.number(&short, address(100 + last))).collect();
        let known = |number: u64| cursors.position(number.to_string().as_bytes()).is_some();
        let many: Vec<_> = (0..2 * MAX_RESP_CURSORS).map(|_| cursors.number(&short, address(1))).collect();
        assert!(good.iter().all(|number| known(*number)), "by number");
        assert_eq!([known(many[0]), known(many[2 * MAX_RESP_CURSORS - 1])], [false, true]);
        let long = Bytes::from(vec![b'k'; MAX_RESP_CURSOR_BYTES / 16]);
        (0..32).for_each(|_| _ = cursors.number(&long, address(2)));
        assert!(good.iter().all(|number| known(*number)), "by bytes");
        let table = cursors.0.lock().unwrap();
        assert!(table.count() <= MAX_RESP_CURSORS && table.bytes <= MAX_RESP_CURSOR_BYTES);
        assert_eq!(table.owners.len(), table.by_weight.len());
        assert_eq!(table.owners.values().map(|owned| owned.numbers.len()).sum::<usize>(), table.positions.len());
    }
}
