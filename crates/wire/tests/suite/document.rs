//! `docs/formats/wire.md` and the code agree, and the document alone suffices to build frames that the code decodes.

use std::collections::BTreeMap;

use thalweg_wire::{KNOWN_FIELDS, Kind, MUST_UNDERSTAND, RESERVED_KINDS, Reason, Sender, structures};

use crate::common::{Document, FrameGrammar, Random, decode_and_encode, frame, seeds};

#[test]
fn every_kind_of_frame_is_documented_and_the_reverse() {
    let mut documented = BTreeMap::new();
    for row in Document::read("wire.md").rows("| kind | frame |") {
        let [kind, name, from, body] = &row[..] else { panic!("{row:?}") };
        let code = u16::from_str_radix(kind, 16).unwrap();
        assert!(documented.insert(code, (name.clone(), from.clone(), body.clone())).is_none(), "{kind} twice");
    }
    for &(code, name) in &RESERVED_KINDS {
        let row = documented.remove(&code).unwrap_or_else(|| panic!("{name} is not documented"));
        assert_eq!((row.0.as_str(), row.2.as_str()), (name, "reserved"));
        assert_eq!(Kind::from_code(code), None, "{name} is reserved");
    }
    for &kind in Kind::ALL {
        let row = documented.remove(&(kind as u16)).unwrap_or_else(|| panic!("{kind:?} is not documented"));
        let from = match kind.sender() {
            Sender::Client => "client",
            Sender::Server => "server",
            Sender::Both => "both",
        };
        assert_eq!(row, (kind.name().to_owned(), from.to_owned(), kind.definition()), "{kind:?}");
    }
    assert!(documented.is_empty(), "documented but not in the code: {documented:?}");
}

#[test]
fn every_structure_is_documented_and_the_reverse() {
    let documented = Document::read("wire.md").structures();
    let code: BTreeMap<_, _> = structures().into_iter().map(|(name, layout)| (name.to_owned(), layout)).collect();
    assert_eq!(documented, code);
}

#[test]
fn fields_and_reasons_are_documented() {
    let document = Document::read("wire.md");
    let fields: Vec<_> =
        document.rows("| tag | field |").into_iter().map(|row| (row[0].clone(), row[1].clone())).collect();
    let code: Vec<_> = KNOWN_FIELDS.iter().map(|(tag, name)| (format!("{tag:04x}"), (*name).to_owned())).collect();
    assert_eq!(fields, code);
    assert!(document.contains(&format!("below `{MUST_UNDERSTAND:04x}`")));
    let alpn = std::str::from_utf8(thalweg_wire::handshake::ALPN).unwrap();
    assert!(document.contains(&format!("ALPN is `{alpn}`")));
    let reasons: Vec<_> =
        document.rows("| reason | name |").into_iter().map(|row| (row[0].clone(), row[1].clone())).collect();
    let code: Vec<_> = Reason::ALL.iter().map(|(_, code, name)| (code.to_string(), (*name).to_owned())).collect();
    assert_eq!(reasons, code);
}

#[test]
fn numbers_tell_the_direction() {
    for &kind in Kind::ALL {
        let (area, low) = ((kind as u16) >> 8, (kind as u16) & 0xff);
        if area > 0 {
            let from = if low < 0x40 { Sender::Client } else { Sender::Server };
            assert_eq!(kind.sender(), from, "{kind:?}");
            assert!(low < 0xc0, "{kind:?}");
            assert_eq!(low >= 0x80, kind.role() == thalweg_wire::Role::Push, "{kind:?}");
        }
    }
}

/// The code decodes frames built from the document's layouts, and encodes them to the same bytes again.
#[test]
fn frames_made_of_the_document_come_back_byte_for_byte() {
    let grammar = FrameGrammar::of_document();
    for seed in seeds(40) {
        for &kind in Kind::ALL {
            let mut random = Random::new(seed ^ (u64::from(kind as u16) << 32));
            let bytes = frame(&grammar, kind, &mut random);
            let back =
                decode_and_encode(&bytes).unwrap_or_else(|error| panic!("seed {seed}, {kind:?}: {error}: {bytes:x?}"));
            assert_eq!(back, bytes, "seed {seed}, {kind:?}");
        }
    }
}
