//! The bytes of snapshots, pinned by the files in `golden`. Tests of the engine write them, and restore them.

use std::{fs, path::Path};

use thalweg_snapshot::{SnapshotReadError, Verified, survey, verify};

const KINDS: [&str; 4] = ["full", "increment", "lz4", "zstd"];

fn golden(kind: &str, version: u8) -> Vec<u8> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    fs::read(dir.join(format!("snapshot-{kind}-v{version}.tws"))).unwrap()
}

fn verified(kind: &str, version: u8) -> Verified {
    verify(&golden(kind, version)[..]).unwrap()
}

/// Format 2 had no membership.
#[test]
fn snapshots_of_format_2_are_read_like_those_of_format_3() {
    for kind in KINDS {
        let (old, new) = (verified(kind, 2), verified(kind, 3));
        assert_eq!((old.info, old.totals, old.chunks), (new.info, new.totals, new.chunks), "{kind}");
        assert!(new.totals.rows + new.totals.entries > 0, "{kind}");
        assert_eq!(thalweg_snapshot::info(&golden(kind, 3)[..]).unwrap(), new.info, "{kind}");
    }
}

#[test]
fn a_chunk_of_one_format_does_not_continue_a_snapshot_of_the_other() {
    let [old, new] = [2, 3].map(|version| golden("full", version));
    let first = |bytes: &[u8]| 32 + u32::from_le_bytes(bytes[16..20].try_into().unwrap()) as usize;
    let mixed = [&new[..first(&new)], &old[first(&old)..]].concat();
    assert!(matches!(verify(&mixed[..]), Err(SnapshotReadError::Corrupt { chunk: 1, .. })));
}

/// Format 1 had no running hash.
#[test]
fn other_formats_are_refused_as_such() {
    let error = verify(&golden("full", 1)[..]).unwrap_err();
    assert!(matches!(error, SnapshotReadError::Version { found: 1, supported: 3 }), "{error}");
    let mut newer = golden("full", 3);
    newer[4] = 4;
    assert!(matches!(verify(&newer[..]), Err(SnapshotReadError::Version { found: 4, supported: 3 })));
    for junk in [&b"THALWSEG and more than a header's bytes"[..], b"TWS", b"not"] {
        assert!(matches!(verify(junk), Err(SnapshotReadError::NotASnapshot)));
    }
}

#[test]
fn each_flipped_bit_is_found() {
    for kind in KINDS {
        let bytes = golden(kind, 3);
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << (at % 8);
            assert!(verify(&flipped[..]).is_err(), "{kind}: byte {at}");
        }
    }
}

#[test]
fn a_survey_of_a_cut_snapshot_says_where_it_can_go_on() {
    for kind in KINDS {
        let bytes = golden(kind, 3);
        for cut in 0..bytes.len() {
            verify(&bytes[..cut]).unwrap_err();
            match survey(&bytes[..cut]) {
                Ok(partial) => assert!(!partial.is_complete && partial.bytes <= cut as u64 && partial.chunks > 0),
                Err(SnapshotReadError::Truncated { chunks: 0, .. } | SnapshotReadError::NotASnapshot) => {}
                Err(other) => panic!("{kind}, cut to {cut}: {other}"),
            }
        }
        assert!(survey(&bytes[..]).unwrap().is_complete);
    }
}

#[test]
fn random_bytes_are_refused() {
    // Xorshift, from a fixed seed.
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    for _ in 0..300 {
        let len = next() % 400;
        let bytes: Vec<u8> = (0..len).map(|_| next() as u8).collect();
        assert!(verify(&bytes[..]).is_err());
        // The same bytes behind a valid magic number and version.
        let framed = [b"TWSN\x03".as_slice(), &bytes].concat();
        assert!(verify(&framed[..]).is_err());
    }
}
