use super::*;

fn id(ms: u64, seq: u64) -> EntryId {
    EntryId { ms, seq }
}

/// Parses hexadecimal digits into bytes, ignoring spaces.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<_> = text.chars().filter(|digit| !digit.is_whitespace()).collect();
    let byte = |pair: &[char]| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

#[test]
fn names_are_these_bytes() {
    let be = "0000000000000102 0000000000000003";
    assert_eq!(entry(id(0x0102, 3)).to_vec(), hex(&format!("01 {be}")));
    assert_eq!(group(b"g"), hex("02 67"));
    assert_eq!(consumer_name(7, b"c"), hex("03 0000000000000007 63"));
    assert_eq!(consumer(9).to_vec(), hex("04 0000000000000009"));
    assert_eq!(pending(7, id(0x0102, 3)).to_vec(), hex(&format!("05 0000000000000007 {be}")));
    assert_eq!(pending_with(9, id(0x0102, 3)).to_vec(), hex(&format!("06 0000000000000009 {be}")));
    assert_eq!(grave(7).to_vec(), hex("07 0000000000000007"));
    assert_eq!(id_of(&pending(7, id(4, 5))).unwrap(), id(4, 5));
    assert_eq!(number_of(&grave(7)).unwrap(), 7);
    assert!(id_of(&grave(7)).is_err() && number_of(&entry(id(1, 1))).is_err());
}

#[test]
fn values_are_these_bytes_and_come_back() {
    let meta = Meta {
        len: 1,
        last_id: id(2, 3),
        max_deleted_id: id(4, 5),
        added: 6,
        first_id: id(7, 8),
        next_number: 9,
        groups: 10,
        graves: 11,
    };
    let words: Vec<_> = (1..=9).map(|number| format!("{number:02x}00000000000000")).collect();
    assert_eq!(meta.encode(), hex(&format!("{} 0a000000 0b000000", words.concat())));
    assert_eq!(Meta::decode(&meta.encode()).unwrap(), meta);

    let group = Group { number: 1, last_id: id(2, 3), read: -1, pending: 4, consumers: 5 };
    let bytes = format!("{}ffffffffffffffff{}", words[..3].concat(), words[3..5].concat());
    assert_eq!(group.encode(), hex(&bytes));
    assert_eq!(Group::decode(&group.encode()).unwrap(), group);

    let consumer = Consumer { seen: 1, pending: 2, name: Bytes::from_static(b"c") };
    assert_eq!(consumer.encode(), hex(&format!("{} 63", words[..2].concat())));
    assert_eq!(Consumer::decode(&consumer.encode()).unwrap(), consumer);

    let pending = Pending { consumer: 1, delivered: 2, deliveries: 3 };
    assert_eq!(pending.encode().to_vec(), hex(&words[..3].concat()));
    assert_eq!(Pending::decode(&pending.encode()).unwrap(), pending);

    let fields: [&[u8]; 4] = [b"f", b"value", b"", b"\xff"];
    let entry = encode_entry(&fields);
    assert_eq!(entry, hex("00 01000000 66 05000000 76616c7565 00000000 01000000 ff"));
    assert_eq!(decode_entry(&entry).unwrap(), Reply::Array(fields.map(Reply::bulk).to_vec()));
    assert_eq!(decode_number(&encode_number(1)).unwrap(), 1);
}

#[test]
fn bytes_that_no_version_wrote_are_an_error() {
    let entry = encode_entry(&[b"f", b"value"]);
    for len in 0..entry.len() {
        assert!(decode_entry(&entry[..len]).is_err(), "{len}");
    }
    let mut other_form = entry.clone();
    other_form[0] = 1;
    let mut too_long = entry;
    too_long[1..5].copy_from_slice(&u32::MAX.to_le_bytes());
    for damaged in [other_form, too_long, encode_entry(&[b"odd"])] {
        assert!(decode_entry(&damaged).is_err(), "{damaged:?}");
    }
    for len in [0, 1, 15, 23, 25, 47, 49, 79, 81] {
        let bytes = vec![0; len];
        assert!(Meta::decode(&bytes).is_err() && Group::decode(&bytes).is_err() && Pending::decode(&bytes).is_err());
        assert!(decode_number(&bytes).is_err());
        assert_eq!(Consumer::decode(&bytes).is_err(), len < 16);
    }
}
