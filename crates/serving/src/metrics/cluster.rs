//! Metrics of the cluster, as this node sees it.

use std::{fmt, sync::Arc};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
};

use thalweg_broker::NodeStats;

use super::encode::{counters, gauge, gauges};
use crate::cluster::{ClusterHandle, ElapsedMillis, LinkTraffic, MemberHealth, MemberReport, MemberRole};

/// Function that takes the value of a metric from the report of one member; `None` if the value is unknown.
type OfMember = fn(&MemberReport) -> Option<i64>;

/// Function that takes the value of a metric from the statistics of the messages exchanged with one other node.
type OfNode = fn(&NodeStats) -> u64;

/// Counters of the subject messages exchanged with each other node: name, help text and value of each metric.
const SUBJECT_COUNTERS: [(&str, &str, OfNode); 3] = [
    ("cluster_subject_sent_messages", "Messages to subjects sent to a node", |stats| stats.sent),
    ("cluster_subject_received_messages", "Messages to subjects received from a node", |stats| stats.received),
    (
        "cluster_subject_dropped_messages",
        "Messages to subjects that a node missed: its queue was full, or there was no connection",
        |stats| stats.lost,
    ),
];

/// Gauges of the subject messages exchanged with each other node: name, help text and value of each metric.
const SUBJECT_GAUGES: [(&str, &str, OfNode); 2] = [
    ("cluster_subject_filters", "Patterns and queue groups that a node has announced", |stats| stats.filters as u64),
    ("cluster_subject_queue_bytes", "Bytes of messages to subjects that wait for a node", |stats| stats.queued_bytes),
];

/// Function that takes the value of a metric from the traffic with one other node.
type OfLink = fn(&LinkTraffic) -> u64;

/// Counters of the bytes exchanged with each other node: name, help text and value of each metric.
const LINK_COUNTERS: [(&str, &str, OfLink); 2] = [
    ("cluster_link_sent_bytes", "Bytes sent to a node, by channel; heartbeats use control", |link| link.sent_bytes),
    ("cluster_link_received_bytes", "Bytes received from a node, by channel", |link| link.received_bytes),
];

/// Collector of the metrics of the cluster.
#[derive(Debug)]
pub struct ClusterCollector(pub Arc<dyn ClusterHandle>);

fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

impl Collector for ClusterCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (report, to) = (self.0.report(), &mut encoder);
        gauge(to, "cluster_leads", "1 if this node leads", u64::from(report.leader == Some(report.node)))?;
        gauge(
            to,
            "cluster_has_leader",
            "1 if this node knows a leader that is not down",
            u64::from(report.has_leader()),
        )?;
        gauge(to, "cluster_term", "Raft term", report.term.0)?;
        gauge(to, "cluster_commit_index", "Last index that a majority has", report.commit_index.0)?;
        gauge(to, "cluster_applied_index", "Last index that this node has applied", report.applied_index.0)?;
        gauge(to, "cluster_majority", "1 if a majority of the voters is not down", u64::from(report.has_majority()))?;
        let mut members = Vec::new();
        for role in [MemberRole::Voter, MemberRole::Learner] {
            for health in [MemberHealth::Alive, MemberHealth::Suspect, MemberHealth::Down] {
                let is_counted = |member: &&MemberReport| member.role == role && member.health == health;
                let count = report.members.iter().filter(is_counted).count() as u64;
                members.push(([("role", role.name()), ("health", health.name())], count));
            }
        }
        gauges(to, "cluster_members", "Members", members)?;
        gauge(
            to,
            "cluster_room",
            "0 if so many voters' disks are full that the leader refuses new data",
            u64::from(report.has_room()),
        )?;
        let help = "1 if this node has stopped serving because no majority of the members has equal states";
        gauge(to, "cluster_states_undecided", help, u64::from(report.undecided_after.is_some()))?;
        if let Some(ElapsedMillis(millis)) = report.time_behind {
            let help = "Time by which the time of the data is behind the wall clocks of a majority, on the leader";
            gauge(to, "cluster_time_behind_millis", help, millis)?;
        }
        let of_members: [(&str, &str, OfMember); 5] = [
            ("cluster_lag_entries", "Entries that a replica lacks", |member| member.lag.map(|lag| number(lag.entries))),
            ("cluster_lag_bytes", "Bytes of the entries that a replica lacks", |member| {
                member.lag.map(|lag| number(lag.bytes))
            }),
            ("cluster_behind_millis", "Time since a replica was up to date", |member| {
                member.behind.map(|ElapsedMillis(millis)| number(millis))
            }),
            ("cluster_disk_full", "1 if a member's disk is too full for new data", |member| {
                Some(member.is_full.into())
            }),
            ("cluster_clock_ahead_millis", "Time by which a member's wall clock is ahead of this node's", |member| {
                member.clock_ahead_millis
            }),
        ];
        for (name, help, value) in of_members {
            let mut family = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for member in &report.members {
                let Some(value) = value(member) else { continue };
                let name = report.shown_name(member.node);
                ConstGauge::new(value).encode(family.encode_family(&vec![("node", name.as_str())])?)?;
            }
        }
        let name = |node| report.shown_name(node);
        let traffic: Vec<_> = self.0.link_traffic().into_iter().map(|traffic| (name(traffic.node), traffic)).collect();
        for (metric, help, figure) in LINK_COUNTERS.into_iter().filter(|_| !traffic.is_empty()) {
            let links = traffic
                .iter()
                .map(|(name, traffic)| ([("node", name.as_str()), ("channel", traffic.channel)], figure(traffic)));
            counters(to, metric, help, links)?;
        }
        let stats = self.0.subject_stats();
        if stats.is_empty() {
            return Ok(());
        }
        let named: Vec<_> = stats.into_iter().map(|(node, stats)| (name(node), stats)).collect();
        let nodes = |figure: OfNode| named.iter().map(move |(name, stats)| ([("node", name.as_str())], figure(stats)));
        for (metric, help, figure) in SUBJECT_COUNTERS {
            counters(to, metric, help, nodes(figure))?;
        }
        for (metric, help, figure) in SUBJECT_GAUGES {
            gauges(to, metric, help, nodes(figure))?;
        }
        Ok(())
    }
}
