//! Frames between nodes: raw headers and compressed bodies, and bodies of every kind from the input.
//!
//! Never a panic; an accepted body encodes to the same bytes again, also through compression; a short block does not demand
//! much memory.

#![no_main]

use libfuzzer_sys::fuzz_target;
use thalweg_fuzz::Input;
use thalweg_wire::peer::{
    HEADER_BYTES, Header, MAX_BODY_BYTES, MAX_HANDSHAKE_BYTES, PeerKind, compress, decompress,
};

/// Largest factor by which an LZ4 block grows.
const MAX_FACTOR: usize = 255;

fn look(kind: PeerKind, body: &[u8]) {
    let Ok(back) = kind.decode_and_encode(body) else { return };
    assert_eq!(back, body, "{kind:?}");
    let mut frame = vec![0; HEADER_BYTES];
    frame[..4].copy_from_slice(&(body.len() as u32).to_le_bytes());
    frame[4] = kind as u8;
    frame.extend_from_slice(body);
    compress(&mut frame, 0);
    let header = frame[..HEADER_BYTES].try_into().expect("a frame has a header");
    let header = Header::decode(header, MAX_BODY_BYTES).expect("it was encoded");
    assert_eq!((header.kind, header.len), (kind as u8, frame.len() - HEADER_BYTES));
    if header.is_compressed {
        assert_eq!(decompress(&frame[HEADER_BYTES..]).expect("it was compressed"), body);
    }
}

fuzz_target!(|data: &[u8]| {
    if let Some((header, body)) = data.split_first_chunk::<HEADER_BYTES>() {
        if let Ok(header) = Header::decode(header, MAX_HANDSHAKE_BYTES) {
            assert!(header.len <= MAX_HANDSHAKE_BYTES);
        }
        if let Ok(header) = Header::decode(header, MAX_BODY_BYTES)
            && let Some(kind) = PeerKind::from_code(header.kind)
        {
            let _ = kind.decode_and_encode(body);
        }
    }
    if let Ok(long) = decompress(data) {
        assert!(long.len() <= MAX_FACTOR * (data.len() + 1));
        PeerKind::ALL.iter().for_each(|kind| look(*kind, &long));
    }
    let mut input = Input(data);
    let kind = PeerKind::ALL[input.below(PeerKind::ALL.len())];
    look(kind, input.0);
});
