//! The alerts, the dashboard, the debugging guide and the page on tuning name metrics, labels, options and commands
//! that exist.
//!
//! The names are compared with what `/metrics` of a member of a cluster returns after each part of the node has been
//! used.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;
use yaml_rust2::{Yaml, YamlLoader};

use super::{Cluster, command, node::skip, run, until};

/// Metrics of a server, each with the labels of its series. A metric that has no series yet has no labels.
type Metrics = BTreeMap<String, BTreeSet<String>>;

/// Labels that Prometheus itself adds.
const OF_PROMETHEUS: [&str; 2] = ["instance", "job"];

/// Words of the guide that look like options and are values and fields of the API.
const NO_OPTIONS: [&str; 23] = [
    // Stages of a publish, and of a replicated write.
    "fan_out",
    "follower_write",
    "follower_sync",
    "disk_full",
    "stopped_serving",
    "states_undecided",
    "state_differs",
    "maintenance_error",
    "max_pending",
    // Fields of a scenario file.
    "min_bytes",
    "max_bytes",
    "read_modify_write",
    "read_records",
    "cache_get",
    "cache_put",
    "cache_delete",
    "read_from",
    "record_bytes",
    "message_bytes",
    "min_rows",
    "max_rows",
    "arrivals",
    "rate",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// Uses each part of a node of a cluster of two, and returns its metrics.
fn metrics_of_a_member() -> Metrics {
    let cluster = Cluster::start(2);
    let leader = cluster.leader();
    let node = cluster.node(leader);
    node.cli(&["append", "events", "a"]).ok();
    node.cli(&["groups", "create", "events", "audit"]).ok();
    node.cli(&["put", "users", "ada", "1815"]).ok();
    node.cli(&["cache", "put", "sessions", "ada", "token"]).ok();
    assert!(cluster.redis(leader, "SET a 1\r\nHGET a\r\n").starts_with("+OK"));
    let mut text = String::new();
    // The other node is known here once it has announced what it subscribes to, which may be nothing.
    until("the metrics of messages between nodes are there", || {
        let reply = super::get(&cluster.url(leader, "/metrics"), &[]);
        text = String::from_utf8(reply.map(|(_, body)| body).unwrap_or_default()).unwrap();
        text.contains("cluster_subject_dropped_messages")
    });
    parse(&text)
}

/// Parses the text of OpenMetrics: names as series have them, with their suffixes.
fn parse(text: &str) -> Metrics {
    let mut metrics = Metrics::new();
    for line in text.lines() {
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            let suffixes: &[&str] = match kind {
                "counter" => &["_total"],
                "histogram" => &["_bucket", "_count", "_sum"],
                _ => &[""],
            };
            for suffix in suffixes {
                metrics.entry(format!("{name}{suffix}")).or_default();
            }
            let buckets = format!("{name}_bucket{{");
            let mut buckets = text.lines().filter(|line| line.starts_with(&buckets)).peekable();
            let is_complete = buckets.peek().is_none() || buckets.any(|line| line.contains("le=\"+Inf\""));
            assert!(is_complete, "{name} has no bucket for all values, so it has no quantiles");
        } else if !line.starts_with('#') {
            let (name, labels) = line.split_once(['{', ' ']).unwrap();
            let labels = labels.split("=\"").filter_map(|before| before.rsplit([',', '{', ' ']).next());
            let labels = labels.filter(|label| line.contains(&format!("{label}=\""))).map(str::to_owned);
            metrics.entry(name.to_owned()).or_default().extend(labels);
        }
    }
    assert!(metrics.len() > 100, "{} metrics", metrics.len());
    metrics
}

/// Returns the metrics that an expression names, each with the labels by which it selects.
fn named(expression: &str) -> Vec<(String, Vec<String>)> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for (at, _) in expression.match_indices("thalweg_") {
        if expression[..at].chars().next_back().is_some_and(is_part) {
            continue;
        }
        let rest = &expression[at..];
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let selector = rest[end..].strip_prefix('{').and_then(|inside| inside.split_once('}'));
        let labels = selector.map_or(Vec::new(), |(inside, _)| {
            let parts = inside.split(',').filter_map(|part| part.split_once(['=', '!']));
            parts.map(|(label, _)| label.trim().to_owned()).collect()
        });
        found.push((rest[..end].to_owned(), labels));
    }
    found
}

/// Returns the faults of an expression.
fn faults(expression: &str, metrics: &Metrics) -> Vec<String> {
    let mut faults = Vec::new();
    for (open, close) in [('(', ')'), ('{', '}'), ('[', ']')] {
        if expression.matches(open).count() != expression.matches(close).count() {
            faults.push(format!("{expression}: {open} and {close} do not match"));
        }
    }
    for (name, selected) in named(expression) {
        let Some(labels) = metrics.get(&name) else {
            faults.push(format!("{expression}: there is no metric {name}"));
            continue;
        };
        let is_known =
            |label: &String| labels.is_empty() || labels.contains(label) || OF_PROMETHEUS.contains(&&**label);
        let unknown = selected.iter().filter(|label| !is_known(label));
        faults.extend(unknown.map(|label| format!("{expression}: {name} has no label {label}")));
    }
    faults
}

/// Returns the rules of all groups of alerts.
fn rules() -> Vec<Yaml> {
    let documents = YamlLoader::load_from_str(&read("deploy/monitoring/alerts.yaml")).unwrap();
    let groups = documents[0]["groups"].as_vec().unwrap();
    assert!(groups.iter().all(|group| group["name"].as_str().is_some()));
    groups.iter().flat_map(|group| group["rules"].as_vec().unwrap()).cloned().collect()
}

/// Returns the files with tests of the alerts.
fn tests_of_alerts() -> Vec<PathBuf> {
    let directory = std::fs::read_dir(root().join("deploy/monitoring/tests")).unwrap();
    let files = directory.map(|entry| entry.unwrap().path());
    files.filter(|file| file.extension().is_some_and(|extension| extension == "yaml")).collect()
}

fn of_alerts(metrics: &Metrics) -> Vec<String> {
    let headings: BTreeSet<_> = read("docs/guides/debugging.md").lines().filter_map(anchor).collect();
    let (mut faults_found, mut names) = (Vec::new(), BTreeSet::new());
    for rule in rules() {
        let text = |value: &Yaml| value.as_str().unwrap_or_else(|| panic!("{rule:?}")).to_owned();
        let (name, expression) = (text(&rule["alert"]), text(&rule["expr"]));
        let guide = text(&rule["annotations"]["guide"]);
        assert!(["page", "ticket"].contains(&&*text(&rule["labels"]["severity"])), "{name}");
        assert!(!text(&rule["annotations"]["summary"]).is_empty() && names.insert(name.clone()), "{name}");
        if !headings.contains(&guide) {
            faults_found.push(format!("{name}: the guide has no section {guide}"));
        }
        let is_about_us = expression.contains("thalweg_") || expression.contains("job=\"thalweg\"");
        assert!(is_about_us, "{name}: {expression}");
        faults_found.extend(faults(&expression, metrics));
    }
    assert!(names.len() >= 25, "{names:?}");
    let prometheus = YamlLoader::load_from_str(&read("deploy/monitoring/prometheus.yaml")).unwrap();
    assert_eq!(prometheus[0]["rule_files"][0].as_str(), Some("alerts.yaml"));
    assert_eq!(prometheus[0]["scrape_configs"][0]["job_name"].as_str(), Some("thalweg"));
    faults_found
}

/// Returns the anchor of a heading of a Markdown file.
fn anchor(line: &str) -> Option<String> {
    let heading = line.strip_prefix("## ")?.to_lowercase();
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    Some(kept.map(|c| if c == ' ' { '-' } else { c }).collect())
}

fn of_dashboard(metrics: &Metrics) -> Vec<String> {
    let dashboard: Value = serde_json::from_str(&read("deploy/monitoring/dashboard.json")).unwrap();
    let (mut found, mut ids, mut taken) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}: its id is taken");
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|name| panel["gridPos"][name].as_u64().unwrap());
        assert!(x + w <= 24 && w > 0 && h > 0, "{title}");
        for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert!(taken.insert(cell), "{title} overlaps another panel");
        }
        let targets = panel["targets"].as_array().cloned().unwrap_or_default();
        assert_eq!(targets.is_empty(), panel["type"] == "row", "{title}");
        let references: BTreeSet<_> = targets.iter().map(|target| target["refId"].as_str().unwrap()).collect();
        assert_eq!(references.len(), targets.len(), "{title}");
        for target in &targets {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
            let expression = target["expr"].as_str().unwrap();
            assert!(!named(expression).is_empty(), "{title}: {expression}");
            found.extend(faults(expression, metrics));
        }
    }
    let variables: Vec<_> = dashboard["templating"]["list"].as_array().unwrap().iter().map(|of| &of["name"]).collect();
    assert_eq!(variables, ["datasource", "instance"]);
    found.extend(faults(dashboard["templating"]["list"][1]["query"]["query"].as_str().unwrap(), metrics));
    found
}

/// Returns the texts in backticks outside of fenced blocks.
fn inline_code(text: &str) -> Vec<String> {
    let mut is_fenced = false;
    let mut kept = String::new();
    for line in text.lines() {
        if line.starts_with("```") {
            is_fenced = !is_fenced;
        } else if !is_fenced {
            kept.push_str(line);
            kept.push(' ');
        }
    }
    kept.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn of_guides(metrics: &Metrics) -> Vec<String> {
    let example = read("docs/thalweg.toml");
    let options: BTreeSet<_> = example
        .lines()
        .filter_map(|line| line.trim_start_matches("# ").split_once(" = ").map(|(name, _)| name.to_owned()))
        .collect();
    let (mut found, mut commands, mut named_metrics) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    let texts = ["docs/guides/debugging.md", "docs/tuning.md"].map(|file| inline_code(&read(file)));
    for code in texts.concat() {
        let option = code.split_once(" = ").map_or(&*code, |(option, _)| option);
        let is_name = option.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        if let Some(command) = code.strip_prefix("thalweg ") {
            let words = command.split(' ').take_while(|word| word.chars().all(|c| c.is_ascii_lowercase() || c == '-'));
            commands.insert(words.take_while(|word| !word.starts_with('-')).map(str::to_owned).collect::<Vec<_>>());
        } else if code.starts_with("thalweg_") {
            // The guide names histograms and counters as people do, by the name of the family.
            for (name, labels) in named(&code) {
                let is_family = metrics.contains_key(&format!("{name}_bucket"));
                named_metrics.insert(name.clone());
                if is_family && labels.is_empty() {
                    continue;
                }
                found.extend(faults(&code, metrics));
            }
        } else if is_name && code.contains(['_', '=']) && !options.contains(option) && !NO_OPTIONS.contains(&option) {
            found.push(format!("the guide names the option {option}, which does not exist"));
        }
    }
    assert!(named_metrics.len() >= 40 && commands.len() >= 6, "{named_metrics:?} {commands:?}");
    for words in commands {
        let help = run(command().args(&words).arg("--help"), b"");
        if help.code != Some(0) {
            found.push(format!("the guide names the command {words:?}, which does not exist"));
        }
    }
    found
}

#[test]
fn alerts_dashboard_and_guide_name_what_exists() {
    let metrics = metrics_of_a_member();
    let found = [of_alerts(&metrics), of_dashboard(&metrics), of_guides(&metrics)].concat();
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

#[test]
fn each_alert_has_a_test_in_which_it_fires_and_one_in_which_it_does_not() {
    let alerts: BTreeSet<_> = rules().iter().map(|rule| rule["alert"].as_str().unwrap().to_owned()).collect();
    let (mut firing, mut silent) = (BTreeSet::new(), BTreeSet::new());
    for file in tests_of_alerts() {
        let documents = YamlLoader::load_from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        for test in documents[0]["tests"].as_vec().unwrap() {
            for check in test["alert_rule_test"].as_vec().unwrap() {
                let is_silent = check["exp_alerts"].as_vec().unwrap().is_empty();
                let names = if is_silent { &mut silent } else { &mut firing };
                names.insert(check["alertname"].as_str().unwrap().to_owned());
            }
        }
    }
    assert_eq!(firing, alerts);
    assert_eq!(silent, alerts);
}

/// Needs `promtool`, which comes with Prometheus.
#[test]
fn promtool_accepts_the_alerts_and_their_tests() {
    let promtool = |arguments: &[&str], files: &[PathBuf]| {
        let output = Command::new("promtool").args(arguments).args(files).output().ok()?;
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        Some(())
    };
    if promtool(&["--version"], &[]).is_none() {
        return skip("promtool_accepts_the_alerts_and_their_tests", "promtool is not installed");
    }
    promtool(&["check", "config"], &[root().join("deploy/monitoring/prometheus.yaml")]);
    promtool(&["test", "rules"], &tests_of_alerts());
}

#[test]
fn wrong_names_and_labels_are_found() {
    let text: String = (0..200).map(|at| format!("# TYPE thalweg_a{at} gauge\n")).collect();
    let metrics = parse(&format!("{text}# TYPE thalweg_b counter\nthalweg_b_total{{c=\"1\",d=\"2\"}} 3\n# EOF\n"));
    let faults = |expression: &str| faults(expression, &metrics);
    assert_eq!(faults("rate(thalweg_b_total{c=\"x\",instance=~\"y\"}[5m]) > 0 or thalweg_a7"), Vec::<String>::new());
    assert_eq!(faults("thalweg_b").len(), 1, "a counter ends with _total");
    assert_eq!(faults("thalweg_b_total{e!=\"1\"}").len(), 1);
    assert_eq!(faults("sum(thalweg_a1").len(), 1);
    assert_eq!(anchor("## A group's lag: why?").as_deref(), Some("a-groups-lag-why"));
    assert_eq!(inline_code("a `b` c\n```sh\n`d`\n```\n`e\nf`"), ["b", "e f"]);
}
