//! Conclusions from the figures of the backends suite: sentences for the reader, and checks of the required figures.

use super::{cells::Cell, groups::Group, subjects::Mode};
use crate::{
    probe::steadiness,
    report::{Check, number},
    stats::ratio,
};

/// Returns sentences that compare the measured stores. `probe` has the raw rates of the disk in writes per second.
pub(super) fn summary_sentences(cells: &[Cell], probe: &[f64]) -> Vec<String> {
    let is_writes = |group: Group| matches!(group, Group::Writes(_));
    let is_reads = |group: Group| matches!(group, Group::Reads(_));
    let mut said = Vec::new();
    let behind = of(cells, Mode::BehindLog, is_writes);
    if let (Some(best), Some(worst)) = (fastest(&behind), slowest(&behind)) {
        let spread = worst.statistics.mean / best.statistics.mean;
        let what = if spread < 1.15 {
            "which backend keeps the state makes no difference to a durable write: it is the log's fsync"
        } else {
            "the backend still shows in a durable write, beside the log's fsync"
        };
        said.push(format!(
            "Behind the log, {what}: {} sets/s with {}, {} with {} (raw disk probe {})",
            number(best.rate()),
            best.store,
            number(worst.rate()),
            worst.store,
            number(crate::stats::median(probe)),
        ));
    }
    let alone = of(cells, Mode::PerBatch, is_writes);
    for cell in &alone {
        if let Some(behind) = behind.iter().find(|behind| behind.store == cell.store) {
            let times = cell.statistics.mean / behind.statistics.mean;
            if times > 1.15 {
                let flushes =
                    cell.flushes.map_or(String::new(), |flushes| format!(", {} disk flushes a set", number(flushes)));
                said.push(format!(
                    "{} alone takes {} times as long for a durable set as behind the log{flushes}",
                    cell.store,
                    number(times)
                ));
            }
        }
    }
    let reads = of(cells, Mode::BehindLog, is_reads);
    if let (Some(best), Some(worst)) = (fastest(&reads), slowest(&reads)) {
        said.push(format!(
            "Reads are where backends differ: {} µs a random read with {}, {} with {}, all from memory or page cache",
            number(best.statistics.mean),
            best.store,
            number(worst.statistics.mean),
            worst.store,
        ));
    }
    for cell in cells.iter().filter(|cell| cell.statistics.deviation > 0.25 * cell.statistics.mean).take(4) {
        said.push(format!(
            "{} of {} ({}) varies by {} % from sample to sample: compare its interval, not its mean",
            cell.group.what(),
            cell.store,
            cell.mode.name(),
            number(100.0 * cell.statistics.deviation / cell.statistics.mean)
        ));
    }
    said.push(
        "Two cells whose 95 % intervals overlap are not known to differ; these figures do not show how stores behave \
         with data larger than memory, after weeks of writing, or on another disk"
            .to_owned(),
    );
    said.push(
        "The group snapshot_speed copies every entry from one consistent view into memory: it is the read side of a \
         snapshot, without compressing or writing it"
            .to_owned(),
    );
    said
}

/// Returns sentences about how the read times of each store change as its data grows.
pub(super) fn of_sizes(cells: &[Cell], cache_bytes: u64) -> Vec<String> {
    let mut said: Vec<String> = Vec::new();
    for (first, last) in ends(cells) {
        said.push(format!(
            "{}: a random read takes {} µs of {} entries and {} of {}, {} times as long",
            first.store,
            number(first.statistics.mean),
            number(first.group.parameter() as f64),
            number(last.statistics.mean),
            number(last.group.parameter() as f64),
            number(last.statistics.mean / first.statistics.mean),
        ));
    }
    said.push(format!(
        "As the data grows, reads first miss the processor's caches. Stores that keep their data in files then miss \
         their own cache of {} MiB, and copy from the kernel's page cache; memory keeps everything in memory. No read \
         reaches the device",
        cache_bytes >> 20
    ));
    said
}

/// Returns sentences about how the read rate of each store changes with the number of reading threads.
pub(super) fn of_readers(cells: &[Cell]) -> Vec<String> {
    let mut said: Vec<String> = Vec::new();
    for store in ends(cells).map(|(first, _)| first) {
        let of_store = cells.iter().filter(|cell| cell.store == store.store);
        let Some(best) = of_store.max_by(|left, right| left.rate().total_cmp(&right.rate())) else { continue };
        let threads = best.group.parameter();
        said.push(format!(
            "{}: one thread reads {}/s, {threads} read {}/s, {} times as many",
            store.store,
            number(store.rate()),
            number(best.rate()),
            number(best.rate() / store.rate()),
        ));
    }
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    said.push(format!(
        "with {cores} processors {cores} times is all there is to gain; more readers than that only show whether they \
         get in each other's way"
    ));
    said
}

/// Returns the first and the last measurement of each store in `cells`, which are those with its smallest and its
/// largest parameter.
fn ends(cells: &[Cell]) -> impl Iterator<Item = (&Cell, &Cell)> {
    cells.iter().enumerate().filter_map(|(at, first)| {
        let is_first = cells[..at].iter().all(|other| other.store != first.store);
        let last = cells.iter().rfind(|other| other.store == first.store)?;
        is_first.then_some((first, last))
    })
}

/// Creates the checks that compare the measured figures of the backends suite with the required ones. `probe` has the
/// raw rates of the disk in writes per second.
pub(super) fn checks(cells: &[Cell], probe: &[f64]) -> Vec<Check> {
    let mut checks = Vec::new();
    let behind = |wanted: fn(Group) -> bool| of(cells, Mode::BehindLog, wanted);
    let writes = behind(|group| matches!(group, Group::Writes(_)));
    for cell in &writes {
        let what = format!("1000 sequential durable sets, {}: of the raw disk probe's rate", cell.store);
        checks.push(Check::at_least(what, ratio(&rates(cell), probe), 0.85, " ×"));
    }
    let lsm = writes.iter().find(|cell| cell.store == "lsm");
    let peer = of(cells, Mode::PerBatch, |group| matches!(group, Group::Writes(_)));
    if let (Some(lsm), Some(peer)) = (lsm, peer.iter().find(|cell| cell.store.starts_with("fjall"))) {
        let what = format!("1000 sequential durable sets, lsm behind the log: of {} synced per put", peer.store);
        checks.push(Check::at_least(what, ratio(&rates(lsm), &rates(peer)), 1.0, " ×"));
    }
    for cell in behind(|group| group == Group::Tasks(50)) {
        if let Some(one) = writes.iter().find(|one| one.store == cell.store) {
            let what = format!("50 concurrent writers (tasks), {}: of one writer", cell.store);
            checks.push(Check::at_least(what, ratio(&rates(cell), &rates(one)), 20.0, " ×"));
        }
    }
    for cell in behind(|group| group == Group::Transaction(100)) {
        let singles = behind(|group| group == Group::Transaction(1));
        if let Some(single) = singles.iter().find(|single| single.store == cell.store) {
            let what = format!("sets in transactions of 100, {}: of single ones", cell.store);
            checks.push(Check::at_least(what, ratio(&rates(cell), &rates(single)), 50.0, " ×"));
        }
    }
    checks.extend(steadiness("raw disk probe", probe, "/s"));
    checks
}

fn rates(cell: &Cell) -> Vec<f64> {
    cell.micros.iter().map(|micros| 1e6 / micros).collect()
}

fn of(cells: &[Cell], mode: Mode, wanted: impl Fn(Group) -> bool) -> Vec<&Cell> {
    cells.iter().filter(|cell| cell.mode == mode && wanted(cell.group)).collect()
}

fn fastest<'a>(cells: &[&'a Cell]) -> Option<&'a Cell> {
    cells.iter().copied().min_by(|left, right| left.statistics.mean.total_cmp(&right.statistics.mean))
}

fn slowest<'a>(cells: &[&'a Cell]) -> Option<&'a Cell> {
    cells.iter().copied().max_by(|left, right| left.statistics.mean.total_cmp(&right.statistics.mean))
}
