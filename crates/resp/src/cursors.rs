//! Cursors of scans: Redis's cursors are numbers, those of the databases are positions.
//!
//! Owns: the mapping of numbers to positions for all connections of a server, at most [`MAX_RESP_CURSORS`] and
//! [`MAX_RESP_CURSOR_BYTES`] of them. At the limit it drops the oldest: a scan with a dropped cursor gets `invalid
//! cursor` and must start again. The same applies after a restart of the server.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, PoisonError},
};

use bytes::Bytes;
use thalweg_redis::Reply;
use thalweg_serving::limits::{MAX_RESP_CURSOR_BYTES, MAX_RESP_CURSORS};

/// Error reply to a scan with an unknown cursor.
pub(crate) const INVALID_CURSOR: &str = "ERR invalid cursor";

#[derive(Debug, Default)]
struct Table {
    positions: HashMap<u64, Bytes>,
    /// Numeric cursors in the table, oldest first.
    numbers: VecDeque<u64>,
    bytes: usize,
    last: u64,
}

/// Table that maps the numeric cursors of Redis clients to positions in databases.
#[derive(Debug, Default)]
pub(crate) struct Cursors(Mutex<Table>);

impl Cursors {
    /// Returns the position in the database that a client's numeric cursor represents: the start for 0, `None` for
    /// an unknown cursor.
    pub(crate) fn position(&self, cursor: &[u8]) -> Option<Bytes> {
        let number: u64 = std::str::from_utf8(cursor).ok()?.parse().ok()?;
        if number == 0 {
            return Some(Bytes::new());
        }
        self.0.lock().unwrap_or_else(PoisonError::into_inner).positions.get(&number).cloned()
    }

    /// Returns a numeric cursor for a position in a database; 0 for the empty position, which means the end of the
    /// scan.
    pub(crate) fn number(&self, position: &Bytes) -> u64 {
        if position.is_empty() {
            return 0;
        }
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let table = &mut *table;
        table.bytes += position.len();
        table.last += 1;
        table.positions.insert(table.last, position.clone());
        table.numbers.push_back(table.last);
        while table.numbers.len() > MAX_RESP_CURSORS || table.bytes > MAX_RESP_CURSOR_BYTES {
            let Some(oldest) = table.numbers.pop_front() else { break };
            table.bytes -= table.positions.remove(&oldest).map_or(0, |position| position.len());
        }
        table.last
    }

    /// Replaces the position at the start of a reply to SCAN or HSCAN by a numeric cursor.
    pub(crate) fn translate(&self, reply: Reply) -> Reply {
        match reply {
            Reply::Array(mut items) => {
                if let Some(Reply::Bulk(position)) = items.first() {
                    // Copied, because a slice would keep a larger buffer in memory.
                    let own = Bytes::copy_from_slice(position);
                    items[0] = Reply::Bulk(self.number(&own).to_string().into());
                }
                Reply::Array(items)
            }
            other => other,
        }
    }
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
    use super::*;

    #[test]
    fn positions_have_numbers_and_begin_and_end_are_zero() {
        let cursors = Cursors::default();
        assert_eq!(cursors.position(b"0"), Some(Bytes::new()));
        assert_eq!(cursors.number(&Bytes::new()), 0);
        let number = cursors.number(&Bytes::from_static(b"k"));
        assert_eq!(cursors.position(number.to_string().as_bytes()), Some(Bytes::from_static(b"k")));
        for unknown in [&b"77"[..], b"", b"x", b"-1", b"18446744073709551616", b"\xff"] {
            assert_eq!(cursors.position(unknown), None, "{unknown:?}");
        }
        let reply = Reply::Array(vec![Reply::bulk(b"k2"), Reply::Array(Vec::new())]);
        assert_eq!(cursors.translate(reply), Reply::Array(vec![Reply::bulk(b"2"), Reply::Array(Vec::new())]));
        assert_eq!(cursors.translate(Reply::error("ERR x")), Reply::error("ERR x"));
    }

    #[test]
    fn the_oldest_are_forgotten_by_number_and_by_bytes() {
        let cursors = Cursors::default();
        let all: Vec<_> = (0..=MAX_RESP_CURSORS).map(|_| cursors.number(&Bytes::from_static(b"k"))).collect();
        let known = |number: u64| cursors.position(number.to_string().as_bytes()).is_some();
        assert_eq!([known(all[0]), known(all[1])], [false, true]);
        let long = Bytes::from(vec![b'k'; MAX_RESP_CURSOR_BYTES / 2]);
        let first = cursors.number(&long);
        let second = cursors.number(&long);
        assert_eq!([known(all[MAX_RESP_CURSORS]), known(first), known(second)], [false, true, true]);
        cursors.number(&Bytes::from_static(b"k"));
        assert_eq!([known(first), known(second)], [false, true]);
    }
}
