//! The diagnosis of a cluster: problems and weaknesses, each with advice on the next step.
//!
//! Owns: the rules, which are a pure function of the nodes' answers. Does not own: the requests and the output
//! ([`cluster`](super::cluster)).

use serde_json::Value;
use thalweg_server::cluster::REMOVED_REASON;

/// Free disk space in bytes below which a node is reported, as a weakness.
const LOW_DISK_BYTES: u64 = 1 << 30;

/// Largest difference between two wall clocks, in milliseconds, that is not reported.
const MAX_CLOCK_DIFFERENCE_MILLIS: i64 = 10_000;
/// Longest time in milliseconds by which the cluster's common clock, which timestamps the data, may be behind the wall
/// clocks without a report.
const MAX_TIME_BEHIND_MILLIS: u64 = 60_000;

/// Severity of a finding about a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Severity {
    /// The cluster or a node does not work as it should.
    Problem,
    /// The cluster works, but tolerates fewer failures than it could.
    Weakness,
}

impl Severity {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Problem => "problem",
            Self::Weakness => "weakness",
        }
    }
}

/// A problem or weakness of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub severity: Severity,
    /// Stable code of the finding, for programs.
    pub code: &'static str,
    /// Description of what is wrong.
    pub message: String,
    /// Description of what to do next.
    pub next: String,
}

/// Answer of one node of the cluster.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub name: String,
    /// HTTP address of the node; `None` if it is unknown.
    pub http: Option<String>,
    /// Status of the node, and the cluster as this node sees it. If the node gave no answer, the reason.
    pub answer: Result<(Value, Value), String>,
}

/// Problems and weaknesses that the rules have found, in the order of the report. Problems that stop the cluster come
/// first.
struct Findings(Vec<Finding>);

impl Findings {
    fn problem(&mut self, code: &'static str, message: String, next: impl Into<String>) {
        self.0.push(Finding { severity: Severity::Problem, code, message, next: next.into() });
    }

    fn weakness(&mut self, code: &'static str, message: String, next: impl Into<String>) {
        self.0.push(Finding { severity: Severity::Weakness, code, message, next: next.into() });
    }
}

/// Returns the findings about a cluster. `status` and `members` are the cluster as one node sees it, and `nodes` are
/// the answers of all nodes.
pub(super) fn diagnose(status: &Value, members: &[Value], nodes: &[Node]) -> Vec<Finding> {
    let mut found = Findings(Vec::new());
    if members.is_empty() {
        found.problem(
            "not_joined",
            "the node is not a member of the cluster yet, or has not heard from it since it joined".to_owned(),
            "its log says why; check its --join and that the others reach it at its --advertise, or ask a member",
        );
        return found.0;
    }
    leadership(&mut found, status, members, nodes);
    room(&mut found, status, members);
    clocks(&mut found, members, nodes);
    health(&mut found, members);
    shape(&mut found, members);
    of_nodes(&mut found, nodes);
    found.0
}

fn text<'v>(value: &'v Value, name: &str) -> &'v str {
    value[name].as_str().unwrap_or_default()
}

fn is_voter(member: &Value) -> bool {
    member["role"] == "voter"
}

fn leadership(found: &mut Findings, status: &Value, members: &[Value], nodes: &[Node]) {
    if status["majority"] == false {
        let down = members.iter().filter(|member| is_voter(member) && member["health"] == "down");
        let down: Vec<_> = down.map(|member| text(member, "name")).collect();
        found.problem(
            "no_majority",
            format!("a majority of the voters is down ({}): the cluster accepts no writes", down.join(", ")),
            "start these nodes again with their directories; docs/guides/cluster.md has the steps if they are lost",
        );
    } else if status["leader"].is_null() {
        found.problem(
            "no_leader",
            "no node leads, although a majority of the voters is there".to_owned(),
            "wait for a few seconds and repeat this; if it lasts, the nodes reach each other in one direction only: \
             check the network and the ports for the other nodes",
        );
    }
    let mut leaders: Vec<_> = nodes
        .iter()
        .filter_map(|node| node.answer.as_ref().ok())
        .filter(|(_, cluster)| cluster["leads"] == true)
        .map(|(_, cluster)| (text(cluster, "name"), cluster["term"].as_u64().unwrap_or(0)))
        .collect();
    leaders.sort_by_key(|(_, term)| std::cmp::Reverse(*term));
    if let [(newest, _), former, ..] = &leaders[..] {
        found.problem(
            "former_leader",
            format!("{} still takes itself for the leader, which is {newest}", former.0),
            "the former leader can acknowledge nothing; check its network",
        );
    }
}

fn room(found: &mut Findings, status: &Value, members: &[Value]) {
    if status["room"] == false {
        let full = members.iter().filter(|member| is_voter(member) && member["full"] == true);
        let full: Vec<_> = full.map(|member| text(member, "name")).collect();
        found.problem(
            "no_room",
            format!(
                "the disks of {} are full, so a majority has no room: the cluster refuses new data",
                full.join(", ")
            ),
            "add space on these nodes, or delete or trim data, which the cluster still accepts",
        );
    }
}

fn clocks(found: &mut Findings, members: &[Value], nodes: &[Node]) {
    let ahead =
        members.iter().filter_map(|member| Some((text(member, "name"), member["clock_ahead_millis"].as_i64()?)));
    let mut ahead: Vec<_> = ahead.collect();
    ahead.sort_by_key(|(_, millis)| *millis);
    if let [(slow, first), .., (fast, last)] = &ahead[..]
        && last.saturating_sub(*first) > MAX_CLOCK_DIFFERENCE_MILLIS
    {
        let apart = std::time::Duration::from_millis(last.abs_diff(*first));
        found.weakness(
            "clocks_differ",
            format!("the wall clock of {fast} is {} ahead of that of {slow}", crate::span::show_span(apart)),
            "correct the wrong one and synchronise the clocks; after all nodes were down, the time of the data continues \
             from the clocks of a majority",
        );
    }
    for (_, cluster) in nodes.iter().filter_map(|node| node.answer.as_ref().ok()) {
        let behind = cluster["time_behind_millis"].as_u64().unwrap_or(0);
        if behind > MAX_TIME_BEHIND_MILLIS {
            let behind = std::time::Duration::from_millis(behind);
            found.weakness(
                "time_behind",
                format!(
                    "the time of the data (leases, time to live, retention) is {} behind the wall clocks",
                    crate::span::show_span(behind)
                ),
                "if the clocks are right, transfer the leadership (`thalweg cluster transfer`): the new leader catches up. A \
                 sole voter does so at its next start with a max_clock_jump above that time",
            );
        }
    }
}

fn health(found: &mut Findings, members: &[Value]) {
    for member in members {
        let name = text(member, "name");
        // The advice contains a command that names the member. If other members have this name too, the command uses
        // the id.
        let is_shared = members.iter().filter(|other| other["name"] == member["name"]).count() > 1;
        let id = text(member, "node");
        let (shown, named) = if is_shared { (format!("{name} ({id})"), id) } else { (name.to_owned(), name) };
        let name = shown;
        match text(member, "health") {
            "down" => found.problem(
                "member_down",
                format!("{name} is down"),
                format!(
                    "start it again, or replace it: `thalweg cluster remove {named}`, then start a new node with --join"
                ),
            ),
            "suspect" => found.problem(
                "member_suspect",
                format!("{name} was not heard for longer than usual, or never"),
                format!("check whether it runs, and that it is reachable at {}", text(member, "address")),
            ),
            _ => {
                if member["lagging"] == true {
                    let entries = member["lag_entries"].as_u64().unwrap_or(0);
                    found.problem(
                        "member_lagging",
                        format!("{name} is {entries} entries behind"),
                        "if it does not catch up, its disk or network is slower than the writes",
                    );
                }
                if member["stale"] == true {
                    found.problem(
                        "member_stale",
                        format!("{name} has been behind for a long time"),
                        "its stale reads are old; look at its log and its disk",
                    );
                }
            }
        }
    }
}

/// Checks the number of voters, their distribution over zones, and that all members run the same version.
fn shape(found: &mut Findings, members: &[Value]) {
    let voters: Vec<_> = members.iter().filter(|member| is_voter(member)).collect();
    match voters.len() {
        0..3 => found.weakness(
            "few_voters",
            format!("{} of the members vote, so no failure of a voter is survived", voters.len()),
            "add nodes until there are three voters",
        ),
        even if even.is_multiple_of(2) => found.weakness(
            "even_voters",
            format!("{even} voters survive no more failures than {}", even - 1),
            "add a voter, or remove one",
        ),
        _ => {}
    }
    let zones: std::collections::BTreeSet<_> = voters.iter().map(|voter| text(voter, "zone")).collect();
    let largest = zones.iter().map(|zone| voters.iter().filter(|voter| text(voter, "zone") == *zone).count()).max();
    let is_zoned = zones.len() > 1;
    if is_zoned && largest.is_some_and(|largest| 2 * largest > voters.len()) {
        found.weakness(
            "zone_has_majority",
            "one zone has a majority of the voters, so the loss of this zone stops the cluster".to_owned(),
            "place the voters so that each zone has less than half of them",
        );
    }
    let versions: std::collections::BTreeSet<_> =
        members.iter().map(|member| text(member, "version")).filter(|version| !version.is_empty()).collect();
    if versions.len() > 1 {
        let versions: Vec<_> = versions.into_iter().collect();
        found.weakness(
            "mixed_versions",
            format!("the members run different versions: {}", versions.join(", ")),
            "finish the upgrade; afterwards raise the version of the state machine with `thalweg state raise-version`",
        );
    }
}

fn of_nodes(found: &mut Findings, nodes: &[Node]) {
    for Node { name, http, answer } in nodes {
        let (status, cluster) = match answer {
            Ok(answer) => answer,
            Err(reason) => {
                let at = http.as_ref().map_or(String::new(), |at| format!(" at {at}"));
                found.weakness(
                    "no_answer",
                    format!("{name} did not answer this command{at}: {reason}"),
                    "if the node runs, its HTTP address is not reachable from here",
                );
                continue;
            }
        };
        match text(&status["health"], "status") {
            "good" | "" => {}
            "disk_full" => found.problem(
                "disk_full",
                format!("the disk of {name} is full"),
                "make room on the disk; meanwhile the node takes part with its reserve",
            ),
            "stopped_serving" if text(&status["health"], "reason") == REMOVED_REASON => found.problem(
                "not_member",
                format!("{name} is running but was removed from the cluster"),
                "stop the node",
            ),
            "stopped_serving" if !cluster["undecided_after"].is_null() => found.problem(
                "states_undecided",
                format!("{name} has stopped serving, because no majority of the members has equal states"),
                "start the members that are down, one of which may decide; if it stays so, docs/guides/cluster.md has the \
                 steps to keep the state of one node",
            ),
            "stopped_serving" => found.problem(
                "state_differs",
                format!("{name} has stopped serving: {}", text(&status["health"], "reason")),
                "stop its server, and run `thalweg cluster repair --data DIR --server URL` with its directory and the address \
                 of another member",
            ),
            other => found.problem(
                "node_failed",
                format!("{name} has failed ({other}): {}", text(&status["health"], "reason")),
                "read its log, and restart or replace the node",
            ),
        }
        let free = status["log"]["free_disk_bytes"].as_u64();
        if let Some(free) = free.filter(|free| *free < LOW_DISK_BYTES && status["health"]["status"] == "good") {
            found.weakness(
                "disk_low",
                format!("{name} has only {} of free disk", crate::render::bytes(free)),
                "make room before the disk is full",
            );
        }
        if status["scrub"]["damages"].as_u64().is_some_and(|damages| damages > 0) {
            found.problem(
                "damaged",
                format!("{name} has found damage in its data"),
                "stop the node, and run `thalweg cluster repair --data DIR --server URL` with its directory and the address \
                 of another member; docs/guides/damage.md",
            );
        }
        if cluster["role"].is_null() && text(&status["health"], "reason") != REMOVED_REASON {
            found.problem("not_member", format!("{name} is running but was removed from the cluster"), "stop the node");
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn member(name: &str, health: &str) -> Value {
        json!({ "name": name, "role": "voter", "health": health, "zone": name, "version": "1" })
    }

    fn node(name: &str, leads: bool, term: u64) -> Node {
        let status = json!({ "health": { "status": "good" }, "log": { "free_disk_bytes": 1_u64 << 40 } });
        let cluster = json!({ "name": name, "role": "voter", "leads": leads, "term": term });
        Node { name: name.to_owned(), http: None, answer: Ok((status, cluster)) }
    }

    fn codes(status: &Value, members: &[Value], nodes: &[Node]) -> Vec<&'static str> {
        diagnose(status, members, nodes).iter().map(|finding| finding.code).collect()
    }

    fn good() -> (Value, Vec<Value>, Vec<Node>) {
        let status = json!({ "majority": true, "leader": "01" });
        let members = ["a", "b", "c"].map(|name| member(name, "alive")).to_vec();
        (status, members, vec![node("a", true, 3), node("b", false, 3), node("c", false, 3)])
    }

    #[test]
    fn three_good_nodes_have_no_findings() {
        let (status, members, nodes) = good();
        assert_eq!(codes(&status, &members, &nodes), Vec::<&str>::new());
    }

    /// A node that has not joined a cluster knows of no voters. This must not be reported as a lost majority.
    #[test]
    fn a_node_that_has_not_joined_is_told_from_a_lost_majority() {
        assert_eq!(codes(&json!({ "majority": false, "leader": null }), &[], &[]), ["not_joined"]);
    }

    #[test]
    fn a_lost_majority_comes_first() {
        let (_, mut members, nodes) = good();
        members[1]["health"] = json!("down");
        members[2]["health"] = json!("down");
        let status = json!({ "majority": false, "leader": null });
        assert_eq!(codes(&status, &members, &nodes), ["no_majority", "member_down", "member_down"]);
        let found = diagnose(&status, &members, &nodes);
        assert!(found[0].message.contains("(b, c)") && found[1].next.contains("cluster remove b"), "{found:?}");
    }

    #[test]
    fn each_fault_is_named() {
        let (status, members, nodes) = good();
        let with = |at: usize, change: fn(&mut Value)| {
            let mut members = members.clone();
            change(&mut members[at]);
            codes(&status, &members, &nodes)
        };
        assert_eq!(with(1, |member| member["health"] = json!("suspect")), ["member_suspect"]);
        assert_eq!(with(1, |member| member["lagging"] = json!(true)), ["member_lagging"]);
        assert_eq!(with(1, |member| member["stale"] = json!(true)), ["member_stale"]);
        assert_eq!(with(1, |member| member["version"] = json!("2")), ["mixed_versions"]);
        assert_eq!(with(1, |member| member["zone"] = json!("a")), ["zone_has_majority"]);
        assert_eq!(with(1, |member| member["role"] = json!("learner")), ["few_voters"]);
        assert_eq!(codes(&json!({ "majority": true, "leader": null }), &members, &nodes), ["no_leader"]);
        let mut four = members.clone();
        four.push(member("d", "alive"));
        assert_eq!(codes(&status, &four, &nodes), ["even_voters"]);
    }

    #[test]
    fn full_disks_and_wrong_clocks_are_named() {
        let (_, mut members, mut nodes) = good();
        let status = json!({ "majority": true, "leader": "01", "room": false });
        members[1]["full"] = json!(true);
        members[2]["full"] = json!(true);
        let found = diagnose(&status, &members, &nodes);
        assert_eq!(found[0].code, "no_room");
        assert!(found[0].message.contains("the disks of b, c are full"), "{found:?}");
        let (status, mut members, _) = good();
        members[0]["clock_ahead_millis"] = json!(0);
        members[1]["clock_ahead_millis"] = json!(-9_000);
        assert_eq!(codes(&status, &members, &nodes), Vec::<&str>::new());
        members[2]["clock_ahead_millis"] = json!(60_000);
        let found = diagnose(&status, &members, &nodes);
        assert!(found[0].code == "clocks_differ" && found[0].message.contains("of c is"), "{found:?}");
        let (_, members, _) = good();
        if let Ok((_, cluster)) = &mut nodes[0].answer {
            cluster["time_behind_millis"] = json!(3_600_000);
        }
        assert_eq!(codes(&status, &members, &nodes), ["time_behind"]);
    }

    #[test]
    fn members_with_one_name_are_told_apart_by_their_ids() {
        let (status, mut members, nodes) = good();
        let found = |members: &[Value]| {
            let found = diagnose(&status, members, &nodes).into_iter().find(|finding| finding.code == "member_down");
            found.map(|finding| (finding.message, finding.next)).expect("a finding")
        };
        members[2]["health"] = json!("down");
        let (message, next) = found(&members);
        assert!(message.starts_with("c is down") && next.contains("remove c`"), "{message}: {next}");
        for (member, id) in members.iter_mut().zip(["01", "02", "03"]) {
            member["node"] = json!(id);
        }
        members[1]["name"] = json!("c");
        let (message, next) = found(&members);
        assert!(message.starts_with("c (03) is down") && next.contains("remove 03`"), "{message}: {next}");
    }

    #[test]
    fn nodes_are_asked_themselves() {
        let (status, members, mut nodes) = good();
        nodes[1] = node("b", true, 2);
        nodes[2].answer = Err("no server listens".to_owned());
        assert_eq!(codes(&status, &members, &nodes), ["former_leader", "no_answer"]);
        let found = diagnose(&status, &members, &nodes);
        assert!(found[0].message.starts_with("b still takes itself"), "{found:?}");
        let (_, _, mut nodes) = good();
        if let Ok((status, cluster)) = &mut nodes[0].answer {
            status["health"] = json!({ "status": "disk_full" });
            status["scrub"] = json!({ "damages": 1 });
            cluster["role"] = Value::Null;
        }
        assert_eq!(codes(&status, &members, &nodes), ["disk_full", "damaged", "not_member"]);
        let (_, _, mut nodes) = good();
        if let Ok((status, _)) = &mut nodes[1].answer {
            status["health"] = json!({ "status": "stopped_serving", "reason": "it differs" });
        }
        assert_eq!(codes(&status, &members, &nodes), ["state_differs"]);
        if let Ok((_, cluster)) = &mut nodes[1].answer {
            cluster["undecided_after"] = json!(1024);
        }
        assert_eq!(codes(&status, &members, &nodes), ["states_undecided"]);
        let (_, _, mut nodes) = good();
        if let Ok((status, _)) = &mut nodes[1].answer {
            status["health"] = json!({ "status": "stopped_serving", "reason": REMOVED_REASON });
        }
        assert_eq!(codes(&status, &members, &nodes), ["not_member"]);
        let (_, _, mut nodes) = good();
        if let Ok((status, _)) = &mut nodes[0].answer {
            status["log"]["free_disk_bytes"] = json!(1000);
        }
        assert_eq!(codes(&status, &members, &nodes), ["disk_low"]);
    }
}
