//! `docs/formats/peer.md` and the code agree, frames between nodes are pinned, and no bytes make the decoder panic.

use std::collections::BTreeMap;

use thalweg_types::{Index, NodeId, SpaceTime, Term, codec::List};
use thalweg_wire::peer::{
    Append, AskHistory, AskRequests, AskVersions, Channel, EntryId, EntryKind, EntryRequests, HEADER_BYTES, Header,
    Hello, History, LogEntry, MAX_BODY_BYTES, MAX_HANDSHAKE_BYTES, NamedEntry, Nonce, PeerFrame, PeerKind, PeerVote,
    Protection, VERSION, Versions, decompress, encode, encode_compressed, structures,
};

use crate::common::{Document, Random, seeds};

#[test]
fn every_kind_and_structure_is_documented_and_the_reverse() {
    let document = Document::read("peer.md");
    let documented: Vec<_> = document
        .rows("| number | frame |")
        .into_iter()
        .map(|row| (row[0].clone(), row[1].clone(), row[2].clone()))
        .collect();
    let code: Vec<_> = PeerKind::ALL
        .iter()
        .map(|kind| ((*kind as u8).to_string(), kind.name().to_owned(), kind.definition()))
        .collect();
    assert_eq!(documented, code);
    let code: BTreeMap<_, _> = structures().into_iter().map(|(name, layout)| (name.to_owned(), layout)).collect();
    assert_eq!(document.structures(), code);
    assert!(document.contains(&format!("version is {VERSION}")));
    assert!(document.contains(&format!("{MAX_HANDSHAKE_BYTES} bytes")));
    assert!(document.contains(&format!("{} MiB", MAX_BODY_BYTES >> 20)));
}

fn id(term: u64, index: u64) -> EntryId {
    EntryId { term: Term(term), index: Index(index) }
}

#[test]
fn frames_are_pinned() {
    let hello = Hello {
        magic: Hello::magic(),
        min_version: 1,
        max_version: 1,
        cluster_low: 2,
        cluster_high: 3,
        node: NodeId(4),
        channel: Channel::Control,
        protection: Protection::Tls,
        nonce: Nonce([7; 32]),
        address: "a:1",
        software: "0.1",
        seal: Nonce([8; 32]),
    };
    assert_eq!(hello.cluster(), 3 << 64 | 2);
    let mut out = Vec::new();
    encode(&hello, 0, &mut out).unwrap();
    let body = [
        b"TWPR\x01\0\x01\0\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0\x01\x01".as_slice(),
        &[7; 32],
        b"\x03\0a:1\x03\x000.1",
        &[8; 32],
    ]
    .concat();
    assert_eq!(out[..HEADER_BYTES], [body.len() as u8, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(out[HEADER_BYTES..], body);

    let entries = [LogEntry { id: id(2, 9), kind: EntryKind::Commands, time: SpaceTime(5), payload: b"xy" }];
    let append = Append {
        vote: PeerVote { term: Term(2), node: NodeId(1), committed: true },
        heard: 6,
        previous: Some(id(1, 8)),
        committed: None,
        entries: List::Items(&entries),
    };
    let mut out = Vec::new();
    encode(&append, 1, &mut out).unwrap();
    let body = [
        b"\x02\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x01\x06\0\0\0\0\0\0\0".as_slice(),
        b"\x01\x01\0\0\0\0\0\0\0\x08\0\0\0\0\0\0\0\0",
        b"\x01\0\0\0\x02\0\0\0\0\0\0\0\x09\0\0\0\0\0\0\0\x01\x05\0\0\0\0\0\0\0\x02\0\0\0xy",
    ]
    .concat();
    assert_eq!(out[HEADER_BYTES..], body);
    assert_eq!(Append::decode_body(&body).unwrap(), append);
}

#[test]
fn the_frames_about_a_nodes_history_are_pinned() {
    let mut out = Vec::new();
    encode(&AskHistory {}, 7, &mut out).unwrap();
    assert_eq!(out, [0, 0, 0, 0, 58, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
    for (has_voted, has_entries) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut out = Vec::new();
        encode(&History { has_voted, has_entries }, 7, &mut out).unwrap();
        let body = [u8::from(has_voted), u8::from(has_entries)];
        assert_eq!(out, [&[2, 0, 0, 0, 59, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0], &body[..]].concat());
        assert_eq!(History::decode_body(&body).unwrap(), History { has_voted, has_entries });
    }
    assert!(History::decode_body(&[0]).is_err() && History::decode_body(&[0, 0, 0]).is_err());
}

#[test]
fn the_frames_about_versions_of_the_state_machine_are_pinned() {
    let mut out = Vec::new();
    encode(&AskVersions {}, 7, &mut out).unwrap();
    assert_eq!(out, [0, 0, 0, 0, 60, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
    let mut out = Vec::new();
    encode(&Versions { known: 0x0203, in_force: 1 }, 7, &mut out).unwrap();
    assert_eq!(out, [4, 0, 0, 0, 61, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 3, 2, 1, 0]);
    assert_eq!(Versions::decode_body(&[3, 2, 1, 0]).unwrap(), Versions { known: 0x0203, in_force: 1 });
    assert!(Versions::decode_body(&[3, 2, 1]).is_err() && Versions::decode_body(&[3, 2, 1, 0, 0]).is_err());
}

#[test]
fn the_frames_about_the_requests_in_entries_are_pinned() {
    let mut out = Vec::new();
    encode(&AskRequests { after: 0x0102 }, 7, &mut out).unwrap();
    assert_eq!(out, [&[8, 0, 0, 0, 62, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0], &[2, 1, 0, 0, 0, 0, 0, 0][..]].concat());
    let entries = [NamedEntry { index: Index(9), requests: "a, b" }, NamedEntry { index: Index(8), requests: "c" }];
    let reply = EntryRequests { first: 3, entries: List::Items(&entries) };
    let mut out = Vec::new();
    encode(&reply, 7, &mut out).unwrap();
    let body =
        [b"\x03\0\0\0\0\0\0\0\x02\0\0\0".as_slice(), b"\x09\0\0\0\0\0\0\0\x04\0a, b", b"\x08\0\0\0\0\0\0\0\x01\0c"]
            .concat();
    assert_eq!(out, [&[body.len() as u8, 0, 0, 0, 47, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0], &body[..]].concat());
    assert_eq!(EntryRequests::decode_body(&body).unwrap(), reply);
    assert!(EntryRequests::decode_body(&body[..body.len() - 1]).is_err());
}

#[test]
fn long_bodies_are_compressed_and_come_back() {
    let payload = b"thalweg ".repeat(16 * 1024);
    let entries = [LogEntry { id: id(1, 1), kind: EntryKind::Commands, time: SpaceTime(1), payload: &payload }];
    let append = Append {
        vote: PeerVote { term: Term(1), node: NodeId(1), committed: true },
        heard: 0,
        previous: None,
        committed: None,
        entries: List::Items(&entries),
    };
    let mut out = Vec::new();
    encode_compressed(&append, 3, &mut out).unwrap();
    assert!(out.len() < payload.len() / 10, "{} bytes", out.len());
    let header = Header::decode(out[..HEADER_BYTES].try_into().unwrap(), MAX_BODY_BYTES).unwrap();
    assert!(header.is_compressed && header.len == out.len() - HEADER_BYTES && header.id == 3);
    let body = decompress(&out[HEADER_BYTES..]).unwrap();
    assert_eq!(Append::decode_body(&body).unwrap(), append);
}

/// A frame that decodes is encoded to the same bytes again, and no garbage panics.
#[test]
fn garbage_is_rejected_or_comes_back_unchanged() {
    let mut decoded = 0;
    for seed in seeds(200) {
        let mut random = Random::new(seed);
        for &kind in PeerKind::ALL {
            let len = random.below(80) as usize;
            let sparse = random.below(2) == 0;
            let byte = |random: &mut Random| if sparse && random.below(4) > 0 { 0 } else { random.next() as u8 };
            let body: Vec<_> = (0..len).map(|_| byte(&mut random)).collect();
            if let Ok(back) = kind.decode_and_encode(&body) {
                assert_eq!(back, body, "seed {seed}, {kind:?}");
                decoded += 1;
            }
            let mut header = [0; HEADER_BYTES];
            header.iter_mut().for_each(|at| *at = byte(&mut random));
            // Either result is right; the call must not panic.
            let _ = Header::decode(&header, MAX_HANDSHAKE_BYTES);
            let _ = decompress(&body);
        }
    }
    assert!(decoded > 0, "some bodies decode");
}
