//! Credit: the number of messages and bytes that a receiver permits the sender of a subscription to send.
//!
//! Owns: the arithmetic for both sides. Does not own: the behaviour of a sender without credit. Without credit, a tail
//! or a watch stops reading until the next credit frame. The subscription of a subject queues messages and then follows
//! its policy.
//!
//! Both amounts, messages and bytes, are totals since the subscription began. So a lost or repeated [`Credit`] changes
//! nothing, and the two sides need not be in step.
//!
//! ```text
//!   consumed <= received <= sent          permitted = consumed + window, at the time of the last credit frame
//!   a batch may begin while  sent.messages < permitted.messages  and  sent.bytes < permitted.bytes
//! ```
//! A batch may exceed the permitted totals by less than its own size, so a batch larger than the window does not
//! block. Consumed messages are those that the application has finished with, not all that have arrived. So the
//! receiver holds at most its window and one batch.
//!
//! The receiver sends a credit frame when at most half of its window is left, of messages or of bytes. Since half a
//! window passes between two credit frames, their cost is negligible. A sender that is at most half a window ahead of
//! the consumed totals never has to stop.

use thalweg_types::{Action, Classified};

use crate::frames::{Credit, Permit};

/// A permit to send any number of messages and bytes.
pub const UNLIMITED: Permit = Permit { messages: u64::MAX, bytes: u64::MAX };

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Amount {
    messages: u64,
    bytes: u64,
}

impl Amount {
    fn add(&mut self, messages: u64, bytes: u64) {
        self.messages = self.messages.saturating_add(messages);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    fn plus(self, other: Self) -> Self {
        let mut sum = self;
        sum.add(other.messages, other.bytes);
        sum
    }
}

/// Sender's totals of the messages and bytes that it has sent and that it may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendCredit {
    permitted: Amount,
    sent: Amount,
}

impl SendCredit {
    /// Creates the sender's totals. `permit` is the one in the request that began the subscription.
    #[must_use]
    pub fn new(permit: &Permit) -> Self {
        let permitted = Amount { messages: permit.messages, bytes: permit.bytes };
        Self { permitted, sent: Amount::default() }
    }

    /// Raises the permitted totals and returns the increase. Totals never decrease: a lower total comes from an older
    /// frame, and permits nothing more.
    pub fn raise(&mut self, credit: &Credit) -> Permit {
        let more = Permit {
            messages: credit.messages.saturating_sub(self.permitted.messages),
            bytes: credit.bytes.saturating_sub(self.permitted.bytes),
        };
        self.permitted.add(more.messages, more.bytes);
        more
    }

    /// Returns true if the sender may begin a batch.
    #[inline]
    #[must_use]
    pub fn may_send(&self) -> bool {
        self.sent.messages < self.permitted.messages && self.sent.bytes < self.permitted.bytes
    }

    /// Returns the numbers of messages and of bytes that the sender may still send within the permitted totals.
    #[must_use]
    pub fn left(&self) -> (u64, u64) {
        let messages = self.permitted.messages.saturating_sub(self.sent.messages);
        (messages, self.permitted.bytes.saturating_sub(self.sent.bytes))
    }

    /// Counts a batch that the sender has sent.
    #[inline]
    pub fn sent(&mut self, messages: u64, bytes: u64) {
        self.sent.add(messages, bytes);
    }
}

/// Error returned when the sender has sent more than the receiver permitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the sender has sent more than its credit: {messages} messages and {bytes} bytes were permitted")]
pub struct Overrun {
    /// Total of messages that the receiver permitted since the subscription began.
    pub messages: u64,
    /// Total of bytes that the receiver permitted since the subscription began.
    pub bytes: u64,
}

impl Classified for Overrun {
    fn code(&self) -> &'static str {
        "credit_overrun"
    }

    fn action(&self) -> Action {
        Action::Stop
    }
}

/// Receiver's totals of the messages and bytes that have arrived, and of those that the application has finished with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveCredit {
    window: Amount,
    permitted: Amount,
    received: Amount,
    consumed: Amount,
}

impl ReceiveCredit {
    /// Creates the totals of a receiver that holds at most `window`, plus one batch, of messages that are not consumed.
    #[must_use]
    pub fn new(window: &Permit) -> Self {
        let window = Amount { messages: window.messages, bytes: window.bytes };
        let none = Amount::default();
        Self { window, permitted: window, received: none, consumed: none }
    }

    /// Returns the permit for the request that begins the subscription.
    #[must_use]
    pub fn permit(&self) -> Permit {
        Permit { messages: self.permitted.messages, bytes: self.permitted.bytes }
    }

    /// Counts a batch that has arrived.
    ///
    /// # Errors
    /// The earlier batches had already used up the permitted totals, so the sender was not permitted to begin this
    /// batch. The batch is counted nevertheless.
    #[inline]
    pub fn received(&mut self, messages: u64, bytes: u64) -> Result<(), Overrun> {
        let might = self.received.messages < self.permitted.messages && self.received.bytes < self.permitted.bytes;
        self.received.add(messages, bytes);
        if might { Ok(()) } else { Err(Overrun { messages: self.permitted.messages, bytes: self.permitted.bytes }) }
    }

    /// Counts messages and bytes that the application has finished with. Returns the credit frame that the receiver
    /// must send now; `None` if none is due.
    #[inline]
    pub fn consumed(&mut self, messages: u64, bytes: u64) -> Option<Credit> {
        self.consumed.add(messages, bytes);
        let left = |permitted: u64, consumed: u64| permitted.saturating_sub(consumed);
        let low = left(self.permitted.messages, self.consumed.messages) <= self.window.messages / 2
            || left(self.permitted.bytes, self.consumed.bytes) <= self.window.bytes / 2;
        let next = self.consumed.plus(self.window);
        if !low || next == self.permitted {
            return None;
        }
        self.permitted = next;
        Some(Credit { messages: next.messages, bytes: next.bytes })
    }

    /// Returns the numbers of messages and bytes that have arrived but that the application has not finished with.
    #[must_use]
    pub fn held(&self) -> (u64, u64) {
        let messages = self.received.messages.saturating_sub(self.consumed.messages);
        (messages, self.received.bytes.saturating_sub(self.consumed.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permit(messages: u64, bytes: u64) -> Permit {
        Permit { messages, bytes }
    }

    #[test]
    fn a_batch_may_pass_the_limit_and_then_nothing_is_sent() {
        let mut sender = SendCredit::new(&permit(10, 1000));
        assert!(sender.may_send());
        sender.sent(9, 900);
        assert_eq!((sender.may_send(), sender.left()), (true, (1, 100)));
        sender.sent(64, 8192);
        assert_eq!((sender.may_send(), sender.left()), (false, (0, 0)));
        assert_eq!(sender.raise(&Credit { messages: 60, bytes: 20_000 }), permit(50, 19_000));
        assert!(!sender.may_send(), "still behind by messages");
        assert_eq!(sender.raise(&Credit { messages: 80, bytes: 9_093 }), permit(20, 0), "the total of bytes is older");
        assert_eq!((sender.may_send(), sender.left()), (true, (7, 10_908)));
    }

    #[test]
    fn either_amount_stops_the_sender_and_none_permits_nothing() {
        for (messages, bytes) in [(1, 1000), (10, 5)] {
            let mut sender = SendCredit::new(&permit(messages, bytes));
            sender.sent(1, 5);
            assert!(!sender.may_send());
        }
        assert!(!SendCredit::new(&permit(0, 1)).may_send());
        assert!(!SendCredit::new(&permit(1, 0)).may_send());
        let mut sender = SendCredit::new(&UNLIMITED);
        sender.sent(u64::MAX - 1, 5);
        assert!(sender.may_send());
    }

    #[test]
    fn more_is_permitted_when_half_is_left() {
        let mut receiver = ReceiveCredit::new(&permit(10, 1000));
        receiver.received(8, 80).unwrap();
        assert_eq!(receiver.consumed(4, 40), None);
        assert_eq!(receiver.held(), (4, 40));
        assert_eq!(receiver.consumed(1, 10), Some(Credit { messages: 15, bytes: 1050 }));
        assert_eq!(receiver.consumed(1, 10), None);
        receiver.received(1, 600).unwrap();
        assert_eq!(receiver.consumed(1, 600), Some(Credit { messages: 17, bytes: 1660 }), "for the bytes");
    }

    #[test]
    fn a_window_of_everything_never_says_more_and_one_of_nothing_neither() {
        let mut receiver = ReceiveCredit::new(&UNLIMITED);
        receiver.received(5, u64::MAX / 4).unwrap();
        assert_eq!(receiver.consumed(5, u64::MAX / 4), None);
        let mut closed = ReceiveCredit::new(&permit(0, 0));
        assert_eq!(closed.consumed(0, 0), None);
        assert_eq!(closed.received(1, 1), Err(Overrun { messages: 0, bytes: 0 }));
    }

    #[test]
    fn a_sender_beyond_its_credit_is_found_out() {
        let mut receiver = ReceiveCredit::new(&permit(2, 100));
        receiver.received(5, 500).expect("the batch began within the credit");
        assert_eq!(receiver.received(1, 1), Err(Overrun { messages: 2, bytes: 100 }));
    }

    /// Tests random windows, batches, and delays of credit frames. Everything arrives, no credit is exceeded, and the
    /// receiver never holds more than its window and one batch.
    #[test]
    fn nothing_stalls_and_nothing_overruns() {
        let mut random = 0x9e37_79b9_u64;
        let mut below = |bound: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % bound
        };
        for round in 0..200 {
            let window = permit(1 + below(50), 1 + below(5000));
            let mut receiver = ReceiveCredit::new(&window);
            let mut sender = SendCredit::new(&receiver.permit());
            let (mut to_send, mut on_the_way, mut held, mut credits) = (300, Vec::new(), Vec::new(), Vec::new());
            while to_send > 0 || !on_the_way.is_empty() || !held.is_empty() {
                let mut moved = false;
                if to_send > 0 && sender.may_send() {
                    let batch = (1 + below(64), below(3000));
                    sender.sent(batch.0, batch.1);
                    on_the_way.push(batch);
                    (to_send, moved) = (to_send - 1, true);
                }
                if below(2) == 0 && !on_the_way.is_empty() {
                    let (messages, bytes) = on_the_way.remove(0);
                    receiver.received(messages, bytes).unwrap_or_else(|error| panic!("round {round}: {error}"));
                    held.push((messages, bytes));
                    let (held_messages, held_bytes) = receiver.held();
                    assert!(
                        held_messages <= window.messages + 64 && held_bytes <= window.bytes + 3000,
                        "round {round}"
                    );
                    moved = true;
                }
                if below(3) == 0 && !held.is_empty() {
                    let (messages, bytes) = held.remove(0);
                    credits.extend(receiver.consumed(messages, bytes));
                    moved = true;
                }
                if below(4) == 0 && !credits.is_empty() {
                    sender.raise(&credits.remove(0));
                    moved = true;
                }
                let idle = on_the_way.is_empty() && held.is_empty() && credits.is_empty();
                assert!(moved || !idle || sender.may_send(), "round {round}: stalled with {to_send} to send");
            }
        }
    }
}
