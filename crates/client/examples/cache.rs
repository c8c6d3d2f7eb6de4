//! Example of a cache: entries with a time to live, conditional writes, counters.
//!
//! Run: `cargo run --example cache -- 127.0.0.1:7071`

use std::time::Duration;

use thalweg_client::{CacheExpect, CacheTtl, Client, Endpoint, Options};

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
    // The first use creates the cache in the server's memory. It is bounded, never logged, and gone when the server
    // stops.
    let sessions = client.cache("sessions");
    let minute = CacheTtl::After { micros: 60_000_000 };
    let version = sessions.put_with(b"s1", b"ada", minute.clone(), CacheExpect::Absent {}).await?;
    let found = sessions.get(b"s1").await?.expect("just put");
    assert_eq!((&found.value[..], found.version), (&b"ada"[..], version));
    assert!(found.remaining.is_some_and(|left| left <= Duration::from_secs(60)));

    // Set the entry only if it is unchanged since it was read.
    sessions.put_with(b"s1", b"grace", minute, CacheExpect::Version { version }).await?;
    let again = sessions.put_with(b"s1", b"alan", CacheTtl::Keep {}, CacheExpect::Version { version }).await;
    assert!(again.is_err_and(|error| error.is("condition_failed")));

    assert_eq!(sessions.add(b"visits", 2, CacheTtl::Never {}).await?, 2);
    let both = sessions.get_many(&[b"s1", b"s2"]).await?;
    assert!(both[0].is_some() && both[1].is_none());
    assert!(sessions.delete(b"s1").await?);
    Ok(())
}
