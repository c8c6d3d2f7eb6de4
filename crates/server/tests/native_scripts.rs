//! Frames of every kind, nearly right, through decoding, dispatch and handlers of a server: no panic, only frames as answers, and
//! others are served meanwhile. `fuzz/fuzz_targets/native_frames.rs` does the same with inputs that libFuzzer finds.

#[path = "support/script.rs"]
mod script;
mod support;

use std::sync::atomic::{AtomicUsize, Ordering};

use support::Node;
use thalweg_types::Durability;
use thalweg_wire::{Ping, ServerFrame};

/// Scripts of the test.
const SCRIPTS: u64 = 400;
static PANICS: AtomicUsize = AtomicUsize::new(0);

/// Bytes that follow from a seed: splitmix64.
fn input(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed;
    let next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed >> 56) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

#[tokio::test]
async fn scripts_of_frames_are_answered_with_frames() {
    let said = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        PANICS.fetch_add(1, Ordering::Relaxed); // in a connection's task it would only end that
        said(panic);
    }));
    let node = Node::with(|config| config.durability = Durability::Os).await;
    let mut witness = node.raw().await;
    for name in ["a", "b", "c"] {
        witness.keyspace(name).await;
        let stream = witness.stream(name).await;
        witness.append(stream, &[b"one", b"two"]).await;
    }
    let samples = script::samples();
    assert!(samples.len() >= thalweg_wire::Kind::ALL.len(), "{} samples", samples.len());
    for seed in 0..SCRIPTS {
        eprintln!("seed {seed}");
        let input = input(seed, 40 + 10 * (seed as usize % 40));
        script::perform(node.native.unwrap(), &script::script(&samples, &input)).await;
        assert_eq!(PANICS.load(Ordering::Relaxed), 0);
    }
    witness.send(0, &Ping { token: 7 }).await;
    expect!(witness, 0, ServerFrame::Pong(_) => ());
    drop(witness);
    node.stop().await;
}
