//! Example of subjects: publish in batches, subscribe, send a request and wait for its answer.
//!
//! Run: `cargo run --example subjects -- 127.0.0.1:7071`

use std::time::Duration;

use thalweg_client::{Client, Delivered, Endpoint, Options, PublisherOptions};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7071".to_owned());
    let client = Client::connect(Endpoint::tcp(address), Options::default()).await?;
    run(&client).await?;
    client.close().await;
    Ok(())
}

/// Runs the example with a connected client.
pub async fn run(client: &Client) -> Result<(), Box<dyn std::error::Error>> {
    let mut prices = client.subscribe("prices.*").await?;

    // A publisher gathers messages into batches. It sends full batches immediately, and others within 250 µs. A publish
    // waits only for backpressure.
    let publisher = client.publisher("prices.gold", PublisherOptions::default())?;
    for price in 0..1000_u32 {
        publisher.publish(&price.to_le_bytes()).await?;
    }
    // After a flush all messages are in the queues of all subscribers.
    publisher.flush().await?;

    let mut seen = 0_u32;
    while seen < 1000 {
        match prices.next_batch().await?.expect("the subscription goes on") {
            Delivered::Messages(batch) => {
                assert_eq!(batch.subject(), b"prices.gold");
                for message in batch.iter() {
                    assert_eq!(message.payload, seen.to_le_bytes());
                    seen += 1;
                }
            }
            // Messages are not stored. A subscriber that was slow or lost its connection gets a notice at the point
            // where messages are missing.
            Delivered::Dropped(messages) => return Err(format!("{messages} messages were dropped").into()),
            Delivered::Gap => return Err("the connection was lost".into()),
        }
    }

    // Request and reply: each request goes to one member of the queue group.
    let mut requests = client.subscribe("time.now").await?;
    let server = client.clone();
    let answering = tokio::spawn(async move {
        let request = requests.next().await?.expect("the subscription goes on");
        server.answer(&request, b"half past").await
    });
    let answer = client.ask("time.now", b"?", Duration::from_secs(5)).await?;
    assert_eq!(&answer.payload[..], b"half past");
    answering.await??;
    Ok(())
}
