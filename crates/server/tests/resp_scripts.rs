//! Redis commands of every kind, nearly right, through parsing, sessions, transactions and the log of a server: no panic, only
//! replies as answers, every connection ends, and others are served meanwhile. `fuzz/fuzz_targets/resp_sessions.rs` does the same
//! with inputs that libFuzzer finds.

#[path = "support/resp_script.rs"]
mod script;
mod support;

use std::sync::atomic::{AtomicUsize, Ordering};

use support::{
    Node,
    resp::{Resp, serving},
};
use thalweg_server::config::{RespDatabases, Setting};
use thalweg_types::Durability;

/// Scripts of the test.
const SCRIPTS: u64 = 600;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_of_commands_are_answered_with_replies() {
    let said = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        PANICS.fetch_add(1, Ordering::Relaxed); // in a connection's task it would only end that
        said(panic);
    }));
    let node = Node::with(|config| {
        serving(config);
        config.durability = Durability::Os;
        config.resp_databases = RespDatabases::parse("0=keyspace:redis,1=cache:redis,2=streams").unwrap();
    })
    .await;
    let seeds = match std::env::var("THALWEG_SEED").map(|seed| seed.parse::<u64>()) {
        Ok(Ok(seed)) => seed..seed + 1,
        _ => 0..SCRIPTS,
    };
    for seed in seeds {
        eprintln!("seed {seed}");
        let input = input(seed, 40 + 10 * (seed as usize % 60));
        script::perform(node.resp.unwrap(), &script::script(&input)).await;
        assert_eq!(PANICS.load(Ordering::Relaxed), 0);
    }
    // Nobody is left behind, and whoever comes is served.
    let mut witness = Resp::connect(&node).await;
    witness.until("INFO clients", "connected_clients:1 ").await;
    witness.until("INFO clients", "blocked_clients:0 ").await;
    assert_eq!(witness.call("SET witness 1").await, "+OK");
    assert!(witness.call("INFO stats").await.starts_with('$'));
    node.stop().await;
}
