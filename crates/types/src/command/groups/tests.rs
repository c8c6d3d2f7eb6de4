use std::time::Duration;

use super::*;
use crate::{
    command::{Command, CommandError, Framed},
    ids::{Attempt, GroupId, Offset, StreamId},
    limits::{
        MAX_FETCH_KEYS, MAX_FETCH_RECORDS, MAX_GROUP_PENDING, MAX_MEMBER_NAME_BYTES, MAX_NACK_REASON_BYTES,
        MAX_SETTLED_RANGES,
    },
};

fn encoded(encode: impl FnOnce(&mut Vec<u8>) -> Result<(), CommandError>) -> Vec<u8> {
    let mut framed = Framed::new();
    framed.encode(encode).unwrap();
    framed.bytes()[4..].to_vec()
}

fn settlements() -> Vec<Settlement> {
    vec![
        Settlement { attempt: Attempt(9), runs: vec![OffsetRun { first: Offset(5), count: 2 }] },
        Settlement::all(Attempt(10)),
    ]
}

const SETTLEMENTS: &[u8] =
    b"\x02\0\0\0\x09\0\0\0\0\0\0\0\x01\0\0\0\x05\0\0\0\0\0\0\0\x02\0\0\0\x0a\0\0\0\0\0\0\0\0\0\0\0";

fn every_command() -> Vec<Vec<u8>> {
    let config = GroupConfig { dead_letters: Some("dead".into()), max_deliveries: Some(3), ..Default::default() };
    let group = GroupId(7);
    vec![
        encoded(|out| encode_create_group(out, StreamId(1), "g", None, &config)),
        encoded(|out| encode_configure_group(out, group, &config)),
        encoded(|out| {
            encode_delete_group(out, group);
            Ok(())
        }),
        encoded(|out| encode_fetch(out, group, 100, Offset(4), &[1, 0], "m")),
        encoded(|out| encode_ack(out, group, &settlements())),
        encoded(|out| encode_nack(out, group, Redelivery::After(Duration::from_micros(3)), "no", &settlements())),
        encoded(|out| encode_extend(out, group, Duration::from_micros(2), &[Attempt(9)])),
        encoded(|out| {
            encode_seek(out, group, Some(Offset(3)));
            Ok(())
        }),
    ]
}

#[test]
fn layouts_are_pinned() {
    let commands = every_command();
    let config = b"\0\x80\xc3\xc9\x01\0\0\0\0\x03\0\0\0\x20\x4e\0\0\x04\0dead".as_slice();
    let group = b"\x07\0\0\0".as_slice();
    assert_eq!(commands[0], [b"\x30\x01\0\0\0".as_slice(), &[0xff; 8], config, b"\x01\0g"].concat());
    assert_eq!(commands[1], [b"\x31", group, config].concat());
    assert_eq!(commands[2], [b"\x32", group].concat());
    let keys = b"\x64\0\0\0\x04\0\0\0\0\0\0\0\x02\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\0m";
    assert_eq!(commands[3], [b"\x33", group, keys].concat());
    assert_eq!(commands[4], [b"\x34", group, SETTLEMENTS].concat());
    assert_eq!(commands[5], [b"\x35", group, b"\x03\0\0\0\0\0\0\0\x02\0no", SETTLEMENTS].concat());
    let extend = b"\x02\0\0\0\0\0\0\0\x01\0\0\0\x09\0\0\0\0\0\0\0";
    assert_eq!(commands[6], [b"\x36", group, extend].concat());
    assert_eq!(commands[7], [b"\x37", group, b"\x03\0\0\0\0\0\0\0"].concat());
}

#[test]
fn settlements_and_keys_are_read_back() {
    let commands = every_command();
    let Ok(Command::Group(GroupCommand::Settle(settle))) = Command::decode(&commands[5]) else { panic!() };
    assert_eq!(settle.kind, SettlementKind::Nack { again: Redelivery::After(Duration::from_micros(3)), reason: "no" });
    let back = settle.settlements.iter().map(|(attempt, runs)| Settlement { attempt, runs: runs.collect() });
    assert_eq!(back.collect::<Vec<_>>(), settlements());
    let Ok(Command::Group(GroupCommand::Fetch(fetch))) = Command::decode(&commands[3]) else { panic!() };
    let keys = [3, 4, 5, 6].map(|offset| fetch.key_at(Offset(offset)));
    assert_eq!((keys, fetch.member), ([None, Some(1), Some(0), None], "m"));
}

#[test]
fn what_breaks_a_limit_is_not_encoded() {
    let out = &mut Vec::new();
    let bad = GroupConfig { max_pending: MAX_GROUP_PENDING + 1, ..GroupConfig::default() };
    assert!(encode_create_group(out, StreamId(1), "g", None, &bad).is_err());
    let many = vec![Settlement::all(Attempt(1)); MAX_SETTLED_RANGES + 1];
    assert_eq!(encode_ack(out, GroupId(1), &many), Err(CommandError::TooManyRanges));
    let empty = Settlement { attempt: Attempt(1), runs: vec![OffsetRun { first: Offset(1), count: 0 }] };
    assert!(encode_ack(&mut Vec::new(), GroupId(1), &[empty]).is_err());
    let name = |len| encode_fetch(&mut Vec::new(), GroupId(1), 1, Offset(0), &[], &"m".repeat(len));
    assert_eq!((name(MAX_MEMBER_NAME_BYTES).is_ok(), name(MAX_MEMBER_NAME_BYTES + 1).is_ok()), (true, false));
}

#[test]
fn wishes_above_a_limit_are_cut_to_it_and_foreign_ones_are_malformed() {
    let keys = vec![7; MAX_FETCH_KEYS + 1];
    let bytes = encoded(|out| encode_fetch(out, GroupId(1), u32::MAX, Offset(4), &keys, "m"));
    let Ok(Command::Group(GroupCommand::Fetch(fetch))) = Command::decode(&bytes) else { panic!() };
    assert_eq!(fetch.max, MAX_FETCH_RECORDS);
    let last = Offset(4 + MAX_FETCH_KEYS as u64 - 1);
    assert_eq!((fetch.key_at(last), fetch.key_at(last.plus(1))), (Some(7), None));
    // The maximum follows the kind and the group's id.
    let mut foreign = bytes;
    foreign[5..9].copy_from_slice(&(MAX_FETCH_RECORDS + 1).to_le_bytes());
    assert!(Command::decode(&foreign).is_err());

    let reason = "\u{fc}".repeat(MAX_NACK_REASON_BYTES);
    let bytes = encoded(|out| encode_nack(out, GroupId(1), Redelivery::Never, &reason, &settlements()));
    let Ok(Command::Group(GroupCommand::Settle(settle))) = Command::decode(&bytes) else { panic!() };
    let cut = &reason[..MAX_NACK_REASON_BYTES];
    assert_eq!(
        settle.kind,
        SettlementKind::Nack { again: Redelivery::Never, reason: cut },
        "cut at a character boundary"
    );
}

#[test]
fn cuts_are_malformed_and_flips_never_panic() {
    for bytes in every_command() {
        for cut in 0..bytes.len() {
            assert!(Command::decode(&bytes[..cut]).is_err(), "{bytes:?} cut at {cut}");
        }
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            if let Ok(Command::Group(GroupCommand::Settle(settle))) = Command::decode(&flipped) {
                settle.settlements.iter().for_each(|(_, runs)| runs.for_each(drop));
            }
        }
    }
}

#[test]
fn key_hashes_are_pinned() {
    assert_eq!([key_hash(b""), key_hash(b"a")], [0xcbf2_9ce4_8422_2325, 0xaf63_dc4c_8601_ec8c]);
}
