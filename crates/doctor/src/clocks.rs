//! Checks of the machine's clocks: their source, the cost of reading them, steps of the wall clock, and its
//! synchronisation with a time server.
//!
//! Owns: the facts, how they are read, and the rules that judge them. Does not own: the observation of the wall clock
//! over a time (`probe`), or clocks of other nodes, which `thalweg cluster doctor` compares.

use std::{
    mem::MaybeUninit,
    time::{Duration, Instant},
};

use rustix::time::{ClockId, clock_gettime};
use serde::{Serialize, Serializer};

use crate::{Findings, System, Walls, storage::micros};

/// Smallest sudden step of the wall clock that the doctor reports. Synchronisation by slewing (running the clock
/// slightly faster or slower) changes the clock by at most half a millisecond in a second, so it cannot explain such a
/// step.
const STEP: Duration = Duration::from_millis(5);
/// Error bound of a synchronised clock above which the doctor reports the clock. The kernel maintains this bound: it
/// raises it by half a millisecond in a second, and systemd-timesyncd asks its server every 34 minutes, so the bound of
/// a good clock reaches 1.02 s. `thalweg cluster doctor` reports clocks that differ by 10 s.
const MAX_ERROR: Duration = Duration::from_secs(3);
/// Clock sources whose reading takes a system call or access to a slow device.
const SLOW_SOURCES: [&str; 5] = ["hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit"];
/// Shortest suspension of the machine that the doctor reports. It is computed from two clocks that are not read at the
/// same moment, so smaller differences mean nothing.
const MIN_SUSPENSION: Duration = Duration::from_secs(1);
/// Number of clock readings over which the time of one reading is averaged.
const READINGS: u32 = 10_000;

/// Synchronisation of the wall clock, as the kernel reports it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ntp {
    /// True if a program, such as an NTP client, keeps the wall clock synchronised.
    pub synchronised: bool,
    /// Largest error of the wall clock that the kernel assumes.
    #[serde(rename = "max_error_micros", serialize_with = "in_micros")]
    pub max_error: Duration,
    /// Correction of the wall clock that the kernel still has to apply.
    #[serde(rename = "offset_micros", serialize_with = "in_micros")]
    pub offset: Duration,
}

/// Facts that the doctor reads about the machine's clocks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Clocks {
    /// Source of the kernel's time, such as `tsc`.
    pub source: Option<String>,
    /// Nanoseconds that a reading of the monotonic clock takes.
    pub reading_nanos: f64,
    /// Time for which the wall clock was observed.
    #[serde(rename = "observed_micros", serialize_with = "in_micros")]
    pub observed: Duration,
    /// Largest step of the wall clock while it was observed.
    #[serde(rename = "largest_step_micros", serialize_with = "in_micros")]
    pub largest_step: Duration,
    /// Time for which the machine was suspended since its start. The monotonic clock does not count this time.
    #[serde(rename = "suspended_micros", serialize_with = "in_micros")]
    pub suspended: Duration,
    /// State of the wall clock's synchronisation; `None` if the system does not report it.
    pub ntp: Option<Ntp>,
}

fn in_micros<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
}

impl Clocks {
    /// Reads the facts about the clocks; `walls` has the observations of the wall clock.
    #[must_use]
    pub fn read(system: &System, walls: &Walls) -> Self {
        let began = Instant::now();
        for _ in 0..READINGS {
            std::hint::black_box(Instant::now());
        }
        Self {
            source: system.text("sys/devices/system/clocksource/clocksource0/current_clocksource"),
            reading_nanos: began.elapsed().as_secs_f64() * 1e9 / f64::from(READINGS),
            observed: walls.observed,
            largest_step: walls.largest_step,
            suspended: suspended(),
            ntp: ntp(),
        }
    }
}

/// Returns the time for which the machine was suspended: the difference between the clock that counts suspensions
/// (`CLOCK_BOOTTIME`) and the monotonic clock.
fn suspended() -> Duration {
    // The monotonic clock is read last, so the time between the two readings is not taken for a suspension.
    let since = |clock: ClockId| {
        let time = clock_gettime(clock);
        Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
    };
    let whole = since(ClockId::Boottime);
    whole.saturating_sub(since(ClockId::Monotonic))
}

/// Asks the kernel how well the wall clock is synchronised, without changing the clock.
fn ntp() -> Option<Ntp> {
    let mut state = MaybeUninit::<libc::timex>::zeroed();
    // SAFETY: the structure consists of integers, for which zero is valid, and `modes` of zero makes the call only
    // read. The pointer is to a structure that lives through the call.
    let (code, state) = unsafe {
        let code = libc::adjtimex(state.as_mut_ptr());
        (code, state.assume_init())
    };
    if code < 0 {
        return None;
    }
    let offset = state.offset.unsigned_abs();
    let is_nanos = state.status & libc::STA_NANO != 0;
    Some(Ntp {
        synchronised: code != libc::TIME_ERROR && state.status & libc::STA_UNSYNC == 0,
        max_error: Duration::from_micros(u64::try_from(state.maxerror).unwrap_or(0)),
        offset: if is_nanos { Duration::from_nanos(offset) } else { Duration::from_micros(offset) },
    })
}

/// Adds a finding for each problem with the clocks.
pub(crate) fn judge(clocks: &Clocks, found: &mut Findings) {
    if clocks.largest_step > STEP {
        found.weakness(
            "wall_clock_steps",
            format!(
                "the wall clock moved by {} against the monotonic clock within {}",
                micros(clocks.largest_step.as_secs_f64() * 1e6),
                micros(clocks.observed.as_secs_f64() * 1e6)
            ),
            "the time of the data never goes back, but leases and times to live end earlier or later by such a step at the \
             next start",
            "run one program that synchronises the clock, and let it slew (chrony, systemd-timesyncd); suspend no virtual \
             machine that runs a node",
        );
    }
    if clocks.suspended > MIN_SUSPENSION {
        found.weakness(
            "was_suspended",
            format!("the machine was suspended for {} since its start", micros(clocks.suspended.as_secs_f64() * 1e6)),
            "a suspended node does not run, so other nodes elect a new leader. Leases and times to live go on \
             meanwhile, and reads at the level `lease` are as new as before. But a virtual machine that its host pauses \
             does not notice the pause: reads at the level `lease` of a former leader can be old for a moment",
            "switch suspending off, and do not pause virtual machines that run a node",
        );
    }
    match &clocks.ntp {
        None => found.note(
            "clock_unknown",
            "the system does not report whether the wall clock is synchronised".to_owned(),
            "a wrong clock changes when leases and times to live end; a start refuses clocks that jumped by more than \
             `max_clock_jump`",
            "check the synchronisation at the host",
        ),
        Some(ntp) if !ntp.synchronised => found.weakness(
            "clock_unsynchronised",
            "no program keeps the wall clock synchronised, or it has not succeeded yet".to_owned(),
            "a wrong clock changes when leases and times to live end, and nodes of a cluster disagree; in some containers and \
             virtual machines the host keeps the clock, and the kernel cannot know that",
            "run chrony or systemd-timesyncd, or make sure that the host keeps the clock",
        ),
        Some(ntp) if ntp.max_error > MAX_ERROR => found.weakness(
            "clock_error",
            format!("the wall clock may be wrong by {}", micros(ntp.max_error.as_secs_f64() * 1e6)),
            "leases and times to live end with that error after an outage of all nodes",
            "check that the time server is reachable",
        ),
        Some(_) => {}
    }
    if let Some(source) = clocks.source.as_deref().filter(|source| SLOW_SOURCES.contains(source)) {
        found.weakness(
            "slow_clock",
            format!("the kernel takes the time from `{source}`; a reading takes {:.0} ns", clocks.reading_nanos),
            "a node reads the clock twice for each request",
            "find out why the kernel rejected a better source: `dmesg | grep -i clocksource`",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clocks() -> Clocks {
        let ntp = Ntp { synchronised: true, max_error: Duration::from_millis(3), offset: Duration::ZERO };
        Clocks {
            source: Some("tsc".to_owned()),
            reading_nanos: 25.0,
            observed: Duration::from_secs(2),
            largest_step: Duration::from_micros(40),
            suspended: Duration::ZERO,
            ntp: Some(ntp),
        }
    }

    fn codes(clocks: &Clocks) -> Vec<&'static str> {
        let mut found = Findings::default();
        judge(clocks, &mut found);
        found.codes()
    }

    #[test]
    fn each_fault_of_a_clock_is_named() {
        assert_eq!(codes(&clocks()), Vec::<&str>::new());
        assert_eq!(codes(&Clocks { largest_step: Duration::from_secs(1), ..clocks() }), ["wall_clock_steps"]);
        assert_eq!(codes(&Clocks { suspended: Duration::from_secs(60), ..clocks() }), ["was_suspended"]);
        assert_eq!(codes(&Clocks { ntp: None, ..clocks() }), ["clock_unknown"]);
        let with = |synchronised, max_error| Clocks {
            ntp: Some(Ntp { synchronised, max_error, offset: Duration::ZERO }),
            ..clocks()
        };
        assert_eq!(codes(&with(false, Duration::from_secs(16))), ["clock_unsynchronised"]);
        assert_eq!(codes(&with(true, Duration::from_secs(16))), ["clock_error"]);
        assert_eq!(codes(&with(true, Duration::from_millis(1024))), Vec::<&str>::new(), "asks every 2048 s");
        assert_eq!(codes(&Clocks { source: Some("hpet".to_owned()), ..clocks() }), ["slow_clock"]);
    }

    #[test]
    fn the_clocks_of_this_machine_can_be_read() {
        let clocks = Clocks::read(&System::of_this_machine(), &Walls::default());
        assert!(clocks.reading_nanos > 0.0 && clocks.observed == Duration::ZERO);
    }
}
