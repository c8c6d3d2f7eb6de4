//! Name and id of a named object, shared by all kinds of handles. The handle requests the id at its first
//! use.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{client::Client, error::Error, names::Name};

const UNKNOWN: u64 = u64::MAX;

/// A name of an object on the server, with its id once the server has returned the id.
#[derive(Debug)]
pub(crate) struct Named {
    pub client: Client,
    pub name: Name,
    id: AtomicU64,
}

impl Named {
    pub(crate) fn new(client: Client, name: Name) -> Self {
        Self { client, name, id: AtomicU64::new(UNKNOWN) }
    }

    /// Returns the id if it has been looked up.
    pub(crate) fn known(&self) -> Option<u32> {
        if let Ok(id) = u32::try_from(self.id.load(Ordering::Relaxed)) {
            return Some(id);
        }
        let id = self.client.names().get(&self.name)?;
        self.id.store(id.into(), Ordering::Relaxed);
        Some(id)
    }

    pub(crate) fn learn(&self, id: u32) {
        self.id.store(id.into(), Ordering::Relaxed);
        self.client.names().put(self.name.clone(), id);
    }

    pub(crate) fn forget(&self, id: u32) {
        let _ = self.id.compare_exchange(id.into(), UNKNOWN, Ordering::Relaxed, Ordering::Relaxed);
        self.client.names().forget(&self.name, id);
    }
}

/// Returns the future unchanged, but fixes its result type where type inference cannot.
pub(crate) fn typed<R>(ask: impl Future<Output = Result<R, Error>>) -> impl Future<Output = Result<R, Error>> {
    ask
}

/// Sends a request with the handle's id. If the server no longer has that id, looks the name up again and retries
/// once.
macro_rules! with_id {
    ($handle:expr, $missing:expr, $id:ident => $ask:expr) => {{
        let mut again = false;
        loop {
            let $id = $handle.id().await?;
            match $crate::named::typed($ask).await {
                Err(error) if !again && error.is($missing) => {
                    again = true;
                    $handle.0.forget($id.0);
                }
                answered => break answered,
            }
        }
    }};
}

pub(crate) use with_id;
