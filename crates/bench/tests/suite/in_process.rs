//! The suites of the native protocol and of HTTP against a server in this process: small, to see that they run, check
//! and report.

use thalweg_bench::{
    BenchError, Progress, Quiet, Report,
    baseline::{self, CheckOptions, SaveOptions},
    cache::{self, CacheOptions},
    compare::{self, CompareOptions},
    http::{self, HttpOptions},
    pubsub::{self, PubsubOptions},
    report::Verdict,
    resp::{self, RespOptions},
    scenario::{self, ScenarioOptions},
    streams::{self, StreamsOptions},
};

use crate::{
    common::{self, assert_positive, assert_right, feed_row},
    node::Node,
};

fn options<O: clap::Args>(flags: &str, more: &str) -> O {
    common::options(&format!("{flags} {more}"))
}

/// Flags of a short run against a node.
fn flags_of(node: &Node) -> String {
    format!("--target {} --duration 150ms --warmup 30ms --rounds 1 --max-lag 10s", node.native)
}

/// Returns the figure in a column of the first row of a table.
fn figure(report: &Report, table: &str, column: &str) -> serde_json::Value {
    common::rows(report, table)[0][column].clone()
}

/// Asserts that a report of runs of 150 ms in windows of 50 ms has the windows of this rate, and plots them.
fn assert_windows(report: &Report, rate: &str) {
    assert!(report.to_text().contains("windows: 3 of 0.050 s in each run"), "{}", report.to_text());
    let samples: Vec<_> = report.samples.iter().filter(|samples| samples.figure == rate).collect();
    assert!(!samples.is_empty(), "{:?}", report.samples);
    for run in samples.iter().flat_map(|samples| &samples.runs) {
        let average = run.windows.iter().flatten().sum::<f64>() / 3.0;
        assert!(run.windows.len() == 3 && (average / run.whole.unwrap() - 1.0).abs() < 1e-6, "{rate}: {run:?}");
    }
    let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
    assert_eq!(json["samples"][0]["runs"][0]["windows"].as_array().unwrap().len(), 3);
    assert!(report.to_html().contains(&format!("{rate} over time")), "the page plots {rate}");
}

fn pubsub(node: &Node, flags: &str) -> Report {
    let report = flood(node, flags);
    assert!(figure(&report, "figures", "deliveries/s").as_f64().unwrap() > 0.0, "{}", report.to_text());
    report
}

/// Runs like [`pubsub`], but perhaps without a delivery within the time that is measured.
fn flood(node: &Node, flags: &str) -> Report {
    run_pubsub(&flags_of(node), flags)
}

fn run_pubsub(load: &str, flags: &str) -> Report {
    let report = pubsub::run(&options::<PubsubOptions>(&format!("{load} --bare 200ms"), flags), &mut Quiet).unwrap();
    assert_right(&report);
    report
}

#[test]
fn a_server_that_lets_publishers_wait_for_acks_is_overloaded() {
    let node = Node::start();
    // One batch at a time cannot reach the rate: the publisher waits for acks, and that is not the generator's lag.
    let flags = format!(
        "--target {} --duration 200ms --warmup 30ms --rounds 1 --give-up 50ms --payload 128 --batch 1 --in-flight 1 --rate 100000000",
        node.native
    );
    let report = pubsub::run(&options::<PubsubOptions>(&flags, "--bare 0"), &mut Quiet).unwrap();
    assert_eq!(figure(&report, "figures", "verdict"), "overloaded", "{}", report.to_text());
}

#[test]
fn subjects_in_every_arrangement() {
    let node = Node::start();
    let report = pubsub(&node, "--payload 128 --batch 16 --fan-out 3 --window 50ms");
    assert_windows(&report, "deliveries/s");
    for column in [
        "p50 µs",
        "p99 µs",
        "generator CPU s/M deliveries",
        "bare stream MB/s",
        "of bare, bytes that subscribers receive",
        "bare relay MB/s",
    ] {
        assert!(figure(&report, "figures", column).as_f64().is_some_and(|value| value > 0.0), "{column}");
    }
    assert_eq!(figure(&report, "conditions", "subscriptions"), "3 on 3");
    assert!(report.to_text().contains("percentile spectrum"));
    // Several publishers to one subject, and subscriptions that share connections: one order for all.
    pubsub(&node, "--payload 64 --batch 4 --publishers 3 --connections 2 --fan-out 5 --subscriber-connections 2");
    // Batches larger than the channel's buffer takes, with acks.
    pubsub(&node, "--payload 4096 --batch 32 --in-flight 4 --fan-out 2 --verify-all");
    pubsub(&node, "--batch 8 --fan-out 2 --queue-members 2");
}

#[test]
fn subjects_on_schedule() {
    let node = Node::start();
    let report = pubsub(&node, "--rate 2000 --batch 1 --fan-out 2 --arrivals poisson");
    let published = figure(&report, "figures", "published/s").as_f64().unwrap();
    assert!((500.0..4000.0).contains(&published), "{published}");
    pubsub(&node, "--rate 20000 --batch 32 --linger 1ms --workers 2 --fan-out 3");
    let reached_highest = || {
        let search = pubsub(&node, "--search max<10s --rate 1000 --max-rate 2000 --batch 4");
        search.to_text().contains("limited by the highest rate allowed")
    };
    // A busy machine can miss the pace of one short search.
    assert!((0..5).any(|_| reached_highest()), "no search of five reached the highest rate");
}

#[test]
fn what_is_dropped_is_told_and_accounted_for() {
    let node = Node::start();
    for policy in ["drop-new", "drop-old"] {
        // Two threads: beside a publisher that is never held up, subscribers of the same thread have hardly a turn.
        let flags =
            format!("--policy {policy} --queue-messages 64 --window-messages 64 --batch 16 --fan-out 2 --workers 2");
        let report = run_pubsub(&flags_of(&node).replace("150ms", "1s"), &flags);
        assert!(figure(&report, "figures", "dropped").as_f64().unwrap() > 0.0, "{}", report.to_text());
        let delivered = figure(&report, "percentile spectrum", "deliveries at or below");
        assert!(delivered.as_f64().unwrap() > 0.0, "{}", report.to_text());
    }
}

#[test]
fn caches() {
    let node = Node::start();
    let flags = "--keys 500 --connections 2 --concurrency 8 --window 50ms";
    let report = cache::run(&options::<CacheOptions>(&flags_of(&node), flags), &mut Quiet).unwrap();
    assert_right(&report);
    assert_windows(&report, "operations/s");
    assert_eq!(report.tables[0].rows.len(), 5);
    assert!(figure(&report, "figures", "operations/s").as_f64().unwrap() > 0.0);
    assert!(figure(&report, "figures", "÷ published").as_f64().is_some());
}

#[test]
fn durable_streams() {
    let node = Node::start();
    let flags = format!("{} --bare 200ms --records 3000", flags_of(&node).replace("--max-lag 10s", ""));
    let run = |more: &str| {
        let report = streams::run(&options::<StreamsOptions>(&flags, more), &mut Quiet).unwrap();
        assert_right(&report);
        report
    };
    let report = run("--payload 100 --batch 7 --publishers 3 --window 50ms");
    assert_windows(&report, "records/s");
    for column in ["records/s", "bare round trip p50 µs", "bare fdatasync p50 µs", "of that"] {
        assert!(figure(&report, "figures", column).as_f64().is_some_and(|value| value > 0.0), "{column}");
    }
    run("--payload 1024 --batch 50 --in-flight 4 --durability os");
    let consumed = run("--only consume");
    assert_eq!(consumed.tables[0].rows.len(), 2);
    assert!(consumed.to_text().contains("; a tail has none"), "{}", consumed.to_text());
    let error = streams::run(&options(&flags, "--retention-mib 1"), &mut Quiet).unwrap_err().to_string();
    assert!(error.contains("--target"), "whether segments are reused can't be seen from outside: {error}");
}

/// Returns the reason why a suite refuses the flags.
fn refusal<O: clap::Args>(flags: &str, run: impl Fn(&O, &mut dyn Progress) -> Result<Report, BenchError>) -> String {
    match common::parse::<O>(flags) {
        Err(error) => error.to_string(),
        Ok(options) => run(&options, &mut Quiet).expect_err(flags).to_string(),
    }
}

#[test]
fn options_without_an_effect_are_refused() {
    let all = [
        ("--preset row-h --durability disk", "--durability"),
        ("--preset row-h --rate 5", "--rate"),
        ("--preset row-h --connections 5", "--connections"),
        ("--preset row-h --mix get", "--mix"),
        ("--preset ratios --value-size 5", "--value-size"),
        ("--preset ratios --arrivals poisson", "--arrivals"),
        ("--preset ratios --closed", "--closed"),
        ("--closed --rate 5", "--rate"),
        ("--closed --arrivals poisson", "--arrivals"),
        ("--max-rate 5", "--search"),
        ("--target h:1 --server-arg=x", "--server-arg"),
        ("--target h:1 --server-binary x", "--server-binary"),
    ];
    let http = all.map(|(flags, part)| (flags, part, refusal::<HttpOptions>(flags, http::run)));
    let baseline = [("file --closed --rate 5", "--rate"), ("file --target h:1 --server-arg=x", "--server-arg")]
        .map(|(flags, part)| (flags, part, refusal::<SaveOptions>(flags, baseline::save)));
    let resp = [
        ("--preset goals -c 5", "--connections"),
        ("--preset goals -P 5", "--pipeline"),
        ("--preset goals --distribution zipf", "--distribution"),
        ("--arrivals poisson", "give --rate"),
        ("--max-rate 5", "--search"),
        ("--server 127.0.0.1:1 --server-arg=x", "--server-arg"),
        ("--server thalweg --password x", "--password"),
    ]
    .map(|(flags, part)| (flags, part, refusal::<RespOptions>(flags, resp::run)));
    let pubsub = [
        ("--preset goals --payload 50", "--payload"),
        ("--preset goals --fan-out 5", "--fan-out"),
        ("--preset row-f --rate 5", "--rate"),
        ("--preset lanes --linger 1ms", "--linger"),
        ("--preset knobs --server-profile latency", "--server-profile"),
        ("--preset goals --arrivals poisson", "--arrivals"),
        ("--arrivals poisson", "give --rate"),
        ("--max-rate 5", "--search"),
        ("--target h:1 --server-arg=x", "--server-arg"),
    ]
    .map(|(flags, part)| (flags, part, refusal::<PubsubOptions>(flags, pubsub::run)));
    let cache = [("--arrivals poisson", "give --rate"), ("--target h:1 --server-arg=x", "--server-arg")]
        .map(|(flags, part)| (flags, part, refusal::<CacheOptions>(flags, cache::run)));
    let streams = [("--max-lag 5ms", "--max-lag"), ("--target h:1 --server-arg=x", "--server-arg")]
        .map(|(flags, part)| (flags, part, refusal::<StreamsOptions>(flags, streams::run)));
    let scenario = [
        ("ycsb-a --password x", "--password"),
        ("ycsb-a --database 1", "--database"),
        ("ycsb-a --arrivals poisson", "give --rate"),
        ("ycsb-a --max-rate 5", "--search"),
        ("ycsb-a --target h:1 --server-arg=x", "--server-arg"),
    ]
    .map(|(flags, part)| (flags, part, refusal::<ScenarioOptions>(flags, scenario::run)));
    let all = [&http[..], &baseline, &resp, &pubsub, &cache, &streams, &scenario].concat();
    for (flags, part, error) in all {
        assert!(error.contains(part), "{flags}: {error}");
    }
}

#[test]
fn what_can_not_be_done_is_said() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let wrong = [
        ("--payload 10", "--payload"),
        ("--batch 0", "--batch"),
        ("--linger 1ms", "--linger"),
        ("--rate -1", "--rate"),
        ("--fan-out 0", "--fan-out"),
        ("--window-bytes 0", "--window"),
        ("--window 1ms", "--window: must be at least 10ms"),
        ("--transport quic", "--fingerprint"),
    ];
    for (flags, part) in wrong {
        let flags = flags.replacen(' ', "=", 1);
        let error = pubsub::run(&options(&format!("--target {closed}"), &flags), &mut Quiet).unwrap_err().to_string();
        assert!(error.contains(part), "{flags}: {error}");
    }
    let error = cache::run(&options("", "--only=nothing"), &mut Quiet).unwrap_err().to_string();
    assert!(error.contains("put 0 B, "), "what there is: {error}");
    let error = streams::run(&options("", "--only=nothing"), &mut Quiet).unwrap_err().to_string();
    assert!(error.contains("is in none of: "), "{error}");
    let short = [
        cache::run(&options("", "--window 1ms"), &mut Quiet).unwrap_err().to_string(),
        streams::run(&options("", "--window 1ms"), &mut Quiet).unwrap_err().to_string(),
    ];
    assert!(short.iter().all(|error| error.contains("--window: must be at least 10ms")), "{short:?}");
    let error = pubsub::run(&options(&format!("--target {closed}"), "--bare 0"), &mut Quiet).unwrap_err().to_string();
    assert!(error.contains("native port") || error.contains("refused"), "{error}");
}

#[test]
fn a_run_over_http_reports_rate_spectrum_and_verdict() {
    let node = Node::start();
    // A low rate, which a busy machine reaches too.
    let flags = format!(
        "--target http://{} --api entity --keys 50 --duration 500ms --rate 100 --warmup 50ms --rounds 1 --mix mixed \
         --max-lag 1s --connections 2",
        node.http
    );
    // A busy machine may miss the rate in one run, but not in each of five.
    let met = |more: &str, holds: &dyn Fn(&Report) -> bool| {
        let mut runs = (0..5).map(|_| http::run(&options::<HttpOptions>(&flags, more), &mut Quiet).unwrap());
        runs.find(holds).expect("one of five runs meets its rate")
    };
    let report = met("", &|report| report.verdict() == Verdict::Met);
    let text = report.to_text();
    for column in ["p95 µs", "received MiB/s", "sent MiB/s"] {
        assert!(figure(&report, "figures", column).as_f64().is_some_and(|value| value > 0.0), "{column}");
    }
    assert_eq!(figure(&report, "conditions", "warm-up s"), 0.05);
    for part in ["100/s constant", "percentile spectrum", "1/(1-percentile)", "99.99", "never answered"] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    assert_eq!(figure(&report, "mixed: gets and puts apart", "requests"), "get");
    let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
    let names: Vec<&str> = json["spectra"].as_array().unwrap().iter().filter_map(|it| it["name"].as_str()).collect();
    let ends = [")", ", gets", ", puts", ", service times"];
    assert!(names.len() == 4 && names.iter().zip(ends).all(|(name, end)| name.ends_with(end)), "{names:?}");
    assert!(figure(&report, "cost per operation", "fsyncs").as_f64().is_some_and(|count| count > 0.0), "{text}");
    assert!(figure(&report, "stages of a durable write: ", "average µs").as_f64().is_some(), "{text}");
    assert!(report.to_html().contains("protocol: the rest of the server"), "the plot has the stages");
    met("--arrivals ramp:10:400ms", &|report| {
        // 10/s to 100/s in 0.4 s are 22 requests, and 0.1 s at 100/s are 10.
        let rate = figure(report, "figures", "requests/s").as_f64().unwrap();
        report.verdict() == Verdict::Met && (55.0..75.0).contains(&rate)
    });
    met("--search p90<1s --max-rate 200", &|report| {
        let resources = "resources in the runs of the search";
        let share = |column| figure(report, resources, column).as_f64();
        // The server is in this process, so its processors are not told apart from the generator's.
        assert!(share("generator processors").is_some() && share("fsync %").is_some(), "{}", report.to_text());
        report.to_text().contains("200/s, limited by the highest rate allowed")
    });
}

#[test]
fn a_baseline_is_saved_and_checked() {
    let node = Node::start();
    let file = tempfile::tempdir().unwrap();
    let path = file.path().join("baseline.json");
    let (place, target) = (path.display(), format!("--target http://{}", node.http));
    let load =
        "--runs 10 --keys 50 --duration 500ms --warmup 50ms --rate 200 --connections 2 --max-lag 10s --durability os";
    let saved = baseline::save(&options::<SaveOptions>(&format!("{place} {target} {load}"), ""), &mut Quiet).unwrap();
    assert!(saved.to_text().contains("0.5 s after 0.05 s of warm-up") && path.exists(), "{}", saved.to_text());
    assert!(saved.samples.iter().all(|samples| samples.runs.len() == 10), "{:?}", saved.samples);
    let check = |more: &str| {
        let options = options::<CheckOptions>(&format!("{place} {target} --tolerance 99"), more);
        baseline::check(&options, &mut Quiet)
    };
    let checked = check("").unwrap();
    let found = checked.checks.iter().find(|check| check.what.ends_with("against the baseline")).unwrap();
    assert!(found.required.starts_with("worse by at most 99"), "{}", found.required);
    let table = checked.tables.iter().find(|table| table.title.starts_with("this run (B) against the baseline (A)"));
    assert!(table.is_some_and(|table| !table.rows.is_empty()), "{}", checked.to_text());
    // The other machine's baseline and a file that is none are refused.
    let text = std::fs::read_to_string(&path).unwrap();
    let mut other: serde_json::Value = serde_json::from_str(&text).unwrap();
    other["machine"]["cores"] = 4096.into();
    std::fs::write(&path, other.to_string()).unwrap();
    let error = check("").unwrap_err().to_string();
    assert!(error.contains("4096 cores") && error.contains("--other-machine"), "{error}");
    other["arguments"] = serde_json::json!([]);
    std::fs::write(&path, other.to_string()).unwrap();
    let error = check("--other-machine").unwrap_err().to_string();
    assert!(error.contains("not a baseline"), "{error}");
}

#[test]
fn a_scenario_searches_for_the_highest_rate_within_all_conditions() {
    let node = Node::start();
    let search = |objective: &str| {
        let flags = format!(
            "ycsb-a --keys 100 --connections 2 --duration 300ms --warmup 50ms --rounds 1 --max-lag 10s --rate 100 \
             --max-rate 200 --target http://{} --durability os --search {objective}",
            node.http
        );
        scenario::run(&options::<ScenarioOptions>(&flags, ""), &mut Quiet).unwrap().to_text()
    };
    // A busy machine can miss the pace of one short search.
    let reached_highest = || search("p50<20s,max<30s,errors<1%").contains("200/s, limited by the highest rate allowed");
    assert!((0..5).any(|_| reached_highest()), "no search of five reached the highest rate");
    let missed = search("p99<20s,max<1us");
    assert!(missed.contains("no rate meets it (") && missed.contains("p99 < 20.0 s, max < 1"), "{missed}");
    assert!(missed.contains("fail: max "), "{missed}");
}

#[test]
fn scenarios_of_ycsb_are_answered_rightly() {
    let node = Node::start();
    let run = |name: &str, target: String| {
        let load = "--keys 300 --connections 4 --duration 300ms --warmup 50ms --rounds 2 --max-lag 10s";
        let report =
            scenario::run(&options::<ScenarioOptions>(&format!("{name} {load}"), &target), &mut Quiet).unwrap();
        assert_right(&report);
        assert!(report.samples.iter().any(|samples| samples.figure == "operations/s"), "for thalweg bench compare");
        for column in ["operations/s", "p50 µs", "p95 µs", "p99 µs", "p99.9 µs", "max µs", "count"] {
            assert!(figure(&report, "figures", column).as_f64().is_some_and(|value| value > 0.0), "{name}: {column}");
        }
        assert!(figure(&report, "runs", "stolen %").as_f64().is_none_or(|share| share >= 0.0), "{name}");
        for column in ["received MiB/s", "sent MiB/s"] {
            assert!(figure(&report, "runs", column).as_f64().is_some_and(|value| value > 0.0), "{name}: {column}");
        }
        assert_eq!(figure(&report, "percentile spectrum", "1/(1-percentile)"), 1.0, "of the fastest operation");
        assert!(report.to_text().contains("0.3 s after 0.05 s of warm-up"), "{}", report.to_text());
        report
    };
    for name in ["ycsb-a", "ycsb-b", "ycsb-c", "ycsb-d", "ycsb-e", "ycsb-f"] {
        let report = run(name, format!("--target http://{} --durability os", node.http));
        let level = if name == "ycsb-c" { "durability: without writes" } else { "durability: os" };
        assert!(report.to_text().contains(level), "{}", report.to_text());
        let rows = figure(&report, "runs", "rows/scan").as_f64();
        assert_eq!(rows.is_some_and(|rows| (10.0..=100.0).contains(&rows)), name == "ycsb-e", "{name}: {rows:?}");
    }
    for name in ["ycsb-a", "ycsb-d", "ycsb-f"] {
        let report = run(name, format!("--protocol resp --target redis://{}", node.resp));
        assert!(report.to_text().contains("appendfsync always"), "{}", report.to_text());
    }
    for name in ["ycsb-a", "ycsb-d", "ycsb-e", "ycsb-f"] {
        let report = run(name, format!("--protocol native --target thalweg://{} --durability os", node.native));
        assert!(report.to_text().contains("durability: os"), "{}", report.to_text());
    }
}

#[test]
fn scenarios_run_on_the_embedded_engine_with_the_same_checks() {
    let dir = tempfile::tempdir().unwrap();
    let load = "--duration 200ms --warmup 30ms --rounds 2 --max-lag 10s --protocol embedded";
    let run = |flags: &str| scenario::run(&options::<ScenarioOptions>(load, flags), &mut Quiet);
    let place = format!("--target embedded://{}", dir.path().join("data").display());
    for (flags, level) in [
        (format!("ycsb-a --connections 4 {place}"), "durability: disk"),
        // A connection that has its thread for itself commits there.
        (format!("ycsb-f --connections 1 {place} --durability disk"), "durability: disk"),
        (format!("ycsb-d --connections 4 {place} --durability os"), "durability: os"),
        ("ycsb-e --connections 4 --durability interval".to_owned(), "durability: interval"),
    ] {
        let report = run(&format!("{flags} --keys 300")).unwrap();
        assert_right(&report);
        let text = report.to_text();
        assert!(text.contains(level) && text.contains("engine in this process, in "), "{flags}: {text}");
        assert!(figure(&report, "figures", "p99 µs").as_f64().is_some_and(|time| time > 0.0), "{text}");
        let fsyncs = figure(&report, "runs", "fsyncs/run").as_f64().unwrap();
        assert!(level != "durability: disk" || fsyncs > 10.0, "{text}");
    }
    let error = run("messages --connections 4").unwrap_err().to_string();
    assert!(error.contains("use --protocol native"), "{error}");
    let tables = "[streams]\nrecord_bytes = 100\nbatch = 3\nread_from = \"start\"\n[groups]\nrecords = 5\n\
                  [mix]\nappend = 2\nread_records = 1\nfetch = 2\n";
    for flags in ["--protocol embedded", "--protocol embedded --durability os --rate 200 --arrivals poisson"] {
        let report = run_feeds(tables, flags);
        assert_right(&report);
        let text = report.to_text();
        assert!(text.contains(" records delivered, 0 lost, 0 redelivered"), "{text}");
        assert_positive(&feed_row(&report, "fetch"), &["records/s", "end to end p50 µs"]);
    }
    // Beside a server, on the same load.
    let node = Node::start();
    let sides = [format!("embedded://{}", dir.path().join("other").display()), format!("thalweg://{}", node.native)];
    let report = compare(&sides[0], &sides[1], "--scenario ycsb-a --durability os").unwrap();
    let (_, titles) = verdict_and_titles(&report);
    assert!(titles.contains("durability os: ycsb-a"), "{titles}");
}

/// Compares two servers by short runs.
fn compare(a: &str, b: &str, flags: &str) -> Result<Report, BenchError> {
    let short = "--pairs 6 --duration 150ms --warmup 10ms --connections 2 --keys 50 --max-lag 10s";
    compare::run(&options::<CompareOptions>(&format!("{a} {b} {short}"), flags), &mut Quiet)
}

/// Returns the first summary sentence, and the titles of a comparison's tables.
fn verdict_and_titles(report: &Report) -> (&str, String) {
    assert_right(report);
    let titles: Vec<&str> = report.tables.iter().map(|table| &*table.title).collect();
    (&report.summary[0], titles.join("\n"))
}

#[test]
fn servers_are_compared_over_http_and_resp() {
    let nodes = [Node::start(), Node::start()];
    let http = nodes.each_ref().map(|node| format!("http://{}", node.http));
    let report = compare(&http[0], &http[1], "--mix mixed --closed --durability os").unwrap();
    let (verdict, titles) = verdict_and_titles(&report);
    assert!(verdict.contains("requests/s") && verdict.contains("95 % interval"), "{verdict}");
    assert!(titles.contains("B against A, durability os: mixed, closed loop"), "{titles}");
    let resp = nodes.each_ref().map(|node| format!("resp://{}", node.resp));
    let report = compare(&resp[0], &resp[1], "--mix mixed --rate 200 --pipeline 4").unwrap();
    let (verdict, titles) = verdict_and_titles(&report);
    assert!(verdict.contains("p99 µs"), "{verdict}");
    assert!(titles.contains("durability appendonly yes, appendfsync always: mixed, 200/s constant"), "{titles}");
    assert!(titles.contains(" RESP, runs of 0.15 s"), "{titles}");
    let conditions = report.to_text();
    assert!(conditions.contains(&format!("RESP at {}, database 0, thalweg", nodes[0].resp)), "{conditions}");
    let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
    assert!(json["samples"].as_array().unwrap().iter().any(|samples| {
        samples["scenario"].as_str().unwrap().starts_with("B: mixed") && samples["runs"].as_array().unwrap().len() == 6
    }));
    assert!(report.to_html().contains("change from A to B, durability appendonly yes"));
    // The same puts over two protocols, whose servers name their levels differently.
    let refused = compare(&http[0], &resp[1], "--closed").unwrap_err().to_string();
    assert!(refused.contains("not comparable"), "{refused}");
    let report = compare(&http[0], &resp[1], "--closed --mix get").unwrap();
    let (_, titles) = verdict_and_titles(&report);
    assert!(titles.contains("without writes: A: get, closed loop") && titles.contains("; B: get, closed"), "{titles}");
}

#[test]
fn servers_are_compared_under_a_scenario() {
    let nodes = [Node::start(), Node::start()];
    let native = nodes.each_ref().map(|node| format!("thalweg://{}", node.native));
    let report = compare(&native[0], &native[1], "--scenario ycsb-f --durability os").unwrap();
    let (verdict, titles) = verdict_and_titles(&report);
    assert!(verdict.contains("operations/s"), "{verdict}");
    assert!(titles.contains("durability os: ycsb-f, read 50 %, read_modify_write 50 %, closed loop"), "{titles}");
    let resp = format!("redis://{}", nodes[1].resp);
    let flags = "--scenario ycsb-a --durability disk";
    let refused = compare(&native[0], &resp, flags).unwrap_err().to_string();
    assert!(refused.contains("--across-durabilities"), "{refused}");
    let report = compare(&native[0], &resp, &format!("{flags} --across-durabilities")).unwrap();
    let (_, titles) = verdict_and_titles(&report);
    assert!(titles.contains("DIFFERENT DURABILITIES: A disk, B appendonly yes"), "{titles}");
    // The records of both sides are checked after the runs.
    let http = nodes.each_ref().map(|node| format!("http://{}", node.http));
    let short = "--pairs 6 --duration 150ms --warmup 10ms --connections 2 --rate 200 --max-lag 10s";
    let line = format!("{} {} --scenario jobs --durability os {short}", http[0], http[1]);
    let report = compare::run(&options::<CompareOptions>(&line, ""), &mut Quiet).unwrap();
    assert_right(&report);
    for side in ["A: jobs, ", "B: jobs, "] {
        let is_it = |what: &str| what.starts_with(side) && what.ends_with("the group after the runs");
        assert!(report.checks.iter().any(|check| is_it(&check.what)), "{side}\n{}", report.to_text());
    }
    // A database that is a cache and one that is a keyspace have different durabilities.
    let databases = [format!("redis://{}@1", nodes[0].resp), format!("redis://{}@0", nodes[1].resp)];
    let refused = compare(&databases[0], &databases[1], "--closed").unwrap_err().to_string();
    assert!(refused.contains("not comparable") && refused.contains("none: appendonly no"), "{refused}");
    let native = "--scenario sessions --keyspace sessions";
    let report = compare(&format!("thalweg://{}", nodes[0].native), &http[1], native).unwrap();
    let (_, titles) = verdict_and_titles(&report);
    assert!(titles.contains("none: a cache in memory: sessions, cache_get 90 %"), "{titles}");
    let misses = "% of the reads of the cache found nothing";
    assert_eq!(report.notes.iter().filter(|note| note.contains(misses)).count(), 2, "{:?}", report.notes);
    let left = nodes.each_ref().map(|node| http_get(node, "/v1/streams"));
    assert!(left.iter().all(|left| left.contains("\"streams\":[]")), "the streams of the runs are deleted: {left:?}");
}

/// Creates a cache with a capacity for a few hundred values of 1,000 B.
fn create_cache(node: &Node, name: &str) {
    let created = http(node, "PUT", &format!("/v1/caches/{name}"), "{\"max_bytes\":300000}");
    assert!(created.contains("\"max_bytes\":300000"), "{created}");
}

#[test]
fn scenarios_over_a_cache_count_misses_apart() {
    let node = Node::start();
    let run = |mix: &str, tables: &str, flags: String| {
        let text = format!(
            "[load]\nconnections = 4\nwarmup = \"30ms\"\nduration = \"300ms\"\n[keys]\ncount = 1000\n\
             distribution = \"uniform\"\n[values]\nbytes = 1000\n{tables}[mix]\ncache_get = 8\ncache_put = 2\n\
             cache_delete = 1\n{mix}"
        );
        common::run_scenario(&text, &format!("{flags} --rounds 2 --max-lag 10s"))
    };
    let is_right = |report: Report, durability: &str| {
        assert_right(&report);
        let misses = figure(&report, "runs", "cache misses %").as_f64().unwrap();
        assert!((5.0..100.0).contains(&misses), "the cache holds less than a third: {misses} %");
        assert!(report.to_text().contains(&format!("durability: {durability}")), "{}", report.to_text());
    };
    let size = "[caches]\nmax_bytes = 300_000\n";
    let http = format!("--target http://{}", node.http);
    let native = format!("--protocol native --target thalweg://{}", node.native);
    is_right(run("", size, format!("{http} --keyspace over-http")).unwrap(), "none: a cache in memory");
    is_right(run("", size, format!("{native} --keyspace over-native")).unwrap(), "none: a cache in memory");
    // Beside operations on the keys of the keyspace, whose values cannot be missing.
    is_right(run("read = 5\nupdate = 1\n", size, format!("{http} --durability os --keyspace both")).unwrap(), "os");
    is_right(run("insert = 1\n", size, format!("{native} --durability os --keyspace both2")).unwrap(), "os");
    create_cache(&node, "plain");
    let error = run("", "[caches]\nmax_bytes = 400_000\n", format!("{http} --keyspace plain")).unwrap_err().to_string();
    assert!(error.contains("exists already, with 300000 B"), "{error}");
    let resp = format!("--protocol resp --target redis://{} --database", node.resp);
    let report = run("", "", format!("{resp} 1")).unwrap();
    assert_right(&report);
    assert!(report.to_text().contains("durability: none: appendonly no"), "{}", report.to_text());
    let report = run("", "", format!("{resp} 0")).unwrap();
    assert_right(&report);
    assert!(report.to_text().contains("durability: appendonly yes"), "a keyspace: {}", report.to_text());
    let error = run("", size, format!("{resp} 1")).unwrap_err().to_string();
    assert!(error.contains("caches.max_bytes: RESP creates no caches"), "{error}");
    let error = run("read = 1\n", "", format!("{resp} 1")).unwrap_err().to_string();
    assert!(error.contains("a cache is a database of its own"), "{error}");
}

/// Returns the flags of a scenario over each protocol, with the level of its writes where requests name one.
fn over_each_protocol(node: &Node, level: &str) -> [String; 3] {
    [
        format!("--target http://{}{level}", node.http),
        format!("--protocol native --target thalweg://{}{level}", node.native),
        format!("--protocol resp --target redis://{}", node.resp),
    ]
}

/// Runs a scenario with these tables for a short time.
fn run_feeds(tables: &str, flags: &str) -> Report {
    let load = "[load]\nconnections = 4\nwarmup = \"50ms\"\nduration = \"300ms\"\n";
    common::run_scenario(&format!("{load}{tables}"), &format!("--rounds 2 --max-lag 10s {flags}")).unwrap()
}

#[test]
fn scenarios_over_streams_find_every_record_in_its_place() {
    let node = Node::start();
    let mut places = over_each_protocol(&node, " --durability os").to_vec();
    places.push(format!("{} --database 2", places[2]));
    for (place, read_from) in places.iter().flat_map(|place| ["tail", "start", "random"].map(|from| (place, from))) {
        let tables = format!(
            "[streams]\nrecord_bytes = 100\nrecords = 500\nbatch = 7\nread_records = 50\nread_from = \"{read_from}\"\n\
             [mix]\nappend = 1\nread_records = 1\n"
        );
        let report = run_feeds(&tables, place);
        assert_right(&report);
        let text = report.to_text();
        let level = if place.contains("resp") { "durability: appendonly yes" } else { "durability: os" };
        assert!(text.contains(level) && text.contains(": 0 lost, 0 duplicated, 0 reordered"), "{place}: {text}");
        let append = feed_row(&report, "append");
        assert_eq!(append["records/operation"], 7.0, "{append}");
        assert_positive(&feed_row(&report, "read_records"), &["records/s", "records/operation"]);
        if read_from == "tail" {
            let columns = ["end to end p50 µs", "p99 µs", "max µs", "times"];
            assert_positive(&feed_row(&report, "read_records"), &columns);
        }
    }
    // A Redis client cannot delete native streams.
    let left = http_get(&node, "/v1/streams");
    assert_eq!(left.matches("\"name\":").count(), 3, "the other streams of the runs are deleted: {left}");
}

#[test]
fn scenarios_over_groups_deliver_every_record() {
    let node = Node::start();
    let tables = "[keys]\ncount = 50\ndistribution = \"uniform\"\n[values]\nbytes = 50\n\
                  [streams]\nrecord_bytes = 100\nbatch = 2\n[groups]\nrecords = 5\n[mix]\nread = 1\nappend = 4\nfetch = 1\n";
    for place in over_each_protocol(&node, " --durability os") {
        let report = run_feeds(tables, &place);
        assert_right(&report);
        let text = report.to_text();
        assert!(text.contains(" records delivered, 0 lost, 0 redelivered"), "{place}: {text}");
        assert_positive(&feed_row(&report, "fetch"), &["records/s", "end to end p50 µs"]);
    }
}

#[test]
fn scenarios_over_subjects_time_the_way_to_the_subscribers() {
    let node = Node::start();
    let tables = "[subjects]\nmessage_bytes = 60\nbatch = 3\nsubscribers = 5\n[mix]\npublish = 1\n";
    for place in over_each_protocol(&node, "") {
        // A busy machine may miss the rate in one run, but not in each of five.
        let is_met = |report: &Report| report.verdict() == Verdict::Met;
        let mut runs = (0..5).map(|_| run_feeds(tables, &format!("{place} --rate 100 --arrivals poisson")));
        let report = runs.find(is_met).expect("one of five runs meets its rate");
        let text = report.to_text();
        assert!(text.contains("to each of 5 subscribers") && text.contains("received, 0 lost, 0 of them"), "{text}");
        assert!(text.contains("durability: without writes"), "{text}");
        assert_positive(&feed_row(&report, "publish"), &["records/s", "end to end p50 µs", "p99 µs", "times"]);
    }
    let place = &over_each_protocol(&node, "")[0];
    let found = run_feeds(tables, &format!("{place} --search p99<20s --rate 100 --max-rate 200"));
    assert!(found.checks.iter().any(|check| check.what.ends_with("the subscribers") && check.verdict == Verdict::Met));
}

fn http_get(node: &Node, path: &str) -> String {
    http(node, "GET", path, "")
}

/// Sends a request with a JSON body, which may be empty; returns the reply with its head.
fn http(node: &Node, method: &str, path: &str, body: &str) -> String {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(node.http).unwrap();
    let json = if body.is_empty() { "" } else { "Content-Type: application/json\r\n" };
    let (host, len) = (node.http, body.len());
    let head = format!("Host: {host}\r\nConnection: close\r\n{json}Content-Length: {len}");
    write!(stream, "{method} {path} HTTP/1.1\r\n{head}\r\n\r\n{body}").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}
