//! Failures of requests, and the `failed` and `ended` frames that report them.
//!
//! Owns: the conversion of errors of the layers below to failures for clients. Codes, classes and details are the same
//! as in HTTP's errors ([`ApiError`]), so both protocols report an error in the same way. A failure also states if the
//! request may have taken effect.

use std::borrow::Cow;

use thalweg_engine::{Database, GroupError, ReadError, WatchError, WriteError};
use thalweg_serving::error::{ApiError, Subject};
use thalweg_types::{Action, Classified, Durability};
use thalweg_wire::{Detail, Effect, Ended, Failed, Level, List};

/// Error of a request that was not carried out, or not completely. Errors are rare, so the content is boxed, and
/// results stay small.
#[derive(Clone, Debug)]
pub(crate) struct Failure(Box<FailureDetails>);

#[derive(Clone, Debug)]
struct FailureDetails {
    class: Action,
    effect: Effect,
    shown: Option<Durability>,
    code: &'static str,
    message: Cow<'static, str>,
    details: Vec<(&'static str, u64)>,
    /// Address at which the leader of the cluster serves native clients. Only failures with the code `not_leader` have
    /// it; `None` for all others.
    leader: Option<Box<str>>,
    /// Stream or consumer group whose id is in the message; `None` if the message has no such id.
    subject: Option<Subject>,
}

impl Failure {
    /// Creates a failure without details. The request had no effect.
    #[must_use]
    pub(crate) fn new(code: &'static str, class: Action, message: impl Into<Cow<'static, str>>) -> Self {
        let (effect, shown, details) = (Effect::Nothing, None, Vec::new());
        let (message, leader, subject) = (message.into(), None, None);
        Self(Box::new(FailureDetails { class, effect, shown, code, message, details, leader, subject }))
    }

    /// Creates a failure for a request that is invalid and must be changed.
    #[must_use]
    pub(crate) fn invalid(code: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(code, Action::Fix, message)
    }

    /// Creates a failure for a request that a limit of the server has rejected. The request had no effect, and the
    /// client can retry it.
    #[must_use]
    pub(crate) fn overloaded(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new("overloaded", Action::Retry, message)
    }

    /// Creates a failure from an error of a lower layer, which has a code and an action for the client. The request had
    /// no effect.
    #[must_use]
    pub(crate) fn of(error: &impl Classified) -> Self {
        Self::new(error.code(), error.action(), error.to_string())
    }

    /// Adds a number with a name to the details of the failure.
    #[must_use]
    pub(crate) fn with(mut self, name: &'static str, value: u64) -> Self {
        self.0.details.push((name, value));
        self
    }

    /// Adds the address at which the leader of the cluster serves native clients.
    #[must_use]
    pub(crate) fn with_leader_address(mut self, address: &str) -> Self {
        self.0.leader = Some(address.into());
        self
    }

    /// Returns the address at which the leader of the cluster serves native clients, if the failure states it.
    #[must_use]
    pub(crate) fn leader_address(&self) -> Option<&str> {
        self.0.leader.as_deref()
    }

    /// Records that the request may have been carried out despite the failure.
    #[must_use]
    pub(crate) fn with_unknown_effect(mut self) -> Self {
        self.0.effect = Effect::Unknown;
        self
    }

    /// Records that the request was carried out, and that only its reply cannot be sent.
    #[must_use]
    pub(crate) fn after_effect(mut self) -> Self {
        self.0.message = format!("the request was carried out, but {}", self.0.message).into();
        self.with_unknown_effect()
    }

    /// Replaces the id of a stream or a consumer group in the message by its name. The client's user knows only the
    /// name. Does nothing if the message has no such id.
    pub(crate) fn name_subject(&mut self, db: &Database) {
        if let Some(subject) = self.0.subject.take() {
            let message = std::mem::take(&mut self.0.message);
            self.0.message = subject.named_in(message, db);
        }
    }

    /// Returns true if the failure has a detail with this name.
    #[must_use]
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.details.iter().any(|(known, _)| *known == name)
    }

    /// Returns true if the failure is a fault of the server and not of the request. An operator should then learn of
    /// it.
    #[must_use]
    pub(crate) fn is_of_server(&self) -> bool {
        self.0.class == Action::Stop
    }

    /// Returns the error code of the failure, by which programs recognise it.
    #[must_use]
    pub(crate) fn code(&self) -> &'static str {
        self.0.code
    }

    /// Returns the message of the failure for people.
    #[must_use]
    pub(crate) fn message(&self) -> &str {
        &self.0.message
    }

    /// Calls `then` with the `failed` frame for this failure. The frame answers a request.
    pub(crate) fn failed<T>(&self, then: impl FnOnce(&Failed<'_>) -> T) -> T {
        let facts = &*self.0;
        let details: Vec<_> = facts.details.iter().map(|&(name, value)| Detail { name, value }).collect();
        then(&Failed {
            class: facts.class,
            effect: facts.effect,
            shown: Level(facts.shown),
            code: facts.code,
            message: short(&facts.message),
            details: List::Items(&details),
        })
    }

    /// Calls `then` with the `ended` frame for this failure. The frame ends a subscription.
    pub(crate) fn ended<T>(&self, then: impl FnOnce(&Ended<'_>) -> T) -> T {
        self.failed(|failed| {
            let Failed { class, code, message, details, .. } = *failed;
            then(&Ended { class, code, message, details })
        })
    }
}

/// Truncates an error message that may quote long input of the client, so that it fits into a text field and into any
/// frame.
fn short(message: &str) -> &str {
    const MAX_MESSAGE_BYTES: usize = 2048;
    &message[..message.floor_char_boundary(MAX_MESSAGE_BYTES)]
}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        let ApiError { code, message, action, detail, shown, subject, .. } = error;
        let mut failure = Self::new(code, action, message);
        failure.0.subject = subject;
        failure.0.details.extend(detail);
        failure.0.shown = shown;
        failure
    }
}

impl From<WriteError> for Failure {
    fn from(error: WriteError) -> Self {
        let condition = match &error {
            WriteError::ConditionFailed { condition, .. } => Some(u64::from(*condition)),
            _ => None,
        };
        // In these cases the write may still be carried out: the log or the state failed while it was pending, and the
        // next open may recover it; or it was sent to other nodes.
        let perhaps = matches!(
            error,
            WriteError::LogFailed { .. } | WriteError::StateFailed { .. } | WriteError::OutcomeUnknown { .. }
        );
        let mut failure = Self::from(ApiError::from(error));
        failure.0.details.extend(condition.map(|condition| ("condition", condition)));
        if perhaps { failure.with_unknown_effect() } else { failure }
    }
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        ApiError::from(error).into()
    }
}

impl From<WatchError> for Failure {
    fn from(error: WatchError) -> Self {
        ApiError::from(error).into()
    }
}

impl From<GroupError> for Failure {
    fn from(error: GroupError) -> Self {
        match error {
            GroupError::Write(error) => error.into(),
            other => ApiError::from(other).into(),
        }
    }
}

/// Creates the failure of a request that its client cancelled.
#[must_use]
pub(crate) fn cancelled() -> Failure {
    Failure::invalid("cancelled", "the client cancelled the request")
}

/// Creates the failure of a request whose timeout expired.
#[must_use]
pub(crate) fn timed_out() -> Failure {
    Failure::new("timeout", Action::Retry, "the request timed out")
}

/// Creates the failure of requests and subscriptions that end because the server stops.
#[must_use]
pub(crate) fn stopping() -> Failure {
    Failure::new("stopping", Action::Retry, "the server is stopping: connect again and continue")
}

/// Creates the reason with which a subscription ends after it has delivered as many messages as its client requested.
#[must_use]
pub(crate) fn limit_reached() -> Failure {
    Failure::invalid("limit_reached", "the subscription has reached its limit")
}
