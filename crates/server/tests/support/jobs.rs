//! A stream `jobs` and its consumer group `workers`.

use serde_json::{Value, json};

use super::Node;

pub const GROUP: &str = "/v1/streams/jobs/groups/workers";

pub async fn append(node: &Node, count: usize) {
    let records: Vec<_> = (0..count).map(|number| json!({ "payload": number.to_string() })).collect();
    node.post_json("/v1/streams/jobs/records", &json!(records)).await.is(200);
}

pub async fn fetch(node: &Node, body: &Value) -> Value {
    node.post_json(&format!("{GROUP}/fetch"), body).await.is(200).json()
}

pub fn offsets(delivery: &Value) -> Vec<u64> {
    delivery["messages"].as_array().unwrap().iter().map(|message| message["offset"].as_u64().unwrap()).collect()
}
