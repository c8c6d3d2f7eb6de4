//! Cursors of scans: Redis's are numbers, ours are positions.
//!
//! Owns: which number stands for which position, for all connections of a server, at most [`MAX_RESP_CURSORS`] and
//! [`MAX_RESP_CURSOR_BYTES`] of them. At the bound the oldest are forgotten: a scan that goes on with one is told
//! `invalid cursor` and begins anew. So is one that goes on after the server was restarted.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, PoisonError},
};

use bytes::Bytes;
use thalweg_redis::Reply;
use thalweg_serving::limits::{MAX_RESP_CURSOR_BYTES, MAX_RESP_CURSORS};

/// What is said of a cursor that stands for nothing.
pub(crate) const INVALID_CURSOR: &str = "ERR invalid cursor";

#[derive(Debug, Default)]
struct Table {
    positions: HashMap<u64, Bytes>,
    /// From the oldest on.
    numbers: VecDeque<u64>,
    bytes: usize,
    last: u64,
}

/// The table.
#[derive(Debug, Default)]
pub(crate) struct Cursors(Mutex<Table>);

impl Cursors {
    /// The position that a client's cursor stands for; 0 is the begin, and nothing otherwise known is an error.
    pub(crate) fn position(&self, cursor: &[u8]) -> Option<Bytes> {
        let number: u64 = std::str::from_utf8(cursor).ok()?.parse().ok()?;
        if number == 0 {
            return Some(Bytes::new());
        }
        self.0.lock().unwrap_or_else(PoisonError::into_inner).positions.get(&number).cloned()
    }

    /// The cursor for a position: 0 for the end, which is empty.
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

    /// A scan's reply with the position that it begins with as a cursor.
    pub(crate) fn translate(&self, reply: Reply) -> Reply {
        match reply {
            Reply::Array(mut items) => {
                if let Some(Reply::Bulk(position)) = items.first() {
                    // Not a part of a larger buffer, which would be kept along.
                    let own = Bytes::copy_from_slice(position);
                    items[0] = Reply::Bulk(self.number(&own).to_string().into());
                }
                Reply::Array(items)
            }
            other => other,
        }
    }
}

/// Which argument of a command is a cursor.
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
