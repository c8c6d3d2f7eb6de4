//! What a handle of something with a name has: the name, and the id once it is known.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{client::Client, error::Error, names::Name};

const UNKNOWN: u64 = u64::MAX;

/// A name of the server's that stands for an id.
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

    /// The id, if it is known.
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

/// Says what kind of future it is, where nothing else does.
pub(crate) fn typed<R>(ask: impl Future<Output = Result<R, Error>>) -> impl Future<Output = Result<R, Error>> {
    ask
}

/// Asks with the handle's id; if the server does not know it any more, once more with the one that the name has now.
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
