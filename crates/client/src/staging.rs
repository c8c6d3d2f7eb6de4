//! Waiting until a frame can be staged. A frame waits for a connection, for room, or until another request finishes.
//!
//! Owns: these waits, and the choice of another link while the first one has no connection. Does not own the bounds of
//! a link (`link`), connecting (`pool`), or timeouts (`client`).

use std::{pin::pin, sync::Arc};

use thalweg_wire::Effect;

use crate::{
    error::{ConnectError, Error},
    link::{Link, StageError},
    pool::Pool,
};

/// Stages a frame on this link as soon as the link has a connection with room for the frame.
pub(crate) async fn until_staged<T>(link: &Link, mut stage: impl FnMut() -> Result<T, StageError>) -> Result<T, Error> {
    loop {
        let mut changed = pin!(link.changed.notified());
        changed.as_mut().enable();
        match stage() {
            Ok(staged) => return Ok(staged),
            Err(StageError::Connection(_) | StageError::Room) => changed.await,
            Err(StageError::Requests) => tokio::select! {
                () = changed => {}
                () = link.finished.notified() => {}
            },
            Err(blocked) => return Err(blocked.into()),
        }
    }
}

/// Stages a frame on this link of the pool as soon as the link has room for the frame. If this link has no connection,
/// uses the first link of the pool that has one. While no link has a connection, `gives_up` decides from the reason: if
/// it returns an error, the wait ends with this error. Returns the used link too.
pub(crate) async fn staged_in<'p, T>(
    pool: &'p Pool,
    mut link: &'p Arc<Link>,
    mut stage: impl FnMut(&Arc<Link>) -> Result<T, StageError>,
    gives_up: impl Fn(&Arc<ConnectError>) -> Option<Error>,
) -> Result<(&'p Arc<Link>, T), Error> {
    loop {
        let mut connected = pin!(pool.moved().notified());
        connected.as_mut().enable();
        let mut changed = pin!(link.changed.notified());
        changed.as_mut().enable();
        match stage(link) {
            Ok(staged) => return Ok((link, staged)),
            Err(StageError::Connection(why)) => {
                if !pool.is_connected() {
                    if let Some(error) = gives_up(&why) {
                        return Err(error);
                    }
                    // The link also notifies waiting callers when the client makes no further attempt to connect, or is
                    // closed.
                    tokio::select! {
                        () = connected => {}
                        () = changed => {}
                    }
                }
                if pool.is_connected() {
                    link = pool.next_link();
                }
            }
            Err(StageError::Room) => changed.await,
            Err(StageError::Requests) => tokio::select! {
                () = changed => {}
                () = link.finished.notified() => {}
            },
            Err(blocked) => return Err(blocked.into()),
        }
    }
}

/// Returns [`Error::NotConnected`] with the reason instead of a timeout error, if the request timed out while it waited
/// for a connection. Returns other errors unchanged.
pub(crate) fn not_connected(pool: &Pool, error: Error) -> Error {
    match (&error, pool.connect_error()) {
        (Error::TimedOut { effect: Effect::Nothing, .. }, Some(why)) => Error::NotConnected { why },
        _ => error,
    }
}

impl From<StageError> for Error {
    fn from(blocked: StageError) -> Self {
        match blocked {
            StageError::Connection(why) | StageError::Dead(why) => Self::NotConnected { why },
            StageError::Closed => Self::Closed,
            StageError::Invalid(invalid) => Self::Invalid(invalid),
            StageError::Room | StageError::Requests => Self::NotConnected { why: Arc::new(ConnectError::NotYet) },
            StageError::OtherRun => Self::OtherRun,
            StageError::OtherData => Self::OtherData,
        }
    }
}
