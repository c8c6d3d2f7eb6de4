//! The examples run to their end against a server in this process.

use crate::node::Node;

#[allow(dead_code)]
#[path = "../../examples/cache.rs"]
mod cache;
#[allow(dead_code)]
#[path = "../../examples/key_value.rs"]
mod key_value;
#[allow(dead_code)]
#[path = "../../examples/streams.rs"]
mod streams;
#[allow(dead_code)]
#[path = "../../examples/subjects.rs"]
mod subjects;

macro_rules! runs {
    ($($example:ident)*) => {$(
        #[tokio::test]
        async fn $example() {
            let node = Node::start().await;
            let client = node.client().await;
            $example::run(&client).await.unwrap();
            client.close().await;
            node.stop().await;
        }
    )*};
}

mod run {
    use super::{Node, cache, key_value, streams, subjects};

    runs!(cache key_value streams subjects);
}
