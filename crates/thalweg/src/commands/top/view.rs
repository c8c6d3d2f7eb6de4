//! The figures that `top` shows, computed from two successive readings of a server's metrics: rates, latencies, queues,
//! and lags.
//!
//! Owns: the computation, and the JSON format of the view. A figure that cannot be computed is `None`. Examples are a
//! rate without an earlier reading or across a restart of the server, and a metric that the server does not have.

use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;

use super::metrics::{Metrics, Series};

/// Status, metrics and cluster members of a server, as read at one time.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    pub at: Instant,
    pub metrics: Metrics,
    /// Reply of the server to a request for `/v1/status`.
    pub status: Value,
    /// Members of the cluster; `None` if the node runs alone.
    pub members: Option<Vec<Value>>,
}

/// Figures of a node that `top` shows, computed from its last two readings.
#[derive(Clone, Debug, Serialize)]
pub(super) struct View {
    pub node: NodeFigures,
    /// Seconds between the two readings; `None` for the first reading, and for the first one after a restart of the
    /// server.
    pub interval_seconds: Option<f64>,
    pub rates: Vec<Rate>,
    pub latencies: Vec<Latency>,
    pub queues: Vec<Queue>,
    pub storage: Storage,
    pub groups: Vec<Group>,
    pub subscribers: Subscribers,
    pub caches: Vec<Cache>,
    pub cluster: Option<Cluster>,
}

/// Identity, health and connections of the node that `top` shows.
#[derive(Clone, Debug, Serialize)]
pub(super) struct NodeFigures {
    pub id: String,
    pub version: String,
    pub health: String,
    pub uptime_seconds: Option<u64>,
    pub durability: String,
    pub backend: String,
    pub http_connections: Option<f64>,
    pub native_connections: Option<f64>,
    pub resp_connections: Option<f64>,
}

/// A rate: a number of events per second.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Rate {
    pub name: &'static str,
    pub per_second: Option<f64>,
    /// Unit of the events: an empty string for plain events, or `bytes`.
    pub unit: &'static str,
}

/// Latencies of the requests of one protocol at one durability level, or of the log's fsyncs.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Latency {
    pub name: &'static str,
    /// Durability level of the replies; empty for requests without a level, such as reads.
    pub durability: String,
    pub per_second: Option<f64>,
    /// Upper bound of the median latency in seconds: a bound of a histogram bucket. The fields for other quantiles are
    /// such bounds too. `None` if no request was measured.
    pub p50_seconds: Option<f64>,
    pub p99_seconds: Option<f64>,
    pub p999_seconds: Option<f64>,
}

/// Fill level of a queue or of another bounded resource.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Queue {
    pub name: String,
    pub used: f64,
    pub limit: Option<f64>,
    /// Number of requests per second that were rejected because the queue had reached its bound.
    pub shed_per_second: Option<f64>,
    pub unit: &'static str,
}

/// Figures of the node's log and state.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Storage {
    pub disk_free_bytes: Option<f64>,
    pub log_segments: Option<f64>,
    pub log_spare_segments: Option<f64>,
    pub replay_bytes: Option<f64>,
    pub batches_per_sync: Option<f64>,
    pub state_disk_bytes: Option<f64>,
    pub state_memory_bytes: Option<f64>,
    pub state_tables: Option<f64>,
    pub sealed_memtables: Option<f64>,
    pub stalls_per_second: Option<f64>,
    pub compacted_bytes_per_second: Option<f64>,
    pub scrub_damages: Option<f64>,
}

/// Figures of a consumer group.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Group {
    pub stream: String,
    pub group: String,
    pub lag: f64,
    /// Records per second by which the lag grows; negative if it falls.
    pub lag_change_per_second: Option<f64>,
    pub pending: f64,
    pub members: f64,
    pub deliveries_per_second: Option<f64>,
    pub redeliveries_per_second: Option<f64>,
    pub dead_letters: f64,
}

/// Figures of the subscribers that do not keep up with the messages for them.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Subscribers {
    pub subscriptions: Option<f64>,
    /// Number of subscriptions that have missed messages since the start of the server.
    pub slow: Option<f64>,
    pub slow_per_second: Option<f64>,
    pub dropped_per_second: Option<f64>,
    pub disconnected: Option<f64>,
    pub blocked_per_second: Option<f64>,
    pub queued_messages: Option<f64>,
    pub queued_bytes: Option<f64>,
}

/// Figures of a cache.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Cache {
    pub cache: String,
    pub bytes: f64,
    pub max_bytes: f64,
    /// Share of the reads in the interval that found an entry, from 0 to 1; `None` if there were no reads.
    pub hit_ratio: Option<f64>,
    pub evictions_per_second: Option<f64>,
}

/// The cluster as this node sees it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Cluster {
    pub leads: bool,
    pub has_leader: bool,
    pub has_majority: bool,
    pub has_room: bool,
    pub term: Option<f64>,
    pub commit_index: Option<f64>,
    pub applied_index: Option<f64>,
    pub members: Vec<Member>,
}

/// Figures of a member of the cluster.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Member {
    pub name: String,
    pub role: String,
    pub health: String,
    pub leads: bool,
    pub lag_entries: Option<f64>,
    pub lag_bytes: Option<f64>,
    pub behind_millis: Option<f64>,
}

/// Rates that `top` shows: for each its name, its metric, and its unit.
const RATES: [(&str, &str, &str); 12] = [
    ("HTTP requests", "http_requests_total", ""),
    ("native requests", "native_requests_total", ""),
    ("Redis commands", "resp_commands_total", ""),
    ("commands", "commands_total", ""),
    ("entries", "entries_total", ""),
    ("fsyncs", "log_syncs_total", ""),
    ("log", "log_bytes_total", "bytes"),
    ("published", "subject_messages_total", ""),
    ("deliveries", "subject_deliveries_total", ""),
    ("bulk output", "bulk_bytes_total", "bytes"),
    ("native in", "native_received_bytes_total", "bytes"),
    ("native out", "native_sent_bytes_total", "bytes"),
];

/// Two readings of a server, from which rates are computed. The earlier one may be missing.
struct Pair<'r> {
    before: Option<&'r Reading>,
    now: &'r Reading,
    elapsed: Option<f64>,
}

impl Pair<'_> {
    fn gauge(&self, name: &str) -> Option<f64> {
        self.now.metrics.sum(name)
    }

    /// Returns the change of a counter per second, summed over the series for which `chosen` returns true.
    fn rate_where(&self, name: &str, chosen: impl Fn(&Series) -> bool) -> Option<f64> {
        let now = self.now.metrics.sum_where(name, &chosen)?;
        // If a series was missing in the earlier reading, it appeared with its first event. So its counter was zero
        // then.
        let then = self.before?.metrics.sum_where(name, &chosen).unwrap_or(0.0);
        (now >= then).then_some((now - then) / self.elapsed?)
    }

    fn rate(&self, name: &str) -> Option<f64> {
        self.rate_where(name, |_| true)
    }

    fn latency(&self, name: &'static str, metric: &str, durability: Option<&str>) -> Latency {
        let chosen = |series: &Series| durability.is_none_or(|level| series.label("durability") == level);
        let all = self.now.metrics.histogram(metric, chosen);
        let new = self.before.map(|before| all.since(&before.metrics.histogram(metric, chosen)));
        let quantile = |part| new.as_ref().and_then(|new| new.quantile(part));
        Latency {
            name,
            durability: durability.unwrap_or_default().to_owned(),
            per_second: new.as_ref().zip(self.elapsed).map(|(new, elapsed)| new.count() / elapsed),
            p50_seconds: quantile(0.5),
            p99_seconds: quantile(0.99),
            p999_seconds: quantile(0.999),
        }
    }
}

impl View {
    /// Computes the view from the newest reading and the reading before it.
    pub(super) fn of(before: Option<&Reading>, now: &Reading) -> Self {
        let before = before.filter(|before| is_same_process(before, now));
        let elapsed = before.map(|before| now.at.saturating_duration_since(before.at));
        let elapsed = elapsed.filter(|elapsed| *elapsed > Duration::ZERO).map(|elapsed| elapsed.as_secs_f64());
        let pair = Pair { before, now, elapsed };
        Self {
            node: node(&pair),
            interval_seconds: elapsed,
            rates: RATES.map(|(name, metric, unit)| Rate { name, per_second: pair.rate(metric), unit }).into(),
            latencies: latencies(&pair),
            queues: queues(&pair),
            storage: storage(&pair),
            groups: groups(&pair),
            subscribers: subscribers(&pair),
            caches: caches(&pair),
            cluster: cluster(&pair),
        }
    }
}

/// Returns true if both readings come from the same server process. The counters of a restarted server, or of another
/// server at the same address, begin at zero. These counters may already be higher than those in the earlier reading.
fn is_same_process(before: &Reading, now: &Reading) -> bool {
    let [was_up, is_up] = [before, now].map(|reading| reading.status["uptime_seconds"].as_u64());
    before.status["node"] == now.status["node"] && was_up.zip(is_up).is_none_or(|(was_up, is_up)| is_up >= was_up)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn node(pair: &Pair<'_>) -> NodeFigures {
    let status = &pair.now.status;
    NodeFigures {
        id: text(&status["node"]),
        version: text(&status["version"]),
        health: text(&status["health"]["status"]),
        uptime_seconds: status["uptime_seconds"].as_u64(),
        durability: text(&status["durability"]),
        backend: text(&status["backend"]),
        http_connections: status["http"]["connections"].as_f64(),
        native_connections: pair.gauge("native_connections"),
        resp_connections: pair.gauge("resp_connections"),
    }
}

/// Returns the durability levels for which a histogram has series, in the order in which the server lists them.
fn levels(metrics: &Metrics, metric: &str) -> Vec<String> {
    let mut levels: Vec<String> = Vec::new();
    for series in metrics.series(&format!("{metric}_count")) {
        let level = series.label("durability");
        if !levels.iter().any(|known| known == level) {
            levels.push(level.to_owned());
        }
    }
    levels
}

fn latencies(pair: &Pair<'_>) -> Vec<Latency> {
    let mut all = Vec::new();
    for (name, metric) in [("HTTP", "http_request_duration_seconds"), ("native", "native_request_duration_seconds")] {
        let levels = levels(&pair.now.metrics, metric);
        all.extend(levels.iter().map(|level| pair.latency(name, metric, Some(level))));
    }
    if !pair.now.metrics.series("resp_turn_duration_seconds_count").is_empty() {
        all.push(pair.latency("Redis", "resp_turn_duration_seconds", None));
    }
    all.push(pair.latency("fsync", "log_sync_duration_seconds", None));
    all
}

fn queues(pair: &Pair<'_>) -> Vec<Queue> {
    let mut queues = Vec::new();
    for (name, metric, unit) in [
        ("commands for the writer", "queue_commands", ""),
        ("bytes for the writer", "queue_bytes", "bytes"),
        ("callers that wait for the log", "log_waiting_writers", ""),
    ] {
        if let Some(used) = pair.gauge(metric) {
            queues.push(Queue { name: name.to_owned(), used, limit: None, shed_per_second: None, unit });
        }
    }
    for series in pair.now.metrics.series("http_in_use") {
        let bound = series.label("bound");
        queues.push(Queue {
            name: bound.to_owned(),
            used: series.value,
            limit: pair.now.metrics.of("http_limit", "bound", bound),
            shed_per_second: pair.rate_where("http_shed_total", |shed| shed.label("bound") == bound),
            unit: if bound.contains("bytes") { "bytes" } else { "" },
        });
    }
    queues
}

fn storage(pair: &Pair<'_>) -> Storage {
    let batches = |reading: &Reading| reading.metrics.histogram("log_sync_batches", |_| true);
    let now = batches(pair.now);
    Storage {
        disk_free_bytes: pair.gauge("disk_free_bytes"),
        log_segments: pair.gauge("log_segments"),
        log_spare_segments: pair.gauge("log_spare_segments"),
        replay_bytes: pair.gauge("replay_bytes"),
        batches_per_sync: pair.before.and_then(|before| now.since(&batches(before)).mean()),
        state_disk_bytes: pair.gauge("state_disk_bytes"),
        state_memory_bytes: pair.gauge("state_memory_bytes"),
        state_tables: pair.gauge("state_tables"),
        sealed_memtables: pair.gauge("state_sealed_memtables"),
        stalls_per_second: pair.rate("state_stalls_total"),
        compacted_bytes_per_second: pair.rate("state_compacted_bytes_total"),
        scrub_damages: pair.gauge("scrub_damages_total"),
    }
}

fn groups(pair: &Pair<'_>) -> Vec<Group> {
    let metrics = &pair.now.metrics;
    let mut groups: Vec<Group> = Vec::new();
    for lag in metrics.series("group_lag") {
        let (stream, group) = (lag.label("stream"), lag.label("group"));
        let is_it = |series: &Series| series.label("stream") == stream && series.label("group") == group;
        let value = |name: &str| metrics.sum_where(name, is_it).unwrap_or(0.0);
        let earlier = pair.before.and_then(|before| before.metrics.series("group_lag").iter().find(|lag| is_it(lag)));
        groups.push(Group {
            stream: stream.to_owned(),
            group: group.to_owned(),
            lag: lag.value,
            lag_change_per_second: earlier
                .zip(pair.elapsed)
                .map(|(earlier, elapsed)| (lag.value - earlier.value) / elapsed),
            pending: value("group_pending"),
            members: value("group_members"),
            deliveries_per_second: pair.rate_where("group_deliveries_total", is_it),
            redeliveries_per_second: pair.rate_where("group_redeliveries_total", is_it),
            dead_letters: value("group_dead_letters_total"),
        });
    }
    groups.sort_by(|a, b| b.lag.total_cmp(&a.lag));
    groups
}

fn subscribers(pair: &Pair<'_>) -> Subscribers {
    Subscribers {
        subscriptions: pair.gauge("subject_subscriptions"),
        slow: pair.gauge("subject_slow_subscriptions_total"),
        slow_per_second: pair.rate("subject_slow_subscriptions_total"),
        dropped_per_second: pair.rate("subject_dropped_messages_total"),
        disconnected: pair.gauge("subject_disconnected_links_total"),
        blocked_per_second: pair.rate("subject_blocked_total"),
        queued_messages: pair.gauge("subject_queue_messages"),
        queued_bytes: pair.gauge("subject_queue_bytes"),
    }
}

fn caches(pair: &Pair<'_>) -> Vec<Cache> {
    let metrics = &pair.now.metrics;
    let of = |bytes: &Series| {
        let cache = bytes.label("cache");
        let is_it = |series: &Series| series.label("cache") == cache;
        let (hits, misses) = (pair.rate_where("cache_hits_total", is_it), pair.rate_where("cache_misses_total", is_it));
        Cache {
            cache: cache.to_owned(),
            bytes: bytes.value,
            max_bytes: metrics.sum_where("cache_max_bytes", is_it).unwrap_or(0.0),
            hit_ratio: hits
                .zip(misses)
                .filter(|(hits, misses)| hits + misses > 0.0)
                .map(|(hits, misses)| hits / (hits + misses)),
            evictions_per_second: pair.rate_where("cache_evictions_total", is_it),
        }
    };
    metrics.series("cache_bytes").iter().map(of).collect()
}

fn cluster(pair: &Pair<'_>) -> Option<Cluster> {
    let members = pair.now.members.as_ref()?;
    let is_set = |name: &str| pair.gauge(name) == Some(1.0);
    let member = |member: &Value| {
        let name = text(&member["name"]);
        let figure = |metric: &str| pair.now.metrics.of(metric, "node", &name);
        Member {
            role: text(&member["role"]),
            health: text(&member["health"]),
            leads: member["leads"] == true,
            lag_entries: figure("cluster_lag_entries"),
            lag_bytes: figure("cluster_lag_bytes"),
            behind_millis: figure("cluster_behind_millis"),
            name,
        }
    };
    Some(Cluster {
        leads: is_set("cluster_leads"),
        has_leader: is_set("cluster_has_leader"),
        has_majority: is_set("cluster_majority"),
        has_room: is_set("cluster_room"),
        term: pair.gauge("cluster_term"),
        commit_index: pair.gauge("cluster_commit_index"),
        applied_index: pair.gauge("cluster_applied_index"),
        members: members.iter().map(member).collect(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn reading(at: Instant, text: &str) -> Reading {
        Reading {
            at,
            metrics: Metrics::parse(text),
            status: json!({ "node": "01", "health": { "status": "good" } }),
            members: None,
        }
    }

    fn after(seconds: u64, first: &str, second: &str) -> View {
        let at = Instant::now();
        let (before, now) = (reading(at, first), reading(at + Duration::from_secs(seconds), second));
        View::of(Some(&before), &now)
    }

    fn rate(view: &View, name: &str) -> Option<f64> {
        view.rates.iter().find(|rate| rate.name == name).unwrap().per_second
    }

    #[test]
    fn rates_are_changes_per_second() {
        let first = "thalweg_commands_total 100\nthalweg_log_syncs_total 50\n";
        let second = "thalweg_commands_total 400\nthalweg_log_syncs_total 20\nthalweg_http_requests_total{a=\"b\"} 6\n";
        let view = after(2, first, second);
        assert_eq!(rate(&view, "commands"), Some(150.0));
        assert_eq!(rate(&view, "fsyncs"), None, "the server was restarted");
        assert_eq!(rate(&view, "HTTP requests"), Some(3.0), "a counter that appeared");
        assert_eq!(rate(&view, "Redis commands"), None, "a counter that does not exist");
        let first = View::of(None, &reading(Instant::now(), second));
        assert_eq!((rate(&first, "commands"), first.interval_seconds), (None, None));
    }

    #[test]
    fn no_rate_spans_two_processes_even_if_a_counter_has_passed_its_former_value() {
        let at = Instant::now();
        let with = |seconds: u64, node: &str, uptime: u64, commands: u64| {
            let text = format!("thalweg_commands_total {commands}\n");
            let status = json!({ "node": node, "uptime_seconds": uptime });
            Reading { status, ..reading(at + Duration::from_secs(seconds), &text) }
        };
        let before = with(0, "01", 500, 100);
        let commands = |now: &Reading| {
            let view = View::of(Some(&before), now);
            (rate(&view, "commands"), view.interval_seconds)
        };
        assert_eq!(commands(&with(1, "01", 501, 400)), (Some(300.0), Some(1.0)));
        assert_eq!(commands(&with(1, "01", 0, 400)), (None, None), "the server was restarted");
        assert_eq!(commands(&with(1, "02", 501, 400)), (None, None), "another server has the address");
    }

    #[test]
    fn latencies_are_those_of_the_interval_by_protocol_and_level() {
        let text = |fast: u32, slow: u32| {
            let all = fast + slow;
            format!(
                "thalweg_http_request_duration_seconds_count{{operation=\"kv_put\",durability=\"disk\"}} {all}\n\
                 thalweg_http_request_duration_seconds_bucket{{le=\"0.001\",operation=\"kv_put\",durability=\"disk\"}} {fast}\n\
                 thalweg_http_request_duration_seconds_bucket{{le=\"0.1\",operation=\"kv_put\",durability=\"disk\"}} {all}\n\
                 thalweg_http_request_duration_seconds_bucket{{le=\"+Inf\",operation=\"kv_put\",durability=\"disk\"}} {all}\n"
            )
        };
        let view = after(1, &text(0, 1000), &text(99, 1001));
        let http = &view.latencies[0];
        assert_eq!((http.name, &*http.durability, http.per_second), ("HTTP", "disk", Some(100.0)));
        assert_eq!((http.p50_seconds, http.p99_seconds, http.p999_seconds), (Some(0.001), Some(0.001), Some(0.1)));
        assert_eq!(view.latencies[1].name, "fsync");
    }

    #[test]
    fn groups_are_sorted_by_lag_and_bounds_have_limits() {
        let text = |lag: u32| {
            format!(
                "thalweg_group_lag{{stream=\"s\",group=\"a\"}} 1\nthalweg_group_lag{{stream=\"s\",group=\"b\"}} {lag}\n\
                 thalweg_group_members{{stream=\"s\",group=\"b\"}} 3\nthalweg_http_in_use{{bound=\"requests\"}} 5\n\
                 thalweg_http_limit{{bound=\"requests\"}} 4096\nthalweg_http_shed_total{{bound=\"requests\"}} {lag}\n"
            )
        };
        let view = after(2, &text(100), &text(50));
        let first = &view.groups[0];
        assert_eq!(
            (&*first.group, first.lag, first.lag_change_per_second, first.members),
            ("b", 50.0, Some(-25.0), 3.0)
        );
        let bound = &view.queues[0];
        assert_eq!((bound.used, bound.limit, bound.shed_per_second), (5.0, Some(4096.0), None));
    }

    #[test]
    fn members_of_a_cluster_have_their_lag() {
        let mut now = reading(Instant::now(), "thalweg_cluster_leads 1\nthalweg_cluster_lag_bytes{node=\"b\"} 9\n");
        assert!(View::of(None, &now).cluster.is_none());
        now.members = Some(vec![json!({ "name": "b", "role": "voter", "health": "alive" }), json!(null)]);
        let cluster = View::of(None, &now).cluster.unwrap();
        assert!(cluster.leads && !cluster.has_leader);
        assert_eq!((cluster.members[0].lag_bytes, cluster.members[1].lag_bytes), (Some(9.0), None));
    }
}
