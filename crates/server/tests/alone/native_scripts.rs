//! Nearly valid frames of every kind go through decoding, dispatch and handlers of a server. The server must not panic,
//! must answer only with frames, and must serve other clients in the meantime. `fuzz/fuzz_targets/native_frames.rs`
//! does the same with inputs that libFuzzer finds.

use thalweg_types::Durability;
use thalweg_wire::{Kind, Ping};

use crate::{
    ALONE, native_script,
    scripts::{count_panics, input, panics, seeds},
    support::Node,
};

/// Number of scripts in the test.
const SCRIPTS: u64 = 400;

#[tokio::test]
async fn scripts_of_frames_are_answered_with_frames() {
    let _alone = ALONE.lock().await;
    count_panics();
    let node = Node::with(|config| config.durability = Durability::Os).await;
    let mut witness = node.raw().await;
    for name in ["a", "b", "c"] {
        witness.keyspace(name).await;
        let stream = witness.stream(name).await;
        witness.append(stream, &[b"one", b"two"]).await;
    }
    let samples = native_script::samples();
    assert!(samples.len() >= Kind::ALL.len(), "{} samples", samples.len());
    for seed in seeds(SCRIPTS) {
        eprintln!("seed {seed}");
        let input = input(seed, 40 + 10 * (seed as usize % 40));
        native_script::perform(node.native.unwrap(), &native_script::script(&samples, &input)).await;
        assert_eq!(panics(), 0);
    }
    witness.ask(0, &Ping { token: 7 }, Kind::Pong).await;
    drop(witness);
    node.stop().await;
}
