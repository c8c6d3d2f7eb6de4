//! The runs that give the figures of docs/performance.md and docs/tuning.md. Each has its command, and a shorter one.
//!
//! Owns: the list, in the order of the pages. Does not own: running the commands (`mod`, `processes`), or the figures
//! in the pages.

/// A benchmark run, and the section of docs/performance.md or docs/tuning.md that shows its figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Figures {
    /// Name of the benchmark run, in lists and in the names of its files.
    pub name: &'static str,
    /// Title of the section of docs/performance.md or docs/tuning.md that shows the benchmark run's figures.
    pub section: &'static str,
    /// Command of the benchmark run, as the page shows it.
    pub command: Command,
    /// Further arguments that make the benchmark run short. The figures then show only that the run works.
    pub quick: &'static str,
}

/// Command that performs a benchmark run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    /// Arguments of `thalweg bench`, separated by blanks.
    Bench(&'static str),
    /// Shell command in the root of the source tree, for comparisons with other systems, examples and tests.
    Source(&'static str),
}

const fn run(name: &'static str, section: &'static str, arguments: &'static str, quick: &'static str) -> Figures {
    Figures { name, section, command: Command::Bench(arguments), quick }
}

const fn source(name: &'static str, section: &'static str, line: &'static str) -> Figures {
    Figures { name, section, command: Command::Source(line), quick: "" }
}

/// Options for short rounds of the suites that generate load.
const SHORT: &str = "--duration 300ms --warmup 100ms --rounds 1";
/// Options for short rounds of the suites over the native protocol. `--bare` sets the time of the measurements without
/// a server.
const SHORT_NATIVE: &str = "--duration 300ms --warmup 100ms --rounds 1 --bare 50ms";

/// Options that make a comparison of two configurations short.
const SHORT_COMPARISON: &str = "--pairs 6 --duration 300ms --warmup 100ms";
/// Title of the section of docs/tuning.md about options whose effect was measured.
const OPTIONS: &str = "Options that a comparison measures";

/// All runs, in the order of docs/performance.md, and after them those of docs/tuning.md.
pub(super) const ALL: &[Figures] = &[
    run("log", "The log", "log", "--time 50ms --rounds 2 --warm-mib 16"),
    run("log-checks", "The log", "log --only-checks --goals --durability disk --time 2s --rounds 5", ""),
    run("engine-quick", "The engine", "engine --mode quick", "--scale 0.02 --rounds 1 --warm-mib 16"),
    run("engine-full", "The engine", "engine --mode full", "--scale 0.002 --rounds 1 --warm-mib 16"),
    run("engine-compaction", "The engine", "engine --mode compaction", "--scale 0.05 --rounds 1 --warm-mib 16"),
    source("engine-peers", "The engine", "cargo run --release --manifest-path peers/Cargo.toml -- --suite full"),
    source(
        "engine-scale",
        "The engine",
        "cargo test --release -p thalweg-engine --test scale -- --ignored --nocapture --test-threads 1",
    ),
    source("engine-watch", "The engine", "cargo bench -p thalweg-engine --bench watch"),
    source("row-p", "The engine", "cargo run --release --manifest-path peers/row-p/Cargo.toml"),
    run("backends", "The backends", "backends", "--samples 1"),
    run(
        "backends-large",
        "The backends",
        "backends --no-groups --modes behind-log --sweep-size 1000000 --sweep-readers 16",
        "--samples 1",
    ),
    source("backends-peers", "The backends", "cargo run --release --manifest-path peers/Cargo.toml -- --backends"),
    run("groups", "Consumer groups", "groups", "--records 20000 --rounds 1"),
    run("http-ratios", "HTTP", "http --preset ratios", SHORT),
    run("http-row-h", "HTTP", "http --preset row-h", "--duration 300ms --warmup 100ms --rounds 1 --keys 2000"),
    run("http-knee", "HTTP", "http --search p99<5ms --mix put --durability disk --connections 64", SHORT),
    run("pubsub-goals", "The native protocol", "pubsub --preset goals --transport tcp,quic", SHORT_NATIVE),
    run("pubsub-row-f", "The native protocol", "pubsub --preset row-f --transport tcp,quic", SHORT_NATIVE),
    run("pubsub-profiles", "The native protocol", "pubsub --preset profiles", SHORT_NATIVE),
    run("pubsub-singles", "The native protocol", "pubsub --preset singles", SHORT_NATIVE),
    run("pubsub-knobs", "The native protocol", "pubsub --preset knobs", SHORT_NATIVE),
    run("pubsub-lanes", "The native protocol", "pubsub --preset lanes", SHORT_NATIVE),
    run("cache", "The native protocol", "cache --transport tcp,quic", SHORT),
    run("streams", "The native protocol", "streams --transport tcp,quic", SHORT_NATIVE),
    run(
        "streams-reuse",
        "The native protocol",
        "streams --transport tcp,quic --only publish --retention-mib 256",
        SHORT_NATIVE,
    ),
    source("nats", "The native protocol", "peers/nats/run.sh -rounds 3 -json nats.json"),
    source("transport", "The native protocol", "cargo run --release -p thalweg-transport --example throughput"),
    source(
        "idle-connections",
        "The native protocol",
        "cargo test -p thalweg-server --test alone native_idle::ten_thousand -- --ignored --nocapture",
    ),
    source("broker-fanout", "The broker's core", "cargo run --release -p thalweg-broker --example fanout_cost"),
    source("broker-match", "The broker's core", "cargo run --release -p thalweg-broker --example match_cost"),
    source("broker-cache", "The broker's core", "cargo run --release -p thalweg-broker --example cache_cost"),
    run("resp", "Redis clients", "resp --preset goals", "--duration 200ms --warmup 50ms --rounds 1"),
    source(
        "kafka",
        "Beside Kafka and PostgreSQL",
        "peers/kafka/run.sh --thalweg target/release/thalweg --dir target/kafka --json kafka.json",
    ),
    source(
        "postgres",
        "Beside Kafka and PostgreSQL",
        "python3 peers/postgres/run.py --thalweg target/release/thalweg --dir target/postgres --json postgres.json",
    ),
    run(
        "pressure",
        "More data than memory",
        "pressure --parts load,gets,misses --goals",
        "--no-limit --data 4MiB --duration 300ms --warmup 100ms --probe 100ms --settle 1s --rounds 1",
    ),
    run(
        "pressure-keys",
        "More data than memory",
        "pressure --parts keys --goals",
        "--no-limit --keys 20000 --duration 300ms --warmup 100ms --settle 1s",
    ),
    run(
        "pressure-tails",
        "More data than memory",
        "pressure --parts tails --goals",
        "--rate 500 --tail-duration 1s --duration 300ms --warmup 100ms --rounds 1",
    ),
    source(
        "attacks",
        "One client against the others",
        "THALWEG_ATTACK_SECONDS=10 cargo test --release -p thalweg --test attacks -- --nocapture --test-threads=1",
    ),
    run(
        "snapshot",
        "Snapshots while others write",
        "snapshot --compress zstd",
        "--entries 20000 --duration 300ms --rounds 1",
    ),
    source(
        "million",
        "A million small streams",
        "cargo test --release -p thalweg --test suite million:: -- --ignored --nocapture --test-threads 1",
    ),
    source(
        "machine-cost",
        "The state machine as a function of its log",
        "cargo run --release -p thalweg-state --example machine_cost",
    ),
    source(
        "replicated-commits",
        "Replicated commits",
        "cargo run --release -p thalweg-cluster --example replicated_commits",
    ),
    source("codec", "The wire codec", "cargo run --release -p thalweg-wire --example codec_cost"),
    source("etcd", "The cluster", "peers/etcd/run.sh --clients 1,10,50,100 --goals"),
    run("cluster-resp-appends", "The cluster", "cluster --parts founding,resp,appends --goals", SHORT),
    run("cluster-failover", "The cluster", "cluster --parts failover --kills 200 --goals", ""),
    run("cluster-rolling", "The cluster", "cluster --parts rolling --restarts 20 --goals", ""),
    run("cluster-lag", "The cluster", "cluster --parts lag,heartbeats,detection --goals", ""),
    run(
        "cluster-catch-up",
        "The cluster",
        "cluster --parts catch-up --missed-bytes 1073741824 --server-arg=--history-bytes=4GiB --goals",
        "",
    ),
    run(
        "cluster-snapshot",
        "The cluster",
        "cluster --parts snapshot",
        "--snapshot-bytes 67108864 --duration 300ms --warmup 100ms --rounds 1",
    ),
    run(
        "cluster-tls",
        "The cluster",
        "cluster --parts tls --clients 1,100",
        "--duration 300ms --warmup 100ms --rounds 1",
    ),
    run("cluster-slow-follower", "The cluster", "cluster --parts slow-follower --goals", ""),
    option(
        "option-commit-delay",
        "compare thalweg thalweg --arg-b=--commit-delay=200us --durability disk --closed --connections 16",
    ),
    option(
        "option-spare-segments",
        "compare thalweg thalweg --arg-b=--spare-segments=8 --durability interval --rate 5000 --value-size 10000",
    ),
    option(
        "option-segment-bytes",
        "compare thalweg thalweg --arg-b=--segment-bytes=256MiB --durability interval --rate 5000 --value-size 10000",
    ),
    option(
        "option-memtable-bytes",
        "compare thalweg thalweg --arg-b=--memtable-bytes=16MiB --durability interval --rate 20000 --keys 1000000",
    ),
    option(
        "option-table-compression",
        "compare thalweg thalweg --arg-b=--table-compression=lz4 --durability interval --closed --connections 16 --mix mixed --keys 1000000 --value-size 1024",
    ),
    option(
        "option-inline-value-bytes",
        "compare thalweg thalweg --arg-b=--inline-value-bytes=512 --durability interval --rate 10000 --mix mixed --value-size 1024",
    ),
    option(
        "option-max-replay-bytes",
        "compare thalweg thalweg --arg-b=--max-replay-bytes=64MiB --durability interval --rate 5000 --value-size 10000",
    ),
    option(
        "option-native-threads",
        "compare thalweg thalweg --arg-b=--native-threads=2 --protocol native --scenario ycsb-a --connections 64",
    ),
    option(
        "option-resp-threads",
        "compare thalweg thalweg --arg-b=--resp-threads=2 --protocol resp --mix mixed --closed --connections 50 --pipeline 16",
    ),
    option(
        "option-maintenance-interval",
        "compare thalweg thalweg --arg-b=--maintenance-interval=10s --durability interval --rate 5000 --value-size 10000",
    ),
];

const fn option(name: &'static str, arguments: &'static str) -> Figures {
    run(name, OPTIONS, arguments, SHORT_COMPARISON)
}

impl Figures {
    /// Returns the arguments of `thalweg bench` for this run, or for its shorter form if `is_quick` is true. Returns
    /// `None` if the run is no command of `thalweg bench`, or if a shorter form is requested and the run has none.
    pub(super) fn arguments(&self, is_quick: bool) -> Option<Vec<&'static str>> {
        let Command::Bench(arguments) = self.command else { return None };
        let more = if is_quick { self.quick } else { "" };
        let is_there = !is_quick || !self.quick.is_empty();
        is_there.then(|| arguments.split(' ').chain(more.split_whitespace()).collect())
    }
}

/// Formats arguments as a user types them in a shell.
pub(super) fn quoted(arguments: &[&str]) -> String {
    let one = |argument: &&str| {
        if argument.contains(['<', '>', '\'']) { format!("'{argument}'") } else { (*argument).to_owned() }
    };
    arguments.iter().map(one).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const PERFORMANCE: &str = include_str!("../../../../docs/performance.md");
    const TUNING: &str = include_str!("../../../../docs/tuning.md");
    /// Sections of docs/performance.md that have no figures.
    const WITHOUT_FIGURES: [&str; 2] = ["How to read it", "Goals that are missed"];

    /// Returns the commands in the fenced blocks of a text, each once. Comments are removed, and so are options that
    /// only name a directory for plots.
    fn documented(text: &str) -> Vec<String> {
        let (mut is_fenced, mut commands) = (false, Vec::new());
        for line in text.lines() {
            if line.starts_with("```") {
                is_fenced = !is_fenced;
            } else if is_fenced {
                let command = line.split(" #").next().unwrap_or(line).replace('"', "").replace(" --plots plots", "");
                let command = command.split_whitespace().collect::<Vec<_>>().join(" ");
                if !commands.contains(&command) {
                    commands.push(command);
                }
            }
        }
        commands
    }

    fn listed(figures: &Figures) -> String {
        match figures.command {
            Command::Bench(arguments) => format!("thalweg bench {arguments}"),
            Command::Source(line) => line.to_owned(),
        }
    }

    /// Returns the source files of the programs that a shell command runs, relative to the root of the source tree.
    /// `None` if this test does not recognise a program in the command.
    fn programs(line: &str) -> Option<Vec<String>> {
        let words: Vec<&str> = line.split(' ').collect();
        let behind = |option: &str| Some(*words.get(words.iter().position(|word| *word == option)? + 1)?);
        if let Some(script) = words.iter().find(|word| word.ends_with("/run.sh") || word.ends_with("/run.py")) {
            return Some(vec![(*script).to_owned()]);
        }
        if let Some(manifest) = behind("--manifest-path") {
            return Some(vec![manifest.to_owned()]);
        }
        let package = behind("-p")?;
        let package = format!("crates/{}", package.strip_prefix("thalweg-").unwrap_or(package));
        let kinds = [("--example", "examples"), ("--test", "tests"), ("--bench", "benches")];
        let (directory, name) = kinds.iter().find_map(|(option, directory)| Some((directory, behind(option)?)))?;
        Some(["", "/main"].map(|rest| format!("{package}/{directory}/{name}{rest}.rs")).to_vec())
    }

    #[test]
    fn programs_of_the_source_tree_exist() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for figures in ALL {
            let Command::Source(line) = figures.command else { continue };
            let files = programs(line).unwrap_or_else(|| panic!("no program is named in {line}"));
            assert!(files.iter().any(|file| root.join(file).is_file()), "none of {files:?} exists, for {line}");
        }
    }

    /// Returns the text of a section of a page.
    fn section_of<'a>(page: &'a str, name: &str) -> &'a str {
        let (_, behind) = page.split_once(&format!("\n## {name}\n")).unwrap_or_else(|| panic!("no section {name}"));
        behind.split("\n## ").next().unwrap_or(behind)
    }

    #[test]
    fn the_runs_are_those_of_the_pages() {
        let (options, ours): (Vec<&Figures>, Vec<_>) = ALL.iter().partition(|figures| figures.section == OPTIONS);
        let ours: Vec<String> = ours.into_iter().map(listed).collect();
        assert_eq!(
            documented(PERFORMANCE),
            ours,
            "add new commands of docs/performance.md to the list, in their order"
        );
        let options: Vec<String> = options.into_iter().map(listed).collect();
        assert_eq!(documented(section_of(TUNING, OPTIONS)), options);
        let names: BTreeSet<_> = ALL.iter().map(|figures| figures.name).collect();
        assert_eq!(names.len(), ALL.len(), "each has files of its own");
    }

    #[test]
    fn each_section_with_figures_has_a_run_that_is_in_it() {
        let sections = PERFORMANCE.lines().filter_map(|line| line.strip_prefix("## "));
        for section in sections.filter(|section| !WITHOUT_FIGURES.contains(section)) {
            assert!(ALL.iter().any(|figures| figures.section == section), "no run of {section}");
        }
        for figures in ALL {
            let page = if figures.section == OPTIONS { TUNING } else { PERFORMANCE };
            let found = documented(section_of(page, figures.section));
            assert!(found.contains(&listed(figures)), "{} is not in {}", listed(figures), figures.section);
        }
    }
}
