//! What goes wrong with a request, as the `failed` or `ended` frame that tells of it.
//!
//! Owns: which error of the layers below says what to a client. Codes, classes and figures are those of HTTP's errors
//! ([`ApiError`]), so both protocols tell the same of the same thing; added is whether something may have happened.

use std::borrow::Cow;

use thalweg_engine::{GroupError, ReadError, WatchError, WriteError};
use thalweg_serving::error::ApiError;
use thalweg_types::{Action, Classified, Durability};
use thalweg_wire::{Detail, Effect, Ended, Failed, Level, List};

/// A request was not carried out, or not to its end. Boxed inside: errors are rare, and results with them stay small.
#[derive(Clone, Debug)]
pub(crate) struct Failure(Box<Told>);

#[derive(Clone, Debug)]
struct Told {
    class: Action,
    effect: Effect,
    shown: Option<Durability>,
    code: &'static str,
    message: Cow<'static, str>,
    details: Vec<(&'static str, u64)>,
}

impl Failure {
    /// One that did nothing, without figures.
    #[must_use]
    pub(crate) fn new(code: &'static str, class: Action, message: impl Into<Cow<'static, str>>) -> Self {
        let (effect, shown, details) = (Effect::Nothing, None, Vec::new());
        Self(Box::new(Told { class, effect, shown, code, message: message.into(), details }))
    }

    /// The request as such is wrong.
    #[must_use]
    pub(crate) fn fix(code: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(code, Action::Fix, message)
    }

    /// Too much at a time: nothing was done.
    #[must_use]
    pub(crate) fn overloaded(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new("overloaded", Action::Retry, message)
    }

    /// A typed error that did nothing.
    #[must_use]
    pub(crate) fn of(error: &impl Classified) -> Self {
        Self::new(error.code(), error.action(), error.to_string())
    }

    /// Adds a figure.
    #[must_use]
    pub(crate) fn with(mut self, name: &'static str, value: u64) -> Self {
        self.0.details.push((name, value));
        self
    }

    /// The request may have been carried out all the same.
    #[must_use]
    pub(crate) fn perhaps_done(mut self) -> Self {
        self.0.effect = Effect::Unknown;
        self
    }

    /// Whether it has a figure of that name.
    #[must_use]
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.details.iter().any(|(known, _)| *known == name)
    }

    /// Its code.
    #[cfg(test)]
    #[must_use]
    pub(crate) fn code(&self) -> &'static str {
        self.0.code
    }

    /// Shows the reply to `then`.
    pub(crate) fn failed<T>(&self, then: impl FnOnce(&Failed<'_>) -> T) -> T {
        let told = &*self.0;
        let details: Vec<_> = told.details.iter().map(|&(name, value)| Detail { name, value }).collect();
        then(&Failed {
            class: told.class,
            effect: told.effect,
            shown: Level(told.shown),
            code: told.code,
            message: short(&told.message),
            details: List::Items(&details),
        })
    }

    /// Shows the end of a subscription to `then`.
    pub(crate) fn ended<T>(&self, then: impl FnOnce(&Ended<'_>) -> T) -> T {
        self.failed(|failed| {
            let Failed { class, code, message, ref details, .. } = *failed;
            then(&Ended { class, code, message, details: details.clone() })
        })
    }
}

/// Messages that quote what a client sent stay within a text's limit, and within any frame.
fn short(message: &str) -> &str {
    const MAX_MESSAGE_BYTES: usize = 2048;
    &message[..message.floor_char_boundary(MAX_MESSAGE_BYTES)]
}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        let ApiError { code, message, action, detail, shown, .. } = error;
        let mut failure = Self::new(code, action, message);
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
        // The log or the state failed while it was under way: what was written may come back at the next open.
        let perhaps = matches!(error, WriteError::LogFailed { .. } | WriteError::StateFailed { .. });
        let mut failure = Self::from(ApiError::from(error));
        failure.0.details.extend(condition.map(|condition| ("condition", condition)));
        if perhaps { failure.perhaps_done() } else { failure }
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

/// The client said so.
#[must_use]
pub(crate) fn cancelled() -> Failure {
    Failure::fix("cancelled", "the client cancelled it")
}

/// The time that the client gave was up.
#[must_use]
pub(crate) fn timed_out() -> Failure {
    Failure::new("timeout", Action::Retry, "the request's time was up")
}

/// The server stops.
#[must_use]
pub(crate) fn stopping() -> Failure {
    Failure::new("stopping", Action::Retry, "the server stops: connect again and go on")
}

/// A subscription has had all that it wanted.
#[must_use]
pub(crate) fn limit_reached() -> Failure {
    Failure::fix("limit_reached", "the subscription has had as much as it asked for")
}
