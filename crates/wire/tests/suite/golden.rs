//! One frame of each kind, pinned byte for byte.
//!
//! `THALWEG_BLESS=1 cargo test -p thalweg-wire --test suite golden` rewrites the file. A difference in a frame that
//! has been released is a new version of the protocol.

use std::{collections::BTreeSet, fmt::Write as _, path::Path};

use thalweg_wire::{Batch, Kind};

use crate::common::decode_and_encode;

#[test]
fn every_kind_of_frame_is_pinned() {
    let mut text = String::from(
        "# A frame of each kind, as `kind name`, its contents as the code shows them, and its bytes.\n\
         # Written by crates/wire/tests/suite/golden.rs, see docs/formats/wire.md.\n",
    );
    let mut seen = BTreeSet::new();
    crate::samples::each(&mut |kind, shown, bytes| {
        seen.insert(kind as u16);
        assert_eq!(decode_and_encode(&bytes).as_deref(), Ok(&bytes[..]), "{shown}");
        let back = crate::common::shown(&bytes).unwrap();
        let back = back.strip_prefix(&format!("{kind:?}(")).and_then(|back| back.strip_suffix(')')).unwrap();
        assert!(shown.ends_with(back), "{shown} was decoded as {back}");
        write!(text, "\n{:04x} {}\n{shown}\n", kind as u16, kind.name()).unwrap();
        for line in bytes.chunks(32) {
            let hex: Vec<_> = line.iter().map(|byte| format!("{byte:02x}")).collect();
            writeln!(text, "{}", hex.join(" ")).unwrap();
        }
    });
    let all: BTreeSet<_> = Kind::ALL.iter().map(|kind| *kind as u16).collect();
    assert_eq!(seen, all, "a sample of each kind");

    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/frames-v1.txt");
    if std::env::var_os("THALWEG_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &text).unwrap();
    }
    let golden = std::fs::read_to_string(&path).expect("the golden file");
    for (now, before) in text.split("\n\n").zip(golden.split("\n\n")) {
        assert_eq!(now, before);
    }
    assert_eq!(text.len(), golden.len(), "frames were added or removed: rewrite the file");
}

#[test]
fn the_batch_in_the_golden_frames_is_whole() {
    let batch = crate::samples::batch();
    let batch = Batch::decode(&batch).unwrap();
    assert_eq!((batch.check(), batch.check_crc()), (Ok(()), Ok(())));
    assert_eq!((batch.subject(), batch.reply(), batch.count()), (&b"orders.eu"[..], &b"answers.7"[..], 2));
}
