//! The runs that give the figures of docs/performance.md, each with its command and a shorter one.

/// A run of `thalweg bench`, and the section of docs/performance.md that has its figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Figures {
    /// Name of the run's files, and its name in lists.
    pub name: &'static str,
    /// Section of docs/performance.md.
    pub section: &'static str,
    /// Arguments of `thalweg bench`, separated by blanks. docs/performance.md has the same.
    pub arguments: &'static str,
    /// Further arguments that make the run short. Its figures then only show that the run works.
    pub quick: &'static str,
}

const fn run(name: &'static str, section: &'static str, arguments: &'static str, quick: &'static str) -> Figures {
    Figures { name, section, arguments, quick }
}

/// Options for short rounds of the suites under load.
const SHORT: &str = "--duration 300ms --warmup 100ms --rounds 1";
/// Options for short rounds of suites over the native protocol, which also measure the machine without a server.
const SHORT_NATIVE: &str = "--duration 300ms --warmup 100ms --rounds 1 --bare 50ms";

/// All measurements, in the order of docs/performance.md.
pub(super) const ALL: &[Figures] = &[
    run("log", "The log", "log", "--time 50ms --rounds 2 --warm-mib 16"),
    run("log-checks", "The log", "log --only-checks --goals --durability disk --time 2s --rounds 5", ""),
    run("engine-quick", "The engine", "engine --mode quick", "--scale 0.02 --rounds 1 --warm-mib 16"),
    run("engine-full", "The engine", "engine --mode full", "--scale 0.002 --rounds 1 --warm-mib 16"),
    run("engine-compaction", "The engine", "engine --mode compaction", "--scale 0.05 --rounds 1 --warm-mib 16"),
    run("backends", "The backends", "backends", "--samples 1"),
    run(
        "backends-large",
        "The backends",
        "backends --no-groups --modes behind-log --sweep-size 1000000 --sweep-readers 16",
        "--samples 1",
    ),
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
    run("resp", "Redis clients", "resp --preset goals", "--duration 200ms --warmup 50ms --rounds 1"),
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
    run(
        "snapshot",
        "Snapshots while others write",
        "snapshot --compress zstd",
        "--entries 20000 --duration 300ms --rounds 1",
    ),
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
];

impl Figures {
    /// Returns the arguments of `thalweg bench`, or those of the shorter run. `None` if there is no shorter run,
    /// because the run has no duration or measures one.
    pub(super) fn arguments(&self, is_quick: bool) -> Option<Vec<&'static str>> {
        let more = if is_quick { self.quick } else { "" };
        let is_there = !is_quick || !self.quick.is_empty();
        is_there.then(|| self.arguments.split(' ').chain(more.split_whitespace()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the commands `thalweg bench` in the blocks of docs/performance.md, without their comments and without
    /// options that only say where plots are written.
    fn documented() -> Vec<String> {
        let text = include_str!("../../../../docs/performance.md");
        let commands = text.lines().filter_map(|line| line.strip_prefix("thalweg bench "));
        let clean = |command: &str| {
            let command = command.split(" #").next().unwrap_or(command).replace('"', "").replace(" --plots plots", "");
            command.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        commands.map(clean).filter(|command| !command.starts_with("report")).collect()
    }

    #[test]
    fn the_runs_are_those_of_the_page() {
        let ours: Vec<&str> = ALL.iter().map(|figures| figures.arguments).collect();
        assert_eq!(documented(), ours);
        let names: std::collections::BTreeSet<_> = ALL.iter().map(|figures| figures.name).collect();
        assert_eq!(names.len(), ALL.len(), "each has files of its own");
        let text = include_str!("../../../../docs/performance.md");
        for figures in ALL {
            assert!(text.contains(&format!("## {}\n", figures.section)), "{}", figures.section);
        }
    }
}
