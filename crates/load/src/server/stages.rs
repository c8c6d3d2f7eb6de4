//! Divides the average time of an operation into stages, such as the queue and the fsync, from the histograms of the
//! server. It does so for durable writes on a single node, for replicated writes, and for publishes.
//!
//! Owns: the names of the stages in the metrics and in reports, the times outside the stages, the table and the plot.
//! Does not own: the metrics themselves ([`Metrics`]), which the server always counts.

use thalweg_lab::Report;

use super::metrics::Metrics;
use crate::report::{
    Table, cells,
    plots::{self, Axis, Part},
};

/// Stages of a write on a single node that waits for an fsync. Each has its name in the metrics and its name in
/// reports.
const WRITE_STAGES: [(&str, &str); 6] = [
    ("queue", "queue: until a thread takes the command"),
    ("form", "form: commands to log entries"),
    ("write", "write: to the log's file"),
    ("sync", "fsync"),
    ("apply", "apply: to the state"),
    ("answer", "answer: until the client's task is woken"),
];
/// Stages of a replicated write on the leader, one after the other. Each has its name in the metrics and in reports.
const REPLICATION_STAGES: [(&str, &str); 6] = [
    ("queue", "queue: until consensus takes the command"),
    ("propose", "propose: until the write begins"),
    ("write", "write: to the leader's log file"),
    ("commit", "commit: until a majority has it on disk"),
    ("apply", "apply: to the leader's state"),
    ("answer", "answer: until the client's task is woken"),
];
/// Stages that overlap during the commit of a replicated write. Each has its name in the metrics and in reports.
const COMMIT_PARTS: [(&str, &str); 5] = [
    ("sync", "in the commit, of an append: fsync of the leader"),
    ("send", "in the commit, of an append: until a follower's connection has it"),
    ("acknowledge", "in the commit, of an append: to a follower and back"),
    ("follower_write", "in the way to a follower and back: its write"),
    ("follower_sync", "in the way to a follower and back: its fsync"),
];
/// Stages of a publish to subjects, with their names in the metrics and in reports. The stage `queue` includes the
/// distribution to subscribers.
const PUBLISH_STAGES: [(&str, &str); 3] = [
    ("receive", "receive: decode and check"),
    ("queue", "queue: distribute, until the connection's task takes it"),
    ("send", "send: to the socket"),
];
/// Histogram of the stages of a publish.
const PUBLISH_METRIC: &str = "thalweg_native_publish_stage_duration_seconds";
/// Histogram of the stages of a write on a single node.
const WRITE_METRIC: &str = "thalweg_write_stage_duration_seconds";
/// Histogram of the stages of a replicated write.
const REPLICATION_METRIC: &str = "thalweg_replication_stage_duration_seconds";

/// Requests whose time the server measures: the name of the histogram, and the labels of the lines to include.
pub type TimedRequests<'a> = (&'a str, &'a [(&'a str, &'a str)]);

/// Stages of the operations of one load, in order, with their average times.
#[derive(Clone, Debug)]
pub struct Stages {
    label: String,
    stages: Vec<Stage>,
}

#[derive(Clone, Debug, PartialEq)]
struct Stage {
    name: &'static str,
    average_us: f64,
    /// Upper bound of the histogram bucket with the 99th percentile, in microseconds; at most twice the true value.
    /// `None` for a stage that is computed as a difference of averages.
    p99_us: Option<f64>,
    /// True if this stage is a part of another stage of the same operation. The other stage's time includes it.
    is_part: bool,
}

impl Stages {
    /// Returns the stages of the writes that waited for an fsync or were replicated; `None` if there were none.
    /// `requests` are the requests with such writes. `response_us` is their average response time in microseconds;
    /// `None` if the load generator has not measured it.
    pub fn of_durable_writes(
        metrics: &Metrics,
        label: &str,
        requests: TimedRequests<'_>,
        response_us: Option<f64>,
    ) -> Option<Self> {
        let (stages, is_replicated) = write_stages(metrics)?;
        let label = if is_replicated { format!("{label}, replicated") } else { label.to_owned() };
        let request_us = average_of(metrics, requests);
        let outside = match request_us {
            Some(_) => "outside: network, sockets, client",
            None => "outside: protocol, network, sockets, client",
        };
        let names = ["protocol: the rest of the server's time", outside];
        Some(Self::new(label, stages, request_us, response_us, names))
    }

    /// Returns the stages of publishes to subjects over the native protocol; `None` if there were none. `end_to_end_us`
    /// is the average time in microseconds from the moment at which a message was due to its arrival at a subscriber.
    pub fn of_publishes(metrics: &Metrics, label: &str, end_to_end_us: f64) -> Option<Self> {
        // The time before the server puts a message into a batch is in no stage.
        let stages: Vec<Stage> = found(metrics, PUBLISH_METRIC, &PUBLISH_STAGES).collect();
        let outside = ["", "outside: publisher, network, sockets, subscriber"];
        let all = Self::new(label.to_owned(), stages, None, Some(end_to_end_us), outside);
        (all.stages.len() > 1).then_some(all)
    }

    /// Returns the share of a durable write's time in the server that the write spends in the queue, from 0 to 1;
    /// `None` without durable writes.
    pub fn queue_share(metrics: &Metrics) -> Option<f64> {
        let (stages, _) = write_stages(metrics)?;
        let all: f64 = stages.iter().filter(|stage| !stage.is_part).map(|stage| stage.average_us).sum();
        (all > 0.0).then(|| stages[0].average_us / all)
    }

    /// Creates the stages of a load. Adds up to two further stages for time that no stage covers: the rest of the
    /// server's time for a request (`request_us`), and the rest of the client's response time (`response_us`).
    fn new(
        label: String,
        mut stages: Vec<Stage>,
        request_us: Option<f64>,
        response_us: Option<f64>,
        [protocol, outside]: [&'static str; 2],
    ) -> Self {
        let inner: f64 = stages.iter().filter(|stage| !stage.is_part).map(|stage| stage.average_us).sum();
        let mut rest = |name, average_us: f64| {
            stages.push(Stage { name, average_us: average_us.max(0.0), p99_us: None, is_part: false });
        };
        if let Some(request) = request_us {
            rest(protocol, request - inner);
        }
        if let Some(response) = response_us {
            rest(outside, response - request_us.unwrap_or(inner).max(inner));
        }
        Self { label, stages }
    }

    /// Returns the stages as a table. Each stage has its share of the whole response time. A part of a stage has no
    /// share.
    pub fn table(&self, title: &str) -> Table {
        let all: f64 = self.in_sequence().map(|stage| stage.average_us).sum();
        let mut table = Table::new(format!("{title}: {}", self.label));
        for Stage { name, average_us, p99_us, is_part } in &self.stages {
            table.row(cells! {
                "stage" => *name, "average µs" => *average_us,
                "share %" => (!is_part).then_some(100.0 * average_us / all), "p99 µs at most" => *p99_us,
            });
        }
        table
    }

    fn in_sequence(&self) -> impl Iterator<Item = &Stage> {
        self.stages.iter().filter(|stage| !stage.is_part)
    }
}

/// Finds the stages of durable writes in the metrics. Returns those of writes on a single node, with the flag false. If
/// the metrics do not have all of these, returns those of replicated writes and of the parts of their commit, with the
/// flag true. `None` if the metrics have neither.
fn write_stages(metrics: &Metrics) -> Option<(Vec<Stage>, bool)> {
    let alone: Vec<Stage> = found(metrics, WRITE_METRIC, &WRITE_STAGES).collect();
    if alone.len() == WRITE_STAGES.len() {
        return Some((alone, false));
    }
    let mut stages: Vec<Stage> = found(metrics, REPLICATION_METRIC, &REPLICATION_STAGES).collect();
    if stages.len() < REPLICATION_STAGES.len() {
        return None;
    }
    let parts = found(metrics, REPLICATION_METRIC, &COMMIT_PARTS).map(|stage| Stage { is_part: true, ..stage });
    let behind_commit = 1 + stages.iter().position(|stage| stage.name.starts_with("commit")).unwrap_or(0);
    stages.splice(behind_commit..behind_commit, parts.collect::<Vec<_>>());
    Some((stages, true))
}

/// Returns those of the stages `names` for which the histogram `metric` has values, with their average times.
fn found<'a>(
    metrics: &'a Metrics,
    metric: &'a str,
    names: &'a [(&'static str, &'static str)],
) -> impl Iterator<Item = Stage> + 'a {
    names.iter().filter_map(move |(stage, name)| {
        let labels = [("stage", *stage)];
        let (average, _) = metrics.average(metric, &labels)?;
        let p99_us = metrics.quantile(metric, &labels, 0.99).map(|bound| bound * 1e6);
        Some(Stage { name, average_us: average * 1e6, p99_us, is_part: false })
    })
}

/// Returns the average time of requests in microseconds.
fn average_of(metrics: &Metrics, (name, labels): TimedRequests<'_>) -> Option<f64> {
    let all = labels.iter().filter_map(|label| metrics.average(name, &[*label]));
    let (sum, count) = all.fold((0.0, 0.0), |(sum, all), (average, count)| (sum + average * count, all + count));
    (count > 0.0).then(|| sum / count * 1e6)
}

/// Adds the stages of several loads to a report: a table for each load, and one plot.
pub fn add_stages(report: &mut Report, title: &str, all: &[Stages]) {
    if all.is_empty() {
        return;
    }
    let bar = |stages: &Stages| {
        let parts = stages.in_sequence().map(|stage| Part { name: stage.name.to_owned(), value: stage.average_us });
        (stages.label.clone(), parts.collect::<Vec<_>>())
    };
    let bars: Vec<_> = all.iter().map(bar).collect();
    let caption = "Average times, one after the other, from the server's own histograms over the whole runs. Each of \
                   the commands that share an fsync counts with its whole time. The rest of the average response time \
                   is spent outside the server.";
    report.plots.push(plots::stacked("stages", title, caption, &Axis::linear("µs, average"), &bars));
    report.tables.extend(all.iter().map(|stages| stages.table(title)));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the text of a histogram with four values of `micros` microseconds for a stage.
    fn histogram(metric: &str, stage: &str, micros: f64) -> String {
        let mut text = String::new();
        for (name, value) in [("sum", micros * 4e-6), ("count", 4.0)] {
            text += &format!("{metric}_{name}{{stage=\"{stage}\"}} {value}\n");
        }
        for (bound, count) in [("0.000064", 3), ("0.000128", 4), ("+Inf", 4)] {
            text += &format!("{metric}_bucket{{stage=\"{stage}\",le=\"{bound}\"}} {count}\n");
        }
        text
    }

    fn requests() -> String {
        let mut text = String::new();
        for (operation, micros) in [("kv_put", 150.0), ("kv_get", 5.0)] {
            text += &format!("requests_sum{{operation=\"{operation}\",durability=\"disk\"}} {}\n", micros * 4e-6);
            text += &format!("requests_count{{operation=\"{operation}\",durability=\"disk\"}} 4\n");
        }
        text
    }

    const MICROS: [f64; 6] = [10.0, 1.0, 5.0, 100.0, 2.0, 2.0];

    fn metrics(metric: &str, stages: &[(&str, &str); 6]) -> Metrics {
        let text: String =
            stages.iter().zip(MICROS).map(|((stage, _), micros)| histogram(metric, stage, micros)).collect();
        Metrics::parse(&(text + &requests()))
    }

    fn times(stages: &Stages) -> Vec<f64> {
        stages.stages.iter().map(|stage| stage.average_us.round()).collect()
    }

    const PUTS: TimedRequests<'_> = ("requests", &[("operation", "kv_put")]);

    #[test]
    fn stages_and_the_rest_add_up_to_the_response_time() {
        let metrics = metrics(WRITE_METRIC, &WRITE_STAGES);
        let stages = Stages::of_durable_writes(&metrics, "put", PUTS, Some(200.0)).unwrap();
        assert_eq!(times(&stages), [10.0, 1.0, 5.0, 100.0, 2.0, 2.0, 30.0, 50.0]);
        assert!(stages.stages[3].p99_us.is_some_and(|bound| (bound - 128.0).abs() < 1e-6), "{stages:?}");
        let unknown = Stages::of_durable_writes(&metrics, "set", ("none", &[]), Some(100.0)).unwrap();
        assert_eq!(unknown.stages.last().unwrap().average_us, 0.0, "less than the stages: nothing is left");
        assert!(Stages::of_publishes(&metrics, "subjects", 100.0).is_none(), "nothing was published");
        assert!(Stages::queue_share(&metrics).is_some_and(|share| (share - 10.0 / 120.0).abs() < 1e-6), "10 of 120 µs");
        assert!(Stages::of_durable_writes(&Metrics::default(), "put", PUTS, None).is_none());
        let mut report = Report::begin("http", std::path::Path::new("."));
        add_stages(&mut report, "stages of a durable write", &[stages, unknown]);
        assert_eq!((report.plots.len(), report.tables.len()), (1, 2));
        assert!(report.plots[0].svg.contains("fsync"));
        add_stages(&mut report, "none", &[]);
        assert_eq!(report.plots.len(), 1);
    }

    #[test]
    fn parts_of_the_commit_of_a_replicated_write_have_rows_but_no_shares() {
        let mut metrics = metrics(REPLICATION_METRIC, &REPLICATION_STAGES);
        let parts = histogram(REPLICATION_METRIC, "sync", 90.0) + &histogram(REPLICATION_METRIC, "follower_sync", 70.0);
        metrics.add_increase(&Metrics::default(), &Metrics::parse(&parts));
        let stages = Stages::of_durable_writes(&metrics, "put", PUTS, Some(200.0)).unwrap();
        assert_eq!(times(&stages), [10.0, 1.0, 5.0, 100.0, 90.0, 70.0, 2.0, 2.0, 30.0, 50.0]);
        assert!(Stages::queue_share(&metrics).is_some_and(|share| (share - 10.0 / 120.0).abs() < 1e-6), "10 of 120 µs");
        let table = stages.table("stages");
        assert_eq!(table.title, "stages: put, replicated");
        let shares: Vec<_> = table.rows.iter().map(|row| row[2].clone()).collect();
        let missing = crate::report::Cell::Missing(());
        assert_eq!((&shares[4], &shares[5]), (&missing, &missing));
        let is_half = |share: f64| (share - 50.0).abs() < 1e-6;
        assert!(matches!(shares[3], crate::report::Cell::Number(share) if is_half(share)), "100 of 200 µs: {shares:?}");
    }
}
