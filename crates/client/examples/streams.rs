//! Example of a stream: an idempotent publisher, a subscription from the start (a tail), a consumer group.
//!
//! Run: `cargo run --example streams -- 127.0.0.1:7071`

use std::time::Duration;

use thalweg_client::{Client, Endpoint, Options, Position, StreamPublisherOptions};
use thalweg_types::{Offset, command::groups::Redelivery, record::Record};

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
    let orders = client.stream("orders");
    orders.create_if_missing(&Default::default()).await?;

    // A tail from the end returns all new records, also after lost connections.
    let mut tail = orders.tail(Position::End {}).await?;

    // A publisher gathers records into batches and sends several at a time. It appends each record exactly once.
    let publisher = orders.publisher("shop-1", StreamPublisherOptions::default()).await?;
    let mut last = None;
    for order in 0..100_u32 {
        let payload = format!("order {order}");
        let record = Record { key: Some(b"customer 7"), payload: payload.as_bytes(), ..Record::default() };
        last = Some(publisher.publish(&record).await?);
    }
    // Wait for the ack of one record, or with `flush` for all of them.
    let appended = last.expect("100 records were published").wait().await?;
    publisher.flush().await?;

    let first = tail.next().await?.expect("the tail goes on");
    assert_eq!((&first.payload[..], first.key.as_deref()), (&b"order 0"[..], Some(&b"customer 7"[..])));
    assert_eq!(appended.first, Offset(first.offset.0 + 99));

    // Members of a group share the work. The group redelivers records that are not acked in time.
    let group = orders.group("billing").await?;
    group.create_if_missing(Some(first.offset), &Default::default()).await?;
    let delivery = group.fetch("worker-1", 10, 1 << 20, Duration::from_secs(1)).await?.expect("there are some");
    for at in delivery.records.iter() {
        eprintln!("{}, delivery {}: {:?}", at.offset, at.deliveries, std::str::from_utf8(at.record.payload));
    }
    delivery.ack_one(first.offset).await?;
    delivery.nack(Redelivery::After(Duration::ZERO), "not today").await?;
    Ok(())
}
