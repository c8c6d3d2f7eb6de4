//! Costs of a suite's measured runs, taken from the server's own metrics: what each operation costs, and the stages in
//! which a durable write spends its time.
//!
//! Owns: the increase of the server's metrics over the runs ([`Account`]), and the table of costs. Does not own: the
//! metrics themselves, which the server always counts, or the stages as a table and a plot ([`Stages`]).
//!
//! A run's warm-up is part of the costs, because the metrics are read before and after the whole run.

use crate::{
    BenchError,
    load::Outcome,
    report::{Row, Table, cells, mebibytes, table},
    server::{DiskUse, Metrics, Stages, TimedRequests},
    stats::{median, median_of},
};

/// Name of the server's histogram that holds the duration of each fsync of the log.
const SYNC_TIME_METRIC: &str = "thalweg_log_sync_duration_seconds";
/// Name of the server's counter of the log's fsyncs.
pub(crate) const SYNC_METRIC: &str = "thalweg_log_syncs_total";

/// Increase of a server's metrics over several runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Account {
    /// Increase of all metrics; `None` if the server has no metrics, or if they cannot be reached.
    metrics: Option<Metrics>,
    /// Number of fsyncs of the server's log in each run, in order.
    fsyncs_by_run: Vec<f64>,
}

impl Account {
    /// Calls `run`, and adds the increase of the server's metrics during this call to the account. `read` fetches the
    /// metrics. It is called once before and once after `run`.
    pub(crate) fn around<T>(
        &mut self,
        read: impl Fn() -> Option<Metrics>,
        run: impl FnOnce() -> Result<T, BenchError>,
    ) -> Result<T, BenchError> {
        let before = read();
        let done = run()?;
        if let Some((before, after)) = before.zip(read()) {
            self.metrics.get_or_insert_default().add_increase(&before, &after);
            let fsyncs = after.sum(SYNC_METRIC, &[]).map(|now| now - before.sum(SYNC_METRIC, &[]).unwrap_or(0.0));
            self.fsyncs_by_run.extend(fsyncs);
        }
        Ok(done)
    }

    /// Returns the number of fsyncs of the server's log over all runs; `None` if it is not known.
    pub(crate) fn fsyncs(&self) -> Option<u64> {
        Some(self.metrics.as_ref()?.sum(SYNC_METRIC, &[])? as u64)
    }

    /// Returns the number of fsyncs of the server's log in a run, including the run's warm-up, as the median over the
    /// runs; NaN if it is not known.
    pub(crate) fn fsyncs_per_run(&self) -> f64 {
        median(&self.fsyncs_by_run)
    }

    /// Returns the seconds that the fsyncs of the server's log took, over all runs; `None` if they are not known.
    pub(crate) fn fsync_seconds(&self) -> Option<f64> {
        self.metrics.as_ref()?.sum(&format!("{SYNC_TIME_METRIC}_sum"), &[])
    }

    /// Returns the share of a durable write's time in the server that the write spends in the queue, from 0 to 1;
    /// `None` without durable writes.
    pub(crate) fn queue_share(&self) -> Option<f64> {
        Stages::queue_share(self.metrics.as_ref()?)
    }

    /// Divides the average time of a durable write into stages, such as the queue and the fsync. See
    /// [`Stages::of_durable_writes`]. `None` if there were no durable writes, or if the metrics are not known.
    pub(crate) fn durable_writes(
        &self,
        label: &str,
        requests: TimedRequests<'_>,
        response_us: Option<f64>,
    ) -> Option<Stages> {
        Stages::of_durable_writes(self.metrics.as_ref()?, label, requests, response_us)
    }

    /// Divides the average time of a publish into stages, such as the queue and the sending to subscribers. See
    /// [`Stages::of_publishes`]. `None` if there were no publishes, or if the metrics are not known.
    pub(crate) fn publishes(&self, label: &str, end_to_end_us: f64) -> Option<Stages> {
        Stages::of_publishes(self.metrics.as_ref()?, label, end_to_end_us)
    }
}

/// Creates the table with the number and size of the server's files of each kind after the runs; `None` if the server
/// does not report them.
pub(crate) fn disk_table(disk_use: &[DiskUse]) -> Option<Table> {
    let all: u64 = disk_use.iter().map(|one| one.bytes).sum();
    (all > 0).then(|| {
        table! {
            "disk: the server's files after the runs, by kind"; DiskUse { kind, files, bytes } in disk_use;
            "kind" => kind.as_str(), "files" => *files, "MiB" => mebibytes(Some(*bytes)),
            "share %" => 100.0 * *bytes as f64 / all as f64,
        }
    })
}

/// Creates the empty table of costs: the resources that each operation of a load takes.
pub(crate) fn cost_table() -> Table {
    Table::new("cost per operation: whole runs with their warm-up")
}

/// Creates the row of a load in the table of costs, from all runs of the load. If the id of the server's process is not
/// known, the row has no values for the server's CPU time and memory.
pub(crate) fn cost_row<C>(name: &str, runs: &[&Outcome<C>], account: &Account) -> Row {
    let operations = |outcome: &Outcome<C>| (outcome.tally.all_right + outcome.tally.wrong) as f64;
    let all: f64 = runs.iter().map(|outcome| operations(outcome)).sum();
    let peak = runs.iter().filter_map(|outcome| outcome.spent.server?.peak_rss_bytes).max();
    let server = |figure: fn(&thalweg_lab::usage::Cost) -> Option<u64>| {
        median_of(runs, |outcome| {
            let count = outcome.spent.server.as_ref().and_then(figure);
            count.map_or(f64::NAN, |count| count as f64 / operations(outcome))
        })
    };
    cells! {
        "load" => name, "operations" => all as u64,
        "server CPU µs" => median_of(runs, |outcome| outcome.server_cpu(operations(outcome) as u64)),
        "generator CPU µs" => median_of(runs, |outcome| outcome.generator_cpu(operations(outcome) as u64)),
        "fsyncs" => account.fsyncs().map_or(f64::NAN, |fsyncs| fsyncs as f64 / all),
        "written B" => server(|cost| cost.written_bytes), "read B" => server(|cost| cost.read_bytes),
        "switches, waiting" => server(|cost| cost.switches.map(|switches| switches.voluntary)),
        "switches, displaced" => server(|cost| cost.switches.map(|switches| switches.involuntary)),
        "server peak RSS MiB" => mebibytes(peak),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        load::Tally,
        report::Cell,
        usage::{Cost, RunResources, Switches},
    };

    const BEFORE: &str = "thalweg_log_syncs_total 10\n";
    const AFTER: &str = "thalweg_log_syncs_total 30\n";

    fn account() -> Account {
        let (mut account, reads) = (Account::default(), std::cell::Cell::new(0));
        let read = || {
            reads.set(reads.get() + 1);
            Some(Metrics::parse(if reads.get() == 1 { BEFORE } else { AFTER }))
        };
        account.around(read, || Ok(())).unwrap();
        account
    }

    #[test]
    fn a_server_without_metrics_has_no_stages() {
        for account in [Account::default(), account()] {
            assert!(account.durable_writes("put", ("requests", &[]), None).is_none());
            assert!(account.publishes("subjects", 100.0).is_none() && account.queue_share().is_none());
        }
        assert_eq!(account().fsync_seconds(), None);
    }

    #[test]
    fn fsyncs_are_those_of_one_run() {
        let (mut account, reads) = (account(), std::cell::Cell::new(0));
        for fsyncs in [26, 22] {
            let read = || {
                reads.set(reads.get() + 1);
                let now = if reads.get() % 2 == 1 { 30 } else { 30 + fsyncs };
                Some(Metrics::parse(&format!("{SYNC_METRIC} {now}\n")))
            };
            account.around(read, || Ok(())).unwrap();
        }
        assert_eq!((account.fsyncs(), account.fsyncs_per_run()), (Some(68), 22.0), "20, 26 and 22");
        assert!(Account::default().fsyncs_per_run().is_nan());
    }

    #[test]
    fn the_files_of_the_server_are_a_table_by_kind() {
        assert!(disk_table(&[]).is_none());
        let disk_use = [("log", 3, 3 << 20), ("tables", 1, 1 << 20)];
        let disk_use = disk_use.map(|(kind, files, bytes)| DiskUse { kind: kind.to_owned(), files, bytes });
        let table = disk_table(&disk_use).unwrap();
        assert_eq!(table.rows[0][2..], [Cell::Number(3.0), Cell::Number(75.0)]);
    }

    #[test]
    fn costs_are_per_operation_with_those_of_the_warm_up() {
        let mut tally: Tally<()> = Tally::new(1);
        (tally.all_right, tally.right) = (10, 5);
        let switches = Some(Switches { voluntary: 30, involuntary: 5 });
        let cost = Cost {
            cpu_seconds: 1e-4,
            written_bytes: Some(4096),
            peak_rss_bytes: Some(1 << 20),
            switches,
            ..Cost::default()
        };
        let spent = RunResources { server: Some(cost), generator_cpu: 2e-4, ..RunResources::default() };
        let outcome = Outcome::new(tally, 1.0, spent);
        let row = cost_row("put", &[&outcome], &account());
        let value = |name| row.iter().find(|(column, _)| *column == name).unwrap().1.clone();
        assert_eq!((value("operations"), value("fsyncs")), (Cell::Count(10), Cell::Number(2.0)));
        assert_eq!((value("server CPU µs"), value("generator CPU µs")), (Cell::Number(10.0), Cell::Number(20.0)));
        assert_eq!((value("written B"), value("read B")), (Cell::Number(409.6), Cell::Missing(())));
        assert_eq!((value("switches, waiting"), value("switches, displaced")), (Cell::Number(3.0), Cell::Number(0.5)));
    }
}
