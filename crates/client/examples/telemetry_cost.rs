//! Measures the cost of a client's telemetry: sends gets to a cache, alternately with telemetry and without it, and
//! compares the times. `cargo run --release -p thalweg-client --example telemetry_cost -- 127.0.0.1:7071`

#![allow(clippy::print_stdout, reason = "figures are printed")]

use std::time::{Duration, Instant};

use thalweg_client::{Client, Endpoint, Options};

/// Number of pairs of measurements. Each pair has one series of gets with telemetry and one without.
const PAIRS: usize = 20;
/// Number of gets in one series, sent one after the other.
const GETS: u32 = 20_000;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7071".to_owned());
    let client = Client::connect(Endpoint::tcp(address), Options::default()).await?;
    client.cache("telemetry-cost").put(b"key", &[7; 100]).await?;
    let mut differences = Vec::new();
    for pair in 0..PAIRS {
        let mut times = [0.0; 2];
        // The order of the two rounds alternates, so that a drift of the machine's speed affects both equally.
        for turn in 0..2 {
            let is_on = (pair + turn) % 2 == 0;
            client.set_telemetry(is_on);
            times[usize::from(is_on)] = nanos(round(&client).await?);
        }
        println!("without {:.0} ns, with {:.0} ns for a get", times[0], times[1]);
        differences.push(times[1] - times[0]);
    }
    differences.sort_by(f64::total_cmp);
    println!("median difference: {:.0} ns for a get, one after the other", differences[PAIRS / 2]);
    client.close().await;
    Ok(())
}

fn nanos(time: Duration) -> f64 {
    time.as_nanos() as f64 / f64::from(GETS)
}

async fn round(client: &Client) -> Result<Duration, thalweg_client::Error> {
    let cache = client.cache("telemetry-cost");
    let begun = Instant::now();
    for _ in 0..GETS {
        cache.get(b"key").await?;
    }
    Ok(begun.elapsed())
}
