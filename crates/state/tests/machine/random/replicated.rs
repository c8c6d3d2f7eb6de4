//! Rows in the form in which all nodes of a space have them.
//!
//! Rows about this node or its log are left out, and so are the fields of a stream's head that are about it. A value is
//! its length and CRC-32C, wherever it lies. See `docs/formats/state.md`.

use std::collections::BTreeMap;

use thalweg_state::portable::{self, Row};

use crate::support::Map;

const STREAM: u8 = 0x03;
const VALUE: u8 = 0x10;
const INDEX: u8 = 0x11;
const VERSIONS: u8 = 0x12;

/// Rows in replicated form.
pub type Replicated = BTreeMap<Vec<u8>, Vec<u8>>;

/// Whether the batches of streams are compared, too: not where compaction may have replaced some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batches {
    Compared,
    LeftOut,
}

/// The replicated form of all rows.
pub fn of(map: &Map, batches: Batches) -> Replicated {
    let mut rows = Replicated::new();
    for (key, row) in map {
        let form = match (key[0], portable::sort(key, row).expect("a row of a known kind")) {
            (INDEX, sorted) if batches == Batches::Compared && is_readable(map, key) => match sorted {
                Row::Pointing(pointing) => Some([&length_and_crc(pointing.blob), &row[20..]].concat()),
                _ => Some(row.clone()),
            },
            (INDEX, _) | (_, Row::Local) => None,
            (STREAM, _) => head(row),
            (VALUE, _) => Some(value(row)),
            (VERSIONS, _) if key[1] == 1 && row.len() > 25 => Some([&row[..25], &value(&row[25..])].concat()),
            _ => Some(row.clone()),
        };
        rows.extend(form.map(|form| (key.clone(), form)));
    }
    rows
}

fn length_and_crc(blob: thalweg_types::BlobRef) -> [u8; 8] {
    let mut out = [0; 8];
    out[..4].copy_from_slice(&blob.len.to_le_bytes());
    out[4..].copy_from_slice(&blob.crc.to_le_bytes());
    out
}

fn value(row: &[u8]) -> Vec<u8> {
    let (form, head) = match row[0] {
        form @ (0 | 1) => (form, 9),
        form @ (2 | 3) => (form, 25),
        // A collection: it lies in the state.
        _ => return row.to_vec(),
    };
    let rest = &row[head..];
    let of_bytes = match form {
        // The pointer's length and checksum.
        1 | 3 => rest[12..20].to_vec(),
        _ => [(rest.len() as u32).to_le_bytes(), crc_fast::crc32_iscsi(rest).to_le_bytes()].concat(),
    };
    [&[form & !1], &row[1..head], &of_bytes].concat()
}

/// `None`: the marker of a deleted stream, which waits for this node only.
fn head(row: &[u8]) -> Option<Vec<u8>> {
    let (flags, producers) = (row[0], &row[113..117]);
    let is_marker = flags & 1 == 1 && producers == [0; 4];
    let end_bytes_and_times = [&row[89..97], &row[105..117]].concat();
    (!is_marker).then(|| [&row[..65], &end_bytes_and_times, &row[133..]].concat())
}

/// Whether an index entry holds records from the start of its stream on.
fn is_readable(map: &Map, key: &[u8]) -> bool {
    let head = map.get(&[&[STREAM], &key[1..5]].concat());
    let first = u64::from_be_bytes(key[5..13].try_into().expect("an offset"));
    let start_batch = |head: &Vec<u8>| u64::from_le_bytes(head[73..81].try_into().expect("an offset"));
    head.is_some_and(|head| head[0] & 1 == 0 && start_batch(head) <= first)
}
