//! Frames between nodes whose bodies a generator makes from `docs/formats/peer.md` alone: they are accepted, and if
//! they are cut or changed, they are rejected or come back unchanged.

use thalweg_wire::peer::{COMPRESS_FROM_BYTES, HEADER_BYTES, MAX_BODY_BYTES, PeerKind, compress, decompress};

use crate::common::{Document, Grammar, Random, seeds};

/// Returns a body of each kind.
fn corpus(seed: u64) -> Vec<(PeerKind, Vec<u8>)> {
    let document = Document::read("peer.md");
    let grammar = Grammar::of(&document);
    let mut random = Random::new(seed);
    let layouts =
        document.rows("| number | frame |").into_iter().map(|row| row[2].replace("magic magic", "magic peer magic"));
    let body = |layout: String| {
        let mut body = Vec::new();
        grammar.put_fields(&layout, &mut body, &mut random);
        body
    };
    let bodies: Vec<_> = layouts.map(body).collect();
    assert_eq!(bodies.len(), PeerKind::ALL.len());
    PeerKind::ALL.iter().copied().zip(bodies).collect()
}

/// Decodes the body. If it is accepted, encoding gives the same bytes.
fn decode_or_reject(kind: PeerKind, body: &[u8], context: &dyn Fn() -> String) -> bool {
    let decoded = kind.decode_and_encode(body);
    if let Ok(back) = &decoded {
        assert_eq!(back, body, "{}", context());
    }
    decoded.is_ok()
}

#[test]
fn bodies_of_the_document_are_accepted() {
    for seed in seeds(50) {
        for (kind, body) in corpus(seed) {
            let context = || format!("seed {seed}, {kind:?}: {body:x?}");
            assert!(decode_or_reject(kind, &body, &context), "{}", context());
        }
    }
}

#[test]
fn bodies_cut_at_every_byte() {
    let mut rejected = 0;
    for seed in seeds(10) {
        for (kind, body) in corpus(seed) {
            for cut in 0..body.len() {
                let is_accepted =
                    decode_or_reject(kind, &body[..cut], &|| format!("seed {seed}, {kind:?} cut to {cut}"));
                rejected += usize::from(!is_accepted);
            }
            // Only a rest takes further bytes.
            let longer = [&body[..], b"x"].concat();
            let takes_more = decode_or_reject(kind, &longer, &|| format!("seed {seed}, {kind:?} with a byte more"));
            assert_eq!(takes_more, kind.definition().ends_with(" rest"), "{kind:?}");
        }
    }
    assert!(rejected > 0);
}

#[test]
fn bodies_changed_at_every_byte() {
    for seed in seeds(10) {
        for (kind, body) in corpus(seed) {
            for at in 0..body.len() {
                for change in [1, 0x80, 0xff, body[at].wrapping_neg()] {
                    let mut changed = body.clone();
                    changed[at] ^= change;
                    decode_or_reject(kind, &changed, &|| format!("seed {seed}, {kind:?}, byte {at} by {change:#x}"));
                }
            }
        }
    }
}

#[test]
fn compressed_bodies_changed_at_every_byte() {
    for seed in seeds(3) {
        let mut random = Random::new(seed);
        let body: Vec<u8> = (0..COMPRESS_FROM_BYTES as u64).map(|at| (at / (1 + random.below(9))) as u8 & 3).collect();
        let mut frame = vec![0; HEADER_BYTES];
        frame[..4].copy_from_slice(&(body.len() as u32).to_le_bytes());
        frame.extend_from_slice(&body);
        compress(&mut frame, 0);
        assert!(frame.len() < body.len() && frame[5] == 1, "seed {seed}: it was compressed");
        let compressed = &frame[HEADER_BYTES..];
        assert_eq!(decompress(compressed).unwrap(), body);
        for at in 0..compressed.len().min(400) {
            let mut changed = compressed.to_vec();
            changed[at] ^= 1 << random.below(8);
            // Frames have no checksum, so other bytes may come out, but within the bound.
            if let Ok(other) = decompress(&changed) {
                assert!(other.len() <= MAX_BODY_BYTES, "seed {seed}, byte {at}");
            }
            assert!(decompress(&compressed[..at]).is_err(), "seed {seed}, cut to {at}");
        }
    }
}
