//! Tests of the byte layouts of segment files. The golden files pin the same layouts.

use super::*;

fn header() -> SegmentHeader {
    SegmentHeader {
        state: SegmentState::Live,
        id: SegmentId::draw(3, Generation(5)),
        generation: Generation(5),
        base: Lsn(70),
        base_chain: 0x1234_5678,
        segment_bytes: 1 << 20,
        slot: 9,
        previous: Generation(4),
    }
}

#[test]
fn what_is_encoded_decodes_and_every_flip_is_found() {
    let segment = header();
    let batch = BatchHeader {
        body_len: 90,
        count: 2,
        first: Lsn(71),
        attested: Lsn(70),
        chain: 1,
        body_crc: 2,
        kind: BatchKind::Records,
    };
    let (first_time, last_time) = (SpaceTime(3), SpaceTime(4));
    let footer = Footer { end: 9000, chain: 7, first: Lsn(70), next: Lsn(99), first_time, last_time, truncates: true };
    let (id, limit) = (segment.id, (1 << 20) - FOOTER_BYTES as u32);
    assert_eq!(SegmentHeader::decode(&segment.encode()), Ok(segment));
    assert_eq!(BatchHeader::decode(&batch.encode(id, 8192), id, 8192, limit), Ok(batch));
    assert_eq!(Footer::decode(&footer.encode(id, limit), id, limit), Ok(footer));
    for bit in 0..64 * 8 {
        let flip = |bytes: &mut [u8]| bytes[bit / 8] ^= 1 << (bit % 8);
        let mut bytes = segment.encode();
        flip(&mut bytes);
        assert!(SegmentHeader::decode(&bytes).is_err(), "segment header, bit {bit}");
        let mut bytes = footer.encode(id, limit);
        flip(&mut bytes);
        assert!(Footer::decode(&bytes, id, limit).is_err(), "footer, bit {bit}");
        if bit < BATCH_HEADER_BYTES * 8 {
            let mut bytes = batch.encode(id, 8192);
            flip(&mut bytes);
            assert!(BatchHeader::decode(&bytes, id, 8192, limit).is_err(), "batch header, bit {bit}");
        }
    }
    let elsewhere = BatchHeader::decode(&batch.encode(id, 8192), id, 8200, limit);
    assert!(elsewhere.is_err(), "at another place");
    let other = SegmentId(id.0 ^ 1 << 40);
    assert!(BatchHeader::decode(&batch.encode(id, 8192), other, 8192, limit).is_err(), "in another segment");
}

/// Invalid header values with a correct checksum, as a broken program would write them, are rejected.
#[test]
fn nonsense_with_a_right_checksum_is_refused() {
    let id = header().id;
    let limit = 65_536;
    let good = BatchHeader { body_len: 40, count: 1, first: Lsn(5), attested: Lsn(5), ..BatchHeader::default() };
    let decode = |header: BatchHeader| BatchHeader::decode(&header.encode(id, 8192), id, 8192, limit);
    assert!(decode(good).is_ok());
    for bad in [
        BatchHeader { attested: Lsn(6), ..good },
        BatchHeader { count: 2, ..good },
        BatchHeader { count: 0, ..good },
        BatchHeader { kind: BatchKind::Closed, ..good },
        BatchHeader { body_len: u32::MAX, ..good },
        BatchHeader { body_len: limit - 8192, ..good },
        BatchHeader { first: Lsn::MAX, attested: Lsn(0), ..good },
    ] {
        assert!(decode(bad).is_err(), "{bad:?}");
    }
    for len in 0..100 {
        let record = RecordHeader::decode(&vec![0xff; len]);
        assert!(record.is_err());
    }
}

#[test]
fn ids_differ_from_generation_to_generation_of_one_seed() {
    let ids: std::collections::BTreeSet<_> = (0..10_000).map(|g| SegmentId::draw(7, Generation(g)).0).collect();
    assert_eq!(ids.len(), 10_000);
}

#[test]
fn names_of_slots() {
    for slot in [0, 1, 99_999_999, u32::MAX] {
        assert_eq!(parse_segment_name(&segment_name(slot)), Some(slot));
    }
    for name in ["1.seg", "00000001.tmp", "0000000a.seg", "+0000001.seg", ".seg", "LOCK"] {
        assert_eq!(parse_segment_name(name), None, "{name}");
    }
}

/// LSNs and generations at or beyond their maximum are rejected even if the checksum is correct, because
/// incrementing them would overflow.
#[test]
fn numbers_that_no_log_reaches_are_damage() {
    let header = SegmentHeader {
        state: SegmentState::Spare,
        id: SegmentId(7),
        generation: Generation(1),
        base: Lsn(1),
        base_chain: 0,
        segment_bytes: MIN_SEGMENT_BYTES,
        slot: 1,
        previous: Generation(0),
    };
    assert!(SegmentHeader::decode(&header.encode()).is_ok());
    for number in [MAX_NUMBER, u64::MAX] {
        assert!(SegmentHeader::decode(&SegmentHeader { generation: Generation(number), ..header }.encode()).is_err());
        assert!(SegmentHeader::decode(&SegmentHeader { base: Lsn(number), ..header }.encode()).is_err());
        let batch = BatchHeader { first: Lsn(number), kind: BatchKind::Idle, ..BatchHeader::default() };
        let bytes = batch.encode(SegmentId(7), DATA_START);
        assert!(BatchHeader::decode(&bytes, SegmentId(7), DATA_START, MIN_SEGMENT_BYTES).is_err());
        let (first, next) = (Lsn(0), Lsn(number));
        let time = SpaceTime(0);
        let footer =
            Footer { end: DATA_START, chain: 0, first, next, first_time: time, last_time: time, truncates: false };
        assert!(Footer::decode(&footer.encode(SegmentId(7), 9000), SegmentId(7), 9000).is_err());
    }
}
