//! The task of one connection. It performs the requests of a load thread one after the other, with a client of its own.

use std::{io, pin::pin, sync::Arc};

use bytes::{Buf as _, Bytes, BytesMut};
use futures_util::future::select;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
    time::timeout,
};

use super::{
    frames::{LENGTH_BYTES, Operation, Reply, Request, frame, put_frame, put_reply},
    names::Names,
    server::{ConnectedClient, PATIENCE},
    stream::StreamSession,
};
use crate::feeds::Numbers;

/// Maximum number of bytes that are read at a time from the socket of the load thread.
const BLOCK_BYTES: usize = 16 << 10;

/// The state of the task that performs the requests of one load thread's connection.
pub(super) struct Session {
    pub client: ConnectedClient,
    pub names: Names,
    /// Number that identifies this connection as a publisher, from 1.
    pub publisher: u64,
    /// Number of the connection that sent each publish of the benchmark run, by the number of the publish.
    pub publishers: Arc<Numbers>,
    /// Stream and consumer of the benchmark run; `None` if the run does not use the stream.
    pub stream: Option<StreamSession>,
}

impl Session {
    /// Performs the load thread's requests until that thread closes its socket, or until the client loses its
    /// connection to the server. Then closes the task's end of the socket, so that the load thread sees the end.
    pub(super) async fn serve(self, local: UnixStream) {
        let lost = Arc::clone(&self.client.lost);
        let serving = pin!(self.answer_all(local));
        let losing = pin!(lost.notified());
        select(serving, losing).await;
    }

    async fn answer_all(mut self, mut local: UnixStream) -> io::Result<()> {
        let (mut input, mut output) = (BytesMut::new(), Vec::new());
        while let Some(content) = next_frame(&mut local, &mut input).await? {
            let reply = match timeout(PATIENCE, self.perform(content)).await {
                Ok(reply) => reply,
                Err(_) => Err(format!("no answer within {PATIENCE:?}")),
            };
            output.clear();
            put_frame(&mut output, |out| put_reply(out, &reply));
            local.write_all(&output).await?;
        }
        Ok(())
    }

    async fn perform(&mut self, content: Bytes) -> Result<Reply, String> {
        let request = Request::decode(content).ok_or_else(|| "the request is malformed".to_owned())?;
        if request.operation == Operation::Publish {
            return self.publish(request).await;
        }
        let stream = self.stream.as_mut().ok_or_else(|| "the run has no stream".to_owned())?;
        match request.operation {
            Operation::Append => stream.append(request.texts).await,
            Operation::Read => stream.read(request.number, request.limit).await,
            Operation::Fetch => stream.fetch(request.limit).await,
            Operation::Ack => stream.ack(request.number).await,
            Operation::Publish => unreachable!("it has returned"),
        }
    }

    async fn publish(&mut self, request: Request) -> Result<Reply, String> {
        // The publisher is stored before a subscriber can receive the message.
        self.publishers.set(request.number, self.publisher);
        let messages = request.texts.len() as u64;
        for text in request.texts {
            let published = self.client.client.publish(self.names.messages.clone(), text).await;
            published.map_err(|error| error.to_string())?;
        }
        self.client.confirm(&self.names.nobody).await?;
        Ok(Reply { number: messages, records: Vec::new() })
    }
}

/// Returns the content of the next frame from the load thread; `None` if the load thread has closed its socket.
async fn next_frame(local: &mut UnixStream, input: &mut BytesMut) -> io::Result<Option<Bytes>> {
    loop {
        if let Some(len) = frame(input).map(<[u8]>::len) {
            input.advance(LENGTH_BYTES);
            return Ok(Some(input.split_to(len).freeze()));
        }
        input.reserve(BLOCK_BYTES);
        if local.read_buf(input).await? == 0 {
            return Ok(None);
        }
    }
}
