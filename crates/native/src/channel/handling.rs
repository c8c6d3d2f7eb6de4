//! Handling of a channel's requests: limits, the call of the handler, and the reply or the failure.
//!
//! Owns: the steps from a decoded request until it is answered or becomes pending, and the client's cancels and
//! credits. Does not own: the handlers (`dispatch`), or pending requests (`requests`).

use thalweg_serving::{
    admission::{Reservation, Resource},
    error::ApiError,
};
use thalweg_wire::{CancelMode, ClientFrame, Credit, Kind, Permit};

use super::ChannelTask;
use crate::{
    dispatch,
    failure::{self, Failure},
    members,
    request::{Request, RequestId},
    requests::{IdUse, PendingRequest},
    subscription::Subscription,
    turn::{Handled, Reply, Turn},
};

impl ChannelTask {
    /// Handles a request of the client. Returns true if the request was a write.
    pub(super) fn request(&mut self, request: &Request<'_>, frame: ClientFrame<'_>) -> bool {
        let Request { id, kind, received, .. } = *request;
        self.active_at = received;
        if id != 0 && self.requests.is_in_use(id) {
            let message = format!("id {id} is in use: wait for its last frame, or choose another");
            self.protocol(&message);
            return false;
        }
        let permit = dispatch::permit_of(&frame);
        let barred = self.barred.take().map_or(Ok(()), |error| Err(ApiError::from(error).into()));
        // Clears the level that frames of subscriptions may have stated since the last reply.
        self.out.take_level();
        let redirected = || match members::wants_redirect(request) {
            true => members::redirect(&self.session.app, request),
            false => Ok(()),
        };
        let admitted = barred.and_then(|()| redirected()).and_then(|()| self.check(request, permit.is_some()));
        let handled = admitted.and_then(|tail| {
            let Self { session, out, subjects, writes, is_sole_client, number, .. } = self;
            let number = *number;
            let mut turn = Turn {
                app: &session.app,
                account: &session.account,
                out,
                subjects,
                writes,
                number,
                is_sole_client: *is_sole_client,
            };
            dispatch::dispatch(&mut turn, request, frame).map(|handled| (handled, tail))
        });
        self.settle(request, permit, handled);
        matches!(kind, Kind::Write | Kind::WriteAndPublish)
    }

    /// Continues with the result of a handler: counts a request that was answered, adds a request whose reply is
    /// pending, begins a subscription, or sends a failure.
    fn settle(
        &mut self,
        request: &Request<'_>,
        permit: Option<Permit>,
        handled: Result<(Handled, Option<Reservation>), Failure>,
    ) {
        let Request { id, kind, received, .. } = *request;
        let waiting = PendingRequest { id, kind, received, trace: request.fields.trace.map(Box::from) };
        let timeout = request.timeout();
        let account = &self.session.account;
        match handled {
            Err(failure) => self.refuse(&waiting, failure),
            Ok((Handled::Replied, _)) => self.count(&waiting, true),
            Ok((Handled::Write(write), _)) => match timeout {
                None => {
                    if let Some((waiting, reply)) = self.requests.write(waiting, write, account) {
                        self.reply(&waiting, reply);
                    }
                }
                Some(_) => {
                    // The timeout of the request must fire even if the disk hangs, so nothing may block this thread.
                    self.is_sole_client = false;
                    let later = Box::pin(async move { Ok(Reply::Outcome(write.await?)) });
                    self.requests.add_write(waiting, later, timeout, account.count(Resource::Requests));
                }
            },
            Ok((Handled::Unstoppable(later), _)) => {
                self.requests.add_write(waiting, later, timeout, account.count(Resource::Requests));
            }
            Ok((Handled::Later(later), _)) => {
                self.requests.add_pending(waiting, later, None, timeout, account.count(Resource::Requests));
            }
            Ok((Handled::LaterWithEffect(later, begun), _)) => {
                self.requests.add_pending(waiting, later, Some(begun), timeout, account.count(Resource::Requests));
            }
            Ok((Handled::Began(source), tail)) => {
                let permit = permit.expect("only frames with a permit begin subscriptions");
                let held = tail.expect("which were counted before they began");
                self.count(&waiting, true);
                let subscription = Subscription::new(source, &permit, request.fields.limit, held, waiting.trace);
                self.requests.subscribed(id, IdUse::Subscription(Box::new(subscription)));
                self.begin_step(id);
            }
            Ok((Handled::BeganSubject, _)) => {
                self.requests.subscribed(id, IdUse::Subject);
                self.count(&waiting, true);
            }
        }
    }

    /// Returns an error if a limit forbids the request. `subscribes` is true if the request begins a subscription. In
    /// this case, reserves one of the server's `max_tails` for it, and returns the reservation. Other requests are
    /// counted only when they become pending, because most are answered immediately.
    fn check(&self, request: &Request<'_>, subscribes: bool) -> Result<Option<Reservation>, Failure> {
        if request.fields.space.is_some_and(|space| space.0 != 0) {
            return Err(Failure::invalid(
                "no_such_space",
                "this server has only the default space: leave out the field",
            ));
        }
        if subscribes {
            if request.id == 0 {
                return Err(Failure::invalid(
                    "malformed_frame",
                    "a subscription needs an id above 0, because its pushes carry the id",
                ));
            }
            if self.requests.subscriptions() >= self.session.max_subscriptions as usize {
                return Err(Failure::overloaded("the channel has its maximum number of subscriptions: end one first"));
            }
        } else if !self.requests.has_room() {
            return Err(Failure::overloaded("too many requests in progress on this channel: wait for replies"));
        }
        let account = &self.session.account;
        if matches!(request.kind, Kind::Tail | Kind::Push | Kind::Watch | Kind::WatchCluster) {
            let held = account.take(Resource::Tails, 1);
            return held.map(Some).ok_or_else(|| Failure::overloaded("too many tails at a time: retry later"));
        }
        if account.has_room(Resource::Requests) {
            Ok(None)
        } else {
            Err(Failure::overloaded("too many requests in flight: retry later"))
        }
    }

    pub(super) fn reply(&mut self, waiting: &PendingRequest, reply: Result<Reply, Failure>) {
        self.out.take_level();
        match reply.and_then(|reply| reply.put(&mut self.out, waiting.id)) {
            Ok(()) => self.count(waiting, true),
            Err(failure) => self.refuse(waiting, failure),
        }
    }

    fn refuse(&mut self, waiting: &PendingRequest, mut failure: Failure) {
        failure.name_subject(self.session.app.db.blocking());
        let failure = &failure;
        let with_leader = match &self.session.app.cluster {
            // This node lost the leadership while the command was in progress.
            Some(cluster) if failure.code() == "not_leader" && !failure.has("leader") => {
                Some(members::with_leader(cluster, failure.clone()))
            }
            _ => None,
        };
        let failure = with_leader.as_ref().unwrap_or(failure);
        if failure.is_of_server() {
            let (peer, request_id, kind) = (self.socket.peer(), self.request_id(waiting), waiting.kind.name());
            tracing::warn!(%peer, %request_id, kind, code = failure.code(), "{}", failure.message());
            // The failure contains this name. The client's user can tell it to an operator, who finds the request in
            // the log.
            let name = waiting.trace.clone().unwrap_or_else(|| request_id.to_string().into());
            self.out.fail_traced(waiting.id, Some(&name), failure);
        } else {
            self.out.fail_traced(waiting.id, waiting.trace.as_deref(), failure);
        }
        self.count(waiting, false);
    }

    fn count(&mut self, waiting: &PendingRequest, good: bool) {
        let (level, took) = (self.out.take_level(), waiting.received.elapsed());
        self.session.native.metrics.request(waiting.kind, good, level, took);
        tracing::debug!(
            kind = waiting.kind.name(),
            good,
            micros = took.as_micros() as u64,
            request_id = %self.request_id(waiting),
            "native request"
        );
    }

    /// Returns the name of a request in log lines: the name that the client gave, or the channel's number and the
    /// request's id.
    pub(super) fn request_id<'w>(&self, waiting: &'w PendingRequest) -> RequestId<'w> {
        RequestId { trace: waiting.trace.as_deref(), channel: self.number, id: waiting.id }
    }

    pub(super) fn cancel(&mut self, id: u32, mode: CancelMode) {
        match self.requests.get_mut(id) {
            None | Some(IdUse::Request(None)) => {}
            Some(IdUse::Request(Some(stop))) => stop.notify_one(),
            Some(IdUse::Subscription(subscription)) => {
                subscription.end(failure::cancelled(), mode);
                self.begin_step(id);
            }
            Some(IdUse::Subject) => {
                if self.subjects.cancel(id, mode, &mut self.out) {
                    self.requests.unsubscribed(id);
                }
            }
        }
    }

    pub(super) fn credit(&mut self, id: u32, credit: &Credit) {
        match self.requests.get_mut(id) {
            None | Some(IdUse::Request(_)) => {}
            Some(IdUse::Subscription(subscription)) => {
                subscription.permit(credit);
                self.begin_step(id);
            }
            Some(IdUse::Subject) => self.subjects.credit(id, credit),
        }
    }
}
