use std::time::Duration;

use super::*;
use crate::{
    codec::{Reader, put_checked},
    ids::{BlobRef, Generation, Index, KeyspaceId, Offset, Revision, StreamId},
    limits::{MAX_COMMIT_WRITES, MAX_KEY_BYTES, MAX_NAME_BYTES, MAX_TRANSACTION_SCANS, MAX_VALUE_BYTES},
    record::RecordBatch,
};

const KS: KeyspaceId = KeyspaceId(0x0102);
const STREAM: StreamId = StreamId(7);

fn encoded(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    encode(&mut out);
    out
}

fn batch() -> RecordBatch {
    let mut batch = RecordBatch::new();
    batch.push_payload(b"p").unwrap();
    batch
}

fn full_commit() -> CommitBuilder {
    let mut commit = CommitBuilder::new();
    commit.expect(KS, b"a", Expect::Absent).unwrap().expect(KS, b"", Expect::Present).unwrap();
    commit.expect(KS, b"r", Expect::Revision(Revision(9))).unwrap().expect(KS, b"v", Expect::Value(b"was")).unwrap();
    commit.expect(KS, b"b", Expect::Before(Revision(8))).unwrap().expect(KS, b"c", Expect::After(Revision(7))).unwrap();
    let to_end = UnchangedRange { end: None, since: Revision(6), count: 5 };
    let to_z = UnchangedRange { end: Some(b"z"), ..to_end };
    commit.expect(KS, b"m", Expect::Unchanged(to_end)).unwrap().expect(KS, b"n", Expect::Unchanged(to_z)).unwrap();
    commit.put(KS, b"key", b"value").unwrap().delete(KS, b"gone").unwrap();
    commit.append(STREAM, Some(Offset(5)), &batch()).unwrap().append(STREAM, None, &batch()).unwrap();
    commit
}

fn commit_of(bytes: &[u8]) -> Commit<'_> {
    match Command::decode(bytes) {
        Ok(Command::Commit(commit)) => commit,
        other => panic!("not a commit: {other:?}"),
    }
}

fn full_transaction() -> TransactionBuilder {
    let mut transaction = TransactionBuilder::new();
    transaction.expect(KS, b"a", Expect::Absent).unwrap();
    let then = transaction.then();
    then.put(KS, b"k", b"v").unwrap().delete(KS, b"d").unwrap().append(STREAM, None, &batch()).unwrap();
    then.add(KS, b"n", -2).unwrap().delete_prefix(KS, b"p/").unwrap();
    let scan = ScanOperation { prefix: b"s", start: Some(b"sa"), end: Some(b""), limit: 9, ..ScanOperation::default() };
    transaction.otherwise().get(KS, b"g").unwrap().scan(KS, &scan).unwrap();
    let scan = ScanOperation { reverse: true, keys_only: true, ..ScanOperation::default() };
    transaction.otherwise().scan(KS, &scan).unwrap();
    transaction
}

#[test]
fn layout_of_a_transaction_is_pinned() {
    let bytes = encoded(|out| full_transaction().encode(out).unwrap());
    let expected: &[&[u8]] = &[
        b"\x08\x01\0\0\0\x05\0\0\0\x03\0\0\0",
        b"\x02\x01\0\0\x01\0\0\0a\x00",
        b"\x01\x02\x01\0\0\x01\0\0\0\x01\0\0\0kv",
        b"\x02\x02\x01\0\0\x01\0\0\0d",
        b"\x03\x07\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\x01\0\0\0\x06\0\0\0\x02\0\0\0\0p",
        b"\x04\x02\x01\0\0\xfe\xff\xff\xff\xff\xff\xff\xff\x01\0\0\0n",
        b"\x06\x02\x01\0\0\x02\0\0\0p/",
        b"\x07\x02\x01\0\0\x01\0\0\0g",
        b"\x08\x02\x01\0\0\x0c\x09\0\0\0\x01\0\0\0s\x02\0\0\0sa\0\0\0\0",
        b"\x08\x02\x01\0\0\x03\0\0\0\0\0\0\0\0",
    ];
    assert_eq!(bytes, expected.concat());
    let Ok(Command::Transaction(transaction)) = Command::decode(&bytes) else { panic!("no transaction") };
    let [then, otherwise] = transaction.branches().unwrap().map(|list| list.collect::<Result<Vec<_>, _>>().unwrap());
    assert_eq!(
        then[3..],
        [Write::Add { keyspace: KS, key: b"n", delta: -2 }, Write::DeletePrefix { keyspace: KS, prefix: b"p/" },]
    );
    let scan = ScanOperation { prefix: b"s", start: Some(b"sa"), end: Some(b""), limit: 9, ..ScanOperation::default() };
    assert_eq!(otherwise[..2], [Write::Get { keyspace: KS, key: b"g" }, Write::Scan { keyspace: KS, scan }]);
    assert_eq!(Command::decode(&bytes).unwrap().writes().count(), 8);
}

#[test]
fn layout_of_a_commit_is_pinned() {
    let bytes = encoded(|out| full_commit().encode(out));
    let expected: &[&[u8]] = &[
        b"\x01\x08\0\0\0\x04\0\0\0",
        b"\x02\x01\0\0\x01\0\0\0a\x00",
        b"\x02\x01\0\0\x00\0\0\0\x01",
        b"\x02\x01\0\0\x01\0\0\0r\x02\x09\0\0\0\0\0\0\0",
        b"\x02\x01\0\0\x01\0\0\0v\x03\x03\0\0\0was",
        b"\x02\x01\0\0\x01\0\0\0b\x04\x08\0\0\0\0\0\0\0",
        b"\x02\x01\0\0\x01\0\0\0c\x05\x07\0\0\0\0\0\0\0",
        b"\x02\x01\0\0\x01\0\0\0m\x06\x06\0\0\0\0\0\0\0\x05\0\0\0\xff\xff\xff\xff",
        b"\x02\x01\0\0\x01\0\0\0n\x06\x06\0\0\0\0\0\0\0\x05\0\0\0\x01\0\0\0z",
        b"\x01\x02\x01\0\0\x03\0\0\0\x05\0\0\0keyvalue",
        b"\x02\x02\x01\0\0\x04\0\0\0gone",
        b"\x03\x07\0\0\0\x05\0\0\0\0\0\0\0\x01\0\0\0\x06\0\0\0\x02\0\0\0\0p",
        b"\x03\x07\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\x01\0\0\0\x06\0\0\0\x02\0\0\0\0p",
    ];
    assert_eq!(bytes, expected.concat());
}

#[test]
fn layouts_of_the_other_commands_are_pinned() {
    let config = StreamConfig {
        max_age: Some(Duration::from_micros(1)),
        max_records: Some(3),
        max_record_bytes: Some(4),
        max_batch_bytes: Some(5),
        compaction: Some(Compaction { tombstone_grace: Duration::from_micros(6) }),
        max_bytes: None,
    };
    let config_bytes: Vec<u8> = [1, u64::MAX, 3, 4, 5, 6].into_iter().flat_map(u64::to_le_bytes).collect();
    let config_bytes = config_bytes.as_slice();
    let configure = encoded(|out| {
        encode_configure_keyspace(out, KS, &KeyspaceConfig { exact_counts: true, ..KeyspaceConfig::default() })
            .unwrap();
    });
    assert_eq!(configure, b"\x09\x02\x01\0\0\x01\x01\x01\x01");
    let create_stream = encoded(|out| encode_create_stream(out, "s", &config).unwrap());
    let plain = KeyspaceConfig::default();
    assert_eq!(encoded(|out| encode_create_keyspace(out, "ks", &plain).unwrap()), b"\x02\0\x02\0ks");
    assert_eq!(create_stream, [b"\x03", config_bytes, b"\x01\0s"].concat());
    let configure = encoded(|out| encode_configure_stream(out, STREAM, &config));
    assert_eq!(configure, [b"\x04\x07\0\0\0", config_bytes].concat());
    assert_eq!(encoded(|out| encode_drop_keyspace(out, KS)), b"\x0a\x02\x01\0\0");
    assert_eq!(encoded(|out| encode_sweep(out, 258)), b"\x0b\x02\x01\0\0");
    assert_eq!(encoded(|out| encode_prune_versions(out, KeyspaceId(7), 258)), b"\x19\x02\x01\0\0\x07\0\0\0");
    assert_eq!(encoded(|out| encode_delete_stream(out, STREAM)), b"\x05\x07\0\0\0");
    assert_eq!(encoded(|out| encode_trim_stream(out, STREAM, Offset(258))), b"\x06\x07\0\0\0\x02\x01\0\0\0\0\0\0");
    assert_eq!(encoded(|out| encode_forget_producers(out, STREAM, 258)), b"\x07\x07\0\0\0\x02\x01\0\0");
    let enforce = encoded(|out| encode_enforce_retention(out, STREAM, Offset(258), &config));
    assert_eq!(enforce, [b"\x0c\x07\0\0\0\x02\x01\0\0\0\0\0\0".as_slice(), config_bytes].concat());
    assert_eq!(encoded(|out| encode_open_producer(out, STREAM, "pr").unwrap()), b"\x20\x07\0\0\0\x02pr");
}

fn produced() -> AppendConditions<'static> {
    let producer = Some(ProducerStamp { id: "pr", epoch: 3, sequence: 258 });
    AppendConditions { expected: ExpectedOffset::NoRecords, producer }
}

#[test]
fn the_append_of_a_producer_is_pinned() {
    let bytes = encoded(|out| encode_append_with(out, STREAM, &produced(), &batch()).unwrap());
    let expected: &[&[u8]] = &[
        b"\x01\0\0\0\0\x01\0\0\0",
        b"\x20\x07\0\0\0\0\0\0\0\0\0\0\0",
        b"\x03\0\0\0\x02\x01\0\0\0\0\0\0\x02pr",
        b"\x01\0\0\0\x06\0\0\0\x02\0\0\0\0p",
    ];
    assert_eq!(bytes, expected.concat());
    let mut commit = CommitBuilder::new();
    commit.append_with(STREAM, &produced(), &batch()).unwrap();
    assert_eq!(encoded(|out| commit.encode(out)), bytes);
    assert!(commit.is_conditional());
    let write = commit_of(&bytes).writes().unwrap().next().unwrap().unwrap();
    let Write::Append { producer: Some(stamp), expected, .. } = write else { panic!("no append of a producer") };
    assert_eq!((Some(stamp.get()), expected), (produced().producer, Some(Offset(0))));
}

#[test]
fn a_refused_producer_leaves_the_commit_as_it_was() {
    let mut commit = CommitBuilder::new();
    let conditions =
        AppendConditions { producer: Some(ProducerStamp { id: "a b", epoch: 0, sequence: 0 }), ..Default::default() };
    assert!(matches!(commit.append_with(STREAM, &conditions, &batch()), Err(CommandError::BadProducerId { .. })));
    commit.append(STREAM, None, &batch()).unwrap();
    let alone = encoded(|out| encode_append(out, STREAM, None, &batch()));
    assert_eq!((encoded(|out| commit.encode(out)), commit.is_conditional()), (alone, false));
}

#[test]
fn layouts_of_moves_are_pinned() {
    let from = BlobRef { generation: Generation(1), offset: 2, len: 3, crc: 4 };
    let from_bytes = b"\x01\0\0\0\0\0\0\0\x02\0\0\0\x03\0\0\0\x04\0\0\0".as_slice();
    let value = MoveTarget::Value { keyspace: KS, key: b"key" };
    let batch = MoveTarget::Batch { stream: STREAM, first: Offset(9) };
    let compacted = MoveTarget::Compacted(Compacted {
        stream: STREAM,
        first: Offset(1),
        end: Offset(2),
        sources: 3,
        rows_crc: 4,
        kept: 5,
    });
    let cleaned = MoveTarget::Cleaned { stream: STREAM, before: Offset(9) };
    let reclaimed = MoveTarget::Reclaimed { stream: STREAM, max: 258 };
    let floor = MoveTarget::HistoryFloor { floor: HistoryFloor { revision: Revision(258), index: Index(7) }, max: 9 };
    let expected = [
        b"\x00\x02\x01\0\0\x03\0\0\0key".as_slice(),
        b"\x01\x07\0\0\0\x09\0\0\0\0\0\0\0",
        b"\x02\x07\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\x04\0\0\0\x05\0\0\0",
        b"\x03\x07\0\0\0\x09\0\0\0\0\0\0\0",
        b"\x04\x07\0\0\0\x02\x01\0\0",
        b"\x05\x02\x01\0\0\0\0\0\0\x07\0\0\0\0\0\0\0\x09\0\0\0",
    ];
    for (target, expected) in [value, batch, compacted, cleaned, reclaimed, floor].into_iter().zip(expected) {
        let bytes = encoded(|out| Move::encode(out, &from, &target, b"abc"));
        assert_eq!(bytes, [from_bytes, expected, b"abc"].concat());
        let bytes_at = bytes.len() - 3;
        assert_eq!(Move::decode(&bytes), Ok(Move { from, target, bytes: b"abc", bytes_at }));
        for cut in 0..bytes_at {
            assert!(Move::decode(&bytes[..cut]).is_err(), "cut to {cut}");
        }
    }
}

#[test]
fn a_commit_comes_back_as_built() {
    let bytes = encoded(|out| full_commit().encode(out));
    let commit = commit_of(&bytes);
    assert_eq!((commit.condition_count(), commit.write_count()), (8, 4));
    let conditions: Vec<_> = commit.conditions().collect::<Result<_, _>>().unwrap();
    let condition = |key, expect| Condition { keyspace: KS, key, expect };
    let expected = [
        condition(b"a".as_slice(), Expect::Absent),
        condition(b"", Expect::Present),
        condition(b"r", Expect::Revision(Revision(9))),
        condition(b"v", Expect::Value(b"was")),
        condition(b"b", Expect::Before(Revision(8))),
        condition(b"c", Expect::After(Revision(7))),
        condition(b"m", Expect::Unchanged(UnchangedRange { end: None, since: Revision(6), count: 5 })),
        condition(b"n", Expect::Unchanged(UnchangedRange { end: Some(b"z"), since: Revision(6), count: 5 })),
    ];
    assert_eq!(conditions, expected);
    let writes: Vec<_> = commit.writes().unwrap().collect::<Result<_, _>>().unwrap();
    let Write::Put { value, value_at, key, .. } = writes[0] else { panic!("no put") };
    assert_eq!((key, value, &bytes[value_at..value_at + 5]), (b"key".as_slice(), b"value".as_slice(), value));
    assert_eq!(writes[1], Write::Delete { keyspace: KS, key: b"gone" });
    for (write, wanted) in writes[2..].iter().zip([Some(Offset(5)), None]) {
        let Write::Append { stream, expected, count, batch: found, batch_at, producer: None } = *write else {
            panic!("no append")
        };
        assert_eq!((stream, expected, count, found), (STREAM, wanted, 1, batch().bytes()));
        assert_eq!(&bytes[batch_at..batch_at + found.len()], found);
    }
}

#[test]
fn single_writes_are_encoded_as_a_builder_would() {
    let built = |build: fn(&mut CommitBuilder)| {
        let mut commit = CommitBuilder::new();
        build(&mut commit);
        encoded(|out| commit.encode(out))
    };
    let put = built(|commit| _ = commit.put(KS, b"k", b"v").unwrap());
    assert_eq!(encoded(|out| encode_put(out, KS, b"k", b"v").unwrap()), put);
    let delete = built(|commit| _ = commit.delete(KS, b"k").unwrap());
    assert_eq!(encoded(|out| encode_delete(out, KS, b"k").unwrap()), delete);
    let append = built(|commit| _ = commit.append(STREAM, Some(Offset(1)), &batch()).unwrap());
    assert_eq!(encoded(|out| encode_append(out, STREAM, Some(Offset(1)), &batch())), append);
}

#[test]
fn only_conditions_and_expected_offsets_make_a_commit_conditional() {
    let mut commit = CommitBuilder::new();
    commit.put(KS, b"k", b"v").unwrap().append(STREAM, None, &batch()).unwrap();
    assert!(!commit.is_conditional());
    commit.append(STREAM, Some(Offset(0)), &batch()).unwrap();
    assert!(commit.is_conditional());
    let mut commit = CommitBuilder::new();
    commit.expect(KS, b"k", Expect::Absent).unwrap();
    assert!(commit.is_conditional());
}

#[test]
fn a_command_that_is_cut_or_goes_on_is_malformed() {
    let config = StreamConfig::default();
    let commands = [
        encoded(|out| full_commit().encode(out)),
        encoded(|out| CommitBuilder::new().encode(out)),
        encoded(|out| full_transaction().encode(out).unwrap()),
        encoded(|out| TransactionBuilder::new().encode(out).unwrap()),
        encoded(|out| encode_drop_keyspace(out, KS)),
        encoded(|out| encode_sweep(out, 1)),
        encoded(|out| {
            encode_create_keyspace(out, "ks", &KeyspaceConfig { exact_counts: true, ..KeyspaceConfig::default() })
                .unwrap();
        }),
        encoded(|out| {
            encode_configure_keyspace(out, KS, &KeyspaceConfig { exact_counts: true, ..KeyspaceConfig::default() })
                .unwrap();
        }),
        encoded(|out| encode_create_stream(out, "s", &config).unwrap()),
        encoded(|out| encode_configure_stream(out, STREAM, &config)),
        encoded(|out| encode_delete_stream(out, STREAM)),
        encoded(|out| encode_trim_stream(out, STREAM, Offset(1))),
        encoded(|out| encode_forget_producers(out, STREAM, 1)),
        encoded(|out| encode_enforce_retention(out, STREAM, Offset(1), &config)),
        encoded(|out| encode_prune_versions(out, KeyspaceId(7), 1)),
        encoded(|out| encode_open_producer(out, STREAM, "p").unwrap()),
        encoded(|out| encode_append_with(out, STREAM, &produced(), &batch()).unwrap()),
    ];
    let decodes = |bytes: &[u8]| match Command::decode(bytes) {
        Ok(Command::Commit(commit)) => {
            commit.conditions().all(|condition| condition.is_ok())
                && commit.writes().is_ok_and(|mut writes| writes.all(|write| write.is_ok()))
        }
        Ok(Command::Transaction(transaction)) => {
            transaction.conditions().all(|condition| condition.is_ok()) && transaction.branches().is_ok()
        }
        other => other.is_ok(),
    };
    for command in &commands {
        assert!(decodes(command), "{command:?}");
        for cut in 0..command.len() {
            assert!(!decodes(&command[..cut]), "{command:?} cut to {cut}");
        }
        assert!(!decodes(&[command, b"x".as_slice()].concat()), "{command:?} and more");
    }
    assert!(!decodes(&[99]));
}

#[test]
fn an_entry_is_iterated_up_to_where_its_framing_breaks() {
    let payload = b"\x02\0\0\0ab\x00\0\0\0\x01\0\0\0c\x09\0\0\0d";
    let commands: Vec<_> = Commands::new(payload).collect();
    assert_eq!(commands[..3], [Ok((4, b"ab".as_slice())), Ok((10, b"")), Ok((14, b"c"))]);
    assert!(commands[3].is_err());
    assert_eq!(commands.len(), 4);
    assert_eq!(Commands::new(b"").count(), 0);
}

#[test]
fn limits_are_typed_errors() {
    let long_key = vec![0; MAX_KEY_BYTES + 1];
    let long_value = vec![0; MAX_VALUE_BYTES + 1];
    let mut commit = CommitBuilder::new();
    let too_long = CommandError::KeyTooLong { got: long_key.len() };
    assert_eq!(commit.put(KS, &long_key, b"").unwrap_err(), too_long);
    assert_eq!(commit.delete(KS, &long_key).unwrap_err(), too_long);
    assert_eq!(commit.expect(KS, &long_key, Expect::Absent).unwrap_err(), too_long);
    let value_too_long = CommandError::ValueTooLong { got: long_value.len() };
    assert_eq!(commit.put(KS, b"k", &long_value).unwrap_err(), value_too_long);
    assert_eq!(encode_put(&mut Vec::new(), KS, b"k", &long_value), Err(value_too_long));
    let half = &long_value[..MAX_VALUE_BYTES];
    commit.put(KS, &long_key[1..], half).unwrap();
    assert_eq!(commit.put(KS, b"k", half).unwrap_err(), CommandError::CommitTooLarge);
    let mut commit = CommitBuilder::new();
    for _ in 0..MAX_COMMIT_WRITES {
        commit.delete(KS, b"").unwrap();
    }
    assert_eq!(commit.delete(KS, b"").unwrap_err(), CommandError::CommitTooLarge);
    assert_eq!(commit.write_count() as usize, MAX_COMMIT_WRITES);
}

#[test]
fn a_transaction_has_a_bounded_number_of_scans_in_both_lists_together() {
    let scan = ScanOperation { prefix: b"", start: None, end: None, reverse: false, keys_only: false, limit: 1 };
    let mut transaction = TransactionBuilder::new();
    for _ in 0..MAX_TRANSACTION_SCANS {
        transaction.then().scan(KS, &scan).unwrap();
    }
    assert_eq!(transaction.then().scan(KS, &scan).unwrap_err(), CommandError::TooManyScans);
    transaction.encode(&mut Vec::new()).unwrap();
    transaction.otherwise().scan(KS, &scan).unwrap();
    assert_eq!(transaction.encode(&mut Vec::new()), Err(CommandError::TooManyScans));
}

#[test]
fn names_are_checked_by_both_sides() {
    let longest = "n".repeat(MAX_NAME_BYTES);
    for good in ["a", "A-Z_0.9", longest.as_str()] {
        check_name(good).unwrap();
    }
    let too_long = "n".repeat(MAX_NAME_BYTES + 1);
    for bad in ["", ".hidden", "a/b", "a b", "ä", "a\0", too_long.as_str()] {
        assert!(check_name(bad).is_err(), "{bad:?}");
        assert!(encode_create_keyspace(&mut Vec::new(), bad, &KeyspaceConfig::default()).is_err());
        let foreign = encoded(|out| {
            put_checked(out, &Command::CreateKeyspace { config: KeyspaceConfig::default(), name: bad });
        });
        assert!(Command::decode(&foreign).is_err(), "{bad:?}");
    }
}

#[test]
fn the_longest_age_that_is_not_no_limit_stays_a_limit() {
    let config = StreamConfig { max_age: Some(Duration::MAX), ..StreamConfig::default() };
    let bytes = encoded(|out| config.encode(out));
    let back = StreamConfig::decode(&mut Reader::at(&bytes, 0)).unwrap();
    assert_eq!(back.max_age, Some(Duration::from_micros(u64::MAX - 1)));
}

#[test]
fn the_example_of_the_format_document_is_what_is_written() {
    let document = include_str!("../../../../docs/formats/command.md");
    let example = document.split("Example: put").nth(1).and_then(|rest| rest.split("```").nth(1)).unwrap();
    let bytes: Vec<u8> = example
        .lines()
        .flat_map(|line| line.split(' ').map_while(|word| (word.len() == 2).then_some(word)))
        .map(|byte| u8::from_str_radix(byte, 16).unwrap())
        .collect();
    let command = encoded(|out| encode_put(out, KeyspaceId(1), b"key", b"value").unwrap());
    assert_eq!(bytes, [&(command.len() as u32).to_le_bytes(), &command[..]].concat());
}

#[test]
fn a_blind_put_is_decoded_as_the_commit_that_it_is() {
    let put = encoded(|out| encode_put(out, KS, b"key", b"value").unwrap());
    let Ok(Command::Commit(commit)) = Command::decode(&put) else { panic!("a commit") };
    let write = commit.writes().unwrap().next().unwrap().unwrap();
    let BlindPut { keyspace, key, value, value_at } = BlindPut::decode(&put).unwrap();
    assert_eq!(write, Write::Put { keyspace, key, value, value_at });
    assert_eq!((keyspace, key, value, &put[value_at..]), (KS, &b"key"[..], &b"value"[..], &b"value"[..]));
    let longer = [&put[..], b"x"].concat();
    for cut in (0..put.len()).map(|len| &put[..len]).chain([&longer[..]]) {
        assert_eq!(BlindPut::decode(cut), None, "{cut:?}");
    }
    let mut two = CommitBuilder::new();
    two.put(KS, b"a", b"1").unwrap().put(KS, b"b", b"2").unwrap();
    let mut expecting = CommitBuilder::new();
    expecting.expect(KS, b"a", Expect::Absent).unwrap().put(KS, b"a", b"1").unwrap();
    for other in [two, expecting, full_commit()] {
        assert_eq!(BlindPut::decode(&encoded(|out| other.encode(out))), None);
    }
    assert_eq!(BlindPut::decode(&encoded(|out| encode_delete(out, KS, b"key").unwrap())), None);
}
