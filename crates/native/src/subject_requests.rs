//! Handlers of requests about subjects (publish/subscribe addresses): publish, ask, subscribe. They change the state in
//! `subjects`.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use thalweg_broker::{
    Batch, Credit as Grant, Pattern, Policy, Published, RequestError, SubscribeOptions, SubscriptionId,
};
use thalweg_serving::limits::DEFAULT_WAIT;
use thalweg_types::limits::MAX_REQUEST_TIMEOUT;
use thalweg_wire::{self as wire, Ask, BatchWriter, Checksum, Kind, Publish, SendCredit, Subscribe, Subscribed};
use tokio::sync::oneshot;

use super::{
    failure::{self, Failure},
    publishing::{PublishTarget, Publishing},
    replies::{FrameMemory, Replies},
    request::Request,
    subjects::{Subjects, Subscription, sub_batch},
    turn::{Handled, Reply, Turn},
};

/// Handles a `publish` request: publishes batches of messages to the subscribers of their subjects.
pub(crate) fn publish(turn: &mut Turn<'_>, request: &Request<'_>, publish: &Publish<'_>) -> Result<Handled, Failure> {
    let subjects = &mut *turn.subjects;
    let (count, mut batches) = (publish.batches.len(), publish.batches.iter());
    if let (1, Some(bytes)) = (count, batches.next()) {
        let checked = subjects.publishing.check(bytes)?;
        if request.id == 0 && checked.batch.count() == 1 && checked.batch.reply().is_empty() {
            let now = turn.app.views.moment(request.received);
            let Subjects { publishing, app, native, waiter, .. } = subjects;
            let times = &native.publishes;
            publishing.join(&PublishTarget { views: &app.views, times, waiter, received: None }, now, &checked)?;
            return Ok(Handled::Replied);
        }
        let batch = Publishing::broker_batch(request, &checked)?;
        return publish_all(turn, request, [batch]);
    }
    // All batches are checked before the first is published.
    let batches = broker_batches(subjects, request, publish.batches.iter())?;
    publish_all(turn, request, batches)
}

/// Checks all batches of a request, and returns them in the form that the broker takes.
pub(crate) fn broker_batches<'f>(
    subjects: &mut Subjects,
    request: &Request<'_>,
    batches: impl Iterator<Item = &'f [u8]>,
) -> Result<Vec<Batch>, Failure> {
    let mut kept = Vec::new();
    for bytes in batches {
        let checked = subjects.publishing.check(bytes)?;
        kept.push(Publishing::broker_batch(request, &checked)?);
    }
    Ok(kept)
}

fn publish_all(
    turn: &mut Turn<'_>,
    request: &Request<'_>,
    batches: impl IntoIterator<Item = Batch>,
) -> Result<Handled, Failure> {
    let Subjects { publishing, app, native, waiter, .. } = &mut *turn.subjects;
    let times = &native.publishes;
    let to = PublishTarget { views: &app.views, times, waiter, received: Some(request.received) };
    match publishing.publish(&to, batches) {
        Ok(Published { delivered, missed, .. }) => {
            turn.out.reply(request.id, &wire::Published { delivered, missed })?;
            Ok(Handled::Replied)
        }
        Err(_) if request.id == 0 => Ok(Handled::Replied),
        // The batches stay queued until they are published, even if the client no longer waits.
        Err(later) => Ok(Handled::Unstoppable(Box::pin(async move {
            let published = later.await.map_err(|_| failure::stopping().with_unknown_effect())?;
            let Published { delivered, missed, .. } = published;
            Ok(Reply::frame(wire::Published { delivered, missed }))
        }))),
    }
}

/// Handles an `ask` request: publishes a message and replies with the first answer that a subscriber sends.
pub(crate) fn ask(turn: &mut Turn<'_>, request: &Request<'_>, ask: &Ask<'_>) -> Result<Handled, Failure> {
    let subjects = &mut *turn.subjects;
    let checked = subjects.publishing.check(ask.batch.0)?;
    if checked.batch.count() != 1 || !checked.batch.reply().is_empty() {
        let message = "a request has exactly one message, without a reply subject: the server chooses the reply \
            subject";
        return Err(Failure::invalid("malformed_batch", message));
    }
    let wait = request.timeout().unwrap_or(DEFAULT_WAIT).min(MAX_REQUEST_TIMEOUT);
    let now = turn.app.views.moment(request.received);
    let (answered, answer) = oneshot::channel();
    let asks = subjects.asks()?;
    // This first frees the slots of expired and cancelled asks.
    asks.expire(now, drop);
    let reply_to = asks.begin(now, wait, answered).map_err(|(_, error)| Failure::of(&error))?;
    let records = checked.batch.records().len();
    let writer = BatchWriter::with_capacity(checked.subject.as_bytes(), reply_to.as_bytes(), records);
    let mut writer = writer.map_err(|error| Failure::invalid("malformed_batch", error.to_string()))?;
    writer.append(&checked.batch)?;
    let shared = writer.into_shared(Checksum::Without).expect("it has a message");
    let batch = Batch::new(checked.subject, shared.bytes, shared.count)?;
    let Subjects { publishing, app, native, waiter, .. } = &mut *subjects;
    let times = &native.publishes;
    let to = PublishTarget { views: &app.views, times, waiter, received: Some(request.received) };
    let blocked = match publishing.publish(&to, [batch]) {
        Err(later) => Some(later),
        Ok(published) => {
            if let Err(failure) = require_subscriber(published) {
                subjects.asks()?.complete(&reply_to);
                return Err(failure);
            }
            None
        }
    };
    let reply = async move {
        let lost = |_: oneshot::error::RecvError| failure::stopping().with_unknown_effect();
        let exchange = async {
            if let Some(later) = blocked {
                require_subscriber(later.await.map_err(lost)?)?;
            }
            answer.await.map_err(lost)
        };
        match tokio::time::timeout(wait, exchange).await {
            Ok(answer) => {
                let answer = answer?;
                Ok(Reply::encode(move |out, id| put_answer(out, id, &answer)))
            }
            Err(_) => Err(Failure::of(&RequestError::TimedOut).with_unknown_effect()),
        }
    };
    // A responder may have received the message, or may still receive it.
    Ok(Handled::later_with_effect(reply, Arc::new(AtomicBool::new(true))))
}

/// Returns a failure if the message of an ask reached no subscriber.
fn require_subscriber(published: Published) -> Result<(), Failure> {
    RequestError::of(published).map_or(Ok(()), |error| Err(Failure::of(&error)))
}

/// Replies to an `ask` request with the first message of `answer`. A subscriber has published this batch as its answer.
fn put_answer(out: &mut Replies, id: u32, answer: &Batch) -> Result<(), Failure> {
    if id == 0 {
        return Ok(());
    }
    let bytes = if answer.messages() == 1 { answer.encoded().clone() } else { sub_batch(answer, 0, 1) };
    let put = out.shared(Kind::Answer, id, bytes.len(), FrameMemory::Reserve, |parts| parts.share(bytes));
    // The subscriber has answered, so it has handled the message.
    put.map_err(Failure::with_unknown_effect)
}

/// Handles a `subscribe` request: begins a subscription to a pattern of subjects.
pub(crate) fn subscribe(turn: &mut Turn<'_>, request: &Request<'_>, frame: &Subscribe<'_>) -> Result<Handled, Failure> {
    let pattern = Pattern::parse(frame.pattern.0)?;
    let policy = match frame.policy {
        wire::Policy::Block => Policy::Block,
        wire::Policy::DropNew => Policy::DropNew,
        wire::Policy::DropOld => Policy::DropOld,
        wire::Policy::Disconnect => Policy::Disconnect,
    };
    if policy == Policy::Block && !turn.app.config.blocking_subjects.covers(&pattern) {
        let message = "the policy block is not permitted for these subjects: choose another policy, or list them in \
            blocking_subjects";
        return Err(Failure::invalid("blocking_not_allowed", message));
    }
    let credit = Grant { messages: frame.permit.messages, bytes: frame.permit.bytes };
    let (messages, bytes) = (frame.queue_messages, frame.queue_bytes);
    let options = turn.app.views.subscribe_options(policy, messages, bytes, credit, frame.queue.0);
    let held = turn.app.views.subscription_share(turn.account, &pattern)?;
    let subjects = &mut *turn.subjects;
    subjects.link()?.subscribe(SubscriptionId(request.id.into()), pattern, &options)?;
    let left = request.fields.limit.map(|limit| (limit, failure::limit_reached()));
    if left.is_some() {
        subjects.counted.insert(request.id);
    }
    let credit = SendCredit::new(&frame.permit);
    subjects.subscriptions.insert(request.id, Subscription { credit, left, draining: false, _held: held });
    let SubscribeOptions { max_messages: queue_messages, max_bytes: queue_bytes, .. } = options;
    turn.out.reply(request.id, &Subscribed { queue_messages, queue_bytes })?;
    // This lets a subscription with a limit of 0 end in the next turn.
    subjects.bell.rung.store(true, Ordering::Relaxed);
    Ok(Handled::BeganSubject)
}
