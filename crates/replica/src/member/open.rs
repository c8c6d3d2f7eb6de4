//! Opening a space (Raft group) as one of its members.
//!
//! Owns: the checks, and the creation of the member's parts. Does not own: replay. A member applies nothing at open,
//! because it does not know which entries after its state are committed; consensus reports this soon after the start.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, OnceLock, RwLock,
        atomic::{AtomicBool, AtomicU64},
    },
};

use thalweg_log::Log;
use thalweg_state::machine::Machine;
use thalweg_types::{Clock, SpaceTime, Term};

use super::{
    Leadership, Member, MemberClock, MemberOptions, Shared,
    cursor::{Cursor, Moves},
};
use crate::{
    apply::check_log_covers,
    counts::Counts,
    error::OpenError,
    membership::{Membership, Vote},
    queue::Queue,
};

impl Member {
    /// Opens a space (Raft group) whose state may be behind its log. The member applies the missing entries once
    /// consensus reports that they are committed. Until consensus is started, the member has no leader.
    pub fn open(
        log: Log,
        machine: Arc<Machine>,
        clock: Arc<dyn Clock>,
        options: &MemberOptions,
    ) -> Result<Self, OpenError> {
        let applied = machine.applied();
        check_log_covers(&log, applied.lsn)?;
        let malformed = |what| OpenError::Malformed { lsn: applied.lsn, what };
        if let Some(membership) = machine.membership()? {
            Membership::decode(&membership.payload).ok_or_else(|| malformed("membership"))?;
        }
        if let Some(vote) = machine.vote()? {
            Vote::decode(&vote).ok_or_else(|| malformed("vote"))?;
        }
        let clock = match options.anchor {
            None if applied.time == SpaceTime::default() => MemberClock::at_wall(clock),
            anchor => MemberClock::new(clock, anchor.unwrap_or_default().max(applied.time)),
        };
        // Entries are applied on the thread of consensus. It must not pause, because it also answers the other members.
        machine.backend().leave_pauses();
        // Reads hide expired values by the time of the last applied entry. The machine does this without a clock.
        let shared = Shared {
            clock: Arc::new(clock),
            log,
            machine,
            options: *options,
            queue: Queue::new(options.max_queue_bytes),
            cut: Mutex::new(VecDeque::new()),
            leadership: RwLock::new(Leadership::Follower { leader: None, term: Term::ZERO }),
            leads: AtomicBool::new(false),
            is_led: AtomicBool::new(false),
            driver: OnceLock::new(),
            observer: OnceLock::new(),
            cursor: Mutex::new(Cursor::default()),
            moves: Moves::default(),
            purge: AtomicU64::new(0),
            failure: OnceLock::new(),
            no_room: Mutex::default(),
            is_closed: AtomicBool::new(false),
            pause_ends_micros: AtomicU64::new(0),
            counts: Counts::default(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }
}
