//! Nearly valid Redis commands of every kind go through parsing, sessions, transactions and the log of a server. The
//! server must not panic, must answer only with replies, must end every connection, and must serve other clients in the
//! meantime. `fuzz/fuzz_targets/resp_sessions.rs` does the same with inputs that libFuzzer finds.

use thalweg_server::config::{RespDatabases, Setting};
use thalweg_types::Durability;

use crate::{
    ALONE, redis_script,
    scripts::{count_panics, input, panics, seeds},
    support::resp::{Resp, node_with},
};

/// Number of scripts in the test.
const SCRIPTS: u64 = 600;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_of_commands_are_answered_with_replies() {
    let _alone = ALONE.lock().await;
    count_panics();
    let node = node_with(|config| {
        config.durability = Durability::Os;
        config.resp_databases = RespDatabases::parse("0=keyspace:redis,1=cache:redis,2=streams").unwrap();
    })
    .await;
    for seed in seeds(SCRIPTS) {
        eprintln!("seed {seed}");
        let input = input(seed, 40 + 10 * (seed as usize % 60));
        redis_script::perform(node.resp.unwrap(), &redis_script::script(&input)).await;
        assert_eq!(panics(), 0);
    }
    // No client is left behind, and new clients are served.
    let mut witness = Resp::connect(&node).await;
    witness.until("INFO clients", "connected_clients:1 ").await;
    witness.until("INFO clients", "blocked_clients:0 ").await;
    assert_eq!(witness.call("SET witness 1").await, "+OK");
    assert!(witness.call("INFO stats").await.starts_with('$'));
    node.stop().await;
}
