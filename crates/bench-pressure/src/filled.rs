//! Starts a server and loads data into it, as the setup of measurements that read.
//!
//! Owns: loading the keys over RESP, in slices that each print their progress, and waiting until the server has written
//! everything to the disk.

use crate::{
    BenchError,
    load::{Merge as _, Validity},
    options::WireProtocol,
    over::{self, Job},
    peaks::{Peaks, watched},
    report::number,
    scenario::Scenario,
    server::{Level, MemoryLimit, Server, VALUES},
    stats::Summary,
    work::{Counts, Keys},
};

/// Figures of loading the keys into a server.
#[derive(Clone, Debug)]
pub(crate) struct Loaded {
    /// Number of loaded values per second, over all slices.
    pub rate: f64,
    /// Number of loaded values per second in each slice (a part of the keys), as median and spread.
    pub slices: Summary,
    /// Longest time during which a connection that loads got no reply, and number of such times that count as stalls.
    pub gaps: Counts,
    /// Largest resident memory of the server during the load, in bytes; `None` if it is not known.
    pub resident: Option<u64>,
    /// Largest memory of the server and of its control group during the load, and the increase of the kernel's counts.
    pub peaks: Peaks,
    pub validity: Validity,
}

/// Loads all keys into a server, divided into this number of slices. Each slice is one run of the load generator and
/// prints its progress. Stops early if the run of a slice is not valid.
pub(crate) fn load(
    scenario: &mut Scenario<'_>,
    server: &mut Server,
    keys: &Keys,
    slices: u64,
) -> Result<Loaded, BenchError> {
    let (count, slices) = (keys.count(), slices.clamp(1, keys.count()));
    let (mut outcomes, mut seconds) = (Vec::new(), 0.0);
    let (process, limit) = (server.process(), server.limit.name());
    let (done, peaks) = watched(process, server.group(), || {
        for slice in 0..slices {
            let (first, end) = (share(count, slice, slices), share(count, slice + 1, slices));
            let job = Job::loading(VALUES, keys, (first, end - first), scenario.options);
            let outcome = over::run(WireProtocol::Resp, server, &job, scenario.options)?;
            seconds += outcome.seconds;
            let (rate, validity) = (number(outcome.rate), outcome.validity.name());
            let is_good = outcome.validity == Validity::Good;
            outcomes.push(outcome);
            scenario.progress.step(&format!(
                "{limit}: {} of {} values loaded, {rate}/s, {validity}",
                number(end as f64),
                number(count as f64)
            ));
            if !is_good {
                break;
            }
        }
        Ok::<_, BenchError>(())
    });
    // If the server has ended, this error is the reason for the lost connections, so it is reported first.
    server.check_alive()?;
    done?;
    let right: u64 = outcomes.iter().map(|outcome| outcome.tally.right).sum();
    let mut gaps = Counts::default();
    outcomes.iter().for_each(|outcome| gaps.merge(outcome.tally.own));
    Ok(Loaded {
        rate: if seconds > 0.0 { right as f64 / seconds } else { f64::NAN },
        slices: Summary::of(&outcomes.iter().map(|outcome| outcome.rate).collect::<Vec<_>>()),
        gaps,
        resident: outcomes.iter().filter_map(|outcome| outcome.spent.server?.peak_rss_bytes).max(),
        peaks,
        validity: Validity::worst(outcomes.iter().map(|outcome| &outcome.validity)),
    })
}

/// Returns the position at which slice number `slice` begins, if `count` keys are loaded in `slices` slices.
fn share(count: u64, slice: u64, slices: u64) -> u64 {
    (u128::from(count) * u128::from(slice) / u128::from(slices)) as u64
}

/// Starts a server, loads the values that the options describe, and waits until the server is quiet.
pub(crate) fn start(
    scenario: &mut Scenario<'_>,
    name: &str,
    limit: MemoryLimit,
    keys: &Keys,
) -> Result<(Server, Loaded), BenchError> {
    let mut server = scenario.start(name, limit, Level::Interval)?;
    let loaded = load(scenario, &mut server, keys, SLICES)?;
    if let Validity::Errors(why) = &loaded.validity {
        return Err(BenchError::subject("the server", "loading the values")(why));
    }
    settle(scenario, &mut server)?;
    Ok((server, loaded))
}

/// Number of slices into which a load is divided if it only prepares a measurement.
const SLICES: u64 = 4;

/// Waits until the server writes nothing more to the disk. If the wait takes longer than the options permit, ends the
/// wait with a note in the progress output.
pub(crate) fn settle(scenario: &mut Scenario<'_>, server: &mut Server) -> Result<(), BenchError> {
    let patience = scenario.options.settle;
    scenario.step("waiting for the end of flushes and compactions");
    if !server.settle(patience) {
        scenario.step(&format!("the server still writes after {} s; going on", patience.as_secs_f64()));
    }
    server.check_alive()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_cover_all_keys() {
        for (count, slices) in [(10, 3), (7, 7), (100_000_000, 20), (1, 1)] {
            let bounds: Vec<u64> = (0..=slices).map(|slice| share(count, slice, slices)).collect();
            assert!(bounds[0] == 0 && bounds[slices as usize] == count && bounds.is_sorted(), "{bounds:?}");
        }
    }
}
