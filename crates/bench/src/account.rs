//! The server's own account of the measured runs: the cost of an operation, and the stages of a durable write.
//!
//! Owns: the increase of the server's metrics over the runs ([`Account`]), the table of costs, and the stages as a table and a
//! plot. Does not own: the metrics themselves, which the server counts also without a benchmark.
//!
//! A run's warm-up is part of the account, because the metrics are read before and after the whole run.

use crate::{
    BenchError, Report,
    load::Outcome,
    report::{
        Row, Table, cells, mebibytes,
        plots::{self, Axis, Part},
    },
    server::Metrics,
    stats::{median, median_of},
};

/// Stages of a write that waits for an fsync: the name of each stage at the server, and its name in reports.
const WRITE_STAGES: [(&str, &str); 6] = [
    ("queue", "queue: until a thread takes the command"),
    ("form", "form: commands to log entries"),
    ("write", "write: to the log's file"),
    ("sync", "fsync"),
    ("apply", "apply: to the state"),
    ("answer", "answer: until the client's task is woken"),
];
/// Stages of a publish to subjects: the name of each stage at the server, and its name in reports. The stage `queue`
/// includes the distribution to subscribers.
const PUBLISH_STAGES: [(&str, &str); 3] = [
    ("receive", "receive: decode and check"),
    ("queue", "queue: distribute, until the connection's task takes it"),
    ("send", "send: to the socket"),
];
/// Histogram of the stages of a publish.
const PUBLISH_METRIC: &str = "thalweg_native_publish_stage_duration_seconds";
/// Histogram of the stages of a write.
const STAGE_METRIC: &str = "thalweg_write_stage_duration_seconds";
/// Histogram of the times of the log's fsyncs.
const SYNC_TIME_METRIC: &str = "thalweg_log_sync_duration_seconds";
/// Counter of the fsyncs of the log.
pub(crate) const SYNC_METRIC: &str = "thalweg_log_syncs_total";

/// Increase of a server's metrics over runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Account {
    /// `None` if the server has no metrics, or none that can be reached.
    metrics: Option<Metrics>,
    /// Number of fsyncs of the server's log in each run, in order.
    fsyncs_by_run: Vec<f64>,
}

/// Requests whose time the server measures: the name of the histogram, and the labels to include.
pub(crate) type TimedRequests<'a> = (&'a str, &'a [(&'a str, &'a str)]);

/// Stages of the operations of one load, in order, with their average times.
#[derive(Clone, Debug)]
pub(crate) struct Stages {
    label: String,
    stages: Vec<Stage>,
}

#[derive(Clone, Debug, PartialEq)]
struct Stage {
    name: &'static str,
    average_us: f64,
    /// Upper bound of the bucket with the 99th percentile, which is at most twice too high; `None` for a stage that is a
    /// difference of averages.
    p99_us: Option<f64>,
}

impl Account {
    /// Runs `run` and adds the increase of the server's metrics, which `read` reads before and after it.
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

    /// Returns the number of fsyncs of the server's log.
    pub(crate) fn fsyncs(&self) -> Option<u64> {
        Some(self.metrics.as_ref()?.sum(SYNC_METRIC, &[])? as u64)
    }

    /// Returns the median over the runs of the number of fsyncs in a run with its warm-up; NaN if it is not known.
    pub(crate) fn fsyncs_per_run(&self) -> f64 {
        median(&self.fsyncs_by_run)
    }

    /// Returns the seconds in which the server's log synced, over all runs.
    pub(crate) fn fsync_seconds(&self) -> Option<f64> {
        self.metrics.as_ref()?.sum(&format!("{SYNC_TIME_METRIC}_sum"), &[])
    }

    /// Returns the share of a durable write's time in the server that it spends in the queue; `None` without such writes.
    pub(crate) fn queue_share(&self) -> Option<f64> {
        let metrics = self.metrics.as_ref()?;
        let averages = WRITE_STAGES.map(|(name, words)| stage(metrics, STAGE_METRIC, name, words));
        let averages: Vec<f64> = averages.into_iter().flatten().map(|stage| stage.average_us).collect();
        let all: f64 = averages.iter().sum();
        (averages.len() == WRITE_STAGES.len() && all > 0.0).then(|| averages[0] / all)
    }

    /// Returns the stages of the writes that waited for an fsync; `None` if there were none. `requests` are the requests
    /// with such writes, and `response_us` is their average response time, if the load generator has measured it.
    pub(crate) fn durable_writes(
        &self,
        label: &str,
        requests: TimedRequests<'_>,
        response_us: Option<f64>,
    ) -> Option<Stages> {
        let metrics = self.metrics.as_ref()?;
        let stages = WRITE_STAGES.map(|(name, words)| stage(metrics, STAGE_METRIC, name, words));
        let stages = stages.into_iter().collect::<Option<Vec<_>>>()?;
        let request_us = average_of(metrics, requests);
        let outside = match request_us {
            Some(_) => "outside: network, sockets, client",
            None => "outside: protocol, network, sockets, client",
        };
        let names = ["protocol: the rest of the server's time", outside];
        Some(Stages::new(label, stages, request_us, response_us, names))
    }

    /// Returns the stages of publishes to subjects over the native protocol; `None` if there were none. `end_to_end_us` is
    /// the average time from the moment at which a message was due to its arrival at a subscriber.
    pub(crate) fn publishes(&self, label: &str, end_to_end_us: f64) -> Option<Stages> {
        let metrics = self.metrics.as_ref()?;
        let stages = PUBLISH_STAGES.map(|(name, words)| stage(metrics, PUBLISH_METRIC, name, words));
        // Messages that the server gathers into batches have no stage of their own before they are in a batch.
        let stages: Vec<Stage> = stages.into_iter().flatten().collect();
        let outside = ["", "outside: publisher, network, sockets, subscriber"];
        let all = Stages::new(label, stages, None, Some(end_to_end_us), outside);
        (all.stages.len() > 1).then_some(all)
    }
}

/// Returns a stage whose times a histogram has; `None` without values.
fn stage(metrics: &Metrics, metric: &str, name: &str, words: &'static str) -> Option<Stage> {
    let labels = [("stage", name)];
    let (average, _) = metrics.average(metric, &labels)?;
    let p99_us = metrics.quantile(metric, &labels, 0.99).map(|bound| bound * 1e6);
    Some(Stage { name: words, average_us: average * 1e6, p99_us })
}

/// Returns the average time of requests in microseconds.
fn average_of(metrics: &Metrics, (name, labels): TimedRequests<'_>) -> Option<f64> {
    let all = labels.iter().filter_map(|label| metrics.average(name, &[*label]));
    let (sum, count) = all.fold((0.0, 0.0), |(sum, all), (average, count)| (sum + average * count, all + count));
    (count > 0.0).then(|| sum / count * 1e6)
}

impl Stages {
    /// Adds the times outside the stages: the rest of the server's time for a request, and the rest of the client's
    /// time.
    fn new(
        label: &str,
        mut stages: Vec<Stage>,
        request_us: Option<f64>,
        response_us: Option<f64>,
        [protocol, outside]: [&'static str; 2],
    ) -> Self {
        let inner: f64 = stages.iter().map(|stage| stage.average_us).sum();
        let mut rest =
            |name, average_us: f64| stages.push(Stage { name, average_us: average_us.max(0.0), p99_us: None });
        if let Some(request) = request_us {
            rest(protocol, request - inner);
        }
        if let Some(response) = response_us {
            rest(outside, response - request_us.unwrap_or(inner).max(inner));
        }
        Self { label: label.to_owned(), stages }
    }

    fn table(&self, title: &str) -> Table {
        let all: f64 = self.stages.iter().map(|stage| stage.average_us).sum();
        let mut table = Table::new(format!("{title}: {}", self.label));
        for Stage { name, average_us, p99_us } in &self.stages {
            table.row(cells! {
                "stage" => *name, "average µs" => *average_us, "share %" => 100.0 * average_us / all,
                "p99 µs at most" => *p99_us,
            });
        }
        table
    }
}

/// Adds the stages of several loads to a report, as a table for each and one plot.
pub(crate) fn add_stages(report: &mut Report, title: &str, all: &[Stages]) {
    if all.is_empty() {
        return;
    }
    let bar = |Stages { label, stages }: &Stages| {
        let parts = stages.iter().map(|stage| Part { name: stage.name.to_owned(), value: stage.average_us });
        (label.clone(), parts.collect::<Vec<_>>())
    };
    let bars: Vec<_> = all.iter().map(bar).collect();
    let caption = "Average times, one after the other, from the server's own histograms over the whole runs. Each of \
                   the commands that share an fsync counts with its whole time. The rest of the average response time \
                   is spent outside the server.";
    report.plots.push(plots::stacked("stages", title, caption, &Axis::linear("µs, average"), &bars));
    report.tables.extend(all.iter().map(|stages| stages.table(title)));
}

/// Returns the empty table of costs.
pub(crate) fn cost_table() -> Table {
    Table::new("cost per operation: whole runs with their warm-up")
}

/// Returns a row of the table of costs, of the runs of one load. Figures of the server are missing if its process is not
/// known.
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

    fn after() -> String {
        let mut text = "thalweg_log_syncs_total 30\n".to_owned();
        for (place, (stage, _)) in WRITE_STAGES.iter().enumerate() {
            let micros = [10.0, 1.0, 5.0, 100.0, 2.0, 2.0][place];
            for (name, value) in [("sum", micros * 4e-6), ("count", 4.0)] {
                text += &format!("{STAGE_METRIC}_{name}{{stage=\"{stage}\"}} {value}\n");
            }
            for (bound, count) in [("0.000064", 3), ("0.000128", 4), ("+Inf", 4)] {
                text += &format!("{STAGE_METRIC}_bucket{{stage=\"{stage}\",le=\"{bound}\"}} {count}\n");
            }
        }
        for (operation, micros) in [("kv_put", 150.0), ("kv_get", 5.0)] {
            text += &format!("requests_sum{{operation=\"{operation}\",durability=\"disk\"}} {}\n", micros * 4e-6);
            text += &format!("requests_count{{operation=\"{operation}\",durability=\"disk\"}} 4\n");
        }
        text
    }

    fn account() -> Account {
        let (mut account, reads) = (Account::default(), std::cell::Cell::new(0));
        let read = || {
            reads.set(reads.get() + 1);
            Some(Metrics::parse(if reads.get() == 1 { BEFORE } else { &*after().leak() }))
        };
        account.around(read, || Ok(())).unwrap();
        account
    }

    #[test]
    fn stages_and_the_rest_add_up_to_the_response_time() {
        let stages = account().durable_writes("put", ("requests", &[("operation", "kv_put")]), Some(200.0)).unwrap();
        let times: Vec<f64> = stages.stages.iter().map(|stage| stage.average_us).collect();
        let wanted = [10.0, 1.0, 5.0, 100.0, 2.0, 2.0, 30.0, 50.0];
        assert!(times.iter().zip(wanted).all(|(time, wanted)| (time - wanted).abs() < 1e-6), "{times:?}");
        assert!(stages.stages[3].p99_us.is_some_and(|bound| (bound - 128.0).abs() < 1e-6), "{stages:?}");
        let unknown = account().durable_writes("set", ("none", &[]), Some(100.0)).unwrap();
        assert_eq!(unknown.stages.last().unwrap().average_us, 0.0, "less than the stages: nothing is left");
        assert!(account().publishes("subjects", 100.0).is_none(), "nothing was published");
        assert!(account().queue_share().is_some_and(|share| (share - 10.0 / 120.0).abs() < 1e-6), "10 of 120 µs");
        assert_eq!((account().fsync_seconds(), Account::default().queue_share()), (None, None));
        assert!(Account::default().durable_writes("put", ("requests", &[]), None).is_none());
        let mut report = Report::begin("http", std::path::Path::new("."));
        add_stages(&mut report, "stages of a durable write", &[stages, unknown]);
        assert_eq!((report.plots.len(), report.tables.len()), (1, 2));
        assert!(report.plots[0].svg.contains("fsync"));
        add_stages(&mut report, "none", &[]);
        assert_eq!(report.plots.len(), 1);
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
