//! Cursors of scans: as they come, or with a right checksum over fields that are the input's, of keyspaces with and
//! without history.
//!
//! Never a panic. What decodes encodes to the same bytes; what resumes gives keys of the range asked for, in order and
//! behind the cursor; what cannot is one of the errors that say so.

#![no_main]

use std::{cell::OnceCell, ops::Bound, sync::Arc, time::Duration};

use libfuzzer_sys::fuzz_target;
use thalweg_engine::{Database, Keyspace, Order, ReadError, ScanCursor, ScanRange};
use thalweg_fuzz::{Input, engine::database};
use thalweg_types::{
    ManualClock, Revision, SpaceTime,
    command::{KeyspaceConfig, KeyspaceHistory},
};

const KEYS: [&[u8]; 6] = [b"", b"\0", b"a", b"aa", b"b", b"\xff\xff"];

struct Bench {
    keyspaces: [Keyspace; 3],
    _db: Database,
}

impl Bench {
    fn new() -> Self {
        let db = database(Arc::new(ManualClock::at(SpaceTime(1_000_000))));
        let config = |revisions, age| {
            let history = KeyspaceHistory { revisions, age };
            KeyspaceConfig { history, ..KeyspaceConfig::default() }
        };
        let configs = [config(None, None), config(Some(2), None), config(None, Some(Duration::from_secs(9)))];
        let create = |(number, config): (usize, &KeyspaceConfig)| {
            let keyspace = db.create_keyspace(&format!("k{number}"), config).expect("a keyspace").0;
            for round in 0..4 {
                for key in KEYS {
                    keyspace.put(key, &[round; 20]).expect("a put");
                }
                keyspace.delete(b"aa").expect("a delete");
            }
            keyspace.put_for(b"ends", b"", Duration::from_secs(1)).expect("a put");
            keyspace
        };
        let keyspaces: Vec<_> = configs.iter().enumerate().map(create).collect();
        Self { keyspaces: keyspaces.try_into().expect("three"), _db: db }
    }
}

fn bound(input: &mut Input<'_>) -> Bound<Vec<u8>> {
    match input.byte() % 4 {
        0 => Bound::Included(input.bytes().to_vec()),
        1 => Bound::Excluded(input.bytes().to_vec()),
        _ => Bound::Unbounded,
    }
}

fn range(input: &mut Input<'_>) -> ScanRange {
    let (start, end) = (bound(input), bound(input));
    let order = if input.byte() % 2 == 0 { Order::Ascending } else { Order::Descending };
    let prefix = if input.byte() % 4 == 0 { input.bytes().to_vec() } else { Vec::new() };
    ScanRange { prefix, start, end, order, ..ScanRange::default() }
}

/// A cursor of a scan that could be, with some of it changed and its checksum right again.
fn forged(input: &mut Input<'_>, keyspace: &Keyspace, range: &ScanRange) -> Option<Vec<u8>> {
    let mut bytes = keyspace.iter(range.clone()).cursor(input.bytes()).ok()?.encode();
    bytes.truncate(bytes.len() - 4);
    for _ in 0..input.byte() % 3 {
        let at = usize::from(input.byte()) % bytes.len();
        bytes[at] = input.byte();
    }
    if input.byte() % 4 == 0 {
        let len = usize::from(input.byte()) % (bytes.len() + 1);
        bytes.truncate(len);
    }
    bytes.extend_from_slice(&crc32c(&bytes).to_le_bytes());
    Some(bytes)
}

/// One bit after the other: inputs are short.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0_u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg()))
    })
}

fn contains(range: &ScanRange, key: &[u8]) -> bool {
    let after = match &range.start {
        Bound::Included(start) => key >= start.as_slice(),
        Bound::Excluded(start) => key > start.as_slice(),
        Bound::Unbounded => true,
    };
    let before = match &range.end {
        Bound::Included(end) => key <= end.as_slice(),
        Bound::Excluded(end) => key < end.as_slice(),
        Bound::Unbounded => true,
    };
    after && before && key.starts_with(&range.prefix)
}

fn resume(keyspace: &Keyspace, range: &ScanRange, cursor: &ScanCursor) -> Result<(), ReadError> {
    let iter = keyspace.resume(range.clone(), cursor)?;
    assert!(cursor.revision().is_none_or(|revision| revision == iter.revision() && revision != Revision::MAX));
    let mut last: Option<Vec<u8>> = None;
    for pair in iter {
        let key = pair?.0.to_vec();
        assert!(contains(range, &key), "{key:?} is not in {range:?}");
        let in_order = last.is_none_or(|last| if range.order == Order::Ascending { last < key } else { last > key });
        assert!(in_order, "{key:?} comes too late");
        last = Some(key);
    }
    Ok(())
}

thread_local! {
    static BENCH: OnceCell<Bench> = const { OnceCell::new() };
}

fuzz_target!(|data: &[u8]| {
    BENCH.with(|bench| {
        let bench = bench.get_or_init(Bench::new);
        let mut input = Input(data);
        let keyspace = &bench.keyspaces[usize::from(input.byte()) % 3];
        let range = range(&mut input);
        let bytes = match input.byte() % 4 {
            0 => Some(input.0.to_vec()),
            _ => forged(&mut input, keyspace, &range),
        };
        let Some(bytes) = bytes else { return };
        let cursor = match ScanCursor::decode(&bytes) {
            Ok(cursor) => cursor,
            Err(error) => return assert!(matches!(error, ReadError::BadCursor { .. }), "{error}"),
        };
        assert_eq!(cursor.encode(), bytes, "one encoding for each cursor");
        match resume(keyspace, &range, &cursor) {
            Ok(())
            | Err(
                ReadError::BadCursor { .. }
                | ReadError::Compacted { .. }
                | ReadError::FutureRevision { .. }
                | ReadError::NoHistory,
            ) => {}
            Err(error) => panic!("{error}"),
        }
    });
});
