//! The task of one subscription. It passes the messages of a subject on to the subscribers' thread.

use std::{io, pin::pin, sync::Arc};

use async_nats::{Subject, Subscriber};
use futures_util::{FutureExt as _, StreamExt as _, future::select};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        UnixStream,
        unix::{ReadHalf, WriteHalf},
    },
};

use super::{
    frames::{ACCEPTED, MESSAGE, put_frame},
    server::ConnectedClient,
};

/// Number of bytes of gathered messages from which the task writes them to the subscribers' thread, even if more
/// messages have arrived.
const ENOUGH_BYTES: usize = 64 << 10;

/// A subscription, with a client of its own.
pub(super) struct Pushes {
    pub client: ConnectedClient,
    pub subscriber: Subscriber,
    /// Subject that never has subscribers. A request to it shows that the server has processed the subscription.
    pub nobody: Subject,
}

impl Pushes {
    /// Passes messages on until the subscribers' thread closes its socket, or until the client loses its connection to
    /// the server. Then closes the task's end of the socket, so that the subscribers' thread sees the end.
    pub(super) async fn serve(mut self, mut local: UnixStream) {
        let lost = Arc::clone(&self.client.lost);
        let (read, write) = local.split();
        let pushing = pin!(self.push(write));
        let closing = pin!(closed(read));
        let losing = pin!(lost.notified());
        select(pushing, select(closing, losing)).await;
    }

    async fn push(&mut self, mut local: WriteHalf<'_>) -> io::Result<()> {
        let mut out = Vec::new();
        // After this confirmation the server has the subscription.
        self.client.confirm(&self.nobody).await.map_err(io::Error::other)?;
        put_frame(&mut out, |out| out.push(ACCEPTED));
        local.write_all(&out).await?;
        while let Some(message) = self.subscriber.next().await {
            out.clear();
            let mut next = Some(message);
            while let Some(message) = next {
                put_frame(&mut out, |out| {
                    out.push(MESSAGE);
                    out.extend_from_slice(&message.payload);
                });
                let is_enough = out.len() >= ENOUGH_BYTES;
                next = if is_enough { None } else { self.subscriber.next().now_or_never().flatten() };
            }
            local.write_all(&out).await?;
        }
        Ok(())
    }
}

/// Waits until the subscribers' thread has closed its socket. This thread sends no bytes.
async fn closed(mut local: ReadHalf<'_>) {
    let mut byte = [0];
    while local.read(&mut byte).await.is_ok_and(|count| count > 0) {}
}
