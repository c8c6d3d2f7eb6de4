//! Receiving another node's filters and messages.
//!
//! Owns: checking the frames on the connection that the other node has dialled. Does not own: the effect of filters and
//! batches (`broker`).
//!
//! The connection ends if a frame breaks a rule, or if a change of filters does not continue the version before. The
//! other node then dials again and sends all of its filters. Frames of unknown kinds are ignored.

use std::{io, sync::Arc};

use bytes::Bytes;
use thalweg_broker::{Batch, Broker, NodeLink, Subject};
use thalweg_types::{NodeId, codec::ShortBytes, limits::LINK_READ_BYTES};
use thalweg_wire::peer::{Interest, MAX_BODY_BYTES, PeerFrame, PeerKind, SubjectBatch};
use tokio::io::{AsyncRead, BufReader};

use crate::frames::read_frame;

fn invalid(error: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

/// Receives another node's filters and messages until the connection ends. Then drops the filters of that node.
pub(crate) async fn receive(node: NodeId, stream: impl AsyncRead + Unpin, link: Arc<NodeLink>, broker: Broker) {
    link.begin();
    let mut reading = BufReader::with_capacity(LINK_READ_BYTES, stream);
    let mut receiver = Receiver { link, broker, subject: None };
    let ended = async {
        while let Some(frame) = read_frame(&mut reading, MAX_BODY_BYTES).await? {
            receiver.frame(frame.kind, &frame.body)?;
        }
        Ok::<_, io::Error>(())
    };
    if let Err(error) = ended.await {
        tracing::debug!(%node, %error, "the connection for messages from the node has ended");
    }
    receiver.link.clear();
}

struct Receiver {
    link: Arc<NodeLink>,
    broker: Broker,
    /// Subject of the last batch. It is kept because successive batches usually have the same subject.
    subject: Option<Subject>,
}

impl Receiver {
    fn frame(&mut self, kind: Option<PeerKind>, body: &Bytes) -> io::Result<()> {
        match kind {
            Some(PeerKind::Interest) => self.interest(body),
            Some(PeerKind::SubjectBatch) => self.batch(body),
            _ => Ok(()),
        }
    }

    fn interest(&self, body: &Bytes) -> io::Result<()> {
        let Interest { whole, from, version, filters } = Interest::decode_body(body).map_err(invalid)?;
        let filters = filters.iter().map(|filter| (filter.pattern.0, filter.group.0, filter.members));
        self.link.announced(whole, (from, version), filters).map_err(invalid)
    }

    fn batch(&mut self, body: &Bytes) -> io::Result<()> {
        let frame = SubjectBatch::decode_body(body).map_err(invalid)?;
        let batch = thalweg_wire::Batch::decode(frame.batch.0).map_err(invalid)?;
        // Subscribers rely on these checks.
        batch.check().and_then(|()| batch.check_crc()).map_err(invalid)?;
        if !batch.reply().is_empty() {
            Subject::parse(batch.reply()).map_err(invalid)?;
        }
        let subject = match &self.subject {
            Some(subject) if subject.as_bytes() == batch.subject() => subject.clone(),
            _ => {
                let subject = Subject::parse(batch.subject()).map_err(invalid)?;
                self.subject = Some(subject.clone());
                subject
            }
        };
        let mut groups: Vec<&[u8]> = frame.groups.iter().map(|ShortBytes(group)| group).collect();
        groups.sort_unstable();
        // The batch is nearly all of the frame, so it refers to the frame's memory instead of a copy.
        let batch = Batch::new(subject, body.slice_ref(frame.batch.0), batch.count()).map_err(invalid)?;
        self.link.count_received(batch.messages().into());
        self.broker.publish_from_node(&batch, &groups);
        Ok(())
    }
}
