//! Example of a keyspace: put, get, conditional writes, scans, commits.
//!
//! Run: `cargo run --example key_value -- 127.0.0.1:7071`

use thalweg_client::{Client, Endpoint, Error, Options, Put, ScanRange};
use thalweg_types::command::{CommitBuilder, Expect};

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
    let users = client.keyspace("users");
    users.create_if_missing(&Default::default()).await?;

    // An ack means "on disk", unless the client requests another level (`client.durability`).
    let first = users.put(b"ada", b"1815").await?;
    let ada = users.get(b"ada").await?.expect("just put");
    assert_eq!((&ada.value[..], ada.revision), (&b"1815"[..], first));

    // Put only if no other client has changed the key in the meantime.
    let unchanged = Put { expect: Some(Expect::Revision(first)), ..Put::default() };
    users.put_with(b"ada", b"1852", unchanged).await?;
    match users.put_with(b"ada", b"1816", unchanged).await {
        Err(error) if error.is("condition_failed") => {
            let now = error.failure().and_then(|failure| failure.detail("revision"));
            eprintln!("another client was faster: ada is at revision {now:?}");
        }
        other => return Err(format!("this put should fail: {other:?}").into()),
    }

    // A commit is all or nothing, over keys and keyspaces.
    let id = users.id().await?;
    let mut commit = CommitBuilder::new();
    commit.expect(id, b"grace", Expect::Absent)?.put(id, b"grace", b"1906")?.delete(id, b"ada")?;
    client.commit(&commit).await?;

    // Requests that do not wait for each other share connections, writes and fsyncs.
    let (a, b) = tokio::join!(users.put(b"alan", b"1912"), users.put(b"edsger", b"1930"));
    a?;
    b?;

    // A scan reads a range page by page. All pages show the keyspace at the same revision.
    let mut scan = users.scan(ScanRange { page: 2, ..ScanRange::default() });
    let mut names = Vec::new();
    while let Some(page) = scan.next_page().await? {
        names.extend(page.into_iter().map(|pair| pair.key));
    }
    assert_eq!(names, ["alan", "edsger", "grace"]);

    let none: Result<_, Error> = client.keyspace("nobody").get(b"x").await;
    assert!(none.is_err_and(|error| error.is("no_such_keyspace")));
    Ok(())
}
