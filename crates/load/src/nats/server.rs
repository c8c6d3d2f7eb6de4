//! Address of a NATS server, and clients that connect to it.

use std::{future::Future, net::SocketAddr, sync::Arc, time::Duration};

use async_nats::{Client, ConnectOptions, Event, Subject, client::RequestErrorKind};
use bytes::Bytes;
use tokio::sync::Notify;

use crate::{
    BenchError, ClientThreads,
    server::{authority, resolve},
};

/// Longest wait for the reply to a request. The load thread stops waiting for a request after the same time.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Address of a NATS server, and the threads on which the clients run.
#[derive(Debug)]
pub struct NatsServer {
    /// Address of the NATS server.
    pub address: SocketAddr,
    /// Address as the user gave it, without user and password.
    pub name: String,
    /// Address for the client, with user and password.
    url: String,
    threads: ClientThreads,
}

impl NatsServer {
    /// Returns the server at `SCHEME://host:port` or `SCHEME://user:password@host:port`. Starts this number of threads
    /// for its clients. Does not connect to the server.
    pub fn at(text: &str, scheme: &str, threads: usize) -> Result<Self, BenchError> {
        // Error messages must not show a password.
        let has_login = text.contains('@');
        let shown = if has_login { format!("{scheme}://...") } else { text.to_owned() };
        let fail = BenchError::target(shown);
        let whole = authority(text, scheme).map_err(&fail)?;
        let host = whole.rsplit_once('@').map_or(whole, |(_, host)| host);
        let address = resolve(host).map_err(&fail)?;
        let threads = ClientThreads::start(threads).map_err(|error| fail(error.to_string()))?;
        Ok(Self { address, name: format!("{scheme}://{host}"), url: format!("nats://{whole}"), threads })
    }

    /// Returns the address for the client, with user and password.
    pub(super) fn url(&self) -> String {
        self.url.clone()
    }

    /// Runs a task on the client threads, and waits for its result.
    pub(super) fn run<T: Send + 'static>(
        &self,
        task: impl Future<Output = Result<T, String>> + Send + 'static,
    ) -> Result<T, String> {
        self.threads.run(task)
    }
}

/// A client with a connection of its own.
#[derive(Clone, Debug)]
pub(super) struct ConnectedClient {
    pub client: Client,
    /// Signal that the connection is lost. The task then ends: the client would reconnect, but a run must not continue
    /// on another connection.
    pub lost: Arc<Notify>,
}

impl ConnectedClient {
    /// Connects a new client to the NATS server at `url`.
    pub(super) async fn open(url: &str) -> Result<Self, String> {
        let lost = Arc::new(Notify::new());
        let notified = Arc::clone(&lost);
        let options = ConnectOptions::new().name("thalweg bench").event_callback(move |event| {
            if matches!(event, Event::Disconnected | Event::Closed) {
                notified.notify_one();
            }
            std::future::ready(())
        });
        let client = options.connect(url).await.map_err(|error| format!("{error}; is this a NATS server?"))?;
        Ok(Self { client, lost })
    }

    /// Waits until the server has processed everything that the client has sent before. Core NATS confirms nothing. But
    /// if a request goes to a subject without subscribers, the server itself answers it.
    pub(super) async fn confirm(&self, nobody: &Subject) -> Result<(), String> {
        match self.client.request(nobody.clone(), Bytes::new()).await {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == RequestErrorKind::NoResponders => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_passwords_not_shown() {
        let server = NatsServer::at("jetstream://ann:secret@127.0.0.1:4222", "jetstream", 1).unwrap();
        assert_eq!((&*server.name, server.address.port()), ("jetstream://127.0.0.1:4222", 4222));
        assert_eq!(server.url(), "nats://ann:secret@127.0.0.1:4222");
        let plain = NatsServer::at("127.0.0.1:4222", "nats", 1).unwrap();
        assert_eq!((&*plain.name, plain.url()), ("nats://127.0.0.1:4222", "nats://127.0.0.1:4222".to_owned()));
        for text in ["nats://ann:secret@nonsense", "redis://ann:secret@h:1"] {
            let error = NatsServer::at(text, "nats", 1).unwrap_err().to_string();
            assert!(error.contains("host:port") && !error.contains("secret"), "{error}");
        }
    }
}
