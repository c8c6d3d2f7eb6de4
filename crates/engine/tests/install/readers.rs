//! Readers of all kinds during the switch to another state.

use std::{
    ops::ControlFlow,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use thalweg_types::{Offset, command::CommitBuilder, record::RecordBatch};

use super::support::{Node, built, chunks, install};
use crate::{ReadError, ScanRange};

/// Writes the same number to each key, and appends it to the stream. Some values are so long that they stay in the log.
fn step(node: &Node, number: u64) {
    let db = node.db();
    let keyspace = db.keyspace("k").unwrap();
    let mut commit = CommitBuilder::new();
    for key in 0..20_u8 {
        let value = if key % 4 == 0 { number.to_le_bytes().repeat(100) } else { number.to_le_bytes().to_vec() };
        commit.put(keyspace.id(), &[key], &value).unwrap();
    }
    let mut batch = RecordBatch::new();
    batch.push_payload(&number.to_le_bytes()).unwrap();
    commit.append(db.stream("s").unwrap().id(), None, &batch).unwrap();
    db.commit(&commit).unwrap();
}

fn number(value: &[u8]) -> u64 {
    u64::from_le_bytes(value[..8].try_into().unwrap())
}

/// Gets and scans see one number everywhere, and never a smaller one than before or than the end of the stream.
fn read(node: &Node, stop: &AtomicBool) -> u64 {
    let db = node.db();
    let keyspace = db.find_keyspace("k").unwrap();
    let stream = db.find_stream("s").unwrap();
    let (mut seen, mut end, mut rounds) = (0, 0, 0);
    while !stop.load(Ordering::Relaxed) || rounds == 0 {
        rounds += 1;
        for key in [0_u8, 1] {
            let got = number(&keyspace.get(&[key]).unwrap().unwrap().value);
            assert!(got >= seen, "get of {key}: {got} after {seen}");
            seen = got;
        }
        let mut found = Vec::new();
        let scanned = keyspace.iter(ScanRange::default()).try_for_each(|pair| {
            found.push(number(&pair?.1.value));
            Ok(())
        });
        match scanned {
            Ok(()) => {
                assert_eq!(found.len(), 20);
                assert!(found.iter().all(|number| *number == found[0]), "{found:?}");
                assert!(found[0] >= seen);
                seen = found[0];
            }
            // A value of the view was overwritten, and its segment freed.
            Err(ReadError::ViewExpired) => {}
            Err(error) => panic!("{error}"),
        }
        let info = stream.info().unwrap();
        // As after each commit, the end of a stream is shown after the rows, not before them.
        assert!(info.next >= Offset(end), "{} after {end}", info.next);
        end = info.next.0;
        seen = seen.max(end);
        let last = Offset(info.next.0 - 1);
        let mut read = Vec::new();
        let page = stream.read(last, 1, 1000).unwrap();
        let each = &mut |offset, _, record: &thalweg_types::record::Record<'_>| {
            read.push((offset, number(record.payload)));
            ControlFlow::Continue(())
        };
        page.for_each(each).unwrap();
        assert_eq!(read[0], (last, last.0 + 1), "the record at an offset");
    }
    rounds
}

#[test]
fn readers_see_whole_states_in_order_while_several_are_installed() {
    for backend in built() {
        let (node, other) = (Node::new(backend), Node::new(backend));
        step(&node, 1);
        let pad = |node: &Node| {
            let keyspace = node.db().keyspace("pad").unwrap();
            (0..40_u8).for_each(|key| drop(keyspace.put(&[key], &[key; 300]).unwrap()));
        };
        pad(&node);
        install(other.db(), &chunks(node.db())).unwrap();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let readers = [(); 2].map(|()| scope.spawn(|| read(&other, &stop)));
            for number in 2..12 {
                step(&node, number);
                install(other.db(), &chunks(node.db())).unwrap();
                other.db().flush().unwrap();
                other.db().maintain().unwrap();
            }
            stop.store(true, Ordering::Relaxed);
            for reader in readers {
                assert!(reader.join().unwrap() > 0);
            }
        });
    }
}
