//! Bytes from outside: cut anywhere, changed anywhere, or random. Decoding never panics, and bytes accepted as a frame
//! encode to the same bytes again.

use thalweg_types::limits::MAX_HELLO_BYTES;
use thalweg_wire::{Batch, ClientCommand, DecodeError, Decoder, HEADER_BYTES, Kind, Messages};

use crate::common::{FrameGrammar, Random, decode_and_encode, frame, raw, seeds, through_decoder};

fn set_len(bytes: &mut [u8]) {
    let len = u32::try_from(bytes.len() - HEADER_BYTES).unwrap();
    bytes[..4].copy_from_slice(&len.to_le_bytes());
}

fn corpus(seed: u64) -> Vec<(Kind, Vec<u8>)> {
    let grammar = FrameGrammar::of_document();
    let mut random = Random::new(seed);
    Kind::ALL.iter().map(|&kind| (kind, frame(&grammar, kind, &mut random))).collect()
}

/// Decodes the bytes. If they are accepted, encoding gives the same bytes, except for optional fields that were
/// skipped.
fn decode_or_refuse(bytes: &[u8], context: &dyn Fn() -> String) {
    if let Ok(back) = decode_and_encode(bytes) {
        let fields = |bytes: &[u8]| usize::from(raw(bytes).header.fields);
        let body = |bytes: &[u8]| bytes[HEADER_BYTES + fields(bytes)..].to_vec();
        assert_eq!(body(&back), body(bytes), "{}: {bytes:x?}", context());
        assert!(fields(&back) <= fields(bytes), "{}", context());
        assert_eq!(back[8..12], bytes[8..12], "the id");
    }
}

#[test]
fn frames_cut_at_every_byte() {
    for seed in seeds(5) {
        for (kind, bytes) in corpus(seed) {
            for cut in HEADER_BYTES..bytes.len() {
                let mut short = bytes[..cut].to_vec();
                set_len(&mut short);
                decode_or_refuse(&short, &|| format!("seed {seed}, {kind:?} cut to {cut}"));
            }
        }
    }
}

#[test]
fn frames_changed_at_every_byte() {
    for seed in seeds(5) {
        for (kind, bytes) in corpus(seed) {
            for at in 4..bytes.len() {
                for change in [1, 0x80, 0xff, bytes[at].wrapping_neg()] {
                    let mut changed = bytes.clone();
                    changed[at] ^= change;
                    decode_or_refuse(&changed, &|| format!("seed {seed}, {kind:?}, byte {at} by {change:#x}"));
                }
            }
        }
    }
}

#[test]
fn bodies_of_other_kinds_and_of_noise() {
    for seed in seeds(5) {
        let corpus = corpus(seed);
        let mut random = Random::new(seed);
        for (kind, _) in &corpus {
            for (_, other) in &corpus {
                let mut bytes = other.clone();
                bytes[4..6].copy_from_slice(&(*kind as u16).to_le_bytes());
                decode_or_refuse(&bytes, &|| format!("seed {seed}, {kind:?} with the body of another"));
            }
            for len in 0..64 {
                let mut bytes = vec![0; HEADER_BYTES];
                bytes[4..6].copy_from_slice(&(*kind as u16).to_le_bytes());
                bytes.extend((0..len).map(|_| random.below(256) as u8));
                set_len(&mut bytes);
                decode_or_refuse(&bytes, &|| format!("seed {seed}, {kind:?} with noise"));
            }
        }
    }
}

#[test]
fn noise_is_no_command_batch_or_message_and_no_panic() {
    for seed in seeds(2000) {
        let mut random = Random::new(seed);
        let len = random.below(200);
        // Mix in small numbers, so that some lengths and counts are plausible.
        let noise: Vec<u8> = (0..len)
            .map(|_| if random.below(3) == 0 { random.below(256) as u8 } else { random.below(4) as u8 })
            .collect();
        let _ = ClientCommand::check(&noise);
        if let Ok(batch) = Batch::decode(&noise) {
            let _ = (batch.check(), batch.check_crc());
        }
        let _ = Messages::new(&noise).check();
        let mut decoder = Decoder::new();
        decoder.feed(&noise);
        while let Ok(Some(frame)) = decoder.next_borrowed() {
            assert!(frame.payload.len() <= MAX_HELLO_BYTES as usize);
        }
    }
}

#[test]
fn a_stream_in_pieces_is_the_same_frames() {
    for seed in seeds(3) {
        let frames: Vec<_> = corpus(seed).into_iter().map(|(_, bytes)| bytes).collect();
        let stream = frames.concat();
        for step in [1, 7, 64, 1000, stream.len()] {
            assert_eq!(through_decoder(&stream, step), frames, "seed {seed}, in steps of {step}");
        }
    }
}

#[test]
fn unknown_kinds_and_those_of_the_other_side_are_refused_by_name() {
    let mut bytes = vec![0; HEADER_BYTES];
    bytes[4..6].copy_from_slice(&0x0fff_u16.to_le_bytes());
    let client = thalweg_wire::ClientFrame::decode(raw(&bytes)).map(|_| ());
    assert_eq!(client, Err(DecodeError::UnknownKind { kind: 0x0fff }));
    bytes[4..6].copy_from_slice(&(Kind::Welcome as u16).to_le_bytes());
    let client = thalweg_wire::ClientFrame::decode(raw(&bytes)).map(|_| ());
    assert_eq!(client, Err(DecodeError::WrongDirection { kind: Kind::Welcome }));
    bytes[4..6].copy_from_slice(&(Kind::Get as u16).to_le_bytes());
    let server = thalweg_wire::ServerFrame::decode(raw(&bytes)).map(|_| ());
    assert_eq!(server, Err(DecodeError::WrongDirection { kind: Kind::Get }));
    for auth in [6_u16, 7] {
        bytes[4..6].copy_from_slice(&auth.to_le_bytes());
        assert_eq!(
            thalweg_wire::ClientFrame::decode(raw(&bytes)).map(|_| ()),
            Err(DecodeError::UnknownKind { kind: auth })
        );
    }
}

#[test]
fn fields_of_newer_peers_are_skipped_or_refused_in_any_frame() {
    for (kind, bytes) in corpus(1) {
        for (tag, is_taken) in [(0x7fff_u16, true), (0xffff, false)] {
            let (header, payload) = bytes.split_at(HEADER_BYTES);
            let fields = usize::from(raw(&bytes).header.fields);
            let mut newer = header.to_vec();
            newer.extend_from_slice(&payload[..fields]);
            // Insert the new field behind the existing ones, since tags rise.
            let known = newer.len();
            newer.extend_from_slice(&tag.to_le_bytes());
            newer.extend_from_slice(b"\x03\0new");
            newer.extend_from_slice(&payload[fields..]);
            newer[6..8].copy_from_slice(&((known - HEADER_BYTES + 7) as u16).to_le_bytes());
            set_len(&mut newer);
            let has_space = fields >= 8 && payload[fields - 8..fields - 4] == [1, 0x80, 4, 0];
            match decode_and_encode(&newer) {
                Ok(back) => assert!(is_taken && back == bytes, "{kind:?}"),
                Err(DecodeError::UnknownField { tag: found }) => assert!(!is_taken && found == tag, "{kind:?}"),
                // The skipped field comes after a field that must be understood.
                Err(error) => assert!(is_taken && has_space, "{kind:?}: {error}"),
            }
        }
    }
}
